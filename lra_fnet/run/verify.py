"""Checks results as any reader can: a row for each run, a column for each check.

result  result.json is complete: schema, counts against the bits of the rows, steps, sha256; the
        best and last scores on validation are those of metrics.jsonl
config  the recorded configuration is the one that task, model, preset and overrides give
data    rows, majority floor and shallow baseline are those of data/expected.json, and the rows
        those of the prepared set if there is one
code    the commit is known, nothing differed from it, and no other code or machine was used
score   the checkpoints, scored again, give the recorded counts
replay  the first steps, trained again, give the losses in metrics.jsonl
"""

import contextlib
import dataclasses
import functools
import json
import math
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet import config, counts
from lra_fnet import experiment as experiments
from lra_fnet.config import Difference
from lra_fnet.data import store
from lra_fnet.errors import UserError, one_line
from lra_fnet.experiment import Experiment
from lra_fnet.machine import disk, progress
from lra_fnet.models.encoder import parameter_count, variable_shapes
from lra_fnet.models.kernels import fastest
from lra_fnet.run import evaluate, pretrained, provenance
from lra_fnet.run import folder as run_files
from lra_fnet.run import job as jobs
from lra_fnet.run import model as trained
from lra_fnet.run import result as record
from lra_fnet.run.result import Checkpoint, Record
from lra_fnet.tasks import Prepared, sets
from lra_fnet.training.checkpoint import sha256
from lra_fnet.training.replay import mean_loss, replay
from lra_fnet.training.score import make_scorer

CHECKS: tuple[str, ...] = ("result", "config", "data", "code", "score", "replay")
OK, NOTE, ABSENT, FAILED = "ok", "note", "not there", "FAILED"
UNASKED = "not asked for"  # the replay without --replay
OTHER = "machine, commit or number of threads"
TOLERANCE = 0.01  # relative, of losses on another kind of machine or at another commit
ROWS_OFF = 0.005  # share of rows that rounding may turn there
# Differences between a recorded configuration and today's that cannot have changed a number.
_IGNORED = [
    # "bert" has learned positions, whatever this said; it became an error to say otherwise.
    Difference("Encoder.positions", "'sinusoidal'", "'learned'"),
]


class Finding(NamedTuple):
    """The outcome of a check, and the reason."""

    state: str = OK
    reason: str = ""


class Row(NamedTuple):
    """The findings about one run, by check."""

    run: str
    findings: dict[str, Finding]

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(finding.state == FAILED for finding in self.findings.values())


class Options(NamedTuple):
    """What `verify` may use besides the results."""

    data: Path = Path("data")
    imports: tuple[str, ...] = ()
    gin_dirs: tuple[Path, ...] = ()
    replay: int = 0  # steps


def main(
    paths: Sequence[Path], options: Options, *, data: Path | None = None, as_json: bool = False
) -> int:
    """Prints the table of all runs below the paths; returns 1 if a check failed.

    Args:
      paths: see `find`.
      options: see `Options`, whose `data` has no effect.
      data: of the prepared sets; None for the folder that each run names.
      as_json: whether to print JSON instead of the table.

    Raises:
      UserError: a path holds no result.
    """
    rows = []
    places = [place for path in paths for place in find(path)]
    for number, (folder, moved) in enumerate(places, start=1):
        progress.say(f"{number} of {len(places)}: {folder}")
        own = options._replace(data=data or _data_of(folder))
        rows.append(verify(folder, own, moved=moved))
    if as_json:
        listed = [
            {"run": row.run, **{k: v._asdict() for k, v in row.findings.items()}} for row in rows
        ]
        print(json.dumps(listed, indent=1))
    else:
        print(table(rows), end="")
    return int(any(row.failed for row in rows))


def find(path: Path) -> list[tuple[Path, bool]]:
    """Returns the run folder or export at a path, or else all run folders below it.

    With each comes whether its path may differ from the run's names.

    Hidden folders are left out, and results/submitted, whose runs need their authors' modules,
    unless the path lies in it.

    Raises:
      UserError: there are none.
    """
    if any((path / name).is_file() for name in ("result.json", trained.CONFIG)):
        return [(path, True)]
    folders = sorted(file.parent for file in path.glob("**/seed*/result.json"))

    def is_left_out(name: str) -> bool:
        return name == "submitted" or name.startswith(".")

    shown = [(f, False) for f in folders if not any(map(is_left_out, f.relative_to(path).parts))]
    if not shown:
        raise UserError(
            f"{path} holds no result: name a run folder, an export, or a folder of runs"
        )
    return shown


