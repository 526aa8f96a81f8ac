"""A sweep's definition: tasks, models, seeds and axes, from gin, the command line or sweep.json."""

import dataclasses
import datetime
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gin

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, terminal, typed_json
from lra_fnet.run import job as jobs
from lra_fnet.run.job import Job
from lra_fnet.settings import at_least, check_settings
from lra_fnet.sweep import Sampler
from lra_fnet.sweep import axes as axes_

if TYPE_CHECKING:
    from lra_fnet.experiment import Experiment

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
    sampler: Sampler = "grid"
    trials: int = 0  # points for each task and model, with the samplers random and tpe
    prune: bool = False  # stop a point whose first seed's best is below the earlier points' median
    name: str = ""  # start of the name of the sweep's folder
    # The trials are runs of `lra-fnet pretrain`, compared by their loss on masked tokens.
    pretrain: bool = False
    # Trials begin from this pre-trained run. "auto": each from the run of `lra-fnet pretrain` with
    # its task, model, preset and seed, and the bindings of every trial.
    init: str = ""

    def checked(self) -> "Sweep":
        """Returns this sweep with its lists as tuples and its ranges complete.

        Raises:
          UserError: a field has the wrong type, or two fields contradict each other.
        """
        check_settings(self)
        at_least("Sweep.seeds", self.seeds, 1, suggest=3)
        axes = {name: axes_.checked(name, values) for name, values in self.axes.items()}
        ranges = [name for name, values in axes.items() if isinstance(values, dict)]
        is_grid = self.sampler == "grid"
        mistakes = {
            "a sweep needs --task and --models, or --sweep FILE": not (self.tasks and self.models),
            "a range and --trials need --sampler random or tpe: a grid has all points": (
                is_grid and (ranges or self.trials)
            ),
            f"--sampler {self.sampler} needs axes (--grid, --range) and --trials": (
                not is_grid and not (axes and self.trials > 0)
            ),
            "--init is for trials of lra-fnet train: leave out --pretrain": (
                self.init and self.pretrain
            ),
            "--prune needs axes, and the same Run.num_steps and Run.batch_size for all points": (
                self.prune
                and (not axes or {"Run.num_steps", "Run.batch_size"} & {*map(config.short, axes)})
            ),
        }
        for text, applies in mistakes.items():
            if applies:
                raise UserError(text)
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
        for name in ("pretrain", "init"):  # older sweeps do not have them
            if not fields[name]:
                del fields[name]
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
      axes: more axes; one of the same name replaces the file's.
      overrides: more bindings for every trial.
      **given: fields of Sweep that replace the file's; None keeps the file's.

    Raises:
      UserError: Sweep does not read one of the file's bindings, an axis has a single value too, or
        see Sweep.checked.
    """
    if file is not None:
        text = "\n".join(part.text for part in config.expanded(file))
        config.load([config.GinText(str(file), text)])
    sweep = Sweep()
    if unread := config.unread_bindings():
        raise UserError(f"{file}: a sweep does not read {', '.join(unread)}")
    fields = {name: value for name, value in given.items() if value is not None}
    fields |= {"axes": sweep.axes | axes, "overrides": (*sweep.overrides, *overrides)}
    return dataclasses.replace(sweep, **fields).checked()


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
          UserError: there is no run that it should begin from; see `job.beginning`.
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
        job = jobs.beginning(job, self.sweep.init)
        return dataclasses.replace(job, overrides=(*job.overrides, *axes_.bindings(point)))

    def points(self) -> list[dict[str, Any]]:
        """Returns the points that depend on no result: all of a grid or of a random search."""
        if self.sweep.sampler == "grid":
            return axes_.grid(self.sweep.axes)
        count = self.sweep.trials if self.sweep.sampler == "random" else 0
        return axes_.random(self.sweep.axes, count)

    def check(self) -> None:
        """Builds every point of a grid, or one point of a search, to find mistakes early.

        Raises:
          UserError: a task, model or binding does not exist, a value does not fit, or a task whose
            validation split is the test split has axes.
        """
        axes = self.sweep.axes
        if self.sweep.sampler != "grid":
            axes = {n: [v["low"] if isinstance(v, dict) else v[0]] for n, v in axes.items()}
        for pair, point in itertools.product(range(len(self.pairs)), axes_.grid(axes)):
            if built(self.job(pair, point, 0)).task.validation_is_test and axes:
                raise UserError(
                    f"a sweep with axes selects on validation, but {self.pairs[pair][0]} has only "
                    "test rows there: leave out the axes, or choose another preset or DATASET"
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
        self.check_name()
        file, sweep = self.folder / "sweep.json", self.sweep
        known = disk.read_json(file)
        if known is None:
            known = dataclasses.asdict(sweep)
            known |= {"task": ",".join(known.pop("tasks")), "name": self.name}
            known |= {"axes_python": repr(sweep.axes)}  # JSON has no tuples
            known |= {name: self.shared.to_json()[name] for name in SHARED}
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            known |= {"created": now, "trials": -1}
        if known["trials"] < sweep.trials:
            disk.write_json(file, known | {"trials": sweep.trials})

    def check_name(self) -> None:
        """Raises a UserError if the folder belongs to another sweep."""
        if (self.folder / "sweep.json").exists():
            was = load(self.shared.runs, self.name).sweep.identity()
            now = self.sweep.identity()
            if changed := [n for n in was | now if was.get(n) != now.get(n)]:
                raise UserError(
                    f"{self.folder} is another sweep ({', '.join(changed)} differ): choose another "
                    "--name"
                )


def load(runs: Path, name: str, trials: int | None = None) -> Plan:
    """Returns the plan of a sweep that has begun; `trials` may raise its number of points.

    Raises:
      UserError: there is no such sweep, or its sweep.json is damaged.
    """
    file = runs / "sweeps" / name / "sweep.json"
    fields = disk.read_json(file)
    if fields is None:
        raise UserError(
            f"no sweep {name!r} in {runs / 'sweeps'}: --task or --sweep with it begins a new one"
        )
    try:
        axes, tasks = config.literal(fields["axes_python"]), tuple(fields["task"].split(","))
        sweep = typed_json.build(Sweep, fields, tasks=tasks, axes=axes, name="")
        # Each trial has its own task, model, preset and overrides.
        own = {"task": "", "model": "", "preset": "", "overrides": (), "name": None, "init": None}
        shared = typed_json.build(Job, fields, runs=runs, **own)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged ({error}): move its folder away") from None
    sweep = sweep if trials is None else dataclasses.replace(sweep, trials=trials)
    return Plan(sweep.checked(), name, shared)


@functools.cache
def built(job: Job) -> "Experiment":
    """Builds the experiment of a run.

    Raises:
      UserError: see Job.load.
    """
    return job.load()
