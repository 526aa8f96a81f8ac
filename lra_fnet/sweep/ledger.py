"""What is known of a sweep's trials: read from the studies and the run folders, kept nowhere else.

Any number of processes on machines that share the folder hold the same ledger: what they change,
they change under the sweep's lock, and whoever runs a trial claims it by a lock that the kernel
frees however the process ends.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import shlex
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import folder as run_folder
from lra_fnet.run.job import Job
from lra_fnet.sweep import plan
from lra_fnet.sweep.studies import FrozenTrial, Studies, TrialState, error_of

FAILED = ("failed", "OOM", "diverged")
ENDED = ("complete", "pruned", *FAILED)
SECONDS_A_WRITE = 10.0  # of trials.json, where only steps have changed


@dataclasses.dataclass
class Trial:
    """One seed of one point."""

    number: int
    job: Job
    pair: int  # which task and model
    point: int  # the number of the study's trial
    config: str | None = None  # the operative gin text; None where the point cannot be built
    num_steps: int | None = None
    state: str = ""  # not looked at yet
    step: int = 0
    validation: float | None = None  # accuracy at the best step so far
    error: str | None = None

    def result(self) -> dict[str, Any] | None:
        """Its result.json, if it is of this configuration and says what the trial is to say."""
        found = disk.read_json(self.job.folder / "result.json")
        if found is None or (self.config and config.differing(found["config"], self.config)):
            return None
        untested = found["state"] == "complete" and self.job.test and found["test"] is None
        return None if untested else found

    def curve(self) -> dict[int, float]:
        """Validation accuracy by step, so far."""
        lines = _lines(self.job.folder / "metrics.jsonl")
        return {line["step"]: line["accuracy"] for line in lines if line["kind"] == "validation"}

    def look(self) -> None:
        """Notes how far it is."""
        lines = _lines(self.job.folder / "metrics.jsonl")
        self.step = max((line["step"] for line in lines), default=0)
        self.validation = max(self.curve().values(), default=None)

    def to_json(self) -> dict[str, Any]:
        """Its entry in trials.json."""
        job = self.job
        return {
            "number": self.number,
            "task": job.task,
            "model": job.model,
            "preset": job.preset,
            "seed": job.seed,
            "overrides": list(job.overrides),
            "folder": str(job.folder.relative_to(job.runs)),
            "state": self.state,
            "step": self.step,
            "num_steps": self.num_steps,
            "validation": self.validation,
            "error": self.error,
            "command": shlex.join(["lra-fnet", *plan.command(job)]),
        }


def make_trial(number: int, job: Job, pair: int, point: int) -> Trial:
    """A trial with the configuration that its result must have."""
    config, num_steps = None, None
    with contextlib.suppress(UserError):  # a search's point that does not fit: its run will say so
        config, num_steps = plan.built(dataclasses.replace(job, seed=0))
    return Trial(number, job, pair, point, config, num_steps)


def _lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl; one that is being written is not."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Claims:
    """Which trials a process works on: one byte of a file is locked for each."""

    def __init__(self, file: Path):
        with disk.writable(file.parent):
            self._file = open(file, "a+")  # noqa: SIM115 (open, and its locks held, to the end)
        self._mine: set[Path] = set()

    def take(self, folder: Path) -> bool:
        """Claims a run folder, unless a process has it, this one included."""
        if folder in self._mine:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(folder))
        except (BlockingIOError, PermissionError):
            return False
        self._mine.add(folder)
        return True

    def drop(self, folder: Path) -> None:
        """Gives a claim back."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(folder))
        self._mine.remove(folder)

    def close(self) -> None:
        """Gives all back."""
        self._file.close()

    def taken(self, folder: Path) -> bool:
        """Whether a process has it; the caller holds the sweep's lock."""
        if free := self.take(folder):
            self.drop(folder)
        return not free


def _place(folder: Path) -> int:
    """A byte for the last four names of the path, which are the run's."""
    digest = hashlib.sha256("/".join(folder.parts[-4:]).encode()).digest()
    return int.from_bytes(digest[:7])


