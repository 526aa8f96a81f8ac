"""Shows progress: a bar on a terminal, and a plain line from time to time elsewhere."""

import itertools
import sys
import time
from collections.abc import Sequence

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from lra_fnet.machine import terminal

console = terminal.console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Prints one line on standard error."""
    console.print(text, markup=False, emoji=False)


def duration(seconds: float) -> str:
    """Returns a time for people: "45 s", "3 min 10 s", "5.2 h", "3.1 days"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


class Bar:
    """A context manager around a long pass; call `update`, or `step` once for each unit."""

    seconds_a_line = 10.0  # without a terminal
    seconds_to_estimate = 5.0  # since the first units; what compiles before them is left out

    def __init__(self, title: str, total: int | None, done: int = 0, unit: str = "rows"):
        self._title, self._total, self._unit = title, total, unit
        self._done = done
        self._first: tuple[float, int] | None = None  # when the first units were done, and how many
        self._note = ""
        self._begun = self._printed = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.completed:,} of {task.total:,}" if total else ""),
            TimeElapsedColumn(table_column=Column(min_width=7)),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            refresh_per_second=4,
            expand=True,
            disable=not sys.stderr.isatty(),
        )
        self._row = self._bar.add_task(title, total=total, completed=done, note="")

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, error, *_):
        self._bar.update(self._row, completed=self._done)
        self._bar.stop()
        if self._bar.disable and error is None:
            elapsed = duration(time.monotonic() - self._begun)
            note = f" ({self._note})" if self._note else ""
            say(f"{self._title}: {self._done:,} {self._unit} in {elapsed}{note}")

    def step(self) -> None:
        """Counts one unit."""
        if (self._done + 1) % 256:  # reading the clock costs more than the rest
            self._done += 1
        else:
            self.update(self._done + 1)

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` of the total are done, with a note of parts joined by ", " next to it.

        A terminal shows the parts, after the time that is left, for which it has room.
        """
        before, self._done, self._note = self._done, done, note
        now = time.monotonic()
        if self._first is None and done > before:
            self._first = now, done
        if not self._bar.disable:
            parts = [part for part in (self._left(now), *note.split(", ")) if part]
            self._bar.update(self._row, completed=done, note=_fitting(parts, self._room))
        elif now - self._printed >= self.seconds_a_line:
            self._printed = now
            total = f" of {self._total:,}" if self._total else ""
            count = f"{done:,}{total} {self._unit}"
            say(f"{self._title}: {', '.join(filter(None, (count, note, self._left(now))))}")

    @property
    def _room(self) -> int:
        """The columns for the note beside the title, the counts, the time and a bar of ten."""
        counts = 2 * len(f"{self._total:,}") + len(" of ") if self._total else 0
        return console.width - len(self._title) - counts - len("0:00:00") - 10 - 4

    def _left(self, now: float) -> str:
        """Returns the time left at the rate since the first units, once that is worth saying."""
        begun, before = self._first or (now, self._done)
        known = self._done > before and now - begun >= self.seconds_to_estimate
        if not self._total or not known:
            return ""
        seconds_per_unit = (now - begun) / (self._done - before)
        return f"{duration(max(0.0, seconds_per_unit * (self._total - self._done)))} left"


def _fitting(parts: Sequence[str], room: int) -> str:
    """Returns the first of the parts that fit a number of columns."""
    joined = list(itertools.accumulate(parts, "{}, {}".format))
    return next((words for words in reversed(joined) if len(words) <= room), "")
