"""What was measured, in the layouts of the FNet paper's tables of speed and memory.

The tables are those of arXiv:2105.03824: training steps/s and peak memory, inference in ms a batch
(Table 4), operations of a forward pass (Table 3), the mixing sublayer alone (Table 8). A number is
the median of the rounds with half their range; a speed-up is the median of the rounds' ratios to
the Transformer in the same round.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from lra_fnet.report.grid import Grid

BASELINE = "transformer"
VERSIONS = ("jax", "torch", "transformers")  # those that the caption tells
TITLES = {"train": "Training", "infer": "Inference"}
LEGEND = (
    "Medians of the rounds, ± half their range; in parentheses the speed-up against the "
    "Transformer, the median of the ratios round by round. `OOM` out of memory, `FAIL` does not "
    "compile, `-` not measured, † did not fit beside the others and was measured alone. Memory is "
    "the peak of the cell's own process above what it held before the model was made."
)

Result = dict[str, Any]


def render(found: Sequence[Result]) -> str:
    """Markdown: a table for everything that was measured, and what it was measured on."""
    parts = [grid.markdown() for grid in grids(found)]
    return "\n".join([*parts, f"{caption(found)}\n\n{LEGEND}\n".lstrip()])


def grids(found: Sequence[Result]) -> list[Grid]:
    """The tables of `render`, without what they were measured on."""
    ours = [cell for cell in found if cell["side"] == "ours"]
    train, infer = ([cell for cell in ours if cell["what"] == what] for what in TITLES)
    unit, scale = ("MB", 1e6) if _platform(found) == "cpu" else ("GB", 1e9)
    parts = [
        _grid("Training speed (steps/s)", train, _steps),
        _grid(f"Peak memory of training ({unit})", train, lambda c, _: _memory(c, scale)),
        _grid("Inference (ms/batch)", infer, _milliseconds),
        _grid(f"Peak memory of inference ({unit})", infer, lambda c, _: _memory(c, scale)),
        _grid("GFLOPs of a forward pass of one example", infer, _operations),
        _mixing([cell for cell in found if cell["what"] == "mixing"]),
        *(_peers(what, found, unit, scale) for what in TITLES),
        _grid("Of the roofline (of the floor): training", train, _fractions),
        _grid("Of the roofline (of the floor): inference", infer, _fractions),
        _exponents(train, infer),
    ]
    return [grid for grid in parts if grid is not None]


def exponent(lengths: Sequence[float], values: Sequence[float]) -> float | None:
    """The least-squares slope of log(value) over log(length); None with fewer than two points."""
    if len(lengths) < 2:
        return None
    x, y = ([math.log(v) for v in column] for column in (lengths, values))
    return statistics.linear_regression(x, y).slope


def curve(cells: Sequence[Result], label: str, value: str) -> tuple[list[int], list[float]]:
    """Lengths and numbers of one row, CLS left out: "seconds" (median) or "peak_bytes"."""
    own = [c for c in cells if c["label"] == label and c["state"] == "ok" and not c["cls"]]
    own.sort(key=lambda cell: cell["length"])
    numbers = [_median(c["seconds"]) if value == "seconds" else max(c[value], 1) for c in own]
    return [cell["length"] for cell in own], numbers


def labels(cells: Sequence[Result]) -> list[str]:
    """The rows, in the order of the cells."""
    return list(dict.fromkeys(cell["label"] for cell in cells))


def _grid(
    title: str, cells: Sequence[Result], shown: Callable[[Result, Result | None], str]
) -> Grid | None:
    """A row for each model and a column for each length; `shown` also gets the baseline's cell."""
    if not cells:
        return None
    lengths = sorted({cell["length"] for cell in cells})
    by_place = {(cell["label"], cell["length"]): cell for cell in cells}
    rows = []
    for label in labels(cells):
        row = [label]
        for length in lengths:
            cell, base = by_place.get((label, length)), by_place.get((BASELINE, length))
            row.append(_shown(cell, lambda c, base=base: shown(c, base)))
        rows.append(row)
    return Grid(title, ["model", *(f"{length:,}" for length in lengths)], rows)


def _shown(cell: Result | None, value: Callable[[Result], str]) -> str:
    if cell is None:
        return "-"
    if cell["state"] != "ok":
        return cell["state"]
    return value(cell) + (" †" if cell.get("alone") else "")


def _steps(cell: Result, base: Result | None) -> str:
    return f"{_number(1 / _median(cell['seconds']))} {_spread(cell)}{_speed_up(cell, base)}"


def _milliseconds(cell: Result, base: Result | None, kind: str = "") -> str:
    seconds = _median(cell[f"{kind}seconds"])
    return f"{_number(1e3 * seconds)} {_spread(cell, kind)}{_speed_up(cell, base, kind)}"


def _memory(cell: Result, scale: float) -> str:
    return _number(cell["peak_bytes"] / scale)


def _operations(cell: Result, base: Result | None) -> str:
    own = _number(cell["flops"] / cell["batch_size"] / 1e9)
    if base is None or base is cell or base["state"] != "ok":
        return own
    return f"{own} ({100 * cell['flops'] / base['flops']:.0f}%)"


def _fractions(cell: Result, _: Result | None) -> str:
    floor, roofline = (_median(column) for column in _limits(cell))
    return f"{100 * roofline:.0f}% ({100 * floor:.0f}%)"


def _limits(cell: Result) -> tuple[list[float], list[float]]:
    """Floor and roofline over the measured time, round by round."""
    floors, rooflines = [], []
    for seconds, limits in zip(cell["seconds"], cell["roofline"], strict=True):
        floor = limits["floor_seconds"]
        copy = limits["bytes"] / limits["copy_bytes_per_second"]
        floors.append(floor / seconds)
        rooflines.append(max(floor, copy) / seconds)
    return floors, rooflines


