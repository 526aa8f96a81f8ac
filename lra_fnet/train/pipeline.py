"""From a split in memory to batches: index arithmetic, no state.

Row order is a pure function of (seed, epoch), so a resumed run sees the rows that an uninterrupted
one sees. Every batch has the task's full length; token ids and the padding mask are made from it
inside the jitted step (`tokens`), so that a row costs one byte a token until then.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet.tasks import Arrays

WHOLE = slice(None)  # all rows of a batch


class Batch(NamedTuple):
    """Rows as they travel to the device; a leading axis of steps may stand before B."""

    values: np.ndarray  # uint8 [B, L], [B, 2, L] for two texts
    lengths: np.ndarray  # int32 [B], [B, 2] for two texts
    labels: np.ndarray  # int32 [B]
    valid: np.ndarray  # bool [B], False marks the filler rows of an evaluation's last batch


def tokens(values, lengths, zero_is_padding):
    """Token ids and mask inside a jitted function: id = value + 1 at real positions, else 0.

    With `zero_is_padding` (LRA's code on images) id = value, and id 0 is padding anywhere.

    values uint8 [..., L], lengths int32 [...] -> ids int32 [..., L], mask bool [..., L].
    """
    positions = jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    mask = positions < lengths[..., None]
    ids = jnp.where(mask, values.astype(jnp.int32) + (0 if zero_is_padding else 1), 0)
    return ids, ids > 0


@functools.lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, num_rows: int) -> np.ndarray:
    """Row order of one epoch, int64 [num_rows]: a pure function of its arguments."""
    return np.random.default_rng([seed, epoch]).permutation(num_rows)


def row_indices(seed: int, start: int, count: int, num_rows: int) -> np.ndarray:
    """Rows number start .. start + count of the endless stream of epochs, int64 [count]."""
    parts = []
    while count > 0:
        epoch, offset = divmod(start, num_rows)
        part = epoch_order(seed, epoch, num_rows)[offset : offset + count]
        parts.append(part)
        start, count = start + len(part), count - len(part)
    return np.concatenate(parts)


def train_batches(
    arrays: Arrays,
    seed: int,
    step: int,
    num_steps: int,
    batch_size: int,
    capacity: int,
    share: slice = WHOLE,
) -> Batch:
    """Batches of steps step .. step + num_steps, [capacity, B, ...].

    Room beyond num_steps is left as zeros: one shape for every dispatch, so one compiled program.
    With a share only those rows of each batch are made.
    """
    rows = row_indices(seed, step * batch_size, num_steps * batch_size, len(arrays.labels))
    rows = rows.reshape(num_steps, batch_size)[:, share]
    held = rows.shape[1]

    def take(column):
        out = np.zeros((capacity * held, *column.shape[1:]), column.dtype)
        np.take(column, rows.ravel(), axis=0, out=out[: rows.size])
        return out.reshape(capacity, held, *column.shape[1:])

    valid = np.ones((capacity, held), bool)
    return Batch(take(arrays.values), take(arrays.lengths), take(arrays.labels), valid)


def eval_batches(arrays: Arrays, batch_size: int, share: slice = WHOLE) -> Iterator[Batch]:
    """Every row once, in order; the last batch is filled up with copies of row 0, marked.

    With a share only those rows of each batch are made.
    """
    num_rows = len(arrays.labels)
    for start in range(0, num_rows, batch_size):
        places = np.arange(start, start + batch_size)[share]
        valid = places < num_rows
        rows = np.where(valid, places, 0)
        yield Batch(arrays.values[rows], arrays.lengths[rows], arrays.labels[rows], valid)
