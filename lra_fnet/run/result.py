"""Reads and writes result.json; other modules see only its values."""

import dataclasses
import functools
import hashlib
import json
import math
import os
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lra_fnet import config, counts
from lra_fnet.baselines import masked, shallow
from lra_fnet.baselines.shallow import Shallow
from lra_fnet.counts import Counts
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, typed_json

TEST_LOG = "test_log.jsonl"  # in the folder of all runs: each reading of a test split
State = Literal["complete", "OOM", "diverged"]
Split = Literal["validation", "test"]
Checkpoint = Literal["best", "last"]
CHECKPOINTS: tuple[Checkpoint, ...] = typing.get_args(Checkpoint)
# Of a task, model, preset or variant: a part of a folder's path.
NAME = re.compile(r"\w[\w.+-]{0,254}")


@dataclasses.dataclass(frozen=True)
class Score(Counts):
    """One evaluation of a split."""

    step: int  # optimizer steps of the checkpoint
    loss: float = float("nan")  # summed over the rows or masked tokens, see `objective.Sums`
    correct_bits: str | None = dataclasses.field(default=None, repr=False)  # `counts.encode`
    constant: bool | None = None  # whether every row got the same answer; older results: None
    variation: float | None = None  # of the logits, see `score.variation`; older results: None
    confusion: tuple[tuple[int, ...], ...] | None = None  # rows by label and answer, of test alone
    order_loss: float | None = None  # sentence order, summed over the rows: `objective.Pretrain`
    order_correct: int | None = None
    rows: int | None = None

    def __post_init__(self):
        super().__post_init__()
        _ = self.right  # raises if the bits do not fit
        if self.confusion is not None:
            table = np.asarray(self.confusion)
            if (table.sum(), table.trace()) != (self.count, self.correct):
                raise ValueError("confusion: its rows are not the count, or not the correct ones")

    @property
    def recall(self) -> dict[int, float]:
        """The accuracy in percent of each class that has rows; {} if that was not recorded."""
        rows = {label: row for label, row in enumerate(self.confusion or ()) if any(row)}
        return {label: 100 * row[label] / sum(row) for label, row in rows.items()}

    @property
    def mean_loss(self) -> float:
        """The mean loss, with that of sentence order; the checkpoints of pre-training minimise it.

        Of a result without losses, not a number.
        """
        order = self.order_loss / self.rows if self.order_loss is not None and self.rows else 0.0
        return self.loss / max(self.count, 1) + order

    @functools.cached_property
    def right(self) -> np.ndarray | None:
        """Which rows are right, bool [count]; None if that was not recorded."""
        return counts.bits(vars(self))


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The scores of one split at both checkpoints of a run."""

    best: Score
    last: Score


@dataclasses.dataclass(frozen=True)
class Device:
    """The machine that a run was trained on."""

    name: str
    platform: str
    count: int
    cores: int

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        return f"{self.count} x {self.name} ({self.platform}, {cores})"


@dataclasses.dataclass(frozen=True)
class Process:
    """The code and the machine of a process that trained a run or scored it."""

    device: Device
    versions: dict[str, str]
    commit: str | None
    dirty: bool | None

    def __str__(self) -> str:
        return f"{self.revision} on {self.device}"

    @property
    def revision(self) -> str:
        """The commit's first 12 digits, and whether files differed from it."""
        return (self.commit or "unknown")[:12] + (" (dirty)" if self.dirty else "")


