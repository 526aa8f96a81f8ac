"""Takes one run from its settings to result.json: what `lra-fnet train` and `pretrain` do."""

import contextlib
import dataclasses
import hashlib
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
from lra_fnet.run import folder as run_files
from lra_fnet.run import job as jobs
from lra_fnet.run import result as record
from lra_fnet.run.folder import Begun
from lra_fnet.run.job import Job
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
    facts = {
        **{name: versions[name] for name in ("jax", "jaxlib", "flax", "optax")},
        **{name: getattr(job, name) for name in ("force", "test")},
        "config": hashlib.sha256(experiment.config.encode()).hexdigest()[:8],
        "init": start and start.facts.sha256[:8],
    }
    hosts.same("command, code and set of libraries", job.identity() | facts)
    with jobs.lock(job.folder) if hosts.first() else contextlib.nullcontext():
        asked = Asked(job, imports, experiment, _prepare(job, experiment), start)
        complete = _complete(asked) if hosts.first() else None
        raw = hosts.agree(complete and complete.raw)
        if raw is not None:
            return record.parse(raw, path=job.folder)
        before = _begin(asked) if hosts.first() else None
        resolved = hosts.agree(dict(before.resolved) if before else {})
        hosts.check_shared(job.folder / "run.json")
        with fastest.decisions(resolved):
            return _train(asked, before)


def _prepare(job: Job, experiment: Experiment) -> Prepared:
    """Returns the task's data, which process 0 prepares before the other processes.

    They find it ready on a shared file system, and prepare their own where --data is local. One
    process alone computes shallow baselines that are missing or damaged.
    """
    if not hosts.first():
        hosts.agree(None)
    new = not experiment.task.folder(job.data).exists()
    data = sets.prepare(experiment.task, job.data, source=job.source)
    kind = shallow.kind(denoise=job.denoise)
    wanted = any(method.of == kind for method in data.task.baselines)
    missing = new or not shallow.available(data)
    if wanted and missing and jax.process_count() == 1:
        shallow.ensure(data)
    if hosts.first():
        _show(data)
        hosts.agree(None)
    hosts.same("data", data.fingerprint)
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
    """Says whether texts are cut, and where examples of images are drawn; draws them if need be."""
    longest = max(facts["lengths"]["max"] for facts in data.splits.values())
    most = data.task.max_len
    if longest > most:
        progress.say(f"texts are cut at MAX_LEN, {most:,} tokens; the longest has {longest:,}")
    with contextlib.suppress(UserError):  # a folder that cannot be written needs no drawing
        if sheet := sets.illustrate(data):
            progress.say(f"examples: {sheet}")


def _complete(asked: Asked) -> Record | None:
    """Returns the record if the folder holds the complete run; moves the folder aside if forced.

    Raises:
      UserError: the folder holds a run of another configuration, on other data, or from another
        pre-trained run, or one that is not complete and lacks its run.json or has an edited
        config.gin.
    """
    job, folder = asked.job, asked.job.folder
    if job.force and any(path.name != ".lock" for path in folder.iterdir()):
        aside = jobs.move_aside(folder)
        progress.say(f"--force: the old run is now {aside}")
        return None
    begun, result = run_files.read_begun(folder), record.read(folder)
    if begun is not None:
        if (parts := record.folder_parts(begun)) != folder.parts[-4:]:
            raise UserError(
                f"{folder} holds the run {'/'.join(parts)}, and was copied or renamed: "
                "--force moves it aside"
            )
        if not checkpoint.exists(folder) and not (result and result.complete):
            return None  # it stopped before its first checkpoint: nothing to lose
        _check_same(asked, begun)
    elif result is not None:  # the rest was lost, or never copied
        _check_same(asked, result)
    if result is not None and result.complete and (result.score("test") or not job.test):
        changed = result.commit not in (None, provenance.commit()[0])
        commit = f", trained at commit {result.revision}" if changed else ""
        progress.say(f"complete already{commit}; --force (make: FORCE=1) trains it again")
        return result
    kept = ("result.json", "metrics.jsonl", "checkpoints")
    if begun is None and any((folder / name).exists() for name in kept):
        raise UserError(f"{folder} has no run.json: {run_files.RESTORE}")
    if result is not None and result.complete and checkpoint.load(folder, "last") is None:
        raise UserError(
            f"{folder} holds a complete run without a test score, and its folder checkpoints is "
            "gone: put it back, give --no-test to take the run as it is, or --force to train again"
        )
    # A process with newer code may have been killed between writing config.gin and run.json.
    if begun and jobs.copy_was_edited(folder, begun.config or "", asked.experiment.config):
        raise UserError(
            f"{folder / 'config.gin'} was edited: it is a copy and has no effect; delete it, and "
            "give other settings with --set"
        )
    return None


