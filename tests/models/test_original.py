"""FNet's original encoder: BERT's embedding, post-norm blocks, the pooler, and its conversion."""

import functools

import arrays
import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import TINY, applied, initial, new_key, random_variables
from refused import one_line

from lra_fnet.errors import UserError
from lra_fnet.models import convert
from lra_fnet.models.encoder import MLP, Block, Encoder
from lra_fnet.models.heads import Pretrainer
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.models.mixers.fourier import Fourier

ORIGINAL = TINY | {
    "max_len": 9,
    "num_layers": 2,
    "positions": "learned",
    "embedding": "bert",
    "num_types": 3,
    "norm": "post",
    "norm_epsilon": 1e-12,
    "pooling": "tanh",
}
IDS = np.arange(1, 15).reshape(2, 7) % 12
TYPES = np.arange(14).reshape(2, 7) % 3
MASK = np.arange(7)[None] < np.asarray([7, 4])[:, None]
MIXERS = {
    "fourier": functools.partial(Fourier, method="rfft"),
    "scaled": functools.partial(Fourier, method="rfft", scale="ortho"),
    "attention": functools.partial(Attention, implementation="naive", block_size=4),
}


assert_close = functools.partial(arrays.assert_close, tolerance=1e-4)


def build(mixer="fourier", **changes):
    return Encoder(mixers=MIXERS[mixer], **(ORIGINAL | changes))


def by_oracle(params, mixer, types):
    """All positions after the last block, in float64."""
    params = jax.tree.map(np.float64, params)
    norm = functools.partial(oracle.layer_norm, epsilon=1e-12, **params["norm_embedding"])
    x = oracle.bert_embedding(IDS, types, params, norm)
    for layer in range(2):
        block = params[f"block_{layer}"]
        mix = oracle.fourier_mix
        if mixer == "attention":
            mix = functools.partial(
                oracle.attention_sublayer, mask=MASK, params=block["mixer"], num_heads=2
            )
        x = oracle.post_norm_block(x, mix, block, 1e-12)
    return x


@pytest.mark.parametrize("mixer", ["fourier", "attention"])
def test_original_encoder_equals_the_oracle_at_every_position(mixer):
    encoder = build(mixer)
    variables = random_variables(encoder, IDS, MASK)
    run = functools.partial(
        jax.jit(encoder.apply, static_argnames=("train", "pooled")), train=False
    )
    x = by_oracle(variables["params"], mixer, TYPES)
    assert_close(run(variables, IDS, MASK, types=TYPES, pooled=False), x)
    of_type_0 = by_oracle(variables["params"], mixer, np.zeros_like(TYPES))
    assert_close(run(variables, IDS, MASK, pooled=False), of_type_0)
    pooler = jax.tree.map(np.float64, variables["params"]["pooler"])
    want = np.tanh(x[:, 0] @ pooler["kernel"] + pooler["bias"])
    assert_close(run(variables, IDS, MASK, types=TYPES), want)


def test_a_cls_vector_has_type_0_and_its_own_position():
    encoder = build("attention", pooling="cls")
    variables = random_variables(encoder, IDS, MASK)
    params = variables["params"]
    assert params["positions_learned"].shape == (10, 6)
    # The same text with CLS as the token 12 of a larger table.
    within = build("attention", pooling="first", vocab_size=13, max_len=10)
    table = np.concatenate([params["embedding"], params["cls"][None]])
    same = {"params": {k: v for k, v in params.items() if k != "cls"} | {"embedding": table}}
    before = [np.pad(a, ((0, 0), (1, 0)), constant_values=c) for a, c in ((IDS, 12), (TYPES, 0))]
    mask = np.pad(MASK, ((0, 0), (1, 0)), constant_values=True)
    got = applied(encoder, variables, IDS, MASK, types=TYPES)
    assert_close(got, applied(within, same, before[0], mask, types=before[1]), tolerance=1e-5)


