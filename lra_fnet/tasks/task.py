"""The frozen value that says what a model must know of a task, and the way to its rows on disk.

A task of your own is one small subclass, in a module of your own:

    @gin.configurable
    @dataclasses.dataclass(frozen=True)
    class Parity(Task):
        name = "parity"
        num_classes = 2
        vocab_size = 3                      # padding, "0", "1"
        configs = {"full": 64}              # data sets, and the longest text of each in tokens

        def raw(self, source, jobs):
            return Raw(splits={"train": rows(0, 1000), "validation": ..., "test": ...})

where a row is `(values, label)`: values uint8 [length], label int. Two texts a row
(`num_inputs = 2`) are `((values_1, values_2), label)`.
"""

import abc
import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.progress import Bar
from lra_fnet.tasks import records

SPLITS = records.SPLITS  # "train", "validation", "test": the order in which rows are made
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

    splits: Mapping[str, Iterable[records.Row]]  # read once, in the order of SPLITS
    source: str = "generator"  # "generator", or the name of what the rows were read from
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # seed, version ...
    total: int | None = None  # rows of all splits, for the progress bar


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
        """Reads one split whole; longer texts are cut at the end.

        Returns:
            values uint8 [n, max_len] ([n, 2, max_len]), lengths int32 [n] ([n, 2]), labels int32
            [n], in the order on disk.

        Raises:
            UserError: if a record cannot be read (file and split named), or there is no such split.
        """
        if split not in self.rows:
            raise UserError(f"unknown split {split!r}: one of {', '.join(self.rows)}")
        n, k, max_len = self.rows[split], self.task.num_inputs, self.task.max_len
        values = np.zeros((n, k, max_len), np.uint8)
        lengths = np.zeros((n, k), np.int32)
        labels = np.zeros(n, np.int32)
        for i, (texts, label) in enumerate(records.read(self.folder, split, k, n)):
            labels[i] = label
            for j, text in enumerate(texts):
                lengths[i, j] = length = min(len(text), max_len)
                values[i, j, :length] = text[:length]
        if k == 1:
            return Arrays(values[:, 0], lengths[:, 0], labels)
        return Arrays(values, lengths, labels)


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """What a model must know of a task. Token ids are written down, never built from data.

    Subclasses are frozen dataclasses that set the class variables and define `raw`; a subclass is
    registered by its `name` when it is defined.
    """

    name: ClassVar[str]
    num_classes: ClassVar[int]
    vocab_size: ClassVar[int]  # ids 1 .. vocab_size - 1 are tokens, 0 is padding
    num_inputs: ClassVar[int] = 1  # texts a row
    configs: ClassVar[Mapping[str, int]]  # data sets, and the longest text of each in tokens
    version: ClassVar[str] = "1.0.0"  # raise it whenever the rows change

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

    @abc.abstractmethod
    def raw(self, source: Path | None, jobs: int) -> Raw:
        """The rows of this data set, made or read.

        Args:
            source: folder of the user's raw files; None to generate or fetch them.
            jobs: processor cores to use. The rows must not depend on it.

        Raises:
            UserError: if `source` does not hold what is needed; also while rows are read.
        """

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
            data_dir: folder of all prepared sets.
            source: folder of the user's raw files; None takes the set that is there, whatever it
                was made from, or else generates it.
            jobs: processor cores to use, all by default; the rows are the same with any number.

        Raises:
            UserError: if the folder cannot be written, the disk is full, a raw file is bad, the set
                that is there is damaged or was made from something else than `source`, or the
                generated rows are not those of data/expected.json.
        """
        if jobs is not None and jobs < 1:
            raise UserError(f"jobs must be at least 1, got {jobs}")
        folder = self.folder(data_dir)
        if records.read_fingerprint(folder) is None:
            with records.write_errors(folder), records.lock(folder.parent):
                if records.read_fingerprint(folder) is None:
                    self._make(folder, None if source is None else Path(source), jobs or _cores())
        prepared = self.open(data_dir)
        if source is not None and prepared.source == "generator":
            raise UserError(
                f"{folder} already holds generated rows, not those of {source}: "
                f"delete {folder} and run the same command again to read {source}"
            )
        return prepared

    def open(self, data_dir: str | Path) -> Prepared:
        """The prepared set, after comparing file sizes and fingerprint; reads no record.

        Raises:
            UserError: if the set is not prepared, or its files are not those that were written.
        """
        folder = self.folder(data_dir)
        record = records.read_fingerprint(folder)
        if record is None:
            raise UserError(
                f"{self.name}/{self.config} is not prepared in {folder}: "
                f"run `make data TASK={self.name}` (with the PRESET and DATA of the run)"
            )
        records.check_files(folder, record)
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
                fingerprint.json says or, for generated rows, not what data/expected.json says.
        """
        prepared = self.open(data_dir)
        record = records.read_fingerprint(prepared.folder)
        assert record is not None
        title = f"verifying {self.name}/{self.config}"
        with Bar(title, sum(prepared.rows.values())) as progress:
            for split, rows in prepared.rows.items():
                tally = records.Tally(self.num_classes)
                for texts, label in records.read(prepared.folder, split, self.num_inputs, rows):
                    tally.add(texts, label)
                    progress.step()
                if (found := tally.summary()) != record["splits"][split]:
                    raise UserError(
                        f"{prepared.folder}: split {split} holds other rows than were written "
                        f"(sha256 {found['sha256'][:12]}..., expected "
                        f"{prepared.sha256[split][:12]}...): delete the folder and run "
                        f"`make data TASK={self.name}`"
                    )
        self._compare_with_expected(record)
        return prepared

    def _make(self, folder: Path, source: Path | None, jobs: int) -> None:
        """Writes the whole set below `folder`; the caller holds the lock."""
        raw = self.raw(source, jobs)
        for leftover in (folder, *folder.parent.glob("incomplete.*")):  # of a killed preparation
            if leftover.exists():
                shutil.rmtree(leftover)
        title = f"preparing {self.name}/{self.config}"
        with Bar(title, raw.total) as progress:
            splits = records.write(folder, self, raw.splits, progress)
        record = {
            "schema": 1,
            "task": self.name,
            "config": self.config,
            "version": self.version,
            "source": raw.source,
            "details": dict(raw.details),
            "splits": splits,
            "files": {p.name: p.stat().st_size for p in sorted(folder.iterdir())},
            "fingerprint": records.combine(splits),
        }
        try:
            self._compare_with_expected(record)
        except UserError:
            shutil.rmtree(folder)
            raise
        records.write_fingerprint(folder, record)

    def _compare_with_expected(self, record: dict[str, Any]) -> None:
        """Generated rows must be those of data/expected.json, where it lists this set."""
        expected = records.expected().get(self.name, {}).get(self.config)
        if expected is None or record["source"] != "generator":
            return
        for split, want in expected["splits"].items():
            got = record["splits"].get(split)
            for key, value in want.items():
                if got is None or got[key] != value:
                    raise UserError(
                        f"{self.name}/{self.config}, split {split}: {key} is "
                        f"{got and got[key]}, data/expected.json says {value}; results on these "
                        f"rows cannot be compared: delete the set and prepare it with the pinned "
                        f"versions of the libraries"
                    )


def _cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
