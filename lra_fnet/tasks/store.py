"""Rows on disk: a TFDS set of ArrayRecord files, and the fingerprint.json that describes it.

    <data_dir>/lra_<task>/<config>/<version>/
        dataset_info.json, features.json              by TFDS, which can read the folder itself
        lra_<task>-<split>.array_record-00000 ...     the rows, in the task's own order
        fingerprint.json                              last: without it the set is not finished

Only parts of TFDS that work without TensorFlow are used.
"""

import array
import contextlib
import functools
import hashlib
import importlib.resources
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.machine.progress import Bar

if TYPE_CHECKING:
    from lra_fnet.tasks.task import Task

SPLITS = ("train", "validation", "test")  # of most tasks
Texts = tuple[np.ndarray, ...]  # uint8 [length], one for each text of a row
Row = tuple[np.ndarray | Texts, int]  # values (one text), or a tuple of them (more), and the label

_BATCH = 1024  # rows a read or write
_SHARD_BYTES = 2**30  # of tokens in one file; compressed on disk
_FINGERPRINT = "fingerprint.json"


class Tally:
    """Counts of one split and the sha256 of its content, in one pass over its rows.

    The content's canonical form is the rows in order on disk, each as: the label (int32), then of
    each of its texts the length in tokens (uint32) and the values (uint8); integers little-endian.
    The files themselves are no such form: the order of keys inside a record is not fixed.
    """

    def __init__(self, num_classes: int):
        self._hash = hashlib.sha256()
        self._labels = np.zeros(num_classes, np.int64)
        self._lengths = array.array("I")
        self.rows = 0

    def add(self, texts: Texts, label: int) -> None:
        """Counts one row, the next in order."""
        self.rows += 1
        self._hash.update(int(label).to_bytes(4, "little", signed=True))
        self._labels[label] += 1
        for text in texts:
            self._hash.update(len(text).to_bytes(4, "little"))
            self._hash.update(text.tobytes())
            self._lengths.append(len(text))

    def summary(self) -> dict[str, Any]:
        """Rows, label counts, quantiles of the lengths (tokens) and sha256; JSON values only."""
        lengths = np.asarray(self._lengths)
        p10, p50, p90 = np.quantile(lengths, [0.1, 0.5, 0.9], method="inverted_cdf").tolist()
        return {
            "rows": self.rows,
            "label_counts": self._labels.tolist(),
            "lengths": {
                "min": int(lengths.min()),
                "p10": p10,
                "p50": p50,
                "p90": p90,
                "max": int(lengths.max()),
                "mean": round(float(lengths.mean()), 2),
            },
            "sha256": self._hash.hexdigest(),
        }


