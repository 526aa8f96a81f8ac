"""BigBird: window, global and random blocks (Zaheer et al., arXiv:2007.14062, Sec. 2 and App. D).

The internal construction (ITC): global blocks are blocks of the text. K is the width of one head,
H the number of heads, N the number of blocks, S the positions in one. Linear in L: no array has
L x L entries.
"""

import functools
from typing import Annotated, ClassVar

import gin
import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet.models.kernels import blocks
from lra_fnet.models.mixer import HeadMixer, draw_once
from lra_fnet.settings import Least


def draw_blocks(uniform):
    """Chooses r different blocks for each of M query blocks, outside its window of three.

    Args:
      uniform: numbers [H, M, r] in [0, 1), one per choice; uniform ones make all choices equally
        likely.

    Returns:
      int32 [H, M, r] of 0 .. M - 1; -1 where no block is left.
    """
    heads, num_blocks, num_random = uniform.shape
    window = np.arange(num_blocks)[:, None] + np.arange(-1, 2)[None]
    window = np.where((window >= 0) & (window < num_blocks), window, num_blocks)  # M: none
    taken = np.broadcast_to(np.sort(window, axis=1), (heads, num_blocks, 3))
    picks = np.empty((heads, num_blocks, num_random), np.int32)
    for slot in range(num_random):
        left = num_blocks - (taken < num_blocks).sum(axis=2)
        pick = np.floor(uniform[..., slot] * left).astype(np.int32)  # rank among the blocks left
        for column in range(taken.shape[2]):
            pick += pick >= taken[..., column]
        picks[..., slot] = np.where(left > 0, pick, -1)
        pick = np.where(left > 0, pick, num_blocks)[..., None]
        taken = np.sort(np.concatenate([taken, pick], axis=2), axis=2)
    return picks


def bigbird_attention(
    query, key, value, mask, *, block_size, num_blocks, first, stop, picks, rate=0.0, rng=None
):
    """Computes softmax attention of block i to i - 1, i, i + 1, the global and its random blocks.

    The blocks before `first` and from `stop` on are global; they see every block. A block in two of
    these sets counts once.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      block_size: S.
      num_blocks: N; N S is at least L, and positions from L on are padding.
      first: the first block that is not global.
      stop: the first global block after it; N if there is none.
      picks: int [H, stop - first, r], random blocks of each block that is not global, counted from
        `first` and outside its window; -1 for none.
      rate: dropout probability of each weight.
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype; zeros where a query has no key.
    """
    length, dtype = query.shape[1], value.dtype
    rngs = blocks.split(rng, 4)
    arrays = blocks.heads_first(query, key, value, mask)
    arrays = [blocks.cut(a, block_size, num_blocks) for a in arrays]
    query, *keys = (blocks.flat(a) for a in arrays)
    ends = first * block_size, stop * block_size
    rows, *few = (
        jnp.concatenate([a[:, :, : ends[0]], a[:, :, ends[1] :]], axis=2) for a in (query, *keys)
    )
    pieces = []
    if few[0].shape[2]:
        rows = blocks.combine([blocks.attend(rows, *keys, rate=rate, rng=rngs[0])], dtype)
        pieces = [rows[:, :, : ends[0]], rows[:, :, ends[0] :]]
    if first < stop:
        inner, *keys = (a[:, :, first:stop] for a in arrays)
        near = [blocks.around(a, 1, 1) for a in keys]
        parts = [blocks.flat(blocks.attend(inner, *near, rate=rate, rng=rngs[1]))]
        if picks.shape[2]:
            far = [_gather(a, picks) for a in keys]
            far[2] &= jnp.repeat(picks >= 0, block_size, axis=2)[None, ..., None]
            parts.append(blocks.flat(blocks.attend(inner, *far, rate=rate, rng=rngs[2])))
        if few[0].shape[2]:
            middle = query[:, :, ends[0] : ends[1]]
            parts.append(blocks.attend(middle, *few, rate=rate, rng=rngs[3]))
        pieces.insert(1, blocks.combine(parts, dtype))
    out = jnp.concatenate(pieces, axis=2)
    return jnp.swapaxes(out[:, :, :length], 1, 2)


def _gather(x, picks):
    """Gathers each head's blocks at `picks`: [B, H or 1, M, S, K] -> [B, H, M, r S, K].

    The gradient of a block is summed by gathers, reader by reader: a scatter adds in no fixed order
    on a GPU.
    """
    batch, _, num_blocks, size, width = x.shape
    heads, _, num_random = picks.shape
    rows = np.maximum(picks, 0) + num_blocks * np.arange(heads)[:, None, None]
    rows = rows.reshape(-1)
    order = np.argsort(rows, kind="stable")
    number = np.bincount(rows, minlength=heads * num_blocks)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(number) - number, number)
    # int32 [H M, most]: where in the rows each block is; their number fills up.
    readers = np.full((heads * num_blocks, number.max()), len(rows), np.int32)
    readers[rows[order], place] = order

    @jax.custom_vjp
    def take(x):
        return jnp.take(x, rows, axis=1, mode="clip")

    def backward(_, cotangent):
        taken = (
            jnp.take(cotangent, column, axis=1, mode="fill", fill_value=0) for column in readers.T
        )
        return (functools.reduce(jnp.add, taken),)

    take.defvjp(lambda x: (take(x), None), backward)
    x = jnp.broadcast_to(x, (batch, heads, num_blocks, size, width))
    x = take(x.reshape(batch, heads * num_blocks, size, width))
    return x.reshape(batch, heads, num_blocks, num_random * size, width)


@gin.configurable
class BigBird(HeadMixer):
    """Attends to a window of three blocks, to global and to random blocks; LRA's projections.

    The blocks are laid out over max_len positions, so they do not depend on padding. The random
    blocks are a pure function of (seed, layer), one draw for each head as in the authors' code, so
    checkpoints do not hold them. They are drawn from the whole text; for the lengths of the paper's
    experiments the authors' code draws them from the first 1024 positions only. Where no more
    blocks are left than random ones, a query sees them all, and attention is full.
    """

    block_size: Annotated[int, Least(1, suggest=64)]  # S, positions
    num_random: Annotated[int, Least(0, suggest=3)]  # r, blocks
    num_global: Annotated[int, Least(0, suggest=1)]  # blocks at the start
    last_is_global: bool  # whether the last block of the max_len positions is global too
    seed: Annotated[int, Least(0, suggest=0, below=2**32)]

    bound_to_max_len: ClassVar[bool] = True

    def attend(self, query, key, value, mask, *, train):
        """See `bigbird_attention`; dropout on the weights in training."""
        size = min(self.block_size, self.max_len)
        num_blocks = -(-self.max_len // size)
        first = min(self.num_global, num_blocks)
        stop = max(first, num_blocks - self.last_is_global)
        num_random = min(self.num_random, max(stop - first - 2, 0))  # a window has at least two
        shape = (self.num_heads, stop - first, num_random)
        draw = functools.partial(jax.random.uniform, shape=shape, dtype=jnp.float32)
        picks = draw_blocks(draw_once(draw, self.seed, self.layer).astype(np.float64))
        layout = {"block_size": size, "num_blocks": num_blocks, "first": first, "stop": stop}
        dropout = self.weight_dropout(train)
        return bigbird_attention(query, key, value, mask, picks=picks, **layout, **dropout)
