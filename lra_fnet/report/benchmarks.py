"""Tables of measured speed and memory, in the layouts of the FNet paper.

The tables are those of arXiv:2105.03824: training steps/s and peak memory, inference in ms per
batch (Table 4), operations of a forward pass (Table 3), the mixing sublayer alone (Table 8). A
number is the median of the rounds with half their range; a speed-up is the median of the rounds'
ratios to the Transformer in the same round, computed in the way that is faster at that length.
"""

import dataclasses
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from lra_fnet import config
from lra_fnet.benchmark.files import Result
from lra_fnet.benchmark.timing import RESTLESS, spread
from lra_fnet.report.render.grid import Grid, rounded
from lra_fnet.run.result import Record

BASELINE = "transformer"
WAY = "Attention.implementation="  # the overrides that change how it is computed, not what
# Overrides that do not change what a step computes: batch and length are compared by themselves.
_SAME = re.compile(
    rf"(Optimizer\.\w+|Run\.(?!microbatch\b)\w+|MAX_LEN|DATASET|{'|'.join(config.SPEED_ONLY)})\s*="
)
VERSIONS = ("jax", "torch", "transformers")  # those that the caption names
TITLES = {"train": "Training", "pretrain": "Pre-training", "infer": "Inference"}
_COMPARED = (
    "; in parentheses the speed-up against the faster Transformer of that length, the median of "
    "the ratios round by round (of GFLOPs, the share of the Transformer's). `transformer` computes "
    "attention in blocks (`blockwise`) unless its row says otherwise"
)
LEGEND = (
    f"Medians of the rounds, ± half their range{_COMPARED}. `OOM` out of memory, `FAIL` "
    "does not compile, `-` not measured, † not interleaved with the others: its ratios are of "
    "medians. Memory is the peak of the cell's own process above what it held before the model was "
    "made; on an accelerator, of the device since the process began. "
    "Floor: the time of the program's dense products alone, measured in the same rounds."
)


def render(cells: Sequence[Result]) -> str:
    """Returns Markdown: a table for everything that was measured, and where it was measured."""
    parts = [grid.markdown() for grid in grids(cells)]
    compared = any(cell.model == BASELINE for cell in cells)
    legend = LEGEND if compared else LEGEND.replace(_COMPARED, "")
    return "\n".join([*parts, f"{caption(cells)}\n\n{legend}\n".lstrip()])


def unit_of_memory(cells: Sequence[Result]) -> tuple[str, float]:
    """Returns the unit that suits the device, and its bytes."""
    platform = next((cell.device.platform for cell in cells if cell.device), "cpu")
    return ("MB", 1e6) if platform == "cpu" else ("GB", 1e9)


def grids(cells: Sequence[Result]) -> list[Grid]:
    """Returns the tables of everything that was measured; of a table of `-` alone, nothing."""
    ours = [cell for cell in cells if cell.side == "ours"]
    by_what = {what: [cell for cell in ours if cell.what == what] for what in TITLES}
    train, pretrain, infer = by_what.values()
    unit, scale = unit_of_memory(cells)
    fixed = constant([*train, *pretrain, *infer])
    tables = [
        _grid(f"Training speed (steps/s){fixed}", train, _steps, faster),
        _grid(f"Peak memory of training ({unit}){fixed}", train, lambda c, _: _memory(c, scale)),
        _grid(f"Pre-training (ms/batch){fixed}", pretrain, _milliseconds, faster),
        _grid(
            f"Peak memory of pre-training ({unit}){fixed}", pretrain, lambda c, _: _memory(c, scale)
        ),
        _grid(f"Inference (ms/batch){fixed}", infer, _milliseconds, faster),
        _grid(f"Peak memory of inference ({unit}){fixed}", infer, lambda c, _: _memory(c, scale)),
        _grid("GFLOPs of a forward pass of one example", infer, _operations, _plain),
        _mixing([cell for cell in cells if cell.what == "mixing"]),
        *(
            _grid(f"Floor as a share of the time: {TITLES[what].lower()}{fixed}", kept, _floor)
            for what, kept in by_what.items()
        ),
        _exponents(train, infer, fixed),
    ]
    return [grid for grid in tables if any({*row[grid.words :]} != {"-"} for row in grid.rows)]


