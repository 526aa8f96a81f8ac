"""result.json as a value: read once, checked once, and never indexed as a dictionary elsewhere."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lra_fnet import intervals
from lra_fnet.errors import UserError
from lra_fnet.machine import disk

SCHEMA = 1
STATES = ("complete", "OOM", "diverged")
Split = Literal["validation", "test"]
Checkpoint = Literal["best", "last"]


@dataclasses.dataclass(frozen=True)
class Counts:
    """Rows answered correctly, of all rows; never a percentage."""

    correct: int
    count: int

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / self.count


@dataclasses.dataclass(frozen=True)
class Score(Counts):
    """One evaluation of a split."""

    step: int  # optimizer steps of the checkpoint
    loss: float  # cross-entropy summed over the rows, nats
    correct_bits: str | None = None  # which rows are right, see `intervals.encode`


@dataclasses.dataclass(frozen=True)
class Device:
    """The machine that a run was trained on."""

    name: str
    platform: str
    count: int
    cores: int
    processes: int = 1

    def __str__(self) -> str:
        return f"{self.count} x {self.name} ({self.platform}, {self.cores} cores)"


@dataclasses.dataclass(frozen=True)
class Record:
    """What a run was, and how it ended. Runs of one model and variant differ in their seed only."""

    state: str  # one of STATES
    task: str
    model: str
    preset: str
    overrides: tuple[str, ...]
    variant: str | None  # name of the overrides in the run folder
    seed: int
    floor: Counts  # of always answering the most frequent test label
    mixer_length: int | None  # tokens, CLS included
    uses_mask: bool
    validation_is_test: bool
    scores: Mapping[tuple[Split, Checkpoint], Score]  # empty unless complete
    train: Counts | None
    device: Device
    versions: Mapping[str, str]
    commit: str | None
    dirty: bool | None
    data_sha256: str
    config: str  # the operative gin text
    parameters: int | None = None
    parameters_sha256: str | None = None
    microbatch: int | None = None
    steps_per_second: float | None = None
    wall_seconds: float | None = None
    peak_bytes: int | None = None
    dataset: str | None = None
    data_source: str | None = None
    step: int | None = None  # at which a run failed
    folder: str = ""  # <name of root>/<preset>/<task>/<name>/seed<k>, wherever the root lies
    path: Path = Path()  # where it lies

    @property
    def complete(self) -> bool:
        """Whether it was trained to its last step."""
        return self.state == "complete"

    @property
    def tested(self) -> bool:
        """Whether it has something to show: a test accuracy, or a state instead of one."""
        return not self.complete or ("test", "best") in self.scores

    @property
    def name(self) -> str:
        """model, or model+variant: its folder's name."""
        return self.model + (f"+{self.variant}" if self.variant else "")

    @property
    def label(self) -> str:
        """preset/task/name: what its seeds share."""
        return f"{self.preset}/{self.task}/{self.name}"

    @property
    def provenance(self) -> str:
        """Commit, device and data in one line."""
        data = self.data_sha256[:12]
        if self.dataset:
            data = f"{self.dataset} from {self.data_source}, {data}"
        return f"commit {self.revision}; {self.device}; data {data}"

    @property
    def revision(self) -> str:
        """The commit's first 12 digits, and whether files differed from it."""
        return (self.commit or "unknown")[:12] + (" (dirty)" if self.dirty else "")

    def score(self, split: Split, checkpoint: Checkpoint = "best") -> Score | None:
        """Returns the sums of an evaluation, None if the split was not read."""
        return self.scores.get((split, checkpoint))

    def accuracy(self, split: Split, checkpoint: Checkpoint = "best") -> float | None:
        """Returns the accuracy in percent, None if the split was not read."""
        score = self.score(split, checkpoint)
        return None if score is None else score.accuracy

    def right(self, split: Split, checkpoint: Checkpoint = "best") -> np.ndarray | None:
        """Returns which rows are right, bool [n]; None if that was not kept."""
        score = self.score(split, checkpoint)
        return None if score is None else intervals.bits(dataclasses.asdict(score))


def parse(value: Any, parts: Sequence[str] = (), path: Path | None = None) -> Record:
    """Checks the object of a result.json and returns it as a value.

    Args:
      value: the object.
      parts: the last four names of its folder (preset, task, name, seed<k>), which must be the
        run's; empty: not checked.
      path: the folder.

    Raises:
      ValueError: the object is not such a result; the text says what is wrong with it.
    """
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got a {type(value).__name__}")
    if value.get("schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}, got {_short(value.get('schema'))}")
    state = _field(value, "state", str)
    if state not in STATES:
        raise ValueError(f"expected a state of {', '.join(STATES)}, got {_short(state)}")
    complete = state == "complete"
    needed = () if complete else (type(None),)
    overrides = _field(value, "overrides", list)
    if not all(isinstance(binding, str) for binding in overrides):
        raise ValueError(f"'overrides' should be strings, are {_short(overrides)}")
    device = _field(value, "device", dict)
    record = Record(
        state=state,
        overrides=tuple(overrides),
        floor=_counts(_field(value, "floor", dict), "floor"),
        scores=_scores(value) if complete else {},
        train=_counts(_field(value, "train", dict), "train") if complete else None,
        device=Device(
            name=_field(device, "name", str, where="device: "),
            platform=_field(device, "platform", str, where="device: "),
            count=_field(device, "count", int, where="device: "),
            cores=_field(device, "cores", int, where="device: "),
            processes=device.get("processes", 1),
        ),
        parameters=_field(value, "parameters", int, *needed, default=None if needed else ...),
        **{name: _field(value, name, *types) for name, types in _FIELDS.items()},
        **{name: _field(value, name, *types, default=None) for name, types in _OPTIONAL.items()},
        folder="/".join(path.resolve().parts[-5:]) if path else "",
        path=path or Path(),
    )
    if record.overrides and record.variant is None:
        raise ValueError("a run with overrides needs a variant")
    said = (record.preset, record.task, record.name, f"seed{record.seed}")
    if parts and said != tuple(parts):
        raise ValueError(f"it says {'/'.join(said)}, its folder is {'/'.join(parts)}")
    return record


