"""Takes one run from its settings to result.json: what `lra-fnet train` and `pretrain` do."""

import contextlib
import dataclasses
from typing import Any

import jax

from lra_fnet import config, testing
from lra_fnet.baselines import shallow
from lra_fnet.errors import Interrupted, RunFailed, UserError, out_of_memory
from lra_fnet.experiment import Experiment
from lra_fnet.machine import device, disk, progress, terminal
from lra_fnet.models.kernels import fastest
from lra_fnet.run import evaluate, model, provenance
from lra_fnet.run import job as jobs
from lra_fnet.run import result as results
from lra_fnet.run.job import Begun, Job
from lra_fnet.run.model import Start
from lra_fnet.run.result import Record
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
    experiment = job.load()
    _use_devices(job, experiment)
    if job.denoise and experiment.task.validation_is_test:
        raise UserError(
            f"pre-training on {job.task}/{experiment.task.config} would choose the model on test "
            "rows, which are its validation rows: take another preset or DATASET"
        )
    start = model.open_pretrained(job.init, experiment, job.imports) if job.init else None
    imports = job.imports
    job = dataclasses.replace(job, imports=config.used_imports(imports, experiment.config))
    versions = provenance.of_process().versions
    facts = {name: versions[name] for name in ("jax", "jaxlib", "flax", "optax")}
    facts |= {"config": experiment.config, "force": job.force, "test": job.test}
    facts |= {"init": start and start.facts.sha256}
    hosts.same("command, code and set of libraries", job.identity() | facts)
    with jobs.lock(job.folder) if hosts.first() else contextlib.nullcontext():
        asked = Asked(job, imports, experiment, _prepare(job, experiment), start)
        before, held = _held(asked) if hosts.first() else (None, None)
        if raw := hosts.agree(held and held.raw):
            result = results.parse(raw, path=job.folder)
            if result.score("test") or not job.test:
                return result
            return evaluate.score_run(job.folder, imports, job.data)
        if hosts.first():
            for one in {type(one): one for one in experiment.model.encoder.mixers}.values():
                if before is None and not type(one).__module__.startswith("lra_fnet."):
                    testing.check_padding(one)
        resolved = hosts.agree(dict(before.resolved) if before else {})
        hosts.check_shared(job.folder / ".lock")
        with fastest.decisions(resolved):
            return evaluate.record(job.folder, _train(asked, before))


def _use_devices(job: Job, experiment: Experiment) -> None:
    """Starts JAX with the devices of the job; a run that goes on has as many as it began with."""
    if job.devices is None:
        device.require()
    elif job.devices:
        device.use(job.devices)
    elif not job.force and checkpoint.exists(job.folder) and (begun := jobs.read(job.folder)):
        device.use(begun.cpu_devices, exactly=False)
    else:
        device.use_cores(experiment.run.microbatch or experiment.run.batch_size)


def _prepare(job: Job, experiment: Experiment) -> Prepared:
    """Returns the task's data, which process 0 prepares before the other processes.

    They find it ready on a shared file system, and prepare their own where --data is local. One
    process alone computes shallow baselines that are not on disk, or damaged.
    """
    if not hosts.first():
        hosts.agree(None)
    data = sets.prepare(experiment.task, job.data, source=job.source)
    kind = shallow.kind(denoise=job.denoise)
    wanted = any(method.of == kind for method in data.task.baselines)
    if wanted and jax.process_count() == 1 and not shallow.read(data):
        shallow.ensure(data)
    if hosts.first():
        longest = max(facts["lengths"]["max"] for facts in data.splits.values())
        if longest > data.task.max_len:
            most = f"MAX_LEN, {data.task.max_len:,} tokens"
            progress.say(f"texts are cut at {most}; the longest has {longest:,}")
        hosts.agree(None)
    hosts.same("data", data.fingerprint)
    known = (data.fingerprint, data.corpus)
    # The test rows of a set may be in another's training rows, unless the rows were drawn.
    if data.source != "generator" and job.pretrained and job.pretrained.data_sha256 not in known:
        raise UserError(
            f"--init {job.init} was trained on data {job.pretrained.data_sha256[:8]}, "
            f"{data.folder} holds {(data.corpus or data.fingerprint)[:8]}: give --data of that "
            "run, or pre-train on the data of this run"
        )
    return data


