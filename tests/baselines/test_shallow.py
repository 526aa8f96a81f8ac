"""Shallow baselines: each method against a loop, the choice on validation, the file on disk."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from toy import TOY, Pairs, Toy

from lra_fnet import tasks
from lra_fnet.baselines import shallow
from lra_fnet.baselines.shallow import Counts
from lra_fnet.data import store
from lra_fnet.tasks import Arrays, Prepared, pathfinder
from tools import expected

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _new_draws():
    """Each test has its own draws, whatever runs before it."""
    global rng
    rng = np.random.default_rng(0)


def rows(n=30, length=12, values=6, classes=3):
    """Random rows of 1 to `length` tokens."""
    lengths = rng.integers(1, length + 1, n).astype(np.int32)
    table = rng.integers(0, values, (n, length)).astype(np.uint8)
    table[np.arange(length) >= lengths[:, None]] = 0
    return Arrays(table, lengths, rng.integers(0, classes, n).astype(np.int32))


# Methods


def test_first_tokens_equals_a_loop():
    train, other = rows(200), rows(50)
    predicted = shallow.FIRST_TOKENS.fit(TOY, train)(other)

    def most_frequent(labels):
        return max(range(3), key=lambda label: (labels.count(label), -label))

    def prefix(rows, i, k):
        return rows.values[i][: rows.lengths[i]][:k].tolist()

    for i in range(50):
        want = most_frequent(train.labels.tolist())
        for k, setting, label in zip(
            range(1, 9), shallow.FIRST_TOKENS.settings, predicted[:, i], strict=True
        ):
            same = [j for j in range(200) if prefix(train, j, k) == prefix(other, i, k)]
            if same:  # else the label of k - 1
                want = most_frequent(train.labels[same].tolist())
            assert setting == {"k": k}
            assert label == want


@pytest.mark.parametrize(("operations", "step"), [(1e9, 1), (7**2 * 100, 3)])
def test_ridge_is_the_least_squares_solution_with_the_penalty_as_more_rows(
    operations, step, monkeypatch
):
    """Also where the work is limited, here to every third row."""
    train, other = rows(300), rows(80)
    monkeypatch.setattr(shallow, "_OPERATIONS", operations)
    method = shallow.ridge("", lambda task, rows: rows.values[:, :7] ** 2.0)
    predicted = method.fit(TOY, train)(other)
    x = train.values[::step, :7].astype(float) ** 2
    y = np.eye(3)[train.labels[::step]]
    mean, share = x.mean(0), y.mean(0)
    x -= mean
    for setting, labels in zip(method.settings, predicted, strict=True):
        ridge = np.sqrt(setting["penalty"] * (x**2).sum() / 7)
        both = np.concatenate([x, ridge * np.eye(7)]), np.concatenate([y - share, np.zeros((7, 3))])
        weights = np.linalg.lstsq(*both)[0]
        assert (labels == ((other.values[:, :7] ** 2.0 - mean) @ weights + share).argmax(1)).all()


def test_features_equal_a_loop():
    one, two = rows(), rows()
    tokens, bigrams = shallow.token_counts(TOY, one), shallow.bigram_counts(TOY, one)
    for i in range(30):
        text = one.values[i, : one.lengths[i]].tolist()
        neighbours = list(itertools.pairwise(text))
        want = [np.log(1 + text.count(v)) for v in range(6)]
        np.testing.assert_allclose(tokens[i], want, rtol=1e-12)
        want = [np.log(1 + neighbours.count((a, b))) for a in range(6) for b in range(6)]
        np.testing.assert_allclose(bigrams[i], want, rtol=1e-12)
    both = Arrays(
        np.stack([one.values, two.values], 1), np.stack([one.lengths, two.lengths], 1), one.labels
    )
    a, b = (shallow.token_counts(TOY, each) for each in (one, two))
    want = np.hstack([a, b, a * b, abs(a - b)])
    np.testing.assert_array_equal(shallow.pair_counts(TOY, both), want)
    assert Pairs(config="small", max_len=12).baselines == (shallow.PAIRS,)


def test_many_values_are_hashed_evenly():
    values = np.arange(65536).reshape(1, -1)
    counts = np.expm1(shallow.log_counts(values, values >= 0, 65536))
    assert counts.shape == (1, 2048)
    assert counts.sum() == pytest.approx(65536)
    assert 28 <= counts.min() <= counts.max() <= 36  # 32 in each bucket


def test_large_images_are_averaged_over_blocks():
    images = rng.integers(0, 256, (3, 64, 64)).astype(np.uint8)
    some = Arrays(images.reshape(3, -1), np.full(3, 4096, np.int32), np.zeros(3, np.int32))
    pixels = shallow.block_pixels(tasks.make("pathfinder", "hard_64"), some).reshape(3, 32, 32)
    for n, i, j in np.ndindex(3, 32, 32):
        block = images[n, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        assert pixels[n, i, j] == pytest.approx(block.mean() / 255)


@pytest.mark.parametrize(("name", "config"), [("pathfinder", "short_32"), ("pathx", "hard_128")])
def test_discs_are_found(name, config):
    """In images drawn by a loop: two bright discs and brighter lines that are thinner."""
    side, radius = pathfinder.SETS[config].window, pathfinder.SETS[config].marker_radius
    images, want = np.zeros((20, side, side), np.uint8), []
    for image in images:
        margin = int(radius) + 1
        one = two = rng.integers(margin, side - margin, 2)
        while abs(one - two).max() <= 3 * radius:
            two = rng.integers(margin, side - margin, 2)
        y, x = np.mgrid[:side, :side]
        image[:] = 200 * (np.hypot(y - one[0], x - one[1]) <= radius)
        image |= (200 * (np.hypot(y - two[0], x - two[1]) <= radius)).astype(np.uint8)
        image[rng.integers(side), :] = 255
        want.append(np.hypot(*(one - two)))
    # A disc next to the line reaches further: at most one pixel.
    found = pathfinder.disc_distances(images, radius)
    assert abs(found - want).max() <= 1.5
    rows = Arrays(images.reshape(20, -1), np.full(20, side**2, np.int32), np.arange(20))
    predict = pathfinder.DISCS.fit(tasks.make(name, config), rows)
    assert (predict(rows)[-1] == rows.labels).mean() > 0.5  # most distances differ


# Choice, and the file


def rule(correct_on):
    """A method with the settings 0, 1, ..., right on as many rows of a split as the table says."""

    def predict(rows):
        right = [row[len(rows.labels)] for row in correct_on]
        order = np.arange(len(rows.labels))
        return np.array([np.where(order < n, rows.labels, 255) for n in right])

    settings = [{"which": i} for i in range(len(correct_on))]
    return shallow.Method("rule {which}", settings, lambda task, train: predict)


@dataclasses.dataclass(frozen=True)
class Chosen(Toy):
    name = "chosen"

    @property
    def baselines(self):
        # 40 validation rows, 50 test rows: settings and methods that are best on test are not
        # those that are best on validation.
        return rule([{40: 30, 50: 20}, {40: 29, 50: 50}]), rule([{40: 1, 50: 2}, {40: 31, 50: 3}])


@pytest.fixture
def prepared(tmp_path):
    return tasks.prepare(Chosen("small", 12), tmp_path)


@dataclasses.dataclass(frozen=True)
class Twofold(Toy):
    name = "twofold"

    @property
    def baselines(self):
        """One of the labels, and two of the first values of every second row."""

        def ask(task, rows):
            return rows._replace(values=rows.values[::2], labels=rows.values[::2, 0])

        others = rule([{20: 5, 25: 6}]), rule([{20: 15, 25: 7}])
        asking = [one._replace(ask=ask, of=shallow.HIDDEN) for one in others]
        return asking[0], rule([{40: 20, 50: 30}]), asking[1]


def test_what_a_method_asks_is_what_counts(tmp_path, capsys):
    results = shallow.ensure(tasks.prepare(Twofold("small", 12), tmp_path))
    assert [(one.of, one.validation, one.test) for one in results] == [
        ("hidden pieces", Counts(15, 20), Counts(7, 25)),
        ("labels", Counts(20, 40), Counts(30, 50)),
        ("hidden pieces", Counts(5, 20), Counts(6, 25)),
    ]
    assert shallow.leaders(results) == results[:2]
    assert results[0].right.sum() == 7
    said = capsys.readouterr().err
    assert "rule 0, 28.00 % of the hidden pieces" in said
    assert "rule 0, 60.00 % of the labels" in said


def test_method_and_settings_are_chosen_on_validation_before_test_is_read(prepared):
    opened = []

    class Watched(Prepared):
        def arrays(self, split):
            opened.append(split)
            return super().arrays(split)

    first, second = shallow.compute(Watched(**vars(prepared)))
    assert opened == ["train", "validation", "test"]
    assert (first.method, first.settings) == ("rule 1", {"which": 1})
    assert (first.validation, first.test) == (Counts(31, 40), Counts(3, 50))
    assert (second.method, second.test) == ("rule 0", Counts(20, 50))
    assert first.right.nonzero()[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("good", "damaged"),
    [
        ("{", ""),
        ('"schema": 2', '"schema": 1'),
        ('"correct": 3,', '"correct": 333,'),
        ('"correct": 3,', '"correct": 2,'),
        ('"correct_bits": "', '"correct_bits": "A'),
        ('"settings"', '"setings"'),
        ('"method": "rule', '"method": "another rule'),
    ],
)
def test_baselines_are_read_until_their_file_is_damaged(good, damaged, prepared):
    assert shallow.read(prepared) == []
    results = shallow.ensure(prepared)
    assert shallow.read(prepared) == results
    shorter = dataclasses.replace(prepared, task=Chosen("small", 5))
    assert (shallow.read(shorter), shallow.read_all(shorter)) == ([], {12: results})
    assert shallow.read(dataclasses.replace(prepared, fingerprint="other rows")) == []
    path = prepared.folder / "shallow.12.json"
    whole = path.read_text()
    path.write_text(whole.replace(good, damaged))
    assert not shallow.read(prepared)
    assert shallow.ensure(prepared) == results
    assert path.read_text() == whole
    assert tasks.verify(prepared.task, prepared.folder.parents[2]) == prepared


def test_the_tool_adds_baselines_to_expected_json_and_changes_nothing_else(
    prepared, tmp_path, monkeypatch
):
    path = tmp_path / "expected.json"
    path.write_text(expected.PATH.read_text())
    expected.update(prepared, path)
    old, new = json.loads(expected.PATH.read_text()), json.loads(path.read_text())
    assert {name: facts for name, facts in new.items() if name != "chosen"} == old
    monkeypatch.setattr(store, "expected", lambda: new)
    kept = [dataclasses.replace(one, correct_bits=None) for one in shallow.read(prepared)]
    assert shallow.known("chosen", prepared.fingerprint, 12) == kept != []


@pytest.mark.parametrize(
    ("task", "config", "length"),
    [
        ("listops", "short_128", 128),
        ("text", "full", 512),
        ("retrieval", "pairs", 4000),
        ("corpus", "v8000_128", 128),
    ],
)
def test_expected_json_lists_the_baselines_of_its_rows(task, config, length):
    facts = store.expected()[task][config]
    (fingerprint,) = facts["shallow"]
    if all("sha256" in split for split in facts.get("splits", {"": {}}).values()):
        assert fingerprint == store.combine(facts["splits"])
    baselines = shallow.known(task, fingerprint, length)
    assert len(baselines) == len(tasks.make(task, config, length).baselines)
    shares = [one.validation.accuracy for one in baselines]
    assert shares == sorted(shares, reverse=True)
