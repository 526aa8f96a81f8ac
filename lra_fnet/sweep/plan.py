"""A sweep's definition: tasks, models, seeds and axes, from gin, the command line or sweep.json."""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import itertools
import math
import os
import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gin

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, terminal, typed_json
from lra_fnet.run import job as jobs
from lra_fnet.run import provenance
from lra_fnet.run.job import Job
from lra_fnet.settings import at_least, check_settings
from lra_fnet.sweep import SAMPLERS
from lra_fnet.tasks import Task

SCHEMA = 1
LARGEST = 2**53  # the ends of a range, up to which a float64 holds every whole number
MOST_RUNS = 100_000  # of a sweep: all of them are listed before the first one begins
SHARED = ("imports", "gin_dirs", "data", "source")  # fields of a job that sweep.json stores


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Sweep:
    """Every model on every task, at every point of the axes, with every seed.

    An axis is the name of a binding with a list of values or, for the samplers random and tpe, a
    range {"low": 1e-4, "high": 1e-2, "log": True}. Without axes the trials are the runs of the
    accuracy table, and they read the test split as those runs do.
    """

    tasks: tuple[str, ...] = ()
    models: tuple[str, ...] = ("transformer", "linear", "fnet", "performer")
    preset: str = "paper"
    seeds: int = 1  # seeds 0 to seeds - 1 of every point
    axes: dict[str, Any] = dataclasses.field(default_factory=dict)
    overrides: tuple[str, ...] = ()  # bindings of every trial
    sampler: str = "grid"
    trials: int = 0  # points for each task and model, with the samplers random and tpe
    prune: bool = False  # stop a point whose first seed's best is below the earlier points' median
    name: str = ""  # start of the name of the sweep's folder
    # The trials are runs of `lra-fnet pretrain`, compared by their loss on masked tokens.
    pretrain: bool = False
    # Trials begin from this pre-trained run. "auto": each from the run of `lra-fnet pretrain` with
    # its task, model, preset and seed, and the bindings of every trial.
    init: str = ""

    def checked_types(self) -> "Sweep":
        """Returns this sweep; raises a UserError if a field has the wrong type."""
        check_settings(self)
        for field in ("tasks", "models", "overrides"):
            names = getattr(self, field)
            if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
                raise UserError(f"Sweep.{field} expects a list of strings, got {names!r}")
        if not isinstance(self.axes, dict) or not all(isinstance(n, str) for n in self.axes):
            raise UserError(
                'Sweep.axes expects {"Name.parameter": [value, ...]}, got '
                f"{reprlib.repr(self.axes)}"
            )
        return self

    def checked(self) -> "Sweep":
        """Returns this sweep with its lists as tuples and its ranges complete.

        Raises:
          UserError: a field has the wrong type, or two fields contradict each other.
        """
        self.checked_types()
        at_least("Sweep.seeds", self.seeds, 1, suggest=3)
        at_least("Sweep.trials", self.trials, 0, suggest=32)
        axes = {name: _axis(name, values) for name, values in self.axes.items()}
        ranges = [name for name, values in axes.items() if isinstance(values, dict)]
        is_grid, is_search = self.sampler == "grid", axes and self.trials
        needs = "needs --sampler random or tpe"
        mistakes = {
            f"--sampler expects {', '.join(SAMPLERS)}, got {self.sampler!r}": (
                self.sampler not in SAMPLERS
            ),
            "a sweep needs --task and --models, or --sweep FILE": not (self.tasks and self.models),
            f"the range of {', '.join(ranges)} {needs}": is_grid and ranges,
            f"--trials {needs}: a grid has all points": is_grid and self.trials,
            f"--sampler {self.sampler} needs axes (--grid, --range) and --trials": (
                not is_grid and not is_search
            ),
            "--init is for trials of lra-fnet train: leave out --pretrain": (
                self.init and self.pretrain
            ),
            "--prune needs axes (--grid, --range)": self.prune and not axes,
            "--prune compares points at the same step, so all need the same steps and batch: leave "
            "it out, or Run.num_steps and Run.batch_size": (
                self.prune and {"Run.num_steps", "Run.batch_size"} & {*map(config.short, axes)}
            ),
        }
        for text, applies in mistakes.items():
            if applies:
                raise UserError(text)
        points = math.prod(map(len, axes.values())) if is_grid else self.trials
        runs = len(set(self.tasks)) * len(set(self.models)) * points * self.seeds
        if runs > MOST_RUNS:
            raise UserError(
                f"a sweep has at most {MOST_RUNS:,} runs, this one {runs:,}: lower --seeds, "
                "--trials or the number of values"
            )
        return dataclasses.replace(
            self,
            tasks=tuple(dict.fromkeys(self.tasks)),
            models=tuple(dict.fromkeys(self.models)),
            overrides=tuple(self.overrides),
            axes=axes,
            init=self.init if self.init in ("", "auto") else os.path.abspath(self.init),
        )

    def identity(self) -> dict[str, Any]:
        """Returns the fields that define the sweep; the number of trials may grow."""
        fields = dataclasses.asdict(self) | {"axes": repr(self.axes)}
        del fields["trials"], fields["name"]
        if not self.pretrain:  # older sweeps do not have it
            del fields["pretrain"]
        if not self.init:  # older sweeps do not have it
            del fields["init"]
        return fields


