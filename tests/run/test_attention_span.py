"""The required attention span against plain loops, closed forms and cases worked by hand."""

import functools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import float64, largest_array, normal, random_variables
from paths import OUTSIDE
from tiny import TINY, rows

from lra_fnet import cli, experiment
from lra_fnet.run import attention_span
from lra_fnet.tasks import Arrays


def naive_span(query, key, mask):
    """By definition, one weight at a time, in float64: [T, L, H, K] and [T, L] -> [T, H]."""
    texts, length, heads, width = query.shape
    out = np.zeros((texts, heads))
    for t in range(texts):
        real = [i for i in range(length) if mask[t, i]]
        for h in range(heads):
            for i in real:
                scores = [query[t, i, h] @ key[t, j, h] / math.sqrt(width) for j in real]
                weights = [math.exp(score - max(scores)) for score in scores]
                far = sum(w * abs(i - j) for w, j in zip(weights, real, strict=True))
                out[t, h] += far / sum(weights) / len(real)
    return out


@pytest.mark.parametrize("held", [2**24, 100])
def test_spans_are_those_of_plain_loops_in_blocks_of_any_size(monkeypatch, held):
    monkeypatch.setattr(attention_span, "_WEIGHTS", held)
    query, key = 3 * normal(3, 7, 2, 4), normal(3, 7, 2, 4, seed=1)
    mask = np.array([[1] * 7, [1, 0, 1, 1, 0, 0, 1], [0] * 7], bool)
    got = jax.jit(attention_span.spans)(query, key, mask)
    want = naive_span(*float64(query, key), mask)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=0)
    assert not want[2].any()


@pytest.mark.parametrize("tokens", [1, 2, 5, 11])
def test_equal_weights_span_a_third_of_the_tokens(tokens):
    """The mean of |i - j| over n x n pairs is (n^2 - 1) / (3 n)."""
    mask = jnp.arange(11)[None] < tokens
    got = attention_span.spans(jnp.zeros((1, 11, 2, 3)), normal(1, 11, 2, 3), mask)
    np.testing.assert_allclose(got, (tokens**2 - 1) / (3 * tokens), rtol=1e-6)


@pytest.mark.parametrize(
    ("attended", "want"),
    [([0, 1, 2, 3], 0.0), ([0, 0, 0, 0], (0 + 1 + 2 + 3) / 4), ([3, 0, 1, 2], (3 + 1 + 1 + 1) / 4)],
)
def test_a_head_that_attends_to_one_token_worked_by_hand(attended, want):
    key = np.eye(4, dtype=np.float32)[None, :, None]
    got = attention_span.spans(
        jnp.asarray(1e4 * key[:, attended]), jnp.asarray(key), jnp.ones((1, 4), bool)
    )
    np.testing.assert_allclose(got, [[want]])


def test_at_16_thousand_tokens_no_more_than_a_block_of_weights_is_held():
    shapes = [jax.ShapeDtypeStruct((2, 16_384, 4, 32), jnp.float32)] * 2
    mask = jax.ShapeDtypeStruct((2, 16_384), bool)
    assert largest_array(attention_span.spans, *shapes, mask) <= 2**24


def projections(model, variables, arrays):
    """Queries, keys [T, L, H, K] of each layer and the mask, read off the Dense layers."""
    ids, mask = attention_span.pipeline.tokens(arrays.values, arrays.lengths, False)
    apply = functools.partial(
        model.apply,
        train=False,
        capture_intermediates=lambda module, _: module.name in ("query", "key"),
        mutable=["intermediates"],
    )
    _, captured = jax.jit(apply)(variables, ids, mask)
    encoder = model.encoder
    mask = np.asarray(mask).reshape(-1, mask.shape[-1])
    if encoder.pooling == "cls":
        mask = np.pad(mask, ((0, 0), (1, 0)), constant_values=True)
    found = []
    for layer in range(encoder.num_layers):
        mixer = captured["intermediates"]["encoder"][f"block_{layer}"]["mixer"]
        shape = (*mask.shape, encoder.num_heads, -1)
        found.append(
            [
                np.asarray(mixer[name]["__call__"][0], np.float64).reshape(shape)
                for name in ("query", "key")
            ]
        )
    return found, mask


