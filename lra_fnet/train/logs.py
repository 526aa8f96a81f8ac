"""The numbers of a run as it goes: metrics.jsonl and TensorBoard files."""

import json
from pathlib import Path

from tensorboardX import SummaryWriter

from lra_fnet.machine import disk
from lra_fnet.machine.disk import writable
from lra_fnet.train import hosts


class Metrics:
    """Appends lines to metrics.jsonl and the same numbers to TensorBoard.

    A line is {"kind": "train" or "validation", "step": s, numbers}. Lines past `step` are dropped
    when a run resumes there, so that no step stands twice. Of several processes the first writes.
    """

    def __init__(self, folder: Path, step: int):
        self.path = folder / "metrics.jsonl"
        self.folder = folder
        self._writes = hosts.first()
        if not self._writes:
            return
        with writable(folder):
            kept = []
            if self.path.exists():
                for line in self.path.read_text().splitlines(keepends=True):
                    # A killed process may leave half a line at the end: it is past `step` too.
                    if line.endswith("\n") and json.loads(line)["step"] <= step:
                        kept.append(line)
            disk.replace(self.path, "".join(kept))
            self._file = open(self.path, "a", buffering=1)  # noqa: SIM115 (closed by close)
            self._board = SummaryWriter(
                str(folder / "tensorboard"), purge_step=step + 1 if step else None, flush_secs=10
            )

    def write(self, kind: str, step: int, numbers: dict) -> None:
        """One line.

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
        """Flushes both."""
        if not self._writes:
            return
        with writable(self.folder):
            self._file.close()
            self._board.close()
