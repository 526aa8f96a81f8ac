"""The report as Markdown: everything, or the parts that this repository commits."""

from collections.abc import Sequence

from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.table import Row, Table
from lra_fnet.report.render.grid import Grid, literal
from lra_fnet.report.render.text import accuracy_grid
from lra_fnet.report.sections import Report

LONG = 30  # rows; a longer table is folded


def everything(report: Report) -> str:
    """Returns the accuracy tables, then the others under their headings."""
    return document("Report", {"Accuracy": accuracy(report.tables), **report.sections})


def accuracy(tables: Sequence[Table]) -> list[Grid]:
    """Returns the accuracies of each preset, then those of its variants."""
    grids = []
    for table in tables:
        grids.append(accuracy_grid(table, table.rows))
        if table.variants:
            grids.append(accuracy_grid(table, table.variants, ", variants"))
    return [grid for grid in grids if len(grid.head) > 1 + ("Source" in grid.head)]


def document(title: str, sections: dict[str, list[Grid]], about: str = "") -> str:
    """Returns tables under a title, an introduction and headings."""
    parts = [f"# {title}", *([about] if about else [])]
    for heading, grids in sections.items():
        parts += [f"## {heading}", *map(_folded, grids)] if grids else []
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main_rows(table: Table) -> list[Row]:
    """Returns the rows that the README shows: those of the protocol, the best of each task.

    The best are those of `Table.best`: chosen on validation.
    """
    best = [row.key for row in table.best.values()]
    own = [row for row in table.own if row.model in names.SEARCHED or row.key in best]
    return [*own, *table.references]


def _folded(grid: Grid) -> str:
    """Returns a table as Markdown; a long one is folded behind its title."""
    if len(grid.rows) <= LONG:
        return grid.markdown()
    summary = f"<details><summary>{literal(grid.title)}</summary>"
    return f"{summary}\n\n{grid.markdown().strip()}\n\n</details>"
