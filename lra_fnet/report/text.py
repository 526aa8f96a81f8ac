"""The report as text: terminal, Markdown, CSV. Missing is never 0."""

import csv
import dataclasses
import functools
import io
import itertools
import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from lra_fnet import tasks
from lra_fnet.intervals import wilson
from lra_fnet.report import accuracy, cells, template
from lra_fnet.report.accuracy import Row, Table
from lra_fnet.report.contents import Report
from lra_fnet.report.grid import Grid, literal
from lra_fnet.run.record import Record

MAIN = ("transformer", "linear", "fnet", "performer")  # models of the README's table
SHORT_LEGEND = (
    "Ours: mean over seeds, in % of test rows; of two seeds both values, of more ± the sample "
    "standard deviation and the maximum. `-`: not run; `did not train`: the same answer for every "
    "row; `OOM`: out of memory; `FAIL`: diverged, or Path-X at the majority floor."
)
LEGEND = (
    f"{SHORT_LEGEND} The 95 % interval reaches over the Wilson intervals of all seeds. `n/a`: not "
    "reported by the source, or the same model as another row. Mean of 5 leaves out Path-X; Mean "
    "of 6 counts a failed Path-X as 50. A mean is shown only where all its tasks have a value."
)
_RUN = """
folder state preset task model variant seed overrides
validation.best.step validation.best.correct validation.best.count
validation.last.step validation.last.correct validation.last.count
test.best.step test.best.correct test.best.count
test.last.step test.last.correct test.last.count
train.correct train.count floor.correct floor.count
mixer_length uses_mask validation_is_test parameters steps_per_second peak_bytes wall_seconds
denoise init.run init.steps init.wall_seconds
"""
_MACHINE = "device.name device.platform device.count device.cores commit dirty data_sha256 versions"
_TRIAL = (
    "number task model preset seed overrides state step num_steps validation folder error command"
)


def console() -> Console:
    """Returns the terminal, or one of 200 columns for a file, where nothing folds lines."""
    return Console() if Console().is_terminal else Console(width=200)


def rich_table(grid: Grid, **options: Any) -> RichTable:
    """Returns a table for the terminal, its notes below it.

    Args:
      grid: the table.
      **options: of rich's table.
    """
    table = RichTable(
        title=Text(grid.title, style="bold") if grid.title else None,
        caption=Text("\n".join(grid.notes)) if grid.notes else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        **options,
    )
    for number, head in enumerate(grid.head):
        justify = "left" if number < grid.words else "right"
        table.add_column(Text(head), justify=justify, overflow="fold")
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def terminal(tables: Sequence[Table]) -> list[RichTable]:
    """Returns two rich tables per preset: checkpoint best on validation, and last step.

    A paper's row is indented under ours. 80 columns are enough for the table of one task.
    """
    rich_tables = []
    for table, part in ((t, part) for t in tables for part in t.parts):
        rows = [
            [
                f"  {row.source}" if row.published else row.marked,
                *("\n".join(row.cells[c].lines).replace(" ± ", "±") for c in table.columns),
            ]
            for row in part.rows
        ]
        head = ["Model", *(title.replace(" of", "\nof") for title in table.columns.values())]
        notes = [*table.notes, *table.provenance] if part.checkpoint == "best" else []
        rich_tables.append(rich_table(Grid(part.title, head, rows, notes), padding=0))
        for row, line in zip(part.rows, rich_tables[-1].rows, strict=True):
            line.style = "dim" if row.published else None
    return rich_tables


def accuracy_grid(table: Table, title: str, rows: Sequence[Row]) -> Grid:
    """Returns the rows of an accuracy table as text."""
    body = [
        [row.marked, row.source, *(", ".join(row.cells[column].lines) for column in table.columns)]
        for row in rows
    ]
    return Grid(title, ["Model", "Source", *table.columns.values()], body, words=2)


def accuracy_markdown(tables: Sequence[Table]) -> str:
    """Returns the accuracy tables of every preset with notes and provenance, from level 3 on."""
    values = {"tables": tables, "grid": accuracy_grid, "legend": LEGEND, "literal": literal}
    return template.render("accuracy.md", **values)


