"""Runs the trials of a sweep on this machine, several at a time."""

import contextlib
import dataclasses
import itertools
import os
import subprocess
import sys
import time
from typing import IO

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress, signals, terminal
from lra_fnet.sweep import files, plan
from lra_fnet.sweep.files import ENDED, FAILED
from lra_fnet.sweep.ledger import Ledger, Trial, claim, make_trial

PROGRAM = (sys.executable, "-m", "lra_fnet")
SECONDS_A_LOOK = 1.0
LOG = "train.log"  # in a trial's run folder: what its process prints
STOPPED = {code for number in signals.STOPPING for code in (128 + number, -number)}


def run(sweep: plan.Plan, *, jobs: int = 1, retry: bool = False) -> int:
    """Runs the trials that are not complete, each in its own process; prints a line for each.

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
    ledger = Ledger(sweep)
    workers, shown = _Workers(ledger, jobs), {}
    stopping = signals.Stop(workers.stop)  # at once: a second Ctrl-C ends only this process
    with stopping as stop, contextlib.closing(workers):
        with ledger.locked():
            ledger.refresh(retry=retry)
        busy = True
        while busy:
            busy = workers.turn(stop)
            _show(ledger.trials, shown)
            time.sleep(SECONDS_A_LOOK if busy else 0)
    return _report(ledger, jobs, stop.signal)


def dry_run(sweep: plan.Plan) -> None:
    """Prints the commands of the trials that are still to run, each once; writes nothing.

    Raises:
      UserError: the sampler is tpe; the name is that of another sweep.
    """
    if sweep.sweep.sampler == "tpe":
        raise UserError(
            "--dry-run expects --sampler grid or random, as points of tpe depend on results: leave "
            "it out"
        )
    sweep.check()
    sweep.check_name()
    commands = []
    for (number, point), pair, seed in itertools.product(
        enumerate(sweep.points()), range(len(sweep.pairs)), range(sweep.sweep.seeds)
    ):
        trial = make_trial(sweep, pair, number, point, seed)
        if trial.record() is None:
            commands.append(terminal.command(trial.job.command()))
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
    claim: IO[str]
    is_stopped: bool = False

    def stop(self) -> None:
        """Asks the trial to save and end; a second signal would end it before it has saved."""
        if not self.is_stopped:
            self.is_stopped = True
            self.process.terminate()


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
            ledger.refresh(self._children)
            while not stop.signal and len(self._children) < len(self._cores) and self._start():
                ledger.refresh(self._children)
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
            child.claim.close()
            if child.is_stopped and code in STOPPED:
                continue
            if code in STOPPED:  # somebody else stops the trials, so the sweep stops too
                stop.signal = stop.signal or abs(code) % 128
            elif code < 0:
                self._ledger.errors[number] = f"killed by signal {-code}"
            elif code:
                text = (child.trial.job.folder / LOG).read_text(errors="replace").strip()
                self._ledger.errors[number] = text.rpartition("\n")[2].removeprefix("lra-fnet: ")
            elif child.trial.record() is None:
                self._ledger.errors[number] = "it ended without a result of this trial"

    def _start(self) -> bool:
        """Starts the next trial or draws another point; returns False if there is none now."""
        ledger, prune = self._ledger, self._ledger.plan.sweep.prune
        for (pair, point, _), trial in sorted(ledger.known.items(), key=lambda of: of[1].number):
            first = ledger.known[pair, point, 0]
            is_due = not prune or first is trial or first.state in ENDED
            if trial.state == "waiting" and is_due and (claimed := claim(trial.job.folder)):
                self._children[trial.number] = self._popen(trial, claimed)
                return True
        return ledger.plan.sweep.sampler == "tpe" and ledger.ask()

    def _popen(self, trial: Trial, claimed: IO[str]) -> _Child:
        busy = {child.worker for child in self._children.values()}
        worker = min(set(range(len(self._cores))) - busy)
        # Full tracebacks end with the error. Several trials may share a GPU.
        environment = os.environ | {"JAX_TRACEBACK_FILTERING": "off"}
        if len(self._cores) > 1:
            environment |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores[worker])  # the process inherits it from the start
        try:
            with disk.writable(trial.job.folder), open(trial.job.folder / LOG, "ab") as log:
                process = subprocess.Popen(
                    [*PROGRAM, *trial.job.command()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches only the parent, which stops each once
                )
        finally:
            os.sched_setaffinity(0, cores)
        return _Child(trial, process, worker, claimed)


def _show(trials: list[Trial], shown: dict[int, str]) -> None:
    """Prints a line for each trial whose state is not the one that was shown."""
    for trial in trials:
        if trial.state != shown.get(trial.number, "waiting"):
            facts = [f"[{trial.number + 1}/{len(trials)}] {trial.job.folder}", trial.state]
            progress.say(": ".join([*facts, *filter(None, [trial.error])]))
        shown[trial.number] = trial.state


def _report(ledger: Ledger, jobs: int, stopped: int | None) -> int:
    """Prints a line for each point and the command that continues; returns the exit code."""
    sweep, trials = ledger.plan, ledger.trials
    if stopped:
        progress.say(f"saved; to resume: {sweep.again('sweep', '--jobs', str(jobs))}")
        return 128 + stopped
    for point in files.points(trials):
        done = [trial for trial in point if trial.state == "complete"]
        mean = f"{files.mean(done):.4f} on validation" if done else "-"
        setting = " ".join([point[0].task, point[0].model, *point[0].overrides])
        progress.say(f"{setting}: {len(done)} of {len(point)} seeds: {mean}")
    if sweep.sweep.axes and not sweep.sweep.pretrain:
        progress.say(f"to score the best on test: {sweep.again('finish')}")
    return int(any(trial.state in FAILED for trial in trials))
