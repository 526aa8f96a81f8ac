"""Writes the numbers of a run while it trains: metrics.jsonl and TensorBoard files."""

import contextlib
import hashlib
import itertools
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.summary import scalar

from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.machine.disk import writable
from lra_fnet.training import hosts
from lra_fnet.training.checkpoint import METRICS

# It warns of each NaN; a run that ends at one says so itself.
logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)


@contextlib.contextmanager
def metrics(folder: Path, step: int, curve: str) -> Iterator[Callable[[str, int, dict], str]]:
    """Yields (kind, step, numbers) -> curve, which logs to metrics.jsonl and to TensorBoard.

    A line is {"kind": "train" or "validation", "step": s, numbers}. When a run
    resumes at `step`, lines that were written after its checkpoint are dropped, so none appears
    twice. Only the first process writes.

    Args:
      folder: the run folder.
      step: of the state that the run goes on from.
      curve: a hash of all lines up to there, as the newest call returned it; "" without lines.

    Raises:
      UserError: the lines up to `step` are not those of the run. The disk is full; the yielded
        function raises this too.
    """
    if not hosts.first():
        yield lambda kind, step, numbers: ""
        return
    path = folder / METRICS
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    # A killed process may leave half a line at the end; it is later than `step` too.
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    curves = list(itertools.accumulate(lines, _extended, initial=""))
    if curve not in curves:
        raise UserError(
            f"{path} has changed: it lacks the curve of the run up to step {step}; restore it from "
            "a copy, or train again with --force"
        )
    with writable(folder):
        disk.replace(path, "".join(lines[: curves.index(curve)]))
        file = open(path, "a", buffering=1)  # noqa: SIM115 (closed below)
        if not step:  # there may be one of a start that was given up
            shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        (folder / "tensorboard").mkdir(exist_ok=True)
        board = EventsWriter(str(folder / "tensorboard/events"))
        if step:  # TensorBoard leaves out later lines of the files before
            restart = SessionLog(status=SessionLog.START)
            board.write_event(Event(step=step + 1, session_log=restart))

    def write(kind: str, step: int, numbers: dict) -> str:
        nonlocal curve
        line = json.dumps({"kind": kind, "step": step, **numbers}) + "\n"
        curve = _extended(curve, line)
        with writable(folder):
            file.write(line)
            for name, value in numbers.items():
                summary, now = scalar(f"{kind}/{name}", value), time.time()
                board.write_event(Event(step=step, summary=summary, wall_time=now))
            if kind == "validation":  # rarely: a flush waits for the disk
                board.flush()
        return curve

    try:
        yield write
    finally:
        with writable(folder):
            file.close()
            board.close()


def _extended(curve: str, line: str) -> str:
    """Returns the hash of all lines so far and one more."""
    return hashlib.sha256((curve + line).encode()).hexdigest()
