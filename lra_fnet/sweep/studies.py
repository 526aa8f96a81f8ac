"""The Optuna studies of a sweep, one for each task and model, stored in journal.log.

A trial of a study is a point. The study gets its value once all seeds are complete, or learns that
it was pruned. A point whose seeds have failed stays open, so that they can be tried again. Every
call needs the sweep's lock.
"""

from pathlib import Path
from typing import Any

import optuna
from optuna import distributions
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from lra_fnet.errors import UserError
from lra_fnet.sweep.plan import Plan, Sweep, grid

optuna.logging.set_verbosity(optuna.logging.ERROR)


def space(axes: dict[str, Any]) -> dict[str, distributions.BaseDistribution]:
    """Returns the distribution of each axis; the values of a list are gin texts."""
    by_name: dict[str, distributions.BaseDistribution] = {}
    for name, values in axes.items():
        if not isinstance(values, dict):
            by_name[name] = distributions.CategoricalDistribution([repr(v) for v in values])
        elif isinstance(values["low"], int) and isinstance(values["high"], int):
            by_name[name] = distributions.IntDistribution(**values)
        else:
            by_name[name] = distributions.FloatDistribution(**values)
    return by_name


def points(sweep: Sweep) -> list[dict[str, Any]]:
    """Returns the points that depend on no result: all of a grid; for random, point k of seed k."""
    if sweep.sampler == "grid":
        return grid(sweep.axes)
    count = sweep.trials if sweep.sampler == "random" else 0
    samplers = (optuna.samplers.RandomSampler(seed=number) for number in range(count))
    studies = (optuna.create_study(sampler=sampler) for sampler in samplers)
    return [study.ask(space(sweep.axes)).params for study in studies]


class Studies:
    """The studies in journal.log, which several processes share.

    Attributes:
      by_pair: the study of each task and model.
      storage: holds all of them.
    """

    def __init__(self, plan: Plan):
        self._num_points = plan.sweep.trials
        self._space = space(plan.sweep.axes)
        file = plan.folder / "journal.log"
        _drop_half_line(file)
        try:
            self.storage = JournalStorage(JournalFileBackend(str(file)))
        except OSError:
            raise
        except Exception as error:  # Optuna replays the journal, and fails in many ways
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{file} is damaged ({reason}): move it away; the sweep keeps its complete runs"
            ) from None
        self.by_pair = [
            optuna.create_study(
                storage=self.storage,
                study_name=f"{task}/{model}",
                direction="minimize" if plan.sweep.pretrain else "maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(),
            )
            for task, model in plan.pairs
        ]
        fixed = points(plan.sweep)
        for study in self.by_pair:
            for point in fixed[len(study.trials) :]:
                state = TrialState.RUNNING
                study.add_trial(create_trial(state=state, params=point, distributions=self._space))

    def points(self, pair: int) -> list[FrozenTrial]:
        """Returns a study's points, without those that a killed process had only half drawn."""
        drawn = []
        for trial in self.by_pair[pair].get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING and len(trial.params) < len(self._space):
                self.by_pair[pair].tell(trial.number, state=TrialState.FAIL)
            elif trial.state != TrialState.FAIL:
                drawn.append(trial)
        return drawn

    def ask(self) -> bool:
        """Draws a point for the study with the fewest; returns False once all have enough."""
        counts = [len(self.points(pair)) for pair in range(len(self.by_pair))]
        if min(counts) >= self._num_points:
            return False
        study = self.by_pair[counts.index(min(counts))]
        # One seed a point: a process that resumes the sweep must not draw the same points again.
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        study.ask(self._space)
        return True

    def falls_behind(self, pair: int, point: FrozenTrial, curve: dict[int, float]) -> bool:
        """Stores the first seed's validation by step; returns whether the pruner stops the point.

        Optuna's median pruner compares with the median of at least five complete points.
        """
        study = self.by_pair[pair]
        for step in sorted(curve.keys() - point.intermediate_values.keys()):
            self.storage.set_trial_intermediate_value(point._trial_id, step, curve[step])
        return study.pruner.prune(study, self.storage.get_trial(point._trial_id))


def _drop_half_line(file: Path) -> None:
    """Cuts off the half line that a killed process or a full disk has left at the end."""
    if file.exists() and not (text := file.read_bytes()).endswith(b"\n"):
        with file.open("r+b") as journal:
            journal.truncate(text.rfind(b"\n") + 1)
