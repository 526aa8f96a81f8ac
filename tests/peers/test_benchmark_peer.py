"""The benchmark's PyTorch side: its sizes, its products, its replies."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lra_fnet.benchmark import case  # noqa: E402
from peers import pytorch as peer  # noqa: E402 (after the skips)

SIZES = {
    "Run.batch_size": 2,
    "Encoder.dim": 8,
    "Encoder.num_heads": 2,
    "Encoder.qkv_dim": 8,
    "Encoder.mlp_dim": 20,
    "Encoder.num_layers": 2,
    "Encoder.dropout": 0.1,
    "Encoder.attention_dropout": 0.0,
}
L = 12


def a_cell(what, side, model, *bindings, **fields):
    bindings = (*(f"{name}={value}" for name, value in SIZES.items()), *bindings)
    return case.Case(what, side, "text", model, "tuned", L, bindings, seconds=0.01, **fields)


@pytest.mark.parametrize("model", ["fnet", "transformer"])
def test_model_has_the_sizes_of_the_experiment(model):
    cell = a_cell("train", "eager", model)
    side = peer.Side(cell)
    config = side.model.config
    assert config.hidden_size == 8
    assert config.num_hidden_layers == 2
    assert config.intermediate_size == 20
    assert config.max_position_embeddings == L
    assert config.vocab_size == side.built.task.num_ids
    assert config.hidden_dropout_prob == 0.1
    assert config.num_labels == 2
    assert config.hidden_act == "gelu_new"
    if model == "transformer":
        assert config.num_attention_heads == 2
        assert config.attention_probs_dropout_prob == 0.0
        assert config._attn_implementation == "sdpa"
    assert side.model.training
    assert side.facts["parameters"] == sum(p.numel() for p in side.model.parameters())


def test_training_step_changes_every_parameter():
    side = peer.Side(a_cell("train", "eager", "fnet", "Encoder.dropout=0.0"))
    before = {name: p.detach().clone() for name, p in side.model.named_parameters()}
    side.round(0.0)
    same = {n for n, p in side.model.named_parameters() if torch.equal(p.detach(), before[n])}
    assert same == set()


def test_facts_and_rounds_are_those_of_a_result():
    side = peer.Side(a_cell("train", "eager", "fnet"))
    assert side.facts["state"] == "ok"
    assert (side.facts["batch_size"], side.facts["dim"], side.facts["num_layers"]) == (2, 8, 2)
    assert side.facts["peak_bytes"] > 0
    assert side.facts["versions"]["torch"] == torch.__version__
    assert side.round(0.0)["seconds"] > 0


def test_mixing_times_both_passes_and_the_forward_pass_alone():
    timed = peer.Side(a_cell("mixing", "torch", "fnet", size="base")).round(0.01)
    # Which of the two is larger is noise at this size, so only that both are measured is checked.
    assert timed["forward_seconds"] > 0
    assert timed["seconds"] > 0
