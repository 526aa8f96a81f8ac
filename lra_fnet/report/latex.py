r"""The report as LaTeX: one booktabs tabular per file for \input, and a document that compiles."""

import dataclasses
import itertools
import re
from collections.abc import Container, Iterator, Sequence

from lra_fnet.report import template
from lra_fnet.report.cells import Cell
from lra_fnet.report.contents import Report
from lra_fnet.report.grid import Grid
from lra_fnet.report.marks import Marks
from lra_fnet.report.tables import Part, Table, measured
from lra_fnet.report.text import LEGEND, accuracy_grid

_SPECIAL = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # after \\ or \midrule it would begin an argument
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "§": r"\S{}",
    "¶": r"\P{}",
}
_LEGEND = LEGEND.replace("the maximum.", "the maximum; in parentheses their number.")
LONG = 60  # rows that fit on a page
_NAME = re.compile(r"[(,:/]| preset | in arXiv")  # what follows is not in the name of a file


def files(report: Report) -> dict[str, str]:
    """Returns the text of each file by name: latex/report.tex and the tables that it includes."""
    bodies: dict[str, str] = {}
    sections: dict[str, list[tuple[str, str, list[str]]]] = {"Accuracy": []}
    for preset in report.presets:
        notes = preset.table.notes
        for part in preset.table.parts:
            table, part = measured(preset.table, part)
            if not table.columns:  # pre-training has no labels
                continue
            marks = preset.marks[part.checkpoint]
            words = "accuracy", template.slug(table.preset).lower(), part.name, part.checkpoint
            below, notes = [*notes, *([] if part.name else [marks.note])], []
            for title, rows, lines in _pages(part.title, part.rows, below):
                name = _unused("-".join(filter(None, words)), bodies)
                bodies[name] = accuracy(table, part._replace(rows=rows), marks)
                sections["Accuracy"].append((name, title, lines))
    for heading, grids in report.sections.items():
        for grid in grids:
            for title, rows, lines in _pages(grid.title, grid.rows, grid.notes):
                name = _unused(template.slug(_NAME.split(grid.title)[0]).lower(), bodies)
                bodies[name] = tabular(dataclasses.replace(grid, rows=rows))
                sections.setdefault(heading, []).append((name, title, lines))
    escaped = {
        escape(heading): [
            (name, escape(title), [_prose(note) for note in notes if note])
            for name, title, notes in tables
        ]
        for heading, tables in sections.items()
        if tables
    }
    document = template.render("report.tex", sections=escaped, legend=_prose(_LEGEND))
    return {"latex/report.tex": document} | {f"latex/{n}.tex": b for n, b in bodies.items()}


def _pages(title: str, rows: Sequence, notes: Sequence[str]) -> Iterator[tuple]:
    """Yields title, rows and notes of each page of a table; the notes are on the first."""
    for start in range(0, len(rows), LONG):
        page = rows[start : start + LONG]
        yield (f"{title}, continued", page, []) if start else (title, page, list(notes))


def _unused(name: str, names: Container[str]) -> str:
    """Returns a name, followed by a number if it is among the names."""
    numbers = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
    return next(name for name in numbers if name not in names)


def _prose(note: str) -> str:
    """Returns a note that LaTeX can break: words between backquotes are set as code."""
    parts = [escape(part) for part in note.split("`")]
    coded = (rf"\code{{{part}}}" if number % 2 else part for number, part in enumerate(parts))
    return "".join(coded)


def escape(words: str) -> str:
    """Returns text that LaTeX prints literally; letters outside Latin-1 become code points."""
    chars = (_SPECIAL.get(c, c if ord(c) < 0x100 else f"{{[}}U+{ord(c):04X}]") for c in words)
    return "".join(chars).replace("--", "-{}-")


def accuracy(table: Table, part: Part, marks: Marks) -> str:
    """Returns the tabular of one part of an accuracy table: ours, published, floors."""
    grid, rows = accuracy_grid(table, part.title, part.rows), []
    for row in part.rows:
        rule = "\\midrule\n" if row is table.floors else ""
        name = escape(row.label) + ("" if row.uses_mask else r"$\ddagger$")
        cells = [_cell(row.cells[column], marks.has(row, column)) for column in table.columns]
        source = [escape(row.source)] * (grid.words - 1)
        rows.append([rule + name, *source, *cells])
    return tabular(grid, rows)


def _cell(cell: Cell, bold: bool) -> str:
    first, *details = cell.lines
    number, _, rest = first.partition(" ")
    text = rf"\textbf{{{escape(number)}}}" if bold else escape(number)
    text += f" {escape(rest)}" if rest else ""
    if cell.seeds > 1 and cell.mean is not None:
        text += f", {details[0]}"
    return text + (rf" {{\tiny({cell.tally})}}" if cell.seeds and cell.mean is not None else "")


def tabular(grid: Grid, rows: Sequence[Sequence[str]] | None = None) -> str:
    """Returns the tabular of a table.

    Args:
      grid: the table.
      rows: its rows as LaTeX; by default the text of the rows, escaped.
    """
    columns = "l" * grid.words + "r" * (len(grid.head) - grid.words)
    head, *body = [
        " & ".join(cells) + r" \\"
        for cells in (map(escape, grid.head), *(rows or [map(escape, row) for row in grid.rows]))
    ]
    begin = rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}"
    lines = [begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)
