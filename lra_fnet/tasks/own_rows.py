"""Finds the classes of a user's own rows and divides them among the splits.

The files or rows may name their split. Otherwise it follows from the sha256 of the content, in the
ratio 8 : 1 : 1: equal rows share a split, the division is the same on every machine, and rows that
are added later move no other row.
"""

import array
import contextlib
import dataclasses
import decimal
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from lra_fnet.data.store import SPLITS
from lra_fnet.errors import UserError
from lra_fnet.machine.progress import say
from lra_fnet.tasks.task import Task

MOST_CLASSES = 1000
_MISSING = ("nan", "none", "null", "na", "n/a", "<na>")  # as pandas and R write no value
NAMES: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in SPLITS},
        **dict.fromkeys(("valid", "val", "dev"), "validation"),
        "training": "train",
        "testing": "test",
    }
)
_DIGITS = 18  # labels of more digits are words
_SHOWN = 40  # characters of a label in a line


def named(folders: Iterable[str], file: str = "") -> str | None:
    """Returns the split that a path names, or None.

    That is the first folder with the name of a split, or else the one split among the words of the
    file's name, as in `my_train.csv` and `test-00000-of-00001.csv`.
    """
    for folder in folders:
        if folder.lower() in NAMES:
            return NAMES[folder.lower()]
    words = {NAMES[word] for word in re.split(r"[\W_]+", file.lower()) if word in NAMES}
    return words.pop() if len(words) == 1 else None


def classes(source: Path, found: Collection[str], given: Sequence[str]) -> tuple[str, ...]:
    """Returns the labels of a source, sorted; whole numbers by value. Prints them.

    Args:
        source: named in errors and in what is printed.
        found: the labels of its rows.
        given: the labels in the order that the user wants; empty for the sorted ones.

    Raises:
        UserError: there are fewer than two or too many, or one that the user does not give.
    """
    numbers = all(re.fullmatch(rf"-?\d{{1,{_DIGITS}}}", label) for label in found)
    labels = sorted(found, key=lambda label: (int(label) if numbers else 0, label))
    if given and (unknown := [label for label in labels if label not in given]):
        raise UserError(
            f"{source}: expected the labels {_listed(given, 3)}, got {unknown[0][:_SHOWN]!r}"
        )
    if not 2 <= len(labels) <= MOST_CLASSES:
        got = f"{len(labels):,}" if len(labels) <= MOST_CLASSES else "more"
        raise UserError(
            f"{source}: expected 2 to {MOST_CLASSES:,} different labels, got {got} "
            f"({_listed(labels, 3)}): a label names the class of a row"
        )
    if wrong := [label for label in labels if re.search("[\ud800-\udfff]", label)]:
        raise UserError(f"{source}: expected names in UTF-8, got {wrong[0]!r}: rename the folder")
    names = tuple(given or labels)
    say(f"{source}: {len(names):,} classes: {_listed(names)}")
    for label in sorted(found):
        if label.strip().casefold() in _MISSING:
            say(
                f"{source}: {label!r} is a class; if it stands for a missing label, remove its rows"
            )
    for first, second in itertools.pairwise(sorted(names, key=_meaning)):
        if _meaning(first) == _meaning(second):
            say(
                f"{source}: the labels {first[:_SHOWN]!r} and {second[:_SHOWN]!r} are two classes; "
                "if they should be one, write them in the same way"
            )
    return names


def _listed(labels: Sequence[str], most: int = 10) -> str:
    """Returns the first labels in quotes."""
    shown = ", ".join(repr(label[:_SHOWN]) for label in labels[:most])
    return shown + (" ..." if len(labels) > most else "")


def _meaning(label: str) -> str:
    """Returns what labels have in common that a reader may take for one: "1" and "1.0", any case.

    >>> _meaning("01") == _meaning("1.0"), _meaning("Yes") == _meaning("yes ")
    (True, True)
    """
    with contextlib.suppress(ArithmeticError):  # it is no number
        return str(decimal.Decimal(label).normalize())
    composed = unicodedata.normalize("NFKC", label.casefold())  # é has two encodings
    return " ".join(composed.replace("\ufeff", "").split())  # a byte order mark


@dataclasses.dataclass(frozen=True)
class OwnTask(Task):
    """A task of a user's own rows: its classes become known with the prepared set.

    A subclass's `raw` puts the set's "labels" into its details.
    """

    needs_source = True
    finds_classes = True

    labels: tuple[str, ...] = ()  # of class 0, 1, ...

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.labels, list | tuple):
            raise UserError(
                f"{self.name}: labels must be a list such as ('no', 'yes'), got {self.labels!r}"
            )
        object.__setattr__(self, "labels", tuple(map(str, self.labels)))
        if len({*self.labels}) < len(self.labels):
            raise UserError(f"{self.name}: labels must differ, got {', '.join(self.labels)}")

    @property
    def num_classes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of labels."""
        return len(self.labels)

    @property
    def label_names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The labels."""
        return self.labels

    @property
    def settled(self) -> bool:
        """Whether the labels are known."""
        return bool(self.labels)

    def settle(self, details: Mapping[str, Any]) -> Self:
        """Returns the task with the labels of its prepared set; see `Task.settle`.

        Raises:
            UserError: it has others.
        """
        if self.labels and [*self.labels] != details["labels"]:
            raise UserError(
                f"{self.name}/{self.config}: expected the labels {_listed(self.labels)}, the "
                f"prepared set has {_listed(details['labels'])}: give other labels a set of "
                "their own, with DATASET and --source"
            )
        return dataclasses.replace(self, labels=tuple(details["labels"]))


