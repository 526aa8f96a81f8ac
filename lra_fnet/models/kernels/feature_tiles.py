"""FAVOR+ attention in tiles for a CPU, which skips the padding at the end of each text.

For one head of one text at a time, as in `tiles`: a tile of features, [positions, M], stays in the
caches of a core, and the backward pass computes it again. M is the number of features, which is
usually many times the width of a head, so whole arrays of them are what costs time and memory.
"""

import jax
import jax.numpy as jnp

from lra_fnet.models.kernels.tiles import Kernel, Tile, cut, each_head, loop, product, put


def attend(query, key, value, mask, features, *, size, padding_unread=False) -> jax.Array:
    """Computes `performer.softmax_attention`, and its derivatives in reverse mode.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, V].
      mask: bool [B, L], True at keys that may be attended to.
      features: w, [M, K], which get no gradient.
      size: positions in a tile, at most; affects memory, speed and rounding only.
      padding_unread: whether tiles of queries behind the last True of the mask may give zeros.

    Returns:
      [B, L, H, V] in value's dtype, zeros without a key; features and sums are float32 (or wider).
    """
    wide = jnp.promote_types(query.dtype, jnp.float32)
    features = features.astype(wide)
    query, key = (x.astype(wide) * x.shape[-1] ** -0.25 for x in (query, key))
    # The sum over a value of 1 is what the other sums are divided by.
    value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)

    arguments = _KERNEL, query, key, value, mask, features
    return each_head(*arguments, tile=Tile(size, size), padding_unread=padding_unread)[..., :-1]


def _forward(tile, query, key, value, mask, number, features):
    """See `Kernel`; for keys and queries in tiles of one size.

    It keeps the largest exponent of each feature over the keys, [1, M], the sums of the values
    with phi(K) as weights, [V, M], and each query's largest exponent and divisor, [N, 1].
    """
    size, wide = tile.keys, query.dtype
    low = jnp.finfo(wide).min

    def add_keys(j, state):
        peak, sums = state
        keys, values, valid = (cut(x, j, size) for x in (key, value, mask[:, None]))
        exponents = jnp.where(valid, _of_keys(keys, features), low)
        new = jnp.maximum(peak, exponents.max(axis=0, keepdims=True))
        weights = jnp.where(valid, jnp.exp(exponents - new), 0).astype(value.dtype)
        return new, jnp.exp(peak - new) * sums + product("nv,nm->vm", values, weights, wide)

    sums = jnp.zeros((value.shape[1], len(features)), wide)
    start = jnp.full((1, len(features)), low, wide), sums
    peak, sums = loop(number[1], len(key) // size, add_keys, start)

    def row(i, results):
        exponents = _project(cut(query, i, size), features) + peak
        top = exponents.max(axis=1, keepdims=True)
        out = product("nm,vm->nv", jnp.exp(exponents - top), sums, wide)
        divisor = jnp.where(out[:, -1:] == 0, 1, out[:, -1:])  # 0 without a key; a NaN stays one
        parts = (out / divisor).astype(value.dtype), top, divisor
        return tuple(put(x, part, i) for x, part in zip(results, parts, strict=True))

    ones = jnp.ones((len(query), 1), wide)
    start = jnp.zeros((len(query), value.shape[1]), value.dtype), ones, ones
    out, top, divisor = loop(number[0], len(query) // size, row, start)
    return out, (peak, sums, top, divisor)


def _backward(
    tile, query, key, value, mask, number, features, peak, sums, top, divisor, out, cotangent
):
    size, wide = tile.keys, query.dtype
    slope = cotangent.astype(wide) / divisor  # of each query's sums; the last one is the divisor
    last = slope[:, -1:] - (slope * out).sum(axis=1, keepdims=True)
    slope = jnp.concatenate([slope[:, :-1], last], axis=1)

    def row(i, slopes):
        query_slope, sums_slope = slopes
        some, given, most = (cut(x, i, size) for x in (query, slope, top))
        weights = jnp.exp(_project(some, features) + peak - most)
        part = weights * product("nv,vm->nm", given, sums, wide)
        # The narrow array first: a CPU's product takes far longer the other way round.
        sums_slope += product("nv,nm->vm", given, weights, wide)
        return put(query_slope, product("nm,mk->nk", part, features, wide), i), sums_slope

    start = jnp.zeros_like(query), jnp.zeros_like(sums)
    query_slope, sums_slope = loop(number[0], len(query) // size, row, start)

    def column(j, slopes):
        key_slope, value_slope = slopes
        keys, values, valid = (cut(x, j, size) for x in (key, value, mask[:, None]))
        weights = jnp.where(valid, jnp.exp(_of_keys(keys, features) - peak), 0)
        part = weights * product("nv,vm->nm", values, sums_slope, wide)
        part = product("nm,mk->nk", part, features, wide) - part.sum(axis=1, keepdims=True) * keys
        values = product("nm,vm->nv", weights, sums_slope, wide)
        return put(key_slope, part, j), put(value_slope, values, j)

    start = jnp.zeros_like(key), jnp.zeros(value.shape, wide)
    key_slope, value_slope = loop(number[1], len(key) // size, column, start)
    return query_slope, key_slope, value_slope.astype(value.dtype)


_KERNEL = Kernel(_forward, _backward)


def _of_keys(keys, features):
    """Returns the exponents of keys [N, K] -> [N, M]."""
    return _project(keys, features) - 0.5 * jnp.square(keys).sum(axis=1, keepdims=True)


def _project(x, features):
    return jnp.einsum("nk,mk->nm", x, features, precision="highest")