def folder_name(sweep: Sweep, name: str | None) -> str:
    """Returns `name`, or else readable words and 8 hex digits of the sweep's identity.

    Raises:
      UserError: `name` cannot be the name of a folder.
    """
    if name:
        return str(jobs.variant((), name))
    axes = [axis.rpartition(".")[2] for axis in sweep.axes]
    words = [sweep.name] if sweep.name else [*sweep.tasks, *axes]
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join([*words, sweep.preset]))[:50].strip("-.")
    digest = hashlib.sha256(repr(sorted(sweep.identity().items())).encode()).hexdigest()[:8]
    return f"{slug}-{digest}"


@config.alone()
def read(file: Path | None, axes: dict[str, Any], overrides: Sequence[str], **given) -> Sweep:
    """Reads a gin file and adds the values of the command line.

    Args:
      file: binds the parameters of Sweep and nothing else; None uses the defaults.
      axes: more axes; one of the same setting replaces the file's.
      overrides: more bindings for every trial.
      **given: fields of Sweep that replace the file's; None keeps the file's.

    Raises:
      UserError: Sweep does not read one of the file's bindings, an axis has a single value too, or
        see Sweep.checked.
    """
    if file is not None:
        config.load([file])
    sweep = Sweep()
    if file is not None and (unread := config.unread_bindings()):
        raise UserError(f"{file}: a sweep does not read {', '.join(unread)}")
    fields = {name: value for name, value in given.items() if value is not None}
    sweep = sweep.checked_types()
    replaced = {*map(config.short, axes)}
    kept = {name: of for name, of in sweep.axes.items() if config.short(name) not in replaced}
    fields |= {"axes": kept | axes, "overrides": (*sweep.overrides, *overrides)}
    bound = {config.short(config.split(text)[0]) for text in fields["overrides"]}
    if both := [name for name in fields["axes"] if config.short(name) in bound]:
        raise UserError(f"{both[0]} is an axis and has a single value too: leave one of them out")
    return dataclasses.replace(sweep, **fields).checked()


def axes(grids: Sequence[str], ranges: Sequence[str]) -> dict[str, Any]:
    """Parses the axes of the command line: see `axis`.

    Raises:
      UserError: also if an axis is given twice.
    """
    found: dict[str, Any] = {}
    for option, texts in {"grid": grids, "range": ranges}.items():
        for text in texts:
            name, values = axis(option, text)
            if config.short(name) in map(config.short, found):
                raise UserError(f"the axis {name} is given twice: keep one --grid or --range of it")
            found[name] = values
    return found


def axis(option: str, text: str) -> tuple[str, list | dict[str, Any]]:
    """Returns the name and the values of an axis of the command line.

    >>> axis("grid", "Run.batch_size=[16, 32]")
    ('Run.batch_size', [16, 32])
    >>> axis("range", 'Optimizer.learning_rate=[1e-4, 1e-2, "log"]')
    ('Optimizer.learning_rate', {'low': 0.0001, 'high': 0.01, 'log': True})

    Args:
      option: "grid", or "range": two whole numbers make a range of whole numbers.
      text: the option's value.

    Raises:
      UserError: the text is not a name and a list of this form.
    """
    name, _, values = text.partition("=")
    with contextlib.suppress(ValueError):
        match option, config.literal(values):
            case "grid", [first, *rest]:
                return name.strip(), [first, *rest]
            case "range", [low, high, *log] if log in ([], ["log"]):
                return name.strip(), {"low": low, "high": high, "log": bool(log)}
    form = {"grid": "[value, ...]", "range": '[low, high] or [low, high, "log"]'}[option]
    bare = re.search(r"[\[,]\s*[A-Za-z]", values)
    cure = f""": keep texts quoted, as in --{option} '{name}=[..., "text"]'""" if bare else ""
    raise UserError(f"--{option} expects Name.parameter={form}, got {text!r}{cure}")


