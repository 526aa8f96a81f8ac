"""Csv: your own texts from a table with the columns label and text, read byte by byte."""

import csv
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gin
import numpy as np

from lra_fnet.data import sources
from lra_fnet.errors import UserError, one_line
from lra_fnet.machine.progress import say
from lra_fnet.tasks import own_rows
from lra_fnet.tasks.task import Raw, Sets

ENDINGS = (".csv", ".tsv", ".tab")
FORM = "the columns label and text (or label, text1 and text2) in the first line"
INPUTS = "the column text (or text1 and text2) in the first line"  # where no label is read

_TEXTS = (("text",), ("text1", "text2"))
_LONGEST = 2**26  # bytes of a line
_DELIMITERS = (",", "\t", ";")


def _length(name: str) -> int:
    """Returns the length of a set of any name, for several tables side by side."""
    if not re.fullmatch(r"\w[\w-]*", name):
        raise KeyError(name)
    return 4000


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Csv(own_rows.OwnTask):
    """The label of a text, or of two texts; a token is a byte of UTF-8, whole texts are stored.

    The labels and the number of texts are those of the table. They become known with the prepared
    set, see `Task.settle`.
    """

    name = "csv"
    title = "Own texts"
    vocab_size = 257
    configs = Sets(_length, "full", rule="any name of letters, digits, _ and -")
    value_is = "a byte of the text in UTF-8, without the white space around it"
    licence = "that of your table"
    endings = (*ENDINGS, *(f"{ending}.gz" for ending in ENDINGS))
    tables = ENDINGS

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
            UserError: it has others.
        """
        settled = super().settle(details)
        if self.texts not in (0, details["texts"]):
            raise UserError(
                f"csv/{self.config}: expected {self.texts} text(s) in a row, the prepared set has "
                f"{details['texts']}: leave out Csv.texts"
            )
        return dataclasses.replace(settled, texts=details["texts"])

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns the rows of a table, or of all tables of a folder or archive, read twice."""
        if source is None:
            raise UserError(
                f"csv/{self.config} reads your own table: give --source a .csv or .tsv file with "
                f"{FORM}, or a folder of such files"
            )
        labels, splits, texts, count, broken = set(), set(), set(), 0, 0
        for row in read(source):
            broken += any(b"\n" in text for text in row.texts)
            labels.add(row.label)
            if len(labels) > own_rows.MOST_CLASSES:  # a column of texts is named label
                break
            splits.add(row.split)
            texts.add(len(row.texts))
            count += 1
        if len(texts) != 1:
            raise UserError(
                f"{source}: expected one text in all rows, or two, got both: give the tables of "
                "one and of two texts as two sets"
            )
        if broken:
            say(
                f"{source}: {broken:,} of {count:,} rows have line breaks in a text; if they "
                "should have none, a quotation mark is not closed"
            )
        names = own_rows.classes(source, labels, self.labels)
        details = {"labels": list(names), "texts": texts.pop()}
        parts = own_rows.Division(source, names, splits)
        stream = self._rows(source, names, parts, details)
        return Raw(stream=stream, source=source.name, details=details, total=count)

    def _rows(self, source: Path, names: Sequence[str], parts: own_rows.Division, details: dict):
        numbers = {name: number for number, name in enumerate(names)}
        for row in read(source):
            label = numbers[row.label]
            values = [np.frombuffer(text, np.uint8) for text in row.texts]
            split = parts.split(values, label, row.split)
            yield split, (tuple(values) if len(values) > 1 else values[0], label)
        details |= parts.finish()

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the bytes of a text without the white space around it.

        Raises:
            ValueError: if it is empty or not in UTF-8.
        """
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"expected UTF-8, got {one_line(error, 100)}: save the text as UTF-8"
            ) from None
        return super().encode(content.strip())

    def inputs(self, path: Path) -> Iterator[tuple[str, tuple[bytes, ...]]]:
        """Yields the place and the texts of each row of a table; its labels are not read."""
        for row in read(path, labelled=False):
            yield row.place, row.texts


class Row(NamedTuple):
    """A row of a table."""

    place: str  # file and line
    split: str | None  # that the file or the column split names
    label: str  # "" if it is not read
    texts: tuple[bytes, ...]  # without the white space around them


def read(source: Path, *, labelled: bool = True) -> Iterator[Row]:
    """Yields the rows of a table, or of all tables in a folder or archive, in order.

    Commas, tabs or semicolons separate the columns, and quotation marks may enclose a text (RFC
    4180). The names of the columns are in the first line, in any order and case; others than label,
    text, text1, text2 and split are ignored. A table may be a gzip file (.gz).

    Raises:
        UserError: there is no table, a column is missing or there twice, or a row is not as the
            first line says; names the file and the line.
    """
    empty = True
    for file in sources.files_or_single(source):
        if not file.alone and sources.ending(file.path) not in ENDINGS:
            continue
        for row in _table(file.unpacked(), labelled=labelled):
            empty = False
            yield row
    if empty:
        form = FORM if labelled else INPUTS
        raise UserError(f"{source}: expected a table with {form}, and rows below it, found none")


def _table(file: sources.File, *, labelled: bool) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST)  # of the process; Python's own is 131,072 characters
    lines = _text(file)
    try:
        delimiter, names, texts = _header(file, next(lines, ""), labelled=labelled)
    except csv.Error as error:
        raise _damaged(f"{file}, line 1", error) from None
    written: list[str] = []  # the lines of the row that the reader returns next

    def kept() -> Iterator[str]:
        for line in lines:
            written.append(line)
            yield line

    reader = csv.reader(kept(), delimiter=delimiter, strict=True)
    place, ended, labels = "", 0, set()
    path = file.path
    in_path = None if file.alone else own_rows.named(path.parts[:-1], path.name)
    try:
        for cells in reader:
            ended = reader.line_num
            place = f"{file}, line {ended + 1}"
            row_written = delimiter + "".join(written)
            written.clear()
            if not cells:  # an empty line
                continue
            if len(names) > 1 and [cell.strip().lower() for cell in cells] == names:
                raise ValueError("this line repeats the first one: remove it")
            spaced = [cell for cell in cells if re.fullmatch(r' +"(?:[^"]|"")*"\s*', cell)]
            if any(delimiter + cell in row_written for cell in spaced):  # not in quotation marks
                raise ValueError(
                    "a space before a quotation mark makes it part of the text: remove it"
                )
            if len(cells) != len(names):
                remedy = "put a text that has the separator between quotation marks"
                if any(cell.startswith(" ") and cell.lstrip().startswith('"') for cell in cells):
                    remedy = "remove the space before the quotation mark"
                if (missing := len(names) - len(cells)) > 0:
                    remedy = f"add the missing column{'s' if missing > 1 else ''}"
                raise ValueError(f"expected {len(names)} columns, got {len(cells)}: {remedy}")
            if labelled:
                labels.add(cells[names.index("label")].strip())
            if delimiter == "\t" and _has_rows(cells, names, labels if labelled else None):
                raise ValueError(
                    "this line ends a text that has whole lines in it, so a quotation mark is not "
                    "closed: put texts with quotation marks between two more, and write those "
                    "inside twice (if the text does have such lines, save the table with commas)"
                )
            row = dict(zip(names, cells, strict=True))
            yield _row(row, texts, place, in_path, labelled=labelled)
    except csv.Error as error:
        if "end of data" in str(error):
            raise UserError(
                f"{file}, line {ended + 2}: a quotation mark in the row that begins here is not "
                "closed: close it, or write it twice if it is part of a text"
            ) from None
        raise _damaged(f"{file}, line {reader.line_num + 1}", error) from None
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None


def _has_rows(cells: Sequence[str], names: Sequence[str], labels: set[str] | None) -> bool:
    """Returns whether a line inside a cell is a row between tabs, with one of the labels if given.

    Without that label it may be part of the text, such as code that is indented with tabs.
    """
    inside = (line.split("\t") for cell in cells for line in cell.split("\n")[1:])
    rows = (line for line in inside if len(line) == len(names) > 1)
    return any(labels is None or line[names.index("label")].strip() in labels for line in rows)


def _header(
    file: sources.File, first: str, *, labelled: bool
) -> tuple[str, list[str], tuple[str, ...]]:
    """Returns the separator, the names of all columns, and those of the texts.

    Raises:
        UserError: a column is missing, or two that are read have one name.
        csv.Error: the first line is no line of a table.
    """
    read = ["label", "split"] if labelled else []
    by_tabs = sources.ending(file.path) in (".tsv", ".tab")
    for delimiter in sorted(_DELIMITERS, key=lambda mark: by_tabs and mark != "\t"):
        given = next(csv.reader([first], delimiter=delimiter), ())
        names = [name.strip().lower() for name in given]
        forms = [form for form in _TEXTS if {*read[:1], *form} <= {*names}]
        if forms:
            break
    else:
        form = FORM if labelled else INPUTS
        raise UserError(f"{file}: expected {form}, got {first.strip()[:60]!r}: name them so")
    if len(forms) > 1:
        raise UserError(
            f"{file}, line 1: expected the column text, or text1 and text2, got all three: rename "
            "or remove those that are not to be read"
        )
    for column in (*read, *forms[0]):
        same = [
            repr(cell.strip()) for cell, name in zip(given, names, strict=True) if name == column
        ]
        if len(same) > 1:
            raise UserError(
                f"{file}, line 1: expected one column {column}, got {' and '.join(same)}: rename "
                "or remove those that are not to be read"
            )
    return delimiter, names, forms[0]


def _damaged(where: str, error: csv.Error) -> UserError:
    """Returns the one-line error of a line that Python's csv module refuses."""
    remedy = "write a quotation mark inside a text twice"
    if "field larger" in str(error):
        remedy = f"a text has more than {_LONGEST >> 20} MiB, or a quotation mark is not closed"
    if "new-line" in str(error):  # a lone carriage return
        remedy = r"save the table with line ends as \n or \r\n"
    return UserError(f"{where}: {one_line(error, 100)}: {remedy}")