def verify(folder: Path, options: Options, *, moved: bool = True) -> Row:
    """Makes every check of a run that its files allow.

    Args:
      folder: a run folder with or without checkpoints, or an export.
      options: see `Options`.
      moved: whether the folder's path may differ from the run's.
    """
    findings: dict[str, Finding] = dict.fromkeys(CHECKS, Finding(ABSENT))
    try:
        result, kinds = _result(folder, moved=moved)
    except UserError as error:
        return Row(str(folder), findings | {"result": Finding(FAILED, str(error))})
    checks = {
        "result": lambda: _course(folder, result, options),
        "config": lambda: _config(folder, result, options),
        "data": lambda: _data(result, options),
        "code": lambda: _code(folder, result, options),
        "score": lambda: _score(folder, result, kinds, options),
        "replay": lambda: _replay(folder, result, options),
    }
    for name, check in checks.items():
        try:
            with fastest.decisions(dict(result.resolved)):
                findings[name] = check()
        except UserError as error:
            findings[name] = Finding(FAILED, str(error))
        except Exception as error:  # what a stranger wrote can fail anywhere in the model
            findings[name] = Finding(FAILED, one_line(error, 300))
    return Row(str(folder), findings)


def _data_of(folder: Path) -> Path:
    """Returns the folder of prepared sets that a run names; Job's default without a run.json."""
    with contextlib.suppress(UserError):
        if job := jobs.read_job(folder):
            return job.data
    return jobs.Job.data


def _result(folder: Path, *, moved: bool) -> tuple[Record, tuple[Checkpoint, ...]]:
    """Returns the record of a folder, and the checkpoints that it holds."""
    exported = disk.read_json(folder / trained.CONFIG)
    if exported is not None:
        export, result = trained.read_export(folder, exported, None)
        return result, (export.checkpoint,)
    result = record.read(folder, moved=moved)
    assert result is not None
    kinds = trained.KINDS if (folder / "checkpoints").is_dir() and result.complete else ()
    return result, kinds


def _course(folder: Path, result: Record, options: Options) -> Finding:
    """Compares the validation scores with those in metrics.jsonl, and "best" with all of them."""
    logged = run_files.evaluations(folder) if result.complete else {}
    for kind in trained.KINDS if logged else ():
        score = result.score("validation", kind)
        assert score is not None  # a complete run has both
        if score.step not in logged:
            return Finding(FAILED, f"{kind}: metrics.jsonl has no evaluation at step {score.step}")
        line = logged[score.step]
        correct, loss = round(line["accuracy"] * score.count), score.loss / score.count
        if score.correct != correct:
            return Finding(
                FAILED, f"{kind}: {score.correct} rows correct, {correct} in metrics.jsonl"
            )
        if not math.isnan(loss) and not math.isclose(loss, line["loss"], rel_tol=1e-6):
            return Finding(FAILED, f"{kind}: loss {loss:.6g}, {line['loss']:.6g} in metrics.jsonl")
        if kind == "best":
            rank = _experiment(result, options).objective.rank
            best = min(logged, key=lambda step: (rank(_sums(logged[step])), step))
            if best != score.step:
                return Finding(FAILED, f"best: step {score.step}, but step {best} was better")
    notes = ["no sha256"] * (not result.sha256)
    if result.complete and not logged:
        notes.append("no validation scores in metrics.jsonl to compare with")
    return Finding(NOTE, "; ".join(notes)) if notes else Finding()


def _sums(line: Mapping[str, Any]) -> dict[str, Any]:
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
def _restored(text: str, imports: tuple[str, ...]) -> Experiment | None:
    """Returns the experiment of a recorded configuration; None if today's code cannot build it."""
    try:
        return experiments.restore(text, imports)
    except config.OutsideCode:
        raise
    except UserError:
        return None


@functools.cache
def _count(model, row_shape: tuple[int, ...]) -> int:
    """Counts the parameters, once for all runs of a model, whatever their training."""
    ids, mask = (jax.ShapeDtypeStruct((1, *row_shape), kind) for kind in (jnp.int32, bool))
    return parameter_count(variable_shapes(model, ids, mask))


def _experiment(result: Record, options: Options) -> Experiment:
    """Returns the experiment of a run, of its names if today's code cannot build its config."""
    return _restored(result.config, options.imports) or _of_names(result, options)


