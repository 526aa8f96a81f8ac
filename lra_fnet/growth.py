"""Training steps/s and peak memory against the sequence length, each cell in its own process."""

import dataclasses
import json
import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lra_fnet import disk, progress
from lra_fnet.errors import RunFailed, UserError

ROUNDS = 3  # timings of each cell; the table shows their median


@dataclasses.dataclass(frozen=True)
class Cell:
    """What one process measures: a model's training step at one length."""

    task: str
    model: str
    preset: str
    length: int  # tokens
    overrides: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    gin_dirs: tuple[str, ...] = ()
    seconds: float = 2.0  # of each round


def run(cells: Sequence[Cell], out: Path) -> list[dict]:
    """Measures cell by cell and writes growth.json and growth.md into `out` after each.

    Returns:
      One object a cell: its names, state ("ok" or "OOM"), steps_per_second (one a round),
      peak_bytes (of the process, above what it held before the model was made) and planned_bytes
      (XLA's own account of the compiled step: arguments, outputs and temporaries).

    Raises:
      UserError: a cell that cannot be built; what was measured before stays in the files.
    """
    out.mkdir(parents=True, exist_ok=True)
    found: list[dict] = []
    with progress.Bar("measuring", len(cells), unit="cells") as bar:
        for cell in cells:
            found.append(_in_a_process(cell))
            disk.replace(out / "growth.json", json.dumps(found, indent=1) + "\n")
            disk.replace(out / "growth.md", table(found))
            bar.step()
    return found


def _in_a_process(cell: Cell) -> dict:
    request = json.dumps(dataclasses.asdict(cell))
    command = [sys.executable, "-m", "lra_fnet.growth"]
    done = subprocess.run(command, input=request, stdout=subprocess.PIPE, text=True)
    names = {"task": cell.task, "model": cell.model, "preset": cell.preset, "length": cell.length}
    names["overrides"] = list(cell.overrides)
    if done.returncode == -9:  # killed by the kernel, for memory
        return {**names, "state": "OOM"}
    if done.returncode:
        raise UserError(f"{cell.model} at {cell.length} tokens cannot be measured: see above")
    found = json.loads(done.stdout.splitlines()[-1])
    if "mistake" in found:
        raise UserError(found["mistake"])
    return {**names, **found}


def measure(cell: Cell) -> dict:
    """In the child: builds the model, compiles its update, times it on random full-length rows."""
    import jax
    import numpy as np

    from lra_fnet import allocator, experiment, run_folder, step
    from lra_fnet.models.encoder import parameter_count
    from lra_fnet.pipeline import Batch

    overrides = (f"MAX_LEN={cell.length}", "Run.steps_per_dispatch=2", *cell.overrides)
    built = experiment.load(
        cell.task,
        cell.model,
        cell.preset,
        overrides,
        cell.imports,
        [Path(d) for d in cell.gin_dirs],
    )
    facts = {
        "parameters": parameter_count(jax.eval_shape(lambda: built.init(0))),
        "batch_size": built.run.batch_size,
        "dim": built.model.encoder.dim,
        "num_layers": built.model.encoder.num_layers,
        "dtype": built.model.encoder.dtype,
        **run_folder.provenance(),
    }
    shape = (2, built.run.batch_size, *built.abstract_inputs(1)[0].shape[1:])
    rng = np.random.default_rng(0)
    batches = Batch(
        rng.integers(0, built.task.vocab_size - 1, shape).astype(np.uint8),
        np.full(shape[:-1], shape[-1], np.int32),
        rng.integers(0, built.task.num_classes, shape[:2]).astype(np.int32),
        np.ones(shape[:2], bool),
    )
    mesh = step.make_mesh(built.run.batch_size)
    key = step.keys(0)[1]
    try:
        update = step.compile_update(built, mesh, batches)
        before = _forget_peak()
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        state = jax.device_put(step.initial_state(built, 0), whole)
        batches = jax.device_put(batches, step.batch_sharding(mesh))
        state, _ = jax.block_until_ready(update(state, batches, np.int32(1), key))
        peak = _peak() - before
        allocator.keep_freed_memory()  # as a run does; not earlier, since it hides what is needed
        rates = _rates(update, state, batches, key, cell.seconds)
    except RunFailed:
        return {**facts, "state": "OOM"}
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {**facts, "state": "OOM"}
    stats = jax.local_devices()[0].memory_stats()
    if stats:
        peak = stats["peak_bytes_in_use"]
    return {
        **facts,
        "state": "ok",
        "steps_per_second": rates,
        "peak_bytes": peak,
        "planned_bytes": step.planned_bytes(update),
    }


