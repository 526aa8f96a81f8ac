"""The child process that measures our programs: operations, gradients, replies."""

import dataclasses
import functools
import json
import subprocess
import sys
from unittest.mock import Mock

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from lra_fnet.benchmark import WHATS, cells, child, roofline, worker
from lra_fnet.machine import memory
from lra_fnet.models.mixers import attention
from lra_fnet.training import slices

CELL = cells.Cell("train", "ours", "text", "fnet", "cpu", 16, label="fnet", seconds=0.01)
SMALL = ("Encoder.dim=8", "Encoder.num_layers=1", "Encoder.mlp_dim=8", "Run.batch_size=2")


def test_operations_of_a_scan_count_as_often_as_it_runs():
    weights = jnp.ones((5, 4, 4))

    def looped(x):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, weights)[0]

    def unrolled(x):
        for w in np.asarray(weights):
            x = x @ w
        return x

    x = jnp.ones((3, 4))
    counts = [worker.operations(jax.make_jaxpr(f)(x)) for f in (looped, unrolled)]
    assert counts[0] == pytest.approx(counts[1], rel=0.05)
    assert counts[1] == 5 * 2 * 3 * 4 * 4


def test_operations_of_a_scan_within_a_scan_count_as_often_as_both_run():
    weights = jnp.ones((3, 5, 4, 4))

    def inner(x, several):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, several)[0], None

    program = jax.make_jaxpr(lambda x: jax.lax.scan(inner, x, weights)[0])(jnp.ones((3, 4)))
    assert worker.operations(program) == pytest.approx(3 * 5 * 2 * 3 * 4 * 4, rel=0.05)


@pytest.mark.parametrize(
    ("transform", "dtype", "usual"),
    [
        (jnp.fft.fft, complex, 5 * 3 * 8 * 16 * 4),
        (jnp.fft.rfft, float, 2.5 * 3 * 8 * 16 * 4),
        (jnp.fft.fft2, complex, 5 * 3 * 8 * 16 * 7),
        (jnp.fft.rfft2, float, 2.5 * 3 * 8 * 16 * 7),
        (lambda x: jnp.fft.irfft(x, 30), complex, 2.5 * 3 * 8 * 30 * np.log2(30)),
    ],
)
def test_operations_of_a_transform_are_the_usual_ones(transform, dtype, usual):
    program = jax.make_jaxpr(transform)(jnp.ones((3, 8, 16), dtype))
    assert worker.operations(program) == pytest.approx(usual, rel=0.01)
    twice = jax.make_jaxpr(lambda x: (transform(x), jax.lax.map(transform, x[None])))(
        jnp.ones((3, 8, 16), dtype)
    )
    assert worker.operations(twice) == pytest.approx(2 * usual, rel=0.01)


def test_blockwise_attention_has_the_operations_of_naive_attention():
    inputs = *(jnp.ones((1, 64, 2, 4)),) * 3, jnp.ones((1, 64), bool)
    blockwise = functools.partial(attention.blockwise, block_size=16)
    programs = (jax.make_jaxpr(attend)(*inputs) for attend in (blockwise, attention.naive))
    counts = [*map(worker.operations, programs)]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)


def test_mixing_computes_the_gradient_in_input_and_parameters():
    built = dataclasses.replace(CELL, model="linear", what="mixing", overrides=SMALL).load()
    both, forward = worker.mixing(built)
    params, x = 2 * (8 * 8 + 16 * 16), 2 * 16 * 8
    plan_of_both, plan_of_forward = (p.compiled.memory_analysis() for p in (both, forward))
    assert plan_of_forward.output_size_in_bytes == 4 * x
    assert plan_of_both.output_size_in_bytes >= 4 * (2 * x + params / 2)


def test_mixing_drops_weights_where_it_computes_gradients_and_not_forward_alone():
    def programs(rate):
        more = (*SMALL, f"Encoder.attention_dropout={rate}")
        cell = dataclasses.replace(CELL, model="transformer", what="mixing", overrides=more)
        return [str(program.jaxpr) for program in worker.mixing(cell.load())]

    (both, forward), (still, forward_again) = programs(0.5), programs(0.0)
    assert both != still
    assert forward == forward_again


def test_definition_is_measured_with_autodiff_on_the_same_input():
    built = dataclasses.replace(CELL, what="mixing", overrides=SMALL).load()
    x, cotangent, _ = worker._mixing_inputs(built)
    definition, ours = (f(built)[0].jaxpr for f in (worker.definition, worker.mixing))
    wanted = [np.fft.fft2(np.asarray(a, np.float64)).real for a in (x, cotangent)]
    for program in (definition, ours):
        got = jax.extend.core.jaxpr_as_fun(program)(x, cotangent)  # value, gradient
        for value, want in zip(got, wanted, strict=True):
            np.testing.assert_allclose(value, want, atol=1e-4)
    assert "custom_vjp" not in str(definition)


