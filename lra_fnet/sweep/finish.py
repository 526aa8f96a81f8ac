"""Selects the best point of each task and model on validation, and scores it on test once."""

import dataclasses

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, typed_json
from lra_fnet.run import evaluate
from lra_fnet.run.result import Record
from lra_fnet.sweep import files
from lra_fnet.sweep.files import Choice
from lra_fnet.sweep.ledger import Ledger
from lra_fnet.sweep.plan import Plan


def finish(plan: Plan, *, without_failed: bool = False) -> list[Record]:
    """Writes selected.json and scores its runs; a point that was selected stays selected.

    Only points whose seeds are all complete compete.

    Args:
      plan: the sweep.
      without_failed: whether to leave out points with a trial that failed (was killed, say), which
        may be better than the others. Those that diverged, ran out of memory or were pruned are
        always left out.

    Returns:
      The results of the selected runs, all seeds of each point.

    Raises:
      UserError: trials have not ended or have failed, no point is complete, the sweep has no axes,
        or it is one of pre-training.
    """
    if plan.sweep.pretrain or not plan.sweep.axes:
        raise UserError(
            f"sweep {plan.name} has nothing to select for test: expected axes, and no pre-training"
        )
    # The prepared sets are what the trials have read, even if a source has changed since.
    plan = dataclasses.replace(plan, shared=dataclasses.replace(plan.shared, source=None))
    plan.check()
    ledger = Ledger(plan)
    with ledger.locked():
        ledger.refresh()
        trials, sweep = ledger.trials, plan.sweep
        file = plan.folder / "selected.json"
        earlier = typed_json.entries(file, Choice)
        chosen = {(choice.task, choice.model) for choice in earlier}
        new = [trial for trial in trials if (trial.task, trial.model) not in chosen]
        allowed = files.ENDED if without_failed else files.SETTLED
        undrawn = max(0, sweep.trials * len(plan.pairs) * sweep.seeds - len(trials))
        if left := undrawn + sum(trial.state not in allowed for trial in new):
            raise UserError(
                f"{left} trials of sweep {plan.name} have not ended, or have failed: continue with "
                f"{plan.again()}, --retry for those that failed, or finish --without-failed"
            )
        selected = [*earlier, *files.best(new)]
        if not selected:
            raise UserError(f"no point of sweep {plan.name} is complete: there is none to select")
        disk.write_json(file, [dataclasses.asdict(choice) for choice in selected])
    folders = [plan.shared.runs / name for choice in selected for name in choice.folders]
    return [evaluate.evaluate(folder, plan.shared.imports) for folder in folders]
