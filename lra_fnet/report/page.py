"""The report as one HTML file that needs no network: tables, figures, provenance."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import markupsafe

from lra_fnet import tasks
from lra_fnet.report import benchmarks, figures, grids, template, text
from lra_fnet.report.accuracy import Cell, Table
from lra_fnet.report.contents import Report
from lra_fnet.report.figures import Figure
from lra_fnet.report.sources import Sweep
from lra_fnet.run.record import Record


def render(report: Report) -> str:
    """Returns the page."""
    configs: dict[str, tuple[str, list[str]]] = {}  # text and run folders by digest
    for run in report.runs:
        configs.setdefault(_digest(run), (run.config, []))[1].append(run.folder)
    names = [row.label for table in report.tables for row in table.rows if row.ours]
    indices = {name: number for number, name in enumerate(dict.fromkeys(names))}
    cells = [
        (preset, row, task)
        for preset in report.presets
        for row, task in itertools.product(preset.table.rows, preset.table.tasks)
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
        legend=text.LEGEND,
        benchmark_legend=benchmarks.LEGEND,
        read_twice=[folder for folder, n in report.sources.readings.items() if n > 1],
        code=_code,
        slug=_slug,
        digest=_digest,
        interval=_interval,
        svg=lambda title, figure: markupsafe.Markup(
            figures.inline(figure, f"f{next(keys)}", title)
        ),
        intervals=_intervals,
        bubbles=lambda points: figures.bubbles(points, indices),
        curves=lambda table: list(_curves(table, report, indices)),
        measured=lambda cells: figures.measured(cells).values(),
        caption=benchmarks.caption,
        swept=_swept,
    )


def _code(words: str) -> markupsafe.Markup:
    """Turns text between backquotes into code."""
    escaped = str(markupsafe.escape(words))
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))


def _slug(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")


def _digest(run: Record) -> str:
    return hashlib.sha256(run.config.encode()).hexdigest()[:10]


def _interval(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return ""
    return f"95 % interval for these test rows: {cell.low:.2f} to {cell.high:.2f}"


def _intervals(table: Table) -> list[tuple[str, Figure]]:
    """Returns a figure of the accuracies of each task that has any, with titles."""
    return [
        (table.columns[task], figures.intervals(bars, table.rows[-1].cells[task].mean))
        for task in table.tasks
        if (bars := _bars(table, task))
    ]


def _bars(table: Table, task: str) -> list[figures.Bar]:
    """Returns the rows of a task's figure, the most accurate first."""
    published: dict[str, dict[str, float]] = {}
    for row in table.rows:
        mean = row.cells[task].mean
        if row.published and mean is not None:
            published.setdefault(row.model, {})[row.source] = mean
    bars = []
    for row in table.rows:
        cell = row.cells[task]
        if row.ours and cell.mean is not None and cell.low is not None and cell.high is not None:
            tested = [run.accuracy("test") for run in cell.runs]
            seeds = [accuracy for accuracy in tested if accuracy is not None]
            bars.append(
                figures.Bar(
                    *(row.label, cell.mean, cell.low, cell.high),
                    seeds if len(seeds) > 1 else (),
                    {} if row.variant else published.get(row.model, {}),
                    f"{row.label}: {', '.join(cell.lines)}; {_interval(cell)}",
                )
            )
    return sorted(bars, key=lambda bar: -bar.mean)


def _curves(
    table: Table, report: Report, indices: Mapping[str, int]
) -> Iterator[tuple[str, Figure]]:
    """Yields the learning curves of each task, with titles."""
    for task in table.tasks:
        for field, label in (("loss", "Training loss (nats)"), ("validation", "Validation (%)")):
            curves: dict[str, list[figures.Points]] = {}
            for row in (row for row in table.rows if row.ours):
                read = [report.sources.curves.get(run.folder) for run in row.cells[task].runs]
                curves[row.label] = [
                    figures.thinned(p) for curve in read if (p := getattr(curve, field, ()))
                ]
            curves = {label: group for label, group in curves.items() if group}
            if curves:
                drawn = figures.lines(curves, ("Optimizer step", label), indices)
                yield f"{table.columns[task]}, {label[0].lower()}{label[1:]}", drawn


def _swept(sweep: Sweep) -> list[tuple[str, Figure]]:
    """Returns figures of validation accuracy against each axis of a sweep, with titles."""
    drawn = []
    for task in dict.fromkeys(trial["task"] for trial in sweep.trials):
        for axis in sweep.about.get("axes", {}):
            groups: dict[str, list[tuple[Any, float]]] = {}
            for trial in sweep.trials:
                value = grids.value_of(trial, axis)
                if (trial["task"], trial["state"]) == (task, "complete") and value is not None:
                    point = str(value) if isinstance(value, list) else value
                    groups.setdefault(trial["model"], []).append((point, 100 * trial["validation"]))
            if groups:
                figure = figures.scatter(groups, (axis, "Validation (%)"))
                drawn.append((f"{tasks.title(task)}, {axis}", figure))
    return drawn