def _axis(name: str, values) -> list | dict:
    """Checks an axis; returns a list of values, or a range with all three fields."""
    match values:
        case [_, *_]:
            return list(values)
        case {"low": low, "high": high, **more} if more.keys() <= {"log"} and {
            type(low),
            type(high),
        } <= {int, float}:
            log = bool(more.get("log"))
            got = f"got [{low!r:.40}, {high!r:.40}" + (', "log"]' if log else "]")
            if not low < high:
                cure = "swap them" if low > high else "give one value with --set"
                raise UserError(f"the range of {name} expects LOW < HIGH, {got}: {cure}")
            if log and low <= 0:
                raise UserError(
                    f'the range of {name} expects LOW > 0 with "log", {got}: raise it, or leave '
                    '"log" out'
                )
            if low < -LARGEST or high > LARGEST:
                raise UserError(
                    f"the range of {name} expects numbers from -2**53 to 2**53, {got}: choose "
                    "smaller ones"
                )
            return {"low": low, "high": high, "log": log}
    raise UserError(
        f"the axis {name} expects a list of values, or a range of two numbers (low < high), got "
        f"{reprlib.repr(values)}"
    )


def grid(axes: dict[str, list]) -> list[dict[str, str]]:
    """Returns every combination of the axes' values, as gin texts.

    >>> grid({"Encoder.num_layers": [1, 2], "Encoder.norm": ["pre"]})[1]
    {'Encoder.num_layers': '2', 'Encoder.norm': "'pre'"}
    """
    choices = [[repr(value) for value in values] for values in axes.values()]
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*choices)]


