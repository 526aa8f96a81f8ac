"""Operations on each token against float64 oracles, flax, and the statistics of a random mask."""

import functools
import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import applied, assert_close, float64, new_key, normal

from lra_fnet.models.kernels import pointwise

keep = jax.jit(pointwise.keep, static_argnums=(1, 2))


def kept_by_backward(function, *inputs):
    """Counts the entries that the backward pass keeps, inputs included."""
    _, backward = jax.eval_shape(functools.partial(jax.vjp, function), *inputs)
    return sum(leaf.size for leaf in jax.tree.leaves(backward) if hasattr(leaf, "size"))


def slopes(function, weights, *inputs):
    """Gradients in all inputs of the sum of function(*inputs), weighted."""

    def loss(*inputs):
        return (function(*inputs) * weights).sum()

    return jax.jit(jax.grad(loss, tuple(range(len(inputs)))))(*inputs)


def test_batch_norm_equals_the_oracle_and_keeps_running_averages():
    """Statistics of real tokens only, whatever padding holds; the averages after two batches."""
    module = pointwise.BatchNorm(1e-3, momentum=0.75)
    mask = np.array([[True, True, False], [True, False, False]])
    params = {"scale": normal(5, seed=1), "bias": normal(5, seed=2)}
    averages = np.stack([np.zeros(5), np.ones(5)])
    variables = {"params": params, "averages": {"moments": jnp.float32(averages)}}

    def expected(x, moments):
        scale, bias = float64(*params.values())
        return (x - moments[0]) / np.sqrt(moments[1] + 1e-3) * scale + bias

    train = jax.jit(functools.partial(module.apply, train=True, mutable=["averages"]))
    for seed, padding in ((3, 1e3), (4, -7.0)):
        x = jnp.where(mask[..., None], 2 + normal(2, 3, 5, seed=seed), padding)
        moments = oracle.batch_moments(*float64(x), mask)
        got, changed = train(variables, x, mask)
        assert_close(got[mask], expected(*float64(x), moments)[mask])
        averages = 0.75 * averages + 0.25 * moments
        variables |= changed
    assert_close(changed["averages"]["moments"], averages)
    assert_close(applied(module, variables, x, mask), expected(*float64(x), averages))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_norm_gradients_are_those_of_the_formula(dtype):
    """By autodiff through the moments; padding has cotangents too, and one row is all padding."""
    x, weights = (2 + normal(3, 5, 4)).astype(dtype), normal(3, 5, 4, seed=3)
    mask = np.arange(5) < np.array([[5], [2], [0]])
    module = pointwise.BatchNorm(1e-3, momentum=0.75)
    params = {"scale": normal(4, seed=1), "bias": normal(4, seed=2)}
    averages = {"moments": jnp.zeros((2, 4))}

    def ours(x, params):
        variables = {"params": params, "averages": averages}
        return module.apply(variables, x, mask, train=True, mutable=["averages"])[0]

    def formula(x, params):
        wide = x.astype("float32")
        mean, variance = pointwise.masked_moments(wide, mask)[:, None, None]
        scale, bias = (params[name][None, None] for name in ("scale", "bias"))
        return ((wide - mean) / jnp.sqrt(variance + 1e-3) * scale + bias).astype(dtype)

    got, want = (slopes(function, weights, x, params) for function in (ours, formula))
    assert jax.tree.map(lambda a: a.dtype, got) == jax.tree.map(lambda a: a.dtype, want)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(*float64(a, b), rtol=tolerance, atol=tolerance),
        got,
        want,
    )


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7)])
def test_layer_norm_gradients_equal_those_of_flax(shape):
    x, weights = normal(*shape), normal(*shape, seed=3)
    params = {"scale": normal(shape[-1], seed=1), "bias": normal(shape[-1], seed=2)}

    got, want = (
        slopes(lambda params, x, m=module: m.apply({"params": params}, x), weights, params, x)
        for module in (pointwise.LayerNorm(1e-6), nn.LayerNorm(1e-6))
    )
    jax.tree.map(assert_close, got, want)


def test_recompute_keeps_only_the_arguments_and_has_the_same_values_and_gradients():
    x, kernel, key = normal(6, 50), normal(50, 3), new_key(0)

    def product(x, kernel, key):
        return jnp.tanh(pointwise.dropout(nn.gelu(x), key, 0.2)) @ kernel

    def again(x, kernel):
        return pointwise.recompute(product, x, kernel, key)

    def plain(x, kernel):
        return product(x, kernel, key)

    assert_close(jax.jit(again)(x, kernel), jax.jit(plain)(x, kernel))
    weights = normal(6, 3, seed=1)
    jax.tree.map(assert_close, slopes(again, weights, x, kernel), slopes(plain, weights, x, kernel))
    arguments = x.size + kernel.size
    assert kept_by_backward(again, x, kernel) < arguments + 10  # and the key
    assert kept_by_backward(plain, x, kernel) > arguments + 2 * x.size


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 3, 5, 4)])
def test_flat_product_and_its_gradients_equal_those_of_a_plain_product(shape):
    x, kernel, weights = normal(*shape), normal(4, 6), normal(*shape[:-1], 6)

    assert_close(pointwise.flat_product(x, kernel), x @ kernel)
    products = pointwise.flat_product, jnp.matmul
    jax.tree.map(assert_close, *(slopes(product, weights, x, kernel) for product in products))


