"""Rows on disk: a TFDS set of ArrayRecord files, and the fingerprint.json that describes it.

    <data_dir>/lra_<task>/<config>/<version>/
        dataset_info.json, features.json              by TFDS, which can read the folder itself
        lra_<task>-<split>.array_record-00000 ...     the rows, in the task's own order
        fingerprint.json                              rows, labels, lengths and sha256 of each split

The folder appears whole or not at all. Only parts of TFDS that work without TensorFlow are used.
"""

import array
import contextlib
import functools
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from lra_fnet import config
from lra_fnet.counts import Counts
from lra_fnet.data.sources import Remote, digest, file_sha256, own_url, readable
from lra_fnet.errors import UserError, one_line
from lra_fnet.machine import disk, terminal
from lra_fnet.machine.memory import free_memory
from lra_fnet.machine.progress import Bar, say

if TYPE_CHECKING:
    from lra_fnet.tasks.task import Raw, Task

SPLITS = ("train", "validation", "test")  # of most tasks
Texts = tuple[np.ndarray, ...]  # uint8 [length], one for each text of a row
Row = tuple[np.ndarray | Texts, int]  # values (one text) or a tuple of them (more), and the label

_BATCH = 1024  # rows per read or write, fewer if they are long
_BATCH_BYTES = 2**26  # of one read or write, about
_SHARD_BYTES = 2**30  # of tokens in one file; they are compressed on disk
_FINGERPRINT = "fingerprint.json"
_SUMS = "sha256.json"  # of a mapped split
_QUANTILES = {"min": 0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1}  # of lengths


class Arrays(NamedTuple):
    """One split in memory. A value v stands for the token id v + 1; id 0 is padding.

    Positions from `lengths` on hold the value 0, which is also a token: only `lengths` says where
    padding begins.
    """

    values: np.ndarray  # uint8 [n, L]; [n, 2, L] for two texts per row
    lengths: np.ndarray  # int32 [n]; [n, 2] for two texts per row
    labels: np.ndarray  # int32 [n]

    def __repr__(self):
        columns = zip(self._fields, self, strict=True)
        return f"Arrays({', '.join(f'{n} {a.dtype} {[*a.shape]}' for n, a in columns)})"

    def take(self, rows: slice | np.ndarray) -> Self:
        """Returns these rows: a slice, or numbers or bool [n]."""
        return self._make(column[rows] for column in self)


