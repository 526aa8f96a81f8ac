"""Several devices, and slices of a batch: the numbers of one device, one all-reduce per step."""

import dataclasses
import functools
import re
import types

import jax
import numpy as np
import programs
import pytest
from tiny import rows, tiny

from lra_fnet import counts
from lra_fnet.errors import UserError
from lra_fnet.training import pipeline, slices, step

BATCH = 8
KEY = jax.random.key(3, impl="threefry2x32")
SINKHORN = ("sinkhorn", "Sinkhorn.block_size=3")  # several blocks to sort
LONG_CONV = ("long_conv", "LongConvolution.scale=0.5", "Encoder.attention_dropout=0.3")
BATCH_NORM = ("conv", "Encoder.batch_norm=0.9")


@functools.cache
def inputs(model="fnet", *settings, dropout=0.2, **changes):
    """An objective, and the arguments of its gradient but the key."""
    built = tiny(model, *settings, batch_size=BATCH)
    encoder = built.model.encoder.clone(
        dropout=dropout, attention_dropout=dropout, parent=None, **changes
    )
    model = built.model.clone(encoder=encoder, parent=None)
    state = step.initial_state(built, 0)
    batch = jax.tree.map(lambda x: x[0], pipeline.train_batches(rows(30), 0, 0, 1, BATCH, 1))
    goal = dataclasses.replace(built.objective, model=model)
    return goal, (state.params, state.constants, batch)


def assert_same(got, want, tolerance=2e-6):
    largest = max(np.abs(x).max() for x in jax.tree.leaves(want[0]))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest),
        got[0],
        want[0],
    )
    assert float(got[1].loss) == pytest.approx(float(want[1].loss), rel=2e-6)
    assert (int(got[1].correct), int(got[1].count)) == (int(want[1].correct), BATCH)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (("fnet",), {}),
        (("fnet",), {"remat": True}),  # whose backward pass draws again
        *(
            pytest.param(model, changes, marks=pytest.mark.slow)
            for model, changes in (
                (("transformer",), {"remat": True}),  # draws inside a loop over blocks of queries
                (SINKHORN, {"dropout": 0.0}),  # noise for each example
                (("reformer",), {}),  # rotations for all
                (LONG_CONV, {}),  # one mask of the kernel for all
            )
        ),
    ],
)
def test_slices_give_the_gradient_of_the_whole_batch(model, changes):
    """With dropout too: an example's draws do not depend on the slice that it is in."""
    goal, given = inputs(*model, **changes)
    want = jax.jit(step.make_gradient(goal))(*given, KEY)
    for size in (1, 4) if not changes else (4,):
        sliced = jax.jit(step.make_gradient(goal, size))
        assert "scan[" in str(sliced.trace(*given, KEY).jaxpr)
        assert_same(sliced(*given, KEY), want)


@pytest.mark.slow
def test_devices_and_slices_give_the_losses_of_one_device_with_one_all_reduce_per_step():
    """With dropout, on 2, 4 and 8 devices: no row moves, no slice communicates.

    BatchNorm alone communicates more: its statistics are those of the whole batch.
    """
    cases = [(1, 0, "fnet"), (8, 0, "fnet"), (4, 4, "fnet"), (1, 0, *SINKHORN), (2, 4, *SINKHORN)]
    cases += [(1, 0, *LONG_CONV), (2, 0, *LONG_CONV)]
    cases += [(1, 0, *BATCH_NORM), (4, 0, *BATCH_NORM)]
    results = programs.value_of("steps", cases, devices=8)
    for (_, _, model, *_), (loss, correct, collectives) in zip(cases, results, strict=True):
        whole = next(i for i, case in enumerate(cases) if case[2] == model)
        whole_loss, whole_correct, none = results[whole]
        assert none == []
        np.testing.assert_allclose(loss, whole_loss, rtol=1e-5)
        assert correct == whole_correct
        assert {*collectives} <= {"all-reduce"}
    counts = [len(collectives) for *_, collectives in results]
    assert counts[:-1] == [0, 1, 1, 0, 1, 0, 1, 0]
    assert counts[-1] > 1


def test_batch_norm_takes_the_batch_whole():
    wide = ("conv", "Encoder.dim=256", "MAX_LEN=1024")
    assert slices.microbatch_of(tiny(*wide, batch_size=64), 1) < 64
    assert slices.microbatch_of(tiny(*wide, "Encoder.batch_norm=0.9", batch_size=64), 1) == 64


def test_every_row_is_scored_once_and_in_order_on_any_number_of_devices():
    one, four, right, logits = programs.value_of("scores", devices=4)
    logits = np.array(logits)
    squares = np.square(logits[:, None] - logits).mean() / 2  # of differences between two rows
    variation = np.sqrt(squares / np.square(logits).mean())
    assert (one["correct"], one["count"]) == (sum(right), 21)
    assert 0 < sum(right) < 21
    for scores in (one, four):
        np.testing.assert_array_equal(counts.bits(scores), right)
        assert scores["variation"] == pytest.approx(variation, rel=1e-5)
    assert (four["correct"], four["count"]) == (one["correct"], 21)
    assert four["loss"] == pytest.approx(one["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("refused", "fragment"),
    [
        (
            lambda: tiny("conv", "Encoder.batch_norm=0.9", "Run.microbatch=2"),
            r"Run.microbatch must be 0 with Encoder.batch_norm, got 2",
        ),
        (
            lambda: step.make_gradient(inputs()[0], 2, types.SimpleNamespace(size=4)),
            r"Run.microbatch \(2\) must be divisible.*\(4\)",
        ),
        (
            lambda: pipeline.make_mesh(4, jax.devices() * 3),
            r"Run.batch_size \(4\) must be divisible.*\(3\)",
        ),
    ],
    ids=["batch_norm", "microbatch", "batch_size"],
)
def test_sizes_that_do_not_divide_are_refused(refused, fragment):
    with pytest.raises(UserError, match=fragment):
        refused()


def test_whole_state_is_donated_and_the_loop_sends_nothing_to_the_host():
    built = tiny()
    batches = pipeline.train_batches(rows(30), 0, 0, 1, 4, 3)
    with jax.debug_nans(False):  # which turns donation off
        text = step.Program.compile(built, pipeline.make_mesh(4), batches).update.as_text()
    state = jax.eval_shape(lambda: step.initial_state(built, 0))
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", text)[1]
    donated = {int(number) for number in re.findall(r"\((\d+), \{\}", aliases)}
    assert donated == set(range(len(jax.tree.leaves(state))))
    assert not re.findall(r"\b(infeed|outfeed|send|recv)\(|callback", text)
