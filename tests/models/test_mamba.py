"""Mamba and its scan against loops over positions and closed forms in float64."""

import functools

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import applied, assert_close, float64, initial, normal, random_variables

from lra_fnet.models.kernels import selective_scan
from lra_fnet.models.mixers.mamba import Mamba

FIELDS = {"num_heads": 1, "qkv_dim": 1, "layer": 0, "num_layers": 2, "dropout": 0.0, "max_len": 11}
FIELDS |= {"state": 4, "expand": 2, "width": 3, "dt_min": 0.01, "dt_max": 0.5, "method": "scan"}
METHODS = ["scan", "associative"]


@pytest.fixture(params=METHODS)
def method(request, monkeypatch):
    """A method of the scan, with chunks of four positions."""
    monkeypatch.setattr(selective_scan, "CHUNK", dict.fromkeys(METHODS, 4))
    return request.param


def system(length, channels=3, states=2, seed=0):
    """x, step, A, B and C of a scan, float64."""
    rng = np.random.default_rng(seed)
    x, step = rng.normal(size=(2, 2, length, channels))
    b, c = rng.normal(size=(2, 2, length, states))
    return x, abs(step), -np.exp(rng.normal(size=(channels, states))), b, c


def by_sums(x, step, a, b, c):
    """The scan at once: the decay from j to k is exp of A times the steps between them."""
    total = jnp.cumsum(step, axis=1)
    between = total[:, :, None] - total[:, None]  # [B, k, j, E]
    past = jnp.tril(jnp.ones(between.shape[1:3]))[None, :, :, None, None]
    decay = past * jnp.exp(past * between[..., None] * a)
    return jnp.einsum("bkn,bkjen,bje,bjn->bke", c, decay, step * x, b)


# The scan


@pytest.mark.parametrize("length", [1, 3, 4, 13])
def test_scan_equals_a_loop(method, length):
    inputs = system(length)
    with jax.enable_x64(True):
        got = jax.jit(functools.partial(selective_scan.selective_scan, method=method))(*inputs)
    assert_close(got, oracle.selective_scan(*inputs), 1e-12)


@pytest.mark.parametrize("length", [1, 3, 4, 13])
def test_gradient_of_the_scan_is_that_of_a_closed_form(method, length):
    inputs, cotangent = system(length), normal(2, length, 3).astype(float)

    def loss(scan, inputs):
        return (scan(*inputs) * cotangent).sum()

    scan = functools.partial(selective_scan.selective_scan, method=method)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        want = jax.jit(jax.grad(functools.partial(loss, by_sums)))(inputs)
    with jax.enable_x64(True):
        got = jax.jit(jax.grad(functools.partial(loss, scan)))(inputs)
    for slope, expected in zip(got, want, strict=True):
        assert_close(slope, expected, 1e-11)


def test_states_are_float32_of_bfloat16_inputs(method):
    x, step, a, b, c = (np.float32(array) for array in system(13))
    x, b, c = (jnp.asarray(array, jnp.bfloat16) for array in (x, b, c))
    got = selective_scan.selective_scan(x, step, a, b, c, method=method)
    assert got.dtype == jnp.float32
    want = oracle.selective_scan(*float64(x, step, a, b, c))
    assert_close(got, want, 1e-5)


# The layer


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layer_equals_a_loop_over_positions(bidirectional, method):
    mixer = Mamba(**FIELDS | {"dim": 20, "method": method}, bidirectional=bidirectional)
    x = normal(3, 11, 20)
    mask = np.stack([np.arange(11) < 11, np.arange(11) < 6, np.arange(11) % 4 != 2])
    variables = random_variables(mixer, x, mask)
    params = jax.tree.map(np.float64, variables["params"])
    got = applied(mixer, variables, x, mask)
    assert params["dt"].shape == (2 * (1 + bidirectional), 40)  # rank 2 = ceil(20 / 16)
    want = oracle.mamba(*float64(x), mask, params, 1 + bidirectional)
    assert_close(np.asarray(got)[mask], want[mask], 1e-4)


def test_parameters_begin_as_those_of_the_authors():
    mixer = Mamba(**FIELDS | {"dim": 256, "num_layers": 4}, bidirectional=True)
    x, mask = normal(1, 11, 256), np.ones((1, 11), bool)
    params = jax.tree.map(np.asarray, initial(mixer, x, mask)["params"])
    steps = np.log1p(np.exp(params["dt_bias"].astype(float)))
    assert 0.01 * 0.999 <= steps.min() < 0.011 < 0.45 < steps.max() <= 0.5 * 1.001
    assert abs(np.log(steps).mean() - np.log(0.01 * 0.5) / 2) < 0.1  # log-uniform
    np.testing.assert_allclose(np.exp(params["a_log"]), np.tile([1.0, 2, 3, 4], (1024, 1)), 1e-6)
    assert (params["skip"] == 1).all()
    # PyTorch draws Linear and Conv1d from +-1 over the root of the number of inputs.
    bounds = {"taps": 3**-0.5, "bias": 3**-0.5, "select": 512**-0.5, "dt": 16**-0.5}
    drawn = {name: params[name] for name in bounds}
    drawn |= {name: params[name]["kernel"] for name in ("project", "out")}
    bounds |= {"project": 256**-0.5, "out": (512 * 4) ** -0.5}
    for name, bound in bounds.items():
        assert 0.95 * bound < abs(drawn[name]).max() <= bound, name
        assert abs(drawn[name].std() / bound - 3**-0.5) < 0.02, name
