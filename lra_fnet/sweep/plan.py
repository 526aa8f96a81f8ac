"""What a sweep is: tasks, models, seeds and axes, from gin, the command line or its sweep.json."""

import ast
import dataclasses
import datetime
import functools
import hashlib
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import folder as run_folder
from lra_fnet.run.job import Job

SCHEMA = 1
SAMPLERS = ("grid", "random", "tpe")


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Sweep:
    """Every model on every task, at every point of the axes, with every seed.

    An axis is a binding's name and a list of its values or, for the samplers random and tpe, a
    range {"low": 1e-4, "high": 1e-2, "log": True}. Without axes the trials are the table's own
    runs, and read test as those do.
    """

    tasks: Sequence[str] = ()
    models: Sequence[str] = ("transformer", "linear", "fnet", "performer")
    preset: str = "paper"
    seeds: int = 1  # 0 .. seeds - 1 of every point
    axes: dict[str, Any] = dataclasses.field(default_factory=dict)
    overrides: Sequence[str] = ()  # bindings of every trial
    sampler: str = "grid"
    trials: int = 0  # points of each task and model that random and tpe try
    prune: bool = False  # stop a point whose first seed falls behind the median of those before
    name: str = ""  # begins the name of the sweep's folder

    def checked(self) -> "Sweep":
        """This sweep, its lists as tuples and its ranges complete.

        Raises:
          UserError: a field of another type, or fields that do not fit each other.
        """
        for field in ("tasks", "models", "overrides"):
            names = getattr(self, field)
            if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
                raise UserError(f"Sweep.{field} expects a list of strings, got {names!r}")
        if not self.tasks or not self.models:
            raise UserError("a sweep expects tasks and models: --task, --models, or --sweep FILE")
        for field, least in (("seeds", 1), ("trials", 0)):
            count = getattr(self, field)
            if isinstance(count, bool) or not isinstance(count, int) or count < least:
                raise UserError(
                    f"{field.upper()} expects a whole number of at least {least}, got {count!r}"
                )
        if self.sampler not in SAMPLERS:
            raise UserError(f"Sweep.sampler expects {', '.join(SAMPLERS)}, got {self.sampler!r}")
        axes = {name: _axis(name, values) for name, values in self.axes.items()}
        ranges = [name for name, values in axes.items() if isinstance(values, dict)]
        if self.sampler == "grid" and ranges:
            raise UserError(f"the range of {ranges[0]} needs SAMPLER=random or tpe (--sampler)")
        if self.sampler == "grid" and self.trials:
            raise UserError("TRIALS (--trials) is of SAMPLER=random and tpe; a grid has all points")
        if self.sampler != "grid" and not (axes and self.trials):
            raise UserError(
                f"SAMPLER={self.sampler} needs TRIALS= (--trials), the number of points, and axes: "
                "--grid, --range"
            )
        if self.prune and not axes:
            raise UserError("PRUNE=1 (--prune) needs axes: the runs of a table are not stopped")
        return dataclasses.replace(
            self,
            tasks=tuple(dict.fromkeys(self.tasks)),
            models=tuple(dict.fromkeys(self.models)),
            overrides=tuple(self.overrides),
            axes=axes,
        )

    def identity(self) -> dict[str, Any]:
        """What two commands of one sweep share; the number of trials may grow."""
        fields = dataclasses.asdict(self) | {"axes": repr(self.axes)}
        del fields["trials"], fields["name"]
        return fields


def folder_name(sweep: Sweep, name: str | None) -> str:
    """NAME, or readable words and 8 hex digits of everything but the number of trials.

    Raises:
      UserError: a NAME that cannot be a folder's.
    """
    if name:
        return str(run_folder.variant((), name))
    axes = [axis.rpartition(".")[2] for axis in sweep.axes]
    words = [sweep.name] if sweep.name else [*sweep.tasks, *axes]
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join([*words, sweep.preset]))[:50].strip("-.")
    digest = hashlib.sha256(repr(sorted(sweep.identity().items())).encode()).hexdigest()[:8]
    return f"{slug}-{digest}"


