"""Runs the trials of a sweep on this machine, as many at a time as asked for."""

import contextlib
import dataclasses
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress
from lra_fnet.run import folder as run_folder
from lra_fnet.sweep import board, plan, studies
from lra_fnet.sweep.ledger import ENDED, FAILED, Ledger, Trial, make_trial
from lra_fnet.train.loop import Stop

PROGRAM = (sys.executable, "-m", "lra_fnet.cli")
SECONDS_A_LOOK = 1.0
STOPPED = {128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM}


def run(of: plan.Plan, *, jobs: int = 1, retry: bool = False) -> int:
    """Runs the trials that are not complete, each a process of its own.

    Args:
      of: what to run.
      jobs: trials at a time; the cores are divided among them.
      retry: those that have failed too, once.

    Returns:
      0; 1 where a trial has failed, the others having run all the same; 128 + signal where a signal
      stopped them, each having saved.

    Raises:
      UserError: the sweep cannot be built or written.
    """
    if jobs < 1:
        raise UserError(f"JOBS (--jobs) expects a whole number of at least 1, got {jobs}")
    of.check()
    with contextlib.closing(Ledger(of)) as ledger:
        with board.Board(of) as shown, Stop() as stop, _Workers(ledger, jobs) as workers:
            if retry:
                with ledger.locked():
                    ledger.refresh()
                ledger.retried = {t.number for t in ledger.trials if t.state in FAILED}
            busy = True
            while busy:
                busy = workers.turn(stop)
                shown.show(ledger.trials)
                time.sleep(SECONDS_A_LOOK if busy else 0)
        return _tell(ledger, jobs, stop.signal)


def dry_run(of: plan.Plan, *, retry: bool = False) -> None:
    """Prints the commands of the trials that are still to run; writes nothing.

    Raises:
      UserError: the points of TPE depend on the results before them.
    """
    if of.sweep.sampler == "tpe":
        raise UserError(
            "--dry-run expects --sampler grid or random: each point of tpe depends on the results "
            "before it; start this sweep on several machines instead, they share its points"
        )
    of.check()
    every = itertools.product(
        enumerate(studies.points(of.sweep)), range(len(of.pairs)), range(of.sweep.seeds)
    )
    for (number, point), pair, seed in every:
        job = of.job(pair, point, seed)
        result = make_trial(of.number(pair, number, seed), job, pair, number).result()
        if result is None or (retry and result["state"] != "complete"):
            print(shlex.join(["lra-fnet", *plan.command(job)]))


