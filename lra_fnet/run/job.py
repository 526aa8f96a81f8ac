"""A requested run: its settings, its command, and its folder and lock."""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_fnet import config
from lra_fnet.data import sources
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, terminal, typed_json
from lra_fnet.run import result as results
from lra_fnet.run.result import NAME, Init, Process, Record

if TYPE_CHECKING:
    from lra_fnet.experiment import Experiment

RESTORE = "restore it, or --force moves the folder aside"  # what to do about run.json


@dataclasses.dataclass(frozen=True)
class Job:
    """The options of `lra-fnet train` and `lra-fnet pretrain`."""

    task: str
    model: str
    preset: str
    seed: int = 0
    overrides: tuple[str, ...] = ()
    name: str | None = None
    runs: Path = Path("runs")
    data: Path = Path("data")
    source: str | Path | None = None  # a folder, a file or a URL
    imports: tuple[str, ...] = ()
    gin_dirs: tuple[Path, ...] = ()
    force: bool = False
    test: bool = True  # False leaves the test split closed
    denoise: bool = False  # pre-train: hide tokens and predict them
    init: Path | None = None  # folder of the run whose encoder it begins from
    devices: int | None = None  # of a CPU; 0: the cores that fit, None: as JAX is set up

    def __post_init__(self):
        """Gives the options one form: a run works from other folders than the one it began in.

        Of several bindings of one name the last one stays, which is the one that gin takes.
        Pre-training never reads the test split.
        """
        last = {config.short(config.split(text)[0]): text for text in self.overrides}
        files = (os.path.abspath(name) if name.endswith(".py") else name for name in self.imports)
        object.__setattr__(self, "test", self.test and not self.denoise)
        object.__setattr__(self, "overrides", tuple(last.values()))
        object.__setattr__(self, "imports", tuple(files))
        object.__setattr__(self, "gin_dirs", tuple(Path(d).absolute() for d in self.gin_dirs))

    @functools.cached_property
    def variant(self) -> str | None:
        """The name of the overrides, and of the pre-trained run if there is one, in the folder.

        The user's gin files that change a shipped preset count as overrides.

        Raises:
          UserError: see `pretrained`.
        """
        names = self.task, self.model, self.preset
        changes = config.changes(*names, self.gin_dirs)
        own = variant(self.overrides, self.name, changes)
        if self.pretrained is None:
            return own
        theirs = self.pretrained.variant if self.pretrained.variant != own else None
        return "-".join(filter(None, ("pretrained", theirs, own)))

    @functools.cached_property
    def pretrained(self) -> Record | None:
        """The record of the run to begin from; None without one.

        Raises:
          UserError: it is unfinished, or of another task or model.
        """
        if self.init is None:
            return None
        _, result = finished(self.init)
        if result.task not in (self.task, "corpus") or result.model != self.model:
            raise UserError(
                f"--init expects a run on {self.task} or corpus with model {self.model}, "
                f"{self.init} is {result.label}: name another"
            )
        return result

    @property
    def folder(self) -> Path:
        """The run folder: runs/<preset>/<task>/<model>[@denoise][+<variant>]/seed<k>."""
        return self.runs.joinpath(*results.folder_parts(self))

    def check(self) -> None:
        """Reports wrong names, in a tenth of the time that JAX takes to import.

        Raises:
          UserError: a task, model or preset is unknown, or has a name that no folder may have; see
            `variant`.
        """
        for name in (self.task, self.model, self.preset):
            if not (isinstance(name, str) and NAME.fullmatch(name)):
                raise UserError(
                    "task, model and preset expect a name of letters, digits, '_', '.', '+' and "
                    f"'-', got {name!r:.60}"
                )
        config.texts(self.task, self.model, self.preset, self.gin_dirs)
        _ = self.variant

    def load(self) -> "Experiment":
        """Returns the experiment.

        Raises:
          UserError: see `check` and `experiment.load`.
        """
        self.check()
        from lra_fnet import experiment  # late: it imports JAX

        # All stages on one task share the steps of a preset.
        begun = self.pretrained
        done = begun.total_steps if begun and begun.task == self.task else 0
        return experiment.load(
            self.task,
            self.model,
            self.preset,
            self.overrides,
            imports=self.imports,
            gin_dirs=self.gin_dirs,
            denoise=self.denoise,
            done=done,
            data=self.data,
            source=self.source,
        )

    def command(self) -> list[str]:
        """Returns the arguments of `lra-fnet` that train or resume this run, without defaults."""
        verb = "pretrain" if self.denoise else "train"
        words = [verb, "--task", self.task, "--model", self.model, "--preset", self.preset]
        for field in ("init", "seed", "name", "runs", "data", "source"):
            value, default = getattr(self, field), getattr(Job, field)
            if _absolute(value) != _absolute(default):
                words += [f"--{field}", str(value)]
        lists = {"--set": self.overrides, "--import": self.imports, "--gin-dir": self.gin_dirs}
        for option, values in lists.items():
            words += [word for value in values for word in (option, str(value))]
        return words + ["--no-test"] * (not (self.test or self.denoise))

    @config.alone()
    def settings(self) -> terminal.Fitted:
        """Returns the table of the settings, and what binds each, under folder and size.

        Raises:
          UserError: see `load`.
        """
        built = self.load()
        from lra_fnet.models.encoder import parameter_count

        names = self.task, self.model, self.preset, self.gin_dirs
        rows = config.settings(config.texts(*names, denoise=self.denoise), self.overrides)
        size, run = parameter_count(built.shapes()), built.run
        return terminal.Fitted(
            ["setting", "value", "bound in"],
            rows,
            title=f"{self.folder}: {size:,} parameters; {run.num_steps:,} steps of "
            f"{run.batch_size} examples of {built.task.max_len:,} tokens",
            words=3,
        )

    def identity(self) -> dict[str, Any]:
        """Returns the fields of result.json and run.json that name the run."""
        names = ("task", "model", "preset", "variant", "seed")
        fields = {name: getattr(self, name) for name in names}
        fields |= {"overrides": sorted(self.overrides)}
        fields |= {"denoise": True} if self.denoise else {}
        code = config.code_of(self.imports)  # known once they are imported
        return fields | ({"code": code} if code else {})

    def to_json(self) -> dict[str, Any]:
        """Returns what `read` reads from run.json; its paths are absolute."""
        names = ("imports", "gin_dirs", "test", "name")
        fields = self.identity() | {name: getattr(self, name) for name in names}
        fields |= {name: _absolute(getattr(self, name)) for name in ("data", "source", "init")}
        return json.loads(json.dumps(fields, default=str))


