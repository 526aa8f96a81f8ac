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

from lra_fnet.models.pointwise import dropout


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
    dtype = jnp.promote_types(value.dtype, jnp.float32)
    valid = jnp.swapaxes(mask, -1, -2)
    if allowed is not None:
        valid = valid & allowed
    scaled = query * query.shape[-1] ** -0.5
    scores = jnp.einsum("...qd,...md->...qm", scaled, key, preferred_element_type=dtype)
    scores = jnp.where(valid, scores, jnp.finfo(dtype).min)
    peak = lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.where(valid, jnp.exp(scores - peak), 0)
    total = weights.sum(axis=-1, keepdims=True)
    if rate > 0:
        weights = dropout(weights, rng, rate)
    weights = weights.astype(value.dtype)
    numerator = jnp.einsum("...qm,...md->...qd", weights, value, preferred_element_type=dtype)
    return Part(numerator, total, peak)


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
    """Joins blocks with their neighbours: [B, H, N, S, K] -> [B, H, N, (before + 1 + after) S, K].

    Neighbours beyond the ends are zeros (False).
    """
    num_blocks = blocks.shape[2]
    padded = jnp.pad(blocks, ((0, 0), (0, 0), (before, after), (0, 0), (0, 0)))
    slices = [padded[:, :, i : i + num_blocks] for i in range(before + 1 + after)]
    return jnp.concatenate(slices, axis=3)


def split(rng, number):
    """Returns a dropout key for each of `number` parts; Nones if rng is None."""
    return [None] * number if rng is None else list(jax.random.split(rng, number))
