"""Optuna's studies of a sweep, one for each task and model, in journal.log.

A trial of a study is a point; it is told when all its seeds are complete, or pruned. One whose
seeds have failed stays open, so that they may be tried again. Call it under the sweep's lock.
"""

from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from lra_fnet.sweep import plan

optuna.logging.set_verbosity(optuna.logging.ERROR)


def distributions(axes: dict[str, Any]) -> dict[str, BaseDistribution]:
    """Where a point's values come from: those of a list as gin texts."""
    found: dict[str, BaseDistribution] = {}
    for name, values in axes.items():
        if not isinstance(values, dict):
            found[name] = CategoricalDistribution([repr(value) for value in values])
        elif isinstance(values["low"], int) and isinstance(values["high"], int):
            found[name] = IntDistribution(**values)
        else:
            found[name] = FloatDistribution(**values)
    return found


def points(sweep: plan.Sweep) -> list[dict[str, Any]]:
    """The points that no result can change: of a grid all, of random the k-th drawn from seed k."""
    if sweep.sampler == "grid":
        return plan.grid(sweep.axes)
    count = sweep.trials if sweep.sampler == "random" else 0
    samplers = (optuna.samplers.RandomSampler(seed=number) for number in range(count))
    studies = (optuna.create_study(sampler=sampler) for sampler in samplers)
    return [study.ask(distributions(sweep.axes)).params for study in studies]


class Studies:
    """The studies in a file, which processes share."""

    def __init__(self, of: plan.Plan):
        self._plan = of
        file = of.folder / "journal.log"
        _mend(file)
        self._storage = JournalStorage(JournalFileBackend(str(file)))
        self._studies = [
            optuna.create_study(
                storage=self._storage,
                study_name=f"{task}/{model}",
                direction="maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(),
            )
            for task, model in of.pairs
        ]
        self._distributions = distributions(of.sweep.axes)
        for study in self._studies:
            for point in points(of.sweep)[len(study.trials) :]:
                running = create_trial(
                    state=TrialState.RUNNING, params=point, distributions=self._distributions
                )
                study.add_trial(running)

    def points(self, pair: int) -> list[FrozenTrial]:
        """The study's trials; one that a killed process had not finished drawing is dropped."""
        found = []
        for trial in self._studies[pair].get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING and len(trial.params) < len(self._distributions):
                self._studies[pair].tell(trial.number, state=TrialState.FAIL)
            elif trial.state != TrialState.FAIL:
                found.append(trial)
        return found

    def ask(self) -> bool:
        """Draws the next point, of the study that has the fewest; False where all have enough."""
        counts = [len(self.points(pair)) for pair in range(len(self._studies))]
        if min(counts) >= self._plan.sweep.trials:
            return False
        study = self._studies[counts.index(min(counts))]
        # A seed of its own for each point: a process that goes on does not draw the same ones.
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        study.ask(self._distributions)
        return True

    def tell(self, pair: int, point: FrozenTrial, accuracy: float) -> None:
        """The mean over the seeds of a point that is complete."""
        self._studies[pair].tell(point.number, accuracy)

    def falls_behind(self, pair: int, point: FrozenTrial, curve: dict[int, float]) -> bool:
        """Notes the first seed's accuracies by step; whether the median pruner stops the point."""
        study = self._studies[pair]
        for step in sorted(curve.keys() - point.intermediate_values.keys()):
            self._storage.set_trial_intermediate_value(point._trial_id, step, curve[step])
        noted = self._storage.get_trial(point._trial_id)
        return study.pruner.prune(study, noted)

    def prune(self, pair: int, point: FrozenTrial) -> None:
        """Ends a point."""
        self._studies[pair].tell(point.number, state=TrialState.PRUNED)

    def note_error(self, point: FrozenTrial, seed: int, error: str) -> None:
        """What a run said when it failed."""
        self._storage.set_trial_user_attr(point._trial_id, f"error of seed {seed}", error)


def error_of(point: FrozenTrial, seed: int) -> str | None:
    """What `note_error` noted."""
    return point.user_attrs.get(f"error of seed {seed}")


def _mend(file: Path) -> None:
    """Drops the half line at the end that a killed process or a full disk has left."""
    if file.exists() and not (text := file.read_bytes()).endswith(b"\n"):
        with file.open("r+b") as journal:
            journal.truncate(text.rfind(b"\n") + 1)
