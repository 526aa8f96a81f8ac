"""Rows and batches: order is a function of (seed, epoch), every row counts once."""

import jax.numpy as jnp
import numpy as np
import pytest

from lra_fnet import metrics, pipeline
from lra_fnet.tasks import Arrays


def arrays(n=11, length=5):
    values = np.arange(n * length, dtype=np.uint8).reshape(n, length)
    lengths = (np.arange(n) % length + 1).astype(np.int32)
    return Arrays(values, lengths, np.arange(n, dtype=np.int32))


def test_an_epoch_holds_every_row_once_and_epochs_and_seeds_differ():
    orders = [tuple(pipeline.epoch_order(seed, epoch, 50)) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(orders)) == 4


def test_the_global_generator_does_not_matter():
    pipeline.epoch_order.cache_clear()
    np.random.seed(1)  # noqa: NPY002 (the point of the test)
    first = pipeline.epoch_order(3, 4, 20).copy()
    pipeline.epoch_order.cache_clear()
    np.random.seed(2)  # noqa: NPY002
    assert np.array_equal(first, pipeline.epoch_order(3, 4, 20))


def test_batches_do_not_depend_on_how_the_stream_is_cut():
    """4 steps at once are 1 + 3 steps, across the ends of epochs (11 rows, 16 taken)."""
    whole = pipeline.train_batches(arrays(), 0, 0, 4, 4, 4)
    cut = [pipeline.train_batches(arrays(), 0, step, n, 4, 5) for step, n in ((0, 1), (1, 3))]
    for name in ("values", "lengths", "labels"):
        parts = [getattr(cut[0], name)[:1], getattr(cut[1], name)[:3]]
        assert np.array_equal(getattr(whole, name), np.concatenate(parts))
    assert sorted(whole.labels.ravel()[:11]) == list(range(11))  # the first epoch, whole


@pytest.mark.parametrize("batch_size", [1, 3, 4, 11, 20])
def test_an_evaluation_counts_every_row_exactly_once(batch_size):
    seen = [b.labels[b.valid] for b in pipeline.eval_batches(arrays(), batch_size)]
    assert np.concatenate(seen).tolist() == list(range(11))
    assert all(len(b.labels) == batch_size for b in pipeline.eval_batches(arrays(), batch_size))


def test_sums_do_not_depend_on_the_batch_size():
    logits = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
    labels = (np.arange(11) % 3).astype(np.int32)
    totals = []
    for size in (4, 11):
        total = metrics.Sums.zero()
        for start in range(0, 11, size):
            rows = np.arange(start, start + size)
            valid = rows < 11
            rows = np.where(valid, rows, 0)
            total += metrics.batch_sums(logits[rows], labels[rows], jnp.asarray(valid))
        totals.append(total)
    assert int(totals[0].count) == int(totals[1].count) == 11
    assert int(totals[0].correct) == int((logits.argmax(-1) == labels).sum())
    log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    want = -log_p[np.arange(11), labels].sum()
    assert float(totals[0].loss) == pytest.approx(want, rel=1e-6)
    assert float(totals[1].loss) == pytest.approx(want, rel=1e-6)


def test_ids_are_values_plus_one_before_the_length_and_padding_after():
    ids, mask = pipeline.tokens(jnp.array([[0, 7, 255, 9]], jnp.uint8), jnp.array([3]))
    assert ids.tolist() == [[1, 8, 256, 0]]
    assert mask.tolist() == [[True, True, True, False]]
