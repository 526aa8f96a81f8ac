"""From a split in memory to batches on the devices: index arithmetic, no state.

Row order is a pure function of (seed, epoch), so a resumed run sees the same rows as an
uninterrupted one. Every batch has the task's full length; the jitted step makes token ids and the
padding mask (`Task.tokens`), so a token takes one byte until then.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lra_fnet.errors import UserError
from lra_fnet.tasks import Arrays

WHOLE, ROWS = PartitionSpec(), PartitionSpec("data")  # on every device; B over the devices


class Batch(NamedTuple):
    """Stored rows; in a dispatch every field has an axis of steps before B."""

    values: np.ndarray  # uint8 or uint16 [B, L], [B, 2, L] for two texts
    lengths: np.ndarray  # int32 [B], [B, 2] for two texts
    labels: np.ndarray  # int32 [B]
    numbers: np.ndarray  # int32 [B], the rows' numbers in their split
    valid: np.ndarray  # bool [B], False marks the filler rows of an evaluation's last batch


@functools.lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, num_rows: int) -> np.ndarray:
    """Returns the row order of one epoch, int64 [num_rows]: a pure function of its arguments."""
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def row_indices(seed: int, start: int, count: int, num_rows: int) -> np.ndarray:
    """Returns the rows at places start .. start + count of the endless stream, int64 [count]."""
    first, offset = divmod(start, num_rows)
    epochs = range(first, -(-(start + count) // num_rows))
    stream = np.concatenate([epoch_order(seed, epoch, num_rows) for epoch in epochs])
    return stream[offset : offset + count]


def train_batches(
    arrays: Arrays, seed: int, step: int, num_steps: int, batch_size: int, capacity: int
) -> Batch:
    """Returns the batches of steps step .. step + num_steps, [capacity, B, ...].

    Entries beyond num_steps are zeros: all dispatches have one shape, so there is one compiled
    program. The capacity is at least two: XLA drops the indexing of a single batch and then fuses
    the step differently, which changes the last bits.
    """
    capacity = max(2, capacity)
    valid = np.ones((capacity, batch_size), bool)  # first: fails at once if no memory holds it
    rows = row_indices(seed, step * batch_size, num_steps * batch_size, len(arrays.labels))

    def take(column):
        out = np.zeros((capacity * batch_size, *column.shape[1:]), column.dtype)
        np.take(column, rows, axis=0, out=out[: rows.size], mode="clip")  # unbuffered
        return out.reshape(capacity, batch_size, *column.shape[1:])

    numbers = np.zeros(capacity * batch_size, np.int32)
    numbers[: rows.size] = rows
    columns = take(arrays.values), take(arrays.lengths), take(arrays.labels)
    return Batch(*columns, numbers.reshape(capacity, batch_size), valid)


def eval_batches(arrays: Arrays, batch_size: int, devices: int = 1) -> Iterator[Batch]:
    """Yields every row once; row 0, marked invalid, fills up the last batch.

    The rows of a batch are in order, but several devices get as many long and short texts each:
    mixers that skip padding would let one wait for another. `in_order` undoes that.
    """
    num_rows = len(arrays.labels)
    for start in range(0, num_rows, batch_size):
        places = np.arange(start, start + batch_size)
        valid = places < num_rows
        rows = np.where(valid, places, 0)
        if devices > 1:
            lengths = arrays.lengths[rows].reshape(batch_size, -1).sum(1)
            order = np.argsort(-lengths, kind="stable").reshape(-1, devices).T.ravel()
            rows, valid = rows[order], valid[order]
        yield Batch(*arrays.take(rows), rows.astype(np.int32), valid)


def in_order(batches: Sequence[Batch], results: Sequence[Any]) -> Any:
    """Returns what was computed of the batches of `eval_batches` as one result, by row."""
    valid = np.concatenate([batch.valid for batch in batches])
    order = np.argsort(np.concatenate([batch.numbers for batch in batches])[valid])
    return jax.tree.map(lambda *parts: np.concatenate(parts)[valid][order], *results)


def make_mesh(batch_size: int, devices: Sequence[Any] = ()) -> Mesh:
    """Returns devices on one axis, "data"; the devices of a process are neighbours.

    Args:
      batch_size: examples of a batch, over all devices.
      devices: jax's; all, if none are given.

    Raises:
      UserError: if the number of devices does not divide the batch.
    """
    devices = devices or jax.devices()
    if batch_size % len(devices):
        raise UserError(
            f"Run.batch_size ({batch_size}) must be divisible by the number of devices "
            f"({len(devices)}): change it, or use fewer devices"
        )
    devices = sorted(devices, key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))


def spread(batch: Batch, mesh: Mesh, spec: PartitionSpec) -> Batch:
    """Puts a batch on the devices; each process, which has all rows, gives those of its devices."""
    sharding = NamedSharding(mesh, spec)
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, sharding, x.__getitem__), batch
    )


def per_device(function: Callable, mesh: Mesh, *specs: PartitionSpec, out=WHOLE) -> Callable:
    """Returns the function run by each device on its part of the arguments.

    Unless `out` has it by rows, its result must be equal on all devices, by collectives over
    "data". Nothing may be differentiated through it.
    """
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