def _config(folder: Path, result: Record, options: Options) -> Finding:
    """Compares the recorded configuration with that of its names.

    A setting that only one of the two has must have come or gone with the code: either it has its
    default in the other (`config.differing`), or the code of the run's commit does not have it and
    today's code cannot build the recorded text.
    """
    if jobs.copy_was_edited(folder, result.config):
        return Finding(FAILED, "config.gin was edited: it is a copy and has no effect; use --set")
    restored = _restored(result.config, options.imports)
    task = restored and restored.task
    if task and task.finds_classes and not task.folder(options.data).exists():
        return Finding(ABSENT, "its classes are those of rows that are not prepared here")
    named = _of_names(result, options)
    differences = config.differing(result.config, named.config)
    failures = differences
    if not restored:
        gone = [d for d in differences if d.new == "absent"]
        failures = [d for d in differences if d not in gone and not _is_newer(d, gone, result)]
    if failures := [d for d in failures if d not in _IGNORED]:
        return Finding(FAILED, "; ".join(map(str, failures)))
    steps = named.run.num_steps
    score = result.score("validation", "last")
    if score and score.step != steps:
        return Finding(FAILED, f"it was scored at step {score.step}, its config has {steps} steps")
    notes = ["changed with the code: " + "; ".join(map(str, differences))] if differences else []
    if restored:
        try:
            parameters = _count(restored.model, restored.task.row_shape)
        except UserError as error:  # as fused attention without a GPU
            notes.append(f"its parameters cannot be counted here: {error}")
        else:
            if None not in (result.parameters, parameters) and result.parameters != parameters:
                had = f"{result.parameters} parameters"
                return Finding(FAILED, f"{had}, its config has {parameters}")
        for name, value in evaluate.traits(restored).items():
            if (recorded := getattr(result, name)) != value:
                return Finding(FAILED, f"{name} is {recorded}, its config has {value}")
    return Finding(NOTE, "; ".join(notes)) if notes else Finding()


def _is_newer(difference: Difference, gone: Sequence[Difference], result: Record) -> bool:
    """Returns whether the code of the run's commit lacks a setting, or had it by another name.

    Args:
      difference: the setting.
      gone: the settings that today's code lacks.
      result: the run.
    """
    owner, _, name = difference.name.rpartition(".")
    renamed = any(g.old == difference.new and g.name.endswith(f"_{name}") for g in gone)
    if difference.old != "absent" or renamed or name == "name":  # Flax's name of a module
        return difference.old == "absent"
    return not _has_setting(result.commit, owner.rpartition("/")[2], name)


@functools.cache
def _has_setting(commit: str | None, owner: str, name: str) -> bool:
    """Returns whether a class had a field at a commit; False for one that is not known here."""
    if commit is None or not _is_known(commit):
        return False
    code = ("--", "lra_fnet/*.py")
    files = _git("grep", "-lE", rf"^(class|def) {owner}\b", commit, *code).stdout.split()
    places = [file.partition(":")[2] for file in files]
    return not places or _git("grep", "-qE", f"^    {name}:", commit, "--", *places).returncode != 1


def _data(result: Record, options: Options) -> Finding:
    """Compares the fingerprint and the floor with the prepared set or with data/expected.json."""
    name = f"{result.task}/{result.dataset or '?'}"
    today = _known_sets(store.expected(), result)
    with contextlib.suppress(UserError):
        today = [
            *today,
            {"splits": sets.open(_experiment(result, options).task, options.data).splits},
        ]
    then = _known_sets(_expected_at(result.commit), result)
    same = [facts for facts in today + then if _fingerprint(facts) == result.data_sha256]
    counted = [facts for facts in today + then if _fingerprint(facts) is None]
    if not today + then:
        return Finding(ABSENT, f"{name} is neither prepared nor in data/expected.json")
    if not same + counted:
        return Finding(FAILED, f"{result.data_sha256[:8]} is not the fingerprint of {name}")
    facts = (same + counted)[0]
    if labels := facts["splits"]["test"].get("label_counts"):
        floor = record.Counts(max(labels), sum(labels))
        if floor != result.floor:
            return Finding(FAILED, f"floor {result.floor}, {name} has {floor}")
    known = [dataclasses.replace(rule, correct_bits=None) for rule in result.baselines]
    recorded = result.shallow and dataclasses.replace(result.shallow, correct_bits=None)
    if recorded and known and recorded not in known:
        return Finding(FAILED, f"shallow baseline {recorded.words}; {name} has {known[0].words}")
    if facts in counted:
        return Finding(NOTE, f"only counts of {name} are known: prepare it")
    return Finding() if facts in today else Finding(NOTE, f"{name} has other rows since its commit")


def _known_sets(expected: Mapping[str, Any], result: Record) -> list[dict[str, Any]]:
    """Returns the entries of an expected.json that a run may have been trained on."""
    sets = expected.get(result.task, {})
    named = [sets[name] for name in sets if result.dataset in (None, name)]
    return [facts for facts in named if "splits" in facts]