def markdown(report: Report, title: str = "Report", about: str = "") -> str:
    """Returns everything: the accuracy tables, then the others under their headings."""
    parts = [f"# {title}", *([about] if about else [])]
    parts += ["## Accuracy", accuracy_markdown(report.tables)]
    for heading, grids in report.sections.items():
        parts += [f"## {heading}", *(grid.markdown() for grid in grids)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def compared(report: Report) -> list[accuracy.Table]:
    """Returns the tables in which at least two of the main models have a result."""

    def measured(table: accuracy.Table) -> set[str]:
        own = [row for row in table.rows if row.model in MAIN and row.variant is None]
        return {row.model for row in own if any(cell.runs for cell in row.cells.values())}

    return [table for table in report.tables if len(measured(table)) > 1]


def main_models(report: Report) -> str:
    """Returns the README's tables: accuracy of the main models, without overrides.

    The notes of all tables follow the last one; a line about shallow baselines names its preset.
    """
    shown = [
        (table, [row for row in table.rows if row.model in (*MAIN, "") and row.variant is None])
        for table in compared(report)
    ]
    if not shown:
        return "No measured runs yet.\n"
    notes = [note for table, rows in shown for note in accuracy.marks(table.preset, rows)]
    notes += [
        f"Preset {table.preset}: {line[0].lower()}{line[1:]}"
        for table, _ in shown
        for line in table.baselines
    ]
    grids = [accuracy_grid(t, f"Test accuracy (%), preset {t.preset}", rows) for t, rows in shown]
    grids[-1] = dataclasses.replace(grids[-1], notes=[SHORT_LEGEND, *dict.fromkeys(notes)])
    parts = [grid.markdown() for grid in grids]
    more = (
        "All models, the last step, speed and memory, and the commit, device and data of each run"
    )
    return "\n".join([*parts, f"{more}: [RESULTS.md](RESULTS.md).\n"])


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """Returns CSV with a header.

    None is an empty field, true and false are lower case, words of a list are separated by a space,
    and a dictionary is JSON.
    """

    def field(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return " ".join(value)
        if isinstance(value, bool | dict):
            return json.dumps(value, sort_keys=True)
        return value

    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: field(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _fields(value: Any, names: str) -> dict[str, Any]:
    """Returns attributes such as `test.best.step` by name, as test_best_step.

    Each attribute of None is None.
    """

    def attribute(path: str) -> Any:
        return functools.reduce(lambda v, n: v and getattr(v, n), path.split("."), value)

    return {path.replace(".", "_"): attribute(path) for path in names.split()}


def accuracy_csv(tables: Sequence[Table]) -> str:
    """Returns one line per cell: a number only where the cell has a value, else its state."""
    return _csv(
        [
            {
                "preset": table.preset,
                "checkpoint": part.checkpoint,
                "model": row.label,
                "source": row.source or "floor",
                "column": column,
                **_fields(row.cells[column], "state mean sd maximum seeds low high"),
                "values": [f"{value:.4f}" for value in row.cells[column].values],
                "unfinished_seeds": row.cells[column].unfinished,
                "constant_seeds": row.cells[column].constant,
                "at_floor": row.cells[column].floor,
                "at_shallow_baseline": row.cells[column].shallow,
                "uses_mask": row.uses_mask if row.ours else None,
                "validation_is_test": row.cells[column].validation_is_test,
            }
            for table in tables
            for part in table.parts
            for row, column in itertools.product(part.rows, table.columns)
        ]
    )


def runs_csv(report: Report) -> str:
    """Returns one line per run, with counts, for anything that the tables do not show."""
    readings = report.sources.readings
    return _csv(
        [
            _fields(run, _RUN) | {"test_readings": readings[run.folder]} | _fields(run, _MACHINE)
            for run in report.runs
        ]
    )


def trials_csv(report: Report) -> str:
    """Returns one line per trial of a sweep."""
    return _csv(
        [
            {"sweep": sweep.name} | _fields(trial, _TRIAL)
            for sweep, _ in report.sweeps
            for trial in sweep.trials
        ]
    )


def tables_csv(report: Report) -> str:
    """Returns one line per cell of every table but accuracy: section, table, row, column, value."""
    rows = []
    for section, grids in report.sections.items():
        for grid in grids:
            for line in grid.rows:
                place = {"section": section, "table": grid.title}
                place["row"] = " | ".join(line[: grid.words])
                pairs = list(zip(grid.head, line, strict=True))[grid.words :]
                rows += [place | {"column": column, "value": value} for column, value in pairs]
    return _csv(rows)


def run_table(run: Record) -> RichTable:
    """Returns what `lra-fnet train` prints after a run: accuracy, baselines, published numbers."""
    cell, score = cells.cell([run] if run.tested else []), run.score("test")
    words = {"OOM": ["OOM"], "diverged": ["FAIL (diverged)"]}.get(run.state, ["-"])
    if score is not None:
        low, high = (100 * end for end in wilson(score.correct, score.count))
        words = [cell.state] * (cell.mean is None) + [f"{score.accuracy:.2f} %{cell.marks}"]
        words += [f"{score.correct} of {score.count}", f"95 %: {low:.2f} to {high:.2f}"]
    columns = {
        "Model": run.name + ("" if run.uses_mask else " ‡"),
        "Task": tasks.title(run.task),
        "Preset": run.preset,
        "Test accuracy": "\n".join(words),
        "Majority floor": f"{run.floor.accuracy:.2f} %",
    }
    if run.baseline:
        columns["Shallow baseline"] = f"{run.baseline.test.accuracy:.2f} %, {run.baseline.method}"
    for source in () if run.preset in accuracy.UNCOMPARED else accuracy.SOURCES:
        row = cells.published_cells(run.model, source) or {}
        published = row.get(run.task, cells.Cell("n/a"))
        columns[cells.published()["accuracy"][source]["name"]] = ", ".join(published.lines)
    notes = [f"Overrides: {' '.join(run.overrides)}"] if run.overrides else []
    row = accuracy.Row(run.name, "ours", {run.task: cell}, run.uses_mask)
    notes += accuracy.marks(run.preset, [row])
    return rich_table(Grid("", list(columns), [list(columns.values())], notes, len(columns)))


def print_run(run: Record, console: Console | None = None) -> None:
    """Prints `run_table` to the terminal."""
    (console or Console()).print(run_table(run))
