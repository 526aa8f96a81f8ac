"""Progress of a long pass over rows, on stderr."""

import sys
import time


class Progress:
    """A bar with the time left on a terminal; elsewhere a plain line now and then, and at the end.

    Use as a context manager and call `step` once a row.
    """

    seconds_a_line = 10.0

    def __init__(self, title: str, total: int | None):
        self._title, self._total = title, total
        self._done = 0
        self._start = self._last = time.monotonic()
        self._bar = None

    def __enter__(self):
        if sys.stderr.isatty():
            from rich import console, progress

            self._bar = progress.Progress(
                *progress.Progress.get_default_columns(),
                progress.MofNCompleteColumn(),
                console=console.Console(stderr=True),
            )
            self._task = self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        return self

    def __exit__(self, error, *_):
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
            self._bar.stop()
        elif error is None:
            self.say(f"{self._title}: {self._done:,} rows in {self._elapsed():.0f} s")

    def step(self) -> None:
        """One row more."""
        self._done += 1
        if self._done % 256:  # looking at the clock costs more than the rest
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif time.monotonic() - self._last >= self.seconds_a_line:
            self._last = time.monotonic()
            self.say(f"{self._title}: {self._line()}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def _line(self) -> str:
        if not self._total:
            return f"{self._done:,} rows"
        left = self._elapsed() * (self._total - self._done) / self._done
        return f"{self._done:,} of {self._total:,} rows, {max(0, left):.0f} s left"

    @staticmethod
    def say(line: str) -> None:
        """One line on stderr."""
        print(line, file=sys.stderr, flush=True)
