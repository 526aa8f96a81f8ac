"""The papers' tables of speed and memory."""

from collections.abc import Sequence
from typing import Any

from lra_fnet.report.accuracy.published import corrected, published
from lra_fnet.report.render.grid import Grid
from lra_fnet.report.sources import Benchmark

_QUANTITIES = {
    "train": ("training speed", "peak memory in training", "peak memory per device in training"),
    "infer": ("inference time",),
}


def tables(benchmarks: Sequence[Benchmark]) -> list[Grid]:
    """Returns the papers' tables of speed and memory, for what was measured here too."""
    whats = {cell.what for benchmark in benchmarks for cell in benchmark.cells}
    wanted = [quantity for what in _QUANTITIES if what in whats for quantity in _QUANTITIES[what]]
    grids = []
    for group in published()["efficiency"].values():
        if group["quantity"] in wanted:
            ratios = group.get("speedup", {})
            rows = [
                [model, *map(_printed, numbers, ratios.get(model, [None] * len(numbers)))]
                for model, numbers in group["rows"].items()
            ]
            what = f"{group['quantity']} ({group['unit']}) on {group['hardware']}"
            source = f"arXiv:{group['arxiv']}, Table {group['table']}"
            lengths = [f"{corrected(length):,}" for length in group["lengths"]]
            notes = [group["note"]] if "note" in group else []
            grids.append(Grid(f"Published: {what}, {source}", ["model", *lengths], rows, notes))
    return grids


def _printed(number: Any, ratio: float | None) -> str:
    """Returns a published number or state, followed by its printed speed-up."""
    text = str(corrected(number))
    return text if ratio is None else f"{text} ({ratio:.1f}x)"
