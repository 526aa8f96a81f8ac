"""One run, from names to result.json: what `make lra` does."""

import contextlib
import dataclasses
import hashlib
import os
import shlex
import sys
import time
from pathlib import Path

import jax

from lra_fnet import config, experiment
from lra_fnet.errors import Interrupted, RunFailed, UserError
from lra_fnet.machine import disk, progress
from lra_fnet.run import evaluate
from lra_fnet.run import folder as run_folder
from lra_fnet.tasks import Prepared
from lra_fnet.train import hosts
from lra_fnet.train.loop import Loop, warn_if_slow


@dataclasses.dataclass(frozen=True)
class Job:
    """What a person asks for."""

    task: str
    model: str
    preset: str
    seed: int = 0
    overrides: tuple[str, ...] = ()
    name: str | None = None
    runs: Path = Path("runs")
    data: Path = Path("data")
    source: Path | str | None = None  # a folder, a file or a URL
    imports: tuple[str, ...] = ()
    gin_dirs: tuple[Path, ...] = ()
    force: bool = False
    test: bool = True
    fit: bool = False  # choose the microbatch at which the batch fits the device

    @property
    def variant(self) -> str | None:
        """Name of the overrides in the run folder."""
        return run_folder.variant(self.overrides, self.name)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return run_folder.path(
            self.runs, self.preset, self.task, self.model, self.seed, self.variant
        )

    def identity(self) -> dict:
        """The fields of result.json that name the run."""
        return {
            "task": self.task,
            "model": self.model,
            "preset": self.preset,
            "overrides": sorted(self.overrides),
            "variant": self.variant,
            "seed": self.seed,
        }

    def load(self) -> experiment.Experiment:
        """The experiment that the names stand for."""
        return experiment.load(
            self.task, self.model, self.preset, self.overrides, self.imports, self.gin_dirs
        )

    def command(self) -> str:
        """The command that was typed, for a person to type again."""
        if not os.environ.get("LRA_FNET_MAKE"):
            return shlex.join(["lra-fnet", *sys.argv[1:]])
        variables = {
            "TASK": self.task,
            "MODEL": self.model,
            "PRESET": self.preset,
            "SEED": self.seed or "",
            "GIN": os.environ.get("GIN", ""),
            "NAME": self.name or "",
            "RUNS": "" if self.runs == Path("runs") else self.runs,
            "DATA": "" if self.data == Path("data") else self.data,
            "SOURCE": self.source or "",
            "IMPORT": " ".join(self.imports),
            "GIN_DIR": " ".join(map(str, self.gin_dirs)),
            "FIT": int(self.fit) or "",
        }
        words = [f"{name}={value}" for name, value in variables.items() if str(value)]
        return shlex.join(["make", "lra", *words])


def run(job: Job) -> dict:
    """Prepares the data if need be, trains or resumes, evaluates; returns the result.

    A complete run is returned as it is, unless job.force moves it aside. Several processes
    (`hosts.join`) all call this; the first writes the run folder.

    Raises:
      UserError: what the user gave cannot be run.
      RunFailed: it diverged or ran out of device memory; result.json says so.
      Interrupted: a signal; the same command resumes.
    """
    if job.seed < 0:
        raise UserError(f"SEED expects a whole number of at least 0, got {job.seed}")
    built = job.load()
    folder = job.folder
    hosts.same("run", _facts(job, built))
    with run_folder.lock(folder) if hosts.first() else contextlib.nullcontext():
        data = _prepare(job, built)
        done = hosts.agree(_complete(job, folder, built, data) if hosts.first() else None)
        if done is not None:
            return done
        hosts.check_shared(folder)
        if hosts.first():
            _describe(job, folder, built, data)
        return _train(job, folder, built, data)


def _facts(job: Job, built) -> dict:
    """What several processes must have in common for one run."""
    versions = run_folder.provenance()["versions"]
    return {
        **job.identity(),
        "force": job.force,
        "test": job.test,
        "fit": job.fit,
        "config": hashlib.sha256(built.config.encode()).hexdigest()[:8],
        **{name: versions[name] for name in ("jax", "jaxlib", "flax", "optax")},
    }


def _prepare(job: Job, built) -> Prepared:
    """The task's data: process 0 prepares it, then the others.

    They find it ready on a shared file system, and make their own where --data is local.
    """
    if not hosts.first():
        hosts.agree(None, "data")
    data = built.task.prepare(job.data, source=job.source)
    if hosts.first():
        hosts.agree(None, "data")
    hosts.same("data", {"data": data.fingerprint[:8]})
    return data


def evaluate_run(folder: Path) -> dict:
    """Scores a trained run on test, once; a run that has been scored is returned as it is.

    Raises:
      UserError: the folder is no run folder.
    """
    return run(of_folder(folder))


