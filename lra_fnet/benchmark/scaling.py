"""Several devices: strong and weak scaling of the update, its loss, its all-reduces.

Each number of devices is measured by a process of its own, which sees only so many: the first GPUs,
or as many simulated CPU devices. Strong scaling splits the preset's batch over the devices; weak
scaling gives each of them the preset's batch.
"""

import dataclasses
import json
import os
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from lra_fnet.benchmark import child, timing
from lra_fnet.benchmark.cells import Cell
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress

STEPS = 5  # after which the losses are compared
ROUNDS = 3  # timings of each row; the table shows their median
NOTICE = (
    "Simulated CPU devices share the same cores: only their equality means something, not speed."
)


def main(cell: Cell, devices: Sequence[int], out: Path) -> list[dict]:
    """Measures, writes scaling.MODEL.LENGTH.json and .md into `out`, prints the latter.

    Returns:
      One object a row: scaling ("strong" or "weak"), devices, batch_size, and of those that the
      machine has: steps_per_second (one a round), loss after STEPS steps in nats, all_reduces in
      the program, platform.

    Raises:
      UserError: a batch that does not divide by a number of devices; a cell that cannot be built.
    """
    batch_size = cell.load().run.batch_size
    if wrong := [number for number in devices if batch_size % number]:
        raise UserError(
            f"--devices expects numbers that divide Run.batch_size ({batch_size}), got {wrong[0]}"
        )
    plan = [("strong", number, batch_size) for number in devices]
    plan += [("weak", number, batch_size * number) for number in devices if number > 1]
    out.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.]+", "-", f"scaling.{cell.label or cell.model}.{cell.length}")
    found: list[dict] = []
    with progress.Bar("scaling", len(plan), unit="programs") as bar:
        for scaling, number, rows in plan:
            places = {"scaling": scaling, "devices": number, "batch_size": rows}
            found.append({**places, **_in_a_process(cell, number, rows)})
            disk.replace(out / f"{name}.json", json.dumps(found, indent=1) + "\n")
            disk.replace(out / f"{name}.md", table(found))
            bar.step()
    print(table(found), end="")
    return found


def _in_a_process(cell: Cell, number: int, batch_size: int) -> dict:
    sized = dataclasses.replace(cell, overrides=(*cell.overrides, f"Run.batch_size={batch_size}"))
    flag = f"--xla_force_host_platform_device_count={number}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))
    process = child.Child(
        f"{cell.model} on {number} devices",
        "scaling",
        env={
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip(),
            "CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[:number]),
        },
    )
    try:
        return process.ask({"cell": dataclasses.asdict(sized), "devices": number})
    finally:
        process.close()


def measure(cell: Cell, number: int) -> dict:
    """In the child: what `main` says of a row; nothing where the machine has fewer devices."""
    import jax

    from lra_fnet.benchmark import worker
    from lra_fnet.train import step

    if jax.device_count() < number:
        return {}
    built = cell.load()
    batches = worker.random_batches(built)
    program = step.Program.compile(built, step.make_mesh(built.run.batch_size), batches)
    state, batches = program.initial_state(0), program.place(batches)
    for _ in range(STEPS):
        state, logs = program.steps(state, batches, 1)
    loss, rates = float(logs.loss[0]), []

    def step_once():
        nonlocal state
        state, logs = program.steps(state, batches, 1)
        jax.block_until_ready(logs)

    for _ in range(ROUNDS):
        steps, taken = timing.repeat(step_once, cell.seconds)
        rates.append(steps / taken)
    return {
        "steps_per_second": rates,
        "loss": loss,
        "all_reduces": all_reduces(program.update.as_text() or ""),
        "platform": jax.default_backend(),
    }


def all_reduces(program: str) -> int:
    """Collective additions in the text of a compiled program; one of several arrays is one."""
    return len(re.findall(r"\ball-reduce(?:-start)?\(", program))


def table(found: Sequence[dict]) -> str:
    """Markdown: steps/s, efficiency against one device, loss and all-reduces of each row.

    Efficiency is the speed-up over the number of devices; in weak scaling, where a step of n
    devices does the work of n steps, the ratio of steps/s.
    """
    one = next((row for row in found if row["devices"] == 1 and "loss" in row), None)
    lines = [
        "| scaling | devices | batch | steps/s | efficiency | loss | all-reduces |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found:
        places = f"| {row['scaling']} | {row['devices']} | {row['batch_size']} |"
        if "loss" not in row:
            lines.append(f"{places} - | - | - | - |")
            continue
        rate = statistics.median(row["steps_per_second"])
        share = "-"
        if one:
            ideal = row["devices"] if row["scaling"] == "strong" else 1
            share = f"{rate / statistics.median(one['steps_per_second']) / ideal:.0%}"
        lines.append(f"{places} {rate:.3g} | {share} | {row['loss']:.6f} | {row['all_reduces']} |")
    losses = [row["loss"] for row in found if row["scaling"] == "strong" and "loss" in row]
    if losses:
        spread = (max(losses) - min(losses)) / abs(losses[0])
        lines += [
            "",
            f"Losses after {STEPS} steps on one batch; those of strong scaling differ by "
            f"{spread:.0e} of their value.",
        ]
    if any(row.get("platform") == "cpu" for row in found):
        lines += ["", NOTICE]
    return "\n".join(lines) + "\n"


class Side:
    """The child's side: everything is measured at once."""

    def __init__(self, cell: dict, devices: int):
        self.facts = measure(Cell(**cell), devices)


if __name__ == "__main__":
    child.serve(Side, lambda error: None)
