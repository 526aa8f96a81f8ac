"""Takes one run from its settings to result.json: what `lra-fnet train` and `pretrain` do."""

import contextlib
import dataclasses
import hashlib
import time
from pathlib import Path
from typing import Any

import jax

from lra_fnet import config
from lra_fnet.errors import Interrupted, RunFailed, UserError, out_of_memory
from lra_fnet.experiment import Experiment
from lra_fnet.machine import device, disk, progress, terminal
from lra_fnet.models import fastest
from lra_fnet.run import evaluate, pretrained, provenance, record
from lra_fnet.run import job as jobs
from lra_fnet.run.job import Job
from lra_fnet.run.pretrained import Start
from lra_fnet.run.record import Begun, Process, Record
from lra_fnet.tasks import Prepared, shallow
from lra_fnet.training import checkpoint, hosts
from lra_fnet.training.loop import Loop


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
    folder = job.folder
    versions = provenance.of_process().versions
    facts = {
        **{name: versions[name] for name in ("jax", "jaxlib", "flax", "optax")},
        **{name: getattr(job, name) for name in ("force", "test", "fit")},
        "config": hashlib.sha256(experiment.config.encode()).hexdigest()[:8],
        "init": start and start.facts.sha256[:8],
    }
    hosts.same("run", job.identity() | facts)
    with jobs.lock(folder) if hosts.first() else contextlib.nullcontext():
        data = _prepare(job, experiment)
        complete = _complete(job, folder, experiment, data, start) if hosts.first() else None
        raw = hosts.agree(complete and complete.raw)
        if raw is not None:
            return record.parse(raw, path=folder)
        hosts.check_shared(folder)
        begun = _begin(job, folder, experiment, data, start) if hosts.first() else None
        with fastest.decisions(hosts.agree(dict(begun.resolved) if begun else {})):
            return _train(job, folder, experiment, data, begun, start)


def _prepare(job: Job, experiment: Experiment) -> Prepared:
    """Returns the task's data, which process 0 prepares before the other processes.

    They find it ready on a shared file system, and prepare their own where --data is local. One
    process alone computes shallow baselines that are missing or damaged.
    """
    if not hosts.first():
        hosts.agree(None, "data")
    new = not experiment.task.folder(job.data).exists()
    data = experiment.task.prepare(job.data, source=job.source)
    kind = shallow.kind(denoise=job.denoise)
    wanted = any(method.of == kind for method in data.task.baselines)
    missing = new or not shallow.available(data)
    if wanted and missing and jax.process_count() == 1:
        shallow.ensure(data)
    if hosts.first():
        _show(data)
        hosts.agree(None, "data")
    hosts.same("data", {"data": data.fingerprint[:8]})
    if job.pretrained and job.pretrained.data_sha256 not in (data.fingerprint, data.corpus):
        has, remedy = f"holds {data.fingerprint[:8]}", "pre-train on the data of this run"
        if data.corpus:
            has = f"is in the pieces of {data.corpus[:8]}"
            remedy = (
                f"give --data of that run, or prepare the pieces again with `lra-fnet data --task "
                f"{job.task} --dataset {experiment.task.config} --data {job.data} --force`"
            )
        raise UserError(
            f"--init {job.init} was trained on data {job.pretrained.data_sha256[:8]}, "
            f"{data.folder} {has}: {remedy}"
        )
    return data


def _show(data: Prepared) -> None:
    """Says where examples of a set of images are drawn, and draws them if need be."""
    with contextlib.suppress(UserError):  # a folder that cannot be written needs no drawing
        if sheet := data.task.illustrate(data):
            progress.say(f"examples: {sheet}")