@functools.cache
def _expected_at(commit: str | None) -> dict[str, Any]:
    """Returns data/expected.json as it was at a commit; {} if that cannot be had."""
    if commit is None or not _is_known(commit):
        return {}
    shown = _git("show", f"{commit}:data/expected.json")
    return json.loads(shown.stdout) if shown.returncode == 0 else {}


def _fingerprint(facts: Mapping[str, Any]) -> str | None:
    """Returns the fingerprint of an entry of data/expected.json; None if it has only counts."""
    splits = facts.get("splits", {})
    known = splits and all("sha256" in split for split in splits.values())
    return store.combine(splits) if known else None


def _prepared(result: Record, options: Options) -> Prepared:
    """Opens the data of a run; raises a UserError if it is not there or another set."""
    data = sets.open(_experiment(result, options).task, options.data)
    data.check_is_of(result.folder, result.data_sha256, "prepare that set to check it")
    return data


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs git in this repository; its status is above 1 if there is none."""
    git = ["git", "-C", str(Path(__file__).parents[2]), *words]
    try:
        return subprocess.run(git, capture_output=True, text=True)
    except OSError:
        return subprocess.CompletedProcess(git, 128, "", "")


@functools.cache
def _is_known(commit: str) -> bool:
    """Returns whether this repository has a commit."""
    return _git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


def _code(folder: Path, result: Record, options: Options) -> Finding:
    """Says whether the code that trained the run can be had, the user's own included."""
    if result.commit is None:
        return Finding(NOTE, "no commit was recorded")
    if not re.fullmatch("[0-9a-f]{40}", result.commit):
        return Finding(FAILED, f"no commit: {result.commit!r}")
    if not _is_known(result.commit):
        return Finding(NOTE, "its commit is not in this repository")
    job = jobs.read_job(folder)
    sides = options.imports, job.imports if job else ()
    notes = [str(one) for one in record.code_differences(result.code, result.config, *sides)]
    if result.dirty:
        notes.append("files differed from its commit")
    if result.earlier:
        began = "; ".join(f"{one.revision} on {one.device}" for one in result.earlier)
        notes.append(f"it began with other code or on another machine: {began}")
    if one := result.scored_by:
        scored = f"{one.revision} on {one.device}"
        notes.append(f"it was scored on test with other code or on another machine: {scored}")
    return Finding(NOTE, "; ".join(notes)) if notes else Finding()


def _same_bits(result: Record, experiment: Experiment) -> bool:
    """Returns whether the numbers of a run must come out equal to the bit.

    They must if one process trained and scored it, and this one has the same machine, libraries,
    settings of XLA and commit, without changes. But XLA computes an FFT on a CPU in one thread or
    in several, as they happen to be free, and its rounding follows their number.
    """
    here = provenance.of_process()
    same = all(getattr(result, name) == value for name, value in vars(here).items())
    same = same and not (here.dirty or result.earlier or result.scored_by)
    threads = here.device.platform == "cpu" and here.device.cores > 1
    return same and not (threads and _transforms(experiment))


def _transforms(experiment: Experiment) -> bool:
    """Returns whether the model has an FFT."""
    apply = functools.partial(experiment.model.apply, train=False)
    program = jax.make_jaxpr(apply)(experiment.shapes(), *experiment.blank_inputs(2))
    return " fft[" in str(program)