def conditions(cells: Sequence[Result]) -> tuple:
    """Returns everything that benchmarks must have in common to share tables and figures."""
    measured = [cell for cell in cells if cell.ok]
    batches = constant(cells) or str(sorted({(c.length, c.batch_size) for c in measured}))
    fields = ("task", "preset", "size", "num_layers", "dim", "dtype", "threads", "device")
    fields += ("versions", "commit", "dirty", "imports", "gin_dirs")
    return (
        batches,
        frozenset(map(_shared, cells)),
        frozenset((cell.what, cell.side, cell.length) for cell in cells),
        *(frozenset(repr(getattr(cell, field)) for cell in measured) for field in fields),
    )


def together(benchmarks: Sequence[Sequence[Result]]) -> tuple[list[Result], list[Grid]]:
    """Returns cells and tables of benchmarks under the same `conditions` as those of one.

    A row that several have is taken from the first. Ratios stay those to the Transformer that was
    measured in the same rounds.
    """
    cells: list[Result] = []
    joined: dict[tuple, Grid] = {}
    for measured in benchmarks:
        known = set(labels(cells))
        cells += [cell for cell in measured if cell.label not in known]
        for grid in grids(measured):
            place = grid.title, *grid.head
            before = joined.get(place, dataclasses.replace(grid, rows=[], notes=[]))
            names = {row[0] for row in before.rows}
            rows = [*before.rows, *(row for row in grid.rows if row[0] not in names)]
            notes = list(dict.fromkeys([*before.notes, *grid.notes]))
            relative = before.relative or grid.relative
            joined[place] = dataclasses.replace(grid, rows=rows, notes=notes, relative=relative)
    if len(benchmarks) == 1:
        return cells, list(joined.values())
    words = (
        f"From {len(benchmarks)} benchmarks: the Transformer's row is that of the first; each "
        "speed-up is against the Transformer of the row's own benchmark."
    )
    return cells, [
        dataclasses.replace(grid, notes=[*grid.notes, words]) if grid.relative else grid
        for grid in joined.values()
    ]


def constant(cells: Sequence[Result]) -> str:
    """Returns what all batches have in common, for a title: ", 16,384 tokens a batch"."""
    measured = [cell for cell in cells if cell.ok]
    for field, words in (("tokens", "{:,} tokens a batch"), ("batch_size", "batches of {:,}")):
        values = {getattr(cell, field) for cell in measured}
        if len(values) == 1 and any(values):
            return f", {words.format(*values)}"
    return ""


def exponent(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """Returns the least-squares slope of log(value) over log(length); None below two points."""
    if len(lengths) < 2:
        return None
    x, y = ([math.log(v) for v in column] for column in (lengths, values))
    return statistics.linear_regression(x, y).slope


def curve(cells: Sequence[Result], label: str | None, value: str) -> tuple[list[int], list[float]]:
    """Returns lengths and numbers of a row without CLS: "seconds" (median) or "peak_bytes".

    Without a label, all cells are one row. Where the number of tokens in a batch is constant, the
    seconds are those of one example, which grow with the length as those of a batch of constant
    size.
    """
    row = [c for c in cells if label in (None, c.label) and c.ok and not c.cls]
    row.sort(key=lambda cell: cell.length)
    if value != "seconds":
        return [cell.length for cell in row], [max(getattr(cell, value), 1) for cell in row]
    sizes = [cell.batch_size if cell.tokens else 1 for cell in row]
    numbers = [median(cell.seconds) / size for cell, size in zip(row, sizes, strict=True)]
    return [cell.length for cell in row], numbers


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


def _own(cell: Result) -> str:
    """Returns the binding that a row has and the others do not; "" if there is none."""
    return "" if cell.label == cell.model else "".join(cell.overrides[-1:])


def _shared(cell: Result) -> tuple[str, ...]:
    """Returns the overrides of all rows."""
    return cell.overrides[:-1] if _own(cell) else cell.overrides


def labels(cells: Sequence[Result]) -> list[str]:
    """Returns the labels of the rows, in the order of the cells."""
    return list(dict.fromkeys(cell.label for cell in cells))


def _grid(
    title: str,
    cells: Sequence[Result],
    text: Callable[[Result, Result | None], str],
    base: Callable[[Sequence[Result]], Result | None] | None = None,
) -> Grid:
    """Returns a row for each model and a column for each length.

    Args:
      title: of the table.
      cells: of one program.
      text: turns a cell and the baseline's cell of the same length into text.
      base: chooses the baseline's cell among those of one length; None for no comparison.
    """
    lengths = sorted({cell.length for cell in cells})
    by_place = {(cell.label, cell.length): cell for cell in cells}
    bases = {n: base([c for c in cells if c.length == n]) if base else None for n in lengths}
    rows = [
        [label, *(_shown(by_place.get((label, n)), text, bases[n]) for n in lengths)]
        for label in labels(cells)
    ]
    notes = _named(bases) if base is faster else []
    head = ["model", *(f"{length:,}" for length in lengths)]
    return Grid(title, head, rows, notes, relative=bool(notes))


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
        if cell.label == BASELINE or (cell.model == BASELINE and _own(cell).startswith(WAY))
    ]
    measured = [cell for cell in ways if cell.ok]
    return min(measured, key=lambda cell: median(getattr(cell, kind)), default=None)


