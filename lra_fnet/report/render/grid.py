"""A table as text, from which Markdown, CSV, LaTeX and HTML are made."""

import dataclasses
import re
from collections.abc import Sequence


class Marked(str):
    """The text of a cell that stands out: its style is "bold", "italic", "bold italic" or ""."""

    style: str

    def __new__(cls, text: str, style: str):
        """Returns a text with a style."""
        self = super().__new__(cls, text)
        self.style = style
        return self


@dataclasses.dataclass(frozen=True)
class Grid:
    """A title, a head and rows of equal length. A table without rows is false, and not shown."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()  # one sentence each
    words: int = 1  # the number of columns, from the left, that hold words; the others hold numbers

    def __bool__(self) -> bool:
        """Whether the table has a row."""
        return bool(self.rows)

    def markdown(self) -> str:
        """Returns the title in bold, the table, then the notes."""
        rule = "|" + "---|" * self.words + "---:|" * (len(self.head) - self.words)
        title, notes = literal(self.title), [f"- {literal(note)}" for note in self.notes]
        lines = [f"**{title}**", "", _line(self.head), rule, *map(_line, self.rows), ""]
        return "\n".join([*lines, *notes, *([""] * bool(notes))])


def rounded(value: float, digits: int = 3) -> str:
    """Returns a positive number as a whole, or with `digits` digits if small: "1,235", "1.23"."""
    whole = value >= 10 ** (digits - 1)
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def slug(words: str) -> str:
    """Returns text as a word for names of files and places: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")


def literal(words: str) -> str:
    """Returns text in which Markdown sees no HTML and no line break."""
    return words.replace("\n", " ").replace("<", "&lt;")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    mark = {"bold": "**", "italic": "*", "bold italic": "***"}.get(getattr(text, "style", ""), "")
    escaped = literal(text).replace("|", "\\|")
    return f"{mark}{escaped}{mark}"
