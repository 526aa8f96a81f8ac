"""ListOps: the value of a nested expression over digits, e.g. [MAX 4 3 [SM 2 9 ] ] is 4.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2), after Nangia & Bowman (arXiv 1804.06028).
Rows are generated, or read from the official basic_{train,val,test}.tsv, or from files of any size
in that form or in Nangia and Bowman's. LRA's generator sets no seed, so its published rows can only
be matched in distribution.
"""

import codecs
import dataclasses
import hashlib
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gin
import numpy as np

from lra_fnet.data import division, sources
from lra_fnet.data.store import SEED, SPLITS, Raw
from lra_fnet.errors import UserError
from lra_fnet.tasks.task import Task

# The stored value of a token is its index here; the token id is the value + 1, and 0 is padding.
TOKENS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
_VALUES = {token: value for value, token in enumerate(TOKENS)}

_OPERATORS = {
    _VALUES["[MIN"]: min,
    _VALUES["[MAX"]: max,
    _VALUES["[MED"]: statistics.median,
    _VALUES["[SM"]: lambda arguments: sum(arguments) % 10,
}

_HEADER = b"Source\tTarget"
GENERATOR = 1  # increase it, and ListOps.version, whenever the generated rows change
_CHUNK = 1000  # trees drawn from one random stream


class Set(NamedTuple):
    """Bounds and sizes of one data set."""

    shortest: int  # tokens, inclusive
    longest: int  # tokens, inclusive
    rows: tuple[int, int, int]  # train, validation, test


SETS: Mapping[str, Set] = MappingProxyType(
    {
        "full": Set(501, 1999, (96_000, 2_000, 2_000)),  # LRA: 500 < length < 2000
        # The same grammar, for small machines: the test split is larger, to tell models apart.
        "short_128": Set(33, 127, (96_000, 2_000, 10_000)),
    }
)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class ListOps(Task):
    """LRA's ListOps: ten classes; the most frequent one has 17.80 % of the test rows of `full`.

    "own" is other files, of any size.
    """

    name = "listops"
    title = "ListOps"
    licence = "generated here: as this repository; your own files: theirs"
    num_classes = 10
    vocab_size = 1 + len(TOKENS)
    configs = MappingProxyType({"full": 2000, "short_128": 128, "own": 2000})
    label_names = tuple("0123456789")
    value_is = f"the token's place in {' '.join(TOKENS)}, from 0 on"

    @property
    def reads(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the source of "own" must be; other sets are generated."""
        return "a folder of <name>_train.tsv and <name>_test.tsv" * (self.config == "own")

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns generated rows, or those of the files in `source`."""
        if source and self.config == "own":
            details = {}
            return Raw(stream=_own(source, details), source=source.name, details=details)
        rows = SETS[self.config].rows
        if source is None:
            details = {"generator": GENERATOR, "seed": SEED}
            generated = unique(generate(self.config, SEED, jobs))
            return Raw.consecutive(generated, rows, details=details)
        if self.config != "full":
            raise UserError(f"{source}: official files are the set full, others own")
        return Raw(
            stream=sources.read_tables(
                source,
                "basic_{}.tsv",
                dict(zip(("train", "val", "test"), SPLITS, strict=True)),
                _parse,
                "the set full is the official files (of lra_release.gz), --dataset own any others",
                counts=dict(zip(SPLITS, rows, strict=True)),
                header=_HEADER,
            ),
            source=source.name,
            total=sum(rows),
        )

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the tokens of one whole expression with white space between them."""
        values = tokenize(content.decode(errors="replace"))
        evaluate(values)
        return values


def generate(config: str, seed: int, jobs: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yields trees of the data set without end, the same with any number of `jobs` (threads).

    Yields:
        values uint8 [length], and the value of the expression (0-9).
    """
    from lra_fnet.data import streams  # late: numba compiles it for seconds
    from lra_fnet.tasks import listops_trees

    shortest, longest, _ = SETS[config]

    def draw(state):
        return listops_trees.draw_trees(state, _CHUNK, shortest, longest)

    for values, ends, labels, _ in streams.chunks(draw, seed, jobs):
        yield from zip(np.split(values, ends[:-1]), labels.tolist(), strict=True)


def unique(rows: Iterator[tuple[np.ndarray, int]]) -> Iterator[tuple[np.ndarray, int]]:
    """Drops every row whose tokens have occurred before."""
    seen = set()
    for values, label in rows:
        key = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            yield values, label


def tokenize(text: str) -> np.ndarray:
    """Returns the values uint8 [length] of an expression; parentheses are dropped, as in LRA.

    Raises:
        ValueError: for an unknown token, or if there is no token.
    """
    tokens = text.replace("(", " ").replace(")", " ").split()
    if not tokens:
        raise ValueError("expected an expression, got none")
    try:
        return np.array([_VALUES[token] for token in tokens], np.uint8)
    except KeyError as error:
        raise ValueError(f"expected {' '.join(TOKENS)}, got {error.args[0][:20]!r}") from None


def evaluate(values: np.ndarray) -> int:
    """Returns the value 0-9 of one expression, values uint8 [length].

    MED is truncated to an integer, SM is modulo 10.

    Raises:
        ValueError: if the values are not one whole expression.
    """
    stack: list[list[int]] = []  # open operators, each followed by its arguments so far
    for i, value in enumerate(values.tolist()):
        if value in _OPERATORS:
            stack.append([value])
            continue
        if TOKENS[value] == "]":
            operator, *arguments = stack.pop() if stack else [value]
            if not arguments:
                break
            value = int(_OPERATORS[operator](arguments))
        if stack:
            stack[-1].append(value)
        elif i + 1 == len(values):
            return value
        else:
            break
    raise ValueError("expected one whole expression, in which operators have arguments and a ]")


def _own(source: Path, details: dict[str, Any]) -> Iterator[tuple[str, tuple[np.ndarray, int]]]:
    """Yields (split, row) of the files whose paths name a split, or of a single file."""
    rows = []
    for file in sources.files_or_single(source, ("",)):
        split = None if file.alone else division.named(file.path.parts[:-1], file.path.name)
        lines = file.unpacked().lines() if split or file.alone else ()
        for number, line in enumerate(lines, start=1):
            line = line.strip().removeprefix(codecs.BOM_UTF8)
            if not line or line == _HEADER:
                continue
            try:
                row = _parse(line[2:] + b"\t" + line[:1] if line[1:2] == b"\t" else line)
            except ValueError as error:
                raise UserError(f"{file}, line {number}: {error}: correct the file") from None
            rows.append((split, row))
    parts = division.Division(source, (), {split for split, _ in rows})
    for split, (values, label) in rows:
        yield parts.split([values], label, split), (values, label)
    details |= parts.finish()


def _parse(line: bytes) -> tuple[np.ndarray, int]:
    """Returns the row of one line in LRA's form: the expression, a tab, its value."""
    expression, *labels = line.decode(errors="replace").rstrip("\r\n").split("\t")
    values = tokenize(expression)
    label = evaluate(values)
    if labels != [str(label)]:
        raise ValueError(f"expected the value {label} beside the expression, got {labels}")
    return values, label