@dataclasses.dataclass(frozen=True)
class Init:
    """The run whose encoder a run began with, and what it cost."""

    run: str  # preset/task/model[@denoise][+variant]/seed<k>
    objective: str  # gin text: settings of `objective.Denoising`, or the DATASET of the labels
    rate: float  # share of the tokens that were hidden; 0 with labels
    step: int  # of its checkpoint, the best on validation
    steps: int  # of its training and of those before it
    wall_seconds: float | None  # of all these
    sha256: str  # of the encoder's parameters

    @property
    def task(self) -> str:
        """The task that it was trained on."""
        return self.run.split("/")[1]

    @property
    def variant(self) -> str:
        """Its variant; "" without one."""
        return self.run.split("/")[2].partition("+")[2]

    @property
    def setup(self) -> str:
        """The run's names, steps and settings, all but its seed."""
        names = self.run.rpartition("/")[0]
        return f"{names}, {self.steps:,} steps, {' '.join(self.objective.split())}"


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Record(Process):
    """What a run was and how it ended. Runs of one model and variant differ only in their seed.

    Its process is the one that finished it.
    """

    schema: Literal[1]
    state: State
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
    validation: Evaluation | None  # None unless complete
    test: Evaluation | None  # None if that split was not read
    train: Counts | None
    data_sha256: str
    config: str  # the operative gin text
    shallow: Shallow | None = None  # the best shallow baseline, if `lra-fnet data` computed it
    parameters: int | None = None
    parameters_sha256: str | None = None
    steps_per_second: float | None = None
    wall_seconds: float | None = None
    peak_bytes: int | None = None
    dataset: str | None = None
    data_source: str | None = None
    step: int | None = None  # at which a run failed
    collapsed: int | None = None  # step from which its answer did not depend on the input
    closed: bool = False  # a failed run was not to be scored on test, such as a trial of a sweep
    denoise: bool = False  # pre-training: counts and losses are of masked tokens, and no test
    init: Init | None = None  # the pre-trained run that it began from
    code: dict[str, str] = dataclasses.field(default_factory=dict)  # the user's: `config.code_of`
    resolved: dict[str, Any] = dataclasses.field(default_factory=dict)  # measured choices
    earlier: tuple[Process, ...] = ()  # processes before it, if code or machine changed since
    scored_by: Process | None = None  # read the test split later, with other code or elsewhere
    sha256: str | None = None  # of the other fields, see `seal`; older results have none
    folder: str = ""  # <name of root>/<preset>/<task>/<name>/seed<k>, wherever the root is
    path: Path = Path()  # of the folder
    raw: dict[str, Any] = dataclasses.field(default_factory=dict)  # result.json

    def __post_init__(self):
        for text in filter(None, (self.task, self.model, self.preset, self.variant)):
            if not NAME.fullmatch(text):
                raise ValueError(f"no name of a folder: {text!r}")
        if self.complete and None in (self.validation, self.train, self.parameters):
            raise ValueError("validation, train or parameters is missing")
        if self.overrides and self.variant is None:
            raise ValueError("a run with overrides needs a variant")
        for checkpoint in CHECKPOINTS:
            chosen, test = (self.score(split, checkpoint) for split in ("validation", "test"))
            if chosen and test and chosen.step != test.step:
                raise ValueError(f"{checkpoint}: step {chosen.step}, on test {test.step}")
            if test and test.count != self.floor.count:
                raise ValueError(f"{checkpoint}: {test.count} test rows, floor {self.floor.count}")

    def __repr__(self):
        return f"Record({self.label}/seed{self.seed}, {self.state})"

    @property
    def complete(self) -> bool:
        """Whether it was trained to its last step, or until it collapsed."""
        return self.state == "complete"

    @property
    def tested(self) -> bool:
        """Whether it has something to show: a test accuracy, or a state instead of one."""
        return not self.denoise and (self.test is not None or not (self.complete or self.closed))

    @property
    def baseline(self) -> Shallow | None:
        """The best shallow baseline: recorded with the run, or else that of data/expected.json.

        It is of masked pieces in pre-training, of labels otherwise.
        """
        kind = shallow.kind(denoise=self.denoise)
        recorded = [self.shallow] if self.shallow and self._fits(self.shallow) else []
        return next((one for one in recorded + self.baselines if one.of == kind), None)

    @property
    def baselines(self) -> list[Shallow]:
        """All shallow baselines of the run's data and length in data/expected.json.

        Without those of masked pieces if the run hides others than they do.
        """
        length = self.setting("MAX_LEN")
        known = isinstance(length, int)
        found = shallow.known(self.task, self.data_sha256, length) if known else []
        return [rule for rule in found if self._fits(rule)]

    def _fits(self, rule: Shallow) -> bool:
        """Returns whether a baseline predicts what the run does."""
        hides = self.setting("Denoising.rate"), self.setting("Denoising.replacement")
        return not (self.denoise and rule.of == shallow.HIDDEN) or hides == masked.RULES

    @property
    def name(self) -> str:
        """The name of its folder: model, or model+variant; see `folder_name`."""
        return folder_name(self.model, self.variant, denoise=self.denoise)

    @property
    def steps(self) -> int:
        """Optimizer steps of the training, without those of the run that it began from."""
        score = self.score("validation", "last")
        return score.step if score else self.step or 0

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the training and of the run that it began from."""
        return self.steps + (self.init.steps if self.init else 0)

    @property
    def total_seconds(self) -> float | None:
        """Of the training and of the run that it began from; None unless both are known."""
        before = self.init.wall_seconds if self.init else 0
        return None if self.wall_seconds is None or before is None else self.wall_seconds + before

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the user's own rows, by label; () of other tasks."""
        names = next((self.setting(name) for name in self.bound if name.endswith(".labels")), None)
        return tuple(x if x.isprintable() else ascii(x) for x in map(str, names or ()))

    @property
    def label(self) -> str:
        """preset/task/name: what its seeds share."""
        return f"{self.preset}/{self.task}/{self.name}"

    @property
    def trained_on(self) -> str:
        """The devices that trained it, each once: its times and speed are over all of them."""
        return ", then ".join(dict.fromkeys(str(one.device) for one in (*self.earlier, self)))

    def score(self, split: Split, checkpoint: Checkpoint = "best") -> Score | None:
        """Returns the sums of an evaluation, or None if the split was not read."""
        evaluation = getattr(self, split)
        return evaluation and getattr(evaluation, checkpoint)

    def accuracy(self, split: Split, checkpoint: Checkpoint = "best") -> float | None:
        """Returns the accuracy in percent, or None if the split was not read."""
        score = self.score(split, checkpoint)
        return score and score.accuracy

    def right(self, split: Split, checkpoint: Checkpoint = "best") -> np.ndarray | None:
        """Returns which rows are right, bool [n], or None if that was not recorded."""
        score = self.score(split, checkpoint)
        return score and score.right

    @property
    def untrained(self) -> bool:
        """Whether its answer did not depend on the input, so that it learned nothing.

        All test rows got the same answer or, if no more are right than with the most frequent
        label, it says that it collapsed. Older results do not say so, but have the loss of a
        constant answer, ln 2 with two labels.
        """
        score, last = self.score("test"), self.score("validation", "last")
        if score is None or last is None or score.constant:
            return bool(score and score.constant)
        old = last.variation is None and abs(last.mean_loss - math.log(2)) < 1e-4
        return score.interval[0] <= self.floor.accuracy and (self.collapsed is not None or old)

    def setting(self, name: str) -> Any:
        """Returns what the config binds a name to, if that is a Python literal; otherwise None."""
        try:
            return config.literal(self.bound[name])
        except (KeyError, ValueError):
            return None

    @functools.cached_property
    def bound(self) -> dict[str, str]:
        """Every setting that the run read, as gin text, by name."""
        return config.values(self.config)


