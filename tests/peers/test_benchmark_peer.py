"""The benchmark's PyTorch side: its sizes, its products, its replies."""

import dataclasses
import json

import pytest
from paths import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lra_fnet.benchmark import cells, child, peer  # noqa: E402 (after the skips)
from lra_fnet.errors import UserError  # noqa: E402

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
    return cells.Cell(what, side, "text", model, "tuned", L, bindings, seconds=0.01, **fields)


def replies(cell, *requests):
    """The replies of PyTorch's side to a cell and further requests, without a process."""
    answers = []
    lines = map(json.dumps, (dataclasses.asdict(cell), *requests))
    child.serve(peer.Side, lines, answers.append)
    return answers


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


def test_repeated_steps_learn_the_batch():
    side = peer.Side(a_cell("train", "eager", "transformer", "Encoder.dropout=0.0"))
    losses = []
    hook = side.model.register_forward_hook(lambda *args: losses.append(args[-1].loss.item()))
    for _ in range(60):
        side.round(0.0)
    hook.remove()
    assert losses[-1] < 0.95 * losses[0]


def test_bfloat16_runs_under_autocast():
    side = peer.Side(a_cell("infer", "eager", "fnet", "Encoder.dtype=bfloat16"))
    kinds = set()
    for module in side.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda *args: kinds.add(args[-1].dtype))
    side.round(0.0)
    assert kinds == {torch.bfloat16}


def test_replies_have_facts_and_rounds():
    requests = [{"seconds": 0.01}, {"seconds": 0.0}]
    cell = a_cell("train", "eager", "fnet")
    facts, timed, shortest = replies(cell, *requests)
    assert facts["state"] == "ok"
    assert (facts["batch_size"], facts["dim"], facts["num_layers"]) == (2, 8, 2)
    assert facts["dtype"] == "float32"
    assert facts["peak_bytes"] > 0
    assert facts["versions"]["torch"] == torch.__version__
    assert timed["calls"] >= 1
    assert timed["seconds"] >= 0.01
    assert shortest["calls"] == 1


def test_mixing_times_both_passes_and_the_forward_pass_alone():
    timed = peer.Side(a_cell("mixing", "torch", "fnet", size="base")).round(0.01)
    assert timed["calls"] >= 1
    assert timed["forward_calls"] >= 1
    assert timed["forward_seconds"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_rounds_of_the_compiled_model_exclude_its_compilation():
    facts, timed = replies(a_cell("train", "compiled", "fnet"), {"seconds": 0.0})
    assert facts["state"] == "ok"
    assert facts["compile_seconds"] > 10 * timed["seconds"]


def test_model_that_does_not_compile_has_the_state_fail(monkeypatch):
    def refuse(function):
        def call(*arguments, **named):
            if isinstance(function, torch.nn.Linear):
                return function(*arguments)
            raise torch._dynamo.exc.Unsupported("no\nsuch graph")

        return call

    monkeypatch.setattr(torch, "compile", refuse)
    side = peer.Side(a_cell("train", "compiled", "fnet"))
    assert side.facts["state"] == "FAIL"
    assert side.facts["reason"].startswith("Unsupported: no such graph")


def test_too_little_memory_is_oom(monkeypatch):
    def refuse(*arguments):
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
        )

    monkeypatch.setattr(peer, "_classifier", refuse)
    assert replies(a_cell("train", "eager", "fnet")) == [{"state": "OOM"}]


@pytest.mark.parametrize("missing", ["torch", "transformers", "jax"])
def test_missing_library_fails_with_one_line(missing, monkeypatch, tmp_path):
    """The child is a process of an environment that lacks the library."""
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError(name={missing!r})\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    process = cells.Worker(a_cell("train", "eager", "fnet"))
    with pytest.raises(UserError, match=f"has no {missing}: LRA_FNET_PEER_PYTHON expects"):
        process.ready()
    process.close()
