"""Pretrain: masked pieces and sentence order, their heads, sums and gradient, and its presets."""

import functools

import jax
import naive as oracle
import numpy as np
import pytest
from arrays import assert_close, random_variables
from tiny import TINY

from lra_fnet import experiment
from lra_fnet.models.encoder import deviation
from lra_fnet.models.heads import encode
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.tasks import Arrays
from lra_fnet.tasks.corpus import CLS, MASK, SEP
from lra_fnet.training import pipeline, score, step
from tools.documents import census

SIX = ("transformer", "linear", "fnet", "random", "ff_only", "fnet_hybrid")
PIECES, LENGTH = 400, 16  # no byte holds them
SMALL = (
    *(text for text in TINY if "MAX_LEN" not in text),
    *(f"DATASET=v{PIECES}_{LENGTH}", f"MAX_LEN={LENGTH}", "Encoder.dropout=0.0"),
    *("Encoder.attention_dropout=0.0", "Optimizer.learning_rate=0.01"),
)
KEY = jax.random.key(7, impl="threefry2x32")


@functools.cache
def built(model="fnet", *settings):
    return experiment.load("corpus", model, "cpu-pretrain", (*SMALL, *settings), denoise=True)


def rows(n, seed=0):
    """Rows of 8 to 16 pieces: [CLS] A [SEP] B [SEP], swapped if A begins with a high piece."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, LENGTH + 1, n).astype(np.int32)
    ids = rng.integers(5, PIECES, (n, LENGTH))
    ids[:, 0] = CLS
    ids[np.arange(n), lengths - 1] = ids[:, 4] = SEP
    ids[np.arange(LENGTH) >= lengths[:, None]] = 1
    labels = (ids[:, 1] > PIECES // 2).astype(np.int32)
    return Arrays((ids - 1).astype(np.uint16), lengths, labels)


def test_special_pieces_are_never_hidden_or_drawn():
    goal, arrays = built("fnet", "Denoising.rate=0.6").objective, rows(300)
    hidden = jax.jit(goal.hide)(KEY, *arrays[:2], np.arange(300))
    hidden = jax.tree.map(np.asarray, hidden)
    before = np.where(hidden.mask, arrays.values.astype(int) + 1, 0)
    assert (hidden.targets[hidden.chosen] + 1 > MASK).all()
    changed = hidden.ids != before
    assert (hidden.ids[changed] >= MASK).all()
    assert {*hidden.ids[changed]} > {MASK}
    assert (hidden.targets > 255).any()
    np.testing.assert_array_equal(
        hidden.chosen.sum(1), np.round(0.6 * (arrays.lengths - 3)).astype(int)
    )


def test_sums_and_metrics_are_those_of_float64():
    """Both losses from the module's outputs, one row at a time, in NumPy."""
    made, arrays = built(), rows(9)
    goal, variables = made.objective, made.init(0)
    got = score.make_scorer(goal, 4)(variables, arrays)
    hidden = jax.jit(goal.hide)(jax.random.key(0, impl="threefry2x32"), *arrays[:2], np.arange(9))
    types = made.task.types(hidden.ids, hidden.mask)
    pieces, order = jax.jit(functools.partial(made.model.apply, train=False))(
        variables, hidden.ids, hidden.mask, None, types
    )
    pieces, order, hidden = jax.tree.map(np.asarray, (pieces, order, hidden))

    def loss(logits, target):
        logits = logits.astype(np.float64)
        return np.log(np.exp(logits - logits[target]).sum())

    want = dict.fromkeys(("loss", "correct", "count", "order_loss", "order_correct"), 0.0)
    for row in range(9):
        for place, value in zip(
            hidden.places[row][hidden.chosen[row]],
            hidden.targets[row][hidden.chosen[row]],
            strict=True,
        ):
            want["loss"] += loss(pieces[row, place], value + 1)
            want["correct"] += pieces[row, place].argmax() == value + 1
            want["count"] += 1
        label = arrays.labels[row]
        want["order_loss"] += loss(order[row], label)
        want["order_correct"] += order[row].argmax() == label
    assert got == pytest.approx(want | {"rows": 9}, rel=1e-5)
    metrics = goal.metrics(got)
    assert metrics["order_accuracy"] == got["order_correct"] / 9
    assert metrics["accuracy"] == got["correct"] / got["count"]
    assert goal.rank(got) == (metrics["loss"] + metrics["order_loss"],)


