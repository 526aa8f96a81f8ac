"""The report as text: terminal, Markdown, CSV. Missing is never 0."""

import csv
import dataclasses
import functools
import io
import itertools
import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from lra_fnet import tasks
from lra_fnet.machine import progress, terminal
from lra_fnet.machine.terminal import Fitted
from lra_fnet.report import cells, footnotes, naming, template
from lra_fnet.report.contents import Preset, Report
from lra_fnet.report.grid import Grid, literal, rounded
from lra_fnet.report.naming import MAIN
from lra_fnet.report.tables import Part, Row, Table, measured, scored
from lra_fnet.run.result import Record

_STATES = {
    "-": "`-`: not run",
    "did not train": "`did not train`: the same prediction for every test row",
    "OOM": "`OOM`: out of memory",
    "FAIL": "`FAIL`: diverged, or Path-X at the majority floor",
    "n/a": "`n/a`: not reported by the source, or the same model as another row",
}
SHORT_LEGEND = (
    "Ours: mean test accuracy over seeds, in %; for two seeds both values, for more ± the sample "
    "standard deviation and the maximum. "
    f"{'; '.join(words for state, words in _STATES.items() if state != 'n/a')}."
)
LEGEND = (
    f"{SHORT_LEGEND} The 95 % interval spans the Wilson intervals of all seeds. {_STATES['n/a']}. "
    "Mean of 5 leaves out Path-X; Mean of 6 counts a failed Path-X as 50. A mean is shown only "
    "where all its tasks have a value."
)
LONG = 30  # rows; a longer table is folded in Markdown
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