def _row(
    row: Mapping[str, str],
    columns: Sequence[str],
    place: str,
    split: str | None,
    *,
    labelled: bool,
) -> Row:
    """Returns the row of the cells of a line; raises a ValueError if one is not as it should be."""
    texts = tuple(row[name].encode().strip() for name in columns)
    for name, text in zip(columns, texts, strict=True):
        if not text:
            raise ValueError(f"expected a text in the column {name}, got none: remove the row")
    label = row["label"].strip() if labelled else ""
    if labelled and not label:
        raise ValueError("expected a label, got none: remove the row")
    if labelled and "split" in row:
        given = own_rows.named([row["split"].strip()])
        if given is None or split not in (None, given):
            expected = "train, validation or test"
            if split is not None:
                expected = f"{split}, which the file's or folder's name says,"
            raise ValueError(
                f"expected {expected} in the column split, got {row['split']!r}: correct it, or "
                "leave the column out"
            )
        split = given
    return Row(place, split, label, texts)


def _text(file: sources.File) -> Iterator[str]:
    """Yields the lines of a file in UTF-8, with their ends and without a byte order mark."""
    for number, line in enumerate(file.lines(), start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            if number == 1 and sources.ending(file.path) not in ENDINGS:
                raise UserError(
                    f"{file}: expected a table in UTF-8 ({', '.join(ENDINGS)}, each perhaps .gz), "
                    "got another format: convert or unpack the file"
                ) from None
            raise UserError(
                f"{file}, line {number}: expected UTF-8, got {one_line(error, 100)}: save the "
                "table as UTF-8"
            ) from None
