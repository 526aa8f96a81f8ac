"""Baselines of masked language modelling: what is hidden, and counting against loops."""

from collections import Counter

import numpy as np
import pytest

from lra_fnet import tasks
from lra_fnet.baselines import masked, shallow
from lra_fnet.data.store import Arrays
from lra_fnet.tasks.corpus import CLS, MASK, ORDER, SEP

TASK = tasks.make("corpus", "v20_32")
FIRST = MASK + 1
PIECES = np.arange(FIRST, TASK.num_ids)


def rows(count, seed=0):
    """Rows [CLS] A [SEP] B [SEP] of any length, with what stands behind them not padding."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 20, (count, 32))
    lengths, labels = rng.integers(7, 33, count), rng.integers(0, 2, count)
    for row, length in zip(values, lengths, strict=True):
        ids = rng.choice(PIECES, length, p=PIECES / PIECES.sum())
        ids[[0, rng.integers(2, length - 2), -1]] = CLS, SEP, SEP
        row[:length] = ids - 1
    return Arrays(values.astype("<u2"), lengths.astype(np.int32), labels.astype(np.int32))


def texts(arrays):
    return [
        (values[:length].astype(int) + 1).tolist()
        for values, length in zip(arrays.values, arrays.lengths, strict=True)
    ]


def test_pieces_are_hidden_by_berts_rules():
    given = rows(4000)
    asked = masked.ask(TASK, given)
    before, shown, after = asked.values.T
    free = [[i for i, piece in enumerate(text) if piece >= FIRST] for text in texts(given)]
    wanted = [max(1, int(0.15 * len(places) + 0.5)) for places in free]
    assert len(asked.labels) == sum(wanted)
    assert set(asked.labels) == set(PIECES)
    hidden, kept = shown == MASK, shown == asked.labels
    assert hidden.mean() == pytest.approx(0.8, abs=0.015)
    random = shown[~hidden & ~kept]
    assert set(random) == set(PIECES)
    # A random piece may be the hidden one itself.
    assert kept.mean() == pytest.approx(0.1 + 0.1 / len(PIECES), abs=0.01)
    # A neighbour is shown as a model sees it: it may be hidden too.
    both = sum(
        len(set(places) & {i + 1 for i in places}) * n * (n - 1) / max(m * (m - 1), 1)
        for places, n, m in zip(free, wanted, map(len, free), strict=True)
    )
    for neighbour in (before, after):
        assert (neighbour == MASK).sum() == pytest.approx(0.8 * both, rel=0.05)
    assert set(before) == {CLS, SEP, MASK, *PIECES}
    assert set(after) == {SEP, MASK, *PIECES}
    again = masked.ask(TASK, given)
    assert all((a == b).all() for a, b in zip(asked, again, strict=True))


@pytest.mark.parametrize("most", [None, 50])
def test_counting_neighbours_equals_a_loop(most, monkeypatch):
    train, asked = rows(200), masked.ask(TASK, rows(60, seed=2))
    if most:
        monkeypatch.setattr(masked, "PLACES", most * TASK.max_len)
    predicted = masked.NEIGHBOURS.fit(TASK, train)(asked)
    tables = [{} for _ in range(4)]
    for text in texts(train)[:most]:
        for i, piece in enumerate(text):
            if piece >= FIRST:
                keys = (), text[i - 1], text[i + 1], (text[i - 1], text[i + 1])
                for table, key in zip(tables, keys, strict=True):
                    table.setdefault(key, Counter())[piece] += 1
    for j, (before, shown, after) in enumerate(asked.values.tolist()):
        want = None
        for i, key in enumerate([(), before, after, (before, after)]):
            if key in tables[i]:
                counts = tables[i][key]
                want = min(counts, key=lambda piece: (-counts[piece], piece))
            assert predicted[i, j] == (want if shown == MASK else shown)
    assert masked.COPY.fit(TASK, train)(asked).tolist() == predicted[:1].tolist()
    assert masked.NEIGHBOURS.of == masked.COPY.of == shallow.HIDDEN


def test_order_is_guessed_from_the_longer_part():
    given = rows(500)
    longer = []
    for text in texts(given):
        first = text.index(SEP)
        longer.append(first - 1 > len(text) - first - 2)
    labels = np.array(longer).astype(np.int32)  # 1: the first part is longer
    train = given._replace(labels=labels)
    assert (ORDER.fit(TASK, train)(given) == labels).all()
