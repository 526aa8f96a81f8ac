"""Denoise: what is hidden, what it is compared with, and that no slice has a say in either."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, rows, tiny

from lra_fnet import experiment
from lra_fnet.errors import UserError
from lra_fnet.models.heads import Denoiser
from lra_fnet.objective import Denoise
from lra_fnet.tasks import Arrays
from lra_fnet.training import pipeline, score, step

KEY = jax.random.key(7, impl="threefry2x32")
RATE = 0.4


@functools.cache
def built(*settings, task="listops", model="fnet"):
    given = (*TINY, f"Denoising.rate={RATE}", *settings)
    return experiment.load(task, model, "cpu", given, denoise=True)


def hidden(goal, arrays, key=KEY, numbers=None):
    numbers = np.arange(len(arrays.lengths)) if numbers is None else numbers
    return jax.tree.map(np.asarray, jax.jit(goal.hide)(key, *arrays[:2], numbers))


def images(n):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, (n, 12)).astype(np.uint8)
    return Arrays(values, np.full(n, 12, np.int32), np.zeros(n, np.int32))


def test_a_share_of_the_real_tokens_is_hidden_and_nothing_else_changes():
    goal, arrays = built("Denoising.replacement=mask").objective, rows(50)
    ids, mask, places, targets, chosen = hidden(goal, arrays)
    for row, length in enumerate(arrays.lengths):
        wanted = max(1, round(RATE * int(length)))
        at = places[row][chosen[row]]
        assert len(set(at)) == len(at) == wanted
        assert (at < length).all()
        np.testing.assert_array_equal(targets[row][chosen[row]], arrays.values[row, at])
        before = np.where(np.arange(12) < length, arrays.values[row].astype(int) + 1, 0)
        before[at] = goal.mask_id
        np.testing.assert_array_equal(ids[row], before)
        np.testing.assert_array_equal(mask[row], np.arange(12) < length)


def test_bert_keeps_a_tenth_and_draws_a_tenth_of_what_it_hides():
    """Of 16,000 places, within four standard deviations."""
    goal, arrays = built("Denoising.replacement=bert").objective, rows(4000)
    ids, _, places, targets, chosen = hidden(goal, arrays)
    after, before = np.take_along_axis(ids, places, 1)[chosen], targets[chosen] + 1
    masked, kept = after == goal.mask_id, after == before
    for share, wanted in ((masked, 0.8), (kept, 0.1 + 0.1 / 15), (~masked & ~kept, 0.1 * 14 / 15)):
        assert share.mean() == pytest.approx(wanted, abs=4 * (wanted / len(after)) ** 0.5)
    assert set(after[~masked]) == set(range(1, 16))  # padding and the mask are never drawn


def test_what_is_hidden_depends_on_the_key_and_the_number_of_the_row_alone():
    goal, arrays = built("Denoising.replacement=bert").objective, rows(20)
    whole = hidden(goal, arrays)
    some = np.array([17, 3, 11])
    alone = hidden(goal, Arrays(*(column[some] for column in arrays)), numbers=some)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[some]), alone, whole)
    again = hidden(goal, arrays, jax.random.fold_in(KEY, 1))
    renumbered = hidden(goal, arrays, numbers=np.arange(20) + 20)
    assert (again.places != whole.places).any(axis=1).mean() > 0.9
    assert (renumbered.places != whole.places).any(axis=1).mean() > 0.9


def test_pixels_become_gray_and_black_padding_is_never_hidden():
    goal = built("Denoising.replacement=mask", task="image").objective
    ids, _, places, _, chosen = hidden(goal, images(5))
    at = np.take_along_axis(ids, places, 1)[chosen]
    assert set(at) == {round(goal.task.pixel_mean) + 1}
    tokens = ("Encoder.inputs=tokens", "Denoising.loss=cross_entropy", "Encoder.vocab_size=256")
    task = dataclasses.replace(goal.task, black_is_padding=True)
    encoder = built(*tokens[:2], task="image").model.encoder.clone(vocab_size=257, parent=None)
    goal = Denoise(task, Denoiser(encoder, 256), goal.how)
    arrays = images(20)
    arrays.values[:, ::2] = 0
    _, mask, places, targets, chosen = hidden(goal, arrays)
    np.testing.assert_array_equal(mask, arrays.values > 0)
    assert (targets[chosen] > 0).all()
    np.testing.assert_array_equal(targets, np.take_along_axis(arrays.values.astype(int), places, 1))
    assert goal.mask_id == 256


@pytest.mark.parametrize(
    ("task", "loss"), [("listops", "cross_entropy"), ("image", "l1"), ("image", "cross_entropy")]
)
def test_sums_are_those_of_float64_over_the_hidden_places(task, loss):
    """Against the predictions of all places, in NumPy, one place at a time."""
    made = built(f"Denoising.loss={loss}", "Denoising.replacement=mask", task=task)
    goal, arrays = made.objective, images(9) if task == "image" else rows(9)
    variables = made.init(0)
    got = score.make_scorer(goal, 4)(variables, arrays)
    places = hidden(goal, arrays, jax.random.key(0, impl="threefry2x32"))
    apply = jax.jit(functools.partial(made.model.apply, train=False))
    predicted = apply(variables, places.ids, places.mask)
    predicted = np.asarray(predicted, np.float64)
    total, right, count = 0.0, 0, 0
    for row, at in zip(*np.nonzero(places.chosen), strict=True):
        place, target = places.places[row, at], places.targets[row, at]
        y = predicted[row, place]
        if loss == "l1":
            mean, sd = made.task.pixel_mean, made.task.pixel_sd
            total += abs(y[0] - (target - mean) / sd)
            right += round(y[0] * sd + mean) == target
        else:
            total += np.log(np.exp(y - y[target]).sum())
            right += y.argmax() == target
        count += 1
    assert (got["correct"], got["count"]) == (right, count)
    assert got["loss"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("microbatch", [0, 1])
def test_gradient_is_that_of_the_mean_over_all_hidden_tokens(microbatch):
    """With rows of 3 to 12 tokens, no slice hides as many as another."""
    made = built()
    goal, state = made.objective, step.initial_state(made, 0)
    batch = jax.tree.map(lambda x: x[0], pipeline.train_batches(rows(30), 0, 0, 1, 4, 1))

    def mean_loss(params):
        variables = {"params": params, **state.constants}
        sums, _ = goal.sums(goal.outputs(variables, batch, KEY)[0], batch)
        return sums.loss / sums.count

    want = jax.jit(jax.grad(mean_loss))(state.params)
    gradient = jax.jit(step.make_gradient(goal, microbatch))
    got, sums, _ = gradient(state.params, state.constants, batch, KEY)
    assert int(sums.count) == sum(max(1, round(RATE * n)) for n in batch.lengths.tolist())
    largest = max(np.abs(x).max() for x in jax.tree.leaves(want))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6 * largest), got, want)


def test_an_evaluation_hides_the_same_at_any_batch_size():
    made, arrays = built(), rows(21)
    variables = made.init(3)
    scores = [score.make_scorer(made.objective, size)(variables, arrays) for size in (4, 21)]
    assert scores[0] == scores[1] | {"loss": pytest.approx(scores[0]["loss"], rel=1e-6)}


def test_the_better_model_is_the_one_with_the_smaller_loss():
    goal = built().objective
    wrong = {"correct": 9, "count": 10, "loss": 8.0}
    right = {"correct": 1, "count": 20, "loss": 9.0}
    assert goal.rank(right) < goal.rank(wrong)
    assert tiny().objective.rank(wrong) < tiny().objective.rank(right)


def test_two_texts_of_a_row_hide_their_own_places():
    goal = built(task="retrieval").objective
    values = np.tile(np.arange(12, dtype=np.uint8), (6, 2, 1))
    arrays = Arrays(values, np.full((6, 2), 12, np.int32), np.zeros(6, np.int32))
    got = hidden(goal, arrays)
    assert got.places.shape == (12, round(RATE * 12))
    assert (got.places[::2] != got.places[1::2]).any()
    batch = pipeline.Batch(*arrays, np.arange(6, dtype=np.int32), np.ones(6, bool))
    outputs, _ = jax.jit(goal.outputs)(built(task="retrieval").init(0), batch)
    assert outputs.count.tolist() == [2 * round(RATE * 12)] * 6


def test_a_stored_configuration_knows_its_objective():
    made = tiny(denoise=True)
    again = experiment.restore(made.config)
    assert again == dataclasses.replace(made, run=again.run)
    assert isinstance(again.objective, Denoise)
    assert "Denois" not in tiny().config


@pytest.mark.parametrize(
    ("model", "setting"),
    [("mamba", "Mamba.bidirectional=False"), ("sparse", "SparseAttention.causal=True")],
)
def test_a_first_position_that_sees_no_other_classifies_nothing(model, setting):
    """No input would reach the head, and the constant answer would look like a failed training."""
    for pooling in ("cls", "first", "tanh"):
        with pytest.raises(UserError, match=f"Encoder.pooling = {pooling}"):
            tiny(model, setting, f"Encoder.pooling={pooling}")
    assert tiny(model, setting, "Encoder.pooling=mean").objective
    assert tiny(model, setting, "Encoder.pooling=cls", denoise=True).objective
    for whole in (model, "ff_only"):  # without mixing it is the floor on purpose
        assert tiny(whole, "Encoder.pooling=cls").objective


def test_the_mask_has_a_row_of_the_table_that_fine_tuning_leaves_out():
    first, second = tiny(denoise=True), tiny()
    variables = jax.tree.map(lambda x: x + 1.0, first.init(5))
    state = step.initial_state(second, 0)
    begun = step.begin_from(state, variables)
    old, new = variables["params"]["encoder"], begun.params["encoder"]
    np.testing.assert_array_equal(new["embedding"], old["embedding"][:-1])
    assert jax.tree.structure(new) == jax.tree.structure(old)
    np.testing.assert_array_equal(new["norm"]["scale"], old["norm"]["scale"])
    jax.tree.map(np.testing.assert_array_equal, begun.params["head"], state.params["head"])
    assert jnp.array_equal(begun.step, 0)


@pytest.mark.parametrize(
    ("model", "setting"), [("random", "RandomMixing.seed=3"), ("conv", "Encoder.batch_norm=0.9")]
)
def test_fine_tuning_begins_with_the_fixed_matrices_and_averages_of_pretraining(model, setting):
    first, second = (tiny(model, setting, denoise=denoise) for denoise in (True, False))
    variables = jax.tree.map(lambda x: x + 1.0, first.init(5))
    begun = step.begin_from(step.initial_state(second, 0), variables)
    (name,) = begun.constants
    jax.tree.map(
        np.testing.assert_array_equal, begun.constants[name]["encoder"], variables[name]["encoder"]
    )


def test_a_batch_with_nothing_to_hide_changes_no_number_to_nan():
    """Such as black images, where black is padding."""
    experiment, arrays = tiny("fnet", denoise=True), rows(8)
    nothing = Arrays(np.zeros_like(arrays.values), np.zeros_like(arrays.lengths), arrays.labels)
    batches = pipeline.train_batches(nothing, 0, 0, 1, 4, 2)
    mesh = pipeline.make_mesh(4)
    program = step.Program.compile(experiment, mesh, jax.eval_shape(lambda: batches), 0)
    state, logs = program.steps(program.initial_state(0), program.place(batches), 1)
    assert float(logs.loss[0]) == float(logs.grad_norm[0]) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