def _mixing(cells: Sequence[Result]) -> Grid | None:
    """The mixing sublayer alone: forward and backward, forward."""
    if not cells:
        return None
    by_place = {(c["label"], c["side"], c["size"], c["length"]): c for c in cells}
    rows = []
    for (label, side, size, length), cell in sorted(by_place.items(), key=lambda kv: kv[0][2:]):
        name = {"ours": label, "definition": f"{label}, by its definition"}.get(
            side, f"{label}, {side}"
        )
        base = by_place.get((BASELINE, "ours", size, length))
        ok = cell["state"] == "ok"
        config = f"{cell['dim']:,} x {cell['batch_size']}" if ok else "-"
        numbers = [
            _shown(cell, lambda c, base=base, kind=kind: _milliseconds(c, base, kind))
            for kind in ("", "forward_")
        ]
        rows.append([f"{name} ({size.capitalize()})", config, f"{length:,}", *numbers])
    head = ["sublayer", "width x batch", "length", "training ms/batch", "inference ms/batch"]
    return Grid("Mixing sublayer alone", head, rows)


def _peers(what: str, found: Sequence[Result], unit: str, scale: float) -> Grid | None:
    """Ours beside PyTorch: times, memory, and the floor of the same products."""
    by_place = {(c["label"], c["length"], c["side"]): c for c in found if c["what"] == what}
    rows = []
    for label, length in dict.fromkeys((c["label"], c["length"]) for c in found):
        sides = [by_place.get((label, length, s)) for s in ("ours", "eager", "compiled")]
        if not any(sides[1:]):
            continue
        own = sides[0]
        peers = [cell for cell in sides[1:] if cell and cell["state"] == "ok"]
        row = [label, f"{length:,}", *(_shown(c, lambda c: _milliseconds(c, None)) for c in sides)]
        if own is None or own["state"] != "ok" or not peers:
            rows.append([*row, "-", "-", "-", "-", "-"])
            continue
        peer = min(peers, key=lambda cell: _median(cell["seconds"]))
        memory = f"{_memory(own, scale)} / {_memory(peer, scale)}"
        floor, roofline = (_median(column) for column in _limits(own))
        row += [
            _ratio(own, peer),
            f"{memory} = {own['peak_bytes'] / max(peer['peak_bytes'], 1):.2f}",
            _number(1e3 * _median([limits["floor_seconds"] for limits in own["roofline"]])),
            f"{100 * floor:.0f}%",
            f"{100 * roofline:.0f}%",
        ]
        rows.append(row)
    head = ["model", "length", "ours ms", "eager ms", "compiled ms", "times faster"]
    head += [f"memory {unit}: ours / peer", "floor ms", "of the floor", "of the roofline"]
    return Grid(f"{TITLES[what]} beside PyTorch's faster one", head, rows) if rows else None


def _ratio(cell: Result, base: Result, kind: str = "") -> str:
    """How many times faster than `base`: the median of the rounds' ratios."""
    pairs = zip(base[f"{kind}seconds"], cell[f"{kind}seconds"], strict=True)
    ratio = _median([theirs / own for theirs, own in pairs])
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


def _speed_up(cell: Result, base: Result | None, kind: str = "") -> str:
    if base is None or base is cell or base["state"] != "ok":
        return ""
    return f" ({_ratio(cell, base, kind)})"


def _exponents(train: Sequence[Result], infer: Sequence[Result]) -> Grid | None:
    """Growth of time and memory with the length: over all lengths, between the two longest."""
    kinds = [(train, "seconds"), (infer, "seconds"), (train, "peak_bytes")]
    rows = []
    for label in labels([*train, *infer]):
        row = [label]
        for cells, value in kinds:
            lengths, numbers = curve(cells, label, value)
            slopes = exponent(lengths, numbers), exponent(lengths[-2:], numbers[-2:])
            row.append(" / ".join("-" if s is None else f"{s:.2f}" for s in slopes))
        rows.append(row)
    if all(set(text) <= set("- /") for row in rows for text in row[1:]):
        return None
    head = ["model", "training time", "inference time", "training memory"]
    return Grid("Growth exponents over all lengths / between the two longest", head, rows)


def caption(found: Sequence[Result]) -> str:
    """Device, sizes, threads, rounds, versions, commit; nothing of cells without a device."""
    ours = [cell for cell in found if cell["side"] == "ours" and "device" in cell]
    if not ours:
        return ""
    device = ours[0]["device"]
    sizes = [
        f"{name} {', '.join(dict.fromkeys(str(cell[field]) for cell in ours))}"
        for name, field in (
            ("task", "task"),
            ("preset", "preset"),
            ("layers", "num_layers"),
            ("width", "dim"),
            ("batch", "batch_size"),
            ("dtype", "dtype"),
            ("threads", "threads"),
        )
    ]
    rounds = max((len(cell.get("seconds", ())) for cell in ours), default=0)
    versions = {}
    for cell in found:
        versions |= {k: v for k, v in cell.get("versions", {}).items() if k in VERSIONS}
    return (
        f"{device['count']} x {device['name']} ({device['platform']}, {device['cores']} cores); "
        f"{'; '.join(sizes)}; {rounds} rounds; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}; "
        f"commit {str(ours[0]['commit'])[:12]}{', changed' if ours[0]['dirty'] else ''}."
    )


def _platform(found: Sequence[Result]) -> str:
    return next((cell["device"]["platform"] for cell in found if "device" in cell), "cpu")


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(cell: Result, kind: str = "") -> str:
    values = cell[f"{kind}seconds"]
    return f"±{50 * (max(values) - min(values)) / _median(values):.0f}%"
