"""Softmax attention (Vaswani et al., arXiv:1706.03762, Sec. 3.2), three ways to compute it.

K is the width of one head, H the number of heads. `naive`, `blockwise` and `fused` map query, key,
value [B, L, H, K] and a mask bool [B, L] of the keys to [B, L, H, K]. A row whose keys are all
masked gives zeros.
"""

import functools
from typing import Annotated, ClassVar, Literal

import gin
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.machine.device import cores_of_device
from lra_fnet.models.kernels import blocks, fastest, tiles
from lra_fnet.models.kernels.pointwise import part, part_of_batch
from lra_fnet.models.kernels.tiles import Tile
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.settings import Least

TILES = {"small": Tile(queries=128, keys=512), "large": Tile(queries=256, keys=1024)}
# Entries of all weights [B, H, L, L]: more do not stay in a CPU's caches; fewer take no time.
CACHED, MEASURED = 1 << 20, 1 << 18


def naive(query, key, value, mask, *, rate=0.0, rng=None):
    """Computes softmax(Q K^T / sqrt(K)) V with all [B, H, L, L] weights in memory.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      rate: dropout probability of each weight (after the softmax, one draw for each weight).
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype; the softmax is float32 (or wider).
    """
    query, key, value = (jnp.swapaxes(a, 1, 2) for a in (query, key, value))
    scores = blocks.products(query * query.shape[-1] ** -0.5, key)
    return jnp.swapaxes(weigh(scores, mask[:, None, None, :], value, rate=rate, rng=rng), 1, 2)


