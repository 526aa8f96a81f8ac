"""The Performer's attention in tiles against explicit kernel weights, and what it must not read."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import assert_close, float64, largest_array, normal

from lra_fnet.models import fastest, feature_tiles
from lra_fnet.models.mixers import performer

LENGTH = 11
SIZES = [1, 3, 4, 11, 50]


def inputs(scale=1.0):
    """Query, key, value of another width, features, and masks.

    The masks are full, padded, with holes, empty, and of one key.
    """
    query, key = (scale * normal(5, LENGTH, 2, 3, seed=seed) for seed in range(2))
    mask = np.ones((5, LENGTH), bool)
    mask[1, 6:] = mask[2, [0, 1, 5, 9, 10]] = mask[3] = mask[4, :7] = mask[4, 8:] = False
    return query, key, normal(5, LENGTH, 2, 4, seed=2), jnp.asarray(mask), normal(6, 3, seed=3)


def explicit(query, key, value, mask, features):
    """Sums values with weights phi(q) . phi(k) for each pair (Lemma 1), in float64."""
    query, key, value, features = float64(query, key, value, features)

    def phi(x):
        x = x * x.shape[-1] ** -0.25
        return np.exp(x @ features.T - (x * x).sum(-1, keepdims=True) / 2)

    weights = np.einsum("bqhm,bkhm->bhqk", phi(query), phi(key)) * np.asarray(mask)[:, None, None]
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("bhqk,bkhv->bqhv", weights, value)


@pytest.mark.parametrize("scale", [1.0, 5.0], ids=["even", "peaked"])
@pytest.mark.parametrize("size", SIZES)
def test_result_equals_explicit_weights(size, scale):
    arrays = inputs(scale)
    got = jax.jit(functools.partial(feature_tiles.attend, size=size))(*arrays)
    np.testing.assert_allclose(got, explicit(*arrays), rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("size", SIZES)
def test_gradient_equals_that_without_tiles(size):
    *arrays, mask, features = inputs()
    cotangent = normal(5, LENGTH, 2, 4, seed=9)

    def gradient(attend):
        loss = lambda *a: (attend(*a, mask, features) * cotangent).sum()  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)

    got = gradient(functools.partial(feature_tiles.attend, size=size))
    for one, want in zip(got, gradient(performer.softmax_attention), strict=True):
        assert_close(one, want)


@pytest.fixture
def with_nans():
    with jax.debug_nans(False):
        yield


@pytest.mark.usefixtures("with_nans")
@pytest.mark.parametrize("unread", [False, True])
def test_tiles_behind_the_last_token_are_not_read(unread):
    query, key, value, _, features = inputs()
    mask = jnp.broadcast_to(jnp.arange(LENGTH) < 6, (5, LENGTH))
    behind = (jnp.arange(LENGTH) >= 8)[None, :, None, None]
    key, value = (jnp.where(behind, jnp.nan, x) for x in (key, value))
    if unread:
        query = jnp.where(behind, jnp.nan, query)
    attend = functools.partial(feature_tiles.attend, size=4, padding_unread=unread)

    def loss(query, key, value):
        out = attend(query, key, value, mask, features)
        return (out[:, :6] ** 2).sum(), out

    got, out = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(query, key, value)
    cut = (x[:, :6] for x in (query, key, value, mask))
    assert_close(out[:, :6], performer.softmax_attention(*cut, features))
    assert (np.asarray(out[:, 8:]) == 0).all() == unread
    for slope in got:
        assert np.isfinite(slope).all()
        assert not np.asarray(slope[:, 8:]).any()


@pytest.mark.usefixtures("with_nans")
def test_not_a_number_in_a_token_reaches_the_result():
    query, key, value, mask, features = inputs()
    key = key.at[0, 3].set(jnp.nan)
    out = feature_tiles.attend(query, key, value, mask, features, size=2)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1:]).all()


@pytest.mark.parametrize(
    ("backend", "cores", "positions"),
    [("cpu", 1, 256), ("cpu", 2, 1024), ("cpu", 3, 4096), ("gpu", 1, 4096)],
)
def test_features_at_a_time_suit_the_device(monkeypatch, backend, cores, positions):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert largest_features() == positions


def test_a_run_keeps_its_tiles_on_other_cores(monkeypatch):
    with fastest.decisions({}):
        for cores in (1, 2, 3):
            monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
            assert largest_features() == 256


def largest_features(length=4096):
    """Positions of the largest array, which has 128 features for each of them."""
    fields = {"dim": 4, "num_heads": 1, "qkv_dim": 4, "max_len": length, "layer": 0}
    settings = {"kernel": "softmax", "num_features": 128, "orthogonal": True, "redraw": False}
    mixer = performer.Performer(**fields, num_layers=1, dropout=0.0, seed=0, **settings)
    shapes = [jax.ShapeDtypeStruct((1, length, 1, 4), jnp.float32)] * 3
    mask = jax.ShapeDtypeStruct((1, length), bool)
    return largest_array(functools.partial(mixer.attend, train=False), *shapes, mask) // 128
