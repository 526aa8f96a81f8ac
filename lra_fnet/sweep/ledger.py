"""The trials of a sweep: Optuna's journal of points, the run folders, and trials.json.

A trial of an Optuna study is a point. The study gets its value once all seeds are complete, or
learns that it was pruned. Any number of processes, on machines that share the folder, change the
ledger under the sweep's lock. Whoever runs a trial claims its folder with a lock, which the kernel
frees however the process ends (Optuna's journal has no heartbeat that would show it).
"""

import contextlib
import dataclasses
from collections.abc import Container, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, typed_json
from lra_fnet.run import folder as folders
from lra_fnet.run import job as jobs
from lra_fnet.run import result as results
from lra_fnet.run.job import Job
from lra_fnet.sweep import axes, files
from lra_fnet.sweep import plan as plans
from lra_fnet.sweep.files import Entry

if TYPE_CHECKING:
    from lra_fnet.experiment import Experiment

CLAIM = ".claim"  # in a run folder, locked by the sweep that starts its trial


@dataclasses.dataclass(kw_only=True)
class Trial(Entry):
    """An entry of trials.json with its run."""

    job: Job
    built: "Experiment | None"  # None if the point cannot be built
    curve: dict[int, float] = dataclasses.field(default_factory=dict)  # validation by step

    def record(self) -> results.Record | None:
        """Returns the result, if there is one of this configuration, data and code.

        Any other file there counts as none: the command of the trial says what is wrong with it.
        """
        job, built = self.job, self.built
        with contextlib.suppress(UserError):
            result = results.read(job.folder)
            if not result or not built or (job.test and not result.tested):
                return None
            data = store.read_fingerprint(built.task.folder(job.data)) or {}
            rows = data.get("fingerprint")
            if not results.differences(result, built.config, rows, job.imports):
                return result
        return None

    def look(self) -> None:
        """Updates step and validation from metrics.jsonl."""
        with contextlib.suppress(UserError):
            curve = folders.curve(self.job.folder)
            accuracies = [(step, accuracy / 100) for step, accuracy in curve.validation]
            self.step = curve.step
            self.curve = dict(curve.validation_loss if self.job.denoise else accuracies)
            self.validation = (min if self.job.denoise else max)(self.curve.values(), default=None)