def blockwise(
    query, key, value, mask, *, block_size, tile="small", rate=0.0, rng=None, padding_unread=False
) -> jax.Array:
    """Computes `naive` for at most `block_size` queries at a time: memory grows as L, not as L^2.

    A CPU takes one head of one text at a time, so that a block of weights stays in its caches:
    without dropout in tiles that skip padding (see `tiles.attend`), else as others do in blocks of
    queries (see `by_rows`), with other bits of dropout than `naive`.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      block_size: queries at a time, at most.
      tile: the name of one in TILES.
      rate: dropout probability of each weight (after the softmax, one draw for each weight).
      rng: key of the dropout; needed if rate > 0.
      padding_unread: whether queries behind the last True of a mask may give zeros.

    Returns:
      [B, L, H, K] in value's dtype.
    """
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu and rate == 0:
        queries, keys = TILES[tile]
        size = Tile(min(block_size, queries), keys)
        return tiles.attend(query, key, value, mask, tile=size, padding_unread=padding_unread)

    def over(query, key, value, mask, rng):
        rows, key = (jnp.swapaxes(a, 1, 2) for a in (query, key))

        def logits(block, key):
            return blocks.products(block * block.shape[-1] ** -0.5, key)

        return by_rows(rows, logits, key, value, mask, block_size=block_size, rate=rate, rng=rng)

    if not on_cpu:
        return over(query, key, value, mask, rng)
    texts, length, heads, _ = value.shape
    index = part()
    texts_before = 0 if index is None else index * np.uint32(texts)

    def over_one(numbered):
        number, mask, *arrays = numbered
        query, key, value = (a[None, :, None] for a in arrays)
        head_rng = None if rng is None else jax.random.fold_in(rng, number % heads)
        with part_of_batch(texts_before + number // heads):
            return over(query, key, value, mask[None], head_rng)[0, :, 0]

    numbers = jnp.arange(texts * heads, dtype=jnp.uint32)
    arrays = (jnp.swapaxes(a, 1, 2).reshape(-1, *a.shape[1::2]) for a in (query, key, value))
    out = lax.map(over_one, (numbers, jnp.repeat(mask, heads, axis=0), *arrays))
    return jnp.swapaxes(out.reshape(texts, heads, length, -1), 1, 2)


def fastest_on_cpu(shape) -> str:
    """Returns "naive" or the name of a tile, for query, key and value [B, L, H, K].

    `naive` must be measured to be 1.2 times as fast as tiles without padding, which they would
    skip, forward and backward.
    """
    if old := fastest.made().get("tiles of attention on cpu"):
        return old  # the run began when attention was always in tiles
    # Threads of several cores share a product only if it is large.
    tile = "small" if cores_of_device() == 1 else "large"
    weights = shape[0] * shape[2] * shape[1] ** 2
    if not MEASURED <= weights <= CACHED:
        return tile

    def both(attend, x):
        mask = jnp.ones(x.shape[:2], bool)
        return jax.vjp(lambda *heads: attend(*heads, mask), x, x, x)[1](x)

    in_tiles = functools.partial(tiles.attend, tile=TILES[tile])
    ways = {tile: functools.partial(both, in_tiles), "naive": functools.partial(both, naive)}
    return fastest.fastest("attention", ways, shape, tile)


def weigh(logits, valid, value, *, rate, rng):
    """Computes softmax(S) V over the valid keys.

    Args:
      logits: S, [..., Q, M], float32 or wider.
      valid: bool, broadcasts to S; False keys get no weight.
      value: V, [..., M, K].
      rate: dropout probability of each weight (after the softmax, one draw for each weight).
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [..., Q, K] in value's dtype; zeros where a row has no valid key.
    """
    weights, total, _ = blocks.soften(logits, valid, value.dtype, rate=rate, rng=rng)
    out = blocks.weighted(weights, value, value.dtype)
    return (out / jnp.where(total > 0, total, 1)).astype(value.dtype)


def by_rows(rows, logits, shared, value, mask, *, block_size, rate=0.0, rng=None, weigh=weigh):
    """Computes softmax(S) V, or another `weigh`, with at most `block_size` rows of S at a time.

    The backward pass computes each block again, so it holds no more than the forward pass. The
    length need not be a multiple of the block.

    Args:
      rows: tree of arrays [B or 1, H, L, any width]; row i of S is computed from their rows i.
      logits: function of a block of `rows` [.., Q, ..] and of `shared` -> S [B or 1, H, Q, L],
        float32 or wider. It closes over no array in bfloat16.
      shared: tree of arrays that all blocks use. Their gradients, and value's, are sums over blocks
        and are added in float32 or wider.
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      block_size: largest Q.
      rate: dropout probability of each weight (after the softmax, one draw for each weight).
      rng: key of the dropout, folded with the block's number; needed if rate > 0.
      weigh: computes the result of a block, with the arguments of `weigh`.

    Returns:
      [B, L, H, K] in value's dtype; zeros where a text has no key.
    """
    length, value = value.shape[1], jnp.swapaxes(value, 1, 2)
    num_blocks = -(-length // block_size)
    size = -(-length // num_blocks)  # blocks of nearly equal length, so little is wasted

    def split(x):
        return jnp.moveaxis(blocks.cut(x, size, num_blocks), 2, 0)

    dtypes = jax.tree.map(lambda x: x.dtype, (shared, value))
    wide = jax.tree.map(
        lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), (shared, value)
    )

    def attend(numbered_block):
        number, block = numbered_block
        shared, value = jax.tree.map(lambda x, dtype: x.astype(dtype), wide, dtypes)
        block_rng = None if rng is None else jax.random.fold_in(rng, number)
        scores = logits(block, shared)
        return weigh(scores, mask[:, None, None, :], value, rate=rate, rng=block_rng)

    # Inside a scan nothing can be merged with the recomputation, so prevent_cse is not needed.
    attend = jax.checkpoint(attend, prevent_cse=False)
    out = lax.map(attend, (jnp.arange(num_blocks), jax.tree.map(split, rows)))
    return jnp.swapaxes(blocks.flat(jnp.moveaxis(out, 0, 2), length), 1, 2)


def fused(query, key, value, mask, *, backend: Literal["cudnn", "xla"] = "cudnn"):
    """Computes `naive` by cuDNN flash attention, one GPU kernel without weights or dropout.

    cuDNN takes lengths, not masks: the True entries of each mask row must come first, as they do
    for padding at the end (`experiment.build` refuses other padding). It needs an NVIDIA GPU and
    bfloat16. `backend="xla"` is for tests.
    """
    lengths = mask.sum(axis=1).astype(jnp.int32)
    out = jax.nn.dot_product_attention(
        query, key, value, key_value_seq_lengths=jnp.maximum(lengths, 1), implementation=backend
    )
    return jnp.where((lengths > 0)[:, None, None, None], out, 0)


@gin.configurable
class Attention(HeadMixer):
    """Multi-head softmax attention with LRA's projections (see `HeadMixer`).

    Raises:
      UserError: on a call, if "fused" attention cannot run.
    """

    implementation: Literal["naive", "blockwise", "fused"]
    # Queries at a time, for "blockwise"; affects memory and speed only.
    block_size: Annotated[int, Least(1, suggest=256)]

    equivariant: ClassVar[bool] = True
    uses_first_only: ClassVar[bool] = True

    @property
    def growth(self) -> tuple[float, float]:
        """Only the naive implementation holds all weights."""
        return 2, 2 if self.implementation == "naive" else 1

    def attend(self, query, key, value, mask, *, train):
        """See `naive`, which computes one query; dropout on the weights in training."""
        backend, dtype = jax.default_backend(), query.dtype
        usable = (backend, dtype, self.dropout) == ("gpu", jnp.bfloat16, 0)
        if self.implementation == "fused" and not usable:
            raise UserError(
                "fused attention needs an NVIDIA GPU, Encoder.dtype = 'bfloat16' and "
                f"Encoder.attention_dropout = 0, got a {backend}, {dtype} and {self.dropout}: "
                "set these, or Attention.implementation = 'blockwise'"
            )
        dropout = self.weight_dropout(train)
        way, shape = self.implementation, value.shape
        tiled = way == "blockwise" and backend == "cpu" and dropout["rate"] == 0
        if query.shape[1] == 1:  # one row of weights
            way = "naive"
        elif tiled and not self.is_initializing():
            way = fastest.decide(
                "attention " + "x".join(map(str, shape)), lambda: fastest_on_cpu(shape)
            )
        if way == "naive":
            return naive(query, key, value, mask, **dropout)
        if way == "fused":
            return fused(query, key, value, mask)
        settings = {"block_size": self.block_size, "padding_unread": self.padding_unread}
        tile = way if way in TILES else "small"
        return blockwise(query, key, value, mask, tile=tile, **settings, **dropout)
