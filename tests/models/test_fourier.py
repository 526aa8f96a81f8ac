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
from jax import lax

from lra_fnet.errors import UserError
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


@pytest.mark.parametrize("size", [16384, 65535, 65536])
def test_angles_are_reduced_in_whole_numbers(size):
    n, k = np.meshgrid(*[[1, size // 2, size // 2 + 1, size - 2, size - 1]] * 2)
    got = fourier._angle(*(jnp.asarray(a, jnp.uint32) for a in (n, k)), size, jnp.float32)
    for a, b, angle in zip(n.flat, k.flat, np.float64(got).flat, strict=True):
        turns = int(a) * int(b) % size / size
        assert abs(angle) <= np.pi + 1e-6
        assert abs(np.exp(1j * angle) - np.exp(2j * np.pi * turns)) < 4e-7


def test_matmul_refuses_a_length_that_overflows():
    message = (
        "a DFT matrix takes at most 65536 entries a side, got 65537: set Fourier.method to rfft"
    )
    with pytest.raises(UserError, match=message):
        jax.eval_shape(fourier.matmul, jax.ShapeDtypeStruct((1, 65537, 4), jnp.float32))


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


@pytest.mark.parametrize("method", fourier.TRANSFORMS)
def test_the_definition_alone_has_forward_mode(method):
    @jax.jit
    def forward(x):
        return jax.jvp(fourier.TRANSFORMS[method], (x,), (x,))

    if method == "definition":
        forward.lower(normal(2, 6, 5))
    else:
        with pytest.raises(TypeError, match="forward-mode"):
            forward.lower(normal(2, 6, 5))


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


def test_fourier_under_vmap_scan_and_remat_with_gradient():
    x = normal(3, 2, 6, 5)

    def through(f):
        def loss(x):
            by_vmap = jax.vmap(jax.vmap(f))(x)
            _, by_scan = lax.scan(lambda carry, row: (carry, jax.checkpoint(f)(row)), 0, x)
            return (by_vmap**2).sum() + (by_scan**3).sum(), (by_vmap, by_scan)

        return jax.jit(jax.grad(loss, has_aux=True))(x)

    (want_gradient, (want, _)) = through(fourier.definition)
    (gradient, outputs) = through(fourier.rfft)
    for got in outputs:
        assert_close(got, want)
    assert_close(gradient / abs(want_gradient).max(), want_gradient / abs(want_gradient).max())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_fourier_output_is_symmetric_and_twice_gives_the_even_part(shape):
    _, length, dim = shape
    x = normal(*shape)

    def reverse(a):  # a[-n, -k]
        return np.asarray(a)[:, -np.arange(length)][:, :, -np.arange(dim)]

    y = fourier.rfft(x)
    assert_close(y, reverse(y))
    assert_close(fourier.rfft(y), length * dim * (np.asarray(x) + reverse(x)) / 2, 1e-4)


def test_fourier_takes_bfloat16_and_returns_it():
    x = normal(2, 6, 5).astype(jnp.bfloat16)
    got = fourier.fourier_mix(x, "rfft")
    want = fourier.definition(x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert got.dtype == jnp.bfloat16
    assert_close(got.astype(jnp.float32), want.astype(jnp.float32), 1e-2)


@pytest.mark.parametrize("length", [12, 36, 101, 128])
def test_four_step_takes_square_smooth_and_prime_lengths_of_wide_inputs(length):
    x = normal(1, length, 33)
    want = np.fft.fft2(np.asarray(x, np.float64)).real
    got = np.asarray(jax.jit(fourier.four_step)(x))
    assert abs(got - want).max() <= 1e-6 * abs(want).max()


def test_four_step_multiplies_less_than_whole_matrices_do():
    def products(transform, length):
        program = jax.jit(transform).lower(jnp.zeros((1, length, 8), jnp.float32)).compile()
        return program.cost_analysis()["flops"]

    assert products(fourier.four_step, 1024) < products(fourier.matmul, 1024) / 8
    growth = products(fourier.four_step, 4096) / products(fourier.four_step, 1024)
    assert growth < 4 * 2 * 1.1  # L N1 with N1 = sqrt(L)


def test_auto_takes_the_papers_choice_for_small_inputs(monkeypatch):
    for cores, name in ((1, "rfft"), (2, "packed")):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert fourier.explain((1, 512, 8)).name == name
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert fourier.explain((1, 512, 8)).name == "rfft"
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert [fourier.explain((1, n, 8)).name for n in (4096, 4097)] == ["matmul", "rfft"]


def test_auto_measures_large_inputs_and_takes_the_fastest(monkeypatch):
    asked = []

    def choose(what, candidates, shape, usual):
        asked.append((what, tuple(candidates), shape, usual))
        return fastest.Choice("four_step")

    monkeypatch.setattr(fastest, "fastest", choose)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    fourier.explain((4, 4096, 17))
    assert asked.pop()[1::2] == (("packed", "matmul_fft", "four_step", "matmul"), "packed")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    methods = ("rfft", "matmul_fft", "four_step", "matmul")
    # 4001, 16411 and 65537 are prime: the inner matrix of four_step is the whole one.
    counts = {4001: 4, 4096: 4, 4097: 3, 16385: 3, 16411: 2, 65537: 2}
    for length in counts:
        assert fourier.explain((4, length, 17)).name == "four_step"
    assert asked == [
        ("fourier method", methods[:count], (4, length, 17), "rfft")
        for length, count in counts.items()
    ]


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


def test_auto_decides_for_a_call_and_not_for_initialisation(monkeypatch):
    monkeypatch.setattr(fourier, "MEASURED_MIN_SIZE", 0)
    monkeypatch.setattr(fastest, "fastest", lambda *_: fastest.Choice("four_step"))
    sizes = {"dim": 5, "num_heads": 1, "qkv_dim": 5, "max_len": 6, "layer": 0, "num_layers": 1}
    mixer = fourier.Fourier(method="auto", dropout=0.0, **sizes)
    x, mask = normal(2, 6, 5), jnp.ones((2, 6), bool)
    with fastest.decisions({}) as made:
        mixer.init(jax.random.key(0), x, mask, train=False)
        assert made == {}
        mixer.apply({}, x, mask, train=False)
    assert list(made.values()) == ["four_step"]
