"""Selects the best point of each task and model on validation, and scores it on test once."""

import contextlib
import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress, typed_json
from lra_fnet.run import evaluate
from lra_fnet.run.result import Record
from lra_fnet.sweep.files import Choice
from lra_fnet.sweep.ledger import ENDED, Ledger, Trial, mean_validation
from lra_fnet.sweep.plan import Plan


def finish(plan: Plan, *, without_failed: bool = False) -> list[Record]:
    """Writes selected.json and scores its runs; a point that was selected stays selected.

    Only points whose seeds are all complete compete; one line for each task and model says how many
    others there are.

    Args:
      plan: the sweep.
      without_failed: whether to leave out points with a trial that failed (was killed, say), which
        may be better than the others. Those that diverged, ran out of memory or were pruned are
        always left out.

    Returns:
      The results of the selected runs, all seeds of each point.

    Raises:
      UserError: trials have not ended, have failed or read different data, no point is complete,
        gin files have changed, the sweep has no axes, or it is one of pre-training.
    """
    if plan.sweep.pretrain:
        raise UserError(
            f"sweep {plan.name} is of pre-training, which has no test score: `lra-fnet report` "
            "lists its points, and `lra-fnet train --init RUN` begins from one"
        )
    if not plan.sweep.axes:
        raise UserError(
            f"sweep {plan.name} has no axes, so there is nothing to select: its runs have read test"
        )
    plan.stored()  # whether it still names the same runs
    # The prepared sets are what the trials have read, even if a source has changed since.
    plan = dataclasses.replace(plan, shared=dataclasses.replace(plan.shared, source=None))
    plan.check()
    with contextlib.closing(Ledger(plan)) as ledger, ledger.locked():
        ledger.refresh()
        trials = ledger.trials
        count = max(len(trials), plan.sweep.trials * len(plan.pairs) * plan.sweep.seeds)
        if left := count - sum(trial.state in ENDED for trial in trials):
            raise UserError(
                f"{left} of {count} trials of sweep {plan.name} have not ended: {plan.again()} "
                "continues them"
            )
        file = plan.folder / "selected.json"
        earlier = typed_json.entries(file, Choice)
        left_out = _left_out(plan, trials, earlier)
        failed = sum("failed" in states for states in left_out.values())
        if failed and not without_failed:
            raise UserError(
                f"{failed} of the points of sweep {plan.name} have a trial that failed: "
                f"{plan.again('sweep', '--retry')} runs it again, --without-failed selects among "
                "the others for good"
            )
        selected = select(plan, trials, earlier)
        for pair, (task, model) in enumerate(plan.pairs):
            states = [state for (other, _), state in left_out.items() if other == pair]
            if states:
                listed = ", ".join(f"{n} {state}" for state, n in Counter(states).items())
                progress.say(f"left out of {task} {model}: {listed}")
        if not selected:
            again = plan.again("sweep", "--retry")
            raise UserError(f"no point of sweep {plan.name} is complete: {again}")
        disk.write_json(file, [dataclasses.asdict(choice) for choice in selected])
    results = []
    for choice in selected:
        word = "selected before" if choice in earlier else "selected"
        point = f"{choice.task} {choice.model} {' '.join(choice.overrides)}"
        progress.say(f"{word}: {point}: {100 * (choice.validation or 0):.2f} on validation")
        shared = plan.shared
        results += [evaluate.evaluate(shared.runs / x, shared.imports) for x in choice.folders]
    return results


def select(plan: Plan, trials: list[Trial], earlier: list[Choice]) -> list[Choice]:
    """Returns the complete point with the best mean over its seeds, for each task and model.

    The first of equal points is selected.

    Args:
      plan: the sweep.
      trials: all its trials, by number.
      earlier: points selected before, which stay.

    Raises:
      UserError: trials of a task read different data, or imported different code.
    """
    points = defaultdict(list)
    for trial in trials:
        points[trial.pair, trial.point].append(trial)
    selected = {(choice.task, choice.model): choice for choice in earlier}
    whole = [p for p in points.values() if all(trial.state == "complete" for trial in p)]
    for task in sorted({point[0].job.task for point in whole}):
        _check_alike(plan, [point for point in whole if point[0].job.task == task])
    for pair, names in enumerate(plan.pairs):
        complete = [point for point in whole if point[0].pair == pair]
        if not complete or names in selected:
            continue
        best = max(complete, key=mean_validation)
        job = best[0].job
        selected[names] = Choice(
            task=job.task,
            model=job.model,
            preset=job.preset,
            overrides=job.overrides,
            seeds=tuple(trial.job.seed for trial in best),
            validation=mean_validation(best),
            folders=tuple(str(t.job.folder.relative_to(plan.shared.runs)) for t in best),
        )
    return list(selected.values())


def _left_out(
    plan: Plan, trials: Sequence[Trial], earlier: Sequence[Choice]
) -> dict[tuple[int, int], str]:
    """Returns the states of the points that cannot be selected, by pair and number.

    Those of a task and model whose point was selected before do not count.
    """
    chosen = {(choice.task, choice.model) for choice in earlier}
    points = defaultdict(set)
    for trial in trials:
        if trial.state != "complete" and plan.pairs[trial.pair] not in chosen:
            points[trial.pair, trial.point].add(trial.state)
    return {place: " and ".join(sorted(states)) for place, states in points.items()}


def _check_alike(plan: Plan, points: Sequence[Sequence[Trial]]) -> None:
    """Refuses trials of different data or imported code: their accuracies do not compare."""
    of = {
        "on different data": defaultdict(list),
        "with different code of imports": defaultdict(list),
    }
    for trial in itertools.chain(*points):
        if result := trial.record():
            facts = result.data_sha256, str(sorted(result.code.items()))
            for folders, fact in zip(of.values(), facts, strict=True):
                folders[fact].append(trial.job.folder)
    for how, folders in of.items():
        if len(folders) > 1:
            fewest = min(folders.values(), key=len)
            raise UserError(
                f"the trials of sweep {plan.name} on {points[0][0].job.task} were trained {how}; "
                f"move those of one kind away ({', '.join(map(str, fewest))}), then "
                f"{plan.again()} trains them again"
            )
