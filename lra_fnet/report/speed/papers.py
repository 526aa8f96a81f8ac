"""The papers' tables of speed and memory."""

from typing import Any

from lra_fnet.report.accuracy.published import corrected, published
from lra_fnet.report.render.grid import Grid


def tables() -> list[Grid]:
    """Returns the papers' tables of speed and memory."""
    grids = []
    for group in published()["efficiency"].values():
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
