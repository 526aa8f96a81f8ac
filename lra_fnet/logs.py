"""What a run tells: metrics.jsonl, TensorBoard files, the progress bar."""

import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tensorboardX import SummaryWriter

from lra_fnet.run_folder import writable

console = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line to the person who waits, on standard error."""
    console.print(text, markup=False)


class Metrics:
    """Appends lines to metrics.jsonl and the same numbers to TensorBoard.

    A line is {"kind": "train" or "validation", "step": s, numbers}. Lines past `step` are dropped
    when a run resumes there, so that no step stands twice.
    """

    def __init__(self, folder: Path, step: int):
        self.path = folder / "metrics.jsonl"
        self.folder = folder
        with writable(folder):
            kept = []
            if self.path.exists():
                for line in self.path.read_text().splitlines(keepends=True):
                    # A killed process may leave half a line at the end: it is past `step` too.
                    if line.endswith("\n") and json.loads(line)["step"] <= step:
                        kept.append(line)
            beside = folder / ".metrics.jsonl"
            beside.write_text("".join(kept))
            os.replace(beside, self.path)
            self._file = open(self.path, "a", buffering=1)  # noqa: SIM115 (closed by close)
            self._board = SummaryWriter(
                str(folder / "tensorboard"), purge_step=step + 1 if step else None, flush_secs=10
            )

    def write(self, kind: str, step: int, numbers: dict) -> None:
        """One line.

        Raises:
          UserError: the disk is full.
        """
        with writable(self.folder):
            self._file.write(json.dumps({"kind": kind, "step": step, **numbers}) + "\n")
            for name, value in numbers.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flushes both."""
        with writable(self.folder):
            self._file.close()
            self._board.close()


class Bar:
    """A progress bar on a terminal; elsewhere a plain line now and then."""

    def __init__(self, what: str, total: int, done: int = 0, every_seconds: float = 10.0):
        self._what, self._total, self._start = what, total, done
        self._begun = self._told = time.monotonic()
        self._every = every_seconds
        self._bar = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=console,
                refresh_per_second=4,
                expand=True,
            )
            self._row = self._bar.add_task(what, total=total, completed=done, note="")
            self._bar.start()

    def update(self, done: int, note: str = "") -> None:
        """`done` of the total; `note` stands beside it."""
        if self._bar is not None:
            self._bar.update(self._row, completed=done, note=note)
            return
        now = time.monotonic()
        if now - self._told < self._every and done < self._total:
            return
        self._told = now
        rate = (done - self._start) / max(now - self._begun, 1e-9)
        left = f", {duration((self._total - done) / rate)} left" if rate and done > 0 else ""
        say(f"{self._what} {done}/{self._total} {note}{left}")

    def close(self) -> None:
        """Leaves the last state on the screen."""
        if self._bar is not None:
            self._bar.stop()


def duration(seconds: float) -> str:
    """A time for people: "45 s", "3 min 10 s", "5.2 h", "3.1 days"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
