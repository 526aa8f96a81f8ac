r"""The report's tables as LaTeX: one booktabs tabular per file, for \input."""

import itertools

from lra_fnet.report.render import markdown
from lra_fnet.report.render.grid import Grid, slug
from lra_fnet.report.sections import Report

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
}
_STYLES = {"bold": r"\textbf{%s}", "italic": r"\textit{%s}", "bold italic": r"\textbf{\textit{%s}}"}


def files(report: Report) -> dict[str, str]:
    """Returns the text of each file by name: latex/<title>.tex."""
    grids = itertools.chain(markdown.accuracy(report.tables), *report.sections.values())
    return {f"latex/{slug(g.title)[:200].lower()}.tex": tabular(g) for g in grids}


def escape(words: str) -> str:
    """Returns text that LaTeX prints literally; letters outside Latin-1 become code points."""
    chars = (_SPECIAL.get(c, c if ord(c) < 0x100 else f"{{[}}U+{ord(c):04X}]") for c in words)
    return "".join(chars).replace("--", "-{}-")


def tabular(grid: Grid) -> str:
    """Returns the tabular of a table; its title and its notes are comments above it."""
    columns = "l" * grid.words + "r" * (len(grid.head) - grid.words)
    head, *body = [" & ".join(map(_cell, row)) + r" \\" for row in (grid.head, *grid.rows)]
    about = [f"% {line}" for text in (grid.title, *grid.notes) for line in text.splitlines()]
    begin = rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}"
    lines = [begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*about, *lines])


def _cell(text: str) -> str:
    return _STYLES.get(getattr(text, "style", ""), "%s") % escape(text)
