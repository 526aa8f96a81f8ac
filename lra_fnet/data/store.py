"""Rows on disk: a TFDS set of ArrayRecord files, and the fingerprint.json that describes it.

    <data_dir>/lra_<task>/<config>/<version>/
        dataset_info.json, features.json              by TFDS, which can read the folder itself
        lra_<task>-<split>.array_record-00000 ...     the rows, in the task's own order
        fingerprint.json                              rows, labels, lengths and sha256 of each split

The folder appears whole or not at all. Only parts of TFDS that work without TensorFlow are used.
"""

import array
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from lra_fnet import config
from lra_fnet.counts import Counts
from lra_fnet.data import sources
from lra_fnet.data.arrays import Arrays
from lra_fnet.errors import UserError, one_line
from lra_fnet.machine import disk, terminal
from lra_fnet.machine.memory import free_memory
from lra_fnet.machine.progress import Bar, say

SPLITS = ("train", "validation", "test")  # of most tasks
SEED = 0  # of generated rows
Texts = tuple[np.ndarray, ...]  # uint8 [length], one for each text of a row
Row = tuple[np.ndarray | Texts, int]  # values (one text) or a tuple of them (more), and the label
# What the rows look like: name, config, version, splits, num_inputs, num_classes, vocab_size,
# value_dtype, configs, max_len, equal_lengths. A `tasks.Task` has these.
Layout = Any

_BATCH = 1024  # rows per read or write, fewer if they are long
_BATCH_BYTES = 2**26  # of one read or write, about
_SHARD_BYTES = 2**30  # of tokens in one file; they are compressed on disk
_FINGERPRINT = "fingerprint.json"
_QUANTILES = {"min": 0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1}  # of lengths


@dataclass(frozen=True)
class Raw:
    """Rows on their way to the disk, and where they come from."""

    splits: Mapping[str, Iterable[Row]] | None = None  # each is read once, in order; or
    stream: Iterable[tuple[str, Row]] | None = None  # (split, row), splits in any order
    source: str = "generator"  # "generator", or the name of the source that the rows come from
    details: dict[str, Any] = dataclasses.field(default_factory=dict)  # seed, version ...
    total: int | None = None  # rows of all splits, for the progress bar
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)  # more files of the set

    @classmethod
    def consecutive(cls, rows: Iterator[Row], counts: Sequence[int], **facts: Any) -> Self:
        """Returns the first rows as train, the next as validation and the next as test.

        Args:
            rows: may go on without end.
            counts: rows of train, validation and test.
            **facts: other fields.
        """
        parts = {s: itertools.islice(rows, n) for s, n in zip(SPLITS, counts, strict=True)}
        return cls(parts, total=sum(counts), **facts)

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Yields (split, row) for all rows, once; an error of reading them is a UserError."""
        with sources.readable(self.source):
            if self.stream is not None:
                yield from self.stream
            for split, rows in (self.splits or {}).items():
                for row in rows:
                    yield split, row


@dataclass(frozen=True, repr=False)
class Prepared:
    """A task's rows on disk, as their fingerprint.json describes them."""

    task: Any  # a `tasks.Task`
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
        if url := sources.own_url(source, self.task.remote):
            return url == self.url
        if self.digests is None or sources.is_url(source) or not os.path.exists(source):
            return self.source == sources.url_name(source)
        path, endings, known = Path(source), self.task.endings, self.digests
        return any(known[kind] == sources.digest(path, kind, endings) for kind in sources.DIGESTS)

    def arrays(self, split: str) -> Arrays:
        """Returns one whole split; longer texts are cut at the end.

        A split whose values would take more than half of the free memory is decoded once to a file
        in the set's folder and mapped into memory.

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
        k, max_len, dtype = self.task.num_inputs, self.task.max_len, self.task.value_dtype
        shape = (self.rows[split], k, max_len)
        if math.prod(shape) * dtype.itemsize > free_memory() // 2:
            folder = self.folder / f"mapped.{split}.{max_len}"
            write_once(folder, folder.exists, functools.partial(self._map, split, shape))
            columns = [np.load(folder / f"{name}.npy", mmap_mode="c") for name in Arrays._fields]
            values, lengths, labels = columns
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
        say(f"{split} of {self.folder} does not fit into memory: decoding it to files there")
        path = part / "values.npy"
        values = np.lib.format.open_memmap(path, "w+", self.task.value_dtype, shape)
        # Reserves the space, so that a full disk raises an error here: a write to the mapping would
        # kill the process.
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        lengths, labels = self._read(split, values)
        values.flush()
        np.save(part / "lengths.npy", lengths)
        np.save(part / "labels.npy", labels)


def write_once(folder: Path, exists: Callable[[], bool], write: Callable[[Path], None]) -> None:
    """Makes a folder whole or not at all, unless it `exists`.

    A second process waits for the first. What a killed process left is removed, see `disk.partial`.

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
        with disk.partial(folder) as part:
            part.mkdir()
            write(part)