def _absolute(value: Any) -> Any:
    """Returns a path as an absolute one; a URL, None or a number as it is."""
    is_path = isinstance(value, str | Path) and not sources.is_url(value)
    return Path(os.path.abspath(value)) if is_path else value


def beginning(job: Job, init: str | Path | None) -> Job:
    """Returns the job that begins from the encoder of a run, or the job as it is.

    Args:
      job: one without `init`.
      init: its folder; "auto" for the pre-trained one of the same options; None or "" for none.

    Raises:
      UserError: there is no run of the same options.
    """
    if init != "auto":
        return dataclasses.replace(job, init=Path(init) if init else None)
    before = dataclasses.replace(job, denoise=True)
    if not (before.folder / "run.json").exists():
        again = terminal.command(before.command())
        raise UserError(f"--init auto: there is no {before.folder} yet; first: {again}")
    names = {text: config.short(config.split(text)[0]) for text in job.overrides}
    own = [text for text, name in names.items() if not name.startswith("Denoising.")]
    return dataclasses.replace(job, init=before.folder, overrides=tuple(own))


@dataclasses.dataclass(frozen=True, repr=False)
class Begun(Job):
    """A run as its run.json describes it: its job, and what it began with."""

    code: dict[str, str] = dataclasses.field(default_factory=dict)  # see `config.code_of`
    origin: Init | None = None  # what the pre-trained run was
    config: str = ""  # the operative gin text
    data_sha256: str | None = None
    # What was chosen by measurement or by the machine: `fastest.decisions`.
    resolved: dict[str, Any] = dataclasses.field(default_factory=dict)
    # The code and the machine of each process that trained it, if they changed.
    processes: tuple[Process, ...] = ()

    @property
    def cpu_devices(self) -> int:
        """The number of devices of the CPU that trained it last; 1 for older runs and others."""
        last = self.processes[-1].device if self.processes else None
        return last.count if last and last.platform == "cpu" else 1