def test_original_block_drops_the_last_output_of_the_mlp_and_nothing_else():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, 6)), jnp.float32)
    rngs = {"dropout": new_key(0)}
    mlp = MLP(dim=6, mlp_dim=10, dropout=0.5, norm="post")
    variables = random_variables(mlp, x)
    still = applied(mlp, variables, x)
    dropped = applied(mlp, variables, x, train=True, rngs=rngs)
    kept = dropped != 0
    assert 0.2 < kept.mean() < 0.8
    assert_close(dropped, jnp.where(kept, 2 * still, 0), tolerance=1e-6)

    mixer = build("attention").mixers[0].clone(dropout=0.0)
    block = Block(mixer, dim=6, mlp_dim=10, dropout=0.5, norm="post", norm_epsilon=1e-12)
    variables = random_variables(block, x, MASK)
    narrow = variables["params"]["mlp"]["narrow"]
    variables["params"]["mlp"]["narrow"] = jax.tree.map(np.zeros_like, narrow)
    still = applied(block, variables, x, MASK)
    assert_close(applied(block, variables, x, MASK, train=True, rngs=rngs), still, tolerance=1e-6)


def test_original_initialisation_is_the_authors():
    encoder = build(dim=60, mlp_dim=80, vocab_size=500, max_len=50)
    params = initial(encoder, IDS, MASK)["params"]
    mlp = params["block_1"]["mlp"]
    drawn = [params["embedding"], params["positions_learned"], params["types"]]
    drawn += [mlp["wide"]["kernel"], mlp["wide"]["bias"], mlp["narrow"]["kernel"]]
    drawn += [params["pooler"]["kernel"]]
    for leaf in drawn:
        assert np.std(leaf) == pytest.approx(0.02, rel=0.25)
    assert np.std(params["project"]["kernel"]) == pytest.approx(60**-0.5, rel=0.1)  # lecun_normal
    for leaf in (mlp["narrow"]["bias"], params["project"]["bias"], params["pooler"]["bias"]):
        assert not leaf.any()
    assert "norm" not in params


def test_initialisation_that_suits_the_width_keeps_the_authors_size_of_a_product():
    def pooled_kernels(**changes):
        encoder = build(**changes, max_len=4, vocab_size=5, num_layers=1)
        params = initial(encoder, IDS[:, :4] % 5, MASK[:, :4])["params"]
        mlp = params["block_0"]["mlp"]
        return [mlp["wide"]["kernel"], mlp["narrow"]["kernel"], params["pooler"]["kernel"]]

    for dim, sd in ((48, 0.08), (768, 0.02)):  # 0.02 sqrt(768 / 48) = 0.08
        kernels = pooled_kernels(dim=dim, mlp_dim=64, initialisation="width")
        for kernel in kernels:
            assert np.std(kernel) == pytest.approx(sd, rel=0.05)
    published = pooled_kernels(dim=768, mlp_dim=64)
    for kernel, same in zip(kernels, published, strict=True):  # at the authors' width
        np.testing.assert_array_equal(kernel, same)


# Conversion

CONFIG = {
    "vocab_size": 12,
    "max_position_embeddings": 9,
    "type_vocab_size": 3,
    "hidden_size": 6,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
}