def make(part: Path, task: Layout, raw: Raw, source: Path | None, url: str | None = None) -> None:
    """Writes a whole set, whose rows `raw` come from `source`, to the empty folder `part`.

    Args:
        part: the folder.
        task: the task of the rows.
        raw: the rows.
        source: the folder or file that they come from; None if they are generated.
        url: that of the source, see `Prepared.url`.

    Raises:
        UserError: if a split has no rows, a row is not as the task's class variables say, the
            source changes meanwhile, or the rows are not those of data/expected.json.
    """
    before = source and [sources.digest(source, kind, task.endings) for kind in sources.DIGESTS]
    splits = _write(part, task, raw)
    if source and before and before[0] != sources.digest(source, "facts", task.endings):
        raise UserError(f"{source} changed while it was read: run the same command again")
    _compare_with_expected(task, splits, generated=source is None)
    for name, content in raw.files.items():
        disk.replace(part / name, content)
    contents = {name: disk.sha256(part / name) for name in raw.files}
    record = {
        "schema": 1,
        "task": task.name,
        "config": task.config,
        "version": task.version,
        "source": raw.source,
        **({"url": url} if url else {}),
        "origin": dict(zip(sources.DIGESTS, before, strict=True)) if before else None,
        "details": dict(raw.details),
        **_layout(task),
        "splits": splits,
        "files": {path.name: path.stat().st_size for path in sorted(part.iterdir())},
        **({"contents": contents} if contents else {}),
        "fingerprint": combine(splits),
    }
    disk.replace(part / _FINGERPRINT, json.dumps(record, indent=1) + "\n")


def _layout(task: Layout) -> dict[str, Any]:
    """Returns the facts of a task without which its stored rows cannot be read, as JSON values."""
    return {
        "vocab_size": task.vocab_size,
        "num_inputs": task.num_inputs,
        "dtype": task.value_dtype.name,
    }


def again(task: Layout, data_dir: str | Path, source: str | Path | None = None) -> str:
    """Returns the command that prepares a set again."""
    words = ["data", "--task", task.name, "--dataset", task.config]
    words += ["--data", str(data_dir)] if str(data_dir) != "data" else []
    words += ["--source", str(source)] if source else []
    return terminal.command([*words, "--force"])


def open_set(task: Layout, folder: Path) -> Prepared:
    """Returns a set after comparing its fingerprint and file sizes; reads no record.

    Raises:
        UserError: if the set is not prepared, was prepared when the task had another vocabulary or
            number of texts, or a file does not have the size that was written.
    """
    record = read_fingerprint(folder)
    if record is None:
        raise UserError(
            f"{task.name}/{task.config} is not prepared in {folder}: run `lra-fnet data --task "
            f"{task.name} --dataset {task.config}`, or name another folder with --data"
        )
    for name, size in record["files"].items():
        path = folder / name
        actual = path.stat().st_size if path.exists() else None
        if actual != size:
            raise UserError(
                f"{path}: expected {size} bytes, got {actual or 'no such file'}: delete {folder} "
                f"and prepare the set again with `lra-fnet data --task {task.name}`"
            )
    task = task.settle(record.get("details", {}))
    layout = _layout(task)
    written = {name: record.get(name, value) for name, value in layout.items()}
    if written != layout:
        raise UserError(
            f"{folder} was prepared for {written}, but the task {task.name} has {layout}: prepare "
            f"the set again with `{again(task, folder.parents[2], record.get('url'))}`"
        )
    same = {name: record[name] for name in ("source", "splits", "fingerprint")}
    corpus = record.get("details", {}).get("corpus")
    origin, url = record.get("origin"), record.get("url")
    return Prepared(task, folder, digests=origin, corpus=corpus, url=url, **same)


def verify(prepared: Prepared) -> None:
    """Reads every record and compares counts and sha256 with the fingerprint and expected.json.

    Raises:
        UserError: if a record cannot be read, or the rows are different.
    """
    task, folder = prepared.task, prepared.folder
    with Bar(f"verifying {task.name}/{task.config}", sum(prepared.rows.values())) as progress:
        for split in prepared.splits:
            for _ in read(prepared, split):
                progress.step()
    for name in (read_fingerprint(folder) or {}).get("contents", {}):
        read_file(prepared, name)
    _compare_with_expected(
        task, prepared.splits, generated=prepared.source == "generator", warn=True
    )


def read_file(prepared: Prepared, name: str) -> bytes:
    """Returns the content of a file of a set that is not rows.

    Raises:
        UserError: it is not the file that was written.
    """
    path = prepared.folder / name
    with sources.readable(path):
        content = path.read_bytes()
    written = (read_fingerprint(prepared.folder) or {}).get("contents", {})
    if hashlib.sha256(content).hexdigest() != written.get(name):
        command = again(prepared.task, prepared.folder.parents[2])
        raise UserError(f"{path} is not the file that was written: {command} makes the set anew")
    return content