class Ledger:
    """The trials of one sweep; close it."""

    def __init__(self, of: plan.Plan):
        """Begins the sweep, or finds it begun.

        Raises:
          UserError: the folder is another sweep's, or cannot be written.
        """
        self.plan = of
        self.trials: list[Trial] = []  # by number
        self.retried: set[int] = set()  # numbers of those that have failed and wait once more
        self.known: dict[int, Trial] = {}  # the same, found by number
        self._written: tuple[float, list, list] = (-math.inf, [], [])
        with disk.writable(of.folder):
            of.folder.mkdir(parents=True, exist_ok=True)
        with self.locked():
            of.begin()
            self.studies = Studies(of)
        self.claims = Claims(of.folder / ".claims")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the sweep's lock; the kernel frees it however the process ends."""
        with disk.writable(self.plan.folder):
            handle = open(self.plan.folder / ".lock", "a")  # noqa: SIM115 (closed below)
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # The journal's own lock is held only under this one: what stands here is of a killed
            # process.
            (self.plan.folder / "journal.log.lock").unlink(missing_ok=True)
            yield

    def close(self) -> None:
        """Gives every claim back."""
        self.claims.close()

    def refresh(self, running: Container[int] = ()) -> None:
        """Reads everything anew, tells the studies what has ended, writes trials.json.

        Args:
          running: the numbers of this process's own.
        """
        for pair in range(len(self.plan.pairs)):
            for point in self.studies.points(pair):
                seeds = [self._trial(pair, point, k) for k in range(self.plan.sweep.seeds)]
                for trial in seeds:
                    self._judge(trial, point, trial.number in running)
                self._tell(pair, point, seeds)
        self.trials = [self.known[number] for number in sorted(self.known)]
        self._write()

    def fail(self, trial: Trial, error: str) -> None:
        """Notes why a run failed; the caller holds the lock."""
        for point in self.studies.points(trial.pair):
            if point.number == trial.point and point.state == TrialState.RUNNING:
                self.studies.note_error(point, trial.job.seed, error)

    def _trial(self, pair: int, point: FrozenTrial, seed: int) -> Trial:
        number = self.plan.number(pair, point.number, seed)
        if number not in self.known:
            job = self.plan.job(pair, point.params, seed)
            self.known[number] = make_trial(number, job, pair, point.number)
        return self.known[number]

    def _judge(self, trial: Trial, point: FrozenTrial, mine: bool) -> None:
        """Finds out a trial's state."""
        if trial.state == "complete":
            return
        folder, before = trial.job.folder, trial.state
        result = trial.result()
        trial.error = error_of(point, trial.job.seed)
        if point.state == TrialState.PRUNED:
            trial.state = "pruned"
        elif mine:
            trial.state = "running"
        elif result is not None and result["state"] == "complete":
            trial.state, trial.error = "complete", None
        elif self.claims.taken(folder) or run_folder.in_use(folder):
            trial.state = "running"
        elif trial.number in self.retried:
            trial.state = "waiting"
        elif result is not None:
            trial.state = result["state"]
        else:
            trial.state = "failed" if trial.error else "waiting"
        if trial.state == "complete" and result is not None:
            best = result["validation"]["best"]
            trial.validation = best["correct"] / best["count"]
            trial.step = result["validation"]["last"]["step"]
        elif trial.state == "running" or trial.state != before:
            trial.look()

    def _tell(self, pair: int, point: FrozenTrial, seeds: list[Trial]) -> None:
        """Ends a point whose seeds are all complete, or whose first one falls behind."""
        if point.state != TrialState.RUNNING:
            return
        first = seeds[0]
        if self.plan.sweep.prune and first.state in ("running", "complete"):
            behind = self.studies.falls_behind(pair, point, first.curve())
            if behind and first.state == "running":
                self.studies.prune(pair, point)
                for trial in seeds:
                    trial.state = "pruned"
                return
        if all(trial.state == "complete" for trial in seeds):
            accuracies = [trial.validation for trial in seeds if trial.validation is not None]
            self.studies.tell(pair, point, sum(accuracies) / len(accuracies))

    def _write(self) -> None:
        """trials.json, after a change of state or, of steps, some seconds later."""
        then, states, entries = self._written
        new_states = [(trial.state, trial.error) for trial in self.trials]
        new = [trial.to_json() for trial in self.trials]
        now = time.monotonic()
        if new_states != states or (new != entries and now - then > SECONDS_A_WRITE):
            disk.write_json(self.plan.folder / "trials.json", new)
            self._written = now, new_states, new
