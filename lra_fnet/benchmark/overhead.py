"""What the training loop costs on top of the compiled program that it drives."""

import dataclasses
import math
import shutil
import statistics
from pathlib import Path

import jax

from lra_fnet.benchmark import timing
from lra_fnet.machine import terminal
from lra_fnet.machine.terminal import Fitted
from lra_fnet.run.job import Job
from lra_fnet.tasks import sets
from lra_fnet.training.loop import DISPATCH_SECONDS, Loop


def loop_overhead(job: Job, rounds: int, seconds: float, folder: Path) -> float:
    """Prints and returns the median ratio of steps/s, the whole loop over the bare program.

    The whole loop shuffles, copies batches to the device, logs, draws its bar and saves checkpoints
    as the preset says; evaluations do not count. The bare program is the same compiled update on
    one constant batch that is on the device already. Each round measures both, one after the
    other, so that a machine whose speed drifts affects both alike.

    Args:
      job: names the run.
      rounds: number of measurements.
      seconds: of each side of a measurement.
      folder: where each round makes a run folder.
    """
    built = job.load()
    data = sets.prepare(built.task, job.data, source=job.source)
    train, validation = map(data.arrays, built.task.splits[:2])
    rows, ratios = [], []
    for number in range(1, rounds + 1):
        run = folder / f"{job.task}.{job.model}.{number}"
        run.mkdir()
        loop = Loop(built, train, validation, run, job.seed)
        bare = _bare(loop, seconds)
        num_steps = max(2, math.ceil(bare * seconds))  # the first is not timed
        loop.run = dataclasses.replace(loop.run, num_steps=num_steps)
        loop()
        shutil.rmtree(run)
        whole = loop.history.steps_per_second
        ratios.append(whole / bare)
        rows.append([str(number), f"{bare:.2f}", f"{whole:.2f}", f"{ratios[-1]:.3f}"])
    median = statistics.median(ratios)
    rows.append(["median", "", "", f"{median:.3f}"])
    head = ["round", "bare steps/s", "loop steps/s", "ratio"]
    terminal.console().print(Fitted(head, rows, title=f"{job.task} {job.model}"))
    return median


def _bare(loop: Loop, seconds: float) -> float:
    """Returns steps/s of the compiled update on a constant batch; the loop starts anew."""
    program, capacity = loop.program, loop.run.steps_per_dispatch
    batches = program.place(loop.batches(0, capacity))
    state, count = loop.state, 1

    def call():
        nonlocal state
        state, logs = program.steps(state, batches, count)
        jax.block_until_ready(logs)

    call()  # warms up
    one = timing.time_calls([call], 0.0)["seconds"]
    count = min(capacity, max(1, int(DISPATCH_SECONDS / one)))
    timed = timing.time_calls([call], seconds)
    loop.state = program.initial_state(loop.seed)
    return count * timed["calls"] / timed["seconds"]
