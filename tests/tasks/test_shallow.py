"""Shallow baselines: each method against a loop, the choice on validation, the file on disk."""

import dataclasses
import errno
import itertools
import json
import types

import numpy as np
import pytest
from paths import ROOT
from toy import TOY, Pairs, Toy

from lra_fnet import tasks
from lra_fnet.baselines import shallow
from lra_fnet.baselines.shallow import Counts
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import result as record
from lra_fnet.tasks import Arrays, Prepared, pathfinder

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _new_draws():
    """Each test has its own draws, whatever runs before it."""
    global rng
    rng = np.random.default_rng(0)


@dataclasses.dataclass(frozen=True)
class Squares(tasks.PixelTask):
    """Images of 64 by 64 pixels, of which `max_len` may cut some."""

    name = "squares"
    num_classes = 2
    configs = {"small": 4096}  # noqa: RUF012
    pixel_mean = 127.5
    pixel_sd = 73.9

    def raw(self, source, jobs):
        raise NotImplementedError


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


@pytest.mark.parametrize("operations", [1e9, 7**2 * 100])
def test_ridge_is_the_least_squares_solution_with_the_penalty_as_more_rows(
    operations, monkeypatch, capfd
):
    """Also where the work is limited, here to every third row, and a line says so."""
    monkeypatch.setattr(shallow, "_OPERATIONS", operations)
    monkeypatch.setattr(shallow, "_CHUNK", 64)
    train, other = rows(300), rows(80)
    predicted = shallow.ridge("", lambda task, rows: rows.values[:, :7] ** 2.0).fit(TOY, train)(
        other
    )
    used = slice(0, 300, 1 if operations == 1e9 else 3)
    assert ("is fitted to one in 3 training rows" in capfd.readouterr().err) == (operations < 1e9)
    x = train.values[used, :7].astype(float) ** 2
    y = np.eye(3)[train.labels[used]]
    mean, share = x.mean(0), y.mean(0)
    x -= mean
    for setting, labels in zip(shallow.HISTOGRAM.settings, predicted, strict=True):
        ridge = np.sqrt(setting["penalty"] * (x**2).sum() / 7)
        both = np.concatenate([x, ridge * np.eye(7)]), np.concatenate([y - share, np.zeros((7, 3))])
        weights = np.linalg.lstsq(*both)[0]
        assert (labels == ((other.values[:, :7] ** 2.0 - mean) @ weights + share).argmax(1)).all()


