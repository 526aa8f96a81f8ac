"""Reformer: attention among tokens that hash alike (Kitaev et al., arXiv:2001.04451, Sec. 2).

K is the width of one head, H the number of heads, R that of hash rounds, b that of buckets, c the
size of a chunk. Queries and keys share one projection. The largest arrays have L * R * 2c entries
(logits) and L * R * b / 2 (hashing); sorting takes L log L comparisons.
"""

import functools
from typing import Annotated, Any

import gin
import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.models.kernels import blocks
from lra_fnet.models.mixer import HeadMixer, drawn
from lra_fnet.settings import Least

SELF_PENALTY = 1e5  # the paper's App. A: large but finite, on a token's logit to itself


def hash_buckets(query_key, rotations):
    """Hashes by angle: h(x) = argmax([x W; -x W]) (the paper's Sec. 2, after arXiv:1509.02897).

    Args:
      query_key: [B, L, H, K]; only the directions matter.
      rotations: W, [H, R, K, b / 2], entries N(0, 1).

    Returns:
      Buckets int32 [B, H, R, L], 0 .. b - 1; no gradient.
    """
    x = lax.stop_gradient(query_key)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    rotated = jnp.einsum("blhd,hrdm->hblrm", x, rotations.astype(x.dtype), precision="highest")
    # Finds the entry farthest from 0, and its sign; on a CPU three times as fast as argmax.
    half = rotated.shape[-1]
    high, low = (f(axis=-1, keepdims=True) for f in (rotated.max, rotated.min))
    positive = high >= -low
    entries = lax.broadcasted_iota(jnp.int32, rotated.shape, rotated.ndim - 1)
    extreme = rotated == jnp.where(positive, high, low)
    buckets = jnp.where(extreme, entries, half).min(axis=-1) + jnp.where(positive[..., 0], 0, half)
    return jnp.transpose(buckets, (1, 0, 3, 2))