class Ledger:
    """The trials of one sweep."""

    def __init__(self, plan: plans.Plan):
        """Begins the sweep, or opens the one that has begun.

        Raises:
          UserError: the folder belongs to another sweep, or cannot be written.
        """
        self.plan = plan
        self.known: dict[tuple[int, int, int], Trial] = {}  # by pair, point and seed
        self.errors: dict[int, str] = {}  # why trials of this process have failed, by number
        self._file = plan.folder / "trials.json"
        with self.locked():
            plan.begin()
            self._studies = self._open(plan.folder / "journal.log")

    @property
    def trials(self) -> list[Trial]:
        """All trials: the first point of every model, then the second, and so on."""
        return sorted(self.known.values(), key=lambda trial: trial.number)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the sweep's lock for the block, in which disk errors are a UserError."""
        with disk.writable(self.plan.folder), disk.lock(self.plan.folder / ".lock"):
            # The journal's lock is only taken under this one: a leftover is a killed process's.
            (self.plan.folder / "journal.log.lock").unlink(missing_ok=True)
            yield

    def refresh(self, running: Container[int] = (), *, retry: bool = False) -> None:
        """Reads all states again, tells the studies which points have ended, writes trials.json.

        Args:
          running: numbers of the trials that this process runs.
          retry: failed trials wait for another attempt.
        """
        stored = {entry.number: entry for entry in typed_json.entries(self._file, Entry)}
        for pair, study in enumerate(self._studies):
            for point in self._points(study):
                seeds = [self._trial(pair, point, k) for k in range(self.plan.sweep.seeds)]
                for trial in seeds:
                    if trial.state != "complete":
                        entry = stored.get(trial.number)
                        self._judge(trial, entry, point, trial.number in running)
                    if retry and trial.state in files.FAILED:
                        trial.state, trial.error = "waiting", None
                self._tell(study, point, seeds)
        names = [field.name for field in dataclasses.fields(Entry)]
        entries = [{name: getattr(trial, name) for name in names} for trial in self.trials]
        if entries != [vars(entry) for entry in stored.values()]:
            disk.write_json(self._file, entries)

    def ask(self) -> bool:
        """Draws a point by TPE for the study with the fewest; False once all have enough."""
        counts = [len(self._points(study)) for study in self._studies]
        if min(counts) >= self.plan.sweep.trials:
            return False
        study = self._studies[counts.index(min(counts))]
        # One seed a point: a process that resumes the sweep must not draw the same points again.
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        study.ask(axes.space(self.plan.sweep.axes))
        return True

    def _open(self, file: Path) -> list[optuna.Study]:
        """Returns the studies of a journal, one for each task and model, with all fixed points."""
        if file.exists() and not (text := file.read_bytes()).endswith(b"\n"):
            with file.open("r+b") as journal:  # half a line of a killed process or a full disk
                journal.truncate(text.rfind(b"\n") + 1)
        storage, sweep = JournalStorage(JournalFileBackend(str(file))), self.plan.sweep
        given = {"direction": "minimize" if sweep.pretrain else "maximize", "load_if_exists": True}
        given |= {"storage": storage, "pruner": optuna.pruners.MedianPruner()}
        names = (f"{task}/{model}" for task, model in self.plan.pairs)
        studies = [optuna.create_study(study_name=name, **given) for name in names]
        new = {"state": TrialState.RUNNING, "distributions": axes.space(sweep.axes)}
        for study in studies:
            for point in self.plan.points()[len(study.trials) :]:
                study.add_trial(create_trial(params=point, **new))
        return studies

    def _points(self, study: optuna.Study) -> list[FrozenTrial]:
        """Returns a study's points, without those that a killed process had only half drawn."""
        size = len(self.plan.sweep.axes)
        return [t for t in study.get_trials(deepcopy=False) if len(t.params) == size]

    def _trial(self, pair: int, point: FrozenTrial, seed: int) -> Trial:
        key = pair, point.number, seed
        if key not in self.known:
            self.known[key] = make_trial(self.plan, pair, point.number, point.params, seed)
        return self.known[key]

    def _judge(self, trial: Trial, stored: Entry | None, point: FrozenTrial, mine: bool) -> None:
        """Updates a trial's state from the run folder, its locks and its entry of before."""
        before, folder = trial.state, trial.job.folder
        error = stored.error if stored and stored.state in files.FAILED else None
        trial.error = self.errors.pop(trial.number, error)
        result = trial.record()
        if point.state == TrialState.PRUNED:
            trial.state = "pruned"
        elif mine:
            trial.state = "running"
        elif result is not None and result.validation is not None:
            trial.state, trial.error = "complete", None
            trial.look()
            best, trial.step = result.validation.best, result.validation.last.step
            loss = trial.job.denoise
            trial.validation = best.mean_loss if loss else best.correct / best.count
        elif jobs.in_use(folder, CLAIM) or jobs.in_use(folder):
            trial.state = "running"
        elif result is not None and not (stored and stored.state == "waiting"):  # no second attempt
            trial.state = result.state
        else:
            trial.state = "failed" if trial.error else "waiting"
        if trial.state == "running" or (trial.state != before and trial.state != "complete"):
            trial.look()

    def _tell(self, study: optuna.Study, point: FrozenTrial, seeds: list[Trial]) -> None:
        """Ends a point if all its seeds are complete, or if the first one falls behind.

        Optuna's median pruner compares with the median of at least five complete points.
        """
        if point.state != TrialState.RUNNING:
            return
        first = seeds[0]
        if self.plan.sweep.prune and first.state in ("running", "complete"):
            live = optuna.trial.Trial(study, point._trial_id)
            for step in sorted(first.curve.keys() - point.intermediate_values.keys()):
                live.report(first.curve[step], step)
            if first.state == "running" and live.should_prune():
                study.tell(point.number, state=TrialState.PRUNED)
                return
        if all(trial.state == "complete" for trial in seeds):
            study.tell(point.number, files.mean(seeds))


def make_trial(plan: plans.Plan, pair: int, point: int, params: dict, seed: int) -> Trial:
    """Returns a trial with the configuration that its result must have."""
    job, built = plan.job(pair, params, seed), None
    with contextlib.suppress(UserError):  # a point of a search that cannot be built: its run fails
        built = plans.built(dataclasses.replace(job, seed=0))
    same = ("task", "model", "preset", "seed", "overrides")
    return Trial(
        **{name: getattr(job, name) for name in same},
        number=(point * len(plan.pairs) + pair) * plan.sweep.seeds + seed,
        folder=str(job.folder.relative_to(job.runs)),
        state="waiting",
        step=0,
        job=job,
        built=built,
    )


def claim(folder: Path) -> IO[str] | None:
    """Claims a run folder until the file is closed; None if a process has claimed it.

    Two points that a sampler draws alike have the same run folders.
    """
    with disk.writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return disk.try_lock(folder / CLAIM)
