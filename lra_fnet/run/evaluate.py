"""Scores trained models on the test split and makes result.json.

The model is chosen on validation. The test split is read once for the chosen step and once for the
last one. `test_log.jsonl` in the folder of all runs gets a line of kind "intended" before each
reading and one line for each checkpoint after it, so that a kill in between leaves a trace.
"""

import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra_fnet import config, counts
from lra_fnet.baselines import shallow
from lra_fnet.errors import UserError
from lra_fnet.experiment import Experiment
from lra_fnet.machine import disk, progress
from lra_fnet.machine.memory import peak_bytes
from lra_fnet.models.kernels import fastest
from lra_fnet.run import job as jobs
from lra_fnet.run import model, provenance
from lra_fnet.run import result as results
from lra_fnet.run.result import TEST_LOG, Record
from lra_fnet.tasks import Prepared
from lra_fnet.training import checkpoint, hosts
from lra_fnet.training.loop import Loop
from lra_fnet.training.score import make_scorer


def evaluate(folder: Path, imports: Sequence[str] = (), data: Path | None = None) -> Record:
    """Scores a trained run on the test split, unless it was scored before; returns its record.

    Args:
      folder: the run folder.
      imports: see `model.load_run`.
      data: see `TrainedRun.data`.

    Raises:
      UserError: the folder does not hold a finished run, or its data or imported code differs from
        the run's.
    """
    jobs.finished(folder)  # a folder that is none gets no lock
    with jobs.lock(folder):
        return score_run(folder, imports, data)


def score_run(folder: Path, imports: Sequence[str], data: Path | None) -> Record:
    """Does what `evaluate` does, in every process of a run, for who holds the folder's lock."""
    _, result = jobs.finished(folder)
    if result.score("test"):
        return result
    config.import_modules(imports)
    if differences := results.code_differences(result.code, result.config, imports):
        raise UserError(
            f"{folder} was trained with other code ({'; '.join(map(str, differences))}), and the "
            "test score is recorded once: name that code with --import, or restore it"
        )
    last, best = (model.load_run(folder, kind, imports) for kind in ("last", "best"))
    score = make_scorer(last.experiment.objective, last.experiment.run.eval_batch_size)
    states = {run.checkpoint: (run.step, run.variables) for run in (last, best)}
    with fastest.decisions(dict(result.resolved)):
        test = score_test(score, states, last.data(data), folder)
    here, facts = provenance.of_process(), {"test": test}
    if any(getattr(result, name) != value for name, value in vars(here).items()):
        facts["scored_by"] = dataclasses.asdict(here)
    return record(folder, {**result.raw, **facts})


def record(folder: Path, result: dict[str, Any]) -> Record:
    """Returns the object of a result.json as a value; the first process writes it."""
    if hosts.first():
        return results.write(folder, result)
    return results.parse(results.seal(result), path=folder)


def finish(loop: Loop, data: Prepared, identity: dict, *, test: bool = True) -> dict[str, Any]:
    """Scores a finished training loop and returns the object of result.json.

    Args:
      loop: trained to its last step.
      data: the prepared task.
      identity: the fields that name the run: task, model, preset, overrides, variant, seed; and
        denoise or init, if it is a stage of two.
      test: False leaves the test split closed (the trials of a sweep).
    """
    last, best = loop.history.last, loop.history.best
    assert last is not None
    assert best is not None
    total = len(loop.arrays.labels)
    count = min(len(loop.validation.labels), total)  # as many training rows as validation has
    places = np.arange(count) * total // count  # evenly spread: rows may be sorted by class
    rows = loop.arrays.take(places)
    with progress.Bar("scoring training rows", count) as bar:
        train = loop.score(loop.state.variables, rows, bar.update)
    result = {
        **facts("complete", identity, loop.experiment, data),
        "validation": {"last": last, "best": best},
        "collapsed": loop.history.collapsed,
        "train": {"correct": train["correct"], "count": train["count"]},
        "parameters": loop.parameters,
        "parameters_sha256": checkpoint.sha256(loop.state.params),
        "steps_per_second": loop.history.steps_per_second,
        "wall_seconds": loop.history.wall_seconds,
    }
    if test:
        states = dict.fromkeys(["last", "best"], (last["step"], loop.state.variables))
        if best["step"] != last["step"]:
            read = checkpoint.read(loop.folder, "best", loop.state.variables, step=best["step"])
            states["best"] = best["step"], read
        result["test"] = score_test(loop.score, states, data, loop.folder)
    result["peak_bytes"] = max(loop.history.peak_bytes, peak_bytes())
    return result


