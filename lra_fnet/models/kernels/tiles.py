"""Softmax attention in tiles for a CPU, which skips the padding at the end of each text.

This is flash attention (arXiv:2205.14135, Alg. 1 and 4) for one head of one text at a time. A tile
of weights, [queries, keys], stays in the caches of a core, and the backward pass computes it again.
The loops end at the last real token, so the time follows each text's own length. `feature_tiles`
does the same for the Performer's attention.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Tile(NamedTuple):
    """The shape of a tile, which affects memory, speed and rounding only."""

    queries: int
    keys: int


def attend(query, key, value, mask, *, tile: Tile, padding_unread=False) -> jax.Array:
    """Computes softmax(Q K^T / sqrt(K)) V. Reverse-mode derivatives only.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, V].
      mask: bool [B, L], True at keys that may be attended to.
      tile: at most; tiles are of nearly equal size, so that little is wasted.
      padding_unread: whether tiles of queries behind the last True of the mask may give zeros.

    Returns:
      [B, L, H, V] in value's dtype, zeros without a key; scores and sums are float32 (or wider).
    """
    query = query * query.shape[-1] ** -0.5
    return each_head(_KERNEL, query, key, value, mask, tile=tile, padding_unread=padding_unread)


class Kernel(NamedTuple):
    """Attention in one head of one text: functions of arrays of whole tiles.

    `forward` takes the tile, query [N, K], key [M, K], value [M, V], mask bool [M], the number of
    (tiles of queries, tiles of keys) behind which nothing is read, and the arrays that all heads
    share. It returns [N, V], with zeros behind those queries, and arrays for `backward`, which
    takes the same, the result, these arrays and a cotangent, and returns those of query, key and
    value.
    """

    forward: Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]
    backward: Callable[..., tuple[jax.Array, ...]]


def each_head(kernel, query, key, value, mask, *shared, tile: Tile, padding_unread) -> jax.Array:
    """Attends in one head of one text at a time; arguments and result as in `attend`.

    All heads use the arrays in `shared`, which get no gradient.
    """
    texts, length, heads, width = value.shape
    tile = Tile(*(_ceil(length, _ceil(length, most)) for most in tile))
    arrays = (jnp.swapaxes(x, 1, 2).reshape(-1, *x.shape[1::2]) for x in (query, key, value))
    arrays = *arrays, jnp.repeat(mask, heads, axis=0)
    out = jnp.asarray(_map(kernel, tile, padding_unread, arrays, shared))
    return jnp.swapaxes(out.reshape(texts, heads, length, width), 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _map(kernel, tile, padding_unread, arrays, shared):
    return _map_forward(kernel, tile, padding_unread, arrays, shared)[0]


def _map_forward(kernel, tile, padding_unread, arrays, shared):
    # The derivative is that of the whole map, so that arrays are kept as they are: that of each
    # head would keep copies of them.
    def forward(arrays):
        out, kept = kernel.forward(tile, *_whole_tiles(tile, padding_unread, *arrays), *shared)
        return out[: len(arrays[0])], kept

    out, kept = lax.map(forward, arrays)
    return out, (arrays, shared, out, kept)


def _map_backward(kernel, tile, padding_unread, kept, cotangent):
    arrays, shared, out, kept = kept

    def backward(one):
        arrays, kept, *wide = one
        wide = (_padded(x, tile.queries) for x in wide)
        given = *_whole_tiles(tile, padding_unread, *arrays), *shared
        slopes = kernel.backward(tile, *given, *kept, *wide)
        return tuple(slope[: len(arrays[0])] for slope in slopes)

    slopes = lax.map(backward, (arrays, kept, out, cotangent))
    return (*slopes, None), (None,) * len(shared)


_map.defvjp(_map_forward, _map_backward)


def _whole_tiles(tile, padding_unread, query, key, value, mask):
    """Returns the arrays of one head, padded, and the number of tiles to read."""
    length = len(query)
    end = jnp.where(mask, jnp.arange(1, length + 1, dtype=jnp.int32), 0).max()
    rows = end if padding_unread else jnp.int32(length)
    number = _ceil(rows, tile.queries), _ceil(end, tile.keys)
    key, value, mask = (_padded(x, tile.keys) for x in (key, value, mask[:, None]))
    return _padded(query, tile.queries), key, value, mask[:, 0], number


def _padded(x, size):
    return jnp.pad(x, ((0, -len(x) % size), (0, 0)))


def _ceil(number, size):
    return (number + size - 1) // size


def _forward(tile, query, key, value, mask, number):
    """See `Kernel`; keeps the log of each row's sum of exponentials, infinite without a key."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    low = jnp.finfo(wide).min

    def row(i, results):
        some = cut(query, i, tile.queries)

        def column(j, state):
            peak, total, out = state
            keys, values, valid = (cut(x, j, tile.keys) for x in (key, value, mask))
            scores = jnp.where(valid[None], product("qk,mk->qm", some, keys, wide), low)
            new = jnp.maximum(peak, scores.max(axis=1, keepdims=True))
            weights = jnp.where(valid[None], jnp.exp(scores - new), 0)
            scale = jnp.exp(peak - new)
            total = scale * total + weights.sum(axis=1, keepdims=True)
            part = product("qm,mk->qk", weights.astype(value.dtype), values, wide)
            return new, total, scale * out + part

        none = jnp.zeros((tile.queries, 1), wide)
        start = none + low, none, jnp.zeros((tile.queries, value.shape[1]), wide)
        peak, total, out = loop(number[1], len(key) // tile.keys, column, start)
        total = jnp.where(total == 0, jnp.inf, total)  # without a key; a NaN stays one
        parts = (out / total).astype(value.dtype), peak + jnp.log(total)
        return tuple(put(x, part, i) for x, part in zip(results, parts, strict=True))

    out = jnp.zeros((len(query), value.shape[1]), value.dtype)
    logsums = jnp.full((len(query), 1), jnp.inf, wide)
    out, logsums = loop(number[0], len(query) // tile.queries, row, (out, logsums))
    return out, (logsums,)


def _backward(tile, query, key, value, mask, number, logsums, out, cotangent):
    wide = logsums.dtype
    mean = (out.astype(wide) * cotangent.astype(wide)).sum(axis=1, keepdims=True)

    def row(i, slopes):
        some, given, logsum, shift = (
            cut(x, i, tile.queries) for x in (query, cotangent, logsums, mean)
        )

        def column(j, slopes):
            query_slope, key_slope, value_slope = slopes
            keys, values, valid = (cut(x, j, tile.keys) for x in (key, value, mask))
            scores = product("qk,mk->qm", some, keys, wide)
            weights = jnp.where(valid[None], jnp.exp(scores - logsum), 0)
            slope = weights * (product("qk,mk->qm", given, values, wide) - shift)
            weights, slope = weights.astype(value.dtype), slope.astype(query.dtype)
            # The narrow array first: a CPU's product takes far longer the other way round.
            return (
                query_slope + product("qm,mk->qk", slope, keys, wide),
                _add(key_slope, product("qk,qm->km", some, slope, wide), j),
                _add(value_slope, product("qk,qm->km", given, weights, wide), j),
            )

        query_slopes, *others = slopes
        start = jnp.zeros(some.shape, wide), *others
        query_slope, *others = loop(number[1], len(key) // tile.keys, column, start)
        return put(query_slopes, query_slope, i), *others

    # Those of key and value are [K, N].
    start = jnp.zeros(query.shape, wide), *(jnp.zeros(x.shape[::-1], wide) for x in (key, value))
    query_slope, *others = loop(number[0], len(query) // tile.queries, row, start)
    slopes = query_slope, *(x.T for x in others)
    return tuple(s.astype(x.dtype) for s, x in zip(slopes, (query, key, value), strict=True))


_KERNEL = Kernel(_forward, _backward)


def loop(number, most, step, state):
    """Takes the steps 0 .. number - 1; `most` is the largest number, which benchmarks count."""

    def take(i, state):
        return lax.cond(i < number, lambda state: tuple(step(i, state)), tuple, state)

    return lax.fori_loop(0, most, take, tuple(state))


def product(axes, left, right, dtype):
    """Computes an einsum in dtype."""
    return jnp.einsum(axes, left, right, preferred_element_type=dtype)


def cut(x, index, size):
    """Returns tile number `index`, `size` entries of the first axis."""
    return lax.dynamic_slice_in_dim(x, index * size, size)


def put(x, part, index):
    """Replaces tile number `index` of the first axis."""
    return lax.dynamic_update_slice_in_dim(x, part, index * len(part), axis=0)


def _add(x, part, index):
    """Adds to tile number `index` of the second axis."""
    start = index * part.shape[1]
    old = lax.dynamic_slice_in_dim(x, start, part.shape[1], axis=1)
    return lax.dynamic_update_slice_in_dim(x, old + part, start, axis=1)