def folder_name(model: str, variant: str | None, *, denoise: bool) -> str:
    """Returns the name of a run's folder: model, "@denoise" in pre-training, +variant."""
    return model + "@denoise" * denoise + (f"+{variant}" if variant else "")


def folder_parts(run: Any) -> tuple[str, str, str, str]:
    """Returns the last four names of a run's folder, of its `job.Job` or `Record`."""
    name = folder_name(run.model, run.variant, denoise=run.denoise)
    return run.preset, run.task, name, f"seed{run.seed}"


def place(folder: Path, names: tuple[str, ...]) -> tuple[Path, bool]:
    """Returns the absolute path of a folder, and whether it ends in these names.

    That is the path as it was given or, if only that one ends in them, the path without links.
    """
    paths = [Path(os.path.abspath(folder)), folder.resolve()]
    fitting = [path for path in paths if names and path.parts[-len(names) :] == names]
    return (fitting or paths)[0], bool(fitting)


def parse(value: dict[str, Any], path: Path | None = None, *, moved: bool = True) -> Record:
    """Checks the object of a result.json and returns it as a value.

    Args:
      value: the object.
      path: the folder.
      moved: accepts a folder whose last four names are not the run's (preset, task, name, seed<k>).

    Raises:
      ValueError: the object is not a result; the text says what is wrong with it.
    """
    record = typed_json.build(Record, value, path=path or Path(), raw=value)
    needs_hash = "lra_fnet" in record.versions  # the version that began to write hashes
    if (needs_hash or record.sha256) and record.sha256 != seal(value)["sha256"]:
        raise ValueError("its sha256 belongs to other content, so it was changed after the run")
    if path is None:
        return record
    names = folder_parts(record)
    full, fits = place(path, names)
    if not (moved or fits):
        raise ValueError(f"it says {'/'.join(names)}, its folder is {'/'.join(full.parts[-4:])}")
    return dataclasses.replace(record, folder="/".join(full.parts[-5:]))


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """Returns the object of a result.json with the sha256 of its other fields."""
    rest = {name: item for name, item in value.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}