def _rates(update, state, batches, key, seconds: float) -> list[float]:
    """Steps a second in each round."""
    import jax
    import numpy as np

    rates = []
    for _ in range(ROUNDS):
        steps, begun = 0, time.perf_counter()
        while (taken := time.perf_counter() - begun) < seconds:
            state, logs = update(state, batches, np.int32(1), key)
            jax.block_until_ready(logs)
            steps += 1
        rates.append(steps / taken)
    return rates


def _status(name: str) -> int:
    """A field of /proc/self/status in bytes; 0 where there is none."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _peak() -> int:
    return _status("VmHWM")


def _forget_peak() -> int:
    """Makes the kernel count the peak from now on, without the compiler's; returns RSS now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()  # then only what lies above the peak so far is seen
    return _status("VmRSS")


def exponent(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """The least-squares slope of log(value) over log(length); None with fewer than two points."""
    if len(lengths) < 2:
        return None
    x, y = ([math.log(v) for v in column] for column in (lengths, values))
    return statistics.linear_regression(x, y).slope


def table(cells: Sequence[dict]) -> str:
    """Markdown: steps/s and peak memory of each model at each length, with growth exponents.

    The exponents are those of the time of a step and of the memory between the two longest lengths
    that fit.
    """
    lengths = sorted({cell["length"] for cell in cells})
    models = list(dict.fromkeys(cell["model"] for cell in cells))
    by_place = {(cell["model"], cell["length"]): cell for cell in cells}
    head = [f"{length:,}" for length in lengths]
    lines = [
        "| model | steps/s: "
        + " | ".join(head)
        + " | time ~ L^ | MB: "
        + " | ".join(head)
        + " | memory ~ L^ |",
        "|---|" + "---:|" * (2 * len(lengths) + 2),
    ]
    for model in models:
        row = [by_place.get((model, length)) for length in lengths]
        ok = [cell for cell in row if cell and cell["state"] == "ok"][-2:]
        tokens = [cell["length"] for cell in ok]
        seconds = [1 / statistics.median(cell["steps_per_second"]) for cell in ok]
        columns = [_shown(cell, _speed) for cell in row]
        columns.append(_slope(exponent(tokens, seconds)))
        columns += [_shown(cell, lambda c: f"{c['peak_bytes'] / 1e6:,.0f}") for cell in row]
        columns.append(_slope(exponent(tokens, [max(c["peak_bytes"], 1) for c in ok])))
        lines.append(f"| {model} | " + " | ".join(columns) + " |")
    first = next((cell for cell in cells if "device" in cell), None)
    if first:
        device = first["device"]
        lines += [
            "",
            f"One training step of {first['batch_size']} examples: {first['num_layers']} layers, "
            f"width {first['dim']}, {first['dtype']}, {device['count']} x {device['name']} "
            f"({device['platform']}, {device['cores']} cores), commit {str(first['commit'])[:12]}. "
            f"Median of {ROUNDS} rounds; each cell in its own process; memory is the peak above "
            "what the process held before the model was made. Exponents between the two longest "
            "lengths that fit.",
        ]
    return "\n".join(lines) + "\n"


def _speed(cell: dict) -> str:
    value = statistics.median(cell["steps_per_second"])
    return f"{value:.3g}"


def _shown(cell: dict | None, value) -> str:
    if cell is None:
        return "-"
    return value(cell) if cell["state"] == "ok" else cell["state"]


def _slope(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> int:
    """The child: a Cell as JSON on standard input, the result as the last line of its output."""
    request = json.load(sys.stdin)
    for name in ("overrides", "imports", "gin_dirs"):
        request[name] = tuple(request[name])
    try:
        found = measure(Cell(**request))
    except UserError as error:
        found = {"mistake": str(error)}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
