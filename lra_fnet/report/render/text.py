"""The report in a terminal: the accuracy tables, and what a run prints at its end."""

import statistics
from collections.abc import Sequence

from rich.text import Text

from lra_fnet import tasks
from lra_fnet.machine import progress, terminal
from lra_fnet.machine.terminal import Fitted
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.build import tables
from lra_fnet.report.accuracy.cell import Cell, cell
from lra_fnet.report.accuracy.notes import legend
from lra_fnet.report.accuracy.published import published, published_cells
from lra_fnet.report.accuracy.table import Row, Table
from lra_fnet.report.render.grid import Grid, Marked, rounded
from lra_fnet.run.result import Record


def marked(cell: Cell) -> Marked:
    """Returns the text of a cell with its style."""
    style = " ".join(word for word in ("bold", "italic") if getattr(cell, word))
    return Marked(cell.text, style)


def accuracy_grid(table: Table, rows: Sequence[Row], what: str = "") -> Grid:
    """Returns rows of an accuracy table as text, with their source if some are published.

    Args:
      table: has the columns, and the notes.
      rows: those to show; columns without a value of theirs are left out.
      what: added to the title.
    """
    columns = [c for c in table.columns if any(row.ours and _shown(row.cells[c]) for row in rows)]
    sources = any(row.published for row in rows)
    body = [
        [row.label, *[row.source] * sources, *(marked(row.cells[column]) for column in columns)]
        for row in rows
    ]
    head = ["Model", *["Source"] * sources, *(table.columns[column] for column in columns)]
    notes = [legend([row.cells[column] for row in rows for column in columns]), *table.notes]
    return Grid(f"Test accuracy (%), preset {table.preset}{what}", head, body, notes, 1 + sources)


def _shown(cell: Cell) -> bool:
    return bool(cell.runs) or cell.mean is not None


def fitted(grid: Grid) -> Fitted:
    """Returns a table for the terminal, its notes below it."""
    return Fitted(grid.head, grid.rows, title=grid.title, notes=grid.notes, words=grid.words)


def compact(listed: Sequence[Table]) -> list[Fitted]:
    """Returns a table per preset: its own models and the references."""
    shown = [(table, [row for row in table.rows if not row.published]) for table in listed]
    return [fitted(accuracy_grid(t, rows)) for t, rows in shown if any(r.ours for r in rows)]


def run_lines(run: Record) -> list[str]:
    """Returns what `lra-fnet train` prints after a run: accuracy, baselines, time."""
    shown, score = cell([run] if run.tested else []), run.score("test")
    words = {"OOM": "OOM", "diverged": "FAIL (diverged)"}.get(run.state, "-")
    if score is not None:
        low, high = score.interval
        words = f"{score.accuracy:.2f} %" + f", {shown.state}" * (shown.mean is None)
        words += f" ({score.correct:,} of {score.count:,}; 95 %: {low:.2f} to {high:.2f})"
    lines = [
        f"{names.name_of(run)} on {tasks.title(run.task)}, preset {run.preset}, seed {run.seed}",
        f"test {words}",
    ]
    if run.baseline:
        lines += [f"shallow baseline {run.baseline.test.accuracy:.2f} %, {run.baseline.method}"]
    if shown.italic:
        lines += ["not significantly above the shallow baseline"]
    lines += [f"majority floor {run.floor.accuracy:.2f} %"]
    if (score := run.score("test")) and (recall := score.recall):
        balanced, floor = statistics.fmean(recall.values()), 100 / len(recall)
        lines += [f"balanced accuracy {balanced:.2f} % (floor {floor:.2f} %)"]
        lowest = sorted((share, label) for label, share in recall.items())[:10]
        classes = run.classes or range(len(score.confusion or ()))
        shares = ", ".join(f"{classes[label]} {share:.2f}" for share, label in lowest)
        lines += [f"recall by class, in %: {shares}{', others more' * (len(recall) > 10)}"]
    for source in () if run.variant or run.preset in names.UNCOMPARED else names.SOURCES:
        printed = (published_cells(run.model, source) or {}).get(run.task)
        if printed and printed.state != "n/a":
            lines.append(f"{published()['accuracy'][source]['name']} {printed.text}")
    if run.wall_seconds:
        rate = f", {rounded(run.steps_per_second)} steps/s" if run.steps_per_second else ""
        lines.append(f"trained in {progress.duration(run.wall_seconds)}{rate}")
    return lines


def print_run(run: Record) -> None:
    """Prints `run_lines`, in the width of the terminal."""
    terminal.console().print(Text("\n".join(run_lines(run)), overflow="fold"))


def print_runs(runs: Sequence[Record]) -> None:
    """Prints the accuracies of runs that were scored on test, variants too."""
    for table in tables(runs):
        rows = [*table.ours, *table.references]
        terminal.console().print(fitted(accuracy_grid(table, rows)))
