"""The numbers that papers print."""

import functools
import json
from pathlib import Path
from typing import Any

from lra_fnet.report.accuracy.cell import TASKS, Cell, averages


@functools.cache
def published() -> dict[str, Any]:
    """Returns the numbers of published.json; each group of them names its paper and table."""
    return json.loads(Path(__file__).parents[1].joinpath("published.json").read_text("utf-8"))


def corrected(number: Any) -> Any:
    """Returns the number or state of an entry of published.json, with misprints corrected."""
    return number["corrected"] if isinstance(number, dict) else number


def printed_cell(number: Any) -> Cell:
    """Returns the cell of an accuracy or a state in published.json."""
    number = corrected(number)
    return Cell(number) if isinstance(number, str) else Cell("value", float(number))


def published_cells(model: str, source: str) -> dict[str, Cell] | None:
    """Returns a model's row of a paper's accuracy table, or None if the paper has none.

    Args:
      model: its name on the command line.
      source: an accuracy table of published.json, "fnet" or "lra".
    """
    row = published()["accuracy"][source]["rows"].get(model)
    if row is None:
        return None
    cells = {task: printed_cell(row[task]) for task in TASKS}
    return cells | averages(cells)
