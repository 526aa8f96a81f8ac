"""Fourier mixing: every method against the DFT by its definition, and the map's own identities."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import assert_close, normal

from lra_fnet.models.kernels import fastest
from lra_fnet.models.mixers import fourier

SHAPES = {"2x6x5": (2, 6, 5), "3x7x4": (3, 7, 4)}  # odd and unequal: a swapped axis cannot pass
SIZES = (1, 2, 3, 5, 8, 13, 64, 96)  # of both axes of the transform: odd, even, prime, smooth


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("method", ["auto", "definition"])  # the others: every size, below
def test_fourier_mix_equals_the_oracle(method, shape):
    x = normal(*shape)
    assert_close(fourier.fourier_mix(x, method), oracle.fourier_mix(np.asarray(x, np.float64)))


@pytest.mark.parametrize("length", SIZES)
def test_every_method_transforms_every_size_to_a_millionth(length):
    inputs = [normal(2, length, dim) for dim in SIZES]
    few = SIZES[::3]
    by_matrices = ((fourier.TRANSFORMS[m], few) for m in ("matmul", "matmul_fft", "four_step"))
    for transform, dims in ((fourier.rfft, SIZES), (fourier.packed, SIZES), *by_matrices):
        chosen = [x for x in inputs if x.shape[2] in dims]
        outputs = jax.jit(lambda xs, f=transform: [f(x) for x in xs])(chosen)
        for x, got in zip(chosen, outputs, strict=True):
            want = np.fft.fft2(np.asarray(x, np.float64)).real  # NumPy transforms in float64
            assert got.shape == want.shape
            assert got.dtype == jnp.float32
            assert abs(np.asarray(got) - want).max() <= 1e-6 * abs(want).max()


def test_matmul_by_matrices_that_the_program_makes_is_good_to_two_millionths(monkeypatch):
    """How a sum of 2,049 numbers in float32 is rounded depends on the processor."""
    monkeypatch.setattr(fourier, "CONSTANT_MAX_SIZE", 0)
    shapes = [(1, 1, 1), (2, 13, 8), (2, 8, 13), (1, 2049, 3)]
    outputs = jax.jit(lambda xs: [fourier.matmul(x) for x in xs])([normal(*s) for s in shapes])
    for shape, got in zip(shapes, outputs, strict=True):
        want = np.fft.fft2(np.asarray(normal(*shape), np.float64)).real
        assert abs(np.asarray(got) - want).max() <= 2e-6 * abs(want).max()


def test_matmul_at_16384_tokens_holds_no_matrix_as_a_constant():
    x = jax.ShapeDtypeStruct((1, 16384, 64), jnp.float32)
    assert len(jax.jit(fourier.matmul).lower(x).as_text()) < 100_000


@pytest.mark.parametrize("method", [m for m in fourier.TRANSFORMS if m != "definition"])
def test_fourier_gradient_equals_the_definitions_autodiff(method):
    transform = fourier.TRANSFORMS[method]
    shapes = [(2, 6, 5), (3, 7, 4), (1, 1, 8), (2, 8, 1), (2, 8, 8)]

    def gradients(f):
        def loss(xs, ys):
            return sum((f(x) * y).sum() for x, y in zip(xs, ys, strict=True))

        return jax.jit(jax.grad(loss))(
            [normal(*s) for s in shapes], [normal(*s, seed=1) for s in shapes]
        )

    for got, want in zip(gradients(transform), gradients(fourier.definition), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("method", ["auto", *fourier.TRANSFORMS])
def test_ortho_divides_transform_and_gradient_by_the_root_of_their_size(method):
    x, cotangent = normal(2, 6, 5), normal(2, 6, 5, seed=1)

    @jax.jit
    def both(x):
        return jax.vjp(lambda x: fourier.fourier_mix(x, method, "ortho"), x)

    got, pull = both(x)
    for y, given in ((got, x), (pull(cotangent)[0], cotangent)):  # symmetric: its own transpose
        want = np.fft.fft2(np.asarray(given, np.float64), norm="ortho").real
        assert_close(y, want)


SEVERAL_CORES = """
import os
os.sched_setaffinity(0, range(os.cpu_count()))
import jax, jax.numpy as jnp, numpy as np
from lra_fnet.models.mixers import fourier, transforms
for transform in (fourier.packed, fourier.matmul_fft, transforms.hartley):
    for shape in ((8, 512, 64), (2, 1024, 64)):
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        # behind an operation that several threads share
        compute = jax.jit(lambda x: transform(jax.lax.optimization_barrier(jnp.tanh(x) * x)))
        found = {np.asarray(compute(x)).tobytes() for _ in range(60)}
        assert len(found) == 1, (transform, shape)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one order of sums")
def test_several_cores_give_the_same_bits_every_time():
    """`rfft` has two outcomes here within a few calls."""
    subprocess.run([sys.executable, "-c", SEVERAL_CORES], check=True)


def test_auto_takes_the_decision_of_the_run_that_it_resumes():
    x = normal(2, 6, 5)
    with fastest.decisions({"fourier 2x6x5 on cpu": "four_step"}):
        program = jax.make_jaxpr(lambda x: fourier.fourier_mix(x, "auto"))(x)
    assert str(program) == str(jax.make_jaxpr(lambda x: fourier.fourier_mix(x, "four_step"))(x))
    with fastest.decisions({}) as made:
        fourier.fourier_mix(x, "auto")
    assert made["fourier 2x6x5 on cpu"] == fourier.fastest_method((2, 6, 5))