def test_program_that_no_cpu_computes_has_no_count(monkeypatch):
    monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", lambda self: None)  # as on a GPU
    assert worker.operations(jax.make_jaxpr(jnp.tanh)(jnp.ones(3))) is None


def test_operations_are_counted_on_the_cpu_of_an_accelerator(monkeypatch):
    places = []
    whole = jax.stages.Lowered.cost_analysis

    def seen(lowered):
        places.append(jax.config.jax_default_device)
        return whole(lowered)

    monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", seen)
    assert worker.operations(jax.make_jaxpr(jnp.dot)(jnp.ones(3), jnp.ones(3))) > 0
    assert [place.platform for place in places] == ["cpu"]


def replies(cell, *requests):
    """The child's replies to a cell and further requests, without a process."""
    answers = []
    lines = map(json.dumps, (dataclasses.asdict(cell), *requests))
    child.serve(worker.Side, lines, answers.append)
    return answers


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[pytest.mark.slow] if what == "pretrain" else []) for what in WHATS],
)
def test_child_replies_with_facts_rounds_and_limits(what):
    few = ("Encoder.mlp_dim=0", "Head.mlp_dim=0")  # each product is compiled and measured
    cell = dataclasses.replace(CELL, what=what, overrides=(*SMALL, *few))
    requests = [{"seconds": 0.02}, {"seconds": 0.0}, {"roofline": 0.001}]
    facts, rounds, shortest, limits = replies(cell, *requests)
    assert facts["state"] == "ok"
    assert (facts["batch_size"], facts["dim"], facts["num_layers"]) == (2, 8, 1)
    assert facts["planned_bytes"] > 0
    assert facts["flops"] > 0
    assert rounds["seconds"] >= 0.02
    assert rounds["calls"] >= 1
    assert shortest["calls"] == 1
    assert ("forward_calls" in rounds) == (what == "mixing")
    assert limits["floor_seconds"] >= 0
    assert limits["bytes"] > 0


def test_memory_is_what_the_cell_adds_to_the_process(monkeypatch):
    monkeypatch.setattr(memory, "forget_peak", lambda: 1000)
    monkeypatch.setattr(memory, "peak", lambda: 5000)
    (facts,) = replies(dataclasses.replace(CELL, overrides=SMALL))
    assert facts["peak_bytes"] == 4000


def test_program_that_does_not_fit_is_oom(monkeypatch):
    for what, module in (("train", slices), ("infer", memory)):
        monkeypatch.setattr(module, "free_memory", lambda: 1000)
        cell = dataclasses.replace(CELL, what=what, overrides=SMALL)
        assert replies(cell) == [{"state": "OOM"}]


def test_inputs_that_do_not_fit_are_oom(monkeypatch):
    error = MemoryError("Unable to allocate 46.6 TiB for an array")
    monkeypatch.setattr(worker, "random_batches", Mock(side_effect=error))
    assert replies(dataclasses.replace(CELL, overrides=SMALL)) == [{"state": "OOM"}]


def test_child_that_gets_no_cell_says_nothing():
    answers = []
    child.serve(worker.Side, iter([]), answers.append)
    assert answers == []


def test_limits_that_do_not_fit_leave_the_side_as_it_was(monkeypatch):
    monkeypatch.setattr(roofline, "copy_rate", Mock(side_effect=RuntimeError("out of memory")))
    cell = dataclasses.replace(CELL, overrides=SMALL)
    facts, limits, rounds = replies(cell, {"roofline": 0.001}, {"seconds": 0.0})
    assert (facts["state"], limits, rounds["calls"]) == ("ok", {"state": "OOM"}, 1)


def test_child_of_a_killed_parent_ends_without_a_word():
    command = [sys.executable, "-m", "lra_fnet.benchmark.child", "worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdout.close()
        process.stdin.write(json.dumps(dataclasses.asdict(CELL) | {"model": "no model"}) + "\n")
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_child_trains_further_and_counts_the_all_reduces():
    side = worker.Side(dataclasses.replace(CELL, overrides=SMALL))
    first, later = side.steps(1), side.steps(60)
    assert later["loss"] < first["loss"]
    assert first["all_reduces"] == 0


def test_cell_with_more_devices_than_the_machine_is_absent():
    cell = dataclasses.replace(CELL, devices=jax.device_count() + 1)
    assert replies(cell) == [{"state": "ABSENT"}]


def test_mistake_in_a_cell_is_the_last_reply():
    (reply,) = replies(dataclasses.replace(CELL, task="txt"), {"seconds": 0.0})
    assert "unknown task 'txt'" in reply["mistake"]
