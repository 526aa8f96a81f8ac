"""Checks results as any reader can: a row for each run, a column for each check.

result  result.json is complete: schema, counts against the bits of the rows, steps, sha256; the
        best and last scores on validation are those of metrics.jsonl
config  the recorded configuration is the one that task, model, preset and overrides give; a
        setting that only one of the two has came or went with the code and is skipped
data    rows and majority floor are those of data/expected.json or of the prepared set
code    the commit is known, nothing differed from it, and no other code or machine was used
replay  the first steps, trained again, give the losses in metrics.jsonl
"""

import contextlib
import functools
import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet import config
from lra_fnet import experiment as experiments
from lra_fnet.counts import Counts
from lra_fnet.data import store
from lra_fnet.errors import UserError, one_line
from lra_fnet.experiment import Experiment
from lra_fnet.machine import disk, progress
from lra_fnet.models.encoder import parameter_count, variable_shapes
from lra_fnet.models.kernels import fastest
from lra_fnet.run import evaluate, model, pretrained
from lra_fnet.run import folder as folders
from lra_fnet.run import job as jobs
from lra_fnet.run import result as results
from lra_fnet.run.result import Record
from lra_fnet.tasks import Prepared, sets
from lra_fnet.training.checkpoint import sha256
from lra_fnet.training.replay import mean_loss, replay

OK, NOTE, ABSENT, FAILED = "ok", "note", "not there", "FAILED"
UNASKED = "not asked for"  # the replay without --replay
TOLERANCE = 0.01  # relative, of losses trained again


class Absent(Exception):
    """A check lacks a file or data; the text says which."""


class Finding(NamedTuple):
    """The outcome of a check, and the reason."""

    state: str = OK
    reason: str = ""


class Verdict(NamedTuple):
    """The findings about one run, by check."""

    run: str
    findings: dict[str, Finding]

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(finding.state == FAILED for finding in self.findings.values())


class Options(NamedTuple):
    """What `verify` may use besides the results."""

    data: Path | None = None  # of the prepared sets; None for the folder that each run names
    imports: tuple[str, ...] = ()
    gin_dirs: tuple[Path, ...] = ()
    replay: int = 0  # steps


def main(paths: Sequence[Path], options: Options) -> int:
    """Prints the table of all runs below the paths; returns 1 if a check failed.

    Args:
      paths: see `find`.
      options: see `Options`.

    Raises:
      UserError: a path holds no result.
    """
    folders_below = [folder for path in paths for folder in find(path)]
    verdicts = []
    for number, folder in enumerate(folders_below, start=1):
        progress.say(f"{number} of {len(folders_below)}: {folder}")
        verdicts.append(verify(folder, options, moved=folder in paths))
    print(table(verdicts), end="")
    return int(any(one.failed for one in verdicts))


def find(path: Path) -> list[Path]:
    """Returns a run folder or an export, or else all run folders below a path.

    Hidden folders are left out, and results/submitted, whose runs need their authors' modules,
    unless the path lies in it.

    Raises:
      UserError: there are none.
    """
    if any((path / name).is_file() for name in ("result.json", model.CONFIG)):
        return [path]
    shown = [
        file.parent
        for file in sorted(path.glob("**/seed*/result.json"))
        if not any(n == "submitted" or n[0] == "." for n in file.relative_to(path).parts)
    ]
    if not shown:
        raise UserError(
            f"{path} holds no result: name a run folder, an export, or a folder of runs"
        )
    return shown


def verify(folder: Path, options: Options, *, moved: bool = True) -> Verdict:
    """Makes every check of a run that its files allow.

    Args:
      folder: a run folder with or without checkpoints, or an export.
      options: see `Options`.
      moved: whether the folder's path may differ from the run's.
    """
    findings = dict.fromkeys(CHECKS, Finding(ABSENT))
    try:
        exported = disk.read_json(folder / model.CONFIG)
        if exported is None:
            result = results.read(folder, moved=moved)
            assert result is not None
        else:
            _, result = model.read_export(folder, exported)
    except UserError as error:
        return Verdict(str(folder), findings | {"result": Finding(FAILED, str(error))})
    if options.data is None:
        with contextlib.suppress(UserError):
            job = jobs.read_job(folder)
            options = options._replace(data=job.data if job else jobs.Job.data)
    for name, check in CHECKS.items():
        try:
            with fastest.decisions(dict(result.resolved)):
                findings[name] = check(folder, result, options)
        except Absent as error:
            findings[name] = Finding(ABSENT, str(error))
        except Exception as error:  # what a stranger wrote can fail anywhere in the model
            findings[name] = Finding(FAILED, one_line(error, 300))
    return Verdict(str(folder), findings)


