"""Several devices: strong and weak scaling of the update, its loss and its all-reduces.

A separate process measures each number of devices and sees only these: the first GPUs, or simulated
CPU devices. Strong scaling splits the batch (the preset's, or that of --tokens) over the devices;
weak scaling gives as many rows to each of them.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from lra_fnet.benchmark.cells import Cell, Worker
from lra_fnet.benchmark.files import Scaling
from lra_fnet.errors import UserError
from lra_fnet.machine import progress

STEPS = 7  # after which the losses are compared; two of them warm up


def run(
    cell: Cell,
    devices: Sequence[int],
    rounds: int,
    save: Callable[[list[Scaling]], None],
) -> list[Scaling]:
    """Measures each number of devices; calls `save` with all rows so far after each.

    Each row is timed `rounds` times.

    Raises:
      UserError: a number of devices does not divide the batch; the cell cannot be built or needs
        more memory than there is.
    """
    batch_size = cell.load().run.batch_size
    if wrong := [number for number in devices if batch_size % number]:
        raise UserError(
            f"--devices expects numbers that divide Run.batch_size ({batch_size}), got {wrong[0]}"
        )
    plan = [Scaling("strong", number, batch_size) for number in devices]
    plan += [Scaling("weak", number, batch_size * number) for number in devices if number > 1]
    rows: list[Scaling] = []
    with progress.Bar("scaling", len(plan), unit="programs") as bar:
        for row in plan:
            overrides = (*cell.overrides, f"Run.batch_size={row.batch_size}")
            changed = dataclasses.replace(cell, overrides=overrides, devices=row.devices, tokens=0)
            rows.append(dataclasses.replace(row, **measure(changed, rounds)))
            save(rows)
            bar.update(len(rows))
    return rows


def measure(cell: Cell, rounds: int) -> dict[str, Any]:
    """Returns what a row measures; nothing if the machine has fewer devices than the cell.

    Raises:
      UserError: the cell does not fit.
    """
    with contextlib.closing(Worker(cell)) as child:
        child.ready()
        too_large = UserError(
            f"{cell.model} on {cell.devices} devices does not fit: take a smaller batch"
        )
        if child.facts["state"] == "OOM":
            raise too_large
        if child.facts["state"] == "ABSENT":
            return {}
        facts = child.ask({"steps": STEPS - 2})
        timed = [child.ask({"seconds": cell.seconds}) for _ in range(rounds)]
        if any("state" in reply for reply in (facts, *timed)):
            raise too_large
    return {
        "steps_per_second": tuple(reply["calls"] / reply["seconds"] for reply in timed),
        **facts,
        "platform": child.facts["device"]["platform"],
    }
