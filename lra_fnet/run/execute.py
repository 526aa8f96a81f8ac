"""Takes one run from its settings to result.json: what `lra-fnet train` and `pretrain` do."""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from lra_fnet import config, testing
from lra_fnet.baselines import shallow
from lra_fnet.errors import Interrupted, RunFailed, UserError, out_of_memory
from lra_fnet.experiment import Experiment
from lra_fnet.machine import device, disk, progress, terminal
from lra_fnet.models.kernels import fastest
from lra_fnet.run import evaluate, pretrained, provenance
from lra_fnet.run import job as jobs
from lra_fnet.run import result as results
from lra_fnet.run.job import Begun, Job
from lra_fnet.run.pretrained import Start
from lra_fnet.run.result import Process, Record
from lra_fnet.tasks import Prepared, sets
from lra_fnet.training import checkpoint, hosts
from lra_fnet.training.loop import Loop


@dataclasses.dataclass(frozen=True)
class Asked:
    """A requested run, and what its job means today."""

    job: Job  # its imports are those that the run uses
    imports: tuple[str, ...]  # all that were named
    experiment: Experiment
    data: Prepared
    start: Start | None  # what it takes over from a pre-trained run

    @property
    def identity(self) -> dict[str, Any]:
        """The fields of result.json that name the run."""
        init = {"init": dataclasses.asdict(self.start.facts)} if self.start else {}
        return self.job.identity() | init


def run(job: Job) -> Record:
    """Prepares the data if need be, trains or resumes, evaluates, and returns the record.

    A complete run is returned as it is, unless job.force moves it aside. If several processes train
    one run (`hosts.join`), each calls this, and the first writes the run folder.

    Raises:
      UserError: the settings or the folder do not allow the run.
      RunFailed: it diverged or ran out of device memory; result.json says so.
      Interrupted: a signal stopped it; the same command resumes.
    """
    if type(job.seed) is not int or not 0 <= job.seed < 2**32:  # JAX would take it modulo 2**32
        raise UserError(f"seed expects a whole number from 0 to {2**32 - 1}, got {job.seed!r}")
    device.require()
    experiment = job.load()
    if job.denoise and experiment.task.validation_is_test:
        raise UserError(
            f"pre-training on {job.task}/{experiment.task.config} would choose the model on test "
            "rows, which are its validation rows: take another preset or DATASET"
        )
    start = pretrained.open_run(job.init, experiment, job.imports) if job.init else None
    imports = job.imports
    job = dataclasses.replace(job, imports=config.used_imports(imports, experiment.config))
    versions = provenance.of_process().versions
    facts = {name: versions[name] for name in ("jax", "jaxlib", "flax", "optax")}
    facts |= {"config": experiment.config, "force": job.force, "test": job.test}
    facts |= {"init": start and start.facts.sha256}
    hosts.same("command, code and set of libraries", job.identity() | facts)
    with jobs.lock(job.folder) if hosts.first() else contextlib.nullcontext():
        asked = Asked(job, imports, experiment, _prepare(job, experiment), start)
        held = _held(asked) if hosts.first() else None
        raw = hosts.agree(held and held.raw)
        if raw is not None:
            return results.parse(raw, path=job.folder)
        before = _begin(asked) if hosts.first() else None
        resolved = hosts.agree(dict(before.resolved) if before else {})
        hosts.check_shared(job.folder / "run.json")
        with fastest.decisions(resolved):
            return _record(job.folder, _train(asked, before))


def _prepare(job: Job, experiment: Experiment) -> Prepared:
    """Returns the task's data, which process 0 prepares before the other processes.

    They find it ready on a shared file system, and prepare their own where --data is local. One
    process alone computes shallow baselines that are missing or damaged.
    """
    if not hosts.first():
        hosts.agree(None)
    data = sets.prepare(experiment.task, job.data, source=job.source)
    kind = shallow.kind(denoise=job.denoise)
    wanted = any(method.of == kind for method in data.task.baselines)
    if wanted and jax.process_count() == 1 and not shallow.available(data):
        shallow.ensure(data)
    if hosts.first():
        longest = max(facts["lengths"]["max"] for facts in data.splits.values())
        if longest > data.task.max_len:
            most = f"MAX_LEN, {data.task.max_len:,} tokens"
            progress.say(f"texts are cut at {most}; the longest has {longest:,}")
        with contextlib.suppress(UserError):  # a folder that cannot be written needs no drawing
            if sheet := sets.illustrate(data):
                progress.say(f"examples: {sheet}")
        hosts.agree(None)
    hosts.same("data", data.fingerprint)
    if job.pretrained and job.pretrained.data_sha256 not in (data.fingerprint, data.corpus):
        raise UserError(
            f"--init {job.init} was trained on data {job.pretrained.data_sha256[:8]}, "
            f"{data.folder} holds {(data.corpus or data.fingerprint)[:8]}: give --data of that "
            "run, or pre-train on the data of this run"
        )
    return data


def _held(asked: Asked) -> Record | None:
    """Returns the record if the folder holds the complete run; moves the folder aside if forced.

    Raises:
      UserError: the folder holds another run, or a part of one that cannot go on.
    """
    job, folder = asked.job, asked.job.folder
    if job.force and any(path.name != ".lock" for path in folder.iterdir()):
        progress.say(f"--force: the old run is now {jobs.move_aside(folder)}")
        return None
    begun, complete, saved = jobs.read(folder), _complete(folder), checkpoint.exists(folder)
    if not (complete or saved):  # there is nothing to lose
        return None
    if held := begun or complete:
        _check_same(asked, held)
    if complete and (complete.score("test") or not job.test):
        progress.say("complete already; --force (make: FORCE=1) trains it again")
        return complete
    if begun is None:
        raise UserError(f"{folder} has no run.json: {jobs.RESTORE}")
    if not saved:
        raise UserError(
            f"{folder} holds a complete run without checkpoints, which cannot be scored on test: "
            "--no-test shows it, --force moves it aside and trains it again"
        )
    return None


