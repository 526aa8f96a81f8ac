"""Compares runs that began from an encoder trained on the task's own rows with runs from scratch.

This is the comparison of "Never Train from Scratch" (arXiv:2310.02980), at equal total steps.
"""

from collections.abc import Iterator

from lra_fnet import significance
from lra_fnet.report import naming
from lra_fnet.report.cells import Cell, meanings
from lra_fnet.report.grid import Grid
from lra_fnet.report.tables import Row, Table

NOTE = (
    "Test accuracy of each seed in order; then the mean of the pre-trained runs minus that from "
    "scratch, in percentage points, with a 95 % interval. Both sides took the same number of steps "
    "in all. p and interval are single, not adjusted. With one seed on a side, they cover "
    "variation over test rows only. With two, the test has little power, and it rejects too often "
    "if the side of two varies several times as much as the other."
)


def grid(table: Table) -> Grid:
    """Returns a row for each task and model that was trained both ways on the same data.

    A side without a value shows its state, and its row has no difference.
    """
    rows, cells = [], []
    for task, row, other in _sides(table):
        sides = a, b = row.cells[task], other.cells[task]
        values = [_values(cell) for cell in sides]
        compared = ["-"] * 4
        if a.mean is not None and b.mean is not None:
            ours, theirs = ([run for run in cell.runs if run.score("test")] for cell in sides)
            comparison = significance.compare(ours, theirs, "test")
            difference = comparison.difference
            compared = [
                f"{difference.mean:+.2f}",
                f"{difference.low:+.2f} to {difference.high:+.2f}",
                significance.p_text(difference.p_value),
                comparison.test,
            ]
        rows.append([table.columns[task], other.label, *values, *compared])
        cells += sides
    title = f"Self-pretraining against training from scratch, preset {table.preset}"
    head = ["Task", "Model", "Pre-trained", "From scratch", "Difference", "95 % interval", "p"]
    return Grid(title, [*head, "Test"], rows, [NOTE, *meanings(cells)], words=2)


def _values(cell: Cell) -> str:
    """Returns the accuracy of each seed, or the state of a cell that has no value."""
    if cell.mean is None:
        return cell.state + cell.marks
    values = " / ".join(f"{value:.2f}" for value in cell.values) + cell.marks
    failures = (cell.unfinished, "unfinished"), (cell.constant, "did not train")
    return ", ".join([values, *(f"{number} {words}" for number, words in failures if number)])


def _sides(table: Table) -> Iterator[tuple[str, Row, Row]]:
    """Yields task, row and row from scratch, where both took as many steps on the same data."""
    from_scratch = {row.key: row for row in table.ours}
    for task in table.tasks:
        for row in table.variants:
            runs = row.cells[task].runs
            if not (runs and row.variant and runs[0].init and runs[0].init.task == task):
                continue
            other = from_scratch.get((row.model, naming.stages(runs[0], row.variant)[1] or None))
            others = other.cells[task].runs if other else ()
            both = [run for run in (*runs, *others) if run.complete]
            steps = {run.steps + (run.init.steps if run.init else 0) for run in both}
            data = {run.data_sha256 for run in both}
            if other and others and len(steps) == len(data) == 1:
                yield task, row, other
