"""The frozen value that says what a model must know of a task, and the way to its rows on disk.

A task of your own is one small subclass, in a module of your own:

    @gin.configurable
    @dataclasses.dataclass(frozen=True)
    class Parity(Task):
        name = "parity"
        num_classes = 2
        vocab_size = 3                      # padding, "0", "1"
        configs = {"full": 64}              # data sets, and the length that texts are cut at

        def raw(self, source, jobs):
            return Raw(splits={"train": rows(0, 1000), "validation": ..., "test": ...})

where a row is `(values, label)`: values uint8 [length], label int. Two texts a row
(`num_inputs = 2`) are `((values_1, values_2), label)`. A task of images subclasses `PixelTask`.
"""

import abc
import dataclasses
import itertools
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.machine.memory import free_memory
from lra_fnet.machine.progress import Bar, say
from lra_fnet.tasks import sources, store

if TYPE_CHECKING:
    import jax

SPLITS = store.SPLITS  # "train", "validation", "test"
REGISTRY: dict[str, type["Task"]] = {}  # every task whose module has been imported, by name


class Arrays(NamedTuple):
    """One split in memory. A value v stands for the token id v + 1; id 0 is padding.

    Positions from `lengths` on are filled with value 0, which is a token as well: only `lengths`
    tells padding.
    """

    values: np.ndarray  # uint8 [n, L]; [n, 2, L] for two texts a row
    lengths: np.ndarray  # int32 [n]; [n, 2] for two texts a row
    labels: np.ndarray  # int32 [n]