def _complete(
    job: Job, folder: Path, experiment: Experiment, data: Prepared, start: Start | None
) -> Record | None:
    """Returns the record if the folder holds the complete run; moves the folder aside if forced.

    Raises:
      UserError: the folder holds a run of another configuration, on other data, or from another
        pre-trained run, or one that is not complete and lacks its run.json or has an edited
        config.gin.
    """
    if job.force and any(path.name != ".lock" for path in folder.iterdir()):
        aside = jobs.move_aside(folder)
        with disk.writable(folder):
            folder.mkdir()
            (aside / ".lock").rename(folder / ".lock")  # the lock that this process holds
        progress.say(f"--force: the old run is now {aside}")
        return None
    begun, result = jobs.read_begun(folder), record.read(folder)
    if begun is not None:
        if begun.parts != job.folder.parts[-4:]:
            raise UserError(
                f"{folder} holds the run {'/'.join(begun.parts)}, and was copied or renamed: "
                "--force moves it aside"
            )
        _check_same(job, folder, begun, experiment, data, start)
    elif result is not None:  # the rest was lost, or never copied
        _check_same(job, folder, result, experiment, data, start)
    if result is not None and result.complete and (result.score("test") or not job.test):
        changed = result.commit not in (None, provenance.commit()[0])
        commit = f", trained at commit {result.revision}" if changed else ""
        progress.say(f"complete already{commit}; --force trains it again")
        return result
    kept = ("result.json", "metrics.jsonl", "checkpoints")
    if begun is None and any((folder / name).exists() for name in kept):
        raise UserError(f"{folder} has no run.json: {jobs.RESTORE}")
    if result is not None and result.complete and checkpoint.load(folder, "last") is None:
        raise UserError(
            f"{folder} holds a complete run without a test score, and its folder checkpoints is "
            "gone: put it back, give --no-test to take the run as it is, or --force to train again"
        )
    # A process with newer code may have been killed between writing config.gin and run.json.
    if begun and jobs.copy_was_edited(folder, begun.config or "", experiment.config):
        raise UserError(
            f"{folder / 'config.gin'} was edited: it is a copy and has no effect; delete it, and "
            "give other settings with --set"
        )
    return None


def _check_same(
    job: Job,
    folder: Path,
    held: Begun | Record,
    experiment: Experiment,
    data: Prepared,
    start: Start | None,
) -> None:
    """Checks that a run has this configuration, data and pre-trained encoder.

    Args:
      job: the requested run.
      folder: its folder.
      held: its run.json or, if that was lost, its result.
      experiment: of the requested run.
      data: the prepared task.
      start: what the requested run begins from.

    Raises:
      UserError: they differ, or run.json lacks one of them.
    """
    if held.config is None or held.data_sha256 is None:
        absent = "config" if held.config is None else "data_sha256"
        raise UserError(f"{folder / 'run.json'}: {absent} is missing; {jobs.RESTORE}")
    differences = config.differing(held.config, experiment.config)
    if held.data_sha256 != data.fingerprint:
        hashes = held.data_sha256[:8], data.fingerprint[:8]
        differences.append(config.Difference("data", *hashes))
    differences += record.code_differences(held.code, job.imports)
    origin = held.init if isinstance(held, Record) else held.origin
    encoders = origin and origin.sha256, start and start.facts.sha256
    if encoders[0] != encoders[1]:
        names = (sha256[:8] if sha256 else "none" for sha256 in encoders)
        differences.append(config.Difference("encoder of --init", *names))
    if differences:
        raise UserError(
            f"{folder} holds a run of another configuration ({'; '.join(map(str, differences))}): "
            "--force moves it aside, --name NAME starts another one next to it"
        )


def _begin(
    job: Job, folder: Path, experiment: Experiment, data: Prepared, start: Start | None
) -> Begun:
    """Writes config.gin and run.json before the first step; returns what run.json says.

    Raises:
      UserError: an older run.json is damaged, or the disk refuses.
    """
    before = jobs.read_begun(folder)
    with disk.writable(folder):
        disk.replace(folder / "config.gin", experiment.config)
        (folder / "result.json").unlink(missing_ok=True)  # of a failure, or without a test score
    facts = {"data_sha256": data.fingerprint, "config": experiment.config}
    facts |= {"origin": dataclasses.asdict(start.facts)} if start else {}
    begun = record.build(Begun, job.to_json() | facts)
    if before:
        kept = {"resolved": before.resolved, "processes": before.processes}
        begun = dataclasses.replace(begun, **kept)
    _write(job, folder, begun)
    return begun


