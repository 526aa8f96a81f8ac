"""The report as one HTML file that needs no network: tables, figures, provenance."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import markupsafe

from lra_fnet import config, tasks
from lra_fnet.report import (
    benchmarks,
    figures,
    tradeoff,
)
from lra_fnet.report import sections as contents
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.cell import Cell
from lra_fnet.report.accuracy.notes import legend
from lra_fnet.report.accuracy.table import Row, Table
from lra_fnet.report.figures import Figure
from lra_fnet.report.render import markdown, template, text
from lra_fnet.report.render.grid import Grid, rounded
from lra_fnet.report.sections import Preset, Report
from lra_fnet.report.sources import Sweep
from lra_fnet.run.result import Record

STEPS = (0, 2, 5, 10)  # points above or below the shallow baseline where a cell's shade changes
SECTIONS = {
    "result": "Result",
    "left-out": "Left out",
    "accuracy": "Accuracy",
    "significance": "Is it significant?",
    "efficiency": "Speed and memory",
    "learning": "What was learnt when",
    "sweeps": "Sweeps",
    "literature": "Literature",
    "inside": "Inside the models",
    "pre-training": "Pre-training",
    "runs": "Runs",
    "configurations": "Configurations",
}


def render(report: Report) -> str:
    """Returns the page."""
    configs: dict[str, tuple[str, list[str]]] = {}  # text and run folders by digest
    for run in report.runs:
        configs.setdefault(_digest(run), (run.config, []))[1].append(run.folder)
    cells = [
        (preset, row, task)
        for preset in report.presets
        for row, task in itertools.product(preset.table.ours, preset.table.tasks)
        if row.cells[task].runs
    ]
    labels = [row.cells[task].runs[0].label for _, row, task in cells]
    first = _first(report)
    hidden = {"result": first, "left-out": report.problems}
    hidden["pre-training"] = "Pre-training" in report.sections
    keys = itertools.count()
    return template.render(
        "index.html",
        report=report,
        sections={id_: title for id_, title in SECTIONS.items() if hidden.get(id_, True)},
        plural=text.plural,
        cells=cells,
        tips={label: f"t{number}" for number, label in enumerate(labels)},
        configs=configs,
        text=text,
        benchmarks=benchmarks,
        figures=figures,
        tradeoff=tradeoff,
        said=lambda rows, columns: legend([row.cells[c] for row in rows for c in columns]),
        steps=STEPS,
        task_titles=dict.fromkeys(t.columns[task] for t in report.tables for task in t.tasks),
        models=sorted({row.label for table in report.tables for row in table.ours}),
        read_twice=[folder for folder, n in report.sources.readings.items() if n > 1],
        code=_code,
        digest=_digest,
        rate=rounded,
        shown=_shown,
        shade=_shade,
        stacked=_stacked,
        svg=lambda title, figure: markupsafe.Markup(
            figures.inline(figure, f"f{next(keys)}", title)
        ),
        first=first,
        counted=lambda name: list(dict.fromkeys(getattr(run, name) for run in report.runs)),
        intervals=_intervals,
        curves=lambda table: list(_curves(table, report)),
        swept=_swept,
        name_of=names.name_of,
        title_of=tasks.title,
    )


def _first(report: Report) -> tuple[Preset, Sequence[Row], Figure | None] | None:
    """Returns what the first screen shows: a preset, its main and best models, and its figure.

    The preset is the one with the most runs; None if there is none.
    """
    if not report.presets:
        return None
    runs = [run.preset for run in report.runs]
    preset = max(report.presets, key=lambda preset: runs.count(preset.table.preset))
    table = preset.table
    return preset, markdown.main_rows(table), figures.above_baseline(table, preset.points)


def _shown(table: Table, rows: Sequence[Row]) -> dict[str, str]:
    """Returns the columns in which one of these rows has a run or a number of ours."""
    return {
        column: title
        for column, title in table.columns.items()
        if any(r.ours and (r.cells[column].runs or r.cells[column].mean is not None) for r in rows)
    }


def _shade(cell: Cell) -> str:
    """Returns the class of a cell: how far it lies above or below its shallow baseline."""
    if cell.mean is None or cell.baseline is None:
        return ""
    distance = cell.mean - cell.baseline
    return f"{'above' if distance > 0 else 'below'}{sum(abs(distance) > step for step in STEPS)}"


def _stacked(listed: Sequence[Grid], title: str) -> list[Grid]:
    """Joins the tables whose head is that of the first: one, with a column for the quantity."""
    same = [grid for grid in listed if grid.head == listed[0].head]
    if len(same) < 2:
        return list(listed)
    rows = [[grid.title.partition(",")[0], *row] for grid in same for row in grid.rows]
    notes = list(dict.fromkeys(note for grid in same for note in grid.notes))
    joined = Grid(title, ["Quantity", *same[0].head], rows, notes, words=2)
    return [joined, *(grid for grid in listed if grid not in same)]


def _code(words: str) -> markupsafe.Markup:
    """Turns text between backquotes into code."""
    escaped = str(markupsafe.escape(words))
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))


def _digest(run: Record) -> str:
    return hashlib.sha256(run.config.encode()).hexdigest()[:10]


def _intervals(table: Table) -> list[tuple[str, Figure, str]]:
    """Returns a figure of the accuracies of each task that has any, with title and task."""
    drawn = ((table.columns[task], figures.intervals(table, task)) for task in table.tasks)
    return [(title, figure, title) for title, figure in drawn if figure]


def _curves(table: Table, report: Report) -> Iterator[tuple[str, Figure, str]]:
    """Yields the learning curves of each task, with title and task."""
    for task in table.tasks:
        for field, label in (("loss", "Training loss (nats)"), ("validation", "Validation (%)")):
            curves: dict[str, list[figures.Points]] = {}
            for row in table.ours:
                read = [report.sources.curves.get(run.folder) for run in row.cells[task].runs]
                curves.setdefault(row.label, []).extend(
                    figures.thinned(p) for curve in read if (p := getattr(curve, field, ()))
                )
            curves = {label: group for label, group in curves.items() if group}
            if curves:
                drawn = figures.lines(curves, ("Optimizer step", label))
                title = table.columns[task]
                yield f"{title}, {label[0].lower()}{label[1:]}", drawn, title


def _swept(sweep: Sweep) -> list[tuple[str, Figure, str]]:
    """Returns figures of validation accuracy against each axis of a sweep, with title and task."""
    drawn = []
    for task in dict.fromkeys(trial.task for trial in sweep.trials):
        for axis in sweep.about.axes:
            groups: dict[str, list[tuple[Any, float]]] = {}
            for trial in sweep.trials:
                value = contents.value_of(trial, axis)
                measured = (trial.task, trial.state) == (task, "complete")
                if measured and value is not None and trial.validation is not None:
                    point = value if isinstance(value, int | float | str) else str(value)
                    groups.setdefault(config.title(trial.model), []).append(
                        (point, 100 * trial.validation)
                    )
            if groups:
                figure = figures.scatter(groups, (axis, "Validation (%)"))
                title = tasks.title(task)
                drawn.append((f"{title}, {axis}", figure, title))
    return drawn
