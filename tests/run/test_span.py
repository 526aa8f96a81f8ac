"""The required attention span equals plain loops, closed forms and cases worked by hand."""

import dataclasses
import functools
import json
import math
import shutil

import jax
import numpy as np
import pytest
from arrays import float64, normal, random_variables
from made_runs import change
from tiny import TINY, rows

from lra_fnet import experiment
from lra_fnet.errors import UserError
from lra_fnet.machine import typed_json
from lra_fnet.models.heads import encode
from lra_fnet.run import span
from lra_fnet.run.folder import Span
from lra_fnet.tasks import Arrays


def naive_span(query, key, mask):
    """Computes the definition, one weight at a time, in float64: [T, L, H, K], [T, L] -> [T, H]."""
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
def test_spans_equal_plain_loops_for_any_block_size(monkeypatch, held):
    monkeypatch.setattr(span, "_WEIGHTS", held)
    query, key = 3 * normal(3, 7, 2, 4), normal(3, 7, 2, 4, seed=1)
    mask = np.array([[1] * 7, [1, 0, 1, 1, 0, 0, 1], [0] * 7], bool)
    got = jax.jit(span.spans)(query, key, mask)
    want = naive_span(*float64(query, key), mask)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=0)
    assert not want[2].any()


def projections(built, variables, arrays):
    """Returns queries, keys [T, L, H, K] of each layer and the mask, from the Dense layers."""
    model = built.model
    ids, mask = built.task.tokens(arrays.values, arrays.lengths)
    apply = functools.partial(
        encode,
        model,
        capture_intermediates=lambda module, _: module.name in ("query", "key"),
        mutable=["intermediates"],
    )
    _, captured = jax.jit(apply)(variables, ids, mask)
    encoder = model.encoder
    mask = np.asarray(mask).reshape(-1, mask.shape[-1])
    if encoder.pooling == "cls":
        mask = np.pad(mask, ((0, 0), (1, 0)), constant_values=True)
    layers = []
    for layer in range(encoder.num_layers):
        mixer = captured["intermediates"]["encoder"][f"block_{layer}"]["mixer"]
        shape = (*mask.shape, encoder.num_heads, -1)
        layers.append(
            [
                np.asarray(mixer[name]["__call__"][0], np.float64).reshape(shape)
                for name in ("query", "key")
            ]
        )
    return layers, mask


@pytest.mark.parametrize(("task", "pooling"), [("listops", "cls"), ("retrieval", "mean")])
def test_spans_of_a_model_are_means_over_texts_of_its_real_weights(task, pooling):
    """With filler rows, padding, two layers and two texts per row, in float32 for any dtype."""
    settings = [*TINY, f"Encoder.pooling={pooling}", "Encoder.num_layers=2", "Encoder.remat=True"]
    built = experiment.load(task, "transformer", "cpu", settings)
    arrays = rows(7)
    if task == "retrieval":
        other = rows(7, 1)
        columns = [np.stack(pair, 1) for pair in zip(arrays[:2], other[:2], strict=True)]
        arrays = Arrays(*columns, arrays.labels % 2)
    variables = random_variables(built.model, *built.blank_inputs(1))
    half = built.model.clone(
        encoder=built.model.encoder.clone(dtype="bfloat16", parent=None), parent=None
    )
    spans, uniform = span.measure(
        dataclasses.replace(built.objective, model=half), variables, arrays, 4
    )
    layers, mask = projections(built, variables, arrays)
    for layer, (query, key) in enumerate(layers):
        np.testing.assert_allclose(spans[layer], naive_span(query, key, mask).mean(0), rtol=1e-5)
    tokens = mask.sum(1)
    assert uniform == pytest.approx(((tokens**2 - 1) / (3 * tokens)).mean(), rel=1e-6)
    assert abs(spans[0] - uniform).max() > 1e-3  # the weights are not equal


@pytest.mark.slow
def test_span_is_written_into_the_run_folder_and_leaves_test_closed(folders, tmp_path):
    trial = shutil.copytree(folders["transformer"], tmp_path / "runs/cpu/parity/a/seed0")
    change(trial / "result.json", test=None)
    result = json.loads((trial / "result.json").read_text())
    for number, count in ((8, 8), (1000, 20)):
        measured = span.measure_run(trial, number)
        assert measured == typed_json.load(trial / "attention_span.json", Span)
        assert measured.rows == count
    assert {"commit", "device"} <= {*json.loads((trial / "attention_span.json").read_text())}
    (layer,) = measured.layers
    assert measured.mean == pytest.approx(np.mean(layer.heads))
    assert 0 < measured.mean < 11
    assert json.loads((trial / "result.json").read_text()) == result
    assert not (tmp_path / "runs/test_log.jsonl").exists()
    assert span.table(measured).rows[-1][1] == f"{measured.mean:.1f}"


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [("fnet", None, "softmax attention"), ("transformer", "0" * 64, "data 00000000")],
)
def test_run_without_a_span_fails_with_one_line(folders, tmp_path, model, data, words):
    folder = shutil.copytree(folders[model], tmp_path / "seed0")
    if data:
        change(folder / "result.json", data_sha256=data)
    with pytest.raises(UserError, match=words):
        span.measure_run(folder, 8)
    assert not (folder / "attention_span.json").exists()
