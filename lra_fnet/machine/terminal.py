"""Tables and consoles of a terminal."""

import dataclasses
import shlex
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

FILE_WIDTH = 1000  # columns: wide enough for every table


def command(words: Sequence[str]) -> str:
    """Returns a command of lra-fnet for a person to type."""
    return shlex.join(["lra-fnet", *words])


def console(*, stderr: bool = False, **options) -> Console:
    """Returns the terminal, or for a file or a pipe one of `FILE_WIDTH` columns.

    Args:
      stderr: prints on standard error rather than on standard output.
      **options: of rich's console.
    """
    made = Console(stderr=stderr, **options)
    return made if made.is_terminal else Console(stderr=stderr, width=FILE_WIDTH, **options)


@dataclasses.dataclass
class Fitted:
    """A table with a title above and notes below; long cells wrap where it does not fit."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # as long as the head; a cell may have several lines
    _: dataclasses.KW_ONLY
    title: str = ""
    notes: Sequence[str] = ()
    words: int = 1  # the columns, from the left, that name the row; the others hold numbers

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yields the title, the table and the notes."""
        if self.title:
            yield Text(self.title, style="bold", overflow="fold")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
        for number, name in enumerate(self.head):
            side = "left" if number < self.words else "right"
            table.add_column(Text(name), justify=side, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell, style=getattr(cell, "style", "")) for cell in row))
        yield table
        yield from (Text(note, overflow="fold") for note in self.notes)