def plural(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 row", "1,234 rows"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def fitted(grid: Grid) -> Fitted:
    """Returns a table for the terminal, its notes below it."""
    return Fitted(grid.head, grid.rows, title=grid.title, notes=grid.notes, words=grid.words)


def compact(tables: Sequence[Table]) -> list[Fitted]:
    """Returns a table per preset: its own models with a result, floors last, `32.97 ± .89 (3)`.

    Columns without a result are left out.
    """
    return [fitted(grid) for grid in map(_compact, tables) if grid]


def compact_legend(shown: Sequence[cells.Cell]) -> str:
    """Returns what the texts of these cells mean, see `Cell.compact`."""
    words = (
        "Mean test accuracy over seeds, in %; ± the sample standard deviation for three or more "
        "seeds; in parentheses the number of seeds"
    )
    if any(cell.seeds and cell.unfinished for cell in shown):
        words += " (`2 of 3`: two of three finished)"
    states = {cell.state for cell in shown}
    states |= {"did not train"} if any(cell.constant for cell in shown) else set()
    listed = [meaning for state, meaning in _STATES.items() if state in states]
    return f"{words}. {'; '.join(listed)}." if listed else f"{words}."


def _compact(table: Table) -> Grid:
    table, part = measured(table, table.parts[0])
    own = [row for row in part.rows if row.ours]
    shown = [*own, *(row for row in part.rows if not row.source)] if own else []
    title = f"Test accuracy (%), preset {table.preset}"
    legend = compact_legend([row.cells[column] for row in shown for column in table.columns])
    notes = [legend, *footnotes.row_notes(table.preset, own), *footnotes.differences(own)]
    return dataclasses.replace(accuracy_grid(table, title, shown, compact=True), notes=notes)


def left_out(tables: Sequence[Table], page: str) -> str:
    """Returns a line that says what `compact` leaves out, and where all of it is."""
    count = sum(len(table.variants) for table in tables)
    words = f"{count} {'variant is' if count == 1 else 'variants are'} left out; " if count else ""
    return f"{words}everything is in {page}"


def accuracy_grid(table: Table, title: str, rows: Sequence[Row], *, compact: bool = False) -> Grid:
    """Returns the rows of an accuracy table as text, with their source if some are published.

    Args:
      table: has the columns.
      title: of the table.
      rows: those to show.
      compact: whether cells are short, `32.97 ± .89 (3)`; else they have the maximum too.
    """

    def text_of(cell: cells.Cell) -> str:
        return cell.compact if compact else ", ".join(cell.lines)

    sources = any(row.published for row in rows)
    body = [
        [row.marked, *[row.source] * sources, *(text_of(row.cells[c]) for c in table.columns)]
        for row in rows
    ]
    head = ["Model", *["Source"] * sources, *table.columns.values()]
    return Grid(title, head, body, words=1 + sources)


def accuracy_markdown(tables: Sequence[Table]) -> str:
    """Returns the accuracy tables of every preset with notes and provenance, from level 3 on."""

    def grid(table: Table, part: Part) -> str:
        table, part = measured(table, part)
        return accuracy_grid(table, part.title, part.rows).markdown() if table.columns else ""

    values = {"tables": tables, "grid": grid, "legend": LEGEND, "literal": literal}
    return template.render("accuracy.md", **values)


def markdown(report: Report, title: str = "Report", about: str = "") -> str:
    """Returns everything: the accuracy tables, then the others under their headings."""
    parts = [f"# {title}", *([about] if about else [])]
    parts += ["## Accuracy", accuracy_markdown(report.tables)]
    for heading, grids in report.sections.items():
        parts += [f"## {heading}", *map(_folded, grids)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _folded(grid: Grid) -> str:
    """Returns a table as Markdown; a long one is folded behind its title."""
    if len(grid.rows) <= LONG:
        return grid.markdown()
    summary = f"<details><summary>{literal(grid.title)}</summary>"
    return f"{summary}\n\n{grid.markdown().strip()}\n\n</details>"


def compared(report: Report) -> list[Preset]:
    """Returns the presets under which at least two of the main models have a result.

    If one of them has results on three tasks or more, those on one or two are left out.
    """

    def models(table: Table) -> set[str]:
        return {row.model for row in table.rows if row.model in MAIN and row.measured}

    shown = [preset for preset in report.presets if len(models(preset.table)) > 1]
    return [preset for preset in shown if len(scored(preset.table.rows)) > 2] or shown


def main_and_best(table: Table) -> list[Row]:
    """Returns the rows of ours of the main models and of the best model of each task.

    A task whose best model is not clearly above the shallow baseline has none.
    """
    best = [row for task, row in table.best.items() if not row.cells[task].shallow]
    return [row for row in table.own if row.model in MAIN or row in best]


def main_models(report: Report) -> str:
    """Returns the README's tables: accuracy of the main models and the best of each task.

    The notes of all tables follow the last one; a line about shallow baselines names its preset.
    """
    shown = []
    for table in (preset.table for preset in compared(report)):
        models = {*MAIN, "", *(row.model for row in main_and_best(table))}
        narrow, part = measured(table, table.parts[0])
        shown.append((narrow, [row for row in part.rows if row.model in models]))
    if not shown:
        return "No measured runs yet.\n"
    notes = [note for table, rows in shown for note in footnotes.setting(table.preset, rows)]
    every = [row for _, rows in shown for row in rows]
    notes += [*footnotes.origins(every), *footnotes.signs(every)]
    notes += [
        f"Preset {table.preset}: {line[0].lower()}{line[1:]}"
        for table, _ in shown
        for line in footnotes.methods(
            {task: method for task, method in table.baselines.items() if task in table.columns}
        )
    ]
    grids = [
        accuracy_grid(t, f"Test accuracy (%), preset {t.preset}", rows, compact=True)
        for t, rows in shown
    ]
    legend = compact_legend([row.cells[c] for t, rows in shown for row in rows for c in t.columns])
    best = (
        "Next to the four main models: the model with the highest test accuracy on each task, with "
        "any number of seeds, if it is clearly above the shallow baseline."
    )
    grids[-1] = dataclasses.replace(grids[-1], notes=[f"{legend} {best}", *notes])
    parts = [grid.markdown() for grid in grids]
    more = (
        "For all models, results at the last step, speed and memory, and the commit, device and "
        "data of each run, see"
    )
    return "\n".join([*parts, f"{more} [RESULTS.md](RESULTS.md).\n"])


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
                "variant": row.variant,
                "source": row.source or ("baseline" if row is table.shallow else "floor"),
                "column": column,
                **_cell_fields(row.cells[column]),
                "uses_mask": row.uses_mask if row.ours else None,
                "validation_is_test": row.cells[column].validation_is_test,
            }
            for table in tables
            for part in table.parts
            for row, column in itertools.product(part.rows, table.columns)
        ]
    )