def _check_same(asked: Asked, held: Begun | Record) -> None:
    """Checks that a run has the configuration, data and pre-trained encoder that are asked for.

    Args:
      asked: the requested run.
      held: the run.json of its folder or, if that was lost, the result.

    Raises:
      UserError: they differ, or run.json lacks one of them.
    """
    job, start = asked.job, asked.start
    if held.config is None or held.data_sha256 is None:
        absent = "config" if held.config is None else "data_sha256"
        raise UserError(f"{job.folder / 'run.json'}: {absent} is missing; {run_files.RESTORE}")
    now = asked.experiment.config, asked.data.fingerprint, asked.imports
    named = held.imports if isinstance(held, Begun) else ()
    differences = record.differences(held, *now, named)
    origin = held.init if isinstance(held, Record) else held.origin
    encoders = origin and origin.sha256, start and start.facts.sha256
    if encoders[0] != encoders[1]:
        names = (sha256[:8] if sha256 else "none" for sha256 in encoders)
        differences.append(config.Difference("encoder of --init", *names))
    if differences:
        raise UserError(
            f"{job.folder} holds a run of another configuration "
            f"({'; '.join(map(str, differences))}): --force moves it aside, --name NAME starts "
            "another one next to it"
        )


def _begin(asked: Asked) -> Begun | None:
    """Writes config.gin and run.json before the first step; returns what an older run.json says.

    That counts if there is a checkpoint: a run that starts again makes its decisions anew.

    Raises:
      UserError: an older run.json is damaged, or the disk refuses; a mixer of the user declares
        uses_mask, but sees padding.
    """
    folder = asked.job.folder
    before = run_files.read_begun(folder)
    if not checkpoint.exists(folder):
        before = None
        for cls, mixer in {type(one): one for one in asked.experiment.model.encoder.mixers}.items():
            if not cls.__module__.startswith("lra_fnet."):
                testing.check_padding(mixer)
    with disk.writable(folder):
        disk.replace(folder / "config.gin", asked.experiment.config)
        if not _holds_complete(folder):  # that has no test score yet
            (folder / "result.json").unlink(missing_ok=True)
    _write(asked, before.resolved if before else {}, before.processes if before else ())
    return before


def _holds_complete(folder: Path) -> bool:
    result = record.read(folder)
    return result is not None and result.complete


def _write(asked: Asked, resolved: dict[str, Any], processes: Sequence[Process]) -> None:
    """Writes run.json.

    Args:
      asked: the run.
      resolved: the decisions that were made for it, see `fastest.decisions`.
      processes: those that have trained it.

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
    run_files.write_begun(asked.job.folder, asked.job.to_json() | facts)


def _train(asked: Asked, before: Begun | None) -> Record:
    """Trains and evaluates; `before` is the run.json of the processes that have trained it."""
    job, experiment, data, start = asked.job, asked.experiment, asked.data, asked.start
    began_at = time.monotonic()
    identity = job.identity() | ({"init": dataclasses.asdict(start.facts)} if start else {})
    try:
        train, validation = map(data.arrays, experiment.task.splits[:2])
        variables = start and start.variables
        loop = Loop(experiment, train, validation, job.folder, job.seed, start=variables)
        here = provenance.of_process()
        earlier = before.processes if before and loop.step else ()
        earlier = earlier[:-1] if earlier[-1:] == (here,) else earlier
        if hosts.first():
            _write(asked, fastest.made(), (*earlier, here))
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
                f"steps, Run.num_steps {steps:,}. Training continues."
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
        if hosts.first() and _holds_complete(job.folder):  # it failed as it was scored
            raise failure from None
        facts = evaluate.facts(failure.state, identity, experiment, data)
        facts |= {"step": failure.step} | ({} if job.test else {"closed": True})
        _record(job.folder, facts)
        raise failure from None
    return _record(job.folder, result)


def _failure(error: Exception) -> RunFailed:
    """Returns the failure that an error of the training means; raises other errors again."""
    if isinstance(error, RunFailed):
        return error
    if not (problem := out_of_memory(error)):
        raise error
    return RunFailed(
        f"{problem}: set a smaller Run.microbatch or Encoder.remat=True, or choose a "
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
