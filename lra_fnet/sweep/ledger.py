"""The state of a sweep's trials, read from the studies and the run folders.

Nothing else is stored, so any number of processes, on machines that share the folder, see the same
ledger. They change it under the sweep's lock. Whoever runs a trial claims it with a lock, which the
kernel frees however the process ends.
"""

import contextlib
import dataclasses
import shlex
import statistics
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import IO

from lra_fnet import config
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import folder as run_files
from lra_fnet.run import job as jobs
from lra_fnet.run import result as record
from lra_fnet.run.job import Job
from lra_fnet.sweep import plan as plans
from lra_fnet.sweep.files import Entry
from lra_fnet.sweep.studies import FrozenTrial, Studies, TrialState

FAILED = ("failed", "OOM", "diverged")
ENDED = ("complete", "pruned", *FAILED)
CLAIM = ".claim"  # in a run folder, locked by the sweep that starts its trial
ERROR = "error of seed {}"  # name of the attribute of a study's trial


@dataclasses.dataclass
class Trial:
    """One seed of one point."""

    number: int
    job: Job
    pair: int  # index of the task and model
    point: int  # number of the study's trial
    built: plans.Built | None = None  # None if the point cannot be built
    state: str = ""  # "waiting", "running" or one of ENDED; empty before the first look
    step: int = 0
    # What points are compared by, at the best step so far: accuracy as a fraction, or the mean loss
    # in pre-training.
    validation: float | None = None
    error: str | None = None
    curve: dict[int, float] = dataclasses.field(default_factory=dict)  # validation by step
    first: tuple[float, int] | None = None  # time and step when it was first seen running

    @property
    def num_steps(self) -> int | None:
        """Steps of the training, if the point can be built."""
        return self.built and self.built.num_steps

    def record(self) -> record.Record | None:
        """Returns the result if it is this trial's and has the splits that the trial reads.

        A damaged file counts as no result, and so does a run with another configuration, other
        data or other code of imports; `error` says so.
        """
        try:
            result = record.read(self.job.folder)
            others = _differences(result, self) if result else []
        except UserError as error:
            result, self.error = None, str(error)
        if result is None or (self.job.test and not result.tested):
            return None
        if others and result.complete:
            listed = "; ".join(map(str, others))
            self.error = (
                f"the folder holds a run of another configuration ({listed}): move it away, or "
                "give another --runs"
            )
        return None if others else result

    def look(self) -> None:
        """Updates step and validation from metrics.jsonl; a damaged one is named in `error`."""
        try:
            curve = run_files.curve(self.job.folder)
            self.step = curve.step
            accuracies = [(step, accuracy / 100) for step, accuracy in curve.validation]
            self.curve = dict(curve.validation_loss if self.job.denoise else accuracies)
        except UserError as error:
            self.error = self.error or str(error)
        self.validation = (min if self.job.denoise else max)(self.curve.values(), default=None)
        if self.state in ("waiting", *FAILED):
            self.first = None
        elif self.state == "running":
            self.first = self.first or (time.monotonic(), self.step)

    def entry(self) -> Entry:
        """Returns the trial's entry in trials.json."""
        job = self.job
        return Entry(
            number=self.number,
            task=job.task,
            model=job.model,
            preset=job.preset,
            seed=job.seed,
            overrides=job.overrides,
            folder=str(job.folder.relative_to(job.runs)),
            state=self.state,
            step=self.step,
            num_steps=self.num_steps,
            validation=self.validation,
            error=self.error,
            command=shlex.join(["lra-fnet", *job.command()]),
        )


def _differences(result: record.Record, trial: Trial) -> list[config.Difference]:
    """Returns what differs between a result and the trial, as far as it is known."""
    if trial.built is None:
        return []
    job, built = trial.job, trial.built
    data = store.read_fingerprint(built.task.folder(job.data))
    fingerprint = data["fingerprint"] if data else None
    return record.differences(result, built.config, fingerprint, job.imports, ())


def make_trial(plan: plans.Plan, pair: int, point: int, params: dict, seed: int) -> Trial:
    """Returns a trial with the configuration that its result must have."""
    job, built = plan.job(pair, params, seed), None
    with contextlib.suppress(UserError):  # a point of a search that cannot be built: its run fails
        built = plans.built(dataclasses.replace(job, seed=0))
    return Trial(plan.number(pair, point, seed), job, pair, point, built)


def mean_validation(seeds: Sequence[Trial]) -> float:
    """Returns the mean over a complete point's seeds, which sampler and selection compare."""
    return statistics.fmean(trial.validation or 0.0 for trial in seeds)