_NONE, _NUMBER = type(None), (int, float)
_FIELDS: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "model": (str,),
    "preset": (str,),
    "variant": (str, _NONE),
    "seed": (int,),
    "mixer_length": (int, _NONE),
    "uses_mask": (bool,),
    "validation_is_test": (bool,),
    "versions": (dict,),
    "commit": (str, _NONE),
    "dirty": (bool, _NONE),
    "data_sha256": (str,),
    "config": (str,),
}
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "parameters_sha256": (str, _NONE),
    "microbatch": (int, _NONE),
    "steps_per_second": (*_NUMBER, _NONE),
    "wall_seconds": (*_NUMBER, _NONE),
    "peak_bytes": (int, _NONE),
    "dataset": (str, _NONE),
    "data_source": (str, _NONE),
    "step": (int, _NONE),
}


def _short(value: Any) -> str:
    return json.dumps(value)[:40]


def _field(value: Mapping, key: str, *types: type, where: str = "", default: Any = ...) -> Any:
    """Returns a key's value after comparing its type; `default` where the key may be missing."""
    if key not in value:
        if default is ...:
            raise ValueError(f"{where}{key!r} is missing")
        return default
    wrong_bool = isinstance(value[key], bool) and bool not in types  # Python's bool is an int
    if wrong_bool or not isinstance(value[key], types):
        names = " or ".join("null" if t is _NONE else t.__name__ for t in types)
        raise ValueError(f"{where}{key!r} should be {names}, is {_short(value[key])}")
    return value[key]


def _counts(value: Any, where: str) -> Counts:
    if not isinstance(value, dict):
        raise ValueError(f"{where} should hold correct and count, is {_short(value)}")
    correct, count = (_field(value, key, int, where=f"{where}: ") for key in ("correct", "count"))
    if not 0 <= correct <= count or count == 0:
        raise ValueError(f"{where}: {correct} correct of {count} rows is impossible")
    return Counts(correct, count)


def _scores(value: dict) -> dict[tuple[Split, Checkpoint], Score]:
    """The evaluations of a complete run; the test split may have been left closed (null)."""
    splits: dict[Split, dict | None] = {
        "validation": _field(value, "validation", dict),
        "test": _field(value, "test", dict, _NONE),
    }
    checkpoints: tuple[Checkpoint, ...] = ("best", "last")
    scores: dict[tuple[Split, Checkpoint], Score] = {}
    for split, held in splits.items():
        for checkpoint in checkpoints if held is not None else ():
            where = f"{split} {checkpoint}"
            sums: Any = (held or {}).get(checkpoint)
            counts = _counts(sums, where)
            step = _field(sums, "step", int, where=f"{where}: ")
            loss = _field(sums, "loss", *_NUMBER, where=f"{where}: ", default=float("nan"))
            score = Score(counts.correct, counts.count, step, loss, sums.get("correct_bits"))
            if split == "test" and counts.count != value["floor"]["count"]:
                raise ValueError(
                    f"{where}: {counts.count} rows, the floor has {value['floor']['count']}"
                )
            try:
                intervals.bits(dataclasses.asdict(score))
            except ValueError as error:
                raise ValueError(f"{where}: 'correct_bits' does not fit: {error}") from None
            scores[split, checkpoint] = score
    return scores


def read(folder: Path) -> Record | None:
    """Returns the record of a run folder, or None if it has no result.json.

    Raises:
      UserError: the file is damaged, or is the result of another run.
    """
    file = folder / "result.json"
    value = disk.read_json(file)
    if value is None:
        return None
    try:
        return parse(value, folder.resolve().parts[-4:], folder)
    except ValueError as error:
        raise UserError(
            f"{file}: {error}; move its folder away, or run that run again with --force"
        ) from None


def collect(roots: Sequence[str | Path]) -> list[Record]:
    """Returns every result under <root>/<preset>/<task>/<model>[+<variant>]/seed<k>/, by path.

    A run that lies under the same path in two roots counts once, with the earlier root's result:
    with the default roots, runs/ wins over results/. Folders with other names (hidden ones, runs
    moved aside) are not read; a root that does not exist holds no runs.

    Args:
      roots: folders, in the order of precedence.

    Raises:
      UserError: a file that is not a result of this schema, holds impossible counts, or lies in
        the folder of another run.
    """
    found: dict[tuple[str, ...], Record] = {}
    for root in map(Path, roots):
        for file in sorted(root.glob("*/*/*/*/result.json")):
            parts = file.relative_to(root).parts[:-1]
            regular = re.fullmatch(r"seed\d+", parts[-1]) and not any(p[0] == "." for p in parts)
            if regular and parts not in found and (record := read(file.parent)) is not None:
                found[parts] = record
    return sorted(found.values(), key=lambda record: (record.label, record.seed))
