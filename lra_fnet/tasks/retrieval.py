r"""Retrieval: whether one of two papers cites the other (1) or not (0), read byte by byte.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) with pairs of the ACL Anthology Network
(Radev et al., https://doi.org/10.1007/s10579-012-9211-2).

A line of a file is a pair: label, id1, id2, text1 and text2 with tabs between them, without a
header or quoting. Quotation marks, a backslash followed by n, and a \r inside a line are text.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gin
import numpy as np

from lra_fnet.data import division, sources
from lra_fnet.data.store import SPLITS, Raw
from lra_fnet.settings import at_least
from lra_fnet.tasks.task import Task

REMOTE = sources.Remote(
    "https://storage.googleapis.com/long-range-arena/lra_release.gz", about="7.7 GB"
)
ROWS = (147_086, 18_090, 17_437)  # of "aan": train, validation, test
STORED = 4000  # bytes kept of each text; LRA cuts at 10,000 bytes, then at 4,000 tokens

_SPLIT_OF: Mapping[str, str] = {"train": "train", "eval": "validation", "test": "test"}
_LABELS = MappingProxyType({b"0.0": 0, b"1.0": 1, b"0": 0, b"1": 1})

Pair = tuple[tuple[np.ndarray, np.ndarray], int]


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Retrieval(Task):
    """LRA's Retrieval: a token is a byte; the first 4,000 of each text are stored.

    "aan" is the pairs of LRA's release, "pairs" is any other files in the same format.
    """

    name = "retrieval"
    title = "Retrieval"
    num_classes = 2
    vocab_size = 257
    num_inputs = 2
    configs = MappingProxyType({"aan": STORED, "pairs": STORED})
    label_names = ("no citation", "citation")
    value_is = "a byte of the text"
    reads = "a folder or archive with <name>.train.tsv, <name>.eval.tsv and <name>.test.tsv"
    licence = "AAN: not stated, its papers are CC BY-NC-SA 3.0; other pairs: their own"

    def __post_init__(self):
        super().__post_init__()
        at_least("retrieval: max_len", self.max_len, 1, STORED, STORED + 1)

    @property
    def remote(self) -> sources.Remote | None:
        """LRA's release, for "aan" only."""
        return REMOTE if self.config == "aan" else None

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the bytes of a text without the line end at its end, which no row has."""
        return super().encode(content.removesuffix(b"\n").removesuffix(b"\r"))

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns the pairs of three files in `source`, one by one, in the order of the files."""
        assert source is not None
        details: dict[str, Any] = {}
        counts: dict[str, int] = {}
        name, remedy = "<name>.{}.tsv", "correct the files"
        if self.config == "aan":
            counts.update(zip(SPLITS, ROWS, strict=True))
            name = "new_aan_pairs.{}.tsv"
            remedy = f"get {REMOTE}, or read other pairs in this format with --dataset pairs"
        rows = sources.read_tables(source, name, _SPLIT_OF, _parse, remedy, counts)
        total = sum(counts.values()) or None
        return Raw(
            stream=_counted(source, rows, details), source=source.name, details=details, total=total
        )


def _counted(source: Path, rows: Iterable[tuple[str, Pair]], details: dict):
    """Yields the rows, and adds to `details` how many of them repeat another one."""
    repeats = division.Repeats()
    for split, (texts, label) in rows:
        repeats.add(division.content(texts), label, split)
        yield split, (texts, label)
    details |= repeats.finish(source)


def _parse(line: bytes) -> Pair:
    """Returns the pair of one line."""
    columns = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
    if len(columns) != 5 or columns[0] not in _LABELS or not all(columns[3:]):
        raise ValueError(
            "expected label (0.0 or 1.0), id1, id2, text1 and text2, with tabs between them and "
            f"none empty, got {len(columns)} columns and the label {columns[0][:20]!r}"
        )
    first, second = (np.frombuffer(text[:STORED], np.uint8) for text in columns[3:])
    return (first, second), _LABELS[columns[0]]
