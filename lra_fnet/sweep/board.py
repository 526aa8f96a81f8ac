"""Shows a sweep's trials: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lra_fnet.machine import progress
from lra_fnet.sweep.ledger import ENDED, FAILED, Trial
from lra_fnet.sweep.plan import Plan

# The first states are the ones shown when the terminal is too small for all trials.
ORDER = ("running", *FAILED, "pruned", "waiting", "complete")
STYLES = {"running": "bold", "waiting": "dim", "pruned": "dim"} | dict.fromkeys(FAILED, "red")


class Pace:
    """Estimates how long trials take from the steps that pass."""

    def __init__(self):
        self._seen: dict[int, tuple[float, int]] = {}  # by number: first time and step

    def see(self, trials: Iterable[Trial]) -> None:
        """Notes the steps of the running trials."""
        for trial in trials:
            if trial.state == "running":
                self._seen.setdefault(trial.number, (time.monotonic(), trial.step))
            elif trial.state in ("waiting", *FAILED):
                self._seen.pop(trial.number, None)

    def left(self, trials: Sequence[Trial]) -> float | None:
        """Returns the seconds to the end of the trials, as if all steps took the same time.

        It is None until a step has passed.
        """
        seen = [
            (trial, *self._seen[trial.number]) for trial in trials if trial.number in self._seen
        ]
        passed = sum(trial.step - first for trial, _, first in seen)
        if passed <= 0:
            return None
        left = sum((t.num_steps or 0) - t.step for t in trials if t.state not in ENDED)
        return (time.monotonic() - min(begun for _, begun, _ in seen)) / passed * left


class Board:
    """Shows the trials; call `show` after every change, and `close` at the end."""

    seconds_a_line = 30.0  # between plain lines about steps

    def __init__(self, plan: Plan):
        self._plan = plan
        self._pace = Pace()
        self._live: Live | None = None
        if sys.stderr.isatty():
            self._live = Live(console=progress.console, auto_refresh=False, transient=True)
            self._live.start()
        self._states: dict[int, str] = {}
        self._printed = time.monotonic()

    def close(self) -> None:
        """Removes the live table."""
        if self._live is not None:
            self._live.stop()

    def show(self, trials: Sequence[Trial]) -> None:
        """Shows the current state of the trials."""
        self._pace.see(trials)
        if self._live is not None:
            rows = max(1, progress.console.height - 6)
            self._live.update(table(self._plan, trials, self._pace, rows), refresh=True)
            return
        is_time = time.monotonic() - self._printed >= self.seconds_a_line
        for trial in trials:
            changed = trial.state != self._states.get(trial.number, "waiting")
            self._states[trial.number] = trial.state
            if changed or (is_time and trial.state == "running"):
                facts = ", ".join(_facts(trial, self._pace))
                progress.say(f"[{trial.number + 1}/{len(trials)}] {trial.job.folder}: {facts}")
        if is_time:
            self._printed = time.monotonic()
            progress.say(summary(trials, self._pace))


def summary(trials: Sequence[Trial], pace: Pace | None = None) -> str:
    """Returns the number of trials in each state and the time left."""
    counts = Counter(trial.state for trial in trials)
    words = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
    left = pace.left(trials) if pace else None
    return ", ".join([*words, f"about {progress.duration(left)} left"] if left else words)


def table(
    plan: Plan, trials: Sequence[Trial], pace: Pace | None = None, rows: int | None = None
) -> Table:
    """Returns one row a trial, by number; of more than `rows` trials, those that matter most."""
    shown = list(trials)
    if rows is not None and len(shown) > rows:
        shown = sorted(shown, key=lambda trial: ORDER.index(trial.state))[:rows]
    title = plan.name + (": accuracy on validation" if plan.sweep.axes else "")
    grid = Table(title=Text(title), caption=Text(summary(trials, pace)), box=box.SIMPLE_HEAD)
    for name in ("task", "model", "point", "seed", "state", "step", "validation", "left"):
        is_number = name in ("seed", "step", "validation", "left")
        grid.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for trial in shown:
        point = trial.job.overrides[len(plan.sweep.overrides) :]
        left = pace.left([trial]) if pace and trial.state == "running" else None
        words = [
            trial.job.task,
            trial.job.model,
            " ".join(binding.partition(".")[2] or binding for binding in point),
            str(trial.job.seed),
            trial.state,
            f"{trial.step}/{trial.num_steps or '?'}",
            "" if trial.validation is None else f"{100 * trial.validation:.2f}",
            "" if left is None else progress.duration(left),
        ]
        grid.add_row(*map(Text, words), style=STYLES.get(trial.state))
    return grid


def _facts(trial: Trial, pace: Pace) -> list[str]:
    """Returns the state, progress, accuracy and error of a trial, as far as they are known."""
    facts = [trial.state]
    left = pace.left([trial]) if trial.state == "running" else None
    if left is not None:
        facts.append(f"step {trial.step} of {trial.num_steps}")
    if trial.state in ("running", "complete") and trial.validation is not None:
        facts.append(f"validation {100 * trial.validation:.2f}")
    if left is not None:
        facts.append(f"{progress.duration(left)} left")
    return facts + ([trial.error] if trial.error and trial.state in FAILED else [])