@pytest.mark.parametrize(("task", "pooling"), [("listops", "cls"), ("retrieval", "mean")])
def test_a_models_spans_are_means_over_texts_of_its_real_weights(task, pooling):
    """With filler rows, padding, two layers and two texts a row, in float32 whatever the dtype."""
    settings = [*TINY, f"Encoder.pooling={pooling}", "Encoder.num_layers=2", "Encoder.remat=True"]
    built = experiment.load(task, "transformer", "cpu", settings)
    arrays = rows(7)
    if task == "retrieval":
        other = rows(7, 1)
        columns = [np.stack(pair, 1) for pair in zip(arrays[:2], other[:2], strict=True)]
        arrays = Arrays(*columns, arrays.labels % 2)
    variables = random_variables(built.model, *built.abstract_inputs(1))
    half = built.model.clone(
        encoder=built.model.encoder.clone(dtype="bfloat16", parent=None), parent=None
    )
    got, uniform = attention_span.measure(half, variables, arrays, 4)
    found, mask = projections(built.model, variables, arrays)
    for layer, (query, key) in enumerate(found):
        np.testing.assert_allclose(got[layer], naive_span(query, key, mask).mean(0), rtol=1e-5)
    tokens = mask.sum(1)
    assert uniform == pytest.approx(((tokens**2 - 1) / (3 * tokens)).mean(), rel=1e-6)
    assert abs(got[0] - uniform).max() > 1e-3  # the weights are not equal ones


def test_a_text_without_tokens_has_no_span():
    built = experiment.load("listops", "transformer", "cpu", [*TINY, "Encoder.pooling=mean"])
    variables = random_variables(built.model, *built.abstract_inputs(1))
    arrays = rows(5)
    empty = arrays._replace(lengths=np.append(arrays.lengths[:4], 0).astype(np.int32))
    fewer = Arrays(*(column[:4] for column in arrays))
    got, want = (attention_span.measure(built.model, variables, a, 5) for a in (empty, fewer))
    np.testing.assert_allclose(got[0][0], want[0][0], rtol=1e-6)
    assert got[1] == pytest.approx(want[1])


def test_a_hybrid_has_the_spans_of_its_attention_layers():
    sizes = ["Encoder.num_layers=3", "hybrid.attention_layers=1", "hybrid.layout='MIDDLE'"]
    built = experiment.load("listops", "fnet_hybrid", "cpu", [*TINY, *sizes])
    assert attention_span.attention_layers(built.model.encoder) == [1]
    shapes = jax.eval_shape(lambda: built.init(0))
    batch = next(attention_span.pipeline.eval_batches(rows(4), 4))
    found, _, _ = jax.eval_shape(attention_span.make_spans(built.model), shapes, batch)
    assert {layer: spans.shape for layer, spans in found.items()} == {1: (4, 2)}


@pytest.fixture
def go(tmp_path, monkeypatch, capfd):
    """Calls `lra-fnet` in an empty folder; returns the exit code, standard error and output."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = cli.main(list(words))
        captured = capfd.readouterr()
        return code, captured.err, captured.out

    return call


def test_the_command_writes_the_span_into_the_run_folder_and_leaves_test_closed(go, tmp_path):
    which = ["--task", "parity", "--preset", "cpu", "--model", "transformer", "--no-test"]
    assert go("train", *which, "--gin-dir", str(OUTSIDE))[0] == 0
    folder = Path("runs/cpu/parity/transformer/seed0")
    for words, count in ((["--rows", "8"], 8), ([], 20)):
        code, err, out = go("span", "--run", str(folder), *words)
        assert (code, out) == (0, f"wrote {folder / 'attention_span.json'}\n")
        found = json.loads((folder / "attention_span.json").read_text())
        assert (found["rows"], found["split"]) == (count, "validation")
    (layer,) = found["layers"]
    assert (layer["layer"], len(layer["heads"])) == (0, 2)
    assert found["mean"] == pytest.approx(np.mean(layer["heads"]))
    assert 0 < found["mean"] < 11
    assert f"{found['mean']:.1f}" in err
    result = json.loads((folder / "result.json").read_text())
    assert result["test"] is None
    assert found["step"] == result["validation"]["best"]["step"]
    assert found["data_sha256"] == result["data_sha256"]
    assert not (tmp_path / "runs/test_log.jsonl").exists()


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        ("fnet", [], "softmax attention over all tokens, fnet has none"),
        ("transformer", ["--rows", "0"], "--rows expects at least 1, got 0"),
        ("transformer", [], "no complete run with its checkpoint"),
        (None, [], "is no run folder: it has no run.json"),
    ],
)
def test_what_has_no_span_is_one_line_and_code_2(go, tmp_path, model, more, words):
    folder = tmp_path / "runs/cpu/parity/some/seed0"
    folder.mkdir(parents=True)
    if model:
        begun = {"task": "parity", "model": model, "preset": "cpu", "seed": 0, "overrides": []}
        begun |= {"variant": None, "data": "data", "imports": [], "gin_dirs": [str(OUTSIDE)]}
        (folder / "run.json").write_text(json.dumps(begun))
    code, err, out = go("span", "--run", str(folder), *more)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert words in err
    assert not (folder / "attention_span.json").exists()
