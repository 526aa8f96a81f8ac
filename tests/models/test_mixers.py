"""Attention, Linear and Performer against float64 oracles, closed forms and each other."""

import functools

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
    new_key,
    normal,
    random_variables,
    shapes_of,
)

from lra_fnet import experiment
from lra_fnet.errors import UserError
from lra_fnet.models.kernels import fastest
from lra_fnet.models.kernels.pointwise import part_of_batch
from lra_fnet.models.mixers import attention, linear, performer
from lra_fnet.models.mixers.convolution import Convolution
from lra_fnet.models.mixers.fourier_filter import FourierFilter
from lra_fnet.models.mixers.linear import LinearMixing
from lra_fnet.models.mixers.linformer import Linformer
from lra_fnet.models.mixers.long_convolution import LongConvolution
from lra_fnet.models.mixers.sinkhorn import Sinkhorn
from lra_fnet.models.mixers.synthesizer import Synthesizer

FIELDS = {"dim": 6, "num_heads": 2, "qkv_dim": 4, "max_len": 7, "layer": 0, "num_layers": 2}
SHAPES = {"2x6x5": (2, 6, 5), "3x7x4": (3, 7, 4)}  # odd and unequal: a swapped axis cannot pass


def heads_and_mask(batch=3, length=7, heads=2, width=5):
    """Query, key, value, and a mask with a full row, a padded one and an empty one."""
    query, key, value = (normal(batch, length, heads, width, seed=seed) for seed in range(3))
    lengths = jnp.asarray([length, length - 3, 0])[:batch]
    return query, key, value, jnp.arange(length)[None] < lengths[:, None]


# Attention


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


@pytest.mark.parametrize(
    ("shape", "made", "way"),
    [
        ((8, 128, 4, 3), {}, "naive"),
        ((1, 128, 4, 3), {}, "small"),  # takes no time
        ((8, 256, 4, 3), {}, "small"),  # does not fit the caches
        ((8, 128, 4, 3), {"tiles of attention on cpu": "large"}, "large"),  # an older run
    ],
)
def test_whole_weights_are_chosen_where_they_are_faster(monkeypatch, shape, made, way):
    def naive_wins(what, ways, shape, usual):
        results = [attend(normal(1, 6, 2, 3)) for attend in ways.values()]
        for one, other in zip(*results, strict=True):
            assert_close(one, other)
        return "naive"

    monkeypatch.setattr(attention.fastest, "fastest", naive_wins)
    monkeypatch.setattr(attention, "cores_of_device", lambda: 1)
    with fastest.decisions(made):
        assert attention.fastest_on_cpu(shape) == way


def test_attention_takes_the_way_that_was_decided():
    x, mask = normal(2, 7, 6), jnp.arange(7)[None] < jnp.asarray([7, 4])[:, None]
    whole, tiled = attention_module(), attention_module(implementation="blockwise")
    with fastest.decisions({}) as made:
        variables = initial(tiled, x, mask)
        assert made == {}
        applied(tiled, variables, x, mask)
        assert made.keys() == {"attention 2x7x2x2 on cpu"}

    def program(mixer, way):
        with fastest.decisions({"attention 2x7x2x2 on cpu": way}):
            return jax.jit(lambda x: mixer.apply(variables, x, mask, train=True)).lower(x).as_text()

    assert program(tiled, "naive") == program(whole, "") != program(tiled, "small")


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
    variables = {
        "params": jax.tree.map(lambda a: normal(*a.shape), shapes_of(mixer, x, mask)["params"])
    }
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
    variables = jax.tree.map(lambda a: normal(*a.shape), shapes_of(hidden, x, mask))
    got, want = (m.apply(variables, x, mask, train=False) for m in (zero, hidden))
    assert_close(got, jnp.where(mask[..., None], want, 0), 1e-6)
    assert np.abs(np.asarray(want)[~np.asarray(mask)]).max() > 0.1
    assert zero.uses_mask


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


# Performer


@pytest.mark.parametrize(
    ("attend", "features", "exact"),
    [
        (performer.softmax_attention, normal(9, 5), oracle.favor_attention),
        (performer.relu_attention, normal(9, 5), oracle.relu_attention),
        (performer.relu_attention, None, oracle.relu_attention),
    ],
    ids=["softmax", "relu, projected", "relu"],
)
def test_performer_equals_the_oracle_with_padding_and_an_empty_row(attend, features, exact):
    *inputs, mask = heads_and_mask()
    got = jax.jit(attend)(*inputs, mask, features)
    features = None if features is None else np.asarray(features, np.float64)
    assert_close(got, exact(*float64(*inputs), np.asarray(mask), features))
    assert not np.asarray(got[2]).any()


@functools.cache
def many_draws(*, orthogonal):
    """20 draws of 1024 rows in 4 dimensions, float64 [20, 1024, 4]; rows come in blocks of 4."""
    draw = functools.partial(
        performer.draw_features, num_features=1024, width=4, orthogonal=orthogonal
    )
    draws = jax.jit(jax.vmap(draw))(jax.random.split(new_key(1), 20))
    return np.asarray(draws, np.float64)


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


def test_softmax_features_survive_huge_inputs():
    query, key, value, mask = heads_and_mask()
    features = normal(9, 5)
    got = np.asarray(performer.softmax_attention(100 * query, 100 * key, value, mask, features))
    low, high = float(value.min()), float(value.max())
    assert ((got >= low - 1e-4) & (got <= high + 1e-4)).all()  # means of values
    assert (got[:2] != 0).all()


SQUARE = {"dim": 100, "max_len": 100}
LONG = {"dim": 500, "threshold": 0.2, "scale": 0.05, "gate": "none"}
SHARED = {"k": 64, "sharing": "headwise", "max_len": 512}
RANDOM = {"kinds": ("random", "factorized_random"), "factor": 4, "block_size": 3, "max_len": 50}
SORTED = {"block_size": 3, "iterations": 3, "temperature": 0.75, "gumbel": False, "dim": 300}


@pytest.mark.parametrize(
    ("cls", "settings", "name", "scale"),
    [
        (LinearMixing, SQUARE, "sequence", 0.02),
        (LinearMixing, SQUARE, "hidden", 0.02),
        (FourierFilter, {"dim": 700}, "filter", 0.02),
        (Convolution, {"dim": 500, "width": 4}, "taps", 0.5),
        (LongConvolution, LONG, "kernel", 0.05),
        (Linformer, SHARED, "project_key", 512**-0.5),  # keys keep their size
        (Linformer, SHARED, "project_value", 512**-0.5),
        (Synthesizer, RANDOM, "random", (2 / 100) ** 0.5),  # xavier, of each head's own matrix
        (Synthesizer, RANDOM, "factorized_random_left", (2 / 54) ** 0.5),
        (Sinkhorn, SORTED, "sort_hidden", (2 / 600) ** 0.5),
        (Sinkhorn, SORTED, "sort_logits", (2 / 306) ** 0.5),
    ],
)
def test_parameters_begin_with_their_scale(cls, settings, name, scale):
    mixer = cls(**FIELDS | {"dropout": 0.0} | settings)
    x = normal(1, mixer.max_len, mixer.dim)
    params = initial(mixer, x, np.ones(x.shape[:2], bool))["params"]
    leaf = params[name]["kernel"] if isinstance(params[name], dict) else params[name]
    assert np.std(leaf) == pytest.approx(scale, rel=0.05)