def _named(bases: Mapping[int, Result | None]) -> list[str]:
    """Returns the line that says which row the speed-ups of each length are against."""
    places, what = defaultdict(list), ""
    for length, base in bases.items():
        if base:
            places[base.label].append(f"{length:,}")
            what = TITLES[base.what].lower()
    words = "; ".join(f"`{label}` at {', '.join(lengths)}" for label, lengths in places.items())
    start = f"Speed-ups in {what} are against the faster Transformer measured"
    return [f"{start}: {words}."] if words else []


def _plain(cells: Sequence[Result]) -> Result | None:
    return next((cell for cell in cells if cell.label == BASELINE), None)


def _shown(
    cell: Result | None, text: Callable[..., str], base: Result | None = None, *arguments: Any
) -> str:
    """Returns a cell's text, or its state where it has no numbers.

    `text` gets the cell and, if it is another one with numbers, the baseline's.
    """
    if cell is None or not cell.ok:
        return cell.state if cell else "-"
    if base is cell or (base and not base.ok):
        base = None
    return text(cell, base, *arguments)


def _steps(cell: Result, base: Result | None) -> str:
    return _time(1 / median(cell.seconds), cell, base)


def _milliseconds(cell: Result, base: Result | None, kind: str = "seconds") -> str:
    return _time(1e3 * median(getattr(cell, kind)), cell, base, kind)


def _time(value: float, cell: Result, base: Result | None, kind: str = "seconds") -> str:
    """Returns a number with half the range of its rounds and the speed-up against `base`."""
    values = getattr(cell, kind)
    speed_up = f" ({_ratio(cell, base, kind)})" if base else ""
    half_range = f" ±{100 * spread(values):.0f}%" if len(values) > 1 else ""
    return f"{rounded(value)}{half_range}{speed_up}" + (
        " †" if cell.alone or (base and base.alone) else ""
    )


def _memory(cell: Result, scale: float) -> str:
    return rounded(cell.peak_bytes / scale)


def _operations(cell: Result, base: Result | None) -> str:
    if cell.flops is None:
        return "-"
    operations = cell.flops / cell.batch_size
    share = ""
    if base and base.flops:
        share = f" ({100 * operations * base.batch_size / base.flops:.0f}%)"
    return f"{rounded(operations / 1e9)}{share}"


def _floor(cell: Result, _: Result | None = None) -> str:
    """Returns the share of the time that the dense products take alone, the median of rounds."""
    shares = [floor / taken for floor, taken in zip(cell.floors, cell.seconds, strict=False)]
    return f"{100 * median(shares):.0f}%" if shares else "-"


def _mixing(cells: Sequence[Result]) -> Grid:
    """Returns the mixing sublayer alone: forward and backward, forward."""
    by_place = {(c.label, c.side, c.size, c.length): c for c in cells}
    ours = [cell for cell in cells if cell.side == "ours"]
    kinds = "seconds", "forward_seconds"
    bases = {
        place: [faster([c for c in ours if (c.size, c.length) == place], kind) for kind in kinds]
        for place in {(c.size, c.length) for c in cells}
    }
    sides = {"ours": "", "definition": ", by its definition"}
    rows = []
    for (label, side, size, length), cell in sorted(by_place.items(), key=lambda kv: kv[0][2:]):
        shape = f"{cell.dim:,} x {cell.batch_size}" if cell.ok else "-"
        numbers = [
            _shown(cell, _milliseconds, base, kind)
            for base, kind in zip(bases[size, length], kinds, strict=True)
        ]
        name = f"{label}{sides.get(side, f', {side}')} ({size.capitalize()})"
        rows.append([name, shape, f"{length:,}", *numbers])
    head = ["sublayer", "width x batch", "length", "training ms/batch", "inference ms/batch"]
    return Grid("Mixing sublayer alone", head, rows)


