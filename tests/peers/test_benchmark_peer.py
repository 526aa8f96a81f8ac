"""The benchmark's PyTorch side: its sizes, its products, its protocol."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402 (after the skips)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from lra_fnet.benchmark import child, peer  # noqa: E402
from lra_fnet.benchmark.cells import Cell  # noqa: E402

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


def a_cell(what, side, model, *more, **fields):
    bindings = (*(f"{name}={value}" for name, value in SIZES.items()), *more)
    return Cell(what, side, "text", model, "tuned", L, bindings, seconds=0.01, **fields)


def talk(cell, *requests):
    """Answers of a child to the cell and the requests."""
    lines = "\n".join([cell.to_json(), *map(json.dumps, requests)])
    command = [sys.executable, "-m", "lra_fnet.benchmark.peer"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("model", ["fnet", "transformer"])
def test_the_model_has_the_sizes_of_the_experiment(model):
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


def test_a_training_step_changes_every_parameter_that_the_loss_reaches():
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


@pytest.mark.parametrize("what", ["train", "infer", "mixing"])
@pytest.mark.parametrize("model", ["fnet", "transformer"])
def test_products_are_those_that_pytorch_counts(monkeypatch, model, what):
    monkeypatch.setattr(peer, "QUERIES", 5)
    cell = a_cell(what, "torch" if what == "mixing" else "eager", model)
    side = peer.Side(cell)
    plain = sdpa_kernel(SDPBackend.MATH)  # the fused kernel is not counted
    with FlopCounterMode(display=False) as counter, plain:
        side.calls[0]()
    found = peer.products(side.model, side.built, what)
    needed = sum(2 * m * k * n * batch * count for (m, k, n, batch), count in found.items())
    assert needed == counter.get_total_flops()


def test_bfloat16_is_autocast():
    side = peer.Side(a_cell("infer", "eager", "fnet", "Encoder.dtype=bfloat16"))
    kinds = set()
    for module in side.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda *args: kinds.add(args[-1].dtype))
    side.round(0.0)
    assert kinds == {torch.bfloat16}


def test_the_child_speaks_the_protocol():
    rounds = [{"seconds": 0.01}, {"roofline": 0.01}, {"seconds": 0.0}]
    facts, timed, limits, once = talk(a_cell("train", "eager", "fnet"), *rounds)
    assert facts["state"] == "ok"
    assert (facts["batch_size"], facts["dim"], facts["num_layers"]) == (2, 8, 2)
    assert facts["dtype"] == "float32"
    assert facts["peak_bytes"] > 0
    assert facts["versions"]["torch"] == torch.__version__
    assert timed["calls"] >= 1
    assert timed["seconds"] >= 0.01
    assert limits["floor_seconds"] > 0
    assert once["calls"] == 1


def test_mixing_is_timed_forward_and_backward_and_forward_alone():
    timed = peer.Side(a_cell("mixing", "torch", "fnet", size="base")).round(0.01)
    assert timed["calls"] >= 1
    assert timed["forward_calls"] >= 1
    assert timed["forward_seconds"] > 0


@pytest.mark.slow
def test_the_compiled_model_is_timed_without_its_compilation():
    facts, timed = talk(a_cell("train", "compiled", "fnet"), {"seconds": 0.0})
    assert facts["state"] == "ok"
    assert facts["compile_seconds"] > 10 * timed["seconds"]


def test_what_does_not_compile_is_a_state(monkeypatch):
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


def test_too_little_memory_is_a_state(monkeypatch):
    answers = []

    def refuse(*arguments):
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
        )

    monkeypatch.setattr(peer, "_classifier", refuse)
    child.serve(peer.Side, iter([a_cell("train", "eager", "fnet").to_json()]), answers.append)
    assert answers == [{"state": "OOM"}]


@pytest.mark.parametrize("missing", ["torch", "transformers", "jax"])
def test_a_missing_library_is_one_line(missing):
    hide = f"import sys; sys.modules[{missing!r}] = None"
    command = f"{hide}; from lra_fnet.benchmark import child, peer; child.main(peer.Side)"
    done = subprocess.run(
        [sys.executable, "-c", command],
        input=a_cell("train", "eager", "fnet").to_json(),
        capture_output=True,
        text=True,
        check=True,
    )
    (answer,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert f"has no {missing}: `make benchmark PEER=1`" in answer["mistake"]


def test_another_model_is_a_mistake_told_in_one_line():
    answers = []
    child.serve(peer.Side, iter([a_cell("train", "eager", "linear").to_json()]), answers.append)
    assert "fnet and transformer, got linear" in answers[0]["mistake"]
