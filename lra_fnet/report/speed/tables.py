"""Tables of measured speed and memory.

They have the quantities of arXiv:2105.03824: training steps/s and peak memory, inference in ms per
batch (Table 4), operations of a forward pass (Table 3), the mixing sublayer alone (Table 8). A
number is the median of the rounds with half their range; a speed-up is the median of the rounds'
ratios to the Transformer in the same round, computed in the way that is faster at that length.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from statistics import median

from lra_fnet import config
from lra_fnet.benchmark.files import Result
from lra_fnet.benchmark.timing import spread
from lra_fnet.report.render.grid import Grid, rounded
from lra_fnet.run.result import Record

BASELINE = "transformer"
WAY = "Attention.implementation="  # the overrides that change how it is computed, not what
# Overrides that do not change what a step computes: batch and length are compared by themselves.
_SAME = re.compile(
    rf"(Optimizer\.\w+|Run\.(?!microbatch\b)\w+|MAX_LEN|DATASET|{'|'.join(config.SPEED_ONLY)})\s*="
)
SIDES = {"eager": "PyTorch, eager", "compiled": "PyTorch, compiled", "torch": "PyTorch"}
LEGEND = (
    "Medians of the rounds, ± half their range; in parentheses the speed-up against the faster "
    "Transformer of that length, the median of the ratios round by round. `OOM` out of memory, "
    "`FAIL` does not compile, `-` not measured, † not interleaved with the others: its ratios are "
    "of medians. Memory is the peak of the cell's own process above what it held before the model "
    "was made; on an accelerator, of the device since the process began. Floor: the share of the "
    "time that the program's dense products take alone, measured in the same rounds."
)


def render(cells: Sequence[Result]) -> str:
    """Returns the tables as Markdown."""
    return "\n".join(grid.markdown() for grid in grids(cells))


def grids(cells: Sequence[Result]) -> list[Grid]:
    """Returns the tables that have a number: quantities by length, the mixing sublayer.

    Where and how they were measured stands below the first.
    """

    def memory(cell: Result, base: Result | None) -> str:
        return rounded(cell.peak_bytes / 1e6)

    quantities: list[tuple[str, str, Callable]] = [
        ("train", "Training, steps/s", functools.partial(_time, steps=True)),
        ("pretrain", "Pre-training, ms/batch", _time),
        ("infer", "Inference, ms/batch", _time),
        ("infer", "Inference, GFLOPs of an example", _operations),
    ]
    titles = {what: title.partition(",")[0] for what, title, _ in quantities}
    quantities += [(what, f"{title}, peak MB", memory) for what, title in titles.items()]
    quantities += [(what, f"{title}, floor", _floor) for what, title in titles.items()]
    lengths = sorted({cell.length for cell in cells if cell.what in titles})
    rows = []
    for what, title, text in quantities:
        kept = [cell for cell in cells if cell.what == what]
        bases = {n: faster([cell for cell in kept if cell.length == n]) for n in lengths}
        by_place = {(label(cell), cell.length): cell for cell in kept}
        for name in dict.fromkeys(map(label, kept)):
            texts = [_shown(by_place.get((name, n)), text, bases[n]) for n in lengths]
            if {*texts} != {"-"}:
                rows.append([title, name, *texts])
    head = ["Quantity", "Model", *(f"{length:,}" for length in lengths)]
    speeds = Grid("Speed and memory by length", head, rows, words=2)
    first, *rest = filter(None, [speeds, _mixing(cells), Grid("Nothing was measured", [], [])])
    about = [text for text in (caption(cells), LEGEND) if text]
    return [dataclasses.replace(first, notes=about), *rest]


def label(cell: Result) -> str:
    """Returns the name of a cell's row."""
    return cell.label if cell.side == "ours" else f"{cell.label}, {SIDES.get(cell.side, cell.side)}"


def of_run(cells: Sequence[Result], run: Record, what: str) -> Result | None:
    """Returns the cell that measured a run's own program, the fastest way of computing it.

    It has the run's task, preset, model, overrides, sizes, length, batch and arithmetic, and was
    measured on a CPU if the run was, or on a GPU. None: there is none.
    """

    def changed(overrides: Sequence[str]) -> set[str]:
        return {config.one_form(text) for text in overrides if not _SAME.match(text)}

    dim, num_layers = (run.setting(f"Encoder.{name}") for name in ("dim", "num_layers"))
    same = [
        cell
        for cell in cells
        if cell.ok
        and (cell.what, cell.side) == (what, "ours")
        and (cell.task, cell.preset, cell.model) == (run.task, run.preset, run.model)
        and (cell.length, cell.batch_size) == (run.mixer_length, run.setting("Run.batch_size"))
        and cell.device
        and cell.device.platform == run.device.platform
        and cell.dtype == run.setting("Encoder.dtype")
        and (cell.dim, cell.num_layers, cell.parameters) == (dim, num_layers, run.parameters)
        and changed(cell.overrides) == changed(run.overrides)
    ]
    return min(same, key=lambda cell: median(cell.seconds), default=None)