@dataclasses.dataclass(frozen=True)
class Raw:
    """Rows on their way to the disk, and where they come from."""

    splits: Mapping[str, Iterable[store.Row]] | None = None  # read once, in their order; or
    stream: Iterable[tuple[str, store.Row]] | None = None  # (split, row), splits in any order
    source: str = "generator"  # "generator", or the name of what the rows were read from
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # seed, version ...
    total: int | None = None  # rows of all splits, for the progress bar

    def rows(self) -> Iterator[tuple[str, store.Row]]:
        """(split, row) of all rows, once."""
        if self.stream is not None:
            yield from self.stream
        for split, rows in (self.splits or {}).items():
            for row in rows:
                yield split, row


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A task's rows on disk, as its fingerprint.json describes them."""

    task: "Task"
    folder: Path
    source: str  # "generator", or the name of what the rows were read from
    rows: Mapping[str, int]
    label_counts: Mapping[str, tuple[int, ...]]  # [num_classes] of each split
    length_quantiles: Mapping[str, Mapping[str, float]]  # tokens: min, p10, p50, p90, max, mean
    sha256: Mapping[str, str]  # of each split's content (`records.Tally`)
    fingerprint: str  # one sha256 over all splits

    @property
    def floor(self) -> tuple[int, int]:
        """Rows right when always answering the most frequent test label, and all test rows."""
        return max(self.label_counts["test"]), self.rows["test"]

    def arrays(self, split: str) -> Arrays:
        """One split whole; longer texts are cut at the end.

        A split whose values would take more than half of the free memory is decoded once to files
        inside the set's folder and mapped into memory from there: rows then come from the disk,
        or from the system's cache of it, as they are asked for.

        Returns:
            values uint8 [n, max_len] ([n, 2, max_len]), lengths int32 [n] ([n, 2]), labels int32
            [n], in the order on disk.

        Raises:
            UserError: if a record cannot be read (file and split named), there is no such split, or
                the disk has no room for a split that memory does not hold.
        """
        if split not in self.rows:
            raise UserError(f"unknown split {split!r}: one of {', '.join(self.rows)}")
        shape = (self.rows[split], self.task.num_inputs, self.task.max_len)
        if math.prod(shape) > free_memory() // 2:
            values, lengths, labels = self._mapped(split, shape)
        else:
            values = np.zeros(shape, np.uint8)
            lengths, labels = self._read(split, values)
        if self.task.num_inputs == 1:
            values, lengths = values[:, 0], lengths[:, 0]
        return Arrays(values, lengths, labels)

    def _read(self, split: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fills values [n, k, max_len], which are zeros; returns lengths [n, k], labels [n]."""
        n, k, max_len = values.shape
        lengths = np.zeros((n, k), np.int32)
        labels = np.zeros(n, np.int32)
        for i, (texts, label) in enumerate(store.read(self.folder, split, k, n)):
            labels[i] = label
            for j, text in enumerate(texts):
                lengths[i, j] = length = min(len(text), max_len)
                values[i, j, :length] = text[:length]
        return lengths, labels

    def _mapped(self, split: str, shape: tuple[int, int, int]) -> list[np.ndarray]:
        """Values, lengths and labels as files, made if they are not there."""
        folder = self.folder / f"mapped.{split}.{self.task.max_len}"
        names = ("values", "lengths", "labels")
        if not folder.exists():
            with disk.writable(folder, "--data"), store.lock(self.folder.parent):
                if not folder.exists():
                    say(f"{split} does not fit into memory: decoding it to {folder}")
                    partial = folder.with_name(f"incomplete.{folder.name}")
                    shutil.rmtree(partial, ignore_errors=True)
                    partial.mkdir()
                    try:
                        with (partial / "values.npy").open("wb") as file:  # a full disk says so
                            os.posix_fallocate(file.fileno(), 0, math.prod(shape) + 4096)
                        path = partial / "values.npy"
                        values = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
                        lengths, labels = self._read(split, values)
                        values.flush()
                        np.save(partial / "lengths.npy", lengths)
                        np.save(partial / "labels.npy", labels)
                        partial.rename(folder)
                    finally:
                        shutil.rmtree(partial, ignore_errors=True)
        values, *rest = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in names)
        return [values, *(np.array(column) for column in rest)]


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """What a model must know of a task. Token ids are written down, never built from data.

    Subclasses are frozen dataclasses that set the class variables and define `raw`; a subclass is
    registered by its `name` when it is defined.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # in tables; the name if empty
    num_classes: ClassVar[int]
    vocab_size: ClassVar[int]  # ids 1 .. vocab_size - 1 are tokens, 0 is padding
    num_inputs: ClassVar[int] = 1  # texts a row
    configs: ClassVar[Mapping[str, int]]  # data sets, and the tokens that texts are cut at
    version: ClassVar[str] = "1.0.0"  # raise it whenever the rows change
    label_names: ClassVar[tuple[str, ...]] = ()  # of each class, where they have names
    also: ClassVar[tuple[sources.Remote, ...]] = ()  # other files of the publisher for SOURCE
    licence: ClassVar[str] = "not stated"  # of the rows, for the table of `lra-fnet describe`
    one_line: ClassVar[bool] = False  # whether a file of `encode`'s inputs holds one a line
    value_is: ClassVar[str] = "as the class of the task says"  # what a stored value stands for

    config: str  # one of `configs`
    max_len: int  # tokens kept of each text, CLS not counted; longer texts are cut at the end

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            return
        known = REGISTRY.setdefault(cls.name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"task name {cls.name!r} is taken by {known.__module__}.{known.__qualname__}; "
                f"give {cls.__module__}.{cls.__qualname__} another name"
            )
        REGISTRY[cls.name] = cls  # a reloaded module replaces its own task

    def __post_init__(self):
        if self.config not in self.configs:
            known = ", ".join(self.configs)
            raise UserError(f"unknown data set {self.config!r} of {self.name}: one of {known}")
        if not isinstance(self.max_len, int) or self.max_len < 1:
            raise UserError(f"{self.name}: max_len must be at least 1 token, got {self.max_len!r}")

    @property
    def splits(self) -> tuple[str, str, str]:
        """Names of what is trained on, what the model is chosen on, and what is reported."""
        return SPLITS

    @property
    def validation_is_test(self) -> bool:
        """Whether the model is chosen on the test rows, as LRA's code does for Text."""
        return self.splits[1] == "validation_is_test"

    @property
    def zero_is_padding(self) -> bool:
        """Whether a stored value is its own id and 0 is padding (`PixelTask.black_is_padding`)."""
        return False

    def tokens(self, values, lengths) -> "tuple[jax.Array, jax.Array]":
        """Token ids and padding mask; call it inside a jitted function.

        The id is the value + 1 at real positions and 0 behind them, so a stored row costs one byte
        a token. With `zero_is_padding` the id is the value, and id 0 is padding anywhere.

        Args:
            values: uint8 [..., L].
            lengths: int32 [...].

        Returns:
            ids int32 [..., L]; mask bool [..., L], True at real tokens.
        """
        import jax  # late: preparing and reading rows needs none of it
        import jax.numpy as jnp

        positions = jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
        mask = positions < lengths[..., None]
        shift = 0 if self.zero_is_padding else 1
        ids = jnp.where(mask, values.astype(jnp.int32) + shift, 0)
        return ids, ids > 0

    @property
    def num_ids(self) -> int:
        """Rows of an embedding table: ids 0 .. num_ids - 1."""
        return self.vocab_size - self.zero_is_padding

    @property
    def remote(self) -> sources.Remote | None:
        """The file that is downloaded where no source is given; None if there is none."""
        return None

    @abc.abstractmethod
    def raw(self, source: Path | None, jobs: int) -> Raw:
        """The rows of this data set, made or read.

        Args:
            source: the raw files, a folder or a file; a download is here already, its size and
                sha256 compared with the publisher's. None: to be generated.
            jobs: processor cores to use. The rows must not depend on it.

        Raises:
            UserError: if `source` does not hold what is needed; also while rows are read.
        """

    def encode(self, content: bytes) -> np.ndarray:
        """Values uint8 [length] of one raw text, as its row would hold them: here its bytes.

        A task whose tokens are no bytes defines it, so that trained models can be asked.

        Raises:
            ValueError: if it is no text of this task; says what was expected.
            UserError: if the task does not define it.
        """
        if self.vocab_size != 257:
            raise UserError(
                f"task {self.name} does not say how a raw input becomes tokens: define "
                f"{type(self).__name__}.encode"
            )
        if not content:
            raise ValueError("expected a text, found none")
        return np.frombuffer(content, np.uint8)

    @property
    def class_names(self) -> tuple[str, ...]:
        """`label_names`, or else the labels as words."""
        return self.label_names or tuple(map(str, range(self.num_classes)))

    def illustrate(self, prepared: Prepared) -> Path | None:
        """Draws some rows for the eye, beside the set; None if there is nothing to draw."""
        return None

    def folder(self, data_dir: str | Path) -> Path:
        """Where this data set lives below `data_dir`."""
        return Path(data_dir) / f"lra_{self.name}" / self.config / self.version

    def prepare(
        self, data_dir: str | Path, source: str | Path | None = None, jobs: int | None = None
    ) -> Prepared:
        """Makes the set if it is not there, showing progress on stderr; else opens it.

        A set that is not finished (the process was killed, the disk was full) is never taken for a
        finished one: fingerprint.json is written last. A second process waits for the first.

        Args:
            data_dir: folder of all prepared sets; downloads go to its `downloads`.
            source: the user's raw files: a folder, a file or a URL; None takes the set that is
                there, whatever it was made from, or else generates or downloads it.
            jobs: processor cores to use, all by default; the rows are the same with any number.

        Raises:
            UserError: if the folder cannot be written, the disk is full, a download fails, a raw
                file is bad, the set that is there is damaged or was generated though a `source` is
                given, or the rows are not those of data/expected.json.
        """
        if jobs is not None and jobs < 1:
            raise UserError(f"jobs must be at least 1, got {jobs}")
        folder = self.folder(data_dir)
        if store.read_fingerprint(folder) is None:
            with disk.writable(folder, "--data"), store.lock(folder.parent):
                if store.read_fingerprint(folder) is None:
                    found = self._find(Path(data_dir) / "downloads", source)
                    self._make(folder, found, jobs or _cores())
        prepared = self.open(data_dir)
        if source is not None and prepared.source == "generator":
            raise UserError(
                f"{folder} already holds generated rows, not those of {source}: "
                f"delete {folder} and run the same command again to read {source}"
            )
        if source is not None and prepared.source != _name(source):
            say(f"{folder} is there already, made from {prepared.source}: it is taken as it is")
        return prepared

    def open(self, data_dir: str | Path) -> Prepared:
        """The prepared set, after comparing file sizes and fingerprint; reads no record.

        Raises:
            UserError: if the set is not prepared, or its files are not those that were written.
        """
        folder = self.folder(data_dir)
        record = store.read_fingerprint(folder)
        if record is None:
            raise UserError(
                f"{self.name}/{self.config} is not prepared in {folder}: "
                f"run `make data TASK={self.name}` (with the PRESET and DATA of the run)"
            )
        store.check_files(folder, record)
        splits = record["splits"]
        return Prepared(
            task=self,
            folder=folder,
            source=record["source"],
            rows={s: splits[s]["rows"] for s in splits},
            label_counts={s: tuple(splits[s]["label_counts"]) for s in splits},
            length_quantiles={s: splits[s]["lengths"] for s in splits},
            sha256={s: splits[s]["sha256"] for s in splits},
            fingerprint=record["fingerprint"],
        )

    def verify(self, data_dir: str | Path) -> Prepared:
        """Reads every record and recomputes counts and sha256 of each split.

        Raises:
            UserError: as `open`; or if a record cannot be read, or what was read is not what
                fingerprint.json or data/expected.json says.
        """
        prepared = self.open(data_dir)
        record = store.read_fingerprint(prepared.folder)
        assert record is not None
        title = f"verifying {self.name}/{self.config}"
        with Bar(title, sum(prepared.rows.values())) as progress:
            for split, rows in prepared.rows.items():
                tally = store.Tally(self.num_classes)
                for texts, label in store.read(prepared.folder, split, self.num_inputs, rows):
                    tally.add(texts, label)
                    progress.step()
                if (found := tally.summary()) != record["splits"][split]:
                    raise UserError(
                        f"{prepared.folder}: split {split} holds other rows than were written "
                        f"(sha256 {found['sha256'][:12]}..., expected "
                        f"{prepared.sha256[split][:12]}...): delete the folder and run "
                        f"`make data TASK={self.name}`"
                    )
        self._compare_with_expected(record, tell=True)
        return prepared

    def _find(self, downloads: Path, source: str | Path | None) -> Path | None:
        """The raw files on this machine, downloaded if need be; None to generate the rows."""
        known = {remote.name: remote for remote in (self.remote, *self.also) if remote}
        if source is None:
            if self.remote is None:
                return None
            remote = self.remote
        elif sources.is_url(source):
            remote = sources.Remote(str(source))
            if remote.name in known:  # a mirror
                remote = known[remote.name]._replace(url=str(source))
        else:
            path = Path(source)
            if not path.exists():
                raise UserError(f"SOURCE={source}: no such file or folder")
            if path.is_file() and path.name in known:
                sources.check(path, known[path.name])
            return path
        try:
            with store.lock(downloads):
                return sources.fetch(remote, downloads)
        except UserError as error:
            raise UserError(
                f"{self.name}/{self.config}: {error}; or get it by another way and run "
                f"`make data TASK={self.name} SOURCE=path/to/{remote.name}`"
            ) from None

    def _make(self, folder: Path, source: Path | None, jobs: int) -> None:
        """Writes the whole set to `folder`; the caller holds the lock."""
        raw = self.raw(source, jobs)
        for leftover in (folder, *folder.parent.glob("incomplete.*")):  # of a killed preparation
            if leftover.exists():
                shutil.rmtree(leftover)
        partial = folder.parent / f"incomplete.{folder.name}"
        partial.mkdir()
        try:
            record = self._write(partial, raw)
            self._compare_with_expected(record)
            store.write_fingerprint(partial, record)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write(self, folder: Path, raw: Raw) -> dict[str, Any]:
        title = f"preparing {self.name}/{self.config}"
        with Bar(title, raw.total) as progress:
            splits = store.write(folder, self, raw.rows(), progress)
        return {
            "schema": 1,
            "task": self.name,
            "config": self.config,
            "version": self.version,
            "source": raw.source,
            "details": dict(raw.details),
            "splits": splits,
            "files": {p.name: p.stat().st_size for p in sorted(folder.iterdir())},
            "fingerprint": store.combine(splits),
        }

    def _compare_with_expected(self, record: dict[str, Any], tell: bool = False) -> None:
        """Compares rows with data/expected.json, where it lists this set and source.

        Generated rows must be the same. Of a publisher's, rows and labels must; that their content
        is another than it was is only told, since a copy may have been mended.
        """
        expected = store.expected().get(self.name, {}).get(self.config)
        if expected is None or expected.get("source", record["source"]) != record["source"]:
            return
        generated = record["source"] == "generator"
        for split, want in expected["splits"].items():
            got = record["splits"].get(split, {})
            for key, value in want.items():
                if got.get(key) == value:
                    continue
                differs = (
                    f"{self.name}/{self.config}, split {split}: {key} is {got.get(key)}, "
                    f"data/expected.json says {value}"
                )
                if generated or key in ("rows", "label_counts"):
                    again = (
                        "prepare it with the pinned versions of the libraries"
                        if generated
                        else f"get {self.remote or record['source']} again"
                    )
                    raise UserError(
                        f"{differs}; results on these rows cannot be compared: delete the set and "
                        f"{again}"
                    )
                if tell and key == "sha256":
                    say(f"{differs}: the same number of rows and labels, but not the same content")


@dataclasses.dataclass(frozen=True)
class PixelTask(Task):
    """A task of square gray images: a pixel is a token, row by row, 0 black to 255 white.

    Token ids are value + 1, so that black is no padding. Long-Range Arena's code takes the value
    itself as the id and 0 as padding, so that its models do not see black pixels:
    `black_is_padding` does that.
    """

    vocab_size = 257
    value_is = "the gray value of a pixel, row by row, 0 black to 255 white"
    pixel_mean: ClassVar[float]  # of the training values of the default set, for real-valued input
    pixel_sd: ClassVar[float]

    black_is_padding: bool = False

    @property
    def zero_is_padding(self) -> bool:
        """See `black_is_padding`."""
        return self.black_is_padding

    def encode(self, content: bytes) -> np.ndarray:
        """Gray pixels of a PNG or JPEG image that has the data set's size."""
        from lra_fnet.tasks import pixels

        side = math.isqrt(self.configs[self.config])
        return np.asarray(pixels.decode(content, side).convert("L")).reshape(-1)

    def illustrate(self, prepared: Prepared) -> Path | None:
        """Writes contact_sheet.png: the first 32 training images, each with its label."""
        from lra_fnet.tasks import sheet

        count = min(32, prepared.rows[self.splits[0]])
        images, titles = [], []
        for (values,), label in itertools.islice(
            store.read(prepared.folder, self.splits[0], 1, prepared.rows[self.splits[0]]), count
        ):
            side = math.isqrt(len(values))
            images.append(values.reshape(side, side))
            titles.append(self.class_names[label])
        path = prepared.folder.parent / "contact_sheet.png"
        with disk.writable(path, "--data"):
            sheet.write(path, np.stack(images), titles)
        return path


def _cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _name(source: str | Path) -> str:
    """The last part of a path or URL."""
    return sources.Remote(str(source)).name