def _noted(notes: Sequence[str]) -> Finding:
    return Finding(NOTE, "; ".join(notes)) if notes else Finding()


def _result(folder: Path, result: Record, options: Options) -> Finding:
    """Compares the validation scores with those in metrics.jsonl, and "best" with all of them."""
    logged = folders.evaluations(folder) if result.complete else {}
    notes = ["no sha256"] * (not result.sha256)
    if not logged:
        notes += ["no validation scores in metrics.jsonl to compare with"] * result.complete
        return _noted(notes)
    for kind in results.CHECKPOINTS:
        score = result.score("validation", kind)
        assert score is not None  # a complete run has both
        line = logged.get(score.step)
        if line is None:
            raise UserError(f"{kind}: metrics.jsonl has no evaluation at step {score.step}")
        right = round(line["accuracy"] * score.count)
        if score.correct != right:
            raise UserError(f"{kind}: {score.correct} rows correct, {right} in metrics.jsonl")
        loss = score.loss / score.count
        if not math.isnan(loss) and not math.isclose(loss, line["loss"], rel_tol=1e-6):
            raise UserError(f"{kind}: loss {loss:.6g}, {line['loss']:.6g} in metrics.jsonl")
    rank = _of_names(result, options).objective.rank
    best = min(logged, key=lambda step: (rank(_sums(logged[step])), step))
    if result.validation and best != result.validation.best.step:
        raise UserError(f"best: step {result.validation.best.step}, but step {best} was better")
    return _noted(notes)


def _sums(line: dict) -> dict:
    """Returns a line of metrics.jsonl as the sums over one row, which rank as those over all do."""
    names = {"correct": "accuracy", "order_correct": "order_accuracy"}
    return {**line, **{new: line.get(old) for new, old in names.items()}, "count": 1, "rows": 1}


_load = functools.cache(experiments.load)


def _of_names(result: Record, options: Options) -> Experiment:
    """Returns the experiment that the names of a run give today."""
    return _load(
        result.task,
        result.model,
        result.preset,
        result.overrides,
        imports=options.imports,
        gin_dirs=options.gin_dirs,
        denoise=result.denoise,
        done=result.init.steps if result.init and result.init.task == result.task else 0,
        data=options.data,
    )


@functools.cache
def _count(encoder_and_head, row_shape: tuple[int, ...]) -> int:
    """Counts the parameters, once for all runs of a model, whatever their training."""
    ids, mask = (jax.ShapeDtypeStruct((1, *row_shape), kind) for kind in (jnp.int32, bool))
    return parameter_count(variable_shapes(encoder_and_head, ids, mask))


def _config(folder: Path, result: Record, options: Options) -> Finding:
    """Compares the recorded configuration with that of its names."""
    copy = folder / "config.gin"
    if copy.is_file() and copy.read_bytes() != result.config.encode():
        raise UserError("config.gin was edited: it is a copy and has no effect; use --set")
    named = _of_names(result, options)
    differences = config.differing(result.config, named.config)
    if changed := [d for d in differences if "absent" not in (d.old, d.new)]:
        raise UserError("; ".join(map(str, changed)))
    score, steps = result.score("validation", "last"), named.run.num_steps
    if score and score.step != steps:
        raise UserError(f"it was scored at step {score.step}, its config has {steps} steps")
    for name, value in evaluate.traits(named).items():
        if (recorded := getattr(result, name)) != value:
            raise UserError(f"{name} is {recorded}, its config has {value}")
    try:
        parameters = _count(named.model, named.task.row_shape)
    except UserError as error:  # as fused attention without a GPU
        return Finding(NOTE, f"its parameters cannot be counted here: {error}")
    if result.parameters not in (None, parameters):
        raise UserError(f"{result.parameters} parameters, its config has {parameters}")
    return Finding()


def _open(result: Record, options: Options) -> Prepared:
    """Opens the prepared set of a run's task."""
    return sets.open(_of_names(result, options).task, options.data or jobs.Job.data)


def _data(folder: Path, result: Record, options: Options) -> Finding:
    """Compares the fingerprint and the floor with the prepared set and with data/expected.json."""
    expected = store.expected().get(result.task, {})
    known = [facts.get("splits") for n, facts in expected.items() if result.dataset in (None, n)]
    with contextlib.suppress(UserError):
        known.append(_open(result, options).splits)
    known = [splits for splits in known if splits and all("sha256" in s for s in splits.values())]
    name = f"{result.task}/{result.dataset or '?'}"
    if not known:
        raise Absent(f"{name} is neither prepared nor in data/expected.json with its sha256")
    for splits in known:
        if store.combine(splits) == result.data_sha256:
            labels = splits["test"].get("label_counts")
            if labels and (floor := Counts(max(labels), sum(labels))) != result.floor:
                raise UserError(f"floor {result.floor}, {name} has {floor}")
            return Finding()
    raise UserError(f"{result.data_sha256[:8]} is not the fingerprint of {name}")


