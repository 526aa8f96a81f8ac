"""Shallow baselines: what simple rules and ridge regressions reach without a neural network.

An accuracy that is not above them shows nothing about an encoder, however far it is above the
majority floor. The methods that fit a task are its `Task.baselines`. `lra-fnet data` computes them
once for each set and length and writes them next to the fingerprint, as shallow.<length>.json. It
computes them again if the titles of the methods change, so a changed method needs a new title.

Method, k and penalty are chosen on validation. The test split is read once, after all choices.
data/expected.json lists the results for the sets of this package.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from lra_fnet import counts
from lra_fnet.counts import Counts
from lra_fnet.data import store
from lra_fnet.data.arrays import Arrays
from lra_fnet.data.store import Prepared
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.machine.progress import say

SCHEMA = 2  # increase it whenever a method changes: `lra-fnet data` then computes all again

_PREFIXES = range(1, 9)  # values of k, in tokens
# Relative to the mean variance of the features.
_PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
_BUCKETS = 2**11  # features of a histogram with more values than that
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio (Knuth, TAOCP 3, Sec. 6.4)
_SIDE = 32  # pixels: larger images are averaged over blocks
_OPERATIONS = 2e12  # of one Gram matrix, a minute on one core: limits the training rows
_ROWS = 256  # whose features are in memory at once

Predict = Callable[[Arrays], np.ndarray]  # labels int [number of settings, n]

Kind = Literal["labels", "hidden pieces"]  # what is predicted
LABELS, HIDDEN = get_args(Kind)


def kind(*, denoise: bool) -> Kind:
    """Returns what a run predicts: in pre-training masked pieces."""
    return HIDDEN if denoise else LABELS


@dataclasses.dataclass(frozen=True)
class Shallow:
    """The result of one method with the settings that are best on validation."""

    method: str  # in words
    settings: dict[str, Any]
    validation: Counts
    test: Counts
    # Which test rows are right, see `counts.encode`.
    correct_bits: str | None = dataclasses.field(default=None, repr=False)
    of: Kind = "labels"  # what is counted

    def __post_init__(self):
        _ = self.right  # raises if the bits do not fit

    @functools.cached_property
    def right(self) -> np.ndarray | None:
        """Which test rows are right, bool [count]; None if that was not recorded."""
        return counts.bits(vars(self.test) | {"correct_bits": self.correct_bits})


class Method(NamedTuple):
    """A way to predict labels: a rule or a linear model that training rows determine."""

    title: str  # may name settings in braces; a changed method needs a new one
    settings: Sequence[Mapping[str, Any]]
    fit: Callable[[Any, Arrays], Predict]  # from a task's training rows, for each of the settings
    # What `Predict` gets of the rows of another split, and is compared with the labels of.
    ask: Callable[[Any, Arrays], Arrays] = lambda task, rows: rows
    of: Kind = "labels"

    def words(self, settings: Mapping[str, Any]) -> str:
        """Returns the title with the settings in place of the braces."""
        return self.title.format(**settings).replace("the first 1 tokens", "the first token")


# Most frequent labels


def most_frequent_label(
    title: str,
    settings: Sequence[Mapping[str, Any]],
    keys: Callable[[Any, Arrays], Iterable[Iterable[Hashable]]],
) -> Method:
    """Returns a method: the most frequent label of the training rows with the same key.

    A key that no training row has gets the label of the setting before, and in the first setting
    the most frequent label of all.

    Args:
        title: the method in words.
        settings: from coarse to fine.
        keys: maps a task and rows to the keys of the rows under each setting.
    """

    def fit(task: Any, train: Arrays) -> Predict:
        tables = []
        for column in keys(task, train):
            counts = defaultdict(Counter)
            for key, label in zip(column, train.labels.tolist(), strict=True):
                counts[key][label] += 1
            # Of labels with one count the smallest, as argmax.
            tables.append({key: max(sorted(c), key=c.__getitem__) for key, c in counts.items()})
        frequent = int(np.bincount(train.labels).argmax())

        def predict(rows: Arrays) -> np.ndarray:
            labels, predicted = [frequent] * len(rows.labels), []
            for table, column in zip(tables, keys(task, rows), strict=True):
                labels = [table.get(key, label) for key, label in zip(column, labels, strict=True)]
                predicted.append(labels)
            return np.array(predicted)

        return predict

    return Method(title, settings, fit)


def _prefixes(task: Any, rows: Arrays) -> Iterator[Iterator[bytes]]:
    """Yields the first k tokens of each row, or the whole row if it is shorter, for each k."""
    for k in _PREFIXES:
        ends = np.minimum(rows.lengths, k)
        yield (row[:end].tobytes() for row, end in zip(rows.values, ends, strict=True))


# Ridge regressions


def ridge(title: str, features: Callable[[Any, Arrays], np.ndarray]) -> Method:
    """Returns a method: ridge regression of the labels, one-hot, on features of a row.

    With centered features X [n, p] and targets Y [n, C], the weights are (X'X + a I)^-1 X'Y, in
    float64. The penalty is a over the mean of the diagonal of X'X. The label with the largest
    output is predicted. If X'X would take more than `_OPERATIONS` multiplications, every k-th
    training row counts: the first ones may all have one label.

    Args:
        title: the method in words.
        features: maps a task and some rows to float [n, p].
    """

    def chunks(task: Any, rows: Arrays) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(rows.labels), _ROWS):
            part = rows.take(slice(start, start + _ROWS))
            yield features(task, part).astype(np.float64), part.labels

    def fit(task: Any, train: Arrays) -> Predict:
        width = next(chunks(task, train))[0].shape[1]
        most = max(1, int(_OPERATIONS / width**2))
        step = -(-len(train.labels) // most)
        if step > 1:
            say(f"{task.name}/{task.config}: {title} is fitted to one in {step} training rows")
        gram, targets = np.zeros((width, width)), np.zeros((width, task.num_classes))
        total, counts = np.zeros(width), np.zeros(task.num_classes)
        for x, labels in chunks(task, train.take(slice(None, None, step))):
            y = np.eye(task.num_classes)[labels]
            gram += x.T @ x
            targets += x.T @ y
            total += x.sum(0)
            counts += y.sum(0)
        mean, shares = total / counts.sum(), counts / counts.sum()
        gram -= np.outer(total, mean)
        targets -= np.outer(total, shares)
        unit = np.trace(gram) / width or 1.0  # 1.0: all rows have the same features
        weights = np.stack(
            [np.linalg.solve(gram + a * unit * np.eye(width), targets) for a in _PENALTIES]
        )

        def predict(rows: Arrays) -> np.ndarray:
            labels = [(((x - mean) @ weights) + shares).argmax(2) for x, _ in chunks(task, rows)]
            return np.concatenate(labels, axis=1)

        return predict

    return Method(title, [{"penalty": penalty} for penalty in _PENALTIES], fit)


def log_counts(values: np.ndarray, real: np.ndarray, size: int) -> np.ndarray:
    """Returns log(1 + count) of each value below `size`, or of each of `_BUCKETS` hash buckets.

    Args:
        values: integers [n, L].
        real: bool [n, L], which of them count.
        size: number of different values.

    Returns:
        float64 [n, min(size, _BUCKETS)].
    """
    values = values.astype(np.uint64)
    if size > _BUCKETS:
        shift = np.uint64(64 - int(math.log2(_BUCKETS)))
        values, size = (values * np.uint64(_GOLDEN)) >> shift, _BUCKETS
    first = np.arange(len(values), dtype=np.uint64)[:, None] * np.uint64(size)
    counts = np.bincount((values + first)[real].astype(np.int64), minlength=len(values) * size)
    return np.log1p(counts.reshape(-1, size))


def token_counts(task: Any, rows: Arrays) -> np.ndarray:
    """Returns the histogram of the tokens of each row, see `log_counts`."""
    real = np.arange(task.max_len) < rows.lengths[:, None]
    return log_counts(rows.values, real, task.vocab_size - 1)


def bigram_counts(task: Any, rows: Arrays) -> np.ndarray:
    """Returns the histogram of pairs of neighbouring tokens."""
    size = task.vocab_size - 1
    pairs = rows.values[:, :-1].astype(np.int64) * size + rows.values[:, 1:]
    return log_counts(pairs, np.arange(1, task.max_len) < rows.lengths[:, None], size**2)


def pair_counts(task: Any, rows: Arrays) -> np.ndarray:
    """Returns the histograms of the texts of a row, their products and their differences."""
    texts = zip(rows.values.swapaxes(0, 1), rows.lengths.T, strict=True)
    counts = np.stack([token_counts(task, Arrays(*text, rows.labels)) for text in texts])
    joint = (counts.prod(0), np.ptp(counts, axis=0))
    return np.concatenate([*counts, *joint], axis=1)


def images(task: Any, rows: Arrays) -> np.ndarray:
    """Returns square images, values [n, side, side], which are never cut."""
    return rows.values.reshape(-1, task.side, task.side)


def block_pixels(task: Any, rows: Arrays) -> np.ndarray:
    """Returns the pixels of images between 0 and 1, of large ones the means of blocks."""
    pixels = images(task, rows) / 255
    block = -(-pixels.shape[1] // _SIDE)
    whole = pixels.shape[1] // block * block
    shape = (len(pixels), whole // block, block, whole // block, block)
    return pixels[:, :whole, :whole].reshape(shape).mean((2, 4)).reshape(len(pixels), -1)


FIRST_TOKENS = most_frequent_label(
    "most frequent label given the first {k} tokens", [{"k": k} for k in _PREFIXES], _prefixes
)
HISTOGRAM = ridge("ridge on the histogram of tokens", token_counts)
GRAY_HISTOGRAM = ridge("ridge on the histogram of gray values", token_counts)
BIGRAMS = ridge("ridge on hashed bigrams", bigram_counts)
PAIRS = ridge("ridge on both histograms, their products and differences", pair_counts)
PIXELS = ridge(f"ridge on at most {_SIDE} x {_SIDE} pixels", block_pixels)


# Choice and storage


def compute(prepared: Prepared) -> list[Shallow]:
    """Returns the result of each baseline of a task, the best on validation first."""
    task = prepared.task
    train, validation = map(prepared.arrays, task.splits[:2])
    fitted = []
    for method in task.baselines:
        predict, asked = method.fit(task, train), method.ask(task, validation)
        correct = (predict(asked) == asked.labels).sum(1)
        score = Counts(int(correct.max()), len(asked.labels))
        fitted.append((score, int(correct.argmax()), method, predict))
    fitted.sort(key=lambda entry: -entry[0].accuracy)  # equal ones stay in the order of the task
    rows, results = prepared.arrays("test"), []
    for score, best, method, predict in fitted:
        asked, settings = method.ask(task, rows), dict(method.settings[best])
        right = predict(asked)[best] == asked.labels
        words, test = method.words(settings), Counts(int(right.sum()), len(right))
        results.append(Shallow(words, settings, score, test, counts.encode(right), method.of))
    return results


def ensure(prepared: Prepared) -> list[Shallow]:
    """Returns the baselines of a set at the task's length, computed unless they are on disk.

    Says the best one.

    Raises:
        UserError: if a split cannot be read.
    """
    task, results = prepared.task, read(prepared)
    if not results:
        say(f"computing shallow baselines of {task.name}/{task.config} at {task.max_len} tokens")
        results = compute(prepared)
        path = prepared.folder / f"shallow.{task.max_len}.json"
        content = _object(prepared.fingerprint, task.max_len, results)
        try:
            with disk.writable(path, "--data"):
                disk.replace(path, json.dumps(content, indent=1) + "\n")
        except UserError as error:  # a shared folder that cannot be written
            say(f"shallow baselines are not kept: {error}")
    for best in leaders(results):
        right = f"{best.test.accuracy:.2f} % of the {best.of} of test"
        say(f"best shallow baseline: {best.method}, {right}")
    return results


def leaders(results: Iterable[Shallow]) -> list[Shallow]:
    """Returns the best result of each kind of prediction, from results with the best first."""
    best: dict[str, Shallow] = {}
    for one in results:
        best.setdefault(one.of, one)
    return list(best.values())


def read(prepared: Prepared) -> list[Shallow]:
    """Returns the baselines at the task's length, the best on validation first; [] without any."""
    return read_all(prepared).get(prepared.task.max_len, [])


def read_all(prepared: Prepared) -> dict[int, list[Shallow]]:
    """Returns the baselines on disk by length.

    A damaged file, one of another version of this module, or one of other methods than the task's
    counts as none: only tables need it, and `lra-fnet data` writes it again. Methods are compared
    by their titles.
    """
    titles = [{m.words(one) for one in m.settings} for m in prepared.task.baselines]
    found = {}
    for path in prepared.folder.glob("shallow.*.json"):
        try:
            length, content = int(path.name.split(".")[1]), disk.read_json(path)
            results = _parse(content["baselines"])
        except (UserError, KeyError, TypeError, ValueError):
            continue
        named = [result.method for result in results]
        same = len(named) == len(titles) and all(not x.isdisjoint(named) for x in titles)
        if same and content == _object(prepared.fingerprint, length, results):
            found[length] = results
    return dict(sorted(found.items()))


def known(task: str, fingerprint: str, max_len: int) -> list[Shallow]:
    """Returns the baselines in data/expected.json, without bits; [] if it does not list them."""
    for facts in store.expected().get(task, {}).values():
        if results := facts.get("shallow", {}).get(fingerprint, {}).get(str(max_len)):
            return _parse(results)
    return []


def _object(fingerprint: str, max_len: int, results: Sequence[Shallow]) -> dict[str, Any]:
    baselines = [dataclasses.asdict(result) for result in results]
    digest = hashlib.sha256(json.dumps(baselines, sort_keys=True).encode()).hexdigest()
    head = {"schema": SCHEMA, "fingerprint": fingerprint, "max_len": max_len}
    return {**head, "sha256": digest, "baselines": baselines}


def _parse(baselines: Sequence[Mapping[str, Any]]) -> list[Shallow]:
    counts = [{name: Counts(**one[name]) for name in ("validation", "test")} for one in baselines]
    return [Shallow(**{**one, **two}) for one, two in zip(baselines, counts, strict=True)]
