"""Writes the numbers of a run while it trains: metrics.jsonl and TensorBoard files."""

import json
from pathlib import Path

from tensorboardX import SummaryWriter

from lra_fnet.machine import disk
from lra_fnet.machine.disk import writable
from lra_fnet.train import hosts


class Metrics:
    """Appends lines to metrics.jsonl and the same numbers to TensorBoard.

    A line is {"kind": "train" or "validation", "step": s, numbers}. When a run resumes at `step`,
    later lines are dropped, so no step appears twice. Only the first process writes.
    """

    def __init__(self, folder: Path, step: int):
        path = folder / "metrics.jsonl"
        self.folder = folder
        self._writes = hosts.first()
        if not self._writes:
            return
        with writable(folder):
            # A killed process may leave half a line at the end; it is later than `step` too.
            lines = [line for line in disk.read_lines(path) if line["step"] <= step]
            disk.replace(path, "".join(json.dumps(line) + "\n" for line in lines))
            self._file = open(path, "a", buffering=1)  # noqa: SIM115 (closed by close)
            self._board = SummaryWriter(
                str(folder / "tensorboard"), purge_step=step + 1 if step else None, flush_secs=10
            )

    def write(self, kind: str, step: int, numbers: dict) -> None:
        """Appends one line.

        Raises:
          UserError: the disk is full.
        """
        if not self._writes:
            return
        with writable(self.folder):
            self._file.write(json.dumps({"kind": kind, "step": step, **numbers}) + "\n")
            for name, value in numbers.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flushes and closes both."""
        if not self._writes:
            return
        with writable(self.folder):
            self._file.close()
            self._board.close()
