"""The live table of a sweep's trials; without a terminal, plain lines."""

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

# Those that a person looks for stand first where the terminal is too small for all.
ORDER = ("running", *FAILED, "pruned", "waiting", "complete")
STYLES = {"running": "bold", "waiting": "dim", "pruned": "dim"} | dict.fromkeys(FAILED, "red")


class Pace:
    """How long trials take, from the steps that are seen to pass."""

    def __init__(self):
        self._seen: dict[int, tuple[float, int]] = {}  # by number: when, and at which step
        self._begun = time.monotonic()
        self._steps = 0  # that passed in all

    def see(self, trials: Iterable[Trial]) -> None:
        """Notes where the running ones are."""
        now = time.monotonic()
        for trial in trials:
            if trial.state == "running" and trial.number not in self._seen:
                self._seen[trial.number] = now, trial.step
            elif trial.state in ("waiting", *FAILED):
                self._seen.pop(trial.number, None)

    def left(self, trial: Trial) -> float | None:
        """Seconds to its last step; None where none has passed."""
        begun, first = self._seen.get(trial.number, (0.0, trial.step))
        if trial.num_steps is None or trial.step <= first:
            return None
        return (time.monotonic() - begun) / (trial.step - first) * (trial.num_steps - trial.step)

    def all_left(self, trials: Sequence[Trial]) -> float | None:
        """Seconds to the end of the last one, as if a step were like any other."""
        passed = sum(t.step - self._seen[t.number][1] for t in trials if t.number in self._seen)
        left = sum((t.num_steps or 0) - t.step for t in trials if t.state not in ENDED)
        if passed <= 0:
            return None
        return (time.monotonic() - self._begun) / passed * left


class Board:
    """A context manager around a sweep; call `show` now and then."""

    seconds_a_line = 30.0  # without a terminal

    def __init__(self, of: Plan):
        self._plan = of
        self._pace = Pace()
        self._live: Live | None = None
        self._states: dict[int, str] = {}
        self._told = time.monotonic()

    def __enter__(self):
        if sys.stderr.isatty():
            self._live = Live(console=progress.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_):
        if self._live is not None:
            self._live.stop()

    def show(self, trials: Sequence[Trial]) -> None:
        """The trials as they are now."""
        self._pace.see(trials)
        if self._live is not None:
            rows = max(1, progress.console.height - 6)
            self._live.update(table(self._plan, trials, self._pace, rows), refresh=True)
            return
        for trial in trials:
            before = self._states.get(trial.number, "waiting")
            self._states[trial.number] = trial.state
            if trial.state != before:
                say = [f"[{trial.number + 1}/{len(trials)}] {trial.job.folder}: {trial.state}"]
                say += [_percent(trial)] if trial.state == "complete" else []
                say += [trial.error] if trial.error and trial.state in FAILED else []
                progress.say(", ".join(say))
        if time.monotonic() - self._told >= self.seconds_a_line:
            self._told = time.monotonic()
            for trial in trials:
                if trial.state == "running":
                    progress.say(f"{trial.job.folder}: {', '.join(_facts(trial, self._pace))}")
            progress.say(summary(trials, self._pace))


def summary(trials: Sequence[Trial], pace: Pace | None = None) -> str:
    """How many are in which state, and how long it will take."""
    counts = Counter(trial.state for trial in trials)
    words = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
    left = pace.all_left(trials) if pace else None
    return ", ".join([*words, f"about {progress.duration(left)} left"] if left else words)


def table(
    of: Plan, trials: Sequence[Trial], pace: Pace | None = None, rows: int | None = None
) -> Table:
    """One line a trial, by number; where there are more than `rows`, those that matter most."""
    shown = list(trials)
    if rows is not None and len(shown) > rows:
        shown = sorted(shown, key=lambda trial: ORDER.index(trial.state))[:rows]
    title = Text(f"{of.name}{'' if not of.sweep.axes else ': accuracy on validation'}")
    found = Table(title=title, caption=Text(summary(trials, pace)), box=box.SIMPLE_HEAD)
    for name in ("task", "model", "point", "seed", "state", "step", "validation"):
        number = name in ("seed", "step", "validation")
        found.add_column(name, justify="right" if number else "left", overflow="fold")
    if pace is not None:
        found.add_column("left", justify="right")
    for trial in shown:
        point = trial.job.overrides[len(of.sweep.overrides) :]
        words = [
            trial.job.task,
            trial.job.model,
            " ".join(binding.partition(".")[2] or binding for binding in point),
            str(trial.job.seed),
            trial.state,
            f"{trial.step}/{trial.num_steps or '?'}",
            "" if trial.validation is None else f"{100 * trial.validation:.2f}",
            *([] if pace is None else [_left(trial, pace)]),
        ]
        found.add_row(*map(Text, words), style=STYLES.get(trial.state))
    return found


def _facts(trial: Trial, pace: Pace) -> list[str]:
    facts = [f"step {trial.step} of {trial.num_steps}"]
    facts += [_percent(trial)] if trial.validation is not None else []
    return facts + ([f"{left} left"] if (left := _left(trial, pace)) else [])


def _left(trial: Trial, pace: Pace) -> str:
    seconds = pace.left(trial) if trial.state == "running" else None
    return "" if seconds is None else progress.duration(seconds)


def _percent(trial: Trial) -> str:
    assert trial.validation is not None
    return f"validation {100 * trial.validation:.2f}"
