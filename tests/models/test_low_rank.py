"""Low-rank and kernel attention, and Synthesizer, against loops, limits and closed forms."""

import functools
import itertools

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import applied, assert_close, float64, inputs_of, normal, random_variables

from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers import linear_attention, linformer, nystrom, synthesizer

FIELDS = {"dim": 6, "num_heads": 2, "qkv_dim": 10, "max_len": 9, "layer": 0, "num_layers": 2}
FIELDS |= {"dropout": 0.0}
HOLES = jnp.asarray([[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0, 0], [0] * 7], bool)  # [3, 7]


def heads(batch=3, length=7, num_heads=2, width=5):
    return [normal(batch, length, num_heads, width, seed=seed) for seed in range(3)]


def synthesizer_module(**changes):
    fields = {"kinds": ("random", "attention"), "factor": 4, "block_size": 3}
    return synthesizer.Synthesizer(**(FIELDS | fields | changes))


def projected(params, x, name, num_heads=2):
    """What `HeadMixer.heads` gives, in float64: [B, L, H, K]."""
    y = x @ np.float64(params[name]["kernel"])
    return y.reshape(*x.shape[:2], num_heads, -1)


# Linformer


def test_linformer_equals_the_oracle_with_holes_and_an_empty_text():
    inputs, matrices = heads(), [normal(2, 4, 7, seed=seed) for seed in (5, 6)]
    got = jax.jit(linformer.projected_attention)(*inputs, HOLES, *matrices)
    want = oracle.linformer_attention(*float64(*inputs), np.asarray(HOLES), *float64(*matrices))
    assert_close(got, want)


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv"])
def test_sharing_selects_the_matrices_of_heads_keys_and_values(sharing):
    module = linformer.Linformer(**FIELDS, k=4, sharing=sharing)
    variables, x = random_variables(module, *inputs_of(module, 7)), normal(3, 7, 6)
    params = variables["params"]
    names = ("projection",) * 2 if sharing == "kv" else ("project_key", "project_value")
    matrices = [np.float64(params[name])[..., :7] for name in names]
    if sharing != "none":
        matrices = [np.broadcast_to(matrix, (2, 4, 7)) for matrix in matrices]
    qkv = [projected(params, np.float64(x), name) for name in ("query", "key", "value")]
    want = oracle.linformer_attention(*qkv, np.asarray(HOLES), *matrices)
    want = want.reshape(3, 7, 10) @ np.float64(params["out"]["kernel"])
    assert_close(applied(module, variables, x, HOLES), want, 1e-4)


# Nyströmformer


@pytest.mark.parametrize("landmarks", [1, 2, 3, 5])
def test_nystrom_equals_the_oracle_with_holes_and_an_empty_text(landmarks):
    inputs = heads()
    attend = functools.partial(nystrom.nystrom_attention, landmarks=landmarks, iterations=20)
    got = jax.jit(attend)(*inputs, HOLES)
    want = oracle.nystrom_attention(*float64(*inputs), np.asarray(HOLES), landmarks)
    assert_close(got, want, 1e-4)


def test_nystrom_is_softmax_attention_for_texts_of_at_most_m_tokens():
    inputs = heads(length=12)
    mask = jnp.arange(12)[None] < jnp.asarray([12, 7, 1])[:, None]
    got = nystrom.nystrom_attention(*inputs, mask, landmarks=12, iterations=20)
    assert_close(got, oracle.softmax_attention(*float64(*inputs), np.asarray(mask)), 1e-4)


def test_nystrom_adds_a_convolution_of_the_values_with_taps_of_each_head():
    module, x = nystrom.Nystrom(**FIELDS, landmarks=4, iterations=6, width=3), normal(3, 7, 6)
    variables = random_variables(module, *inputs_of(module, 7))
    params = variables["params"]
    qkv = [projected(params, np.float64(x), name) for name in ("query", "key", "value")]
    mixed = nystrom.nystrom_attention(
        *(jnp.asarray(a, jnp.float32) for a in qkv), HOLES, landmarks=4, iterations=6
    )
    value = np.where(np.asarray(HOLES)[:, :, None, None], qkv[2], 0)
    taps, added = np.float64(params["taps"]), np.zeros_like(value)
    for b, n, h in itertools.product(range(3), range(7), range(2)):
        for i in range(3):
            if 0 <= n + i - 1 < 7:
                added[b, n, h] += taps[i, h] * value[b, n + i - 1, h]
    want = (np.float64(mixed) + added).reshape(3, 7, 10) @ np.float64(params["out"]["kernel"])
    assert_close(applied(module, variables, x, HOLES), want, 1e-4)