def _held(asked: Asked) -> tuple[Begun | None, Record | None]:
    """Returns the run.json of the run that the folder holds, and its record if it is complete.

    Neither counts if the run is forced to train again, or has no checkpoint to go on from.

    Raises:
      UserError: the folder holds another run, or a part of one that cannot go on.
    """
    job, experiment, folder = asked.job, asked.experiment, asked.job.folder
    if job.force:
        return None, None
    begun, result = jobs.read(folder), results.read(folder)
    complete = result if result and result.complete else None
    if not (complete or checkpoint.exists(folder)):  # there is nothing to lose
        return None, None
    if held := begun or complete:
        now = experiment.config, asked.data.fingerprint, asked.imports
        differences = results.differences(held, *now)
        origin = held.origin if isinstance(held, Begun) else held.init
        encoders = origin and origin.sha256, asked.start and asked.start.facts.sha256
        folders = ("/".join(results.folder_parts(one)) for one in (held, job))
        for name, (old, new) in {"run": folders, "encoder of --init": encoders}.items():
            if old != new:
                differences.append(config.Difference(name, str(old), str(new)))
        if differences:
            raise UserError(
                f"{folder} holds a run of another configuration "
                f"({'; '.join(map(str, differences))}): --force moves it aside, --name NAME starts "
                "another one next to it"
            )
    if complete:
        progress.say("complete already; --force (make: FORCE=1) trains it again")
    elif begun is None:
        raise UserError(f"{folder} has no run.json: {jobs.RESTORE}")
    return begun, complete


def _train(asked: Asked, before: Begun | None) -> dict[str, Any]:
    """Trains and evaluates; returns the object of result.json.

    With --force, the old run is moved aside once the new one is compiled.

    Args:
      asked: the run.
      before: the run.json of the processes that have trained it.
    """
    job, experiment, data, start = asked.job, asked.experiment, asked.data, asked.start
    old = job.force and any(path.name != ".lock" for path in job.folder.iterdir())
    loop = None
    try:
        train, validation = map(data.arrays, experiment.task.splits[:2])
        again = {"start": start and start.variables, "afresh": job.force}
        loop = Loop(experiment, train, validation, job.folder, job.seed, **again)
        here = provenance.of_process()
        earlier = before.processes if before and loop.step else ()
        earlier = earlier[:-1] if earlier[-1:] == (here,) else earlier
        if hosts.first():  # before the first step
            if old:
                progress.say(f"--force: the old run is now {jobs.move_aside(job.folder)}")
            with disk.writable(job.folder):
                disk.replace(job.folder / "config.gin", experiment.config)
                (job.folder / "result.json").unlink(missing_ok=True)
            facts = {
                "data_sha256": data.fingerprint,
                "config": experiment.config,
                "resolved": fastest.made(),
                "processes": [dataclasses.asdict(one) for one in (*earlier, here)],
                "origin": start and dataclasses.asdict(start.facts),
            }
            sealed = results.seal(job.to_json() | facts)
            disk.write_json(job.folder / "run.json", sealed)
        begins = f"resumes at step {loop.step}" if loop.step else "starts"
        progress.say(
            f"{job.folder} {begins}: {loop.parameters:,} parameters, "
            f"{experiment.run.num_steps:,} steps of {experiment.run.batch_size}, "
            f"{jax.device_count()} {jax.default_backend()} device(s)"
        )
        loop()
        result = evaluate.finish(loop, data, asked.identity, test=job.test)
        return result | {"earlier": [dataclasses.asdict(one) for one in earlier]}
    except Interrupted:
        where = " (each process its own)" if jax.process_count() > 1 else ""
        progress.say(f"saved; to resume{where}: {terminal.command(job.command())}")
        raise
    except (RunFailed, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, RunFailed):
            if not (problem := out_of_memory(error)):
                raise
            cure = "set a smaller Run.microbatch or Encoder.remat=True, or choose a blockwise mixer"
            error = RunFailed(f"{problem}: {cure}", "OOM")
        if old and loop is None:  # it keeps its result
            raise error from None
        facts = evaluate.facts(error.state, asked.identity, experiment, data)
        facts |= {"step": error.step, "closed": not job.test}
        evaluate.record(job.folder, facts)
        raise error from None