@pytest.mark.parametrize("microbatch", [0, 1])
def test_gradient_is_that_of_the_sum_of_both_mean_losses(microbatch):
    """Each row has the mean over its own masked pieces; no slice changes that."""
    made = built()
    goal, state = made.objective, step.initial_state(made, 0)
    batch = jax.tree.map(lambda x: x[0], pipeline.train_batches(rows(16), 0, 0, 1, 4, 1))

    def mean_loss(params):
        variables = {"params": params, **state.constants}
        (hidden, order_loss, _), _ = goal.outputs(variables, batch, KEY)
        return (hidden.loss / hidden.count).mean() + order_loss.mean()

    want = jax.jit(jax.grad(mean_loss))(state.params)
    got, sums, _ = jax.jit(step.make_gradient(goal, microbatch))(
        state.params, state.constants, batch, KEY
    )
    assert int(sums.rows) == 4
    largest = max(np.abs(x).max() for x in jax.tree.leaves(want))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6 * largest), got, want)


@pytest.mark.parametrize("model", SIX)
@pytest.mark.parametrize("preset", ["cpu-pretrain", "paper-pretrain"])
def test_presets_have_the_papers_block_and_heads(preset, model):
    made = experiment.load("corpus", model, preset, denoise=True)
    encoder, dim = made.model.encoder, made.model.encoder.dim
    shapes = made.shapes()["params"]
    head = sum(
        x.size for name in ("transform", "norm", "bias") for x in jax.tree.leaves(shapes[name])
    )
    vocabulary = {"cpu-pretrain": 8000, "paper-pretrain": 32_000}[preset]
    assert head - vocabulary == census.mlm_count(dim) - census.FNET["vocab_size"]
    assert shapes["encoder"]["embedding"].shape == (vocabulary, dim)
    assert shapes["order"]["kernel"].shape == (dim, 2)
    assert shapes["encoder"]["types"].shape == (4, dim)
    assert (encoder.norm, encoder.pooling, encoder.mlp_dim) == ("post", "tanh", 4 * dim)
    assert encoder.num_heads == dim // 64
    found = {mixer.projections for mixer in encoder.mixers if isinstance(mixer, Attention)}
    assert found <= {"bert"}
    if preset == "paper-pretrain":
        biases = 4 * 768 * {"transformer": 12, "fnet_hybrid": 2}.get(model, 0)  # of attention
        want = census.fnet_count(model, 768, 12) + biases
        assert sum(x.size for x in jax.tree.leaves(shapes["encoder"])) == want
    rates = made.optimizer.schedule()(np.array([0, made.optimizer.warmup, made.run.num_steps]))
    np.testing.assert_allclose(rates, [0, made.optimizer.learning_rate, 0], atol=1e-9)


def test_heads_begin_with_the_deviation_of_the_encoder():
    made = built("fnet", "Encoder.dim=64", "Encoder.qkv_dim=64")
    params = made.init(0)["params"]
    for name in ("transform", "order"):
        assert np.std(params[name]["kernel"]) == pytest.approx(
            deviation(made.model.encoder.initialisation, 64), rel=0.2
        )
    assert np.std(params["bias"]) == pytest.approx(0.02, rel=0.4)


def test_head_of_masked_pieces_is_its_formula_in_float64():
    """Dense, GELU, LayerNorm, and the product with the embedding table (arXiv:1810.04805)."""
    made, arrays = built(), rows(3)
    ids, mask = made.task.tokens(*arrays[:2])
    variables = random_variables(made.model, ids, mask)
    got, _ = jax.jit(functools.partial(made.model.apply, train=False))(variables, ids, mask)
    params = jax.tree.map(np.float64, variables["params"])
    x = np.float64(encode(made.model, variables, ids, mask))
    x = oracle.gelu(x @ params["transform"]["kernel"] + params["transform"]["bias"])
    x = oracle.layer_norm(x, **params["norm"], epsilon=made.model.encoder.norm_epsilon)
    want = x @ params["encoder"]["embedding"].T + params["bias"]
    assert_close(got, want, 1e-4)
