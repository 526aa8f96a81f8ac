"""Several devices, and slices of a batch: the numbers of one device, one all-reduce a step."""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import rows, tiny

from lra_fnet import intervals, objective
from lra_fnet.benchmark import scaling
from lra_fnet.benchmark.cells import Cell
from lra_fnet.errors import UserError
from lra_fnet.train import pipeline, step

BATCH = 8
KEY = jax.random.key(3, impl="threefry2x32")


@functools.cache
def inputs(model="fnet", dropout=0.2):
    """A model, and what its gradient takes."""
    built = tiny(model, batch_size=BATCH)
    encoder = built.model.encoder.clone(dropout=dropout, attention_dropout=dropout, parent=None)
    state = step.initial_state(built, 0)
    batch = jax.tree.map(lambda x: x[0], pipeline.train_batches(rows(30), 0, 0, 1, BATCH, 1))
    return built.model.clone(encoder=encoder, parent=None), (state.params, state.constants, batch)


def assert_same(got, want, tolerance=2e-6):
    largest = max(np.abs(x).max() for x in jax.tree.leaves(want[0]))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest),
        got[0],
        want[0],
    )
    assert float(got[1].loss) == pytest.approx(float(want[1].loss), rel=2e-6)
    assert (int(got[1].correct), int(got[1].count)) == (int(want[1].correct), BATCH)