def _score(folder: Path, result: Record, kinds: Sequence[Checkpoint], options: Options) -> Finding:
    """Scores the checkpoints on validation, and on test if that was read; writes nothing."""
    if not kinds:
        return Finding(ABSENT, "no checkpoint")
    runs = [trained.load_run(folder, kind, options.imports, denoise=True) for kind in kinds]
    try:
        data = _prepared(result, options)
    except UserError as error:
        return Finding(ABSENT, str(error))
    experiment = runs[0].experiment
    score = make_scorer(experiment.objective, experiment.run.eval_batch_size)
    arrays = data.arrays(experiment.task.splits[1])
    again = [(run, "validation", score(run.variables, arrays)) for run in runs]
    if result.test:
        states = {run.checkpoint: (run.step, run.variables) for run in runs}
        tested = evaluate.score_again(score, states, data)
        again += [(run, "test", tested[run.checkpoint]) for run in runs]
    exact, off, without = _same_bits(result, experiment), 0, []
    for run, split, sums in again:
        name = f"{split} {run.checkpoint}"
        recorded = getattr(getattr(result, split), run.checkpoint)
        if (run.step, sums["count"]) != (recorded.step, recorded.count):
            was = f"{recorded.count} rows at step {recorded.step}"
            return Finding(FAILED, f"{name}: {was}, now {sums['count']} at step {run.step}")
        rows = abs(sums["correct"] - recorded.correct)
        if "correct_bits" in sums and recorded.correct_bits:
            rows = int((counts.bits(sums) != recorded.right).sum())
        if rows > (0 if exact else ROWS_OFF * recorded.count):
            return Finding(FAILED, f"{name}: {rows} of {recorded.count} rows differ")
        off += rows
        within = (1e-6 if exact else TOLERANCE) * recorded.loss
        if "loss" not in result.raw[split][run.checkpoint]:  # as in older results
            without.append(name)
        elif not abs(sums["loss"] - recorded.loss) <= within:  # nor if one is not a number
            return Finding(FAILED, f"{name}: loss {recorded.loss:.6g}, now {sums['loss']:.6g}")
        of_last = run.checkpoint == "last" and result.parameters_sha256
        if of_last and of_last != sha256(run.variables["params"]):
            return Finding(FAILED, "the parameters are not those that the result was made with")
    found = "exactly" if not off else f"{off} rows differ: another {OTHER}"
    if without:
        return Finding(NOTE, f"{found}, but its {' and '.join(without)} has no loss to compare")
    return Finding(OK, found)


def _replay(folder: Path, result: Record, options: Options) -> Finding:
    """Trains the first steps again and compares the mean losses with metrics.jsonl."""
    if not options.replay:
        return Finding(UNASKED, "--replay STEPS trains the first steps again")
    if not result.complete:
        return Finding(ABSENT, f"the run ended as {result.state}")
    experiment = _experiment(result, options)
    try:
        data = _prepared(result, options)
    except UserError as error:
        return Finding(ABSENT, str(error))
    curve = dict(run_files.curve(folder).loss)
    every, last = experiment.run.log_every, experiment.run.num_steps
    steps = min(last, -(-options.replay // every) * every if curve else options.replay)
    start = None
    if result.init:
        job = jobs.read_job(folder)
        if job is None or job.init is None or not job.init.is_dir():
            return Finding(ABSENT, f"the run that it began from is not there: {result.init.run}")
        start = pretrained.open_run(job.init, experiment, options.imports)
        if start.facts.sha256 != result.init.sha256:
            return Finding(FAILED, f"{job.init} holds another encoder than it began from")
    given = result.seed, steps, start and start.variables
    losses, state = replay(experiment, data.arrays("train"), *given)
    if not np.isfinite(losses).all():
        return Finding(FAILED, f"the loss is not finite in {steps} steps")
    exact = _same_bits(result, experiment)
    again = {end: mean_loss(losses, end, every) for end in range(every, steps + 1, every)}
    off = [
        abs(again[end] - curve[end]) / max(abs(curve[end]), 1e-9) for end in again if end in curve
    ]
    if curve and not off:
        return Finding(FAILED, f"metrics.jsonl has no loss at a multiple of {every} up to {steps}")
    if not all(one <= (0 if exact else TOLERANCE) for one in off):  # nor if one is not a number
        return Finding(FAILED, f"losses of {steps} steps differ by up to {np.max(off):.2g}")
    if steps == last and exact and result.parameters_sha256:
        if sha256(state.params) != result.parameters_sha256:
            return Finding(FAILED, f"{steps} steps give other parameters")
        return Finding(OK, f"all {steps} steps: the same parameters")
    course = f"{steps} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}"
    if not curve:
        return Finding(NOTE, f"{course}; metrics.jsonl has no loss to compare with")
    how = "exactly as recorded" if not any(off) else f"within {TOLERANCE:.0%}, by another {OTHER}"
    return Finding(OK, f"{course}: {how}")


def table(rows: Sequence[Row]) -> str:
    """Returns the findings as a Markdown table, and the reasons below it."""
    lines = [f"| run | {' | '.join(CHECKS)} |", "| --- " * (len(CHECKS) + 1) + "|"]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        lines.append(f"| {row.run} | {' | '.join(f.state for f in row.findings.values())} |")
        for name, finding in row.findings.items():
            if finding.reason:
                reasons.setdefault(f"{name} {finding.state}: {finding.reason}", []).append(row.run)
    lines.append("")
    for reason, runs in reasons.items():
        names = "all" if len(runs) == len(rows) > 1 else ", ".join(runs)
        lines.append(f"- {reason} ({names})")
    failed = sum(row.failed for row in rows)
    count = f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}"
    return "\n".join([*lines, "", f"{count}, {failed} of them failed."]) + "\n"
