"""Rows and batches: order is a function of (seed, epoch), every row counts once."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from tiny import rows, tiny

from lra_fnet import experiment
from lra_fnet.tasks import Arrays
from lra_fnet.training import pipeline, score, step


def arrays(n=11, length=5):
    values = np.arange(n * length, dtype=np.uint8).reshape(n, length)
    lengths = (np.arange(n) % length + 1).astype(np.int32)
    return Arrays(values, lengths, np.arange(n, dtype=np.int32))


def test_epoch_holds_every_row_once_and_differs_by_epoch_and_seed():
    orders = [tuple(pipeline.epoch_order(seed, epoch, 50)) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(orders)) == 4


def test_batches_do_not_depend_on_the_steps_per_dispatch():
    """4 steps at once equal 1 + 3 steps, across the end of an epoch (11 rows, 16 taken)."""
    whole = pipeline.train_batches(arrays(), 0, 0, 4, 4, 4)
    cut = [pipeline.train_batches(arrays(), 0, step, n, 4, 5) for step, n in ((0, 1), (1, 3))]
    assert np.array_equal(whole.numbers, whole.labels)
    for name in ("values", "lengths", "labels", "numbers"):
        parts = [getattr(cut[0], name)[:1], getattr(cut[1], name)[:3]]
        assert np.array_equal(getattr(whole, name), np.concatenate(parts))
    assert sorted(whole.labels.ravel()[:11]) == list(range(11))  # the first epoch, whole


@pytest.mark.parametrize(("steps", "room"), [(1, 2), (2, 2), (5, 5)])
def test_a_dispatch_has_room_for_two_batches(steps, room):
    """XLA fuses the step of a single one differently, where it optimises."""
    assert pipeline.train_batches(rows(30), 0, 0, 1, 4, steps).labels.shape == (room, 4)


@pytest.mark.parametrize(
    ("n", "batch_size"), [(11, 1), (11, 3), (11, 4), (11, 11), (11, 20), (1, 3)]
)
def test_evaluation_counts_every_row_exactly_once(n, batch_size):
    batches = list(pipeline.eval_batches(arrays(n), batch_size))
    assert np.concatenate([b.labels[b.valid] for b in batches]).tolist() == list(range(n))
    assert all(len(b.labels) == batch_size for b in batches)


@pytest.mark.parametrize("black", [True, False])
def test_training_and_scoring_use_the_ids_and_mask_of_the_task(black):
    """Compared with the loss of ids and masks made by hand, at any number of rows at a time.

    The first image is all black.
    """
    sizes = ("dim=8", "num_heads=2", "qkv_dim=8", "mlp_dim=8", "num_layers=1")
    settings = [*(f"Encoder.{size}" for size in sizes), "Head.mlp_dim=8", "MAX_LEN=6"]
    settings += ["Encoder.dropout=0.0", "Encoder.attention_dropout=0.0", "Encoder.pooling=mean_all"]
    built = experiment.load(
        "image", "transformer", "lra-code", [*settings, f"Image.black_is_padding={black}"]
    )
    rng = np.random.default_rng(0)
    values = (rng.integers(0, 256, (4, 6)) * rng.integers(0, 2, (4, 6))).astype(np.uint8)
    values[0] = 0
    rows = Arrays(values, np.full(4, 6, np.int32), np.arange(4, dtype=np.int32))
    ids = values.astype(np.int32) + (not black)
    mask = values > 0 if black else np.ones_like(values, bool)
    state = step.initial_state(built, 0)
    assert state.params["encoder"]["embedding"].shape == (256 if black else 257, 8)

    def mean_loss(params):
        logits = built.model.apply({"params": params}, ids, mask, train=False)
        return -jax.nn.log_softmax(logits)[np.arange(4), rows.labels].mean()

    loss, gradient = jax.jit(jax.value_and_grad(mean_loss))(state.params)
    for size in (3, 4):
        counts = score.make_scorer(built.objective, size)({"params": state.params}, rows)
        assert (counts["count"], counts["loss"] / 4) == (4, pytest.approx(float(loss), rel=1e-5))
    batch = pipeline.Batch(*rows, np.arange(4, dtype=np.int32), np.ones(4, bool))
    got, *_ = jax.jit(step.make_gradient(built.objective))(
        state.params, {}, batch, jax.random.key(0)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, gradient)
    for made, by_hand in zip(
        built.task.tokens(rows.values, rows.lengths), (ids, mask), strict=True
    ):
        np.testing.assert_array_equal(made, by_hand)


def test_devices_score_as_many_long_texts_each_and_the_rows_come_out_in_order():
    lengths = np.arange(11, 0, -1).astype(np.int32)
    split = arrays()._replace(lengths=lengths)
    batches = [*pipeline.eval_batches(split, 4, devices=2)]
    for batch in batches[:2]:
        halves = batch.lengths.reshape(2, 2).sum(1)
        assert abs(halves[0] - halves[1]) <= 2
    assert pipeline.in_order(batches, [batch.lengths for batch in batches]).tolist() == [*lengths]


def test_the_scorer_is_compiled_once():
    built = tiny()
    mesh = pipeline.make_mesh(4)
    variables = jax.device_put(built.init(0), NamedSharding(mesh, pipeline.WHOLE))
    scorer, compiled = score.make_scorer(built.objective, 4, mesh), []

    def note(event, *_, **__):
        compiled.extend([event] * ("backend_compile" in event))

    scorer(variables, rows(1))
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        scorer(variables, rows(12))
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert not compiled