@pytest.mark.parametrize("width", ["uint8", "uint32"])
@pytest.mark.parametrize("shape", [(12, 5), (12,), (12, 3, 4), (12, 0)])
def test_a_part_draws_the_bits_that_its_rows_have_in_the_whole_batch(shape, width):
    whole = jax.random.bits(KEY, shape, width)
    derived = jax.random.bits(jax.random.split(jax.random.fold_in(KEY, 7), 3)[1], shape, width)
    for parts in (2, 12):
        keys = [step.part_key(KEY, part) for part in range(parts)]
        share = (12 // parts, *shape[1:])
        drawn = [jax.random.bits(key, share, width) for key in keys]
        np.testing.assert_array_equal(np.concatenate(drawn), whole)
        keys = [jax.random.split(jax.random.fold_in(key, 7), 3)[1] for key in keys]
        drawn = [jax.random.bits(key, share, width) for key in keys]
        np.testing.assert_array_equal(np.concatenate(drawn), derived)


def test_indices_of_bits_past_32_bits_are_exact():
    a, b = [0xFFFFFFFF, 123456789, 65536], 0xFFFFFFF1
    high, low = step._multiply(jnp.asarray(a, jnp.uint32), b)
    got = [(int(h) << 32) | int(low_) for h, low_ in zip(high, low, strict=True)]
    assert got == [number * b for number in a]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_slices_of_any_size_give_the_gradient_of_the_whole_batch(dropout):
    """With dropout too: an example's draws do not depend on the slice that it is in."""
    model, where = inputs(dropout=dropout)
    want = jax.jit(step.make_gradient(model))(*where, KEY)
    for size in (1, 4):
        got = jax.jit(step.make_gradient(model, size))(*where, KEY)
        assert_same(got, want)


def in_devices(code, devices=8):
    """The value of the last line that `code` prints in a process with so many CPU devices."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = ['tests', 'tests/train']\n{code}"],
        capture_output=True,
        text=True,
        env=os.environ | flags,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def mesh_of(devices):
    axis = jax.sharding.AxisType.Auto
    return jax.make_mesh((devices,), ("data",), (axis,), devices=jax.devices()[:devices])


def steps_of(devices, microbatch, model="fnet"):
    """Losses and right answers of three steps, and the collectives of the program."""
    built = tiny(model, batch_size=BATCH, microbatch=microbatch)
    batches = pipeline.train_batches(rows(30), 0, 0, 3, BATCH, 3)
    program = step.Program.compile(built, mesh_of(devices), batches)
    _, logs = program.steps(program.initial_state(0), program.place(batches), 3)
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|infeed|outfeed"
    collectives = re.findall(rf"\b({kinds})(?:-start)?\(", program.update.as_text())
    return {"loss": logs.loss.tolist(), "correct": logs.correct.tolist(), "has": collectives}


def test_the_loss_is_that_of_one_device_with_one_all_reduce_a_step():
    """At 2, 4 and 8 devices, in slices too, with dropout: no row moves, no slice communicates."""
    cases = [(1, 0), (2, 0), (8, 0), (4, 4)]
    found = in_devices(
        "import json, test_devices as t\n"
        f"print(json.dumps([t.steps_of(*case) for case in {cases}]))"
    )
    one = found[0]
    assert one["has"] == []
    for more in found[1:]:
        np.testing.assert_allclose(more["loss"], one["loss"], rtol=1e-5)
        assert more["correct"] == one["correct"]
        assert more["has"] == ["all-reduce"]


def scores_of_21_rows():
    """Of one device and of four, in batches of 5 and of 8; and which rows are right, one by one."""
    model, (params, constants, _) = inputs()
    variables, arrays = {"params": params, **constants}, rows(21)
    scores = [
        step.make_scorer(model, 5, mesh)(variables, arrays, bits=True)
        for mesh in (None, mesh_of(4))
    ]
    ids, mask = pipeline.tokens(arrays.values, arrays.lengths, model.zero_is_padding)
    logits = jax.jit(functools.partial(model.apply, train=False))(variables, ids, mask)
    return [*scores, (logits.argmax(-1) == arrays.labels).tolist()]


def test_an_evaluation_counts_every_row_once_and_in_order_on_any_number_of_devices():
    one, four, right = in_devices(
        "import json, test_devices as t; print(json.dumps(t.scores_of_21_rows()))"
    )
    assert (one["correct"], one["count"]) == (sum(right), 21)
    assert 0 < sum(right) < 21
    for scores in (one, four):
        np.testing.assert_array_equal(intervals.bits(scores), right)
    assert (four["correct"], four["count"]) == (one["correct"], 21)
    assert four["loss"] == pytest.approx(one["loss"], rel=1e-6)


def test_a_slice_that_does_not_divide_by_the_devices_is_refused():
    with pytest.raises(UserError, match=r"Run.microbatch \(2\) must be divisible.*\(4\)"):
        step.make_gradient(inputs()[0], 2, dataclasses.make_dataclass("Mesh", ["size"])(4))


def test_the_whole_state_is_donated_and_nothing_is_sent_to_the_host_in_the_loop():
    built = tiny()
    batches = pipeline.train_batches(rows(30), 0, 0, 1, 4, 3)
    with jax.debug_nans(False):  # which turns donation off
        text = step.Program.compile(built, step.make_mesh(4), batches).update.as_text()
    state = jax.eval_shape(lambda: step.initial_state(built, 0))
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", text)[1]
    donated = {int(number) for number in re.findall(r"\((\d+), \{\}", aliases)}
    assert donated == set(range(len(jax.tree.leaves(state))))
    assert not re.findall(r"\b(infeed|outfeed|send|recv)\(|callback", text)


def test_counts_and_losses_are_summed_in_float32_without_loss():
    """The vector of one all-reduce is float32: whole numbers to 2^24 travel unchanged."""
    sums = objective.Sums(jnp.float32(1.5), jnp.int32(2**24 - 1), jnp.int32(2**24))
    vector, restore = jax.flatten_util.ravel_pytree(sums)
    assert vector.dtype == jnp.float32
    back = restore(vector)
    assert (int(back.correct), int(back.count)) == (2**24 - 1, 2**24)
    assert back.correct.dtype == jnp.int32


def test_the_scaling_table_has_a_row_for_each_number_of_devices(tmp_path, capfd):
    sizes = ("dim=8", "qkv_dim=8", "num_layers=1", "mlp_dim=8", "dropout=0.2")
    overrides = (*(f"Encoder.{size}" for size in sizes), "Head.mlp_dim=8", "Run.batch_size=4")
    cell = Cell("train", "ours", "text", "fnet", "cpu", 16, overrides, seconds=0.01)
    found = scaling.main(cell, [1, 2], tmp_path)
    assert [(row["scaling"], row["devices"], row["batch_size"]) for row in found] == [
        ("strong", 1, 4),
        ("strong", 2, 4),
        ("weak", 2, 8),
    ]
    assert [row["all_reduces"] for row in found] == [0, 1, 1]
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)
    assert json.loads((tmp_path / "scaling.fnet.16.json").read_text()) == found
    table = (tmp_path / "scaling.fnet.16.md").read_text()
    assert table in capfd.readouterr().out
    assert "| strong | 1 | 4 |" in table
    assert scaling.NOTICE in table
    with pytest.raises(UserError, match=r"numbers that divide Run.batch_size \(4\), got 3"):
        scaling.main(cell, [1, 3], tmp_path)


def test_efficiency_is_against_one_device_and_a_machine_with_fewer_shows_it():
    ok = {"loss": 0.5, "all_reduces": 1, "platform": "gpu"}
    found = [
        {"scaling": "strong", "devices": 1, "batch_size": 8, "steps_per_second": [4, 9, 1], **ok},
        {"scaling": "strong", "devices": 2, "batch_size": 8, "steps_per_second": [6.0], **ok},
        {"scaling": "strong", "devices": 4, "batch_size": 8},
        {"scaling": "weak", "devices": 2, "batch_size": 16, "steps_per_second": [3.0], **ok},
    ]
    lines = scaling.table(found).splitlines()
    assert lines[2:6] == [
        "| strong | 1 | 8 | 4 | 100% | 0.500000 | 1 |",
        "| strong | 2 | 8 | 6 | 75% | 0.500000 | 1 |",
        "| strong | 4 | 8 | - | - | - | - |",
        "| weak | 2 | 16 | 3 | 75% | 0.500000 | 1 |",
    ]
    assert scaling.NOTICE not in lines
