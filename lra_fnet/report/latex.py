r"""The report as LaTeX: one booktabs tabular per file for \input, and a document that compiles."""

from collections.abc import Sequence

from lra_fnet.report import template
from lra_fnet.report.accuracy import Part, Table
from lra_fnet.report.cells import Cell
from lra_fnet.report.contents import Report
from lra_fnet.report.grid import Grid
from lra_fnet.report.significance import Marks
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
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "§": r"\S{}",
    "¶": r"\P{}",
}
_LEGEND = LEGEND.replace("the maximum.", "the maximum; in parentheses their number.")


def files(report: Report) -> dict[str, str]:
    """Returns the text of each file by name: latex/report.tex and the tables that it includes."""
    bodies, captions = {}, {}
    for preset in report.presets:
        table = preset.table
        for part in table.parts:
            marks = preset.marks[part.checkpoint]
            words = "accuracy", template.slug(table.preset).lower(), part.name, part.checkpoint
            name = "-".join(filter(None, words))
            bodies[name] = accuracy(table, part, marks)
            note = "" if part.name else marks.note
            captions[name] = " ".join([f"{part.title}.", _LEGEND, *table.notes, note])
    for heading, grids in report.sections.items():
        for grid in grids if heading != "Missing" else ():
            name = template.slug(grid.title).lower()
            bodies[name] = tabular(grid)
            captions[name] = " ".join([f"{grid.title}.", *grid.notes])
    escaped = {name: escape(caption.replace("`", "")) for name, caption in captions.items()}
    texts = {f"latex/{name}.tex": body for name, body in bodies.items()}
    return {"latex/report.tex": template.render("report.tex", captions=escaped)} | texts


def escape(words: str) -> str:
    """Returns text that LaTeX prints literally; letters outside Latin-1 become code points."""
    chars = (_SPECIAL.get(c, c if ord(c) < 0x100 else f"[U+{ord(c):04X}]") for c in words)
    return "".join(chars).replace("--", "-{}-")


def accuracy(table: Table, part: Part, marks: Marks) -> str:
    """Returns the tabular of one part of an accuracy table: ours, published, floors."""
    rows = []
    for row in part.rows:
        rule = "\\midrule\n" if row is table.floors else ""
        name = escape(row.label) + ("" if row.uses_mask else r"$\ddagger$")
        cells = [_cell(row.cells[column], marks.has(row, column)) for column in table.columns]
        rows.append([rule + name, escape(row.source), *cells])
    return tabular(accuracy_grid(table, part.title, part.rows), rows)


def _cell(cell: Cell, bold: bool) -> str:
    first, *details = cell.lines
    number, _, rest = first.partition(" ")
    text = rf"\textbf{{{escape(number)}}}" if bold else escape(number)
    text += f" {escape(rest)}" if rest else ""
    if cell.seeds > 1 and cell.mean is not None:
        text += f", {details[0]}"
    return text + (rf" {{\tiny({cell.seeds})}}" if cell.seeds and cell.mean is not None else "")


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