def test_ridge_on_equal_rows_gives_the_most_frequent_label():
    same = Arrays(np.ones((9, 12), np.uint8), np.full(9, 12, np.int32), np.arange(9) // 4)
    assert (shallow.HISTOGRAM.fit(TOY, same)(same) == 0).all()


def test_histograms_equal_a_loop():
    task, some = dataclasses.replace(TOY), rows()
    tokens, bigrams = shallow._tokens(task, some), shallow._bigrams(task, some)
    assert tokens.shape == (30, 6)
    assert bigrams.shape == (30, 36)
    for i in range(30):
        text = some.values[i, : some.lengths[i]].tolist()
        neighbours = list(itertools.pairwise(text))
        want = [np.log(1 + text.count(v)) for v in range(6)]
        np.testing.assert_allclose(tokens[i], want, rtol=1e-12)
        want = [np.log(1 + neighbours.count((a, b))) for a in range(6) for b in range(6)]
        np.testing.assert_allclose(bigrams[i], want, rtol=1e-12)


def test_many_values_are_hashed_evenly():
    values = np.arange(65536).reshape(1, -1)
    counts = np.expm1(shallow._histogram(values, values >= 0, 65536))
    assert counts.shape == (1, 2048)
    assert counts.sum() == pytest.approx(65536)
    assert 28 <= counts.min() <= counts.max() <= 36  # 32 in each bucket


def test_pairs_are_histograms_products_and_differences():
    one, two = rows(), rows()
    task = Pairs(config="small", max_len=12)
    both = Arrays(
        np.stack([one.values, two.values], 1), np.stack([one.lengths, two.lengths], 1), one.labels
    )
    a, b = (shallow._tokens(task, each) for each in (one, two))
    np.testing.assert_array_equal(shallow._pairs(task, both), np.hstack([a, b, a * b, abs(a - b)]))
    assert task.baselines == (shallow.PAIRS,)


@pytest.mark.parametrize("max_len", [4096, 1000])
def test_large_images_are_averaged_over_blocks(max_len):
    images = rng.integers(0, 256, (3, 64, 64)).astype(np.uint8)
    flat = images.reshape(3, -1)[:, :max_len]
    some = Arrays(flat, np.full(3, max_len, np.int32), np.zeros(3, np.int32))
    images.reshape(3, -1)[:, max_len:] = 0
    pixels = shallow._pixels(Squares("small", max_len), some).reshape(3, 32, 32)
    for n, i, j in np.ndindex(3, 32, 32):
        block = images[n, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        assert pixels[n, i, j] == pytest.approx(block.mean() / 255)


@pytest.mark.parametrize(("name", "config"), [("pathfinder", "short_32"), ("pathx", "hard_128")])
def test_discs_are_found(name, config, monkeypatch):
    """In images drawn by a loop: two bright discs and brighter lines that are thinner."""
    setting = pathfinder.SETS[config]
    side, radius = setting.window, setting.marker_radius
    images, want = np.zeros((20, side, side), np.uint8), []
    for image in images:
        margin = int(radius) + 1
        one = rng.integers(margin, side - margin, 2)
        two = one
        while abs(one - two).max() <= 3 * radius:
            two = rng.integers(margin, side - margin, 2)
        for y, x in np.ndindex(side, side):
            near = min(np.hypot(y - disc[0], x - disc[1]) for disc in (one, two))
            image[y, x] = 200 * (near <= radius)
        image[rng.integers(side), :] = 255
        want.append(np.hypot(*(one - two)))
    # A disc next to the line reaches further: at most one pixel.
    found = pathfinder.disc_distances(images, radius)
    assert abs(found - want).max() <= 1.5
    monkeypatch.setattr(pathfinder, "_CHUNK", 7)  # images at a time
    task = tasks.make(name, config)
    rows = Arrays(images.reshape(20, -1), np.full(20, side**2, np.int32), np.zeros(20, np.int32))
    whole, copied = shallow.images, []
    monkeypatch.setattr(
        shallow, "images", lambda *given: copied.append(whole(*given)) or copied[-1]
    )
    steps = dict(zip((4, 2, 1, 0.5), pathfinder._distances(task, rows), strict=True))
    assert steps == {width: (found / width).astype(int).tolist() for width in steps}
    assert [*map(len, copied)] == [7, 7, 6]  # a mapped split stays on disk


def test_one_token_is_named_in_the_singular():
    words = [shallow.FIRST_TOKENS.words({"k": k}) for k in (1, 2)]
    assert words[0] == "most frequent label given the first token"
    assert words[1] == "most frequent label given the first 2 tokens"


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


def test_method_and_settings_are_chosen_on_validation_before_test_is_read(prepared, monkeypatch):
    opened = []
    arrays = Prepared.arrays

    def recording(self, split):
        opened.append(split)
        return arrays(self, split)

    monkeypatch.setattr(Prepared, "arrays", recording)
    first, second = shallow.compute(prepared)
    assert opened == ["train", "validation", "test"]
    assert (first.method, first.settings) == ("rule 1", {"which": 1})
    assert (first.validation, first.test) == (Counts(31, 40), Counts(3, 50))
    assert (second.method, second.test) == ("rule 0", Counts(20, 50))
    assert first.right.nonzero()[0].tolist() == [0, 1, 2]


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
    words = "rule 0, 28.00 % of the masked pieces of test; rule 0, 60.00 % of the test rows"
    assert f"best shallow baseline: {words}" in capsys.readouterr().err


def test_baselines_that_cannot_be_kept_are_returned(prepared, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(disk, "replace", refuse)
    assert [one.test.count for one in shallow.ensure(prepared)] == [50, 50]
    line = (
        f"shallow baselines are not kept: {prepared.folder}/shallow.12.json cannot be written (Read"
    )
    assert line in capsys.readouterr().err
    monkeypatch.setattr(shallow, "compute", None)
    assert shallow.read(prepared) == shallow.ensure(prepared)  # this process has them


def test_baselines_are_computed_once_and_leave_the_fingerprint_alone(prepared, monkeypatch, capsys):
    before = (prepared.folder / "fingerprint.json").read_bytes()
    assert shallow.read(prepared) == []
    results = shallow.ensure(prepared)
    assert "best shallow baseline: rule 1, 6.00 % of the test rows" in capsys.readouterr().err
    assert (prepared.folder / "fingerprint.json").read_bytes() == before
    assert tasks.verify(prepared.task, prepared.folder.parents[2]) == prepared
    monkeypatch.setattr(shallow, "compute", None)
    assert shallow.ensure(prepared) == shallow.read(prepared) == results
    shorter = dataclasses.replace(prepared, task=Chosen("small", 5))
    assert shallow.read(shorter) == []
    assert shallow.read_all(shorter) == {12: results}
    assert shallow.read(dataclasses.replace(prepared, fingerprint="other rows")) == []


def test_baselines_of_other_methods_are_computed_anew(prepared, monkeypatch):
    class Extended(Chosen):
        more = rule([{40: 40, 50: 40}])._replace(title="another rule")

        @property
        def baselines(self):
            return *super().baselines, self.more

    old = shallow.ensure(prepared)
    extended = dataclasses.replace(prepared, task=Extended("small", 12))
    assert not shallow.available(extended)
    assert shallow.read_all(extended) == {}
    new = shallow.ensure(extended)
    assert [one.method for one in new] == ["another rule", "rule 1", "rule 0"]
    assert shallow.read_all(extended) == {12: new}
    assert shallow.read(prepared) == []

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(disk, "replace", refuse)  # this process keeps them
    assert shallow.ensure(prepared) == shallow.read(prepared) == old
    monkeypatch.setattr(Extended, "more", Extended.more._replace(title="a third rule"))
    assert shallow.ensure(extended)[0].method == "a third rule"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: "[]",
        lambda text: '{"max_len": 12, "baselines": []}',
        lambda text: text.replace('"schema": 2', '"schema": 1'),
        lambda text: text.replace('"correct": 3,', '"correct": 333,'),
        lambda text: text.replace('"correct": 3,', '"correct": 2,'),
        lambda text: text.replace('"correct": 3,', '"correct": "3",'),
        lambda text: text.replace('"correct_bits": "', '"correct_bits": "A'),
        lambda text: text.replace('"settings"', '"setings"'),
        lambda text: text.replace('"baselines": [', '"baselines": [3,'),
    ],
)
def test_damaged_file_counts_as_none_and_is_written_again(damage, prepared):
    results = shallow.ensure(prepared)
    path = prepared.folder / "shallow.12.json"
    good = path.read_text()
    path.write_text(damage(good))
    assert path.read_text() != good
    assert shallow.read(prepared) == []
    assert not shallow.available(prepared)
    assert shallow.ensure(prepared) == results
    assert shallow.available(prepared)
    assert path.read_text() == good


def test_results_that_differ_from_expected_json_are_reported(prepared, monkeypatch, capsys):
    results = shallow.ensure(prepared)
    entries = [dataclasses.asdict(one) for one in results]
    facts = {"shallow": {prepared.fingerprint: {"12": entries}}}
    monkeypatch.setattr(store, "expected", lambda: {"chosen": {"small": facts}})
    for one in entries:
        one["correct_bits"] = None
    capsys.readouterr()
    shallow.ensure(prepared)
    assert "expected.json" not in capsys.readouterr().err
    entries[0]["test"]["correct"] = 4
    shallow.ensure(prepared)
    assert "whose best one has 4 of 50 test rows right" in capsys.readouterr().err


def test_update_adds_to_expected_json_and_changes_nothing_else(prepared, tmp_path, monkeypatch):
    module = tmp_path / "lra_fnet/baselines/shallow.py"
    path = tmp_path / "data/expected.json"
    real = (store.Path(store.__file__).parents[2] / "data/expected.json").read_text()
    monkeypatch.setattr(shallow, "__file__", str(module))
    results = shallow.ensure(prepared)
    with pytest.raises(UserError, match=r"^--update expects a checkout with .*, found no such"):
        shallow.update_expected(prepared, results)
    path.parent.mkdir()
    path.write_text(real)
    fake = types.SimpleNamespace(name="listops", config="short_128", max_len=128)
    shallow.update_expected(dataclasses.replace(prepared, task=fake), results)
    added = {line.strip(" ,\n") for line in path.read_text().splitlines()}
    assert {line.strip(" ,") for line in real.splitlines()} <= added
    old, new = json.loads(real), json.loads(path.read_text())
    entry = new["listops"]["short_128"]["shallow"].pop(prepared.fingerprint)
    assert new == old
    assert shallow._parse(entry["128"]) == [
        dataclasses.replace(one, correct_bits=None) for one in results
    ]


@pytest.mark.parametrize(
    ("task", "config", "length"),
    [
        ("listops", "short_128", 128),
        ("listops", "full", 2000),
        ("text", "full", 512),
        ("text", "full", 4000),
        ("text", "lra_code", 1000),
        ("retrieval", "pairs", 4000),
        ("image", "full", 1024),
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


def test_every_committed_result_has_a_baseline_above_its_floor():
    folders = [path.parent for path in (ROOT / "results").glob("*/*/*/seed*/result.json")]
    runs = [run for run in map(record.read, folders) if not run.denoise]
    assert runs
    for run in runs:
        assert run.baseline.test.accuracy > run.floor.accuracy