def weights():
    """Weights of the FNetModel that CONFIG describes, written from that library's module names."""
    rng = np.random.default_rng(0)
    shapes = {
        "embeddings.word_embeddings.weight": (12, 6),
        "embeddings.position_embeddings.weight": (9, 6),
        "embeddings.token_type_embeddings.weight": (3, 6),
    }
    linear = {"embeddings.projection": (6, 6), "pooler.dense": (6, 6)}
    norms = ["embeddings.LayerNorm"]
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        linear |= {f"{layer}.intermediate.dense": (10, 6), f"{layer}.output.dense": (6, 10)}
        norms += [f"{layer}.fourier.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (6,), f"{name}.bias": (6,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def pretraining_weights():
    """Weights of the FNetForPreTraining around it, two of them under two names each."""
    rng = np.random.default_rng(1)
    heads = {"predictions.transform.dense.weight": (6, 6), "seq_relationship.weight": (2, 6)}
    vectors = ("dense.bias", "LayerNorm.weight", "LayerNorm.bias")
    heads |= {f"predictions.transform.{name}": (6,) for name in vectors}
    heads |= {"predictions.bias": (12,), "seq_relationship.bias": (2,)}
    state = {f"fnet.{name}": value for name, value in weights().items()}
    state |= {f"cls.{n}": rng.normal(size=x).astype(np.float32) for n, x in heads.items()}
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    state["cls.predictions.decoder.weight"] = state["fnet.embeddings.word_embeddings.weight"]
    return state


@pytest.mark.parametrize(("make", "cls"), [(weights, Encoder), (pretraining_weights, Pretrainer)])
def test_conversion_there_and_back_is_exact_and_complete(make, cls):
    state = make()
    model, variables = convert.fnet_from_transformers(state, CONFIG)
    assert isinstance(model, cls)
    shapes = jax.tree.map(np.shape, convert.shapes_of(model))
    assert jax.tree.map(np.shape, variables) == shapes
    back = convert.fnet_to_transformers(model, variables)
    assert set(back) == set(state)
    assert all((back[name] == state[name]).all() for name in state)


HEADS = ["classifier.bias", "cls.predictions.bias", "cls.seq_relationship.bias"]


@pytest.mark.parametrize(("head", "pooler"), [*((head, True) for head in HEADS), ("", False)])
def test_the_encoder_of_any_class_is_taken_and_its_head_is_named(head, pooler, capsys):
    state = {name: w for name, w in weights().items() if pooler or not name.startswith("pooler")}
    if head:
        state = {f"fnet.{name}": w for name, w in state.items()} | {head: np.ones(3)}
    found = [convert.fnet_from_transformers(given, CONFIG) for given in (state, weights())]
    assert capsys.readouterr().err.rpartition(" ")[2].strip() == head
    assert found[0][0].pooling == ("tanh" if pooler else "first")
    how = {"train": False, "types": TYPES, "pooled": False}
    got, want = (encoder.apply(own, IDS, MASK, **how) for encoder, own in found)
    np.testing.assert_array_equal(got, want)


def test_conversion_does_without_second_names_and_arrays_that_are_no_weights():
    """Older versions of that library list the numbers of the positions among the weights."""
    state = pretraining_weights()
    want = convert.fnet_from_transformers(state, CONFIG)[1]
    order = state["cls.seq_relationship.weight"]
    np.testing.assert_array_equal(want["params"]["order"]["kernel"], order.T)
    other = {name: value for name, value in state.items() if ".decoder." not in name}
    for name in ("position_ids", "token_type_ids"):
        other[f"fnet.embeddings.{name}"] = np.zeros((1, 8))
    got = convert.fnet_from_transformers(other, CONFIG)[1]
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize(
    ("config", "change", "fragment"),
    [
        ({"hidden_act": "gelu"}, {}, "hidden_act gelu_new or gelu_pytorch_tanh, got 'gelu'"),
        ({"num_hidden_layers": 3}, {}, "encoder.layer.2.fourier.output.LayerNorm.bias"),
        ({"intermediate_size": 11}, {}, "shape (11,), got (10,)"),
        ({}, {"fnet.cls": np.zeros(3)}, "fnet.cls"),
        ({}, {"cls.predictions.decoder.weight": np.zeros((12, 6))}, "decoder.weight must be equal"),
    ],
)
def test_conversion_names_the_mismatch(config, change, fragment):
    with one_line(fragment):
        convert.fnet_from_transformers(pretraining_weights() | change, CONFIG | config)


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding": "lra", "num_types": 1},
        {"norm": "pre"},
        {"pooling": "first"},
        {"mixer": "attention"},
        {"mixer": "scaled"},
        {"mlp_dim": 0},
    ],
)
def test_only_the_original_encoder_converts_back(changes):
    with pytest.raises(UserError, match="only an encoder of unscaled Fourier mixers"):
        convert.fnet_to_transformers(build(**changes), {"params": {}})


def test_the_encoder_has_the_settings_of_the_configuration():
    changed = CONFIG | {"layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.2}
    encoder, _ = convert.fnet_from_transformers(weights(), changed)
    assert (encoder.norm_epsilon, encoder.dropout) == (1e-3, 0.2)
