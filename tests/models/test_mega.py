"""Mega against loops over positions in float64: the average as a recurrence, attention by pairs."""

import functools

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import applied, assert_close, float64, initial, normal, random_variables

from lra_fnet.models.mixers.mega import Mega, chunked_attention, moving_average

FIELDS = {"dim": 3, "num_heads": 1, "qkv_dim": 4, "layer": 0, "num_layers": 1, "dropout": 0.0}
FIELDS |= {"max_len": 9, "state": 2, "expansion": 2, "block_size": 2}
KINDS = [("softmax", None), ("softmax", 3), ("laplace", None), ("laplace", 3)]
MASK = np.arange(7) < np.array([[7], [5], [2]])  # the last has chunks without tokens


def parameters(dim, state, low=0.05):
    """Rates alpha and delta in (low, 1), and beta and eta: [2, D, P] each."""
    rng = np.random.default_rng(0)
    rates = rng.uniform(low, 1, size=(2, 2, dim, state))
    return *rates, *rng.normal(size=(2, 2, dim, state))


# The moving average


@pytest.mark.parametrize("length", [1, 2, 13])
def test_average_is_the_recurrence(length):
    x, rates = normal(2, length, 3), parameters(3, 4)
    want = oracle.damped_average(*float64(x), *rates)
    assert_close(jax.jit(moving_average)(x, *jnp.float32(rates)), want)


def test_slow_averages_are_those_of_float64_in_a_long_text():
    """The slowest mode forgets half of the text in 7,000 tokens."""
    x = normal(1, 4096, 1)
    alpha, _, beta, eta = parameters(1, 4)
    rates = alpha, 1e-4 / alpha * np.array([1.0, 10, 100, 1000]), beta, eta
    want = oracle.damped_average(*float64(x), *rates)
    got = jax.jit(moving_average)(x, *jnp.float32(rates))
    assert abs(np.asarray(got) - want).max() < 1e-5 * abs(want).max()


def test_average_has_finite_gradients_where_decays_round_to_zero():
    mixer = Mega(function="softmax", chunk=None, **FIELDS)
    x = normal(3, 7, 3)
    variables = random_variables(mixer, x, MASK)
    for name in ("alpha", "delta"):
        variables["params"][name] = np.full((2, 3, 2), 40, np.float32)
    run = jax.jit(jax.grad(lambda v: mixer.apply(v, x, MASK, train=False).sum()))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run(variables)))


# Attention


def arrays(length, width=4):
    query, key = normal(2, length, width), normal(2, length, width, seed=1)
    return query, key, normal(2, length, 6, seed=2), normal(2 * length - 1, seed=3)


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("kind", ["softmax", "laplace"])
def test_blocks_of_queries_affect_no_number(kind, chunk):
    """Sizes that divide the text and sizes that do not, in both passes."""
    query, key, value, bias = arrays(11)
    mask = np.arange(11) < np.array([[11], [6]])

    def both(block_size):
        attend = functools.partial(
            chunked_attention, mask=mask, kind=kind, chunk=chunk, block_size=block_size
        )
        call = jax.jit(lambda *a: jax.vjp(lambda q, k, v, b: attend(q, k, v, bias=b), *a[:-1]))
        out, pull = call(query, key, value, bias, None)
        return out, *jax.jit(pull)(normal(2, 11, 6, seed=4))

    for block_size in (3, 4):
        for got, want in zip(both(block_size), both(11), strict=True):
            assert_close(got, want)


# The layer


@pytest.mark.parametrize(("kind", "chunk"), KINDS)
def test_layer_and_its_residual_equal_the_papers(kind, chunk):
    mixer = Mega(function=kind, chunk=chunk, **FIELDS)
    x = normal(3, 7, 3)
    variables = random_variables(mixer, x, MASK)
    params = jax.tree.map(np.float64, variables["params"])
    want = oracle.mega(*float64(x), MASK, params, kind, chunk or 7)
    assert_close((x + applied(mixer, variables, x, MASK))[MASK], want[MASK])


def test_mega_begins_as_the_authors_code_does():
    fields = FIELDS | {"dim": 500, "qkv_dim": 400, "state": 4}
    mixer = Mega(function="softmax", chunk=None, **fields)
    params = initial(mixer, normal(1, 7, 500), MASK[:1])["params"]
    assert abs(params["beta"] - np.array([[[1, -1, 1, -1]]])).max() < 0.02 * 6
    deviations = {"alpha": 0.2, "delta": 0.2, "eta": 1, "skip": 1, "scale": 0.02}
    for name, want in deviations.items():
        assert np.std(params[name]) == pytest.approx(want, rel=0.1)
        assert abs(np.mean(params[name])) < 0.15 * want
    assert np.std(params["positions"]) < 0.04
    assert not np.any(params["offset"])
    for name in ("value", "project", "out"):
        assert np.std(params[name]["kernel"]) == pytest.approx(0.02, rel=0.05)
        assert not np.any(params[name].get("bias", 0))
