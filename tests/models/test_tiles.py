"""Attention in tiles against the oracle and `naive`, and what it must not read."""

import functools

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import assert_close, float64, normal

from lra_fnet.models import tiles
from lra_fnet.models.mixers import attention
from lra_fnet.models.tiles import Tile

LENGTH = 11
TILES = [Tile(1, 1), Tile(2, 3), Tile(4, 2), Tile(11, 11), Tile(50, 50)]


def inputs(scale=1.0):
    """Query, key, value of another width, and masks: full, padded, with holes, empty, one key."""
    query, key = (scale * normal(5, LENGTH, 2, 3, seed=seed) for seed in range(2))
    mask = np.ones((5, LENGTH), bool)
    mask[1, 6:] = mask[2, [0, 1, 5, 9, 10]] = mask[3] = mask[4, :7] = mask[4, 8:] = False
    return query, key, normal(5, LENGTH, 2, 4, seed=2), jnp.asarray(mask)


@pytest.mark.parametrize("scale", [1.0, 5.0], ids=["even", "peaked"])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.queries}x{tile.keys}")
def test_result_equals_the_oracle(tile, scale):
    query, key, value, mask = inputs(scale)
    got = jax.jit(functools.partial(tiles.attend, tile=tile))(query, key, value, mask)
    want = oracle.softmax_attention(*float64(query, key, value), mask=np.asarray(mask))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.queries}x{tile.keys}")
def test_gradient_equals_that_of_naive_attention(tile):
    *arrays, mask = inputs()
    cotangent = normal(5, LENGTH, 2, 4, seed=9)

    def gradient(attend):
        loss = lambda *a: (attend(*a, mask) * cotangent).sum()  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)

    got = gradient(functools.partial(tiles.attend, tile=tile))
    for one, want in zip(got, gradient(attention.naive), strict=True):
        assert_close(one, want)


@pytest.fixture
def with_nans():
    with jax.debug_nans(False):
        yield


@pytest.mark.usefixtures("with_nans")
@pytest.mark.parametrize("unread", [False, True])
def test_tiles_behind_the_last_token_are_not_read(unread):
    """Not-a-numbers from position 8 on would spread to all results, as they do in `naive`."""
    query, key, value, _ = inputs()
    mask = jnp.broadcast_to(jnp.arange(LENGTH) < 6, (5, LENGTH))
    behind = (jnp.arange(LENGTH) >= 8)[None, :, None, None]
    key, value = (jnp.where(behind, jnp.nan, x) for x in (key, value))
    if unread:
        query = jnp.where(behind, jnp.nan, query)

    def loss(query, key, value):
        out = tiles.attend(query, key, value, mask, tile=Tile(4, 4), padding_unread=unread)
        return (out[:, :6] ** 2).sum(), out

    got, out = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(query, key, value)
    want = attention.naive(query[:, :6], key[:, :6], value[:, :6], mask[:, :6])
    assert_close(out[:, :6], want)
    assert (np.asarray(out[:, 8:]) == 0).all() == unread
    for slope in got:
        assert np.isfinite(slope).all()
        assert not np.asarray(slope[:, 8:]).any()


@pytest.mark.usefixtures("with_nans")
def test_not_a_number_in_a_token_reaches_the_result():
    query, key, value, mask = inputs()
    key = key.at[0, 3].set(jnp.nan)
    out = tiles.attend(query, key, value, mask, tile=Tile(2, 2))
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1:]).all()
