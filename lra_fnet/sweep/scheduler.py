"""Runs the trials of a sweep on this machine, several at a time."""

import contextlib
import dataclasses
import itertools
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress, signals, typed_json
from lra_fnet.run import job as jobs
from lra_fnet.sweep import board, plan, studies
from lra_fnet.sweep.files import Entry
from lra_fnet.sweep.ledger import ENDED, FAILED, Ledger, Trial, make_trial

PROGRAM = (sys.executable, "-m", "lra_fnet")
SECONDS_A_LOOK = 1.0
STOPPED = {code for number in signals.STOPPING for code in (128 + number, -number)}


def run(sweep: plan.Plan, *, jobs: int = 1, retry: bool = False) -> int:
    """Runs the trials that are not complete, each in its own process.

    Args:
      sweep: the trials.
      jobs: number of trials at a time; they divide the cores among them.
      retry: runs the failed trials once more.

    Returns:
      0; 1 if a trial has failed (the others still run); 128 + signal if a signal stopped the sweep
      after every trial has saved.

    Raises:
      UserError: the sweep cannot be built or written.
    """
    sweep.check()
    with contextlib.closing(Ledger(sweep)) as ledger:
        view, workers = board.Board(sweep), _Workers(ledger, jobs)
        stopping = signals.Stop(workers.stop)  # at once: a second Ctrl-C ends only this process
        with contextlib.closing(view), stopping as stop, contextlib.closing(workers):
            if retry:
                with ledger.locked():
                    ledger.refresh()
                ledger.retried = {t.number for t in ledger.trials if t.state in FAILED}
            busy = True
            while busy:
                busy = workers.turn(stop)
                view.show(ledger.trials)
                time.sleep(SECONDS_A_LOOK if busy else 0)
        return _report(ledger, jobs, stop.signal)


def dry_run(sweep: plan.Plan, *, retry: bool = False) -> None:
    """Prints the commands of the trials that are still to run, each once; writes nothing.

    Raises:
      UserError: the sampler is tpe, or points are pruned, which depends on earlier results; the
        name is that of another sweep.
    """
    if sweep.sweep.prune:
        raise UserError(
            "--prune stops points by the results of others, and the commands of --dry-run know of "
            "none: leave one of the two out"
        )
    if sweep.sweep.sampler == "tpe":
        raise UserError(
            "--dry-run expects --sampler grid or random, because each point of tpe depends on the "
            "results before it: start the sweep on several machines instead, and they share it"
        )
    sweep.check()
    sweep.stored()
    known = typed_json.entries(sweep.folder / "trials.json", Entry)
    ended = {entry.folder for entry in known if entry.state == "pruned"}
    if not retry:
        ended |= {entry.folder for entry in known if entry.state in FAILED}
    commands = []
    points = enumerate(studies.points(sweep.sweep))
    for (number, point), pair, seed in itertools.product(
        points, range(len(sweep.pairs)), range(sweep.sweep.seeds)
    ):
        trial = make_trial(sweep, pair, number, point, seed)
        result = trial.record()
        here = str(trial.job.folder.relative_to(trial.job.runs))
        if here not in ended and (result is None or (retry and not result.complete)):
            commands.append(shlex.join(["lra-fnet", *trial.job.command()]))
    for command in dict.fromkeys(commands):  # a search may draw a point twice
        print(command)


def share(cores: list[int], workers: int) -> list[list[int]]:
    """Distributes all cores as evenly as possible; every worker gets at least one."""
    parts = np.array_split(cores, min(workers, len(cores)))
    return [parts[worker % len(parts)].tolist() for worker in range(workers)]


@dataclasses.dataclass
class _Child:
    """A process that runs a trial."""

    trial: Trial
    process: subprocess.Popen
    worker: int
    log: Path
    log_begin: int  # bytes
    is_stopped: bool = False

    def stop(self) -> None:
        """Asks the trial to save and end; a second signal would end it before it has saved."""
        if not self.is_stopped:
            self.is_stopped = True
            self.process.terminate()

    def last_words(self, code: int) -> str:
        """Returns the line with which the trial failed."""
        lines = []
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self.log_begin)
            lines = log.read().decode(errors="replace").strip().splitlines()
        if code < 0:
            return f"killed by signal {-code}"
        note = next((n for n, line in enumerate(lines) if line == "-" * 20), len(lines))
        lines = lines[:note] or lines  # JAX adds a note on its traceback behind the error
        ours = [line.removeprefix("lra-fnet: ") for line in lines if line.startswith("lra-fnet: ")]
        return (ours or lines or [f"ended with code {code}"])[-1]