def _ratio(cell: Result, base: Result, kind: str = "seconds") -> str:
    """Returns `speed_up` as text."""
    ratio = speed_up(cell, base, kind)
    digits = ".0f" if ratio >= 10 else ".1f" if ratio >= 0.1 else ".2g"
    return f"{ratio:{digits}}x"


def speed_up(cell: Result, base: Result, kind: str = "seconds") -> float:
    """Returns how many times faster than `base` a cell is.

    It is the median of the rounds' ratios, or the ratio of the medians if either did not take turns
    with the other.
    """
    times, slower = getattr(cell, kind), getattr(base, kind)
    if cell.alone or base.alone or len(times) != len(slower):
        return median(slower) / median(times)
    return median([slow / fast for slow, fast in zip(slower, times, strict=True)])


def _exponents(train: Sequence[Result], infer: Sequence[Result], fixed: str) -> Grid:
    """Returns the growth of time and memory: over all lengths, between the two longest."""
    per_example = any(cell.tokens for cell in (*train, *infer))
    planned = [cell for cell in train if cell.planned_bytes and not per_example]
    kinds = [(train, "seconds"), (infer, "seconds"), (planned, "planned_bytes")]
    rows = []
    for label in labels([*train, *infer]):
        row = [label]
        for cells, value in kinds:
            restless = {
                (cell.label, cell.length)
                for cell in cells
                if cell.ok and spread(cell.seconds) > RESTLESS
            }
            lengths, numbers = curve(cells, label, value)
            unsure = [value == "seconds" and (label, n) in restless for n in lengths]
            parts = (lengths, numbers, unsure), (lengths[-2:], numbers[-2:], unsure[-2:])
            slopes = [_slope(*part) for part in parts] if len(lengths) > 1 else ["-"]
            row.append(" / ".join(slopes))
        rows.append(row)
    if all(text == "-" for row in rows for text in row[1:]):
        rows = []  # nothing was measured at two lengths
    head = ["model", "training time", "inference time", "planned training memory"]
    words = "Time is that of one example, because longer examples are fewer in a batch."
    notes = [words] if per_example else []
    if planned:
        notes.append(
            "Planned memory: XLA's plan of a step (arguments, results, intermediate arrays), "
            "without what a process takes at any length."
        )
    if any("?" in text for row in rows for text in row[1:]):
        notes.append(f"? Some of these times differ by more than ±{RESTLESS:.0%} between rounds.")
    title = f"Growth exponents over all lengths / between the two longest{fixed}"
    return Grid(title, head, rows, notes).filled


def _slope(lengths: Sequence[int], numbers: Sequence[float], unsure: Sequence[bool]) -> str:
    return f"{exponent(lengths, numbers):.2f}" + "?" * any(unsure)


_SIZES = {"task": "task", "preset": "preset", "layers": "num_layers", "width": "dim"}  # fields
_SIZES |= {"batch": "batch_size", "dtype": "dtype", "threads": "threads"}  # by their names


def caption(cells: Sequence[Result]) -> str:
    """Returns device, sizes, overrides of all rows, rounds, versions and commit.

    Returns nothing if no cell has a device.
    """
    ours = [cell for cell in cells if cell.side == "ours" and cell.device]
    if not ours:
        return ""
    sizes = [
        f"{name} {', '.join(dict.fromkeys(str(getattr(cell, field)) for cell in ours))}"
        for name, field in _SIZES.items()
    ]
    if overrides := dict.fromkeys(text for cell in ours for text in _shared(cell)):
        sizes.append(f"with {', '.join(overrides)}")
    counts = sorted({n for cell in ours if (n := len(cell.seconds))}) or [0]
    rounds = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    rounds += " round" if rounds == "1" else " rounds"
    versions = {name: v for cell in cells for name, v in (cell.versions or {}).items()}
    listed = ", ".join(f"{name} {v}" for name, v in versions.items() if name in VERSIONS)
    dirty = " (dirty)" if ours[0].dirty else ""
    return (
        f"{ours[0].device}; {'; '.join(sizes)}; {rounds}; "
        f"{listed}; commit {str(ours[0].commit)[:12]}{dirty}."
    )
