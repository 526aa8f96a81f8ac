"""Softmax attention in blocks of neighbouring positions, shared by the sparse patterns.

K is the width of one head, H the number of heads, N the number of blocks, S the positions in one.
Heads come before positions here: [B, H, L, K], and in blocks [B, H, N, S, K]. A mask of keys has
the same axes with H = K = 1, so it is cut and shifted as the keys are.

The keys of a query may be in several parts (its window, global keys, random blocks) with different
layouts. `attend` computes one part and `combine` joins them into one softmax over all keys. The
parts must be disjoint: a key in two of them counts twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.models.kernels.pointwise import dropout


class Part(NamedTuple):
    """Attention of queries [..., Q, K] to some of their keys, before the division.

    With s the scores of these keys and peak = max s, the weights are exp(s - peak).
    """

    numerator: jax.Array  # weighted sum of the values, [..., Q, K], float32 or wider
    total: jax.Array  # sum of the weights, [..., Q, 1]; 0 where no key is valid
    peak: jax.Array  # [..., Q, 1]


def attend(query, key, value, mask, *, allowed=None, rate, rng) -> Part:
    """Computes one part of softmax(Q K^T / sqrt(K)) V.

    Args:
      query: [..., Q, K].
      key: [..., M, K], with the leading axes of the query.
      value: [..., M, K].
      mask: bool [..., M, 1], True at keys that may be attended to.
      allowed: bool [..., Q, M], the pattern; None for every pair.
      rate: dropout probability of each weight (after the softmax, one draw for each weight).
      rng: key of the dropout; needed if rate > 0.

    Returns:
      A part; the exponentials and their sum are float32 (or wider).
    """
    valid = jnp.swapaxes(mask, -1, -2)
    if allowed is not None:
        valid = valid & allowed
    scores = products(query * query.shape[-1] ** -0.5, key)
    weights, total, peak = soften(scores, valid, value.dtype, rate=rate, rng=rng)
    return Part(weighted(weights, value, scores.dtype), total, peak)


def products(rows, columns) -> jax.Array:
    """Multiplies rows [..., Q, K] and columns [..., M, K] -> [..., Q, M], float32 or wider.

    See `weighted` for the gradient.
    """
    dtype = jnp.promote_types(rows.dtype, jnp.float32)
    return _multiply("...qk,...mk->...qm", rows, columns, dtype)


def weighted(weights, value, dtype) -> jax.Array:
    """Sums values: weights [..., Q, M] and value [..., M, K] -> [..., Q, K] in dtype.

    The gradient of the value, W^T G, and that of the columns in `products` are computed as
    (G^T W)^T if both arrays have the same leading axes: where many rows are contracted, XLA's CPU
    product takes ten times as long with the wide array first. Reverse-mode derivatives only.
    """
    return _multiply("...qm,...mk->...qk", weights, value, dtype)


def _multiply(axes, left, right, dtype):
    plain = left.shape[:-2] != right.shape[:-2]
    product = _einsum if plain else _product
    return jnp.asarray(product(axes, dtype, left, right))


def _einsum(axes, dtype, left, right):
    return jnp.einsum(axes, left, right, preferred_element_type=dtype)


_product = jax.custom_vjp(_einsum, nondiff_argnums=(0, 1))


def _product_backward(axes, dtype, kept, cotangent):
    (first, second), third = axes.split("->")[0].split(","), axes.split("->")[1]
    left, right = kept
    slope = jnp.einsum(f"{third},{second}->{first}", cotangent, right)
    wide, narrow = (cotangent, left) if "m" in third else (left, cotangent)
    other = lax.optimization_barrier(jnp.einsum("...qk,...qm->...km", narrow, wide))
    return slope.astype(left.dtype), jnp.swapaxes(other, -1, -2).astype(right.dtype)


_product.defvjp(
    lambda axes, dtype, *arrays: (_product(axes, dtype, *arrays), arrays), _product_backward
)


def soften(scores, valid, dtype, *, count=None, rate, rng):
    """Computes the weights exp(scores - peak) of a softmax, which are not yet divided by their sum.

    Args:
      scores: [..., Q, M], float32 or wider.
      valid: bool, broadcasts to the scores; False keys get no weight.
      dtype: of the weights.
      count: divides the weights, [..., Q, M]; None for 1.
      rate: dropout probability of each weight (one draw for each).
      rng: key of the dropout; needed if rate > 0.

    Returns:
      the weights [..., Q, M] after dropout, their sum before it and the largest score,
      [..., Q, 1] each. Without a valid key the sum is 0.
    """
    scores = jnp.where(valid, scores, jnp.finfo(scores.dtype).min)
    peak = lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.where(valid, jnp.exp(scores - peak), 0)
    if count is not None:
        weights = weights / count
    total = weights.sum(axis=-1, keepdims=True)
    if rate > 0:
        weights = dropout(weights, rng, rate)
    return weights.astype(dtype), total, peak


def combine(parts, dtype) -> jax.Array:
    """Joins parts into one softmax over all keys, [..., Q, K] in dtype; zeros without a key."""
    peak = parts[0].peak
    for part in parts[1:]:
        peak = jnp.maximum(peak, part.peak)
    scales = [jnp.exp(part.peak - peak) for part in parts]
    numerator = sum(scale * part.numerator for scale, part in zip(scales, parts, strict=True))
    total = sum(scale * part.total for scale, part in zip(scales, parts, strict=True))
    return (numerator / jnp.where(total > 0, total, 1)).astype(dtype)


def band(query, key, value, mask, *, reach, causal=False, rate, rng) -> Part:
    """Computes the part of the keys at most `reach` positions away, |i - j| <= reach exactly.

    It is linear in L: blocks of `reach` queries see their own and the adjacent blocks of keys.

    Args:
      query: [B, H, L, K].
      key: [B, H, L, K].
      value: [B, H, L, K].
      mask: bool [B, 1, L, 1].
      reach: positions on each side, at least 1.
      causal: whether to see only the left side, i - reach <= j <= i.
      rate: see `attend`.
      rng: see `attend`.
    """
    length = query.shape[2]
    size = min(reach, length)
    query, key, value, mask = (cut(a, size) for a in (query, key, value, mask))
    before = min(1, query.shape[2] - 1)  # one block needs no neighbours
    after = 0 if causal else before
    key, value, mask = (around(a, before, after) for a in (key, value, mask))
    ahead = jnp.arange(key.shape[3])[None] - before * size - jnp.arange(size)[:, None]  # j - i
    allowed = (-reach <= ahead) & (ahead <= (0 if causal else reach))
    part = attend(query, key, value, mask, allowed=allowed[None, None, None], rate=rate, rng=rng)
    return flat(part, length)


def complete(parts, arrays, number, global_arrays, *, rate, rngs) -> jax.Array:
    """Adds global positions to parts: the first ones, which see every position and are seen by all.

    Args:
      parts: of all queries, with keys that are not global (see `after`).
      arrays: query, key, value and mask of all positions, from `heads_first`.
      number: G, of global positions; may be 0.
      global_arrays: query [B, H, G, K], key, value and mask, by which the global positions see all.
      rate: see `attend`.
      rngs: two keys, for the weights of the global keys and for those of the global queries.

    Returns:
      [B, L, H, K] in value's dtype.
    """
    query, *keys = arrays
    dtype = keys[1].dtype
    if number == 0:
        return jnp.swapaxes(combine(parts, dtype), 1, 2)
    few = [a[:, :, :number] for a in keys]
    parts = [*parts, attend(query, *few, rate=rate, rng=rngs[0])]
    rows = attend(*global_arrays, rate=rate, rng=rngs[1])
    pieces = [combine([rows], dtype), combine(parts, dtype)[:, :, number:]]
    return jnp.swapaxes(jnp.concatenate(pieces, axis=2), 1, 2)


def after(mask, number) -> jax.Array:
    """Masks the first `number` positions: bool [B, 1, L, 1] -> the same."""
    return mask & (jnp.arange(mask.shape[2]) >= number)[None, None, :, None]


def heads_first(query, key, value, mask) -> list[jax.Array]:
    """Puts heads first: three [B, L, H, K], bool [B, L] -> [B, H, L, K], bool [B, 1, L, 1]."""
    return [*(jnp.swapaxes(a, 1, 2) for a in (query, key, value)), mask[:, None, :, None]]


def cut(x, size, num_blocks=None) -> jax.Array:
    """Cuts into blocks of `size`, padded with zeros (False): [B, H, L, K] -> [B, H, N, S, K]."""
    num_blocks = num_blocks or -(-x.shape[2] // size)
    filler = num_blocks * size - x.shape[2]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, filler), (0, 0)))
    return x.reshape(*x.shape[:2], num_blocks, size, x.shape[3])


def flat(part, length=None):
    """Undoes `cut` and keeps `length` positions: arrays [B, H, N, S, K] -> [B, H, L, K]."""
    return jax.tree.map(lambda a: a.reshape(*a.shape[:2], -1, a.shape[-1])[:, :, :length], part)


def around(blocks, before, after) -> jax.Array:
    """Joins blocks with their neighbours: [..., N, S, K] -> [..., N, (before + 1 + after) S, K].

    Neighbours beyond the ends are zeros (False).
    """
    num_blocks = blocks.shape[-3]
    padding = [(0, 0)] * (blocks.ndim - 3) + [(before, after), (0, 0), (0, 0)]
    padded = jnp.pad(blocks, padding)
    slices = [padded[..., i : i + num_blocks, :, :] for i in range(before + 1 + after)]
    return jnp.concatenate(slices, axis=-2)


def split(rng, number):
    """Returns a dropout key for each of `number` parts; Nones if rng is None."""
    return [None] * number if rng is None else list(jax.random.split(rng, number))