class _Workers:
    """The processes of this machine's trials; close it after use."""

    def __init__(self, ledger: Ledger, jobs: int):
        self._ledger = ledger
        self._cores = share(sorted(os.sched_getaffinity(0)), jobs)
        self._children: dict[int, _Child] = {}  # by number of the trial

    def stop(self) -> None:
        """Asks all trials to save and end."""
        for child in list(self._children.values()):
            child.stop()

    def close(self) -> None:
        """Stops the trials and waits until they have saved."""
        self.stop()
        for child in self._children.values():
            child.process.wait()

    def turn(self, stop: signals.Stop) -> bool:
        """Collects ended trials and starts others; returns False if nothing is left to wait for."""
        ledger = self._ledger
        with ledger.locked():
            self._collect(stop)
            ledger.refresh(self._children.keys())
            while not stop.signal and len(self._children) < len(self._cores) and self._start():
                ledger.refresh(self._children.keys())
        for child in self._children.values():
            if stop.signal or child.trial.state == "pruned":
                child.stop()
        ended = all(trial.state in ENDED for trial in ledger.trials)
        return bool(self._children) or not (stop.signal or ended)

    def _collect(self, stop: signals.Stop) -> None:
        for number, child in list(self._children.items()):
            code = child.process.poll()
            if code is None:
                continue
            del self._children[number]
            self._ledger.drop(child.trial.job.folder)
            if child.is_stopped and code in STOPPED:
                continue
            if code in STOPPED:  # somebody else stops the trials, so the sweep stops too
                stop.signal = stop.signal or abs(code) % 128
            elif code == 2 and jobs.in_use(child.trial.job.folder):
                continue  # somebody had started the same run by hand: that is the trial now
            elif code:
                self._ledger.fail(child.trial, child.last_words(code))
            else:
                child.trial.error = None
                if child.trial.record() is None:
                    without = "it ended without a result of this trial"
                    self._ledger.fail(child.trial, child.trial.error or without)

    def _start(self) -> bool:
        """Starts the next trial or draws another point; returns False if there is none now."""
        ledger = self._ledger
        for trial in ledger.trials:
            if self._startable(trial) and ledger.claim(trial.job.folder):
                ledger.retried.discard(trial.number)
                ledger.fail(trial, None)  # what happened before is not this attempt's error
                self._children[trial.number] = self._popen(trial)
                return True
        return ledger.plan.sweep.sampler == "tpe" and ledger.studies.ask()

    def _startable(self, trial: Trial) -> bool:
        """Returns whether a trial waits; with pruning, the first seed must have ended before."""
        if trial.state != "waiting":
            return False
        first = self._ledger.known[trial.number - trial.job.seed]
        return not self._ledger.plan.sweep.prune or first is trial or first.state in ENDED

    def _popen(self, trial: Trial) -> _Child:
        job = trial.job
        with disk.writable(job.folder):
            log = open(job.folder / "train.log", "ab")  # noqa: SIM115 (closed below)
        begin = log.tell()
        busy = {child.worker for child in self._children.values()}
        worker = min(set(range(len(self._cores))) - busy)
        # Several trials may share a GPU.
        shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if len(self._cores) > 1 else {}
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores[worker])  # the process inherits it from the start
        try:
            process = subprocess.Popen(
                [*PROGRAM, *job.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | shared,
                start_new_session=True,  # Ctrl-C reaches only the parent, which stops each once
            )
        finally:
            os.sched_setaffinity(0, cores)
            log.close()
        return _Child(trial, process, worker, Path(log.name), begin)


def _report(ledger: Ledger, jobs: int, stopped: int | None) -> int:
    """Prints a table of points, the failures, and the command that continues; returns the code."""
    sweep, trials = ledger.plan, ledger.trials
    options = ["--jobs", str(jobs)] if jobs > 1 else []
    if stopped:
        options += ["--retry"] if ledger.retried else []
        progress.say(f"saved; to resume: {sweep.again('sweep', *options)}")
        return 128 + stopped
    progress.console.print(board.points(sweep, trials))
    failed = [trial for trial in trials if trial.state in FAILED]
    for trial in failed:
        progress.say(f"{trial.state}: {trial.job.folder}: {trial.error or 'see its train.log'}")
    if failed:
        progress.say(f"to try them again: {sweep.again('sweep', *options, '--retry')}")
    if sweep.sweep.axes and not sweep.sweep.pretrain:
        progress.say(f"to score the best on test: {sweep.again('finish')}")
    return 1 if failed else 0