def bindings(point: dict[str, Any]) -> tuple[str, ...]:
    """Returns a point as bindings: values from a list are gin texts, those of a range numbers."""
    return tuple(
        f"{name}={value if isinstance(value, str) else repr(value)}"
        for name, value in point.items()
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sweep, the name of its folder, and the settings that its runs share."""

    sweep: Sweep
    name: str
    shared: Job  # runs, data, source, imports and gin_dirs; each trial sets the other fields

    @property
    def folder(self) -> Path:
        """runs/sweeps/<name>."""
        return self.shared.runs / "sweeps" / self.name

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Tasks and models: Optuna has one study for each pair."""
        return list(itertools.product(self.sweep.tasks, self.sweep.models))

    def job(self, pair: int, point: dict[str, Any], seed: int) -> Job:
        """Returns the run of one trial; it reads test only if the sweep selects nothing.

        Raises:
          UserError: there is no run that it should begin from; see `pretrained.auto`.
        """
        task, model = self.pairs[pair]
        job = dataclasses.replace(
            self.shared,
            task=task,
            model=model,
            preset=self.sweep.preset,
            seed=seed,
            overrides=self.sweep.overrides,
            test=not self.sweep.axes,
            denoise=self.sweep.pretrain,
        )
        if self.sweep.init == "auto":
            job = _begun(job)
        elif self.sweep.init:
            job = dataclasses.replace(job, init=Path(self.sweep.init))
        return dataclasses.replace(job, overrides=(*job.overrides, *bindings(point)))

    def number(self, pair: int, point: int, seed: int) -> int:
        """Returns a trial's number: the first point of every model, then the second, and so on."""
        return (point * len(self.pairs) + pair) * self.sweep.seeds + seed

    def check(self) -> None:
        """Builds every point of a grid, or one point of a search, to find mistakes early.

        Raises:
          UserError: a task, model or binding does not exist, a value does not fit, or a task whose
            validation split is the test split has axes.
        """
        axes = self.sweep.axes
        if self.sweep.sampler != "grid":
            axes = {n: [v["low"] if isinstance(v, dict) else v[0]] for n, v in axes.items()}
        for pair, point in itertools.product(range(len(self.pairs)), grid(axes)):
            try:
                on_test = built(self.job(pair, point, 0)).task.validation_is_test
            except UserError as error:
                text = str(error)
                for (name, value), binding in zip(point.items(), bindings(point), strict=True):
                    text = text.replace(f"--set {binding!r}", f"the axis {name} at {value}")
                raise UserError(text) from None
            if on_test and axes:
                raise UserError(
                    f"a sweep with axes selects on validation, but {self.pairs[pair][0]} has only "
                    f"test rows there with preset {self.sweep.preset}: leave out the axes, or "
                    "choose another preset or DATASET"
                )

    def again(self, verb: str = "sweep", *options: str) -> str:
        """Returns the command that continues this sweep, for a person to type."""
        runs = [] if self.shared.runs == Job.runs else ["--runs", str(self.shared.runs)]
        return terminal.command([verb, "--name", self.name, *runs, *options])

    def begin(self) -> None:
        """Writes sweep.json; the caller holds the sweep's lock.

        Raises:
          UserError: the folder belongs to another sweep.
        """
        file, stored = self.folder / "sweep.json", self.stored()
        if stored is None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            fields = self._to_json() | {"created": now, "commit": provenance.commit()[0]}
        else:
            sweep, _, fields = stored
            if sweep.trials >= self.sweep.trials:
                return
        disk.write_json(file, fields | {"trials": self.sweep.trials})

    def stored(self) -> "tuple[Sweep, Job, dict[str, Any]] | None":
        """Returns what `_stored` reads from sweep.json; None without the file.

        Raises:
          UserError: it is damaged, the folder belongs to another sweep, or gin files have changed.
        """
        stored = _stored(self.folder / "sweep.json")
        if stored and (changes := _changes(stored[0], self.sweep)):
            raise UserError(
                f"{self.folder} is another sweep ({'; '.join(changes)}): choose another --name"
            )
        if stored and stored[2].get("gin", self._gin()) != self._gin():
            raise UserError(
                f"your gin files of sweep {self.name} have changed since it began, so its trials "
                "would be other runs: change them back, or choose another --name"
            )
        return stored

    def _gin(self) -> str:
        """Returns the digest of the user's gin files that are part of the run folders' names."""
        preset, dirs, denoise = self.sweep.preset, self.shared.gin_dirs, self.sweep.pretrain
        texts = [config.changes(*pair, preset, dirs, denoise=denoise) for pair in self.pairs]
        return hashlib.sha256(repr(texts).encode()).hexdigest()

    def _to_json(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self.sweep)
        return {
            "schema": SCHEMA,
            "task": ",".join(fields.pop("tasks")),
            **fields,
            "name": self.name,
            "axes_python": repr(self.sweep.axes),  # JSON has no tuples
            "gin": self._gin(),
            **{name: self.shared.to_json()[name] for name in SHARED},
        }


def _changes(old: Sweep, new: Sweep) -> list[str]:
    """Returns what differs between two sweeps: settings, bindings and axes, each by its name."""

    def parts(sweep: Sweep) -> dict[str, str]:
        fields = sweep.identity()
        del fields["axes"], fields["overrides"]
        texts = {
            name: ", ".join(value) if isinstance(value, tuple) else str(value)
            for name, value in fields.items()
        }
        texts |= dict(map(config.split, sweep.overrides))
        return texts | {f"axis {name}": str(values) for name, values in sweep.axes.items()}

    was, now = parts(old), parts(new)
    changes = [
        f"{name}: {was.get(name, 'absent')} -> {now.get(name, 'absent')}"
        for name in was | now
        if was.get(name) != now.get(name)
    ]
    if not changes and old.overrides != new.overrides:  # in another order
        changes = [f"overrides: {', '.join(old.overrides)} -> {', '.join(new.overrides)}"]
    if not changes and old.identity() != new.identity():  # axes in another order
        changes = [f"axes: {', '.join(old.axes)} -> {', '.join(new.axes)}"]
    return changes


def _stored(file: Path) -> tuple[Sweep, Job, dict[str, Any]] | None:
    """Returns the sweep, the shared settings and the object of a sweep.json; None without the file.

    Raises:
      UserError: the file is damaged.
    """
    fields = disk.read_json(file)
    if fields is None:
        return None
    try:
        axes = config.literal(fields["axes_python"])
        tasks = tuple(fields["task"].split(","))
        sweep = typed_json.build(Sweep, fields, tasks=tasks, axes=axes, name="").checked()
        # Each trial has its own task, model, preset and overrides.
        own = {"task": "", "model": "", "preset": "", "overrides": (), "name": None, "init": None}
        return sweep, typed_json.build(Job, fields, runs=file.parents[2], **own), fields
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged ({error}): move its folder away") from None


def load(runs: Path, name: str, trials: int | None = None) -> Plan:
    """Returns the plan of a sweep that has begun; `trials` may raise its number of points.

    Raises:
      UserError: there is no such sweep.
    """
    stored = _stored(runs / "sweeps" / name / "sweep.json")
    if stored is None:
        names = sorted(path.parent.name for path in runs.glob("sweeps/*/sweep.json"))
        raise UserError(
            f"no sweep {name!r} in {runs / 'sweeps'} (it has: {', '.join(names) or 'none'}): "
            "`lra-fnet sweep` with --task or --sweep begins a new one"
        )
    sweep, shared, _ = stored
    grown = sweep if trials is None else dataclasses.replace(sweep, trials=trials).checked()
    return Plan(grown, name, shared)


@functools.cache
def _begun(job: Job) -> Job:
    """Returns the job that begins from its own pre-training; see `pretrained.auto`."""
    from lra_fnet.run import pretrained  # takes a while

    return pretrained.auto(job)


class Built(NamedTuple):
    """What a sweep needs of a run's experiment; it does not depend on the seed."""

    config: str  # the operative gin text
    num_steps: int
    task: Task


@functools.cache
def built(job: Job) -> Built:
    """Builds the experiment of a run.

    Raises:
      UserError: see Job.load.
    """
    experiment = job.load()
    return Built(experiment.config, experiment.run.num_steps, experiment.task)