def facts(state: str, identity: dict, experiment: Experiment, data: Prepared) -> dict[str, Any]:
    """Returns the fields of result.json that every outcome has.

    Args:
      state: a `result.State`.
      identity: the fields that name the run.
      experiment: the run's task and model.
      data: the prepared task.
    """
    kind = shallow.kind(denoise=identity.get("denoise", False))
    rule = next((one for one in shallow.read(data) if one.of == kind), None)
    return {
        "schema": 1,
        "state": state,
        **identity,
        "floor": dataclasses.asdict(data.floor),
        "shallow": rule and dataclasses.asdict(rule),
        **traits(experiment),
        "dataset": experiment.task.config,
        "data_source": data.source,
        "data_sha256": data.fingerprint,
        "config": experiment.config,
        "resolved": fastest.made(),
        "validation": None,
        "test": None,
        "train": None,
        **dataclasses.asdict(provenance.of_process()),
    }


def traits(experiment: Experiment) -> dict[str, Any]:
    """Returns the fields of result.json that follow from the configuration."""
    return {
        "mixer_length": experiment.model.encoder.mixer_length,
        "uses_mask": experiment.model.encoder.uses_mask,
        "validation_is_test": experiment.task.validation_is_test,
    }


def score_test(
    score: Callable[..., dict], states: Mapping[str, tuple[int, dict]], data: Prepared, folder: Path
) -> dict[str, dict]:
    """Scores checkpoints on the test split and logs each reading.

    Args:
      score: a scorer, see `score.make_scorer`.
      states: step and variables of the checkpoints "last" and "best".
      data: the prepared task.
      folder: the run folder.

    Returns:
      For each checkpoint its step, sums over the rows, which rows are right, and whether all have
      the same answer. Two checkpoints of the same step are scored once.
    """
    steps = {kind: step for kind, (step, _) in states.items()}
    _log(folder, kind="intended", steps=steps)  # before the split is opened: a kill may follow
    arrays = data.arrays("test")
    sums: dict[int, dict] = {}
    for step, variables in states.values():
        if step not in sums:
            with progress.Bar("scoring test", len(arrays.labels)) as bar:
                sums[step] = {"step": step, **score(variables, arrays, bar.update, bits=True)}
            sums[step]["constant"] = _constant(sums[step], arrays.labels)
    for kind, step in steps.items():
        shown = {name: sums[step][name] for name in ("step", "correct", "count", "loss")}
        _log(folder, kind=kind, **shown)
    return {kind: dict(sums[step]) for kind, step in steps.items()}


def _constant(sums: Mapping[str, Any], labels: np.ndarray) -> bool:
    """Returns whether exactly the rows of one label are right, as with one answer for every row."""
    right = counts.bits(sums)
    assert right is not None
    label = labels[right][:1]
    return len(label) == 1 and np.array_equal(right, labels == label)


def _log(folder: Path, **facts: Any) -> None:
    """Adds a line to the log of the folder of all runs, or of a run folder that was moved."""
    if not hosts.first():
        return
    begun = jobs.read(folder)
    folder, inside = results.place(folder, results.folder_parts(begun) if begun else ())
    root = folder.parents[3] if inside else folder
    line = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": folder.relative_to(root).as_posix(),
        **facts,
    }
    disk.append_line(root / TEST_LOG, line)