# Synthesizer


def synthetic(params, kind, x, head):
    """Logits [L, L] of one text x [L, D], float64, from the module's parameters."""
    of = lambda name: np.float64(params[name])[head]  # noqa: E731
    columns = slice(5 * head, 5 * head + 5)
    length = len(x)
    if kind == "attention":
        query, key = (x @ np.float64(params[n]["kernel"])[:, columns] for n in ("query", "key"))
        return query @ key.T / np.sqrt(5)
    if kind == "random":
        return of("random")[:length, :length]
    if kind == "factorized_random":
        left, right = of("factorized_random_left"), of("factorized_random_right")
        return (left @ right.T)[:length, :length]
    first = np.float64(params[f"{kind}_hidden"]["kernel"])[:, columns]
    if kind == "dense":
        return oracle.dense_logits(x, first, of("dense_weights").T)[:, :length]
    pair = (of(f"factorized_dense_{which}_weights").T for which in ("first", "second"))
    return oracle.factorized_dense_logits(x, first, *pair, length)


def test_lists_and_dictionaries_of_a_config_leave_a_model_hashable():
    """A program is compiled once for equal models, which are found by their hash."""
    listed, known = synthesizer_module(kinds=["random"]), synthesizer_module(kinds=("random",))
    assert hash(listed) == hash(known)
    assert listed == known

    class Nested(Mixer):
        uses_mask = True
        table: dict

    one, other = (Nested(table={"a": [n, [2]]}, **FIELDS, parent=None) for n in (1, 3))
    assert hash(one) != hash(other)
    assert one.table["a"] == (1, (2,))


@pytest.mark.parametrize(
    ("kinds", "block_size"),
    [
        *(((kind,), 3) for kind in synthesizer.KINDS),
        (("random", "attention"), 1),
        (synthesizer.KINDS, 3),
        (synthesizer.KINDS, 100),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "+".join(value),
)
@pytest.mark.parametrize("mixture", ["softmax", "sum"])
def test_synthesizer_equals_the_oracle_with_holes_and_an_empty_text(kinds, block_size, mixture):
    module = synthesizer_module(kinds=kinds, block_size=block_size, mixture=mixture)
    variables, x = random_variables(module, *inputs_of(module, 7)), normal(3, 7, 6)
    params = variables["params"]
    wide, mask = np.float64(x), np.asarray(HOLES)
    value = projected(params, wide, "value")
    mixed = np.zeros(value.shape)
    for text, head in itertools.product(range(3), range(2)):
        alpha = np.ones(1)
        if mixture == "sum":  # LRA's code
            alpha = np.ones(len(kinds))
        elif len(kinds) > 1:
            alpha = np.exp(np.float64(params["alpha"])[:, head])
            alpha /= alpha.sum()
        parts = [synthetic(params, kind, wide[text], head) for kind in kinds]
        logits = sum(a * part for a, part in zip(alpha, parts, strict=True))
        mixed[text, :, head] = oracle.weighted_values(logits, value[text, :, head], mask[text])
    want = mixed.reshape(3, 7, 10) @ np.float64(params["out"]["kernel"])
    assert_close(applied(module, variables, x, HOLES), want, 1e-4)
    assert ("alpha" in params) == (len(kinds) > 1 and mixture == "softmax")
    if "attention" not in kinds:
        assert not {"query", "key"} & set(params)


# Linear Transformer


@pytest.mark.parametrize("below", [0, 30])
def test_elu_attention_equals_the_oracle_with_holes_and_an_empty_text(below):
    """At -30, elu(x) + 1 in float32 is 0, and every row would be 0 / 0."""
    query, key, value = heads()
    inputs = query - below, key - below / 3, value
    got = jax.jit(linear_attention.elu_attention)(*inputs, HOLES)
    assert_close(got, oracle.elu_attention(*float64(*inputs), np.asarray(HOLES)), 1e-4)
    assert np.asarray(got[:2]).all()
