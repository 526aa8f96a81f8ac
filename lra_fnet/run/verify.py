"""Checks results as any reader can: a row for each run, a column for each check.

result  result.json is complete: schema, counts against the bits of the rows, steps, sha256; the
        best and last scores on validation are those of metrics.jsonl
config  the recorded configuration is the one that task, model, preset and overrides give; a
        setting that only one of the two has came or went with the code and is skipped, as is
        the width of attention in a model that has none
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

import numpy as np

from lra_fnet import config
from lra_fnet import experiment as experiments
from lra_fnet.counts import Counts
from lra_fnet.data import store
from lra_fnet.errors import UserError, one_line
from lra_fnet.experiment import Experiment
from lra_fnet.machine import progress
from lra_fnet.models.encoder import parameter_count
from lra_fnet.models.kernels import fastest
from lra_fnet.run import evaluate, model
from lra_fnet.run import folder as folders
from lra_fnet.run import job as jobs
from lra_fnet.run import result as results
from lra_fnet.run.result import Record
from lra_fnet.tasks import sets
from lra_fnet.training.checkpoint import sha256
from lra_fnet.training.replay import mean_loss, replay

NOTE, ABSENT, FAILED = "note", "not there", "FAILED"
TOLERANCE = 0.01  # relative, of losses trained again


class Absent(Exception):
    """A check lacks a file or data; the text says which."""


class Finding(NamedTuple):
    """The outcome of a check, and the reason."""

    state: str = "ok"
    reason: str = ""


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
        verdicts.append((folder, verify(folder, options, moved=folder in paths)))
    lines = [f"| run | {' | '.join(CHECKS)} |", "| --- " * (len(CHECKS) + 1) + "|"]
    reasons: dict[str, list[str]] = {}
    for folder, findings in verdicts:
        lines.append(f"| {folder} | {' | '.join(f.state for f in findings.values())} |")
        for name, (state, reason) in findings.items():
            if reason:
                reasons.setdefault(f"{name} {state}: {reason}", []).append(str(folder))
    for reason, runs in reasons.items():
        names = "all" if len(runs) == len(verdicts) > 1 else ", ".join(runs)
        lines.append(f"- {reason} ({names})")
    failed = sum(any(f.state == FAILED for f in findings.values()) for _, findings in verdicts)
    print("\n".join([*lines, "", f"runs: {len(verdicts)}, failed: {failed}"]))
    return int(failed > 0)


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


def verify(folder: Path, options: Options, *, moved: bool = True) -> dict[str, Finding]:
    """Makes every check of a run that its files allow; returns the findings by check.

    Args:
      folder: a run folder with or without checkpoints, or an export.
      options: see `Options`.
      moved: whether the folder's path may differ from the run's.
    """
    findings = dict.fromkeys(CHECKS, Finding(ABSENT))
    try:
        exported = model.read_export(folder)
        result = exported[1] if exported else results.read(folder, moved=moved)
        assert result is not None
    except UserError as error:
        return findings | {"result": Finding(FAILED, str(error))}
    if options.data is None:
        with contextlib.suppress(UserError):
            options = options._replace(data=(jobs.read(folder) or jobs.Job).data)
    for name, check in CHECKS.items():
        try:
            with fastest.decisions(dict(result.resolved)):
                found = check(folder, result, options)
            findings[name] = Finding(NOTE, "; ".join(found)) if found else Finding()
        except Absent as error:
            findings[name] = Finding(ABSENT, str(error))
        except Exception as error:  # what a stranger wrote can fail anywhere in the model
            findings[name] = Finding(FAILED, one_line(error, 300))
    return findings


# The checks. Each raises an exception if it fails, and otherwise returns what is worth a note.


def _same(what: str, held: object, wanted: object) -> None:
    """Raises a UserError if a recorded value is not the one that it should be."""
    if held != wanted:
        raise UserError(f"{what}: expected {wanted}, got {held}")


def _result(folder: Path, result: Record, options: Options) -> list[str]:
    """Compares the validation scores with those in metrics.jsonl, and "best" with all of them."""
    notes = ["no sha256"] * (not result.sha256)
    if not (result.complete and result.validation):
        return notes
    logged = folders.read_metrics(folder, "validation", "accuracy")
    if not logged:
        return [*notes, "no validation scores in metrics.jsonl to compare with"]
    for kind in results.CHECKPOINTS:
        score = getattr(result.validation, kind)
        if score.step not in logged:
            raise UserError(f"{kind}: metrics.jsonl has no evaluation at step {score.step}")
        line = logged[score.step]
        _same(f"{kind}: rows right", score.correct, round(line["accuracy"] * score.count))
        loss = score.loss / score.count
        if not math.isnan(loss) and not math.isclose(loss, line["loss"], rel_tol=1e-6):
            _same(f"{kind}: loss", loss, line["loss"])
    rank = _of_names(result, options).objective.rank
    # The sums over one row rank as those over all do.
    names = {"correct": "accuracy", "order_correct": "order_accuracy"}
    rows = {
        step: {**line, **{new: line.get(old) for new, old in names.items()}, "count": 1, "rows": 1}
        for step, line in logged.items()
    }
    best = min(rows, key=lambda step: (rank(rows[step]), step))
    _same("step of the best evaluation", result.validation.best.step, best)
    return notes


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
def _count(experiment: Experiment) -> int:
    """Counts the parameters, once for all runs that differ only in their seed."""
    return parameter_count(experiment.shapes())


def _config(folder: Path, result: Record, options: Options) -> list[str]:
    """Compares the recorded configuration with that of its names."""
    named = _of_names(result, options)
    try:
        parameters, notes = _count(named), []
    except UserError as error:  # as fused attention without a GPU
        parameters, notes = None, [f"its parameters cannot be counted here: {error}"]
    skipped = config.inert({result.parameters, parameters})
    differences = config.differing(result.config, named.config)
    changed = [d for d in differences if "absent" not in (d.old, d.new) and d.name not in skipped]
    if changed:
        raise UserError("; ".join(map(str, changed)))
    if score := result.score("validation", "last"):
        stopped = named.run.stop_on_collapse and result.collapsed
        _same("last step", score.step, stopped or named.run.num_steps)
    for name, value in evaluate.traits(named).items():
        _same(name, getattr(result, name), value)
    if not notes:
        _same("parameters", result.parameters or parameters, parameters)
    return notes


def _data(folder: Path, result: Record, options: Options) -> list[str]:
    """Compares the fingerprint and the floor with the prepared set and with data/expected.json."""
    expected = store.expected().get(result.task, {})
    known = [facts.get("splits") for n, facts in expected.items() if result.dataset in (None, n)]
    with contextlib.suppress(UserError):
        task = _of_names(result, options).task
        known.append(sets.open(task, options.data or jobs.Job.data).splits)
    known = [splits for splits in known if splits and all("sha256" in s for s in splits.values())]
    if not known:
        raise Absent(f"{result.task}/{result.dataset} is neither prepared nor in expected.json")
    found = {store.combine(splits): splits["test"].get("label_counts") for splits in known}
    if result.data_sha256 not in found:
        _same("data", result.data_sha256[:8], " or ".join(sha256[:8] for sha256 in found))
    if labels := found[result.data_sha256]:
        _same("floor", result.floor, Counts(max(labels), sum(labels)))
    return []


def _code(folder: Path, result: Record, options: Options) -> list[str]:
    """Reports whether the code that trained the run is known, including the user's own."""
    if result.commit is None:
        return ["no commit was recorded"]
    if not (re.fullmatch("[0-9a-f]{40}", result.commit) and _is_known(result.commit)):
        return ["its commit is not in this repository"]
    code = results.code_differences(result.code, result.config, options.imports)
    notes = [*map(str, code), *["files differed from its commit"] * bool(result.dirty)]
    notes += [f"before, it was trained by {one}" for one in result.earlier]
    return notes + [f"it was scored on test by {result.scored_by}"] * bool(result.scored_by)