NOT_IMPORTED = "not imported"


def code_differences(
    code: Mapping[str, str], text: str, imports: Sequence[str]
) -> list[config.Difference]:
    """Returns the user's files that a run had with other contents, or that only one side has.

    Files that are named otherwise but have equal contents do not count.

    Args:
      code: the run's, as in `Record.code`.
      text: the operative config of the run.
      imports: the user's modules, already imported.
    """
    now = config.code_of(config.used_imports(imports, text))
    same = {*code.values()} & {*now.values()}
    return [
        config.Difference(
            f"code of {name}", code.get(name, "not recorded"), now.get(name, NOT_IMPORTED)
        )
        for name in sorted(code.keys() | now.keys())
        if code.get(name) != now.get(name) and not same & {code.get(name), now.get(name)}
    ]


def differences(
    held: Any, text: str, fingerprint: str | None, imports: Sequence[str]
) -> list[config.Difference]:
    """Returns what differs between a run and what it would be today: settings, data and code.

    Args:
      held: the run's `Record` or `job.Begun`.
      text: today's operative config.
      fingerprint: of the prepared data; None if there is none to compare with.
      imports: see `code_differences`.
    """
    found = config.differing(held.config, text)
    if fingerprint not in (None, held.data_sha256):
        found.append(config.Difference("data", f"{held.data_sha256}"[:8], fingerprint[:8]))
    return found + code_differences(held.code, held.config, imports)


def read(folder: Path, *, moved: bool = False) -> Record | None:
    """Returns the record of a run folder, or None if it has no result.json.

    Args:
      folder: the run folder.
      moved: accepts a folder whose path does not name the run.

    Raises:
      UserError: the file is damaged, or is the result of another run.
    """
    file = folder / "result.json"
    value = disk.read_json(file)
    if value is None:
        return None
    try:
        return parse(value, folder, moved=moved)
    except ValueError as error:
        raise UserError(
            f"{file}: {error}; restore it, move its folder away, or train the run again with "
            "--force"
        ) from None


def write(folder: Path, value: dict[str, Any]) -> Record:
    """Writes the object of a result.json, sealed, after the check that every reader makes.

    Raises:
      UserError: the disk refuses.
      ValueError: the object is not a result.
    """
    value = json.loads(json.dumps(seal(value)))
    record = parse(value, path=folder)
    disk.write_json(folder / "result.json", value)
    return record


def collect(roots: Sequence[str | Path], label: str = "*/*/*") -> tuple[list[Record], list[str]]:
    """Returns every result under <root>/<preset>/<task>/<model>[+<variant>]/seed<k>/.

    A run that has the same path in two roots counts once, with the earlier root's result: with the
    default roots, runs/ wins over results/. A root that does not exist holds no runs.

    Args:
      roots: folders, in the order of precedence.
      label: preset/task/name, in which an asterisk is any text.

    Returns:
      The records, sorted by label and seed; and a line about each file that is left out because it
      is damaged, holds impossible counts, or lies in the folder of another run.
    """
    records: dict[tuple[str, ...], Record] = {}
    problems = []
    for root in map(Path, roots):
        for file in sorted(root.glob(f"{label}/*/result.json")):
            parts = file.relative_to(root).parts[:-1]
            hidden = any(part[0] == "." for part in parts)  # as those of runs moved aside
            if hidden or parts in records or not re.fullmatch(r"seed\d+", parts[-1]):
                continue
            try:
                if (found := read(file.parent)) is not None:
                    records[parts] = found
            except UserError as error:
                problems.append(str(error))
    return sorted(records.values(), key=lambda record: (record.label, record.seed)), problems
