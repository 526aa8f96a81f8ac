"""Attention, Linear and Performer against float64 oracles, closed forms and each other."""

import functools
import math
import os
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import (
    applied,
    assert_close,
    float64,
    initial,
    largest_array,
    new_key,
    normal,
    random_variables,
)

from lra_fnet import experiment
from lra_fnet.errors import UserError
from lra_fnet.models.kernels import blocks, fastest
from lra_fnet.models.kernels.pointwise import part_of_batch
from lra_fnet.models.mixer import draw_once
from lra_fnet.models.mixers import attention, linear, performer
from lra_fnet.models.mixers.convolution import Convolution
from lra_fnet.models.mixers.fourier_filter import FourierFilter
from lra_fnet.models.mixers.linear import LinearMixing
from lra_fnet.models.mixers.long_convolution import LongConvolution

FIELDS = {"dim": 6, "num_heads": 2, "qkv_dim": 4, "max_len": 7, "layer": 0, "num_layers": 2}
SHAPES = {"2x6x5": (2, 6, 5), "3x7x4": (3, 7, 4)}  # odd and unequal: a swapped axis cannot pass


def heads_and_mask(batch=3, length=7, heads=2, width=5):
    """Query, key, value, and a mask with a full row, a padded one and an empty one."""
    query, key, value = (normal(batch, length, heads, width, seed=seed) for seed in range(3))
    lengths = jnp.asarray([length, length - 3, 0])[:batch]
    return query, key, value, jnp.arange(length)[None] < lengths[:, None]


def shapes_of(mixer, x=None):
    """What `init` returns, as shapes: nothing is compiled."""
    x = jnp.ones((1, FIELDS["max_len"], FIELDS["dim"])) if x is None else x
    mask = jnp.ones(x.shape[:2], bool)
    return jax.eval_shape(functools.partial(mixer.init, train=False), new_key(0), x, mask)


# Attention


@pytest.mark.parametrize(
    ("leading", "dtype"),
    [((3, 2), jnp.float32), ((3, 2), jnp.bfloat16), ((1, 2), jnp.float32)],
    ids=["float32", "bfloat16", "broadcast"],
)
def test_products_and_their_gradients_equal_those_of_the_plain_sums(leading, dtype):
    """Integers and float64 sums: a wrong axis, a lost factor or a rounded sum would show."""
    rng = np.random.default_rng(0)

    def integers(*shape):
        return jnp.asarray(rng.integers(-4, 5, shape), dtype)

    weighted = functools.partial(blocks.weighted, dtype=jnp.float32)
    for product, axes in ((blocks.products, "qk,mk->qm"), (weighted, "qm,mk->qk")):
        first, second, result = (f"...{a}" for a in axes.replace("->", ",").split(","))
        shape = {"q": 5, "m": 6, "k": 4}
        left = integers(3, 2, *(shape[a] for a in first[3:]))
        right = integers(*leading, *(shape[a] for a in second[3:]))
        out, pull = jax.vjp(jax.jit(product), left, right)
        slope = integers(*out.shape).astype(jnp.float32)
        exact = float64(left, right, slope)
        want = np.einsum(f"{first},{second}->{result}", *exact[:2])
        by_left = np.einsum(f"{result},{second}->{first}", exact[2], exact[1])
        by_right = np.einsum(f"{result},{first}->{second}", exact[2], exact[0])
        if leading[0] == 1:
            by_right = by_right.sum(axis=0, keepdims=True)
        assert (out.dtype, np.array_equal(out, want)) == (jnp.float32, True)
        for got, exact_slope in zip(pull(slope), (by_left, by_right), strict=True):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, jnp.asarray(exact_slope, dtype))