def _compare_with_expected(
    task: Layout, splits: Mapping[str, Mapping[str, Any]], *, generated: bool, warn: bool = False
) -> None:
    """Compares rows with data/expected.json, if it lists this set and source.

    Generated rows must be the same. For published data, row and label counts must match; a
    different sha256 is only a warning, because a mirror may have fixed typos.
    """
    wanted = expected().get(task.name, {}).get(task.config, {})
    if wanted.get("source") == "generator" and not generated:
        return
    required = {"rows", "label_counts"} | ({"lengths", "sha256"} if generated else set())
    remedy = "the pinned versions of the libraries" if generated else (task.remote or "the source")
    for split, facts in wanted.get("splits", {}).items():
        for key, value in facts.items():
            actual = splits.get(split, {}).get(key)
            set_name = f"{task.name}/{task.config}, split {split}"
            line = f"{set_name}: {key} is {actual}, data/expected.json says {value}"
            if actual != value and key in required:
                raise UserError(f"{line}; results are not comparable: get {remedy} again")
            if actual != value and key == "sha256" and warn:
                say(f"{line}: rows and labels match in number, but the content differs")


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


def _write(folder: Path, task: Layout, raw: Raw) -> dict[str, dict[str, Any]]:
    """Writes all splits to an empty folder, with few rows in memory at a time.

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
            _check_row(task, split, texts, label)
            tallies[split].add(texts, label)
            progress.step()
            waiting[split].append({**dict(zip(keys, texts, strict=True)), "label": np.int32(label)})
            held += sum(text.nbytes for text in texts)
            # TFDS writes its metadata with each batch.
            if len(waiting[split]) == _BATCH or held > _BATCH_BYTES:
                writer.add_examples(waiting)
                waiting, held = {split: [] for split in task.splits}, 0
    for split, tally in tallies.items():
        if not tally.rows:
            raise UserError(
                f"{task.name}/{task.config}: split {split} has no rows: add some to the source"
            )
    writer.add_examples(waiting)
    writer.close_all()
    return {split: tally.summary() for split, tally in tallies.items()}


def _check_row(task: Layout, split: str, texts: Texts, label: int) -> None:
    """Raises a UserError if a row is not as the task's class variables say."""
    whole = task.configs[task.config]
    good = split in task.splits and len(texts) == task.num_inputs
    good = good and isinstance(label, int | np.integer) and 0 <= label < task.num_classes
    for text in texts:
        good = good and isinstance(text, np.ndarray) and text.dtype == task.value_dtype
        good = good and text.ndim == 1 and (len(text) == whole if task.equal_lengths else len(text))
        good = good and text.max() < task.vocab_size - 1
    if not good:
        got = ", ".join(f"{getattr(x, 'dtype', type(x).__name__)} {np.shape(x)}" for x in texts)
        length = whole if task.equal_lengths else "length > 0"
        raise UserError(
            f"{task.name}/{task.config}: expected rows of {', '.join(task.splits)} with "
            f"{task.num_inputs} texts of values {task.value_dtype} [{length}] up to vocab_size - 2 "
            f"= {task.vocab_size - 2} and a label below {task.num_classes}, got {split}, {got} and "
            f"{label!r}: correct the task's raw"
        )


def _check_same(prepared: Prepared) -> None:
    """Raises a UserError if a folder holds another set than when it was opened."""
    record = read_fingerprint(prepared.folder)
    if record is None or record["fingerprint"] != prepared.fingerprint:
        raise UserError(
            f"{prepared.folder} was made anew while rows {prepared.fingerprint[:8]} were in use"
        )


def read(prepared: Prepared, split: str) -> Iterator[tuple[Texts, int]]:
    """Yields (texts, label) for every record of a split, in order.

    Raises:
        UserError: naming file and split, if a record cannot be read, or the rows are not those that
            were written, since the folder holds another set than `prepared`, say.
    """
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    # By name: if a package that TFDS needs is missing, only this raises, not `import`.
    from tensorflow_datasets import builder_from_directory
    from tensorflow_datasets.proto import tf_example_pb2

    _check_same(prepared)
    dtype = prepared.task.value_dtype
    parse = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    path = folder = prepared.folder
    rows, tally = prepared.rows[split], Tally(prepared.task.num_classes)
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
                        row = tuple(np.frombuffer(text, dtype) for text in texts)
                        tally.add(row, label)
                        yield row, label
        if tally.summary() != prepared.splits[split]:
            raise ValueError("other rows than were written")
    except Exception as error:  # Riegeli, protobuf and TFDS all raise different types
        _check_same(prepared)
        raise UserError(
            f"{path}: split {split} cannot be read after {tally.rows} of {rows} rows "
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
        if record["files"] and record["fingerprint"] == combine(record["splits"]):
            return record
    except (KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"{folder / _FINGERPRINT} is damaged: delete the folder and prepare it again")


@functools.cache
def expected() -> dict[str, Any]:
    """Returns data/expected.json: task -> config -> facts of the set; {} if there is no such file.

    The file is in data/, next to gin/.
    """
    return disk.read_json(config.GIN_DIR.parent / "data/expected.json") or {}
