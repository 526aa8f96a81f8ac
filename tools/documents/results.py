"""Writes what comes from the committed results: README's table, RESULTS.md, literature, CSV."""

import dataclasses
import textwrap
from pathlib import Path

from lra_fnet.report import Report, Sources, build
from lra_fnet.report.accuracy import notes
from lra_fnet.report.render import csv, figures, markdown, svg
from lra_fnet.report.render.grid import Marked
from lra_fnet.report.render.text import accuracy_grid

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
ABOUT = (
    "Generated from the committed results by `python -m tools.documents results`. Variants, "
    "provenance, speed and sweeps: `lra-fnet report` writes them as one HTML page; "
    "[every run](results/runs.csv) and [every cell](results/accuracy.csv) as CSV."
)
LITERATURE = (
    "Generated from `lra_fnet/report/published.json` and the committed results by "
    "`python -m tools.documents results`."
)
FIRST = "cpu"  # the preset of README's table and figure


ROOT = Path(__file__).parents[2]


def write() -> None:
    """Writes the documents."""
    for file, text in files(ROOT).items():
        file.write_text(text, "utf-8")


def files(root: Path) -> dict[Path, str]:
    """Returns the new text of each document.

    Args:
      root: the repository's folder; runs/ is not shown, because a reader does not have it.

    Raises:
      ValueError: a result is damaged, or README.md lacks its markers.
    """
    sources = Sources([root / "results"])
    if sources.problems or not sources.runs:
        raise ValueError(sources.problems[:1] or "no results")
    report = build(sources)
    old = (root / "README.md").read_text("utf-8")
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md lacks {BEGIN} or {END}")
    texts = {
        "README.md": f"{before}{BEGIN}\n\n{readme(report)}\n{END}{after}",
        "RESULTS.md": results(report),
        "docs/literature.md": f"# Literature\n\n{LITERATURE}\n\n{report.literature.markdown()}",
        "results/accuracy.csv": csv.accuracy(report.tables),
        "results/runs.csv": csv.runs(report.runs, sources.readings),
    }
    (first,) = (preset for preset in report.presets if preset.table.preset == FIRST)
    if figure := figures.above_no_mixing(first.table, first.points):
        texts["docs/figure.svg"] = svg.standalone(figure)
    return {root / name: text for name, text in texts.items()}


def readme(report: Report) -> str:
    """Returns README's table: the models of the protocol and the best of each task."""
    (table,) = (table for table in report.tables if table.preset == FIRST)
    grid = accuracy_grid(table, markdown.main_rows(table))
    legend = notes.legend([row.cells[c] for row in markdown.main_rows(table) for c in table.tasks])
    rows = [[_plainer(text) for text in row] for row in grid.rows]
    best = "; ".join(dict.fromkeys(row.label for row in table.best.values()))
    caption = (
        f"{legend} Shown: the models of [the protocol](docs/protocol.md) and the best of each task "
        f"on validation ({best}). FF-only mixes nothing, Random by fixed random matrices; the last "
        "two rows are no neural networks. All models, and tests: [RESULTS.md](RESULTS.md)."
    )
    return (
        dataclasses.replace(grid, rows=rows, notes=[]).markdown()
        + f"\n{textwrap.fill(caption, 140)}\n"
    )


def _plainer(text: str) -> Marked:
    """Returns a text without bold: README has one mark."""
    return Marked(text, "italic" if "italic" in getattr(text, "style", "") else "")


def results(report: Report) -> str:
    """Returns RESULTS.md: accuracies, what mixing buys, pairs, training and test."""
    shown = ("What mixing buys", "Significance", "Training and test")
    accuracy = [grid for t in report.tables for grid in markdown.accuracy([t])[: bool(t.own)]]
    sections = {"Accuracy": accuracy} | {name: report.sections.get(name, []) for name in shown}
    return markdown.document("Results", sections, ABOUT)
