"""Heads for one text and for two, and the encoder that two texts share."""

import functools

import arrays
import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import TINY, applied, assert_close

from lra_fnet.models.encoder import Encoder
from lra_fnet.models.heads import Classifier, Denoiser, Head
from lra_fnet.models.mixers.attention import Attention

WIDTH, CLASSES = 6, 3
ENCODER = Encoder(
    **(TINY | {"pooling": "cls"}),
    mixers=functools.partial(Attention, implementation="naive", block_size=4),
    parent=None,
)
LENGTHS = np.array([[8, 3], [2, 5], [4, 4], [1, 8]])
MASK = np.arange(8) < LENGTHS[..., None]  # [4, 2, 8]
IDS = np.where(MASK, np.random.default_rng(0).integers(1, 12, MASK.shape), 0).astype(np.int32)


def two_texts(interaction):
    return Head(CLASSES, mlp_dim=16, num_inputs=2, interaction=interaction, parent=None)


def random_variables(init, *inputs):
    """Variables with every parameter random (NumPy, float32)."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(init, jax.random.key(0), *inputs)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


def in_float64(variables):
    return jax.tree.map(np.float64, variables["params"])


def test_the_head_of_one_text_equals_the_oracle_in_float32():
    head = Head(CLASSES, mlp_dim=4)
    pooled = jnp.asarray(np.random.default_rng(0).normal(size=(2, WIDTH)), jnp.bfloat16)
    variables = random_variables(head.init, pooled)
    got = head.apply(variables, pooled)
    assert got.dtype == jnp.float32
    assert_close(got, oracle.one_text_head(np.float64(pooled), in_float64(variables)))


def test_the_head_of_one_text_may_be_a_single_layer():
    head = Head(CLASSES, mlp_dim=0)
    pooled = np.random.default_rng(0).normal(size=(2, WIDTH)).astype(np.float32)
    variables = random_variables(head.init, pooled)
    (layer,) = in_float64(variables).values()
    assert_close(head.apply(variables, pooled), pooled @ layer["kernel"] + layer["bias"])


@pytest.mark.parametrize("interaction", ["concat", "nli"])
def test_the_head_of_two_texts_equals_the_oracle_in_float32(interaction):
    head = two_texts(interaction)
    pooled = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2, WIDTH)), jnp.bfloat16)
    variables = random_variables(head.init, pooled)
    params = in_float64(variables)
    widths = {name: layer["kernel"].shape for name, layer in params.items()}
    inputs = WIDTH * {"concat": 2, "nli": 4}[interaction]
    assert widths == {"hidden": (inputs, 16), "hidden_half": (16, 8), "logits": (8, CLASSES)}
    got = head.apply(variables, pooled)
    assert got.dtype == jnp.float32
    wide = np.float64(pooled)
    assert_close(got, oracle.two_text_head(wide[:, 0], wide[:, 1], interaction, params))


@pytest.mark.parametrize("interaction", ["concat", "nli"])
def test_both_texts_go_through_one_encoder_each_under_its_own_mask(interaction):
    classifier = Classifier(ENCODER, two_texts(interaction))
    variables = random_variables(functools.partial(classifier.init, train=False), IDS, MASK)
    encoder = {"params": variables["params"]["encoder"]}
    first, second = (
        np.float64(applied(ENCODER, encoder, IDS[:, text], MASK[:, text])) for text in (0, 1)
    )
    got = applied(classifier, variables, IDS, MASK)
    params = in_float64(variables)["head"]
    assert_close(got, oracle.two_text_head(first, second, interaction, params), 1e-4)


def test_places_are_those_of_the_tokens_and_not_of_cls():
    module = Denoiser(ENCODER, 5)
    ids, mask = np.arange(1, 9)[None], np.ones((1, 8), bool)
    variables = arrays.random_variables(module, ids, mask)
    of_encoder = {"params": variables["params"]["encoder"]}
    encode = functools.partial(ENCODER.apply, train=False, pooled=False)
    vectors = np.asarray(jax.jit(encode)(of_encoder, ids, mask))
    assert vectors.shape[1] == 9
    last = variables["params"]["output"]
    want = vectors[:, 1:] @ last["kernel"] + last["bias"]
    assert_close(applied(module, variables, ids, mask), want)
    assert_close(applied(module, variables, ids, mask, np.array([[0, 7]])), want[:, [0, 7]])


@pytest.mark.parametrize("name", ["hidden", "logits"])
def test_the_head_begins_lecun_normal(name):
    params = Head(60, mlp_dim=50).init(arrays.new_key(0), jnp.zeros((1, 40)))["params"][name]
    assert np.std(params["kernel"]) == pytest.approx(len(params["kernel"]) ** -0.5, rel=0.1)
    assert not params["bias"].any()
