"""The report as one HTML file that needs no network: tables, figures, provenance."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import markupsafe

from lra_fnet import tasks
from lra_fnet.report import benchmarks, figures, grids, template, text
from lra_fnet.report.accuracy import Part, Table
from lra_fnet.report.contents import Report
from lra_fnet.report.figures import Figure
from lra_fnet.report.sources import Sweep
from lra_fnet.run.record import Record


def render(report: Report) -> str:
    """Returns the page."""
    configs: dict[str, tuple[str, list[str]]] = {}  # text and run folders by digest
    for run in report.runs:
        configs.setdefault(_digest(run), (run.config, []))[1].append(run.folder)
    names = [row.label for table in report.tables for row in table.ours]
    indices = {name: number for number, name in enumerate(dict.fromkeys(names))}
    cells = [
        (preset, row, task)
        for preset in report.presets
        for row, task in itertools.product(preset.table.ours, preset.table.tasks)
        if row.cells[task].runs
    ]
    labels = [row.cells[task].runs[0].label for _, row, task in cells]
    keys = itertools.count()
    return template.render(
        "index.html",
        report=report,
        cells=cells,
        tips={label: f"t{number}" for number, label in enumerate(labels)},
        configs=configs,
        text=text,
        benchmarks=benchmarks,
        figures=figures,
        indices=indices,
        read_twice=[folder for folder, n in report.sources.readings.items() if n > 1],
        code=_code,
        slug=template.slug,
        digest=_digest,
        svg=lambda title, figure: markupsafe.Markup(
            figures.inline(figure, f"f{next(keys)}", title)
        ),
        first=_first(report),
        intervals=_intervals,
        curves=lambda table: list(_curves(table, report, indices)),
        swept=_swept,
    )


def _first(report: Report) -> tuple[Table, Part, Figure | None] | None:
    """Returns what the first screen shows: a preset, its main and best models, and its figure.

    The preset is the first in which main models are compared; None if there is none.
    """
    table = next(iter(text.compared(report)), None)
    if table is None:
        return None
    own = [row for row in table.rows if row.ours]
    scored = [(row, task) for row in own for task in table.tasks if row.cells[task].mean]
    best = {
        task: max((r for r, t in scored if t == task), key=lambda r: r.cells[task].mean or 0)
        for task in dict.fromkeys(task for _, task in scored)
    }
    chosen = [row for row in own if row.model in text.MAIN or row in best.values()]
    title = f"Test accuracy (%), preset {table.preset}: the main models and the best of each task"
    floors = [row for row in table.rows if not row.source]
    part = Part("best", title, [*chosen, *floors])
    return table, part, figures.above_baseline(table, text.MAIN)


def _code(words: str) -> markupsafe.Markup:
    """Turns text between backquotes into code."""
    escaped = str(markupsafe.escape(words))
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))


def _digest(run: Record) -> str:
    return hashlib.sha256(run.config.encode()).hexdigest()[:10]


def _intervals(table: Table) -> list[tuple[str, Figure]]:
    """Returns a figure of the accuracies of each task that has any, with titles."""
    drawn = ((table.columns[task], figures.intervals(table, task)) for task in table.tasks)
    return [(title, figure) for title, figure in drawn if figure]


def _curves(
    table: Table, report: Report, indices: Mapping[str, int]
) -> Iterator[tuple[str, Figure]]:
    """Yields the learning curves of each task, with titles."""
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
                drawn = figures.lines(curves, ("Optimizer step", label), indices)
                yield f"{table.columns[task]}, {label[0].lower()}{label[1:]}", drawn


def _swept(sweep: Sweep) -> list[tuple[str, Figure]]:
    """Returns figures of validation accuracy against each axis of a sweep, with titles."""
    drawn = []
    for task in dict.fromkeys(trial.task for trial in sweep.trials):
        for axis in sweep.about.axes:
            groups: dict[str, list[tuple[Any, float]]] = {}
            for trial in sweep.trials:
                value = grids.value_of(trial, axis)
                measured = (trial.task, trial.state) == (task, "complete")
                if measured and value is not None and trial.validation is not None:
                    point = str(value) if isinstance(value, list) else value
                    groups.setdefault(trial.model, []).append((point, 100 * trial.validation))
            if groups:
                figure = figures.scatter(groups, (axis, "Validation (%)"))
                drawn.append((f"{tasks.title(task)}, {axis}", figure))
    return drawn
