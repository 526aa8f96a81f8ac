"""Checks that every mixer and task passes in our tests; call them for your own."""

import io
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lra_fnet.tasks import Arrays, PixelTask, Prepared, Task, store

# Tasks


def check_task(
    task: Task,
    source: str | Path | None = None,
    decode: Callable[[np.ndarray], bytes] | None = None,
) -> None:
    """Prepares a task's set twice in temporary folders and checks what training relies on.

    Every split must have the same rows at each preparation, with any `jobs`. Values, lengths and
    labels must be within the limits that the task states, each class must occur in the training
    rows, `Task.encode` must give the values of a row for its raw input, `Task.tokens` must mark
    padding, and the set must verify.

    Args:
        task: the task to check. Give a set of images or a large one few rows: all are prepared.
        source: the raw files, for tasks that read some: a folder, a file or a URL.
        decode: turns the values uint8 [length] of a row back into its raw input. Images and texts
            of bytes need none; `encode` is not checked if other tasks give none.

    Raises:
        AssertionError: names the property that does not hold.
        UserError: if the set cannot be prepared.
        ValueError: if a row is not as the task's class variables say.
    """
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        prepared = task.prepare(first, source, jobs=1)
        again = task.prepare(second, source, jobs=2)
        for split in task.splits:
            _require(
                prepared.sha256[split] == again.sha256[split],
                task,
                f"split {split} must have the same rows at every preparation, but a second one "
                f"(with jobs=2) gives other rows: draw them from a seed",
            )
        _require(task.verify(first) == prepared, task, "verify must return what prepare returned")
        for split in task.splits:
            rows = prepared.arrays(split)
            _check_limits(task, split, rows)
            _check_tokens(task, split, rows)
            _check_encode(task, prepared, split, decode)
        counts = prepared.label_counts[task.splits[0]]
        absent = [str(label) for label, count in enumerate(counts) if not count]
        _require(not absent, task, f"no training row has the label {', '.join(absent)}")


def _require(condition: bool, task: Task, text: str) -> None:
    if not condition:
        raise AssertionError(f"{task.name}/{task.config}: {text}")


def _check_limits(task: Task, split: str, rows: Arrays) -> None:
    limits = {
        "values": (rows.values, 0, task.vocab_size - 2),
        "lengths": (rows.lengths, 1, task.max_len),
        "labels": (rows.labels, 0, task.num_classes - 1),
    }
    for name, (array, low, high) in limits.items():
        _require(
            low <= array.min() and array.max() <= high,
            task,
            f"{name} of {split} must be {low} to {high}, got {array.min()} to {array.max()}",
        )


def _check_tokens(task: Task, split: str, rows: Arrays) -> None:
    """Compares ids and mask of the first rows with a loop over positions."""
    values = rows.values[:4].reshape(-1, task.max_len)
    lengths = rows.lengths[:4].reshape(-1)
    ids, mask = np.zeros(values.shape, np.int32), np.zeros(values.shape, bool)
    for row, position in np.ndindex(values.shape):
        if position < lengths[row]:
            ids[row, position] = int(values[row, position]) + (not task.zero_is_padding)
            mask[row, position] = ids[row, position] > 0
    result = task.tokens(values, lengths)
    same = all(np.array_equal(*pair) for pair in zip(result, (ids, mask), strict=True))
    _require(same, task, f"tokens of {split} must be value + 1 before the length and 0 after it")
    _require(ids.max() < task.num_ids, task, f"token ids of {split} must be below {task.num_ids}")


def _check_encode(
    task: Task, prepared: Prepared, split: str, decode: Callable[[np.ndarray], bytes] | None
) -> None:
    if decode is None and isinstance(task, PixelTask):
        decode = _png
    elif decode is None and task.vocab_size == 257:
        decode = np.ndarray.tobytes
    elif decode is None:
        return
    rows = store.read(prepared.folder, split, task.num_inputs, prepared.rows[split])
    for number, (texts, _) in enumerate(itertools.islice(rows, 100)):
        for text in texts:
            _require(
                np.array_equal(task.encode(decode(text)), text),
                task,
                f"encode must give the values of row {number} of {split} for its raw input",
            )


def _png(values: np.ndarray) -> bytes:
    """Returns square gray pixels as a PNG file."""
    from PIL import Image

    file, side = io.BytesIO(), int(len(values) ** 0.5)
    Image.fromarray(values.reshape(side, side)).save(file, format="PNG")
    return file.getvalue()
