"""Attention in tiles, softmax and the Performer's, against oracles, and what it must not read."""

import functools

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import assert_close, float64, normal

from lra_fnet.models.kernels import feature_tiles, tiles
from lra_fnet.models.kernels.tiles import Tile
from lra_fnet.models.mixers import attention, performer

LENGTH = 11
TILES = [Tile(2, 3), Tile(4, 2), Tile(50, 50)]
FEATURES = normal(6, 3, seed=3)


def favor(query, key, value, *, mask):
    """Sums values with weights phi(q) . phi(k) for each pair (Performer, Lemma 1), in float64."""
    features = np.asarray(FEATURES, np.float64)

    def phi(x):
        x = x * x.shape[-1] ** -0.25
        return np.exp(x @ features.T - (x * x).sum(-1, keepdims=True) / 2)

    weights = np.einsum("bqhm,bkhm->bhqk", phi(query), phi(key)) * mask[:, None, None]
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("bhqk,bkhv->bqhv", weights, value)


def softmax_in(tile, **options):
    return functools.partial(tiles.attend, tile=tile, **options)


def favor_in(tile, **options):
    return functools.partial(feature_tiles.attend, features=FEATURES, size=max(tile), **options)


# In tiles, in whole arrays, and in float64.
KINDS = {
    "softmax": (softmax_in, attention.naive, oracle.softmax_attention),
    "favor": (favor_in, functools.partial(performer.softmax_attention, features=FEATURES), favor),
}
kinds = pytest.mark.parametrize(("in_tiles", "whole", "exact"), KINDS.values(), ids=KINDS)
shapes = pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.queries}x{tile.keys}")


def inputs(scale=1.0):
    """Query, key, value of another width, and masks: full, padded, with holes, empty, one key."""
    query, key = (scale * normal(5, LENGTH, 2, 3, seed=seed) for seed in range(2))
    mask = np.ones((5, LENGTH), bool)
    mask[1, 6:] = mask[2, [0, 1, 5, 9, 10]] = mask[3] = mask[4, :7] = mask[4, 8:] = False
    return query, key, normal(5, LENGTH, 2, 4, seed=2), jnp.asarray(mask)


@pytest.mark.parametrize("scale", [1.0, 5.0], ids=["even", "peaked"])
@shapes
@kinds
def test_result_equals_the_oracle(in_tiles, whole, exact, tile, scale):
    query, key, value, mask = inputs(scale)
    got = jax.jit(in_tiles(tile))(query, key, value, mask)
    want = exact(*float64(query, key, value), mask=np.asarray(mask))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * scale)


@shapes
@kinds
def test_gradient_equals_that_of_whole_arrays(in_tiles, whole, exact, tile):
    *arrays, mask = inputs()
    cotangent = normal(5, LENGTH, 2, 4, seed=9)

    def gradient(attend):
        loss = lambda *a: (attend(*a, mask) * cotangent).sum()  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)

    for one, want in zip(gradient(in_tiles(tile)), gradient(whole), strict=True):
        assert_close(one, want)


@pytest.fixture
def with_nans():
    with jax.debug_nans(False):
        yield


@pytest.mark.usefixtures("with_nans")
@pytest.mark.parametrize("unread", [False, True])
@kinds
def test_tiles_behind_the_last_token_are_not_read(in_tiles, whole, exact, unread):
    """Not-a-numbers from position 8 on would spread to all results, as they do in whole arrays."""
    query, key, value, _ = inputs()
    mask = jnp.broadcast_to(jnp.arange(LENGTH) < 6, (5, LENGTH))
    behind = (jnp.arange(LENGTH) >= 8)[None, :, None, None]
    key, value = (jnp.where(behind, jnp.nan, x) for x in (key, value))
    if unread:
        query = jnp.where(behind, jnp.nan, query)

    def loss(query, key, value):
        out = in_tiles(Tile(4, 4), padding_unread=unread)(query, key, value, mask)
        return (out[:, :6] ** 2).sum(), out

    got, out = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(query, key, value)
    assert_close(out[:, :6], whole(query[:, :6], key[:, :6], value[:, :6], mask[:, :6]))
    assert (np.asarray(out[:, 8:]) == 0).all() == unread
    for slope in got:
        assert np.isfinite(slope).all()
        assert not np.asarray(slope[:, 8:]).any()


@pytest.mark.usefixtures("with_nans")
@kinds
def test_not_a_number_in_a_token_reaches_the_result(in_tiles, whole, exact):
    query, key, value, mask = inputs()
    key = key.at[0, 3].set(jnp.nan)
    out = in_tiles(Tile(2, 2))(query, key, value, mask)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1:]).all()