def read(folder: Path) -> Begun | None:
    """Returns what the run.json of a run folder says, or None if there is none.

    Raises:
      UserError: the file is damaged, or not as it was written.
    """
    file = folder / "run.json"
    value = disk.read_json(file, cure=RESTORE)
    if value is None:
        return None
    try:
        if "sha256" in value and value != results.seal(value):  # older ones have none
            raise ValueError("it was changed after the run began (its sha256 differs)")
        runs = Path(os.path.relpath(folder / "../../../.."))
        begun = typed_json.build(Begun, value, runs=runs)
    except ValueError as error:
        raise UserError(f"{file}: {error}; {RESTORE}") from None
    moved = not begun.data.exists()
    if moved and Job.data.exists():  # with the runs
        begun = dataclasses.replace(begun, data=Job.data)
    vars(begun)["variant"] = value.get("variant")  # gin files may have changed since
    return begun


def finished(folder: Path) -> tuple[Begun, Record]:
    """Returns the run.json and the result of a run that was trained to its last step.

    Raises:
      UserError: the folder is not a run folder; its run is unfinished or has failed.
    """
    job, result = read(folder), results.read(folder, moved=True)
    if job is None:
        raise UserError(f"{folder} is not a run folder (it has no run.json): name one")
    if result is None or not result.complete:
        ended = f"ended as {result.state}" if result else "is unfinished"
        raise UserError(
            f"the run in {folder} {ended}; to train it: {terminal.command(job.command())}"
        )
    return job, result


def variant(
    overrides: Sequence[str], name: str | None = None, changes: Mapping[str, str] | None = None
) -> str | None:
    """Returns the name, or a readable slug and 8 hex digits of the overrides; None without either.

    Neither the order of the overrides nor the module of a setting matters.

    Args:
      overrides: bindings.
      name: the user's.
      changes: texts of the user's gin files that change a shipped preset, see `config.changes`.

    Raises:
      UserError: the name cannot be part of a folder's name.
    """
    if name:
        if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)):
            raise UserError(f"--name expects letters, digits, '.', '_' and '-', got {name!r}")
        return name
    if not (overrides or changes):
        return None
    parts = (config.normalise(text).partition(" = ") for text in overrides)
    bindings = sorted(config.short(name) + equals + value for name, equals, value in parts)
    changes = changes or {}
    texts = [*bindings, *(part for change in changes.items() for part in change)]
    digest = hashlib.sha256("\n".join(texts).encode())
    words = "_".join([*(text.partition(".")[2] or text for text in bindings), *changes])
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.")[:40].rstrip("-.")
    return f"{slug}-{digest.hexdigest()[:8]}"


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Makes the folder if need be and holds its lock; the kernel frees it when the process ends.

    Raises:
      UserError: another process holds the lock, or the folder cannot be written.
    """
    file = folder / ".lock"
    with disk.writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = disk.try_lock(file, seconds=1)
    if handle is None:
        raise UserError(
            f"{folder} is in use by process {file.read_text().strip()}: wait for it, stop it, or "
            "choose another --seed or --name"
        )
    with handle:
        yield


def in_use(folder: Path, lock: str = ".lock") -> bool:
    """Returns whether a process holds the folder's lock, or another lock file in it."""
    if not (folder / lock).exists():
        return False
    with disk.writable(folder):
        handle = disk.try_lock(folder / lock)
    if handle is not None:
        handle.close()
    return handle is None


def move_aside(folder: Path) -> Path:
    """Moves what a run folder holds to a new folder beside it, named with the time; returns it.

    The folder itself and its .lock stay, so that the process that holds the lock keeps it.
    """
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    target = folder.with_name(f".{folder.name}.moved-{now}")
    with disk.writable(folder):
        target.mkdir()
        # After a kill in between, the folder holds a run that began, not one that is complete.
        order = {"result.json": 0, "run.json": 2}
        for path in sorted(folder.iterdir(), key=lambda path: order.get(path.name, 1)):
            if path.name != ".lock":
                path.rename(target / path.name)
    return target
