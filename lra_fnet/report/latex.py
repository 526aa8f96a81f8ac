r"""The report as LaTeX: one booktabs tabular per file for \input, and a document that compiles."""

import re
from collections.abc import Mapping, Sequence

from lra_fnet.report.accuracy import Cell, Row, Table
from lra_fnet.report.contents import Report
from lra_fnet.report.grid import Grid
from lra_fnet.report.significance import Marks
from lra_fnet.report.text import LEGEND

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
}
_LEGEND = LEGEND.replace("with the maximum.", "with the maximum and, in parentheses, their number.")
_DOCUMENT = r"""\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{textcomp}
\usepackage{booktabs}
\usepackage{graphicx}
\usepackage[a4paper,landscape,margin=12mm]{geometry}
\setlength{\belowcaptionskip}{6pt}
\newsavebox{\wide}
\newcommand{\fitted}[1]{\sbox{\wide}{\input{#1}}%%
  \ifdim\wd\wide>\textwidth\resizebox{\textwidth}{!}{\usebox{\wide}}\else\usebox{\wide}\fi}
\makeatletter\newcommand{\atable}{\def\@captype{table}}\makeatother
\newenvironment{whole}{\noindent\begin{minipage}{\textwidth}\atable\centering\scriptsize
  \setlength{\tabcolsep}{4pt}}{\end{minipage}\par\vspace{12mm plus 1fil}}
\begin{document}
%s
\end{document}
"""


def files(report: Report) -> dict[str, str]:
    """Returns the text of each file by name: latex/report.tex and the tables that it includes."""
    bodies, captions = {}, {}
    for preset in report.presets:
        table, checkpoints = preset.table, (("best", preset.best), ("last", preset.last))
        for (title, rows), (checkpoint, marks) in zip(table.parts, checkpoints, strict=True):
            name = f"accuracy-{_slug(table.preset)}-{checkpoint}"
            bodies[name] = accuracy(table, rows, marks)
            captions[name] = " ".join([f"{title}.", _LEGEND, *table.notes, marks.note])
    for heading, grids in report.sections.items():
        for grid in grids if heading != "Missing" else ():
            bodies[_slug(grid.title)] = tabular(grid)
            captions[_slug(grid.title)] = " ".join([f"{grid.title}.", *grid.notes])
    texts = {f"latex/{name}.tex": body for name, body in bodies.items()}
    return {"latex/report.tex": document(captions)} | texts


def _slug(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-").lower()


def escape(words: str) -> str:
    """Returns text that LaTeX prints literally; letters outside Latin-1 become code points."""
    chars = (_SPECIAL.get(c, c if ord(c) < 0x100 else f"[U+{ord(c):04X}]") for c in words)
    return "".join(chars).replace("--", "-{}-")


def accuracy(table: Table, rows: Sequence[Row], marks: Marks) -> str:
    """Returns the tabular of one part of an accuracy table: ours, published, floors."""
    body = []
    for number, row in enumerate(rows):
        if row.source == "" and number:
            body.append(r"\midrule")
        name = escape(row.label) + ("" if row.uses_mask else r"$\ddagger$")
        cells = [_cell(row.cells[column], marks.has(row, column)) for column in table.columns]
        body.append(" & ".join([name, escape(row.source), *cells]) + r" \\")
    head = ["Model", "Source", *map(escape, table.columns.values())]
    return _tabular("ll" + "r" * len(table.columns), head, body)


def _cell(cell: Cell, bold: bool) -> str:
    first, *details = cell.lines
    number, _, rest = first.partition(" ")
    text = rf"\textbf{{{escape(number)}}}" if bold else escape(number)
    text += f" {escape(rest)}" if rest else ""
    if cell.seeds > 1 and cell.mean is not None:
        text += f", {details[0]}"
    return text + (rf" {{\tiny({cell.seeds})}}" if cell.seeds and cell.mean is not None else "")


def tabular(grid: Grid) -> str:
    """Returns the tabular of any other table."""
    columns = "l" * grid.words + "r" * (len(grid.head) - grid.words)
    body = [" & ".join(map(escape, row)) + r" \\" for row in grid.rows]
    return _tabular(columns, list(map(escape, grid.head)), body)


def _tabular(columns: str, head: Sequence[str], body: Sequence[str]) -> str:
    begin = rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}"
    lines = [begin, r"\toprule", " & ".join(head) + r" \\", r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def document(captions: Mapping[str, str]) -> str:
    r"""Returns a document that \inputs the named files, each as a table with its caption."""
    parts = [
        "\n".join(
            [
                r"\begin{whole}",
                rf"\caption{{{escape(caption.replace('`', ''))}}}",
                rf"\fitted{{{name}}}",
                r"\end{whole}",
            ]
        )
        for name, caption in captions.items()
    ]
    return _DOCUMENT % "\n".join(parts)