def _write(job: Job, folder: Path, begun: Begun) -> None:
    """Writes run.json.

    Raises:
      UserError: the disk refuses.
    """
    facts = dataclasses.asdict(begun)
    own = ("data_sha256", "config", "resolved", "processes", "origin")
    jobs.write_begun(folder, job.to_json() | {name: facts[name] for name in own})


def _train(
    job: Job,
    folder: Path,
    experiment: Experiment,
    data: Prepared,
    begun: Begun | None,
    start: Start | None,
) -> Record:
    began_at = time.monotonic()
    identity = job.identity() | ({"init": dataclasses.asdict(start.facts)} if start else {})
    variables = start.variables if start else None
    try:
        with hosts.together():
            train, validation = map(data.arrays, experiment.task.splits[:2])
            loop = Loop(
                experiment, train, validation, folder, job.seed, fits=job.fit, start=variables
            )
            earlier: tuple[Process, ...] = ()
            if begun:
                here = provenance.of_process()
                before = begun.processes if loop.step else ()
                earlier = before[:-1] if before[-1:] == (here,) else before
                facts = {"processes": (*earlier, here), "resolved": fastest.made()}
                _write(job, folder, dataclasses.replace(begun, **facts))
            begins = f"resumes at step {loop.step}" if loop.step else "starts"
            name = record.folder_name(job.model, None, denoise=job.denoise)
            progress.say(
                f"{job.task} {name} {job.preset} seed {job.seed} {begins}: "
                f"{loop.parameters:,} parameters, {experiment.run.num_steps:,} steps of "
                f"{experiment.run.batch_size}, {jax.device_count()} {jax.default_backend()} "
                f"device(s), {loop.compiled}"
            )
            optimizer, steps = experiment.optimizer, experiment.run.num_steps
            rises = "linear_warmup" in optimizer.factor_names() and optimizer.warmup >= steps
            if rises and not loop.step:
                progress.say(
                    f"the learning rate rises to the end: Optimizer.warmup is {optimizer.warmup:,} "
                    f"steps, Run.num_steps {steps:,}. Going on."
                )
            loop()
            trained = "trained; evaluating on test" if job.test else "trained"
            progress.say(f"{trained} after {progress.duration(time.monotonic() - began_at)}")
            result = evaluate.finish(loop, data, identity, test=job.test)
            if earlier:
                result["earlier"] = [dataclasses.asdict(one) for one in earlier]
    except Interrupted:
        where = " (each process its own)" if jax.process_count() > 1 else ""
        progress.say(f"saved; to resume{where}: {terminal.command(job.command())}")
        raise
    except (RunFailed, jax.errors.JaxRuntimeError) as error:
        failure = _failure(error)
        facts = evaluate.facts(failure.state, identity, experiment, data)
        _record(folder, facts | {"step": failure.step} | ({} if job.test else {"closed": True}))
        raise failure from None
    return _record(folder, result)


def _failure(error: Exception) -> RunFailed:
    """Returns the failure that an error of the training means; raises other errors again."""
    if isinstance(error, RunFailed):
        return error
    if not (problem := out_of_memory(error)):
        raise error
    return RunFailed(
        f"{problem}: add --fit (a sweep: set Run.microbatch), set Encoder.remat=True, or choose a "
        "blockwise mixer",
        "OOM",
    )


def _record(folder: Path, result: dict[str, Any]) -> Record:
    """Returns the result as a value; the first process writes it."""
    return (
        record.write(folder, result)
        if hosts.first()
        else record.parse(record.seal(result), path=folder)
    )
