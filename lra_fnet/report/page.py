"""The report as one HTML file that needs no network: tables, figures, provenance."""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from lra_fnet import tasks
from lra_fnet.report import benchmarks, figures, grids, text
from lra_fnet.report.accuracy import Cell, Row, Table
from lra_fnet.report.contents import Preset, Report
from lra_fnet.report.figures import Figure
from lra_fnet.report.significance import Against, Marks
from lra_fnet.report.sources import Sweep
from lra_fnet.run.record import Record


@dataclasses.dataclass(frozen=True)
class Tip:
    """The tip of a cell: its runs, and how it compares with the best of its column."""

    id: str
    title: str
    interval: str
    against: str
    runs: Sequence[Record]
    provenance: list[str]  # each once


@dataclasses.dataclass(frozen=True)
class Part:
    """One of a preset's accuracy tables."""

    title: str
    groups: list[list[Row]]  # of one model: ours, then published; or a variant
    floors: list[Row]
    marks: Marks
    spread: set[str]  # columns in which a cell has a spread


def render(report: Report) -> str:
    """Returns the page."""
    tips = _tips(report.presets)
    keys = (f"f{number}" for number in itertools.count())
    configs: dict[str, tuple[str, list[str]]] = {}  # text and run folders by digest
    for run in report.runs:
        configs.setdefault(_digest(run), (run.config, []))[1].append(run.folder)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": _code, "slug": _slug, "digest": _digest}
    return environment.get_template("index.html").render(
        report=report,
        presets=[(preset, _Drawn(preset, report)) for preset in report.presets],
        sweeps=[(tables, _swept(tables.sweep)) for tables in report.sweeps],
        benchmarks=[(b, figures.measured(b.benchmark.cells).values()) for b in report.benchmarks],
        svg=lambda title, figure: _svg(title, figure, keys),
        tips=tips,
        tip_of=lambda cell: tips[cell.runs[0].label].id if cell.runs else "",
        configs=configs,
        legend=text.LEGEND,
        benchmark_legend=benchmarks.LEGEND,
        read_twice=[folder for folder, count in report.readings.items() if count > 1],
    )


def _svg(title: str, figure: Figure, keys: Iterator[str]) -> markupsafe.Markup:
    return markupsafe.Markup(figures.inline(figure, next(keys), title))


def _code(words: str) -> markupsafe.Markup:
    """Turns text between backquotes into code."""
    escaped = str(markupsafe.escape(words))
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))


def _slug(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")


def _digest(run: Record) -> str:
    return hashlib.sha256(run.config.encode()).hexdigest()[:10]


def _tips(presets: Sequence[Preset]) -> dict[str, Tip]:
    """Returns a tip for each cell with runs, by the label of the runs."""
    tips: dict[str, Tip] = {}
    for preset in presets:
        table = preset.table
        for row, task in itertools.product(table.rows, table.tasks):
            cell = row.cells[task]
            if cell.runs:
                tips[cell.runs[0].label] = Tip(
                    f"t{len(tips)}",
                    f"{row.label}, {table.columns[task]}, preset {table.preset}",
                    _interval(cell),
                    _against(preset.best.against.get((row.model, row.variant, task))),
                    cell.runs,
                    list(dict.fromkeys(run.provenance for run in cell.runs)),
                )
    return tips


def _interval(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return ""
    return f"95 % interval for these test rows: {cell.low:.2f} to {cell.high:.2f}"


def _against(against: Against | None) -> str:
    if against is None:
        return ""
    word = "Below" if against.significant else "Not significantly different from"
    comparison = against.comparison
    mean, low, high, *_ = comparison.difference
    return (
        f"{word} the best, {against.best}: {mean:+.2f} points ({low:+.2f} to {high:+.2f}), "
        f"p = {against.p_value:.2g} ({comparison.test})"
    )


class _Drawn:
    """The parts of a preset that only the page shows: grouped rows and figures."""

    def __init__(self, preset: Preset, report: Report):
        table = preset.table
        rows = [row.label for table in report.tables for row in table.rows if row.ours]
        indices = {label: number for number, label in enumerate(dict.fromkeys(rows))}
        marks = (preset.best, preset.last)
        self.parts = [_part(*part, m) for part, m in zip(table.parts, marks, strict=True)]
        self.notes = [note for note in (*table.notes, preset.best.note) if note]
        self.intervals = [
            (table.columns[task], figures.intervals(bars, table.rows[-1].cells[task].mean))
            for task in table.tasks
            if (bars := _bars(table, task))
        ]
        self.tradeoffs = [(t, figures.bubbles(t.points, indices)) for t in preset.tradeoffs]
        self.curves = list(_curves(table, report, indices))


def _part(title: str, rows: Sequence[Row], marks: Marks) -> Part:
    groups: list[list[Row]] = []
    for row in rows:
        if row.ours:
            groups.append([row])
        elif row.source:
            groups[-1].append(row)
    spread = {c for row in rows for c, cell in row.cells.items() if cell.sd is not None}
    return Part(title, groups, [row for row in rows if not row.source], marks, spread)


def _bars(table: Table, task: str) -> list[figures.Bar]:
    """Returns the rows of a task's figure, the most accurate first."""
    published: dict[str, dict[str, float]] = {}
    for row in table.rows:
        mean = row.cells[task].mean
        if row.source and not row.ours and mean is not None:
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
                read = [report.curves.get(run.folder) for run in row.cells[task].runs]
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
