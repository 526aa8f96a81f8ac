"""Tables and consoles of a terminal: a table that is too wide becomes one line per cell."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PROGRAM = "lra-fnet"
FILE_WIDTH = 1000  # columns: wide enough for every table


def command(words: Sequence[str]) -> str:
    """Returns a command of lra-fnet for a person to type, called as this process was.

    After `make`, lra-fnet is in an environment that need not be on the PATH; another one may be.
    """
    called, found = sys.argv[0], shutil.which(PROGRAM)
    same = found is not None and os.path.realpath(found) == os.path.realpath(called)
    return shlex.join([PROGRAM if same or Path(called).name != PROGRAM else called, *words])


def console(*, stderr: bool = False, **options) -> Console:
    """Returns the terminal, or for a file or a pipe one of `FILE_WIDTH` columns.

    With NO_COLOR set, or without a terminal, the text has no colours and no bold type.

    Args:
      stderr: prints on standard error rather than on standard output.
      **options: of rich's console.
    """
    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    made = _Console(stderr=stderr, **options)
    return made if made.is_terminal else _Console(stderr=stderr, width=FILE_WIDTH, **options)


class _Console(Console):
    """A console that leaves it to the command what a reader who is gone means."""

    def on_broken_pipe(self) -> None:
        """Raises the BrokenPipeError; rich itself would exit with code 1."""
        raise


class Fitted:
    """A table with a title above and notes below; one line per cell where it does not fit."""

    def __init__(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        title: str = "",
        notes: Sequence[str] = (),
        words: int = 1,
    ):
        """Takes the texts of the table.

        Args:
          head: the names of the columns.
          rows: as long as the head; a cell may have several lines.
          title: printed above, in bold.
          notes: printed below, in the width of the terminal.
          words: the number of columns, from the left, that name the row; the others hold numbers.
        """
        self.title, self.head, self.rows, self.notes = title, list(head), rows, notes
        self._words = words

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yields the title, the table or its lines, and the notes."""
        if self.title:
            yield Text(self.title, style="bold", overflow="fold")
        table = self._table()
        fits = Measurement.get(console, options.update(max_width=10_000), table).maximum
        yield table if fits <= options.max_width else self._lines(options.max_width)
        yield from (Text(note, overflow="fold") for note in self.notes)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
        for number, name in enumerate(self.head):
            side = "left" if number < self._words else "right"
            table.add_column(Text(name), justify=side, no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(cell, style=getattr(cell, "style", "")) for cell in row))
        return table

    def _lines(self, most: int) -> Text:
        """Returns a row's name, then a line for each cell with a value, after its column's name.

        The values stand below each other, unless a line would then be longer than `most`.
        """
        heads = list(map(_line, self.head[self._words :]))
        named = []
        for row in self.rows:
            named.append((", ".join(_line(cell) for cell in row[: self._words] if cell), ""))
            cells = zip(heads, row[self._words :], strict=True)
            named += [(f"  {name}", _line(cell)) for name, cell in cells if cell not in ("", "-")]
        width = max((len(name) for name, cell in named if cell), default=0)
        if any(width + 2 + len(cell) > most for _, cell in named):
            width = 0
        return Text("\n".join(f"{name:<{width}}  {cell}".rstrip() for name, cell in named))


def _line(cell: str) -> str:
    return ", ".join(cell.splitlines())