def lsh_attention(
    query_key, value, mask, buckets, *, num_buckets, chunk_size, rate=0.0, rng: Any = None
):
    """Computes softmax attention of each token i to the set P_i (the paper's Eqs. 2-6 and App. A).

    In each round, tokens are sorted by (bucket, position) and cut into chunks; P_i of the round
    holds the tokens of i's bucket in i's chunk and the chunk before (Eqs. 4 and 5); P_i is their
    union (Eq. 6). Logits are q_i . k_j / sqrt(K) with k_j = q_j / |q_j|, less `SELF_PENALTY` for
    j = i, so that a token attends to itself only if P_i holds no other.

    The union is exact: each round's weights are divided by N_ij, the number of rounds whose P_i
    holds j (App. A), which follows from the buckets and chunks of i and j. The authors' code (Trax)
    omits N_ij, lets a token attend to other buckets in the two chunks, though Eq. 3 excludes them
    by m(j, P_i), and gives keys the length sqrt(K).

    Masked tokens sort after all others, and no chunk precedes the first (in the authors' code, the
    last one does). So masked tokens affect nothing, at any position and in any number.

    Args:
      query_key: q, [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at tokens that attend and may be attended to.
      buckets: int32 [B, H, R, L], 0 .. num_buckets - 1.
      num_buckets: b; (b + 1) (L + chunk_size) must be below 2^31.
      chunk_size: tokens in a chunk.
      rate: dropout probability of each weight (after the softmax, one draw a round).
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype, zeros at masked tokens; the softmax is float32 (or wider).
    """
    length, width = query_key.shape[1], query_key.shape[-1]
    rounds = buckets.shape[2]
    size = min(chunk_size, length)
    num_chunks = -(-length // size)
    wide = jnp.promote_types(query_key.dtype, jnp.float32)

    # Masked tokens have a separate last bucket: they sort after all others and meet none of them.
    padding = ((0, 0), (0, 0), (0, 0), (0, num_chunks * size - length))
    buckets = jnp.where(mask[:, None, None, :], buckets, num_buckets)
    buckets = jnp.pad(buckets, padding, constant_values=num_buckets)
    position = lax.broadcasted_iota(jnp.int32, buckets.shape, 3)
    order = jnp.sort(buckets * position.shape[-1] + position, axis=-1) % position.shape[-1]
    rank = jnp.put_along_axis(order, order, position, axis=-1, inplace=False)  # order's inverse
    # Chunks do not decrease with buckets, so places of different buckets differ by at least 2: j is
    # in the set P_i of a round exactly if its place is that of i, or one less.
    places = rank // size + 2 * buckets + 2  # a missing chunk has place 0
    chunks = (*order.shape[:3], num_chunks, size)

    def sort(x):  # [B, L, H, K] -> [B, H, R, chunks, size, K]
        x = jnp.pad(jnp.swapaxes(x, 1, 2), (*padding[:2], padding[3], (0, 0)))
        x = jnp.broadcast_to(x[:, :, None], (*order.shape, x.shape[-1]))
        return _permute(x, order, rank).reshape(*chunks, x.shape[-1])

    query, value = sort(query_key), sort(value)
    squares = jnp.square(query.astype(wide)).sum(axis=-1, keepdims=True)
    key = (query * lax.rsqrt(jnp.maximum(squares, 1e-12))).astype(query.dtype)
    key, value = _with_previous(key), _with_previous(value)

    def member(places):  # [B, H, 1 or R, L'] -> bool [B, H, R, chunks, size, 2 size]
        places = jnp.broadcast_to(places, order.shape)
        i = jnp.take_along_axis(places, order, axis=-1).reshape(*chunks, 1)
        difference = i - jnp.swapaxes(_with_previous(i), -1, -2)
        return (difference == 0) | (difference == 1)

    seen = member(places)
    count = sum(member(places[:, :, r : r + 1]).astype(wide) for r in range(rounds))
    itself = jnp.eye(size, 2 * size, size, dtype=bool).reshape(1, 1, 1, 1, size, 2 * size)
    logits = blocks.products(query * width**-0.5, key)
    logits = jnp.where(itself, logits - SELF_PENALTY, logits)
    count = jnp.maximum(count, 1)
    weights, total, top = blocks.soften(  # no total is 0: every row has its own token
        logits, seen, value.dtype, count=count, rate=rate, rng=rng
    )
    out = blocks.weighted(weights, value, value.dtype) / total

    def unsort(x):  # [B, H, R, chunks, size, K] -> [B, H, R, L', K]
        return _permute(x.reshape(*order.shape, x.shape[-1]), rank, order)

    # App. A: rounds are weighted by exp(z_r - z), their normalisers over that of the union.
    share = jax.nn.softmax(unsort(top + jnp.log(total)), axis=2)
    out = (share * unsort(out)).sum(axis=2)[:, :, :length]
    return jnp.where(mask[:, :, None, None], jnp.swapaxes(out, 1, 2), 0).astype(value.dtype)


@jax.custom_vjp
def _permute(x, order, inverse):
    """Gathers rows x[..., order, :] of [B, H, R, L, K], with a gather, not a scatter, as gradient.

    Reverse-mode derivatives only.
    """
    return jnp.take_along_axis(x, order[..., None], axis=-2)


_permute.defvjp(
    lambda x, order, inverse: (_permute(x, order, inverse), (order, inverse)),
    lambda orders, cotangent: (_permute(cotangent, orders[1], orders[0]), None, None),
)


def _with_previous(x):
    """Prepends the previous chunk, or zeros: [B, H, R, N, c, K] -> [B, H, R, N, 2c, K]."""
    before = jnp.pad(x[:, :, :, :-1], ((0, 0),) * 3 + ((1, 0), (0, 0), (0, 0)))
    return jnp.concatenate([before, x], axis=-2)


@gin.configurable
class Reformer(HeadMixer):
    """LSH attention with one projection for queries and keys; bidirectional; padding is masked.

    The rotations are a pure function of (seed, layer), different for each head, so checkpoints do
    not hold them. The authors' code draws new ones at every call: `redraw` does so at every
    training step, from the "dropout" stream; evaluation always uses the draw of (seed, layer).
    """

    num_hashes: Annotated[int, Least(1, suggest=4)]  # R
    num_buckets: Annotated[int, Least(2, suggest=64, multiple=2)]  # b
    chunk_size: Annotated[int, Least(1, suggest=64)]  # tokens
    redraw: bool
    seed: Annotated[int, Least(0, suggest=0, below=2**32)]

    def mix(self, x, mask, *, train):
        """See `HeadMixer.mix`; queries are keys."""
        query_key, value = self.heads(x, "query_key"), self.heads(x, "value")
        buckets = hash_buckets(query_key, self.rotations(query_key.shape[-1], train=train))
        sizes = {"num_buckets": self.num_buckets, "chunk_size": self.chunk_size}
        dropout = self.weight_dropout(train)
        return lsh_attention(query_key, value, mask, buckets, **sizes, **dropout), value

    def rotations(self, width, *, train) -> jax.Array:
        """Returns W [H, R, K, b / 2] of this layer for heads of this width."""
        shape = (self.num_heads, self.num_hashes, width, self.num_buckets // 2)
        draw = functools.partial(jax.random.normal, shape=shape, dtype=jnp.float32)
        return drawn(self, draw, train=train)