def combine(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """One sha256 over the lines "<split> <sha256 of its content>", splits in their own order."""
    lines = [f"{split} {splits[split]['sha256']}\n" for split in splits]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _features(num_inputs: int) -> list[str]:
    return ["inputs"] if num_inputs == 1 else [f"inputs_{i + 1}" for i in range(num_inputs)]


def write(
    folder: Path, task: "Task", rows: Iterable[tuple[str, Row]], progress: Bar
) -> dict[str, dict[str, Any]]:
    """Writes all splits to `folder`, an empty one, row by row: memory holds a few of them.

    Args:
        folder: where the files go; what is left there after an exception is not a set.
        task: what the rows belong to; every one of its splits must get a row.
        rows: (split, row) in any order of splits; within a split, the order on disk.
        progress: advanced by one for each row.

    Returns:
        The `Tally.summary` of each split.

    Raises:
        ValueError: if a task gives a row that is not what its class variables promise, or leaves a
            split without rows.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_info import DatasetIdentity

    keys = _features(task.num_inputs)
    tallies = {split: Tally(task.num_classes) for split in task.splits}
    text = tfds.features.Tensor(
        shape=(None,), dtype=np.uint8, encoding=tfds.features.Encoding.BYTES
    )
    identity = DatasetIdentity(
        name=f"lra_{task.name}",
        version=tfds.core.Version(task.version),
        data_dir=str(folder),
        module_name="lra_fnet",  # TFDS would take it from a builder's module, and there is none
        config_name=task.config,
    )
    info = tfds.core.DatasetInfo(
        builder=identity,
        features=tfds.features.FeaturesDict(
            {**dict.fromkeys(keys, text), "label": tfds.features.Scalar(np.int32)}
        ),
        disable_shuffling=True,  # keeps the task's own order
    )
    longest = task.num_inputs * task.configs[task.config]
    writer = tfds.core.SequentialWriter(
        info, max(_BATCH, _SHARD_BYTES // longest), file_format="array_record"
    )
    writer.initialize_splits(list(task.splits))
    waiting: dict[str, list[dict[str, Any]]] = {split: [] for split in task.splits}

    def flush(split):
        writer.add_examples({split: waiting[split]})
        waiting[split] = []

    for split, (values, label) in rows:
        texts = values if isinstance(values, tuple) else (values,)
        tally = tallies[split]
        _check_row(task, split, tally.rows, texts, label)
        tally.add(texts, label)
        progress.step()
        waiting[split].append({**dict(zip(keys, texts, strict=True)), "label": np.int32(label)})
        if len(waiting[split]) == _BATCH:  # TFDS writes its metadata at each of these
            flush(split)
    for split in task.splits:
        if not tallies[split].rows:
            raise UserError(
                f"{task.name}/{task.config}: split {split} has no rows: add some to the raw files"
            )
        flush(split)
    writer.close_all()
    return {split: tally.summary() for split, tally in tallies.items()}


def _check_row(task: "Task", split: str, key: int, texts: Texts, label: int) -> None:
    if len(texts) != task.num_inputs or not 0 <= label < task.num_classes:
        raise ValueError(
            f"{task.name}, {split} row {key}: {len(texts)} texts and label {label}, expected "
            f"{task.num_inputs} texts and a label below {task.num_classes}"
        )
    for text in texts:
        if text.dtype != np.uint8 or text.ndim != 1 or not len(text):
            raise ValueError(
                f"{task.name}, {split} row {key}: values are {text.dtype} {text.shape}, expected "
                f"uint8 [length] with at least one token"
            )
        if text.max() >= task.vocab_size - 1:
            raise ValueError(
                f"{task.name}, {split} row {key}: value {text.max()} needs token id "
                f"{text.max() + 1}, vocab_size is {task.vocab_size}"
            )


def read(folder: Path, split: str, num_inputs: int, rows: int) -> Iterator[tuple[Texts, int]]:
    """Yields (texts, label) of every record of a split, in order.

    Raises:
        UserError: naming file and split, if a record cannot be read or rows are missing.
    """
    import tensorflow_datasets as tfds
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from tensorflow_datasets.proto import tf_example_pb2

    parse = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    path, seen = folder, 0
    keys = _features(num_inputs)
    try:
        info: Any = tfds.builder_from_directory(folder).info
        for path in map(Path, info.splits[split].filepaths):
            with ArrayRecordDataSource([str(path)]) as source:
                for start in range(0, len(source), _BATCH):
                    wanted = range(start, min(start + _BATCH, len(source)))
                    for record in source.__getitems__(wanted):
                        # features.deserialize_example_np does the same, six times slower
                        columns = parse(record).features.feature
                        texts = (columns[key].bytes_list.value[0] for key in keys)
                        label = columns["label"].int64_list.value[0]
                        seen += 1
                        yield tuple(np.frombuffer(text, np.uint8) for text in texts), label
    except Exception as error:  # Riegeli, protobuf and TFDS each raise their own kinds
        raise UserError(
            f"{path}: split {split} cannot be read after {seen} of {rows} rows "
            f"({_first_line(error)}): delete {folder} and run the same command again"
        ) from error
    if seen != rows:
        raise UserError(
            f"{path}: split {split} has {seen} rows, expected {rows}: delete {folder} and run the "
            f"same command again"
        )


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 100 else text[:97] + "..."


def read_fingerprint(folder: Path) -> dict[str, Any] | None:
    """The content of fingerprint.json; None if the set is not there or not finished.

    Raises:
        UserError: if the file cannot be read, or is not a fingerprint whose parts agree.
    """
    path = folder / _FINGERPRINT
    try:
        record = json.loads(path.read_text("utf-8"))
        if record["fingerprint"] != combine(record["splits"]):
            raise ValueError("the fingerprint is not that of its splits")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({_first_line(error)}): delete {folder} and prepare the set again"
        ) from error
    return record


def write_fingerprint(folder: Path, record: Mapping[str, Any]) -> None:
    """Marks the set in `folder` as finished, in one atomic step."""
    disk.replace(folder / _FINGERPRINT, json.dumps(record, indent=1) + "\n")


def check_files(folder: Path, record: Mapping[str, Any]) -> None:
    """Compares each file's size with the one that was written.

    Raises:
        UserError: naming the first file that is missing or has another size.
    """
    for name, size in record["files"].items():
        path = folder / name
        found = f"{path.stat().st_size} bytes" if path.exists() else "no such file"
        if found != f"{size} bytes":
            raise UserError(
                f"{path}: expected {size} bytes, found {found}: delete {folder} and run "
                f"`make data TASK={record['task']}` again"
            )


@functools.cache
def expected() -> dict[str, Any]:
    """data/expected.json: task -> config -> what a prepared set must hold; {} where it is absent.

    It stands beside the package in a checkout and inside it in an installed wheel.
    """
    package = importlib.resources.files("lra_fnet")
    for path in (
        package / "data" / "expected.json",
        Path(str(package)).parent / "data/expected.json",
    ):
        if path.is_file():
            return json.loads(path.read_text("utf-8"))
    return {}


def lock(folder: Path) -> contextlib.AbstractContextManager:
    """Holds `folder`/.lock, after waiting for another process that prepares a set there."""
    return disk.lock(folder / ".lock", f"waiting for another process that prepares {folder}")
