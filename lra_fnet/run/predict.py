"""Classifies raw inputs from files or standard input by a trained run: one JSON line for each."""

import codecs
import gzip
import itertools
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from lra_fnet.data import sources
from lra_fnet.errors import UserError
from lra_fnet.machine import progress
from lra_fnet.run.trained import TrainedRun, load_run
from lra_fnet.tasks import PixelTask, Task

STDIN = "standard input"


def main(folder: Path, files: Sequence[Path], imports: Sequence[str] = ()) -> None:
    """Prints a JSON line for each input, in order and one batch at a time.

    Args:
      folder: a run folder, or an exported one.
      files: the inputs; standard input if there are none.
      imports: see `load_run`.

    Raises:
      UserError: see `load_run` and `read`; the lines for the inputs before a bad one are printed.
    """
    run = load_run(folder, imports=imports)
    batch_size = run.experiment.run.eval_batch_size
    if not files and sys.stdin.isatty():
        progress.say("reading standard input; Ctrl-D ends it")
        batch_size = 1  # a person waits for each answer
    examples, last, answers = read(run, files), False, 0
    while not last:
        batch: list[tuple[str, tuple[np.ndarray, ...]]] = []
        try:
            batch.extend(itertools.islice(examples, batch_size))
        finally:  # a bad input ends the command after the answers to those before it
            _answer(run, batch)
        last, answers = len(batch) < batch_size, answers + len(batch)
    if not answers:
        raise UserError(f"{files[0] if files else STDIN}: expected a text, found none")


def _answer(run: TrainedRun, batch: Sequence[tuple[str, tuple[np.ndarray, ...]]]) -> None:
    rows = run.predict([texts for _, texts in batch])
    for (place, texts), row in zip(batch, rows, strict=True):
        label = int(row.argmax())
        line = {
            "label": label,
            "class": run.task.class_names[label],
            "probability": round(float(row[label]), 6),
            "probabilities": [round(share, 6) for share in row.tolist()],
            "truncated": any(len(text) > run.task.max_len for text in texts),
            "input": place,
        }
        print(json.dumps(line))
    sys.stdout.flush()


def read(run: TrainedRun, files: Sequence[Path]) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Yields for each input its place (file, or file and line) and its texts, uint8 [length] each.

    `lra-fnet predict --help` says what a file holds.

    Raises:
      UserError: a file cannot be read; a task with two texts per row gets an odd number of files;
        an input does not fit the task (the text has its file, line and reason).
    """
    for place, contents in _contents(run.task, files):
        try:
            yield place, run.values(contents)
        except ValueError as error:
            raise UserError(f"{place}: {error}") from None


def _opened(path: Path) -> IO[bytes]:
    """Opens a file, unpacked if it is a gzip file by its name."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path)  # pyright: ignore[reportReturnType]
    return path.open("rb")


def _contents(task: Task, files: Sequence[Path]) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Yields the place and the raw texts of each input."""
    pixels = isinstance(task, PixelTask)
    if not files and pixels:
        yield STDIN, (sys.stdin.buffer.read(),)
    elif not files:
        yield from _lines(task, STDIN, sys.stdin.buffer)
    tables = {file for file in files if sources.ending(file) in task.tables}
    whole = {
        file
        for file in files
        if pixels or not (task.one_line or sources.ending(file) == ".jsonl" or file in tables)
    }
    if (count := sum(file in whole for file in files)) % task.num_inputs:
        raise UserError(
            f"task {task.name} takes {task.num_inputs} files a row, got {count}: add the "
            "missing one, or give JSON lines in a file *.jsonl"
        )
    row: list[Path] = []

    def content(path: Path) -> bytes:
        if pixels:
            return path.read_bytes()
        with _opened(path) as stream:
            return stream.read().removeprefix(codecs.BOM_UTF8)

    for file in files:
        if row and file not in whole:
            raise UserError(f"{file} is between the two files of a pair: put it before {row[0]}")
        try:
            if file in tables:
                file.open("rb").close()
                yield from task.inputs(file)
                continue
            if file not in whole:
                with _opened(file) as stream:
                    yield from _lines(
                        task, str(file), stream, all_json=sources.ending(file) == ".jsonl"
                    )
                continue
            row.append(file)
            if len(row) == task.num_inputs:
                yield " and ".join(map(str, row)), tuple(map(content, row))
                row = []
        except (OSError, EOFError, zlib.error) as error:
            name, reason = getattr(error, "filename", None) or file, getattr(error, "strerror", "")
            raise UserError(
                f"{name} cannot be read ({reason or error}): name files that exist, not folders"
            ) from None


def _lines(
    task: Task, name: str, stream: Iterable[bytes], *, all_json: bool = False
) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Yields the place and the texts of each line: the line itself, or those of a JSON object."""
    keys = ["text"] if task.num_inputs == 1 else ["text1", "text2"]
    all_json = all_json or task.num_inputs > 1
    for number, line in enumerate(stream, start=1):
        place, line = f"{name}, line {number}", line.rstrip(b"\r\n")
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not all_json and not re.match(rb'\s*\{\s*"', line):
            yield place, (line,)
            continue
        try:
            row = json.loads(line)
            texts = tuple(row[key].encode() for key in keys)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            expected = "{" + ", ".join(f'"{key}": "..."' for key in keys) + "}"
            start = line[:40].decode(errors="replace")
            raise UserError(f"{place}: expected a JSON object {expected}, got {start!r}") from None
        yield place, texts
