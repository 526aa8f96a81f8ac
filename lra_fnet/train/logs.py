"""Writes the numbers of a run while it trains: metrics.jsonl and TensorBoard files."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorboardX import SummaryWriter

from lra_fnet.machine import disk
from lra_fnet.machine.disk import writable
from lra_fnet.train import hosts


@contextlib.contextmanager
def metrics(folder: Path, step: int) -> Iterator[Callable[[str, int, dict], None]]:
    """Yields (kind, step, numbers) -> None, which logs to metrics.jsonl and to TensorBoard.

    A line is {"kind": "train" or "validation", "step": s, numbers}. When a run resumes at `step`,
    later lines are dropped, so no step appears twice. Only the first process writes.

    Raises:
      UserError: the disk is full; the yielded function raises it too.
    """
    if not hosts.first():
        yield lambda kind, step, numbers: None
        return
    path = folder / "metrics.jsonl"
    with writable(folder):
        # A killed process may leave half a line at the end; it is later than `step` too.
        lines = [line for line in disk.read_lines(path) if line["step"] <= step]
        disk.replace(path, "".join(json.dumps(line) + "\n" for line in lines))
        file = open(path, "a", buffering=1)  # noqa: SIM115 (closed below)
        board = SummaryWriter(
            str(folder / "tensorboard"), purge_step=step + 1 if step else None, flush_secs=10
        )

    def write(kind: str, step: int, numbers: dict) -> None:
        with writable(folder):
            file.write(json.dumps({"kind": kind, "step": step, **numbers}) + "\n")
            for name, value in numbers.items():
                if isinstance(value, int | float):
                    board.add_scalar(f"{kind}/{name}", value, step)

    try:
        yield write
    finally:
        with writable(folder):
            file.close()
            board.close()