def of_folder(folder: Path) -> Job:
    """The job that a run folder was made by.

    Raises:
      UserError: the folder is no run folder.
    """
    begun = disk.read_json(folder / "run.json")
    if begun is None:
        raise UserError(f"{folder} is no run folder: it has no run.json")
    return Job(
        task=begun["task"],
        model=begun["model"],
        preset=begun["preset"],
        seed=begun["seed"],
        overrides=tuple(begun["overrides"]),
        name=begun["variant"] if begun["variant"] else None,
        runs=folder.absolute().parents[3],
        data=Path(begun["data"]),
        imports=tuple(begun["imports"]),
        gin_dirs=tuple(Path(path) for path in begun["gin_dirs"]),
    )


def differences(begun: dict, built, data: Prepared) -> list[config.Difference]:
    """What a run.json or result.json does not share with an experiment and its data."""
    found = config.differing(begun["config"], built.config)
    if begun["data_sha256"] != data.fingerprint:
        found.append(config.Difference("data", begun["data_sha256"][:8], data.fingerprint[:8]))
    return found


def _complete(job: Job, folder: Path, built, data: Prepared) -> dict | None:
    """The result of a finished run of the same config and data; refuses one of another."""
    if job.force and any(path.name != ".lock" for path in folder.iterdir()):
        aside = run_folder.move_aside(folder)
        with disk.writable(folder):
            folder.mkdir()
            (aside / ".lock").rename(folder / ".lock")  # the lock that this process holds
        progress.say(f"FORCE: the old run is now {aside}")
        return None
    begun = disk.read_json(folder / "run.json")
    if begun is None:
        return None
    if others := differences(begun, built, data):
        raise UserError(
            f"{folder} holds a run of another configuration ({'; '.join(map(str, others))}): "
            "FORCE=1 moves it aside, NAME=... starts another beside it"
        )
    result = disk.read_json(folder / "result.json")
    if result is None or result["state"] != "complete" or (job.test and result["test"] is None):
        return None
    commit = run_folder.provenance()["commit"]
    other = (
        f", made at commit {result['commit'][:10]}"
        if result["commit"] not in (None, commit)
        else ""
    )
    progress.say(f"complete already{other}; FORCE=1 trains it anew")
    return result


def _describe(job: Job, folder: Path, built, data: Prepared) -> None:
    """Writes config.gin and run.json before the first step."""
    with disk.writable(folder):
        (folder / "config.gin").write_text(built.config)
        (folder / "result.json").unlink(missing_ok=True)  # of an OOM or a divergence
    disk.write_json(
        folder / "run.json",
        {
            **job.identity(),
            "imports": list(job.imports),
            "gin_dirs": [str(path) for path in job.gin_dirs],
            "data": str(job.data),
            "data_sha256": data.fingerprint,
            "config": built.config,
        },
    )


def _train(job: Job, folder: Path, built, data: Prepared) -> dict:
    begun = time.monotonic()
    loop = None
    try:
        with hosts.together():
            train, validation = map(data.arrays, built.task.splits[:2])
            loop = Loop(built, train, validation, folder, job.seed, fits=job.fit)
            at = f"resumes at step {loop.step}" if loop.step else "starts"
            progress.say(
                f"{job.task} {job.model} {job.preset} seed {job.seed} {at}: {loop.parameters:,} "
                f"parameters, {built.run.num_steps:,} steps of {built.run.batch_size}, "
                f"{jax.device_count()} {jax.default_backend()} device(s), {loop.compiled}"
            )
            if hosts.first():
                warn_if_slow(built, train, built.run.num_steps - loop.step)
            loop()
            trained = "trained; evaluating on test" if job.test else "trained"
            progress.say(f"{trained} after {progress.duration(time.monotonic() - begun)}")
            result = evaluate.finish(loop, data, job.identity(), test=job.test)
    except Interrupted:
        where = " (each process its own)" if jax.process_count() > 1 else ""
        progress.say(f"saved; to resume{where}: {job.command()}")
        raise
    except RunFailed as error:
        _record_failure(job, folder, built, data, error)
        raise
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        failure = RunFailed(
            f"out of device memory ({str(error).splitlines()[0][:120]}): set FIT=1 (--fit), "
            "Encoder.remat=True or a blockwise mixer",
            "OOM",
        )
        _record_failure(job, folder, built, data, failure)
        raise failure from None
    finally:
        if loop is not None:
            loop.close()
    if hosts.first():
        disk.write_json(folder / "result.json", result)
    return result


def _record_failure(job: Job, folder: Path, built, data: Prepared, error: RunFailed) -> None:
    if not hosts.first():
        return
    result = {
        "schema": run_folder.SCHEMA,
        "state": error.state,
        "step": error.step,
        **job.identity(),
        **evaluate.facts(built, data),
        "validation": None,
        "test": None,
        "train": None,
        **run_folder.provenance(),
    }
    disk.write_json(folder / "result.json", result)
