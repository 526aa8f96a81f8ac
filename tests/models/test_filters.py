"""FNet at exact lengths and with a learned filter, against the definition in float64."""

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import applied, assert_close, float64, normal, random_variables

from lra_fnet.models.mixers import exact_fourier as exact
from lra_fnet.models.mixers.exact_fourier import ExactFourier
from lra_fnet.models.mixers.fourier import fourier_mix
from lra_fnet.models.mixers.fourier_filter import FourierFilter

exact_fourier = jax.jit(exact.exact_fourier)
FIELDS = {"num_heads": 1, "qkv_dim": 1, "layer": 0, "num_layers": 2, "dropout": 0.0}


@pytest.mark.parametrize("dim", [1, 2, 5, 6])
@pytest.mark.parametrize("lengths", [(7, 3, 1, 0), (7, 7, 6, 2)])
def test_rows_are_transformed_at_their_own_lengths(lengths, dim):
    x = normal(4, 7, dim)
    want = oracle.exact_fourier_mix(*float64(x), lengths)
    assert_close(exact_fourier(x, jnp.asarray(lengths)), want)


@pytest.mark.parametrize("length", [1, 2, 97, 128, 1000])
def test_full_rows_are_those_of_fnet(length):
    x = normal(2, length, 6)
    want = jax.jit(fourier_mix, static_argnums=1)(x, "definition")
    got = exact_fourier(x, jnp.full(2, length))
    assert_close(got / np.sqrt(6 * length), want / np.sqrt(6 * length))


def test_long_rows_keep_float32_accuracy():
    """Chirps of large squares: an angle in floats would be wrong by far more."""
    length, n = 16384, 16301
    x = np.zeros((1, length, 2), np.float32)
    x[0, :n] = np.random.default_rng(0).normal(size=(n, 2))
    want = np.fft.fft2(x[0, :n].astype(np.float64)).real
    got = exact_fourier(jnp.asarray(x), jnp.array([n]))[0, :n]
    assert abs(got - want).max() < 2e-6 * abs(want).max()


def test_a_text_with_holes_reaches_to_its_last_token():
    mixer = ExactFourier(dim=4, max_len=12, **FIELDS)
    x, mask = normal(1, 12, 4), np.arange(12)[None] < 7
    mask[0, 2] = False
    want = oracle.fourier_mix(*float64(np.where(mask[..., None], x, 0)[:, :7]))
    assert_close(applied(mixer, {}, x, mask)[:, :7], want)


@pytest.mark.parametrize("length", [7, 8])
def test_filter_is_a_circular_convolution(length):
    mixer = FourierFilter(dim=3, max_len=length, **FIELDS)
    x, mask = normal(2, length, 3), np.ones((2, length), bool)
    variables = random_variables(mixer, x, mask)
    real, imaginary = float64(*variables["params"]["filter"])
    want = oracle.fourier_filter(*float64(x), real + 1j * imaginary)
    assert_close(applied(mixer, variables, x, mask), want)
