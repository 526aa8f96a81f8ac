"""The report as one HTML file that needs no network: figures and tables by heading."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import markupsafe

from lra_fnet.report.accuracy.table import Table
from lra_fnet.report.render import csv, figures, markdown, template
from lra_fnet.report.render.grid import Grid
from lra_fnet.report.render.text import accuracy_grid
from lra_fnet.report.sections import Report

OPEN = 12  # rows; a longer table is folded behind its title
CURVES = "Learning curves"
RUN = {  # the columns of a run
    **{"Run": "folder", "State": "state", "Test (%)": "test.best.accuracy"},
    **{"Step": "test.best.step", "Validation (%)": "validation.best.accuracy"},
    **{"Train (%)": "train.accuracy", "Steps/s": "steps_per_second", "Peak bytes": "peak_bytes"},
    **{"Seconds": "wall_seconds", "Parameters": "parameters", "Machine": "device.name"},
    **{"Commit": "commit", "Data": "data_sha256"},
}
FIGURES = {  # captions
    "Result": "A point is a model, a bar spans the 95 % intervals of its seeds.",
    "Score against speed": "A point is a model, a bar spans the 95 % intervals of its seeds.",
    "Speed and memory": "Time and memory over the length, on logarithmic axes.",
    "Pre-training": "A line joins the sizes of a model; dashed: points that no other beats.",
    CURVES: "Validation accuracy, the mean over seeds.",
}


def render(report: Report) -> str:
    """Returns the page."""
    drawn: dict[str, list[str]] = {heading: [] for heading in FIGURES}
    tables: dict[str, Sequence[Grid]] = {}
    counted = Counter(run.preset for run in report.runs)
    shown = sorted(report.presets, key=lambda preset: -counted[preset.table.preset])
    for number, preset in enumerate(shown):
        place = "Score against speed" if number else "Result"
        drawn[place].append(figures.above_baseline(preset.table, preset.points))
    if shown:
        first = shown[0].table
        tables["Result"] = [accuracy_grid(first, markdown.main_rows(first))]
    tables["Accuracy"] = markdown.accuracy(report.tables)
    tables |= report.sections
    tables |= {"Literature": [report.literature], "Runs": [_runs(report)]}
    for benchmark, _ in report.benchmarks:
        drawn["Speed and memory"].append(figures.measured(benchmark.cells))
    drawn["Pre-training"].append(figures.fronts(report.fronts))
    for table in report.tables:
        drawn[CURVES] += _curves(table, report)
    headings = [*tables, *([CURVES] if drawn[CURVES] else [])]
    return template.render(
        "index.html",
        report=report,
        sections={
            heading: (list(filter(None, drawn.get(heading, ()))), tables.get(heading, ()))
            for heading in headings
        },
        captions=FIGURES,
        presets=list(counted),
        slug=template.slug,
        code=_code,
        svg=markupsafe.Markup,
        most=OPEN,
    )


def _curves(table: Table, report: Report) -> Iterator[str]:
    """Yields the learning curves of each task of a preset."""
    for task in table.tasks:
        curves: dict[str, Sequence[figures.Points]] = {}
        for row in table.own:
            read = [report.sources.curves.get(run.folder) for run in row.cells[task].runs]
            if known := [curve.validation for curve in read if curve and curve.validation]:
                curves[row.model] = known
        if curves:
            yield figures.learning(f"{table.columns[task]}, preset {table.preset}", curves)


def _runs(report: Report) -> Grid:
    """Returns a row for each run."""

    def text(value: Any) -> str:
        kinds = {float: "{:,.4g}", int: "{:,}", str: "{}"}
        return kinds.get(type(value), "-").format(value)

    rows = []
    for run in report.runs:
        values = [*csv.fields(run, " ".join(RUN.values())).values()]
        rows.append([text(value) for value in (*values, report.sources.readings.get(run.folder))])
    note = (
        "Test read: how often the test split was scored, from the test_log.jsonl of the run's "
        "root, or else from its result. A run's folder holds its configuration."
    )
    return Grid("Every run", [*RUN, "Test read"], rows, [note], words=2)


def _code(words: str) -> markupsafe.Markup:
    """Turns text between backquotes into code, and between asterisks into italics."""
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(words)))
    return markupsafe.Markup(re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", escaped))