def _cell_fields(cell: cells.Cell) -> dict[str, Any]:
    """Returns the numbers of a cell; one that has a state in spite of its seeds is at the floor."""
    untrained = cell.seeds > 0 and cell.mean is None
    return {
        **_fields(cell, "state mean sd maximum seeds low high"),
        "values": [f"{value:.4f}" for value in cell.values],
        "unfinished_seeds": cell.unfinished,
        "constant_seeds": cell.constant,
        "at_floor": cell.floor or untrained,
        "at_shallow_baseline": cell.shallow or (untrained and cell.baseline is not None),
    }


def runs_csv(report: Report) -> str:
    """Returns one line per run, with counts, for anything that the tables do not show."""
    readings = report.sources.readings
    return _csv(
        [
            _fields(run, _RUN)
            | {"test_readings": readings.get(run.folder)}
            | _fields(run, _MACHINE)
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


def run_lines(run: Record) -> list[str]:
    """Returns what `lra-fnet train` prints after a run: accuracy, baselines, time, notes."""
    cell, score = cells.cell([run] if run.tested else []), run.score("test")
    padding = naming.sees_padding(run)
    name = naming.name_of(run) + " ‡" * padding
    words = {"OOM": "OOM", "diverged": "FAIL (diverged)"}.get(run.state, "-")
    if score is not None:
        low, high = score.interval
        words = f"{score.accuracy:.2f} %{cell.marks}" + f", {cell.state}" * (cell.mean is None)
        words += f" ({score.correct:,} of {score.count:,}; 95 %: {low:.2f} to {high:.2f})"
    lines = [
        f"{name} on {tasks.title(run.task)}, preset {run.preset}, seed {run.seed}",
        f"test {words}",
    ]
    if run.baseline:
        lines += [f"shallow baseline {run.baseline.test.accuracy:.2f} %, {run.baseline.method}"]
    lines += [f"majority floor {run.floor.accuracy:.2f} %"]
    for source in () if run.preset in naming.UNCOMPARED else naming.SOURCES:
        published = (cells.published_cells(run.model, source) or {}).get(run.task)
        if published and published.state != "n/a":
            paper = cells.published()["accuracy"][source]["name"]
            lines.append(f"{paper} {', '.join(published.lines)}")
    if run.wall_seconds:
        rate = f", {rounded(run.steps_per_second)} steps/s" if run.steps_per_second else ""
        lines.append(f"trained in {progress.duration(run.wall_seconds)}{rate}")
    lines += [f"overrides: {' '.join(run.overrides)}"] if run.overrides else []
    return lines + [footnotes.PADDING] * padding + cells.meanings([cell])


def print_run(run: Record) -> None:
    """Prints `run_lines`, in the width of the terminal."""
    for line in run_lines(run):
        terminal.console().print(Text(line, overflow="fold"))


def runs_grid(runs: Sequence[Record]) -> Grid:
    """Returns a row for each run that was scored on test, with its validation accuracy."""
    rows, shown = [], [cells.cell([run]) for run in runs]
    for run, cell in zip(runs, shown, strict=True):
        chosen, test = run.score("validation"), run.score("test")
        assert test is not None
        low, high = test.interval
        rows.append(
            [
                tasks.title(run.task),
                naming.name_of(run) + " ‡" * naming.sees_padding(run),
                str(run.seed),
                f"{chosen.accuracy:.2f}" if chosen else "-",
                f"{test.accuracy:.2f}{cell.marks}" + f", {cell.state}" * (cell.mean is None),
                f"{low:.2f} to {high:.2f}",
                f"{run.baseline.test.accuracy:.2f}" if run.baseline else "-",
            ]
        )
    head = ["Task", "Model", "Seed", "Validation", "Test", "95 %", "Shallow baseline"]
    padding = [footnotes.PADDING] * any(map(naming.sees_padding, runs))
    notes = ["Accuracy in %.", *padding, *cells.meanings(shown)]
    return Grid("Scored on test", head, rows, notes, words=3)


def print_runs(runs: Sequence[Record]) -> None:
    """Prints `runs_grid`."""
    terminal.console().print(fitted(runs_grid(runs)))