def read(file: Path | None, axes: dict[str, Any], overrides: Sequence[str], **given) -> Sweep:
    """A gin file's sweep, with what the command line gives in place of its values or beside them.

    Args:
      file: binds the parameters of Sweep and nothing else; None stands for the defaults.
      axes: further ones; one of the same name takes the place of the file's.
      overrides: further bindings of every trial.
      **given: fields of Sweep; None leaves the file's.

    Raises:
      UserError: no such file, a binding that a sweep has not, or see Sweep.checked.
    """
    if file is None:
        sweep = Sweep()
    elif not file.is_file():
        raise UserError(f"SWEEP expects a gin file (--sweep), {file} is none")
    else:
        config.load([file])
        sweep = Sweep()
        if unread := config.unread_bindings():
            raise UserError(f"{file}: a sweep does not read {', '.join(unread)}")
    fields = {name: value for name, value in given.items() if value is not None}
    sweep = dataclasses.replace(sweep, **fields)
    return dataclasses.replace(
        sweep, axes=sweep.axes | axes, overrides=(*sweep.overrides, *overrides)
    ).checked()


def grid_axis(text: str) -> dict[str, list]:
    """An axis of the command line.

    >>> grid_axis("Run.batch_size=[16, 32]")
    {'Run.batch_size': [16, 32]}
    """
    name, values = _split(text)
    if not isinstance(values, list | tuple) or not values:
        raise UserError(f"GRID (--grid) expects Name.parameter=[value, ...], got {text!r}")
    return {name: list(values)}


def range_axis(text: str) -> dict[str, dict]:
    """A range of the command line: whole numbers where both ends are.

    >>> range_axis('Optimizer.learning_rate=[1e-4, 1e-2, "log"]')
    {'Optimizer.learning_rate': {'low': 0.0001, 'high': 0.01, 'log': True}}
    """
    name, ends = _split(text)
    if (
        not isinstance(ends, list | tuple)
        or len(ends) not in (2, 3)
        or list(ends[2:]) not in ([], ["log"])
    ):
        raise UserError(
            f'RANGE (--range) expects Name.parameter=[low, high] or [low, high, "log"], got '
            f"{text!r}"
        )
    return {name: {"low": ends[0], "high": ends[1], "log": len(ends) == 3}}


def _split(text: str) -> tuple[str, Any]:
    """The name, and the value or None."""
    name, _, value = text.partition("=")
    try:
        return name.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        return name.strip(), None


def _axis(name: str, values) -> list | dict:
    """The values of an axis, in one form."""
    if isinstance(values, list | tuple) and values:
        return list(values)
    if isinstance(values, dict) and {"low", "high"} <= values.keys() <= {"low", "high", "log"}:
        low, high, log = values["low"], values["high"], bool(values.get("log"))
        numbers = [end for end in (low, high) if type(end) in (int, float)]
        if len(numbers) == 2 and low < high and (low > 0 or not log):
            return {"low": low, "high": high, "log": log}
    raise UserError(
        f"the axis {name} expects a list of values, or a range of two numbers (low < high, and "
        f"low > 0 of a logarithmic one), got {values!r}"
    )


def grid(axes: dict[str, list]) -> list[dict[str, str]]:
    """Every combination of the axes' values, as gin texts.

    >>> grid({"Encoder.num_layers": [1, 2], "Encoder.norm": ["pre"]})[1]
    {'Encoder.num_layers': '2', 'Encoder.norm': "'pre'"}
    """
    choices = [[repr(value) for value in values] for values in axes.values()]
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*choices)]