class Ledger:
    """The trials of one sweep; close it after use."""

    def __init__(self, plan: plans.Plan):
        """Begins the sweep, or opens the one that has begun.

        Raises:
          UserError: the folder belongs to another sweep, or cannot be written.
        """
        self.plan = plan
        self.known: dict[int, Trial] = {}  # by number
        self.retried: set[int] = set()  # numbers of failed trials that wait for another attempt
        self.errors: dict[int, str | None] = {}  # of the attempts of this process, by number
        self._written: list | None = None  # the entries of trials.json
        self._claims: dict[Path, IO[str]] = {}  # locked files, by run folder
        with self.locked():
            plan.begin()
            self.studies = Studies(plan)

    @property
    def trials(self) -> list[Trial]:
        """All trials, by number."""
        return [self.known[number] for number in sorted(self.known)]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the sweep's lock for the block, in which disk errors are a UserError."""
        with disk.writable(self.plan.folder), disk.lock(self.plan.folder / ".lock"):
            # The journal's lock is only taken under this one: a leftover is a killed process's.
            (self.plan.folder / "journal.log.lock").unlink(missing_ok=True)
            yield

    def claim(self, folder: Path) -> bool:
        """Claims a run folder; returns False if a process, perhaps this one, has claimed it.

        Two points that a sampler draws alike have the same run folders.
        """
        with disk.writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            handle = disk.try_lock(folder / CLAIM)
        if handle is not None:
            self._claims[folder] = handle
        return handle is not None

    def drop(self, folder: Path) -> None:
        """Gives a claim back."""
        self._claims.pop(folder).close()

    def close(self) -> None:
        """Gives all claims back."""
        for handle in self._claims.values():
            handle.close()

    def refresh(self, running: Container[int] = ()) -> None:
        """Reads all states again, tells the studies which points have ended, writes trials.json.

        Args:
          running: numbers of the trials that this process runs.
        """
        for pair in range(len(self.plan.pairs)):
            for point in self.studies.points(pair):
                seeds = [self._trial(pair, point, k) for k in range(self.plan.sweep.seeds)]
                for trial in seeds:
                    self._judge(trial, point, trial.number in running)
                self._tell(pair, point, seeds)
        entries = [trial.entry() for trial in self.trials]
        if entries != self._written:
            values = [dataclasses.asdict(entry) for entry in entries]
            disk.write_json(self.plan.folder / "trials.json", values)
            self._written = entries

    def fail(self, trial: Trial, error: str | None) -> None:
        """Keeps why a run failed, or None before another attempt; the caller holds the lock.

        The study stores it too, unless the point had ended: a run deleted since is trained again.
        """
        self.errors[trial.number] = error
        point = self.studies.by_pair[trial.pair].get_trials(deepcopy=False)[trial.point]
        name = ERROR.format(trial.job.seed)
        if point.state == TrialState.RUNNING and point.user_attrs.get(name) != error:
            self.studies.storage.set_trial_user_attr(point._trial_id, name, error)

    def _trial(self, pair: int, point: FrozenTrial, seed: int) -> Trial:
        number = self.plan.number(pair, point.number, seed)
        if number not in self.known:
            self.known[number] = make_trial(self.plan, pair, point.number, point.params, seed)
        return self.known[number]

    def _judge(self, trial: Trial, point: FrozenTrial, mine: bool) -> None:
        """Updates a trial's state."""
        if trial.state == "complete":
            return
        before, folder = trial.state, trial.job.folder
        stored = point.user_attrs.get(ERROR.format(trial.job.seed))
        trial.error = stored or self.errors.get(trial.number)
        result = trial.record()
        if point.state == TrialState.PRUNED:
            trial.state = "pruned"
        elif mine:
            trial.state = "running"
        elif result is not None and result.validation is not None:  # complete
            trial.state, trial.error = "complete", None
            trial.look()
            best, last = result.validation.best, result.validation.last
            accuracy = best.correct / best.count
            trial.step = last.step
            trial.validation = best.mean_loss if trial.job.denoise else accuracy
            return
        elif jobs.in_use(folder, CLAIM) or jobs.in_use(folder):
            trial.state = "running"
        elif trial.number in self.retried:
            trial.state = "waiting"
        elif result is not None:
            trial.state = result.state
        else:
            trial.state = "failed" if trial.error else "waiting"
        if trial.state == "running" or trial.state != before:
            trial.look()

    def _tell(self, pair: int, point: FrozenTrial, seeds: list[Trial]) -> None:
        """Ends a point if all its seeds are complete, or if the first one falls behind."""
        if point.state != TrialState.RUNNING:
            return
        first = seeds[0]
        is_behind = (
            self.plan.sweep.prune
            and first.state in ("running", "complete")
            and self.studies.falls_behind(pair, point, first.curve)
        )
        if is_behind and first.state == "running":
            self.studies.by_pair[pair].tell(point.number, state=TrialState.PRUNED)
        elif all(trial.state == "complete" for trial in seeds):
            self.studies.by_pair[pair].tell(point.number, mean_validation(seeds))
