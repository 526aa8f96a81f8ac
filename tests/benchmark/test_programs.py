"""What a child process measures, and how it answers."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from lra_fnet import config, experiment
from lra_fnet.benchmark import case, child, programs
from lra_fnet.errors import UserError
from lra_fnet.training import pipeline, score, step

FEW = ("Encoder.dim=8", "Encoder.num_layers=1", "Run.batch_size=2")
FEW += ("Encoder.mlp_dim=0", "Head.mlp_dim=0")  # each product is compiled and measured
FEW += ("Encoder.num_heads=2", "Encoder.qkv_dim=8")
FEW += ("Encoder.dropout=0.1", "Encoder.attention_dropout=0.1")
CELL = case.Case("train", "ours", "text", "fnet", "cpu", 16, FEW, label="fnet", seconds=0.01)


class Pipe:
    """The child's end of a pipe, which closes after these messages."""

    def __init__(self, *messages):
        self.messages, self.answers = list(messages), []

    def recv(self):
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def send(self, answer):
        self.answers.append(answer)


def answers(make, *messages):
    """The child's answers to a cell and further messages, without a process."""
    pipe = Pipe(*messages)
    with pytest.raises(EOFError):
        child.serve(pipe, make)
    return pipe.answers


@pytest.mark.parametrize(
    ("what", "preset", "model"),
    [
        ("mixing", "cpu", "fnet"),
        ("infer", "paper", "linear"),
        ("train", "small", "transformer"),
        ("train", "lra-code", "fnet_original"),
        ("train", "tuned", "s5"),
        pytest.param("pretrain", "cpu-pretrain", "fnet", marks=pytest.mark.slow),
    ],
)
def test_child_answers_with_facts_and_rounds(what, preset, model):
    cell = dataclasses.replace(CELL, what=what, preset=preset, model=model)
    facts, timed = answers(programs.Measured, cell, 0.001)
    assert facts["state"] == "ok"
    assert (facts["batch_size"], facts["dim"], facts["num_layers"]) == (2, 8, 1)
    assert facts["flops"] > 0
    assert timed["seconds"] > 0
    assert timed["floor_seconds"] >= 0
    assert ("forward_seconds" in timed) == (what == "mixing")


@pytest.mark.parametrize(
    ("what", "task", "length", "presets"),
    [
        ("train", "text", 16, ["cpu", "small", "tuned"]),
        pytest.param("pretrain", "text", 16, ["cpu-pretrain"], marks=pytest.mark.slow),
        pytest.param("pretrain", "corpus", 512, ["paper-pretrain"], marks=pytest.mark.slow),
    ],
)
def test_every_model_can_be_measured(what, task, length, presets):
    """Traces the programs, once for the presets that are equal but for sizes and dropout."""
    cell = dataclasses.replace(CELL, what=what, task=task, length=length)
    pairs = itertools.product(presets, config.known("models"))
    loaded = [dataclasses.replace(cell, preset=p, model=m).load() for p, m in pairs]
    distinct = {repr((built.model, built.optimizer.groups)): built for built in loaded}
    mesh, key = pipeline.make_mesh(2), experiment.keys(0)[1]
    for name, built in distinct.items():
        batches = programs.random_batches(built)
        state = jax.eval_shape(functools.partial(step.initial_state, built, 0))
        inputs = state, batches, np.int32(1), key
        train, _ = programs._counted(step.make_update(built, mesh), inputs)
        inputs = state.variables, jax.tree.map(lambda x: x[0], batches)
        infer, _ = programs._counted(score.outputs_of(built.objective, mesh), inputs)
        assert train > 2 * infer > 0, name


def test_mixing_computes_the_gradient_in_input_and_parameters():
    both, forward = programs.mixing(dataclasses.replace(CELL, model="linear").load())
    assert both.products.total() == 3 * forward.products.total()


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (MemoryError("Unable to allocate 46.6 TiB for an array"), {"state": "OOM"}),
        (RuntimeError("RESOURCE_EXHAUSTED: out of memory"), {"state": "OOM"}),
        (UserError("unknown task 'txt'"), {"mistake": "unknown task 'txt'"}),
    ],
)
def test_errors_of_a_cell_are_answers(error, answer):
    def make(cell):
        raise error

    assert answers(make, CELL) == [answer]


def test_a_round_that_does_not_fit_is_oom_and_other_errors_end_the_child():
    class Side:
        def __init__(self):
            self.facts = {"state": "ok"}

        def round(self, seconds):
            raise RuntimeError("out of memory" if seconds else "broken")

    assert answers(lambda cell: Side(), CELL, 1.0) == [{"state": "ok"}, {"state": "OOM"}]
    with pytest.raises(RuntimeError, match="broken"):
        child.serve(Pipe(CELL, 0.0), lambda cell: Side())


def test_more_devices_than_the_machine_has_are_a_mistake():
    (answer,) = answers(
        programs.Measured, dataclasses.replace(CELL, devices=jax.device_count() + 1)
    )
    assert "2 devices" in answer["mistake"]