def bindings(point: dict[str, Any]) -> tuple[str, ...]:
    """A point as bindings: values of a list are gin texts, those of a range are numbers."""
    return tuple(
        f"{name}={value if isinstance(value, str) else repr(value)}"
        for name, value in point.items()
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sweep, where it lies, and what its runs have in common."""

    sweep: Sweep
    name: str
    shared: Job  # runs, data, source, imports, gin_dirs; the rest is each trial's own

    @property
    def folder(self) -> Path:
        """runs/sweeps/<name>."""
        return self.shared.runs / "sweeps" / self.name

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Tasks and models: Optuna has a study of each."""
        return list(itertools.product(self.sweep.tasks, self.sweep.models))

    def job(self, pair: int, point: dict[str, Any], seed: int) -> Job:
        """One trial; it leaves test closed where there is something to select."""
        task, model = self.pairs[pair]
        return dataclasses.replace(
            self.shared,
            task=task,
            model=model,
            preset=self.sweep.preset,
            seed=seed,
            overrides=(*self.sweep.overrides, *bindings(point)),
            test=not self.sweep.axes,
        )

    def number(self, pair: int, point: int, seed: int) -> int:
        """Of a trial: of every model the first point, then of every model the second."""
        return (point * len(self.pairs) + pair) * self.sweep.seeds + seed

    def check(self) -> None:
        """Builds every point of a grid, of a search one: a mistake shows before the first hour.

        Raises:
          UserError: a misspelt task, model or binding, a value that does not fit.
        """
        axes = self.sweep.axes
        if self.sweep.sampler != "grid":
            axes = {n: [v["low"] if isinstance(v, dict) else v[0]] for n, v in axes.items()}
        points = grid(axes)
        for pair, point in itertools.product(range(len(self.pairs)), points):
            built(self.job(pair, point, 0))

    def again(self, command: str = "sweep", **options) -> str:
        """Returns the command that resumes this sweep (or finishes it), for a person to type."""
        runs = {} if self.shared.runs == Path("runs") else {"runs": self.shared.runs}
        given = {"name": self.name} | runs | options
        words = [
            word
            for name, value in given.items()
            for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
        ]
        return shlex.join(["lra-fnet", command, *words])

    def begin(self) -> None:
        """Writes sweep.json; the caller holds the sweep's lock.

        Raises:
          UserError: the folder is that of another sweep.
        """
        file = self.folder / "sweep.json"
        before = disk.read_json(file)
        trials = self.sweep.trials
        if before is not None:
            was, now = _sweep(before).identity(), self.sweep.identity()
            differences = [f"{n}: {was[n]!r} -> {now[n]!r}" for n in now if was[n] != now[n]]
            if differences:
                raise UserError(
                    f"{self.folder} is another sweep ({'; '.join(differences)}): NAME=... "
                    "(--name) starts one beside it"
                )
            if before["trials"] >= trials:
                return
        new = {"created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        new |= {"commit": run_folder.commit()[0]}
        disk.write_json(file, self._to_json() | (before or new) | {"trials": trials})

    def _to_json(self) -> dict[str, Any]:
        sweep, shared = self.sweep, self.shared
        return {
            "schema": SCHEMA,
            "name": self.name,
            "task": ",".join(sweep.tasks),
            "models": sweep.models,
            "preset": sweep.preset,
            "seeds": sweep.seeds,
            "sampler": sweep.sampler,
            "trials": sweep.trials,
            "prune": sweep.prune,
            "axes": sweep.axes,
            "axes_python": repr(sweep.axes),  # JSON has no tuples
            "overrides": sweep.overrides,
            "imports": shared.imports,
            "gin_dirs": [str(folder) for folder in shared.gin_dirs],
            "data": str(shared.data),
            "source": str(shared.source) if shared.source else None,
        }


def _sweep(fields: dict[str, Any]) -> Sweep:
    """The sweep of a sweep.json."""
    return Sweep(
        tasks=tuple(fields["task"].split(",")),
        models=tuple(fields["models"]),
        axes=ast.literal_eval(fields["axes_python"]),
        overrides=tuple(fields["overrides"]),
        **{name: fields[name] for name in ("preset", "seeds", "sampler", "trials", "prune")},
    )


def load(runs: Path, name: str, trials: int | None = None) -> Plan:
    """The sweep of that name that has been begun; `trials` may raise its number of points.

    Raises:
      UserError: there is none.
    """
    fields = disk.read_json(runs / "sweeps" / name / "sweep.json")
    if fields is None:
        there = sorted(path.parent.name for path in runs.glob("sweeps/*/sweep.json"))
        raise UserError(
            f"no sweep {name!r} in {runs / 'sweeps'} (there: {', '.join(there) or 'none'}); "
            "TASK= (--task) or SWEEP= (--sweep) begins one"
        )
    sweep = _sweep(fields)
    if trials is not None:
        sweep = dataclasses.replace(sweep, trials=trials).checked()
    shared = Job(
        task="",
        model="",
        preset="",
        runs=runs,
        data=Path(fields["data"]),
        source=fields["source"],
        imports=tuple(fields["imports"]),
        gin_dirs=tuple(map(Path, fields["gin_dirs"])),
    )
    return Plan(sweep, name, shared)


@functools.cache
def built(job: Job) -> tuple[str, int]:
    """The operative gin text and the number of steps; call it with seed 0, it changes neither.

    Raises:
      UserError: see Job.load.
    """
    experiment = job.load()
    return experiment.config, experiment.run.num_steps


def command(job: Job) -> list[str]:
    """The arguments of `lra-fnet` that run this trial, as a person would type them."""
    words = ["train", "--task", job.task, "--model", job.model, "--preset", job.preset]
    words += ["--seed", str(job.seed), "--runs", str(job.runs), "--data", str(job.data)]
    words += [word for text in job.overrides for word in ("--set", text)]
    words += [word for name in job.imports for word in ("--import", name)]
    words += [word for folder in job.gin_dirs for word in ("--gin-dir", str(folder))]
    words += ["--source", str(job.source)] if job.source else []
    return words if job.test else [*words, "--no-test"]