@pytest.mark.parametrize(
    "attend",
    [
        attention.naive,
        *(functools.partial(attention.blockwise, block_size=size) for size in (1, 3, 100)),
        functools.partial(attention.fused, backend="xla"),
    ],
    ids=["naive", "block1", "block3", "block100", "fused"],
)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_attention_equals_the_oracle_with_padding_and_an_empty_row(monkeypatch, backend, attend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    inputs = heads_and_mask()
    got = jax.jit(attend)(*inputs)
    assert_close(got, oracle.softmax_attention(*float64(*inputs[:3]), np.asarray(inputs[3])))
    assert not np.asarray(got[2]).any()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("block_size", [2, 5])
def test_blockwise_gradient_equals_naive_gradient(monkeypatch, backend, block_size):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    query, key, value, mask = heads_and_mask()
    cotangent = normal(*value.shape, seed=9)

    def gradient(attend):
        def loss(*qkv):
            return (attend(*qkv, mask) * cotangent).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(query, key, value)

    blocks = functools.partial(attention.blockwise, block_size=block_size)
    for got, want in zip(gradient(blocks), gradient(attention.naive), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize(
    ("backend", "cores", "rate", "length", "weights"),
    [
        ("cpu", 1, 0.0, 256, (128, 256)),
        ("cpu", 1, 0.0, 2048, (128, 512)),
        ("cpu", 2, 0.0, 2048, (256, 1024)),
        ("cpu", 1, 0.5, 2048, (256, 2048)),  # another size would draw other bits
        ("gpu", 1, 0.0, 2048, (256, 2048)),
    ],
)
def test_weights_at_a_time_suit_the_device(monkeypatch, backend, cores, rate, length, weights):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert largest_block(length, rate) == math.prod(weights)


def largest_block(length, rate=0.0):
    dropout = {"rate": rate, "rng": new_key(0)} if rate else {}
    attend = functools.partial(attention.blockwise, block_size=256, **dropout)
    shapes = [jax.ShapeDtypeStruct((1, length, 1, 4), jnp.float32)] * 3
    return largest_array(attend, *shapes, jax.ShapeDtypeStruct((1, length), bool))


def test_a_run_keeps_its_tiles_on_other_cores(monkeypatch):
    with fastest.decisions({}):
        for cores in (1, 2):
            monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
            assert largest_block(2048) == 128 * 512


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_parts_of_a_batch_drop_other_weights_of_blockwise_attention(monkeypatch, backend):
    """Equal examples: no two rows of a batch in two parts share their draws."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    inputs = normal(2, 8, 2, 3), normal(2, 8, 2, 3), jnp.ones((2, 8, 2, 4)), jnp.ones((2, 8), bool)

    def dropped(number):
        with part_of_batch(number):
            return attention.blockwise(*inputs, block_size=4, rate=0.5, rng=new_key(0))

    rows = np.concatenate([jax.jit(dropped)(jnp.uint32(number)) for number in range(2)])
    assert len(np.unique(rows[..., 0].swapaxes(1, 2).reshape(8, 8), axis=0)) == 8


def attention_module(**changes):
    fields = {"implementation": "naive", "block_size": 4, "dropout": 0.0}
    return attention.Attention(**FIELDS, **(fields | changes))


def test_attention_with_berts_projections_equals_flaxs():
    """The FNet authors' BERT is Flax's attention (google-research/f_net, models.py)."""
    mixer, x = attention_module(projections="bert"), normal(3, 7, 6)
    mask = jnp.arange(7)[None] < jnp.asarray([7, 4, 1])[:, None]
    variables = random_variables(mixer, x, mask)
    params = {name: dict(leaves) for name, leaves in variables["params"].items()}
    for name in ("query", "key", "value"):
        params[name]["kernel"] = params[name]["kernel"].reshape(6, 2, 2)
        params[name]["bias"] = params[name]["bias"].reshape(2, 2)
    params["out"]["kernel"] = params["out"]["kernel"].reshape(2, 2, 6)
    theirs = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=4, out_features=6)
    keys = jnp.broadcast_to(mask[:, None, None], (3, 1, 7, 7))
    want = theirs.apply({"params": params}, x, mask=keys)
    assert_close(applied(mixer, variables, x, mask), want)


def test_uniform_padding_is_the_softmax_of_lras_code():
    """There a pair with padding has the bias -1e10, in which float32 loses the score."""
    x, mask = normal(3, 7, FIELDS["dim"]), heads_and_mask()[3]
    mixer = attention_module(padding="uniform")
    variables = {"params": jax.tree.map(lambda a: normal(*a.shape), shapes_of(mixer)["params"])}
    got = jax.jit(functools.partial(mixer.apply, train=False))(variables, x, mask)
    kernels = {name: np.asarray(part["kernel"]) for name, part in variables["params"].items()}
    q, k, v = (
        (np.asarray(x) @ kernels[name]).reshape(3, 7, FIELDS["num_heads"], -1)
        for name in ("query", "key", "value")
    )
    pairs = np.asarray(mask)[:, None, :, None] & np.asarray(mask)[:, None, None, :]
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(np.float32(q.shape[-1]))
    scores = scores + np.where(pairs, 0, np.float32(-1e10))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    want = np.einsum("bhqk,bkhd->bqhd", weights, v).reshape(3, 7, -1) @ kernels["out"]
    assert_close(got, want, 1e-4)
    assert mixer.uses_mask


def test_zero_padding_leaves_tokens_and_empties_the_rest():
    x, mask = normal(3, 7, FIELDS["dim"]), heads_and_mask()[3]
    zero, hidden = attention_module(padding="zero"), attention_module()
    variables = jax.tree.map(lambda a: normal(*a.shape), shapes_of(hidden))
    got, want = (m.apply(variables, x, mask, train=False) for m in (zero, hidden))
    assert_close(got, jnp.where(mask[..., None], want, 0), 1e-6)
    assert np.abs(np.asarray(want)[~np.asarray(mask)]).max() > 0.1
    assert zero.uses_mask


def test_seen_padding_takes_part_like_tokens():
    x, mask = normal(3, 7, FIELDS["dim"]), heads_and_mask()[3]
    seen, hidden = performer_module(padding="seen"), performer_module()
    variables = jax.tree.map(lambda a: normal(*a.shape), shapes_of(hidden))
    got = seen.apply(variables, x, mask, train=False)
    assert_close(got, hidden.apply(variables, x, jnp.ones_like(mask), train=False), 1e-6)
    assert (seen.uses_mask, hidden.uses_mask) == (False, True)


@pytest.mark.parametrize(
    ("backend", "dtype", "dropout", "reason"),
    [
        ("cpu", jnp.bfloat16, 0.0, "an NVIDIA GPU, .* got a cpu, bfloat16 and 0.0"),
        ("gpu", jnp.float32, 0.0, "Encoder.dtype = 'bfloat16' .* got a gpu, float32 and 0.0"),
        ("gpu", jnp.bfloat16, 0.1, "attention_dropout = 0, got a gpu, bfloat16 and 0.1"),
    ],
)
def test_fused_attention_says_why_it_cannot_run(monkeypatch, backend, dtype, dropout, reason):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    module = attention_module(implementation="fused", dropout=dropout)
    with pytest.raises(UserError, match=reason) as caught:
        shapes_of(module, jnp.ones((1, 7, 6), dtype))
    assert "or Attention.implementation = 'blockwise'" in str(caught.value)


def test_fused_attention_refuses_padding_between_tokens():
    """Its lengths cannot describe black pixels anywhere."""
    fused = ["Attention.implementation=fused"]
    with pytest.raises(UserError, match="implementation = fused needs padding at the end"):
        experiment.load("image", "transformer", "lra-code", fused)
    fused.append("Image.black_is_padding=False")
    built = experiment.load("image", "transformer", "lra-code", fused)
    assert built.model.encoder.mixers[0].implementation == "fused"


# Linear


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_linear_mix_equals_the_oracle(shape):
    _, length, dim = shape
    inputs = normal(*shape), normal(length, length, seed=1), normal(dim, dim, seed=2)
    assert_close(linear.linear_mix(*inputs), oracle.linear_mix(*float64(*inputs)))


def test_linear_mixing_refuses_another_length():
    mixer = linear.LinearMixing(**FIELDS, dropout=0.0)
    with pytest.raises(UserError) as caught:
        shapes_of(mixer, jnp.ones((1, 5, 6)))
    assert str(caught.value) == (
        "LinearMixing is built for exactly 7 positions, got 5: pad or cut every batch to 7"
    )


# Performer


def test_softmax_features_equal_the_oracle_with_padding_and_an_empty_row():
    query, key, value, mask = heads_and_mask()
    features = normal(9, 5)
    got = jax.jit(performer.softmax_attention)(query, key, value, mask, features)
    arrays = float64(query, key, value)
    assert_close(got, oracle.favor_attention(*arrays, np.asarray(mask), *float64(features)))
    assert not np.asarray(got[2]).any()


@pytest.mark.parametrize("projected", [False, True])
def test_relu_kernel_equals_the_oracle_with_padding_and_an_empty_row(projected):
    query, key, value, mask = heads_and_mask()
    features = normal(9, 5) if projected else None
    got = jax.jit(performer.relu_attention)(query, key, value, mask, features)
    projections = np.asarray(features, np.float64) if projected else None
    arrays = float64(query, key, value)
    assert_close(got, oracle.relu_attention(*arrays, np.asarray(mask), projections))
    assert not np.asarray(got[2]).any()


@functools.cache
def many_draws(*, orthogonal):
    """20 draws of 1024 rows in 4 dimensions, float64 [20, 1024, 4]; rows come in blocks of 4."""
    draw = functools.partial(
        performer.draw_features, num_features=1024, width=4, orthogonal=orthogonal
    )
    draws = jax.jit(jax.vmap(draw))(jax.random.split(new_key(1), 20))
    return np.asarray(draws, np.float64)


def test_performer_error_against_exact_attention_falls_with_features():
    query, key, value, mask = heads_and_mask(2, 7, 2, 4)
    query, key = query / 2, key / 2
    exact = attention.naive(query, key, value, mask)

    @jax.jit
    def error(draws):
        attend = functools.partial(performer.softmax_attention, query, key, value, mask)
        return jnp.sqrt(jnp.square(jax.vmap(attend)(draws) - exact[None]).mean())

    draws = jnp.asarray(many_draws(orthogonal=True), jnp.float32)
    errors = [float(error(draws[:, :num_features])) for num_features in (16, 128, 1024)]
    # Eight times the features make the error about sqrt(8) = 2.8 times smaller.
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.03


@pytest.mark.parametrize("orthogonal", [True, False])
def test_features_estimate_the_softmax_kernel_without_bias(orthogonal):
    blocks = many_draws(orthogonal=orthogonal).reshape(-1, 4, 4)  # independent blocks of 4 rows
    num_blocks = len(blocks)
    # Each row of a block is distributed as N(0, I): mean 0, covariance 1.
    assert abs(blocks.mean(axis=0)).max() < 5 / np.sqrt(num_blocks)
    covariance = np.einsum("nmi,nmj->mij", blocks, blocks) / num_blocks
    assert abs(covariance - np.eye(4)[None]).max() < 5 * np.sqrt(2 / num_blocks)
    query, key = np.asarray([0.5, -0.3, 0.4, 0.1]), np.asarray([0.6, 0.2, -0.5, 0.3])
    phi = [np.exp(blocks @ x - x @ x / 2) / np.sqrt(4) for x in (query, key)]
    estimates = (phi[0] * phi[1]).sum(axis=1)
    assert abs(estimates.mean() - np.exp(query @ key)) < 4 * estimates.std() / np.sqrt(num_blocks)


def test_orthogonal_features_are_orthogonal_in_blocks_with_chi_norms():
    draws = many_draws(orthogonal=True)
    norms = np.linalg.norm(draws, axis=-1)
    directions = (draws / norms[..., None]).reshape(-1, 4, 4)
    gram = directions @ directions.transpose(0, 2, 1)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(4), gram.shape), atol=1e-5)
    across = directions[:-1] @ directions[1:].transpose(0, 2, 1)
    assert abs(across).max() > 0.9  # one block says nothing about the next
    # Chi-squared with 4 degrees of freedom: mean 4, variance 8, over 20480 rows.
    assert abs((norms**2).mean() - 4) < 0.1
    assert abs((norms**2).var() - 8) < 1
    assert performer.draw_features(new_key(0), 10, 4).shape == (10, 4)  # a block cut short


def test_features_are_orthogonalised_one_block_at_a_time():
    """Batched QRs of several layers in one program wait for each other for ever on two cores."""
    draw = jax.jit(functools.partial(performer.draw_features, num_features=10, width=4))
    calls = re.findall(r"@lapack_s.* : \((tensor<.*?>)", draw.lower(new_key(0)).as_text())
    assert calls
    assert set(calls) == {"tensor<4x4xf32>"}


def test_orthogonal_features_estimate_better_than_independent_ones():
    x = np.asarray([0.5, -0.3, 0.4, 0.1])

    def variance(orthogonal):  # of the estimate from w and -w: the part that orthogonality helps
        blocks = many_draws(orthogonal=orthogonal).reshape(-1, 4, 4)
        return np.cosh(blocks @ x).mean(axis=1).var()

    assert variance(True) < 0.8 * variance(False)


def test_softmax_features_survive_huge_inputs():
    query, key, value, mask = heads_and_mask()
    features = normal(9, 5)
    got = np.asarray(performer.softmax_attention(100 * query, 100 * key, value, mask, features))
    low, high = float(value.min()), float(value.max())
    assert ((got >= low - 1e-4) & (got <= high + 1e-4)).all()  # means of values
    assert (got[:2] != 0).all()


def performer_module(**changes):
    fields = {"kernel": "softmax", "num_features": 8, "orthogonal": True, "redraw": False}
    return performer.Performer(**(FIELDS | fields | {"seed": 0, "dropout": 0.0} | changes))


def test_features_are_fixed_by_seed_and_layer_and_redrawn_only_in_training():
    def features(*, train=False, rng=0, **changes):
        module, rngs = performer_module(**changes), {"dropout": new_key(rng)}
        return np.asarray(module.apply({}, 4, train=train, rngs=rngs, method="features"))

    base = features()
    assert base.shape == (8, 4)
    assert (features(train=True, rng=1) == base).all()
    assert (features(seed=1) != base).any()
    assert (features(layer=1) != base).any()
    assert (features(orthogonal=False) != base).any()
    assert (features(redraw=True) == base).all()
    first, again, other = (features(redraw=True, train=True, rng=rng) for rng in (0, 0, 1))
    assert (first == again).all()
    assert (first != base).any()
    assert (first != other).any()


def test_fixed_draws_are_those_of_threefry_under_any_default_generator():
    want = jax.random.fold_in(jax.random.key(3, impl="threefry2x32"), 1)
    for impl in ("threefry2x32", "rbg"):
        with jax.default_prng_impl(impl):
            got = draw_once(functools.partial(jax.random.normal, shape=(4,)), 3, 1)
        np.testing.assert_array_equal(got, jax.random.normal(want, (4,)))


@pytest.mark.parametrize(
    ("cls", "settings", "name", "scale"),
    [
        (LinearMixing, {"dim": 100, "max_len": 100}, "sequence", 0.02),
        (LinearMixing, {"dim": 100, "max_len": 100}, "hidden", 0.02),
        (FourierFilter, {"dim": 700}, "filter", 0.02),
        (Convolution, {"dim": 500, "width": 4}, "taps", 0.5),
        (
            LongConvolution,
            {"dim": 500, "threshold": 0.2, "scale": 0.05, "gate": "none"},
            "kernel",
            0.05,
        ),
    ],
)
def test_parameters_begin_with_their_scale(cls, settings, name, scale):
    mixer = cls(**FIELDS | {"dropout": 0.0} | settings)
    x = normal(1, mixer.max_len, mixer.dim)
    params = initial(mixer, x, np.ones(x.shape[:2], bool))["params"]
    assert np.std(params[name]) == pytest.approx(scale, rel=0.05)