def faster(cells: Sequence[Result], kind: str = "seconds") -> Result | None:
    """Returns the fastest way of computing the Transformer among cells of one length.

    "naive" and "blockwise" attention are one model; which is faster depends on length and device.

    Args:
      cells: of one program and length.
      kind: the times that decide, "seconds" or "forward_seconds".
    """
    ways = [
        cell
        for cell in cells
        if cell.ok
        and (cell.model, cell.side) == (BASELINE, "ours")
        and (cell.label == BASELINE or _own(cell).startswith(WAY))
    ]
    return min(ways, key=lambda cell: median(getattr(cell, kind)), default=None)


def speed_up(cell: Result, base: Result, kind: str = "seconds") -> float:
    """Returns how many times faster than `base` a cell is.

    It is the median of the rounds' ratios, or the ratio of the medians if either did not take turns
    with the other.
    """
    times, slower = getattr(cell, kind), getattr(base, kind)
    if cell.alone or base.alone or len(times) != len(slower):
        return median(slower) / median(times)
    return median([slow / fast for slow, fast in zip(slower, times, strict=True)])


def caption(cells: Sequence[Result]) -> str:
    """Returns device, sizes, overrides of all rows, rounds, versions and commit."""
    ours = [cell for cell in cells if cell.side == "ours" and cell.device]
    if not ours:
        return ""

    def listed(field: str) -> str:
        return ", ".join(dict.fromkeys(str(getattr(cell, field)) for cell in ours))

    fields = ("task", "preset", "num_layers", "dim", "batch_size", "tokens", "dtype", "threads")
    sizes = [f"{field.replace('_', ' ')} {listed(field)}" for field in fields]
    if shared := dict.fromkeys(x for c in ours for x in c.overrides if x != _own(c)):
        sizes.append(f"with {', '.join(shared)}")
    versions = {name: v for cell in cells for name, v in (cell.versions or {}).items()}
    known = ", ".join(map(" ".join, versions.items()))
    rounds = max(len(cell.seconds) for cell in ours)
    commit = f"commit {str(ours[0].commit)[:12]}{' (dirty)' * bool(ours[0].dirty)}"
    return f"{ours[0].device}; {'; '.join(sizes)}; {rounds} rounds; {known}; {commit}."


def _own(cell: Result) -> str:
    """Returns the binding that a row has and the others do not; "" if there is none."""
    return "" if cell.label == cell.model else "".join(cell.overrides[-1:])


def _shown(cell: Result | None, text: Callable[..., str], base: Result | None, *more: str) -> str:
    """Returns a cell's text, or its state; a base has no ratio to itself."""
    if cell is None or not cell.ok:
        return cell.state if cell else "-"
    return text(cell, None if base is cell else base, *more)


def _time(cell: Result, base: Result | None, kind: str = "seconds", *, steps: bool = False) -> str:
    """Returns ms or steps/s, half the range of the rounds and the speed-up over `base`."""
    values, ratio = getattr(cell, kind), ""
    if base:
        times = speed_up(cell, base, kind)
        digits = ".0f" if times >= 10 else ".1f" if times >= 0.1 else ".2g"
        ratio = f" ({times:{digits}}x)"
    number = rounded(1 / median(values) if steps else 1e3 * median(values))
    half_range = f" ±{100 * spread(values):.0f}%" if len(values) > 1 else ""
    apart = " †" if cell.alone or (base and base.alone) else ""
    return f"{number}{half_range}{ratio}{apart}"


def _operations(cell: Result, base: Result | None) -> str:
    return "-" if cell.flops is None else rounded(cell.flops / cell.batch_size / 1e9)


def _floor(cell: Result, base: Result | None) -> str:
    shares = [floor / taken for floor, taken in zip(cell.floors, cell.seconds, strict=False)]
    return f"{100 * median(shares):.0f}%" if shares else "-"


def _mixing(cells: Sequence[Result]) -> Grid:
    """Returns the mixing sublayer alone: forward and backward, forward."""
    kinds = "seconds", "forward_seconds"
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell.size, cell.length)):
        if cell.what == "mixing":
            place = cell.what, cell.size, cell.length
            same = [other for other in cells if (other.what, other.size, other.length) == place]
            numbers = [_shown(cell, _time, faster(same, kind), kind) for kind in kinds]
            shape = f"{cell.dim:,} x {cell.batch_size}" if cell.ok else "-"
            name = f"{label(cell)} ({cell.size.capitalize()})"
            rows.append([name, shape, f"{cell.length:,}", *numbers])
    head = ["Sublayer", "width x batch", "length", "training ms/batch", "inference ms/batch"]
    return Grid("Mixing sublayer alone", head, rows)
