"""ListOps: the value of a nested expression over digits, e.g. [MAX 4 3 [SM 2 9 ] ] is 4.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2), after Nangia & Bowman (arXiv 1804.06028).
Rows are generated (LRA sets no seed, so its published files can only be matched in distribution),
or read from the official basic_{train,val,test}.tsv.
"""

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import gin
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.tasks import sources
from lra_fnet.tasks.task import SPLITS, Raw, Task

# Stored value of a token: its place here. Token id: value + 1; id 0 is padding.
TOKENS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
_VALUES = {token: value for value, token in enumerate(TOKENS)}

GENERATOR = 1  # raise it, and ListOps.version, whenever the generated rows change
SEED = 0
_CHUNK = 1000  # trees drawn from one random stream


class Set(NamedTuple):
    """Bounds and sizes of one data set."""

    shortest: int  # tokens, inclusive
    longest: int  # tokens, inclusive
    rows: tuple[int, int, int]  # train, validation, test


SETS: Mapping[str, Set] = MappingProxyType(
    {
        "full": Set(501, 1999, (96_000, 2_000, 2_000)),  # LRA: 500 < length < 2000
        "short": Set(65, 255, (20_000, 2_000, 2_000)),  # the same grammar, for small machines
    }
)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class ListOps(Task):
    """LRA's ListOps: ten classes, the majority class about 17 % of the rows."""

    name = "listops"
    title = "ListOps"
    licence = "generated here: as this repository"
    num_classes = 10
    vocab_size = 1 + len(TOKENS)
    configs = MappingProxyType({"full": 2000, "short": 256})
    label_names = tuple("0123456789")
    one_line = True
    value_is = f"the token's place in {' '.join(TOKENS)}, from 0 on"

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Generated rows, or those of the official files in `source`."""
        rows = SETS[self.config].rows
        if source is not None:
            if self.config != "full":
                raise UserError(
                    f"{source}: the official files are the set listops/full, not "
                    f"listops/{self.config}; leave SOURCE out, or use a preset of listops/full"
                )
            counts: dict[str, int] = dict(zip(SPLITS, rows, strict=True))
            return Raw(stream=read_official(source, counts), source=source.name, total=sum(rows))
        trees = unique(generate(self.config, SEED, jobs))
        return Raw(
            {
                split: itertools.islice(trees, count)
                for split, count in zip(SPLITS, rows, strict=True)
            },
            details={"generator": GENERATOR, "seed": SEED},
            total=sum(rows),
        )

    def encode(self, content: bytes) -> np.ndarray:
        """Tokens of one whole expression, white space between them."""
        values = tokenize(content.decode(errors="replace"))
        evaluate(values)
        return values


def generate(config: str, seed: int, jobs: int) -> Iterator[tuple[np.ndarray, int]]:
    """Trees of the data set without end, the same at any number of `jobs` (threads).

    Chunk k of 1000 trees is drawn from the stream that SeedSequence([seed, k]) starts; chunks are
    taken in order.

    Yields:
        values uint8 [length], and the value of the expression (0-9).
    """
    from lra_fnet.tasks import listops_trees  # compiles on first use: only preparation pays

    shortest, longest, _ = SETS[config]

    def draw(chunk):
        state = np.random.SeedSequence([seed, chunk]).generate_state(4, np.uint64)
        return listops_trees.draw_trees(state, _CHUNK, shortest, longest)

    with ThreadPoolExecutor(jobs) as pool:
        ahead = collections.deque(pool.submit(draw, chunk) for chunk in range(jobs + 1))
        for chunk in itertools.count(jobs + 1):
            values, ends, labels, _ = ahead.popleft().result()
            ahead.append(pool.submit(draw, chunk))
            start = 0
            for end, label in zip(ends.tolist(), labels.tolist(), strict=True):
                yield values[start:end], label
                start = end


def unique(rows: Iterator[tuple[np.ndarray, int]]) -> Iterator[tuple[np.ndarray, int]]:
    """Drops every row whose tokens came before."""
    seen = set()
    for values, label in rows:
        key = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            yield values, label


def tokenize(text: str) -> np.ndarray:
    """Values uint8 [length] of an expression; parentheses are dropped, as LRA does.

    Raises:
        ValueError: for an unknown token, or no token at all.
    """
    tokens = text.replace("(", " ").replace(")", " ").split()
    if not tokens:
        raise ValueError("empty expression")
    try:
        return np.array([_VALUES[token] for token in tokens], np.uint8)
    except KeyError as error:
        raise ValueError(f"unknown token {error.args[0][:20]!r}") from None


def detokenize(values: np.ndarray) -> str:
    """The expression of values uint8 [length], tokens between single spaces."""
    return " ".join(TOKENS[value] for value in values)


def evaluate(values: np.ndarray) -> int:
    """Value 0-9 of one expression, values uint8 [length]. MED truncates, SM is modulo 10.

    Raises:
        ValueError: if the values are not one whole expression.
    """
    from lra_fnet.tasks import listops_trees

    result = int(listops_trees.evaluate(np.ascontiguousarray(values, np.uint8)))
    if result < 0:
        raise ValueError(f"not an expression: {listops_trees.REASONS[result]}")
    return result


def read_official(
    source: Path, counts: Mapping[str, int]
) -> Iterator[tuple[str, tuple[np.ndarray, int]]]:
    """(split, row) of the official basic_{train,val,test}.tsv, wherever in `source` they are.

    The source is a folder or an archive (lra_release.gz, say), which is read up to the last of the
    three. Each line is the expression, a tab, and its value; every value is recomputed.

    Raises:
        UserError: for a file that is missing, is there twice, has another header or another number
            of rows than `counts`, or for a bad row (file, line number and reason).
    """
    names = {
        f"basic_{name}.tsv": split
        for split, name in zip(SPLITS, ("train", "val", "test"), strict=True)
    }
    found: dict[str, str] = {}
    for path, file in sources.files(source):
        if path.name not in names:
            continue
        where = f"{source}/{path}"
        if path.name in found:
            raise UserError(
                f"expected one {path.name} in {source}, found {found[path.name]} and {where}"
            )
        found[path.name] = where
        split, number = names[path.name], 0
        for row in _rows_of(file, where):
            yield split, row
            number += 1
        if number != counts[split]:
            raise UserError(
                f"{where}: {number} rows, the official file has {counts[split]}; get the official "
                f"file again"
            )
        if len(found) == len(names) and source.is_file():
            return  # the rest of an archive may be 7 GB
    if missing := ", ".join(name for name in names if name not in found):
        raise UserError(f"expected {missing} in {source} (lra_release.gz has it), found none")


def _rows_of(file: Iterable[bytes], where: str) -> Iterator[tuple[np.ndarray, int]]:
    lines = iter(file)
    header = next(lines, b"").decode(errors="replace").rstrip("\n")
    if header != "Source\tTarget":
        raise UserError(
            f"{where}, line 1: expected the header 'Source\\tTarget', got {header[:40]!r}"
        )
    for number, line in enumerate(lines, start=2):
        try:
            yield _parse(line.decode(errors="replace").rstrip("\n"))
        except ValueError as error:
            raise UserError(
                f"{where}, line {number}: {error}; get the official file again"
            ) from None


def _parse(line: str) -> tuple[np.ndarray, int]:
    """One line of an official file, checked."""
    if not line.strip():
        raise ValueError("empty row")
    columns = line.split("\t")
    if len(columns) != 2:
        raise ValueError(f"expected 2 columns, got {len(columns)}")
    if columns[1] not in TOKENS[:10]:
        raise ValueError(f"expected a label 0-9, got {columns[1][:20]!r}")
    values, label = tokenize(columns[0]), int(columns[1])
    if (value := evaluate(values)) != label:
        raise ValueError(f"the label is {label}, the expression is {value}")
    return values, label