class Repeats:
    """Finds equal rows, and those of them that have several labels or lie in several splits."""

    def __init__(self):
        self._texts, self._labels, self._splits = (array.array(code) for code in "QHB")

    def add(self, texts: Iterable[np.ndarray], label: int, split: str) -> None:
        """Adds a row."""
        self.add_digest(content(texts), label, split)

    def add_digest(self, digest: int, label: int, split: str) -> None:
        """Adds the row with this `content`."""
        self._texts.append(digest)
        self._labels.append(label)
        self._splits.append(SPLITS.index(split))

    @property
    def labels(self) -> np.ndarray:
        """The label of each row."""
        return np.asarray(self._labels)

    @property
    def splits(self) -> np.ndarray:
        """The number of each row's split in `SPLITS`."""
        return np.asarray(self._splits)

    def in_several_splits(self) -> int:
        """Returns how many different rows lie in several splits."""
        places = np.unique(np.asarray(self._texts), return_inverse=True)[1]
        return _several(places, self.splits) if len(places) else 0

    def finish(self, source: Path) -> dict[str, int]:
        """Reports repeated rows of the source, and returns what the set should record."""
        texts, places = np.unique(np.asarray(self._texts), return_inverse=True)
        facts = {
            "repeated_rows": len(places) - len(texts),
            "texts_with_several_labels": _several(places, self.labels),
            "texts_in_several_splits": self.in_several_splits(),
        }
        if facts["repeated_rows"]:
            say(
                f"{source}: {facts['repeated_rows']:,} of {len(places):,} rows repeat "
                f"another one; {facts['texts_with_several_labels']:,} of the repeated ones have "
                f"several labels, {facts['texts_in_several_splits']:,} lie in several splits"
            )
        return facts


def content(texts: Iterable[np.ndarray]) -> int:
    """Returns 64 bits of the sha256 of a row's texts, whose order does not matter."""
    sha256 = hashlib.sha256()
    for text in sorted(text.tobytes() for text in texts):
        sha256.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(sha256.digest()[:8], "little")


class Division:
    """Gives each row its split and counts what the user should know of them."""

    def __init__(self, source: Path, labels: Sequence[str], names: Collection[str | None]):
        """Checks the splits that rows name; None for rows that name none.

        Raises:
            UserError: some rows name a split and others do not, or none are named train or test.
        """
        self._source, self._labels = source, labels
        self._by_content = [*names] == [None]
        self._hold_out = SPLITS[1] not in names  # a tenth of train
        if self._by_content:
            say(f"{source}: nothing names a split, so rows are divided 8 : 1 : 1 by their content")
        if not self._by_content and (None in names or not {SPLITS[0], SPLITS[2]} <= {*names}):
            got = ", ".join(sorted(name or "none" for name in names))
            raise UserError(
                f"{source}: expected splits train, validation (or none) and test for all rows, or "
                f"for none of them, got {got}: name the files, folders or the column split so"
            )
        self._repeats, self._singles = Repeats(), Repeats()

    def split(self, texts: Sequence[np.ndarray], label: int, name: str | None) -> str:
        """Returns the split of the next row, which may name one."""
        digest = content(texts)
        tenth = digest % 10
        if self._by_content:
            name = SPLITS[{0: 2, 1: 1}.get(tenth, 0)]
        elif name == SPLITS[0] and self._hold_out and tenth == 1:
            name = SPLITS[1]
        assert name is not None
        self._repeats.add_digest(digest, label, name)
        for text in texts if len(texts) > 1 else ():
            self._singles.add([text], label, name)
        return name

    def finish(self) -> dict[str, Any]:
        """Checks all rows, reports repeated ones, and returns what the set should record.

        Raises:
            UserError: a split has no rows, or a class no training rows.
        """
        labels, splits = self._repeats.labels, self._repeats.splits
        counts = np.zeros((len(SPLITS), len(self._labels)), int)
        np.add.at(counts, (splits, labels), 1)
        facts = self._repeats.finish(self._source)  # first, since it may explain an error
        for split, count in zip(SPLITS, counts.sum(1), strict=True):
            if not count:
                raise UserError(
                    f"{self._source}: none of its {len(labels):,} rows fell to the split {split}: "
                    "give more rows (100 or more), or name the split of each"
                )
        if len(self._labels) > 20 and len(labels) < 2 * len(self._labels):
            raise UserError(
                f"{self._source}: {len(self._labels):,} labels in {len(labels):,} rows: a label "
                "names the class of a row; it cannot be a measured value or an id"
            )
        if (missing := np.flatnonzero(counts[0] == 0)).size:
            label = missing[0]
            raise UserError(
                f"{self._source}: no training row has the label {self._labels[label][:_SHOWN]!r}, "
                f"which has {counts[:, label].sum()} of all rows: give more of them, or none"
            )
        split_by = "sha256 of the content" if self._by_content else "name"
        if shared := self._singles.in_several_splits():
            say(f"{self._source}: {shared:,} texts are in pairs of several splits")
            facts["single_texts_in_several_splits"] = shared
        return {"split_by": split_by, **facts}


def _several(places: np.ndarray, values: np.ndarray) -> int:
    """Returns how many places have more than one value."""
    pairs = np.unique(np.stack([places, values]), axis=1)
    return int((np.bincount(pairs[0]) > 1).sum())
