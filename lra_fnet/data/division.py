"""Divides a user's own rows among the splits, and finds equal rows.

The files or rows may name their split. Otherwise it follows from the sha256 of the content, in the
ratio 8 : 1 : 1: equal rows share a split, the division is the same on every machine, and rows that
are added later move no other row.
"""

import array
import collections
import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lra_fnet.data.store import SPLITS
from lra_fnet.errors import UserError
from lra_fnet.machine.progress import say

_MOST_CLASSES = 1000
_QUOTES = " \"'`\u00b4\u00ab\u00bb\u2018\u2019\u201a\u201c\u201d\u201e\u2039\u203a"
NAMES: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in SPLITS},
        **dict.fromkeys(("valid", "val", "dev"), "validation"),
        "training": "train",
        "testing": "test",
    }
)


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
    """Returns the labels of a source, sorted; whole numbers by value.

    Prints them, and names those that look alike.

    Args:
        source: named in errors and in what is printed.
        found: the labels of its rows.
        given: the labels in the order that the user wants; empty for the sorted ones.

    Raises:
        UserError: there are fewer than two or too many, or one that the user does not give.
    """
    numbers = all(re.fullmatch(r"-?\d{1,18}", label) for label in found)
    labels = sorted(found, key=lambda label: (int(label) if numbers else 0, label))
    names = tuple(given or labels)
    shown = ", ".join(repr(name[:40]) for name in names[:10])
    if unknown := [label for label in labels if label not in names]:
        raise UserError(f"{source}: expected the labels {shown}, got {unknown[0]!r:.50}")
    if not 2 <= len(labels) <= _MOST_CLASSES:
        raise UserError(
            f"{source}: expected 2 to {_MOST_CLASSES:,} labels, got {len(labels):,}: {shown}"
        )
    say(f"{source}: {len(names):,} classes: {shown}{' ...' if len(names) > 10 else ''}")
    seen = collections.Counter(map(_seen, labels))
    if alike := sorted((x for x in labels if seen[_seen(x)] > 1), key=_seen):
        listed = ", ".join(map(ascii, alike[:10]))[:1000]
        say(f"{source}: these labels look alike, and each is a class of its own: {listed}")
    return names


def _seen(label: str) -> str:
    """Returns what a reader sees of a label, whatever its case, width and quotation marks."""
    text = unicodedata.normalize("NFKC", label).casefold()
    return "".join(filter(str.isprintable, text)).strip(_QUOTES)


class Repeats:
    """Finds equal rows, and those of them that have several labels or lie in several splits."""

    def __init__(self):
        self._rows = array.array("Q")  # three numbers of each: content, label, split

    def add(self, digest: int, label: int, split: str) -> None:
        """Adds the row with this `content`."""
        self._rows.extend((digest, label, SPLITS.index(split)))

    def finish(self, source: Path) -> dict[str, int]:
        """Reports repeated rows of the source, and returns what the set should record."""
        digests, labels, splits = self.columns()
        texts, places = np.unique(digests, return_inverse=True)
        facts = {
            "repeated_rows": len(places) - len(texts),
            "texts_with_several_labels": _several(places, labels),
            "texts_in_several_splits": _several(places, splits),
        }
        if facts["repeated_rows"]:
            found = ", ".join(f"{name} {count:,}" for name, count in facts.items())
            say(f"{source}: of {len(places):,} rows some are equal: {found}")
        return facts

    def columns(self) -> np.ndarray:
        """Returns content, label and split of the rows, uint64 [3, rows]."""
        return np.asarray(self._rows).reshape(-1, 3).T.astype(np.uint64)


def content(texts: Iterable[np.ndarray]) -> int:
    """Returns 64 bits of the sha256 of a row's texts, whose order does not matter.

    Texts in UTF-8 count in Unicode's composed form (NFC).
    """
    sha256 = hashlib.sha256()
    for text in sorted(_composed(text.tobytes()) for text in texts):
        sha256.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(sha256.digest()[:8], "little")


def _composed(text: bytes) -> bytes:
    try:
        return unicodedata.normalize("NFC", text.decode()).encode()
    except UnicodeDecodeError:
        return text


class Division:
    """Gives each row its split and counts what the user should know of them."""

    def __init__(self, source: Path, labels: Sequence[str], names: Collection[str | None]):
        """Checks the splits that rows name; None for rows that name none.

        Each of the labels must have training rows; `labels` may be empty.

        Raises:
            UserError: some rows name a split and others do not, or none are named train or test.
        """
        self._source, self._labels, self._repeats = source, labels, Repeats()
        self._by_content = {*names} == {None}
        self._hold_out = SPLITS[1] not in names  # a tenth of train
        if self._by_content:
            say(f"{source}: nothing names a split, so rows are divided 8 : 1 : 1 by their content")
        elif None in names or not {SPLITS[0], SPLITS[2]} <= {*names}:
            got = ", ".join(sorted(name or "none" for name in names or [None]))
            raise UserError(
                f"{source}: expected train, test and perhaps validation in paths, got {got}"
            )

    def split(self, texts: Sequence[np.ndarray], label: int, name: str | None) -> str:
        """Returns the split of the next row, which may name one."""
        digest = content(texts)
        tenth = digest % 10
        if name is None:
            name = SPLITS[{0: 2, 1: 1}.get(tenth, 0)]
        elif name == SPLITS[0] and self._hold_out and tenth == 1:
            name = SPLITS[1]
        self._repeats.add(digest, label, name)
        return name

    def finish(self) -> dict[str, Any]:
        """Checks all rows, reports repeated ones, and returns what the set should record.

        Raises:
            UserError: a split has no rows, or a class no training rows.
        """
        facts = self._repeats.finish(self._source)  # first, since it may explain an error
        _, labels, splits = self._repeats.columns()
        rows, trained = {*splits.tolist()}, {*labels[splits == 0].tolist()}
        empty = [split for i, split in enumerate(SPLITS) if i not in rows]
        empty += [repr(x)[:50] for i, x in enumerate(self._labels) if i not in trained]
        if empty:
            raise UserError(f"{self._source}: no (training) rows of {empty[0]}: give more rows")
        return {"split_by": "sha256 of the content" if self._by_content else "name", **facts}


def _several(places: np.ndarray, values: np.ndarray) -> int:
    """Returns how many places have more than one value."""
    pairs = np.unique(np.stack([places, values.astype(places.dtype)]), axis=1)
    return int((np.bincount(pairs[0]) > 1).sum()) if len(places) else 0
