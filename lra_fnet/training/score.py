"""Scoring of a split: every row counts once, at any batch size and number of devices."""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from lra_fnet import counts
from lra_fnet.objective import Objective
from lra_fnet.tasks import Arrays
from lra_fnet.training import pipeline
from lra_fnet.training.slices import rows_at_once
from lra_fnet.training.step import wait_for

MOST_CLASSES = 100  # with counts by label and answer


def outputs(objective: Objective, variables, batch):
    """Returns the objective's outputs without dropout, computed in slices (`rows_at_once`)."""
    rows = len(batch.labels)
    slice_rows = rows_at_once(objective.model, rows, batch.values.shape[1:], train=False)
    if slice_rows == rows:
        return objective.outputs(variables, batch)[0]
    slices = jax.tree.map(lambda x: x.reshape(-1, slice_rows, *x.shape[1:]), batch)
    sliced = jax.lax.map(lambda part: objective.outputs(variables, part)[0], slices)
    return jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), sliced)


def outputs_of(objective: Objective, mesh: Mesh) -> Callable:
    """Returns the function (variables, batch) -> `outputs`, of each device on its rows."""
    function = functools.partial(outputs, objective)
    if mesh.size == 1:
        return function
    return pipeline.per_device(function, mesh, pipeline.WHOLE, pipeline.ROWS, out=pipeline.ROWS)


def variation(logits: np.ndarray) -> float:
    """Returns the standard deviation over the rows over the root mean square, of [rows, C]."""
    logits = logits.astype(np.float64)
    return float(np.sqrt(logits.var(axis=0).mean() / (np.square(logits).mean() or 1.0)))


def make_scorer(
    objective: Objective, batch_size: int, mesh: Mesh | None = None
) -> Callable[..., dict]:
    """Returns the function (variables, arrays) -> {"correct", "count", "loss"}, sums over the rows.

    The sums are `objective.Sums`, whose subclasses have more. If the outputs are logits, the result
    also has their "variation". With `bits=True` it has "correct_bits": which rows are right
    (`counts.encode`) and, of logits of up to MOST_CLASSES classes, "confusion": the number of rows
    by label and answer. A third argument is called after each batch with the number of rows that
    are scored; an exception that it raises ends the scoring.

    Args:
      objective: the model and how its outputs are counted.
      batch_size: rows at a time.
      mesh: the devices that the rows of a batch are spread over; None for all, as in training,
        whose numbers come out again only with batches of the same shape.
    """
    mesh = mesh or pipeline.make_mesh(jax.device_count())

    def sums_of(variables, batch):
        found = outputs(objective, variables, batch)
        sums, right = objective.sums(found, batch)
        return sums, (right, found if isinstance(found, jax.Array) else None)

    def reduced(variables, batch):
        sums, rows = sums_of(variables, batch)
        return jax.lax.psum(sums, "data"), jax.lax.all_gather(rows, "data", tiled=True)

    total = sums_of
    if mesh.size > 1:
        total = pipeline.per_device(reduced, mesh, pipeline.WHOLE, pipeline.ROWS)

    @jax.jit
    def add(variables, batch, sums):
        batch_sums, rows = total(variables, batch)
        return sums + batch_sums, rows

    rounded = -(-batch_size // mesh.size) * mesh.size

    def score(variables, arrays: Arrays, between=lambda rows: None, *, bits=False):
        # Placed as all later ones, so that `add` is compiled once.
        sums = jax.device_put(objective.counts.zero(), NamedSharding(mesh, pipeline.WHOLE))
        batches, scored, rows = [], [], 0
        for batch in pipeline.eval_batches(arrays, rounded, mesh.size):
            before = sums
            batches.append(batch._replace(values=None))
            rows += int(batch.valid.sum())
            sums, found = add(variables, pipeline.spread(batch, mesh, pipeline.ROWS), sums)
            scored.append(found)
            wait_for(before)  # one batch in flight: a device cannot drop what is queued on it
            between(rows)
        wait_for(sums)
        result = sums.numbers()
        right, logits = pipeline.in_order(batches, scored)
        if logits is not None:
            result["variation"] = variation(logits)
        if bits:
            result["correct_bits"] = counts.encode(right)
        if bits and logits is not None and logits.shape[1] <= MOST_CLASSES:
            table = np.zeros((logits.shape[1],) * 2, np.int64)
            np.add.at(table, (arrays.labels, logits.argmax(-1)), 1)
            result["confusion"] = table.tolist()
        return result

    return score
