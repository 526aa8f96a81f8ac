"""Raw inputs from files or standard input -> one JSON line each, by a trained run."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import progress
from lra_fnet.run.trained import Run, load_run
from lra_fnet.tasks import PixelTask, Task

STDIN = "standard input"


class Example(NamedTuple):
    """One input."""

    place: str  # where it stands: a file, or a file and a line
    texts: tuple[np.ndarray, ...]  # values uint8 [length] of each of its texts, not cut


def main(folder: Path, files: Sequence[Path]) -> None:
    """Prints a JSON line for each input in their order, a batch at a time.

    Args:
      folder: of a run, or an exported one.
      files: the inputs; none: standard input.

    Raises:
      UserError: as `load_run` and `read`; what stands before a bad input is printed.
    """
    run = load_run(folder)
    size = run.experiment.run.eval_batch_size
    if not files and sys.stdin.isatty():
        progress.say("reading standard input, Ctrl-D ends it")
        size = 1  # a person waits
    for batch in _batches(read(run, files), size):
        for line in lines(run, batch):
            print(json.dumps(line))
        sys.stdout.flush()


def lines(run: Run, batch: Sequence[Example]) -> Iterator[dict]:
    """What is printed of each input of a batch."""
    for example, row in zip(batch, run.predict([e.texts for e in batch]), strict=True):
        label = int(row.argmax())
        yield {
            "label": label,
            "class": run.task.class_names[label],
            "probability": round(float(row[label]), 6),
            "probabilities": [round(share, 6) for share in row.tolist()],
            "truncated": any(len(text) > run.task.max_len for text in example.texts),
            "input": example.place,
        }


def read(run: Run, files: Sequence[Path]) -> Iterator[Example]:
    """The inputs, one by one; `lra-fnet predict --help` says what a file holds.

    Raises:
      UserError: a file that cannot be read, whole files that are odd in number where two make a
        row, an input that the task does not have (file, line and reason).
    """
    task, together = run.task, run.task.num_inputs
    for file in files:
        if not file.exists() or file.is_dir():
            found = "a folder" if file.is_dir() else "nothing"
            raise UserError(f"{file}: expected a file, found {found}: name the files themselves")
    number = sum(not _by_line(task, file) for file in files)
    if number % together:
        raise UserError(
            f"task {task.name} takes {together} files a row, got {number}: add the missing one, or "
            "give JSON lines in a file *.jsonl"
        )
    if not files and isinstance(task, PixelTask):
        yield _example(run, STDIN, sys.stdin.buffer.read())
    elif not files:
        yield from _of_lines(run, STDIN, sys.stdin.buffer)
    whole: list[Path] = []
    for file in files:
        try:
            if _by_line(task, file):
                with file.open("rb") as stream:
                    yield from _of_lines(run, str(file), stream)
                continue
            whole.append(file)
            if len(whole) == together:
                place = " and ".join(map(str, whole))
                yield _example(run, place, *(path.read_bytes() for path in whole))
                whole = []
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror})") from None


def _by_line(task: Task, file: Path) -> bool:
    """Whether each line of a file is an input, not the whole file one."""
    return not isinstance(task, PixelTask) and (task.one_line or file.suffix == ".jsonl")


def _of_lines(run: Run, name: str, stream: BinaryIO) -> Iterator[Example]:
    for number, line in enumerate(stream, start=1):
        place = f"{name}, line {number}"
        try:
            contents = _contents(line.rstrip(b"\r\n"), run.task, name.endswith(".jsonl"))
        except ValueError as error:
            raise UserError(f"{place}: {error}") from None
        yield _example(run, place, *contents)


def _contents(line: bytes, task: Task, only_json: bool) -> list[bytes]:
    """The texts of one line: itself, or those of a JSON object.

    Raises:
      ValueError: it has to be a JSON object with these texts, and is none.
    """
    names = ["text"] if task.num_inputs == 1 else ["text1", "text2"]
    if task.num_inputs == 1 and not only_json and not re.match(rb'\s*\{\s*"', line):
        return [line]
    wanted = "{" + ", ".join(f'"{name}": "..."' for name in names) + "}"
    try:
        found = json.loads(line)
        return [found[name].encode() for name in names]
    except (ValueError, KeyError, TypeError, AttributeError):
        start = line[:40].decode(errors="replace")
        raise ValueError(f"expected a JSON object {wanted}, found {start!r}") from None


def _example(run: Run, place: str, *contents: bytes) -> Example:
    try:
        return Example(place, run.values(contents))
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None


def _batches(examples: Iterable[Example], size: int) -> Iterator[list[Example]]:
    """Lists of at most `size`; a bad input is raised behind what stands before it."""
    batch: list[Example] = []
    try:
        for example in examples:
            batch.append(example)
            if len(batch) == size:
                yield batch
                batch = []
    except UserError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