@dataclass(frozen=True)
class Batches(Sequence[Arrays]):
    """The rows of a split in batches, in file order; each batch is a view of the rows."""

    rows: Arrays
    batch_size: int

    def __len__(self):
        return -(-len(self.rows.labels) // self.batch_size)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        start = range(len(self))[index] * self.batch_size
        return self.rows.take(slice(start, start + self.batch_size))


@dataclass(frozen=True, repr=False)
class Prepared:
    """A task's rows on disk, as their fingerprint.json describes them."""

    task: "Task"
    folder: Path
    source: str  # "generator", or the name of the source that the rows were read from
    digests: Mapping[str, str] | None  # `sources.digest` of that source; None if generated
    splits: Mapping[str, Mapping[str, Any]]  # `Tally.summary` of each split
    fingerprint: str  # one sha256 over all splits
    corpus: str | None = None  # fingerprint of the corpus in whose pieces the rows are
    url: str | None = None  # of the source, if it is neither a path nor the publisher's file

    def __repr__(self):
        rows = " / ".join(f"{n:,}" for n in self.rows.values())
        return f"Prepared({self.task.name}/{self.task.config} from {self.source}: {rows} rows)"

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each split."""
        return {split: facts["rows"] for split, facts in self.splits.items()}

    @property
    def floor(self) -> Counts:
        """Test rows with the most frequent label, and all test rows."""
        return Counts(max(self.splits["test"]["label_counts"]), self.rows["test"])

    @property
    def generated(self) -> bool:
        """Whether no source was read."""
        return self.digests is None and self.source == "generator"

    def check_is_of(self, run: object, fingerprint: str, cure: str) -> None:
        """Raises a UserError that ends in `cure` if a run was trained on other rows."""
        if self.fingerprint != fingerprint:
            raise UserError(
                f"{run} was trained on data {fingerprint[:8]}, {self.folder} holds "
                f"{self.fingerprint[:8]}: {cure}"
            )

    def is_from(self, source: str | Path) -> bool:
        """Returns whether the rows were read from a source as it is now.

        Its URL decides if it has one. Its name decides if it cannot be compared: a mirror of the
        publisher's file, or files that are no longer there. The content of files is read only if
        the facts of one have changed, see `sources.digest`.
        """
        if url := own_url(source, self.task.remote):
            return url == self.url
        there = os.path.exists(source)  # unlike Path.exists it raises nothing
        if self.digests is None or not there:
            return not self.generated and self.source == Remote(str(source)).name
        return any(
            self.digests[kind] == sha256() for kind, sha256 in _digests(self.task, Path(source))
        )

    def arrays(self, split: str) -> Arrays:
        """Returns one whole split; longer texts are cut at the end.

        A split whose values would take more than half of the free memory is decoded once to files
        in the set's folder and mapped into memory. Its rows are then read from disk, or from the
        system's cache, when they are used.

        Returns:
            values uint8 [n, max_len] ([n, 2, max_len]; uint16 for more than 256 tokens), lengths
            int32 [n] ([n, 2]), labels int32 [n], in the order on disk.

        Raises:
            UserError: if there is no such split, a record cannot be read (names file and split),
                the folder holds another set by now, or neither memory nor disk has room for the
                split.
        """
        if split not in self.rows:
            raise UserError(f"unknown split {split!r}: expected one of {', '.join(self.rows)}")
        _check_same(self)
        _remove_leftovers(self.folder)
        k, max_len, dtype = self.task.num_inputs, self.task.max_len, self.task.value_dtype
        shape = (self.rows[split], k, max_len)
        if math.prod(shape) * dtype.itemsize > free_memory() // 2:
            folder = self.folder / f"mapped.{split}.{max_len}"
            write_once(
                folder,
                lambda: disk.read_json(folder / _SUMS) == _sums(folder),
                functools.partial(self._map, split, shape),
            )
            values = np.load(folder / "values.npy", mmap_mode="c")
            lengths, labels = (np.load(folder / f"{name}.npy") for name in Arrays._fields[1:])
        else:
            values = np.zeros(shape, dtype)
            lengths, labels = self._read(split, values)
        return Arrays(*((values, lengths) if k > 1 else (values[:, 0], lengths[:, 0])), labels)

    def _read(self, split: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fills values [n, k, max_len], which are zeros; returns lengths [n, k], labels [n]."""
        n, k, max_len = values.shape
        lengths = np.zeros((n, k), np.int32)
        labels = np.zeros(n, np.int32)
        for i, (texts, label) in enumerate(read(self, split)):
            labels[i] = label
            for j, text in enumerate(texts):
                lengths[i, j] = length = min(len(text), max_len)
                values[i, j, :length] = text[:length]
        return lengths, labels

    def _map(self, split: str, shape: tuple[int, int, int], part: Path) -> None:
        """Writes values, lengths and labels of a split to files in the empty folder `part`."""
        dtype = self.task.value_dtype
        say(f"{split} of {self.folder} does not fit into memory: decoding it to files there")
        path = part / "values.npy"
        size, free = math.prod(shape) * dtype.itemsize, shutil.disk_usage(part).free
        if size > free:
            raise UserError(
                f"{shape[0]:,} rows of MAX_LEN={shape[2]} tokens take {size / 1e9:,.0f} GB at "
                f"{self.folder}, where {free / 1e9:,.0f} GB are free: bind a smaller MAX_LEN, or "
                "choose another folder with --data"
            )
        values = np.lib.format.open_memmap(path, "w+", dtype, shape)
        # Reserves the space, so that a full disk raises an error here: a write to the mapping would
        # kill the process.
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        lengths, labels = self._read(split, values)
        values.flush()
        np.save(part / "lengths.npy", lengths)
        np.save(part / "labels.npy", labels)
        disk.replace(part / _SUMS, json.dumps(_sums(part)))


def _remove_leftovers(folder: Path) -> None:
    """Removes what killed processes left while they mapped splits, unless a process maps one now.

    `write_once` removes them too, but only if the same split does not fit into memory again.
    """
    if not any(folder.glob(".mapped.*")):
        return
    with contextlib.suppress(OSError):  # a shared folder that cannot be written
        lock = disk.try_lock(folder / ".lock")
        if lock is not None:  # processes that map a split hold it
            with lock:
                for leftover in folder.glob(".mapped.*"):
                    disk.remove(leftover)


def _sums(folder: Path) -> dict[str, str]:
    """Returns the sha256 of each array of a mapped split."""
    return {path.name: file_sha256(path) for path in sorted(folder.glob("*.npy"))}


def write_once(folder: Path, exists: Callable[[], bool], write: Callable[[Path], None]) -> None:
    """Makes a folder whole or not at all, unless it `exists`.

    A second process waits for the first. Leftovers of a killed process are removed; a folder that
    it had put aside gets its name back.

    Args:
        folder: the folder to make; it is replaced if it is there but does not `exist`.
        exists: whether the folder is there and complete.
        write: fills an empty folder, which then takes the name `folder`.

    Raises:
        UserError: if the disk refuses to write.
    """
    if exists():
        return
    lock = folder.parent / ".lock"
    waiting = f"waiting for another process that prepares {folder.parent}"
    with disk.writable(folder, "--data"), disk.lock(lock, waiting):
        if exists():
            return
        for leftover in folder.parent.glob(f".{folder.name}.*"):
            if leftover.suffix == ".old" and not folder.exists():
                leftover.rename(folder)  # killed between the two renames of `disk.partial`
            else:
                disk.remove(leftover)
        if exists():
            return
        with disk.partial(folder) as part:
            part.mkdir()
            write(part)


def _digests(task: "Task", source: Path) -> list[tuple[str, Callable[[], str]]]:
    """Returns the quick and the thorough digest of a source."""
    return [
        (kind, functools.partial(digest, source, content=content, endings=task.endings))
        for kind, content in (("facts", False), ("content", True))
    ]


@contextlib.contextmanager
def unchanged(task: "Task", source: Path | None) -> Iterator[None]:
    """Raises a UserError if the source that the block reads has changed when it ends or fails."""

    def facts() -> Any:
        return source and digest(source, content=False, endings=task.endings)

    before, failed = facts(), None
    try:
        yield
    except Exception as error:  # perhaps because a second pass found other rows
        failed = error
    if facts() != before:
        changed = f"{source} changed while it was read: run the same command again"
        raise UserError(changed) from failed
    if failed is not None:
        raise failed


def make(part: Path, task: "Task", raw: "Raw", source: Path | None, url: str | None = None) -> None:
    """Writes a whole set, whose rows `raw` come from `source`, to the empty folder `part`.

    Args:
        part: the folder.
        task: the task of the rows.
        raw: the rows.
        source: the folder or file that they come from; None if they are generated.
        url: that of the source, see `Prepared.url`.

    Raises:
        UserError: if a split has no rows, a row is not as the task's class variables say, or the
            rows are not those of data/expected.json.
    """
    splits = _write(part, task, raw)
    _compare_with_expected(task, splits, generated=source is None)
    for name, content in raw.files.items():
        disk.replace(part / name, content)
    contents = {name: file_sha256(part / name) for name in raw.files}
    record = {
        "schema": 1,
        "task": task.name,
        "config": task.config,
        "version": task.version,
        "source": raw.source,
        **({"url": url} if url else {}),
        "origin": source and {kind: sha256() for kind, sha256 in _digests(task, source)},
        "details": dict(raw.details),
        **_layout(task),
        "splits": splits,
        "files": {path.name: path.stat().st_size for path in sorted(part.iterdir())},
        **({"contents": contents} if contents else {}),
        "fingerprint": combine(splits),
    }
    disk.replace(part / _FINGERPRINT, json.dumps(record, indent=1) + "\n")


def _layout(task: "Task") -> dict[str, Any]:
    """Returns the facts of a task without which its stored rows cannot be read, as JSON values."""
    return {
        "vocab_size": task.vocab_size,
        "num_inputs": task.num_inputs,
        "dtype": task.value_dtype.name,
    }


def again(task: "Task", data_dir: str | Path, source: str | Path | None) -> str:
    """Returns the command that prepares a set again."""
    words = ["data", "--task", task.name, "--dataset", task.config]
    words += ["--data", str(data_dir)] if str(data_dir) != "data" else []
    words += ["--source", str(source)] if source else []
    return terminal.command([*words, "--force"])


def open_set(task: "Task", folder: Path) -> Prepared:
    """Returns a set after comparing its fingerprint and file sizes; reads no record.

    Raises:
        UserError: if the set is not prepared, was prepared when the task had another vocabulary or
            number of texts, or a file does not have the size that was written.
    """
    record = read_fingerprint(folder)
    if record is None:
        raise UserError(
            f"{task.name}/{task.config} is not prepared in {folder}: run "
            f"`lra-fnet data --task {task.name} --dataset {task.config}` with the --data of the "
            "run, or name the folder that has it with --data"
        )
    for name, size in record["files"].items():
        path = folder / name
        actual = f"{path.stat().st_size} bytes" if path.exists() else "no such file"
        if actual != f"{size} bytes":
            raise UserError(
                f"{path}: expected {size} bytes, got {actual}: delete {folder} and prepare the set "
                f"again with `lra-fnet data --task {task.name}`"
            )
    try:
        task = task.settle(record.get("details", {}))
        fits = task.num_classes == len(record["splits"][task.splits[0]]["label_counts"])
    except (KeyError, TypeError):
        fits = False
    if not fits:
        raise UserError(
            f"{folder / _FINGERPRINT} is damaged: its details are not those of its rows: delete "
            f"{folder} and prepare the set again"
        )
    layout = _layout(task)
    written = {name: record[name] for name in layout if name in record}  # none in older sets
    if layout | written != layout:
        other = [name for name, value in written.items() if value != layout[name]]
        was, now = (
            ", ".join(f"{name} {facts[name]}" for name in other) for facts in (written, layout)
        )
        url = record.get("url")
        source = " and its --source" if task.needs_source and not url else ""
        raise UserError(
            f"{folder} was prepared for {was}, but the task {task.name} has {now}: prepare the set "
            f"again with `{again(task, folder.parents[2], url)}`{source}"
        )
    return Prepared(
        task,
        folder,
        record["source"],
        record.get("origin"),
        record["splits"],
        record["fingerprint"],
        record.get("details", {}).get("corpus"),
        record.get("url"),
    )


def written_at(prepared: Prepared) -> float:
    """Returns the time at which the set was complete, in seconds as in `os.stat`."""
    return (prepared.folder / _FINGERPRINT).stat().st_mtime


def verify(prepared: Prepared) -> None:
    """Reads every record and compares counts and sha256 with the fingerprint and expected.json.

    Raises:
        UserError: if a record cannot be read, or the rows are different.
    """
    task, folder = prepared.task, prepared.folder
    with Bar(f"verifying {task.name}/{task.config}", sum(prepared.rows.values())) as progress:
        for split, facts in prepared.splits.items():
            tally = Tally(task.num_classes)
            for texts, label in read(prepared, split):
                tally.add(texts, label)
                progress.step()
            if (actual := tally.summary()) != facts:
                raise UserError(
                    f"{folder}: split {split} holds other rows than were written (expected sha256 "
                    f"{facts['sha256'][:12]}..., got {actual['sha256'][:12]}...): delete "
                    f"the folder and prepare the set again with `lra-fnet data --task {task.name}`"
                )
    for name in (read_fingerprint(folder) or {}).get("contents", {}):
        read_file(prepared, name)
    _compare_with_expected(task, prepared.splits, generated=prepared.generated, warn=True)


def read_file(prepared: Prepared, name: str) -> bytes:
    """Returns the content of a file of a set that is not rows.

    Raises:
        UserError: it is not the file that was written.
    """
    path = prepared.folder / name
    with readable(path):
        content = path.read_bytes()
    written = (read_fingerprint(prepared.folder) or {}).get("contents", {})
    if hashlib.sha256(content).hexdigest() != written.get(name):
        raise UserError(
            f"{path} is not the file that was written: delete the folder and prepare the set again "
            f"with `lra-fnet data --task {prepared.task.name}`"
        )
    return content


def _compare_with_expected(
    task: "Task", splits: Mapping[str, Mapping[str, Any]], *, generated: bool, warn: bool = False
) -> None:
    """Compares rows with data/expected.json, if it lists this set and source.

    Generated rows must be the same. For published data, row and label counts must match; a
    different sha256 is only a warning, because a mirror may have fixed typos.
    """
    wanted = expected().get(task.name, {}).get(task.config)
    if wanted is None or (wanted.get("source") == "generator" and not generated):
        return
    required, remedy = ("rows", "label_counts"), f"get {task.remote or 'the source'} again"
    if generated:
        required += ("lengths", "sha256")
        remedy = "prepare it with the pinned versions of the libraries"
    for split, facts in wanted.get("splits", {}).items():
        for key, value in facts.items():
            actual = splits.get(split, {}).get(key)
            difference = (
                f"{task.name}/{task.config}, split {split}: {key} is {actual}, "
                f"data/expected.json says {value}"
            )
            if actual != value and key in required:
                raise UserError(
                    f"{difference}; results on these rows are not comparable: delete the set if it "
                    f"is there, and {remedy}"
                )
            if actual != value and key == "sha256" and warn:
                say(f"{difference}: rows and labels match in number, but the content differs")


class Tally:
    """Counts the rows of one split and hashes its content, in one pass over the rows.

    The hashed form of a row is its label (int32), then for each text its length in tokens (uint32)
    and its values (uint8); integers are little-endian. The files themselves are not hashed, because
    the order of keys inside a record is not fixed.
    """

    def __init__(self, num_classes: int):
        self._hash = hashlib.sha256()
        self._labels = np.zeros(num_classes, np.int64)
        self._lengths = array.array("I")
        self.rows = 0

    def add(self, texts: Texts, label: int) -> None:
        """Adds the next row."""
        self.rows += 1
        self._hash.update(int(label).to_bytes(4, "little", signed=True))
        self._labels[label] += 1
        for text in texts:
            self._hash.update(len(text).to_bytes(4, "little"))
            self._hash.update(text.tobytes())
            self._lengths.append(len(text))

    def summary(self) -> dict[str, Any]:
        """Returns rows, label counts, quantiles of lengths (tokens) and sha256, as JSON values."""
        lengths = np.asarray(self._lengths)
        quantiles = np.quantile(lengths, [*_QUANTILES.values()], method="inverted_cdf").tolist()
        mean = round(float(lengths.mean()), 2)
        return {
            "rows": self.rows,
            "label_counts": self._labels.tolist(),
            "lengths": {**dict(zip(_QUANTILES, quantiles, strict=True)), "mean": mean},
            "sha256": self._hash.hexdigest(),
        }


def combine(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the sha256 of the lines "<split> <sha256 of its content>", in the order of splits."""
    lines = [f"{split} {splits[split]['sha256']}\n" for split in splits]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _features(num_inputs: int) -> list[str]:
    return ["inputs"] if num_inputs == 1 else [f"inputs_{i + 1}" for i in range(num_inputs)]


def _write(folder: Path, task: "Task", raw: "Raw") -> dict[str, dict[str, Any]]:
    """Writes all splits to an empty folder, with few rows in memory at a time.

    Args:
        folder: folder for the files.
        task: the task of the rows; each of its splits must get a row.
        raw: the rows; within a split, the order on disk is theirs.

    Returns:
        The `Tally.summary` of each split.

    Raises:
        UserError: if a split has no rows, or a row is not as the task's class variables say.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_info import DatasetIdentity

    keys = _features(task.num_inputs)
    tallies = {split: Tally(task.num_classes) for split in task.splits}
    text = tfds.features.Tensor(
        shape=(None,), dtype=task.value_dtype, encoding=tfds.features.Encoding.BYTES
    )
    # TFDS would use a builder's module as the fourth value, but there is no builder.
    version = tfds.core.Version(task.version)
    identity = DatasetIdentity(f"lra_{task.name}", version, str(folder), "lra_fnet", task.config)
    info = tfds.core.DatasetInfo(
        builder=identity,
        features=tfds.features.FeaturesDict(
            {**dict.fromkeys(keys, text), "label": tfds.features.Scalar(np.int32)}
        ),
        disable_shuffling=True,  # keeps the task's own order
    )
    longest = task.num_inputs * task.configs[task.config]
    shard = max(_BATCH, _SHARD_BYTES // longest)
    writer = tfds.core.SequentialWriter(info, shard, file_format="array_record")
    writer.initialize_splits(list(task.splits))
    waiting: dict[str, list[dict[str, Any]]] = {split: [] for split in task.splits}
    held = 0  # bytes of the waiting rows
    with Bar(f"preparing {task.name}/{task.config}", raw.total) as progress:
        for split, (values, label) in raw.rows():
            texts = values if isinstance(values, tuple) else (values,)
            if split not in tallies:
                raise UserError(
                    f"{task.name}/{task.config}: expected a row of split {', '.join(tallies)}, got "
                    f"{split!r}: correct the task's raw"
                )
            _check_row(task, split, tallies[split].rows, texts, label)
            tallies[split].add(texts, label)
            progress.step()
            waiting[split].append({**dict(zip(keys, texts, strict=True)), "label": np.int32(label)})
            held += sum(text.nbytes for text in texts)
            # TFDS writes its metadata with each batch.
            if len(waiting[split]) == _BATCH or held > _BATCH_BYTES:
                writer.add_examples(waiting)
                waiting, held = {split: [] for split in task.splits}, 0
    for split in task.splits:
        if not tallies[split].rows:
            raise UserError(
                f"{task.name}/{task.config}: split {split} has no rows: add some to the source"
            )
    writer.add_examples(waiting)
    writer.close_all()
    return {split: tally.summary() for split, tally in tallies.items()}


def _check_row(task: "Task", split: str, key: int, texts: Texts, label: int) -> None:
    name = f"{task.name}/{task.config}, {split} row {key}"
    for text in texts:
        if not isinstance(text, np.ndarray):
            raise UserError(
                f"{name}: expected a NumPy array for each text, got {type(text).__name__}: correct "
                "the task's raw"
            )
    if not isinstance(label, int | np.integer) or isinstance(label, bool):
        raise UserError(
            f"{name}: expected an integer as the label, got {type(label).__name__}: correct the "
            "task's raw"
        )
    good = len(texts) == task.num_inputs and 0 <= label < task.num_classes
    for text in texts:
        good = good and text.dtype == task.value_dtype and text.ndim == 1 and len(text) > 0
        good = good and (not task.equal_lengths or len(text) == task.configs[task.config])
        good = good and text.max() < task.vocab_size - 1
    if not good:
        got = ", ".join(map(_described, texts))
        length = task.configs[task.config] if task.equal_lengths else "length > 0"
        raise UserError(
            f"{name}: expected {task.num_inputs} texts of values {task.value_dtype} [{length}] "
            f"up to vocab_size - 2 = {task.vocab_size - 2} and a label below {task.num_classes}, "
            f"got {got} and {label}: correct the task's raw"
        )


def _described(values: np.ndarray) -> str:
    """Returns dtype, shape and, of numbers, the largest value."""
    largest = f" up to {values.max(initial=0)}" if values.dtype.kind in "iuf" else ""
    return f"{values.dtype} {[*values.shape]}{largest}"


def _check_same(prepared: Prepared) -> None:
    """Checks that a folder still holds the set that was opened.

    Raises:
        UserError: it holds another one, which was made since then.
    """
    record = read_fingerprint(prepared.folder)
    if record is None or record["fingerprint"] != prepared.fingerprint:
        now = f"rows {record['fingerprint'][:8]}" if record else "no set"
        raise UserError(
            f"{prepared.folder} was made anew while it was in use (it held rows "
            f"{prepared.fingerprint[:8]}, now {now}): prepare the old rows again, or start a new "
            "run"
        )


def read(prepared: Prepared, split: str) -> Iterator[tuple[Texts, int]]:
    """Yields (texts, label) for every record of a split, in order.

    Raises:
        UserError: naming file and split, if a record cannot be read or rows are missing; if the
            folder holds another set than `prepared` by the first or the last row.
    """
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    # By name: if a package that TFDS needs is missing, only this raises, not `import`.
    from tensorflow_datasets import builder_from_directory
    from tensorflow_datasets.proto import tf_example_pb2

    _check_same(prepared)
    dtype = prepared.task.value_dtype
    parse = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    path = folder = prepared.folder
    rows, seen = prepared.rows[split], 0
    longest = prepared.splits[split]["lengths"]["max"] * dtype.itemsize * prepared.task.num_inputs
    batch = max(1, min(_BATCH, _BATCH_BYTES // longest))
    keys = _features(prepared.task.num_inputs)
    try:
        info: Any = builder_from_directory(folder).info
        for path in map(Path, info.splits[split].filepaths):
            with ArrayRecordDataSource([str(path)]) as source:
                for start in range(0, len(source), batch):
                    wanted = range(start, min(start + batch, len(source)))
                    for record in source.__getitems__(wanted):
                        # features.deserialize_example_np does the same six times slower
                        columns = parse(record).features.feature
                        texts = (columns[key].bytes_list.value[0] for key in keys)
                        label = columns["label"].int64_list.value[0]
                        seen += 1
                        yield tuple(np.frombuffer(text, dtype) for text in texts), label
        if seen != rows:
            raise ValueError("the files end here")
        _check_same(prepared)
    except UserError:
        raise
    except Exception as error:  # Riegeli, protobuf and TFDS all raise different types
        _check_same(prepared)
        raise UserError(
            f"{path}: split {split} cannot be read after {seen} of {rows} rows "
            f"({one_line(error, 100)}): delete {folder} and run the same command again"
        ) from error


def read_fingerprint(folder: Path) -> dict[str, Any] | None:
    """Returns the content of fingerprint.json, or None if there is no complete set.

    Raises:
        UserError: if the file cannot be read, or its parts do not agree.
    """
    record = disk.read_json(folder / _FINGERPRINT)
    if record is None:
        return None
    try:
        numbers = [
            [facts["rows"], *facts["label_counts"], *(facts["lengths"][key] for key in _QUANTILES)]
            for facts in record["splits"].values()
        ]
        np.array(numbers, float)
        counted = all(sum(x["label_counts"]) == x["rows"] for x in record["splits"].values())
        parts = record["files"], record.get("details", {}), record.get("origin") or {}
        complete = counted and "source" in record and all(isinstance(x, dict) for x in parts)
        if complete and record["fingerprint"] == combine(record["splits"]):
            return record
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise UserError(
        f"{folder / _FINGERPRINT} is damaged: its fingerprint is not that of its splits: delete "
        f"{folder} and prepare the set again"
    )


@functools.cache
def expected() -> dict[str, Any]:
    """Returns data/expected.json: task -> config -> facts of the set; {} if there is no such file.

    The file is in data/, next to gin/.
    """
    return disk.read_json(config.GIN_DIR.parent / "data/expected.json") or {}
