"""What the training loop costs on top of the compiled program that it drives."""

import dataclasses
import math
import statistics
import tempfile
import time
from pathlib import Path

import jax
from rich.table import Table

from lra_fnet.errors import UserError
from lra_fnet.machine import progress
from lra_fnet.run.job import Job
from lra_fnet.train.loop import DISPATCH_SECONDS, Loop


def loop_overhead(job: Job, rounds: int, seconds: float) -> float:
    """Prints and returns the median ratio of steps/s, the whole loop over the bare program.

    The whole loop shuffles, copies batches to the device, logs, draws its bar and saves checkpoints
    as the preset says; evaluations do not count. The bare program is the same compiled update on
    one constant batch that is on the device already. Each round measures both, one after the
    other, so that a machine whose speed drifts affects both alike.

    Raises:
      UserError: fewer than 1 round, or no time.
    """
    if rounds < 1 or seconds <= 0:
        raise UserError(f"expected at least 1 round and more than 0 s, got {rounds} and {seconds}")
    built = job.load()
    data = built.task.prepare(job.data, source=job.source)
    train, validation = map(data.arrays, built.task.splits[:2])
    table = Table("round", "bare steps/s", "loop steps/s", "ratio", title=f"{job.task} {job.model}")
    ratios = []
    for number in range(1, rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            loop = Loop(built, train, validation, Path(folder), job.seed)
            bare = _bare(loop, seconds)
            loop.run = dataclasses.replace(loop.run, num_steps=math.ceil(bare * seconds))
            loop()
        whole = loop.history.timed_steps / loop.history.timed_seconds
        ratios.append(whole / bare)
        table.add_row(str(number), f"{bare:.2f}", f"{whole:.2f}", f"{ratios[-1]:.3f}")
    median = statistics.median(ratios)
    table.add_row("median", "", "", f"{median:.3f}")
    progress.console.print(table)
    return median


def _bare(loop: Loop, seconds: float) -> float:
    """Returns steps/s on a constant batch, at most one dispatch ahead; the loop starts anew."""
    program, capacity = loop.program, loop.run.steps_per_dispatch
    batches = program.place(loop.batches(0, capacity))
    state, begun = loop.state, 0.0
    for _ in range(2):  # the first one warms up
        begun = time.perf_counter()
        state, table = program.steps(state, batches, 1)
        jax.block_until_ready(table)
    count = min(capacity, max(1, int(DISPATCH_SECONDS / (time.perf_counter() - begun))))
    steps, begun, before = 0, time.perf_counter(), None
    while time.perf_counter() - begun < seconds:
        state, table = program.steps(state, batches, count)
        jax.block_until_ready(before)
        before, steps = table, steps + count
    jax.block_until_ready(before)
    rate = steps / (time.perf_counter() - begun)
    loop.state = program.initial_state(loop.seed)
    return rate