def share(cores: list[int], workers: int) -> list[list[int]]:
    """The cores of each worker: all are dealt out, as evenly as may be; none is left without."""
    count = len(cores)
    if workers > count:
        return [[cores[worker % count]] for worker in range(workers)]
    ends = [worker * count // workers for worker in range(workers + 1)]
    return [cores[begin:end] for begin, end in itertools.pairwise(ends)]


@contextlib.contextmanager
def _pinned_to(cores: list[int]) -> Iterator[None]:
    """What this thread starts meanwhile runs on these cores alone, from its first instruction."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclasses.dataclass
class _Child:
    """A process that runs a trial."""

    trial: Trial
    process: subprocess.Popen
    worker: int
    log: Path
    log_begin: int  # bytes
    told: bool = False  # to stop


class _Workers:
    """The processes of this machine's trials; on leaving, those that run are stopped and save."""

    def __init__(self, ledger: Ledger, jobs: int):
        self._ledger = ledger
        self._cores = share(sorted(os.sched_getaffinity(0)), jobs)
        self._children: dict[int, _Child] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self._children.values():
            self._stop(child)
        for child in self._children.values():
            child.process.wait()

    def turn(self, stop: Stop) -> bool:
        """Collects what has ended and starts what can; False where nothing is left to wait for."""
        ledger = self._ledger
        with ledger.locked():
            self._collect(stop)
            ledger.refresh(self._children.keys())
            while not stop.signal and len(self._children) < len(self._cores) and self._start():
                ledger.refresh(self._children.keys())
        for child in self._children.values():
            if stop.signal or child.trial.state == "pruned":
                self._stop(child)
        ended = all(trial.state in ENDED for trial in ledger.trials)
        return bool(self._children) or not (stop.signal or ended)

    def _collect(self, stop: Stop) -> None:
        for number, child in list(self._children.items()):
            code = child.process.poll()
            if code is None:
                continue
            del self._children[number]
            self._ledger.claims.drop(child.trial.job.folder)
            if child.told and code in STOPPED:
                continue
            if code in STOPPED:  # somebody stops the trials: so does the sweep
                stop.signal = stop.signal or abs(code) % 128
            elif code == 2 and run_folder.in_use(child.trial.job.folder):
                continue  # a person's own run was faster: it is the trial
            elif code:
                self._ledger.fail(child.trial, _last_words(child, code))
            elif child.trial.result() is None:
                self._ledger.fail(child.trial, "its gin files have changed since the sweep began")

    def _start(self) -> bool:
        """Starts the next trial; False where there is none for now."""
        for trial in self._ledger.trials:
            if self._startable(trial) and self._ledger.claims.take(trial.job.folder):
                self._ledger.retried.discard(trial.number)
                self._children[trial.number] = self._popen(trial)
                return True
        if self._ledger.plan.sweep.sampler == "tpe" and self._ledger.studies.ask():
            self._ledger.refresh(self._children.keys())
            return self._start()
        return False

    def _startable(self, trial: Trial) -> bool:
        """Waiting; and, where points are pruned, the first seed of its point has ended."""
        if trial.state != "waiting":
            return False
        first = self._ledger.known[trial.number - trial.job.seed]
        return not self._ledger.plan.sweep.prune or first is trial or first.state in ENDED

    def _popen(self, trial: Trial) -> _Child:
        job = trial.job
        with disk.writable(job.folder):
            job.folder.mkdir(parents=True, exist_ok=True)
            log = open(job.folder / "train.log", "ab")  # noqa: SIM115 (closed below)
        busy = {child.worker for child in self._children.values()}
        worker = min(set(range(len(self._cores))) - busy)
        # Several may share a GPU.
        more = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if len(self._cores) > 1 else {}
        with log, _pinned_to(self._cores[worker]):
            begin = log.tell()
            process = subprocess.Popen(
                [*PROGRAM, *plan.command(job)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | more,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which tells each once
            )
            return _Child(trial, process, worker, Path(log.name), begin)

    def _stop(self, child: _Child) -> None:
        if not child.told:  # a second signal would end it before it has saved
            child.told = True
            child.process.terminate()


def _last_words(child: _Child, code: int) -> str:
    """The line with which a trial failed."""
    with child.log.open("rb") as log:
        log.seek(child.log_begin)
        lines = log.read().decode(errors="replace").strip().splitlines()
    if code < 0:
        return f"killed by signal {-code}"
    ours = [line.removeprefix("lra-fnet: ") for line in lines if line.startswith("lra-fnet: ")]
    return (ours or lines or [f"ended with code {code}"])[-1]


def _tell(ledger: Ledger, jobs: int, stopped: int | None) -> int:
    """The table at the end, what has failed, and the command for what is left."""
    of = ledger.plan
    options = {"jobs": jobs} if jobs > 1 else {}
    if stopped:
        progress.say(f"saved; to resume: {of.again(**options)}")
        return 128 + stopped
    progress.console.print(board.table(of, ledger.trials))
    failed = [trial for trial in ledger.trials if trial.state in FAILED]
    for trial in failed:
        progress.say(f"{trial.state}: {trial.job.folder}: {trial.error or 'see its train.log'}")
    if failed:
        progress.say(f"to try them again: {of.again(**options, retry=True)}")
    if of.sweep.axes:
        progress.say(f"to score the best on test: {of.again('finish')}")
    return 1 if failed else 0