def _check_same(asked: Asked, held: Begun | Record) -> None:
    """Raises a UserError unless a run has the names, settings, data and encoder of this one.

    Args:
      asked: the requested run.
      held: the run.json of its folder or, if that was lost, the result.
    """
    now = asked.experiment.config, asked.data.fingerprint, asked.imports
    differences = results.differences(held, *now)
    encoder = held.origin if isinstance(held, Begun) else held.init
    for name, old, new in (
        ("run", "/".join(results.folder_parts(held)), "/".join(results.folder_parts(asked.job))),
        ("encoder of --init", encoder and encoder.sha256, asked.start and asked.start.facts.sha256),
    ):
        if old != new:
            differences.append(config.Difference(name, str(old), str(new)))
    if differences:
        raise UserError(
            f"{asked.job.folder} holds a run of another configuration "
            f"({'; '.join(map(str, differences))}): --force moves it aside, --name NAME starts "
            "another one next to it"
        )


def _begin(asked: Asked) -> Begun | None:
    """Writes config.gin and run.json before the first step; returns what an older run.json says.

    That counts if there is a checkpoint: a run that starts again makes its decisions anew.

    Raises:
      UserError: the disk refuses; a mixer of the user declares uses_mask, but sees padding.
    """
    folder = asked.job.folder
    before = jobs.read(folder) if checkpoint.exists(folder) else None
    if before is None:
        for cls, mixer in {type(one): one for one in asked.experiment.model.encoder.mixers}.items():
            if not cls.__module__.startswith("lra_fnet."):
                testing.check_padding(mixer)
    with disk.writable(folder):
        disk.replace(folder / "config.gin", asked.experiment.config)
        if not _complete(folder):  # else it has no test score yet
            (folder / "result.json").unlink(missing_ok=True)
    _write(asked, before.resolved if before else {}, before.processes if before else ())
    return before


def _complete(folder: Path) -> Record | None:
    """Returns the record of a folder if it was trained to its last step."""
    result = results.read(folder)
    return result if result and result.complete else None


def _write(asked: Asked, resolved: dict[str, Any], processes: Sequence[Process]) -> None:
    """Writes run.json with the decisions made for the run and the processes that have trained it.

    Raises:
      UserError: the disk refuses.
    """
    facts = {
        "data_sha256": asked.data.fingerprint,
        "config": asked.experiment.config,
        "resolved": resolved,
        "processes": [dataclasses.asdict(one) for one in processes],
        "origin": asked.start and dataclasses.asdict(asked.start.facts),
    }
    sealed = results.seal(asked.job.to_json() | facts)
    disk.write_json(asked.job.folder / "run.json", sealed)


def _train(asked: Asked, before: Begun | None) -> dict[str, Any]:
    """Trains and evaluates; returns the object of result.json.

    Args:
      asked: the run.
      before: the run.json of the processes that have trained it.
    """
    job, experiment, data, start = asked.job, asked.experiment, asked.data, asked.start
    began_at = time.monotonic()
    try:
        train, validation = map(data.arrays, experiment.task.splits[:2])
        variables = start and start.variables
        loop = Loop(experiment, train, validation, job.folder, job.seed, start=variables)
        here = provenance.of_process()
        earlier = before.processes if before and loop.step else ()
        earlier = earlier[:-1] if earlier[-1:] == (here,) else earlier
        if hosts.first():
            _write(asked, fastest.made(), (*earlier, here))
        name = results.folder_name(job.model, None, denoise=job.denoise)
        begins = f"resumes at step {loop.step}" if loop.step else "starts"
        progress.say(
            f"{job.task} {name} {job.preset} seed {job.seed} {begins}: "
            f"{loop.parameters:,} parameters, {experiment.run.num_steps:,} steps of "
            f"{experiment.run.batch_size}, {jax.device_count()} {jax.default_backend()} "
            f"device(s), {loop.compiled}"
        )
        loop()
        trained = "trained; evaluating on test" if job.test else "trained"
        progress.say(f"{trained} after {progress.duration(time.monotonic() - began_at)}")
        result = evaluate.finish(loop, data, asked.identity, test=job.test)
        return result | {"earlier": [dataclasses.asdict(one) for one in earlier]}
    except Interrupted:
        where = " (each process its own)" if jax.process_count() > 1 else ""
        progress.say(f"saved; to resume{where}: {terminal.command(job.command())}")
        raise
    except (RunFailed, jax.errors.JaxRuntimeError) as error:
        if problem := out_of_memory(error):
            cure = "set a smaller Run.microbatch or Encoder.remat=True, or choose a blockwise mixer"
            error = RunFailed(f"{problem}: {cure}", "OOM")
        if not isinstance(error, RunFailed):
            raise
        if not (hosts.first() and _complete(job.folder)):  # else it failed as it was scored
            facts = evaluate.facts(error.state, asked.identity, experiment, data)
            _record(job.folder, facts | {"step": error.step, "closed": not job.test})
        raise error from None


def _record(folder: Path, result: dict[str, Any]) -> Record:
    """Returns the result as a value; the first process writes it."""
    if hosts.first():
        return results.write(folder, result)
    return results.parse(results.seal(result), path=folder)
