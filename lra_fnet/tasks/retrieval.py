r"""Retrieval: whether one of two papers cites the other (1) or not (0), read byte by byte.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) with pairs of the ACL Anthology Network
(Radev et al., https://doi.org/10.1007/s10579-012-9211-2).

A line of a file is a pair: label, id1, id2, text1 and text2 with tabs between them, no header, no
quoting. Quotation marks, a backslash with an n after it and a \r inside a line are text.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import gin
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.tasks import sources
from lra_fnet.tasks.task import SPLITS, Raw, Task

REMOTE = sources.Remote(
    "https://storage.googleapis.com/long-range-arena/lra_release.gz", about="7.7 GB"
)
ROWS = (147_086, 18_090, 17_437)  # of "aan": train, validation, test
STORED = 4000  # bytes kept of each text; LRA cuts at 10,000 bytes, then at 4,000 tokens

_SPLIT_OF: Mapping[str, str] = MappingProxyType(
    dict(zip(("train", "eval", "test"), SPLITS, strict=True))
)
_NAMES = MappingProxyType(
    {
        "aan": re.compile(r"new_aan_pairs\.(train|eval|test)\.tsv"),
        "pairs": re.compile(r"[^.].*\.(train|eval|test)\.tsv"),
    }
)
_LABELS = MappingProxyType({b"0.0": 0, b"1.0": 1, b"0": 0, b"1": 1})
_LONGEST = 2**26  # bytes of a line

Pair = tuple[tuple[np.ndarray, np.ndarray], int]


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Retrieval(Task):
    """LRA's Retrieval: a token is a byte; of each text the first 4,000 are stored.

    "aan" is the pairs of LRA's release, "pairs" any others in files of the same format.
    """

    name = "retrieval"
    title = "Retrieval"
    num_classes = 2
    vocab_size = 257
    num_inputs = 2
    configs = MappingProxyType({"aan": STORED, "pairs": STORED})
    label_names = ("no citation", "citation")
    value_is = "a byte of the text"
    licence = "AAN: not stated, its papers are CC BY-NC-SA 3.0; other pairs: their own"

    def __post_init__(self):
        super().__post_init__()
        if self.max_len > STORED:
            raise UserError(
                f"retrieval: max_len must be at most {STORED}, got {self.max_len}; no more bytes "
                f"of a text are stored"
            )

    @property
    def remote(self) -> sources.Remote | None:
        """LRA's release, for "aan" only."""
        return REMOTE if self.config == "aan" else None

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """The pairs of three files below `source`, streamed, in the order of the files."""
        if source is None:
            raise UserError(
                f"retrieval/{self.config} reads your own files: give SOURCE=folder (or archive) "
                f"with <name>.train.tsv, <name>.eval.tsv and <name>.test.tsv"
            )
        official = self.config == "aan"
        return Raw(
            stream=read_pairs(source, self.config),
            source=source.name,
            total=sum(ROWS) if official else None,
        )


def read_pairs(source: Path, config: str) -> Iterator[tuple[str, Pair]]:
    """(split, pair) of every line of the three files, wherever in `source` they are.

    LRA's archive is read until all three are done: most of it is other tasks.

    Raises:
        UserError: if a file is missing, is there twice or is empty; for a bad line (file, line
            number and reason); for "aan", if a file has not the published number of pairs.
    """
    expected: dict[str, int] = dict(zip(SPLITS, ROWS, strict=True)) if config == "aan" else {}
    found: dict[str, str] = {}
    for path, file in sources.files(source):
        if (match := _NAMES[config].fullmatch(path.name)) is None:
            continue
        split, place = _SPLIT_OF[match[1]], f"{source}/{path}"
        if split in found:
            raise UserError(
                f"expected one file for the split {split}, found {found[split]} and {place}; "
                f"SOURCE must hold one set of pairs"
            )
        found[split] = place
        count = 0
        for count, pair in enumerate(_pairs_of(file, place), start=1):  # noqa: B007
            yield split, pair
        _check(count, expected.get(split), place)
        if expected and source.is_file() and len(found) == len(SPLITS):
            return
    _check_all(found, source, config)


def _check(count: int, expected: int | None, place: str) -> None:
    if expected is not None and count != expected:
        raise UserError(
            f"{place}: {count} pairs, the official file has {expected}; get {REMOTE} again, or "
            f"read other pairs of this format with `make data ... DATASET=pairs` or `make lra ... "
            f"GIN='DATASET=\"pairs\"'`"
        )
    if not count:
        raise UserError(f"{place}: expected at least one pair, found none")


def _check_all(found: Mapping[str, str], source: Path, config: str) -> None:
    name = "new_aan_pairs" if config == "aan" else "<name>"
    missing = [f"{name}.{file}.tsv" for file, split in _SPLIT_OF.items() if split not in found]
    if missing:
        hint = f"; get {REMOTE}" if config == "aan" else ""
        raise UserError(f"{source}: expected {' and '.join(missing)} in it, found none{hint}")


def _pairs_of(file: BinaryIO, place: str) -> Iterator[Pair]:
    """The pairs of one file, one line in memory at a time."""
    number = 0
    while line := file.readline(_LONGEST + 1):
        number += 1
        try:
            yield _parse(line)
        except ValueError as error:
            raise UserError(
                f"{place}, line {number}: {error}; expected label, id1, id2, text1 and text2 with "
                f"tabs between them"
            ) from None


def _parse(line: bytes) -> Pair:
    """One line, checked."""
    if len(line) > _LONGEST:
        raise ValueError(f"more than {_LONGEST} bytes without an end of line")
    if (count := line.count(b"\t") + 1) != 5:
        raise ValueError(f"{count} columns")
    name, _, _, *texts = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
    if (label := _LABELS.get(name)) is None:
        raise ValueError(f"the label is {name[:20]!r}, not 0.0 or 1.0")
    for column, text in enumerate(texts, start=1):
        if not text:
            raise ValueError(f"text{column} is empty")
    first, second = (np.frombuffer(text[:STORED], np.uint8) for text in texts)
    return (first, second), label
