"""The other mixers of the FNet paper: transforms, fixed matrices, none, and the hybrid's layout."""

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
import scipy.fft
import scipy.linalg
from arrays import assert_close, initial, normal

from lra_fnet.models.encoder import parameter_count
from lra_fnet.models.mixers import random, transforms
from lra_fnet.models.mixers.hybrid import is_attention
from lra_fnet.models.mixers.none import NoMixing
from lra_fnet.models.mixers.random import RandomMixing

FIELDS = {"num_heads": 1, "qkv_dim": 1, "layer": 0, "num_layers": 2, "dropout": 0.0}
SIZES = (1, 2, 3, 5, 8, 13, 64, 96)  # of both axes of the transform: odd, even, prime, smooth


def corner(size):
    """The first rows and columns of SciPy's Hadamard matrix of the next power of two."""
    return scipy.linalg.hadamard(1 << (size - 1).bit_length())[:size, :size]


def by_library(name, x):
    """The transform in float64 by NumPy or SciPy."""
    x = np.asarray(x, np.float64)
    if name == "sequence_fourier":
        return np.fft.fft(x, axis=1).real
    if name == "hartley":
        spectrum = np.fft.fft2(x)
        return spectrum.real - spectrum.imag
    if name == "dct":
        return scipy.fft.dctn(x, type=2, axes=(1, 2)) / 4
    return corner(x.shape[1]) @ x @ corner(x.shape[2])


@pytest.mark.parametrize("name", ["sequence_fourier", "hartley", "dct", "hadamard"])
def test_transform_of_every_size_is_good_to_a_millionth(name):
    inputs = [normal(2, length, dim) for length in SIZES for dim in (3, 64)]
    transform = getattr(transforms, name)
    outputs = jax.jit(lambda xs: [transform(x) for x in xs])(inputs)
    for x, got in zip(inputs, outputs, strict=True):
        want = by_library(name, x)
        assert got.shape == want.shape
        assert got.dtype == jnp.float32
        assert abs(np.asarray(got) - want).max() <= 1e-6 * abs(want).max()


# Random


def test_random_mixing_is_linear_mixing_by_constants():
    mixer = RandomMixing(**FIELDS, dim=5, max_len=7, seed=0)
    x, mask = normal(3, 7, 5), jnp.ones((3, 7), bool)
    variables = initial(mixer, x, mask, seed=1)
    assert list(variables) == ["constants"]
    fixed = {name: np.float64(leaf) for name, leaf in variables["constants"].items()}
    got = mixer.apply(variables, x, mask, train=False)
    assert_close(got, oracle.linear_mix(np.float64(x), fixed["sequence"], fixed["hidden"]))
    assert parameter_count({"params": {}} | variables) == 0


def test_random_matrices_are_lecun_normal():
    matrix = np.asarray(random.draw_matrix(jax.random.key(0), 300))
    assert matrix.std() == pytest.approx(300**-0.5, rel=0.02)
    assert abs(matrix.mean()) < 4 * 300**-1.5
    assert abs(matrix).max() <= 2 * 300**-0.5 / 0.87962  # cut at two deviations of the normal
    assert abs(np.corrcoef(matrix)[np.triu_indices(300, 1)]).max() < 6 * 300**-0.5


def test_random_matrix_is_drawn_without_another_of_its_size():
    draw = jax.jit(lambda: random.draw_matrix(jax.random.key(0), 2048)).lower().compile()
    memory = draw.memory_analysis()
    assert memory.output_size_in_bytes == 4 * 2048**2
    assert memory.temp_size_in_bytes < memory.output_size_in_bytes / 50


# Nothing


@pytest.mark.parametrize(("identity", "share"), [(False, 0), (True, 1)])
def test_no_mixing_adds_nothing_or_the_input(identity, share):
    x = normal(2, 6, 5)
    mixer = NoMixing(dim=5, max_len=6, identity=identity, **FIELDS)
    got = mixer.apply({}, x, jnp.ones((2, 6), bool), train=False)
    assert (got == share * x).all()
    assert got.dtype == x.dtype


# Hybrid


@pytest.mark.parametrize(
    ("layout", "count", "want"),
    [
        ("TOP", 2, [10, 11]),
        ("BOTTOM", 2, [0, 1]),
        ("MIDDLE", 2, [5, 6]),
        ("MIXED", 2, [0, 6]),
        ("MIXED", 4, [0, 3, 6, 9]),
        ("MIDDLE", 3, [5, 6, 7]),
        ("MIXED", 5, [0, 3, 5, 8, 10]),
    ],
)
def test_hybrid_layout_of_twelve_layers(layout, count, want):
    got = [layer for layer in range(12) if is_attention(layer, 12, count, layout)]
    assert got == want


@pytest.mark.parametrize("layout", ["TOP", "BOTTOM", "MIDDLE", "MIXED"])
def test_hybrid_has_the_requested_number_of_attention_layers(layout):
    for num_layers in range(1, 9):
        for count in range(11):
            chosen = [is_attention(i, num_layers, count, layout) for i in range(num_layers)]
            assert sum(chosen) == min(count, num_layers)
            if layout == "MIXED" and 0 < count <= num_layers and num_layers % count == 0:
                every = num_layers // count  # the authors' rule
                assert chosen == [layer % every == 0 for layer in range(num_layers)]