def test_the_mask_is_the_hash_of_key_row_and_column():
    """In plain integers: rows twice, then the column with the row's words."""
    key, rate = new_key(3), 0.3
    words = [int(word) for word in jax.random.bits(key, (3,), jnp.uint32)]
    got = np.asarray(keep(key, (2, 3, 5), rate))
    for b, n, d in itertools.product(range(2), range(3), range(5)):
        first = oracle.lowbias32(oracle.lowbias32((b * 3 + n) ^ words[0], words[1]), words[2])
        second = oracle.lowbias32(first, words[0])
        entry = oracle.lowbias32((d * 0x9E3779B9 + first) % 2**32, second)
        assert got[b, n, d] == (entry >= rate * 2**32)


def deviations(successes, trials, probability):
    """Returns the distance of a count from its expectation in standard deviations."""
    expected = trials * probability
    return abs(successes - expected) / math.sqrt(expected * (1 - probability))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_entries_are_kept_at_the_rate_overall_and_in_every_row_and_column(rate):
    mask = np.asarray(keep(new_key(0), (64, 128, 96), rate))
    assert deviations(mask.sum(), mask.size, 1 - rate) < 4.5
    assert deviations(mask.sum(axis=(0, 1)), 64 * 128, 1 - rate).max() < 5
    assert deviations(mask.sum(axis=2), 96, 1 - rate).max() < 9  # 8192 rows of 96: long tails
    assert deviations(mask.sum(axis=(1, 2)), 128 * 96, 1 - rate).max() < 4.5


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_entries_of_a_mask_and_masks_of_different_keys_are_independent(rate):
    masks = np.stack([keep(new_key(k), (256, 512), rate) for k in range(3)])
    pairs = {
        "columns": (masks[:, :, 1:], masks[:, :, :-1]),
        "columns, two apart": (masks[:, :, 2:], masks[:, :, :-2]),
        "rows": (masks[:, 1:], masks[:, :-1]),
        "diagonals": (masks[:, 1:, 1:], masks[:, :-1, :-1]),
        "halves of a row": (masks[:, :, 256:], masks[:, :, :256]),
        "keys": (masks[1:], masks[:-1]),
    }
    for what, (one, other) in pairs.items():
        assert deviations((one & other).sum(), one.size, (1 - rate) ** 2) < 4.5, what
    fours = sum(masks[..., i::4].astype(int) << i for i in range(4))  # 16 patterns
    counts = np.bincount(fours.ravel(), minlength=16)
    chances = [(1 - rate) ** p.bit_count() * rate ** (4 - p.bit_count()) for p in range(16)]
    expected = fours.size * np.array(chances)
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 15 degrees: once in 20,000 masks


def test_dropout_scales_kept_entries_and_its_gradient_has_the_same_mask():
    x, key = 1 + normal(8, 40) ** 2, new_key(2)

    def call(x):
        return pointwise.dropout(x, key, 0.25)

    y, backward = jax.jit(functools.partial(jax.vjp, call))(x)
    mask = np.asarray(keep(key, x.shape, 0.25))
    assert_close(y, np.where(mask, x / 0.75, 0))
    assert_close(backward(x)[0], np.where(mask, x / 0.75, 0))
    assert kept_by_backward(call, x) < 10  # the key, not the mask


def test_dropout_in_bfloat16_scales_by_the_number_itself():
    """1 / 0.9 rounded to bfloat16 would make all sums 0.16 % too small."""
    x = jnp.asarray(1 + normal(64, 400) ** 2, jnp.bfloat16)
    y = jax.jit(lambda x: pointwise.dropout(x, new_key(2), 0.1))(x)
    assert y.dtype == jnp.bfloat16
    before, after = float64(x, y)
    scale = after.sum() / before[after != 0].sum()
    assert abs(0.9 * scale - 1) < 2e-4


def test_the_dropout_module_acts_in_training_only_and_needs_no_key_at_rate_0():
    x = 1 + normal(8, 40) ** 2
    module = pointwise.Dropout(0.5)
    assert module.apply({}, x, train=False) is x
    assert pointwise.Dropout(0.0).apply({}, x, train=True) is x
    runs = [applied(module, {}, x, train=True, rngs={"dropout": new_key(k)}) for k in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()


@pytest.mark.parametrize("shared", [True, False])
def test_parts_of_a_batch_share_the_mask_of_what_all_rows_share_and_nothing_else(shared):
    module, x = pointwise.Dropout(0.5, shared=shared), np.ones((8, 40), np.float32)
    parts = []
    for number in (0, 1):
        with pointwise.part_of_batch(number):
            parts.append(np.asarray(module.apply({}, x, train=True, rngs={"dropout": new_key(0)})))
    assert (parts[0] == parts[1]).all() == shared
