"""Csv: your own texts from a table with the columns label and text, read byte by byte."""

import csv
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gin
import numpy as np

from lra_fnet.data import division, sources
from lra_fnet.data.store import Raw
from lra_fnet.errors import UserError, one_line
from lra_fnet.machine.progress import say
from lra_fnet.tasks.own import OwnRow, OwnTask
from lra_fnet.tasks.task import Sets

_TABS, _OBJECTS = (".tsv", ".tab"), (".jsonl", ".ndjson", ".json")
# A folder may hold other .json files, of a run, say: only those of the name of a split count.
ENDINGS = (".csv", *_TABS, *_OBJECTS[:2], *(f"{name}.json" for name in division.NAMES))
FORM = "the columns label and text (or label, text1 and text2) in the first line"
_QUOTES = "(quotation marks stand around a text with a separator or a line break, twice inside it)"
_LONGEST = 2**26  # bytes of a text


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Csv(OwnTask):
    """The label of a text, or of two texts; a token is a byte of UTF-8, whole texts are stored.

    The labels and the number of texts are those of the table. They become known with the prepared
    set, see `Task.settle`.
    """

    name = "csv"
    title = "Own texts"
    vocab_size = 257
    configs = Sets(
        r"\w[\w-]{0,99}", lambda _: 4000, "full", rule="a short name of letters, digits, _ and -"
    )
    value_is = "a byte of the text in UTF-8, without the white space around it"
    licence = "that of your table"
    reads = f"a .csv, .tsv or .jsonl file with {FORM} (keys in .jsonl), or a folder of such files"
    endings = (*ENDINGS, *(f"{ending}.gz" for ending in ENDINGS))
    tables = (".csv", *_TABS, *_OBJECTS)

    texts: int = 0  # of a row: 1 or 2; 0 if it is not known

    @property
    def num_inputs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of texts of a row."""
        return self.texts or 1

    @property
    def settled(self) -> bool:
        """Whether the labels and the number of texts are known."""
        return bool(self.labels and self.texts)

    def settle(self, details: Mapping[str, Any]) -> "Csv":
        """Returns the task with the labels and the number of texts of its prepared set.

        Raises:
            UserError: it has other labels.
        """
        return dataclasses.replace(super().settle(details), texts=details["texts"])

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns the rows of a table, or of all tables of a folder or archive, read twice."""
        assert source is not None
        kinds, broken = set(), []  # numbers of texts, and places of rows with line breaks

        def rows() -> Iterator[OwnRow]:
            for row in read(source):
                kinds.add(len(row.texts))
                broken.extend([row.place] if row.breaks else [])
                texts = [np.frombuffer(text, np.uint8) for text in row.texts]
                yield OwnRow(row.label, row.split, lambda texts=texts: texts)

        raw = self.divided(source, rows)
        if len(kinds) != 1:
            raise UserError(f"{source}: expected one text in all rows, or two, got both")
        if broken:
            say(f"{broken[0]}: a line break in a text (of {len(broken):,}): is a quote left open?")
        raw.details["texts"] = kinds.pop()
        return raw

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the bytes of a text without the white space around it.

        Raises:
            ValueError: if it is empty or not in UTF-8.
        """
        content.decode()
        return super().encode(content.strip())

    def inputs(self, path: Path) -> Iterator[tuple[str, tuple[bytes, ...]]]:
        """Yields the place and the texts of each row of a table; its labels are not read."""
        for row in read(path, labelled=False):
            yield row.place, row.texts


class TableRow(NamedTuple):
    """A row of a table."""

    place: str  # file and line
    split: str | None  # that the file's path names
    label: str  # "" if it is not read
    texts: tuple[bytes, ...]  # without the white space around them
    breaks: list[tuple[int, bool]]  # lines that end in a field, and whether they may be rows


def read(source: Path, *, labelled: bool = True) -> Iterator[TableRow]:
    """Yields the rows of a table, or of all tables in a folder or archive, in order.

    A table is comma-separated (.csv) or tab-separated (.tsv, .tab), in UTF-8; quotation marks may
    enclose a text (RFC 4180). The first line names the columns, in any order; others than label,
    text, text1 and text2 are ignored. Or each line is a JSON object (.jsonl, .ndjson, .json), whose
    label may be a number or a boolean. A table may be a gzip file (.gz).

    Raises:
        UserError: there is no table, a column is missing, a row is not as the first line says, or a
            field seems to hold other rows; names the file and the line.
    """
    empty, total, most = True, 0, (0, "")
    for file in sources.files_or_single(source, ENDINGS):
        for row in _table(file, labelled=labelled):
            empty = False
            yield row
            for breaks, rows in row.breaks:
                total += breaks
                most = max(most, (breaks * rows, row.place))
    if most[0] > total - most[0]:
        raise UserError(
            f"{most[1]}: expected a closed quotation mark, got a field with {most[0]:,} line breaks"
            ", more than all others have: close it, or write the field without line breaks"
        )
    if empty:
        raise UserError(f"{source}: expected a table with {FORM}, and rows below it, found none")


def _table(file: sources.File, *, labelled: bool) -> Iterator[TableRow]:
    csv.field_size_limit(_LONGEST)  # of the process; Python's own is 131,072 characters
    end, hint = 0, _QUOTES  # the last line of the row before
    try:
        unpacked = enumerate(file.unpacked().lines())
        lines = (line.decode("utf-8" if i else "utf-8-sig") for i, line in unpacked)
        delimiter = "\t" if sources.ending(file.path) in _TABS else ","
        if sources.ending(file.path) in _OBJECTS:
            delimiter, hint = "", '(each line is as {"label": "a", "text": "b"}; texts are strings)'
            objects = (_object(line) for line in lines if line.strip())
            columns = [*(first := next(objects, {}))]
            header, rows = 0, enumerate(itertools.chain([first], objects), start=1)
        else:
            reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
            columns = list(reader.fieldnames or ())
            header, rows = reader.line_num, ((reader.line_num, row) for row in reader)
        texts = ("text1", "text2") if "text1" in columns else ("text",)
        read = (*texts, "label") if labelled else texts
        if any(columns.count(x) != 1 for x in read) or {"text", "text1"} <= {*columns}:
            raise ValueError(f"expected a table with {FORM}, got {', '.join(columns)[:80]!r}")
        named = None if file.alone else division.named(file.path.parts[:-1], file.path.name)
        end = header
        for last, row in rows:
            if None in row or None in row.values() or not {*read} <= row.keys():
                raise ValueError(f"expected {len(columns)} columns, got more or fewer")
            label = row["label"].strip() if labelled else ""
            contents = tuple(row[name].encode().strip() for name in texts)
            if not all(contents) or (labelled and not label):
                raise ValueError("expected a text and a label, got an empty one: remove the row")
            label.encode()  # a lone surrogate is no character
            wide = len(columns) - 1
            full = [delimiter * i + x + delimiter * (wide - i) for i, x in enumerate(row.values())]
            broken = [text.split("\n") for text in full if delimiter and "\n" in text]
            breaks = [(len(x) - 1, {y.count(delimiter) for y in x} == {wide}) for x in broken]
            yield TableRow(f"{file}, line {end + 1}", named, label, contents, breaks)
            end = last
    except (csv.Error, ValueError) as error:
        raise UserError(f"{file}, line {end + 1}: {one_line(error, 200)} {hint}") from None


def _object(line: str) -> dict[str, str]:
    """Returns the strings in the JSON object of a line; the label may be a number or a boolean."""
    try:
        row = json.loads(line)
        if isinstance(row.get("label"), int | float):
            row["label"] = json.dumps(row["label"])
    except (ValueError, AttributeError, RecursionError):
        raise ValueError(f"expected one object on each line, got {line.strip()[:40]!r}") from None
    return {name: value for name, value in row.items() if isinstance(value, str)}
