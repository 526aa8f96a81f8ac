"""Trains the first steps of a run again, as `training.loop.Loop` does, and writes nothing."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lra_fnet.experiment import Experiment
from lra_fnet.tasks import Arrays
from lra_fnet.training import pipeline
from lra_fnet.training.step import Program, wait_for


def replay(
    experiment: Experiment, arrays: Arrays, seed: int, steps: int, start: dict | None = None
) -> tuple[list[float], Any]:
    """Trains the first steps of a run.

    Args:
      experiment: the run's.
      arrays: the training split.
      seed: the run's.
      steps: how many.
      start: variables of the pre-trained model that it begins from.

    Returns:
      The loss of each step, and the state after the last one.

    Raises:
      RunFailed: a step needs more memory than is free.
    """
    run = experiment.run

    def batches(step, count):
        sizes = run.batch_size, run.steps_per_dispatch
        return pipeline.train_batches(arrays, seed, step, count, *sizes)

    shapes = jax.eval_shape(lambda: batches(0, 1))
    mesh = pipeline.make_mesh(run.batch_size)
    program = Program.compile(experiment, mesh, shapes, seed)
    state, losses = program.initial_state(seed, start), []
    for step in range(0, steps, run.steps_per_dispatch):
        count = min(run.steps_per_dispatch, steps - step)
        state, logs = program.steps(state, program.place(batches(step, count)), count)
        wait_for(logs)
        losses += np.asarray(logs.loss)[:count].tolist()
    return losses, state


def mean_loss(losses: Sequence[float], end: int, every: int) -> float:
    """Returns the mean of the `every` losses before step `end`, to the bit as metrics.jsonl has it.

    From Python 3.12 on, `sum` gives other last bits than adding one by one.
    """
    total = 0.0
    for loss in losses[end - every : end]:
        total += loss
    return total / every