def _code(folder: Path, result: Record, options: Options) -> Finding:
    """Reports whether the code that trained the run is known, including the user's own."""
    if result.commit is None:
        return Finding(NOTE, "no commit was recorded")
    if not re.fullmatch("[0-9a-f]{40}", result.commit):
        raise UserError(f"no commit: {result.commit!r}")
    if not _is_known(result.commit):
        return Finding(NOTE, "its commit is not in this repository")
    code = results.code_differences(result.code, result.config, options.imports)
    notes = list(map(str, code))
    notes += ["files differed from its commit"] * bool(result.dirty)
    if result.earlier:
        began = "; ".join(f"{one.revision} on {one.device}" for one in result.earlier)
        notes.append(f"it began with other code or on another machine: {began}")
    if one := result.scored_by:
        notes.append(f"other code or another machine scored it: {one.revision} on {one.device}")
    return _noted(notes)


@functools.cache
def _is_known(commit: str) -> bool:
    """Returns whether this repository has a commit."""
    git = ["git", "-C", str(Path(__file__).parents[2]), "cat-file", "-e", f"{commit}^{{commit}}"]
    try:
        return subprocess.run(git, capture_output=True).returncode == 0
    except OSError:  # no git
        return False


def _replay(folder: Path, result: Record, options: Options) -> Finding:
    """Trains the first steps again and compares the mean losses with metrics.jsonl."""
    if not options.replay:
        return Finding(UNASKED, "--replay STEPS trains the first steps again")
    if not result.complete:
        raise Absent(f"the run ended as {result.state}")
    experiment = _of_names(result, options)
    try:
        data = _open(result, options)
        data.check_is_of(result.folder, result.data_sha256, "prepare that set to check it")
    except UserError as error:
        raise Absent(str(error)) from None
    recorded = dict(folders.curve(folder).loss)
    every, last = experiment.run.log_every, experiment.run.num_steps
    steps = min(last, -(-options.replay // every) * every)
    start = None
    if result.init:
        job = jobs.read_job(folder)
        if job is None or job.init is None or not job.init.is_dir():
            raise Absent(f"the run that it began from is not there: {result.init.run}")
        start = pretrained.open_run(job.init, experiment, options.imports)
        if start.facts.sha256 != result.init.sha256:
            raise UserError(f"{job.init} holds another encoder than it began from")
    given = result.seed, steps, start and start.variables
    losses, state = replay(experiment, data.arrays("train"), *given)
    off = [
        abs(mean_loss(losses, end, every) - loss) / max(abs(loss), 1e-9)
        for end, loss in recorded.items()
        if every <= end <= steps
    ]
    if not off:
        raise Absent(f"metrics.jsonl has no loss up to step {steps}")
    if not max(off) <= TOLERANCE or not np.isfinite(losses).all():  # nor if one is not a number
        raise UserError(f"losses of {steps} steps differ by up to {max(off):.2g}")
    how = f"within {max(off):.1g}" if any(off) else "exactly as recorded"
    if steps == last and sha256(state.params) == result.parameters_sha256:
        how = "the same parameters"
    return Finding(OK, f"{steps} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}: {how}")


CHECKS = {
    "result": _result,
    "config": _config,
    "data": _data,
    "code": _code,
    "replay": _replay,
}


def table(verdicts: Sequence[Verdict]) -> str:
    """Returns the findings as a Markdown table, and the reasons below it."""
    lines = [f"| run | {' | '.join(CHECKS)} |", "| --- " * (len(CHECKS) + 1) + "|"]
    reasons: dict[str, list[str]] = {}
    for one in verdicts:
        lines.append(f"| {one.run} | {' | '.join(f.state for f in one.findings.values())} |")
        for name, finding in one.findings.items():
            if finding.reason:
                reasons.setdefault(f"{name} {finding.state}: {finding.reason}", []).append(one.run)
    lines.append("")
    for reason, runs in reasons.items():
        names = "all" if len(runs) == len(verdicts) > 1 else ", ".join(runs)
        lines.append(f"- {reason} ({names})")
    failed = sum(one.failed for one in verdicts)
    count = f"{len(verdicts)} {'run' if len(verdicts) == 1 else 'runs'}"
    return "\n".join([*lines, "", f"{count}, {failed} of them failed."]) + "\n"
