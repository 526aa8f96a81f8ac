"""Shows progress: a bar on a terminal, and a plain line from time to time elsewhere."""

import datetime
import sys
import time

from rich.progress import BarColumn, Progress, TextColumn

from lra_fnet.machine import terminal

console = terminal.console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Prints one line on standard error."""
    console.print(text, markup=False, emoji=False)


def duration(seconds: float) -> str:
    """Returns a time for people: "0:03:10", "3 days, 2:24:00"."""
    return str(datetime.timedelta(seconds=round(seconds)))


class Bar:
    """A context manager around a long pass; call `update`, or `step` once for each unit."""

    seconds_a_line = 10.0  # without a terminal

    def __init__(self, title: str, total: int | None, done: int = 0, unit: str = "rows"):
        self._title, self._unit, self._done = title, unit, done
        self._of = f" of {total:,}" if total else ""
        self._begun = self._printed = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=console,
            refresh_per_second=4,
            speed_estimate_period=3600,  # seconds: longer than the pauses, such as evaluations
            disable=not sys.stderr.isatty(),
        )
        self._row = self._bar.add_task(title, total=total, completed=done, words="")

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, error, *_):
        self._bar.update(self._row, completed=self._done)
        self._bar.stop()
        if self._bar.disable and error is None:
            elapsed = duration(time.monotonic() - self._begun)
            say(f"{self._title}: {self._done:,} {self._unit} in {elapsed}")

    def step(self) -> None:
        """Counts one unit."""
        if (self._done + 1) % 256:  # reading the clock costs more than the rest
            self._done += 1
        else:
            self.update(self._done + 1)

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` of the total are done, with a note next to it."""
        self._done = done
        self._bar.update(self._row, completed=done)
        left = self._bar.tasks[0].time_remaining
        remaining = f"{duration(left)} left" if left else ""
        words = ", ".join(filter(None, (f"{done:,}{self._of} {self._unit}", note, remaining)))
        self._bar.update(self._row, words=words)
        if self._bar.disable and time.monotonic() - self._printed >= self.seconds_a_line:
            self._printed = time.monotonic()
            say(f"{self._title}: {words}")
