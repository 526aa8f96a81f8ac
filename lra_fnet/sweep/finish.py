"""Selects on validation, for each task and model, and scores the selected runs on test, once."""

import contextlib
import itertools
from typing import Any

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress
from lra_fnet.run import evaluate
from lra_fnet.run.record import Record
from lra_fnet.sweep import plan
from lra_fnet.sweep.ledger import ENDED, Ledger, Trial


def finish(of: plan.Plan) -> list[Record]:
    """Writes selected.json, then scores the runs in it; what has been selected stays selected.

    Returns:
      The results of the selected runs, all seeds of each.

    Raises:
      UserError: trials have not ended, none is complete, or there are no axes to select on.
    """
    if not of.sweep.axes:
        raise UserError(f"sweep {of.name} has no axes: its runs have read test, none is selected")
    of.check()
    with contextlib.closing(Ledger(of)) as ledger, ledger.locked():
        ledger.refresh()
        trials = ledger.trials
        count = max(len(trials), of.sweep.trials * len(of.pairs) * of.sweep.seeds)
        if left := count - sum(trial.state in ENDED for trial in trials):
            raise UserError(
                f"{left} of {count} trials of sweep {of.name} have not ended: {of.again()} goes "
                "on with them"
            )
        file = of.folder / "selected.json"
        before = list(disk.read_json(file) or [])
        selected = select(of, trials, before)
        if not selected:
            raise UserError(f"no point of sweep {of.name} is complete: {of.again(retry=True)}")
        disk.write_json(file, selected)
    results = []
    for choice in selected:
        word = "selected before" if choice in before else "selected"
        mean = f"{100 * choice['validation']:.2f} on validation"
        progress.say(f"{word}: {choice['task']} {choice['model']} {choice['overrides']}: {mean}")
        results += [evaluate.evaluate(of.shared.runs / folder) for folder in choice["folders"]]
    return results


def select(of: plan.Plan, trials: list[Trial], before: list[dict]) -> list[dict[str, Any]]:
    """Of each task and model the complete point with the best mean over its seeds; ties: the first.

    Args:
      of: the sweep.
      trials: all of them.
      before: what was selected before, which stays.
    """
    chosen = {(choice["task"], choice["model"]): choice for choice in before}
    by_point = sorted(trials, key=lambda trial: (trial.pair, trial.point, trial.number))
    for _, group in itertools.groupby(by_point, key=lambda trial: trial.pair):
        points = [list(p) for _, p in itertools.groupby(group, key=lambda trial: trial.point)]
        complete = [p for p in points if all(trial.state == "complete" for trial in p)]
        if not complete:
            continue
        best = max(complete, key=_mean)
        one = best[0].job
        choice = {
            "task": one.task,
            "model": one.model,
            "preset": one.preset,
            "overrides": list(one.overrides),
            "seeds": [trial.job.seed for trial in best],
            "validation": _mean(best),
            "folders": [str(trial.job.folder.relative_to(of.shared.runs)) for trial in best],
        }
        chosen.setdefault((one.task, one.model), choice)
    return list(chosen.values())


def _mean(point: list[Trial]) -> float:
    accuracies = [trial.validation for trial in point if trial.validation is not None]
    return sum(accuracies) / len(accuracies)
