"""The report as one HTML file that needs no network: figures and tables by heading."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2
import markupsafe

from lra_fnet.report.accuracy.table import Table
from lra_fnet.report.render import figures, markdown
from lra_fnet.report.render.grid import Grid, slug
from lra_fnet.report.render.text import accuracy_grid
from lra_fnet.report.sections import Report

OPEN = 12  # rows; a longer table is folded behind its title
CURVES = "Learning curves"
POINTS = "A point is a model, a bar the 95 % interval of its difference from no mixing."
CAPTIONS = {
    "Result": POINTS,
    "Score against speed": POINTS,
    "Pre-training": "A line joins the sizes of a model; dashed: points that no other beats.",
    CURVES: "Validation accuracy, the mean over seeds.",
}


def render(report: Report) -> str:
    """Returns the page."""
    drawn: dict[str, list[str]] = defaultdict(list)
    tables: dict[str, Sequence[Grid]] = {}
    counted = Counter(run.preset for run in report.runs)
    shown = sorted(report.presets, key=lambda preset: -counted[preset.table.preset])
    for number, preset in enumerate(shown):
        place = "Score against speed" if number else "Result"
        drawn[place].append(figures.above_no_mixing(preset.table, preset.points))
    if shown:
        first = shown[0].table
        tables["Result"] = [accuracy_grid(first, markdown.main_rows(first))]
    tables["Accuracy"] = markdown.accuracy(report.tables)
    tables |= report.sections
    tables["Literature"] = [report.literature]
    drawn["Pre-training"].append(figures.fronts(report.fronts))
    for table in report.tables:
        drawn[CURVES] += _curves(table, report)
    headings = [*tables, *([CURVES] if drawn[CURVES] else [])]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"slug": slug, "code": _code, "svg": markupsafe.Markup}
    return environment.get_template("index.html").render(
        report=report,
        sections={
            heading: (list(filter(None, drawn.get(heading, ()))), tables.get(heading, ()))
            for heading in headings
        },
        captions=CAPTIONS,
        presets=list(counted),
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


def _code(words: str) -> markupsafe.Markup:
    """Turns text between backquotes into code, and between asterisks into italics."""
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markupsafe.escape(words)))
    return markupsafe.Markup(re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", escaped))
