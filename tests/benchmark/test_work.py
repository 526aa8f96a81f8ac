"""Operations and dense products of traced programs, and the time of the products alone."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lra_fnet.benchmark import timing, work
from lra_fnet.models.mixers import attention


def counted(function, *inputs):
    return work.count(jax.make_jaxpr(function)(*inputs).jaxpr)


def test_products_of_a_scan_count_as_often_as_it_runs():
    weights = jnp.ones((3, 5, 4, 4))

    def inner(x, several):
        return lax.scan(lambda x, w: (x @ w, None), x, several)[0], None

    operations, products = counted(lambda x: lax.scan(inner, x, weights)[0], jnp.ones((3, 4)))
    assert operations == 3 * 5 * 2 * 3 * 4 * 4
    assert products == {work.Product(3, 4, 4, 1, "float32"): 15}


def test_batched_products_and_those_inside_calls_are_found():
    inner = jax.jit(lambda x: jnp.einsum("bik,bjk->bij", x, x))
    _, products = counted(lambda x: inner(x) + 1, jnp.ones((2, 3, 5), jnp.bfloat16))
    assert products == {work.Product(3, 5, 3, 2, "bfloat16"): 1}


def test_products_of_each_device_count():
    rows = jax.sharding.PartitionSpec("data")
    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    program = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=rows, out_specs=rows)
    assert counted(program, jnp.ones((6, 5)))[1] == {work.Product(3, 5, 3, 1, "float32"): 2}


def test_of_two_branches_the_one_with_more_operations_counts():
    def program(x, w):
        return lax.cond(x[0, 0] > 0, lambda x: x @ w @ w, lambda x: x @ w, x) @ w

    _, products = counted(program, *(jnp.ones((4, 4)),) * 2)
    assert products.total() == 3


@pytest.mark.parametrize(
    ("transform", "dtype", "usual"),
    [
        (jnp.fft.fft, complex, 5 * 3 * 8 * 16 * 4),
        (jnp.fft.rfft, float, 2.5 * 3 * 8 * 16 * 4),
        (jnp.fft.fft2, complex, 5 * 3 * 8 * 16 * 7),
        (lambda x: jnp.fft.irfft(x, 30), complex, 2.5 * 3 * 8 * 30 * np.log2(30)),
    ],
)
def test_operations_of_a_transform_are_the_usual_ones(transform, dtype, usual):
    assert counted(transform, jnp.ones((3, 8, 16), dtype))[0] == pytest.approx(usual, rel=0.01)


def test_operations_are_about_those_that_xla_counts():
    def program(x, w):
        y = jnp.tanh(x @ w) * 2 + x
        return (y - y.mean(-1, keepdims=True)) / jnp.sqrt(1 + y**2)

    x, w = jnp.ones((64, 32)), jnp.ones((32, 32))
    want = jax.jit(program).lower(x, w).cost_analysis()["flops"]
    assert counted(program, x, w)[0] == pytest.approx(want, rel=0.05)


def test_blockwise_attention_has_the_operations_of_naive_attention():
    inputs = *(jnp.ones((1, 64, 2, 4)),) * 3, jnp.ones((1, 64), bool)
    blockwise = functools.partial(attention.blockwise, block_size=16)
    counts = [counted(attend, *inputs)[0] for attend in (blockwise, attention.naive)]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)


def test_the_timed_program_does_each_of_its_products():
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=s).astype(np.float32) for s in ((2, 40, 30), (2, 30, 50)))
    given = jnp.asarray(left), jnp.asarray(right), 5
    compiled = work.multiply.lower(*given).compile()
    dots = re.findall(r"= f32\[2,40,50\]\S* dot\(.*", compiled.as_text())
    assert ["/while/body/" in dot for dot in dots] == [True]
    got = work.multiply(*given)
    for _ in range(5):
        left[0, 0, 0] = np.tanh((left @ right)[0, 0, 0])
    np.testing.assert_allclose(got, left, rtol=1e-5)


def test_the_floor_grows_with_the_work_and_counts_each_product():
    small, large = (work.Product(n, n, n, 1, "float32") for n in (32, 256))
    seconds = [work.floor_seconds({product: 10}, 0.02) for product in (small, large)]
    assert 0 < seconds[0] < seconds[1] / 5  # 512 times the operations
    assert work.floor_seconds({}, 1.0) == 0


def test_short_calls_are_repeated_and_the_fastest_counts(monkeypatch):
    clock, durations = [0.0], iter([5.0, 0.004, *[0.032] * 2, 0.016, 0.048])
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    repeats = []

    def call(times):
        repeats.append(times)
        clock[0] += next(durations)

    assert timing.least_seconds(call, 0.04) == pytest.approx(0.016 / 16)
    assert repeats == [1, 1, 16, 16, 16, 16]