@functools.cache
def _is_known(commit: str) -> bool:
    """Returns whether this repository has a commit."""
    git = ["git", "-C", str(Path(__file__).parents[2]), "cat-file", "-e", f"{commit}^{{commit}}"]
    try:
        return subprocess.run(git, capture_output=True).returncode == 0
    except OSError:  # no git
        return False


def _replay(folder: Path, result: Record, options: Options) -> list[str]:
    """Trains the first steps again and compares the mean losses with metrics.jsonl."""
    if not options.replay:
        raise Absent("--replay STEPS trains the first steps again")
    if not result.complete:
        raise Absent(f"the run ended as {result.state}")
    experiment = _of_names(result, options)
    try:
        data = sets.open(experiment.task, options.data or jobs.Job.data)
        data.check_is_of(result.folder, result.data_sha256, "prepare that set to check it")
    except UserError as error:
        raise Absent(str(error)) from None
    every, last = experiment.run.log_every, result.steps
    steps = min(last, -(-options.replay // every) * every)
    variables = None
    if result.init:
        begun = jobs.read(folder)
        if begun is None or begun.init is None or not begun.init.is_dir():
            raise Absent(f"the run that it began from is not there: {result.init.run}")
        start = model.open_pretrained(begun.init, experiment, options.imports)
        _same("encoder of --init", start.facts.sha256, result.init.sha256)
        variables = start.variables
    losses, state = replay(experiment, data.arrays("train"), result.seed, steps, variables)
    off = [
        abs(mean_loss(losses, end, every) - loss) / max(abs(loss), 1e-9)
        for end, loss in folders.curve(folder).loss
        if every <= end <= steps
    ]
    if not off:
        raise Absent(f"metrics.jsonl has no loss up to step {steps}")
    if not max(off) <= TOLERANCE or not np.isfinite(losses).all():  # nor if one is not a number
        raise UserError(f"losses of {steps} steps differ by up to {max(off):.2g}")
    if steps == last and sha256(state.params) != result.parameters_sha256:
        return ["all steps gave other parameters"]
    return [f"losses of {steps} steps differ by up to {max(off):.1g}"] * any(off)


CHECKS = {"result": _result, "config": _config, "data": _data, "code": _code, "replay": _replay}
