"""Shows a sweep's trials: a live table on a terminal, plain lines elsewhere."""

import contextlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lra_fnet import config
from lra_fnet.machine import progress
from lra_fnet.machine.terminal import Fitted
from lra_fnet.sweep.ledger import ENDED, FAILED, Trial
from lra_fnet.sweep.plan import Plan

# The first states are the ones shown when the terminal is too small for all trials.
ORDER = ("running", *FAILED, "pruned", "waiting", "complete")
_NUMBERS = ("step", "validation", "left")
STYLES = {"running": "bold", "waiting": "dim", "pruned": "dim"} | dict.fromkeys(FAILED, "red")


def left(trials: Iterable[Trial]) -> float | None:
    """Returns the seconds to the end of the trials, as if all steps took the same time.

    It is None until a step of theirs has been seen to pass, and 0 when all of them have ended.
    """
    trials = list(trials)
    seen = [(*trial.first, trial.step) for trial in trials if trial.first]
    passed = sum(step - first for _, first, step in seen)
    if passed <= 0:
        return None
    steps = sum((t.num_steps or 0) - t.step for t in trials if t.state not in ENDED)
    return (time.monotonic() - min(begun for begun, _, _ in seen)) / passed * steps


class Board:
    """Shows the trials; call `show` after every change, and `close` at the end."""

    seconds_a_line = 30.0  # between plain lines about steps

    def __init__(self, plan: Plan):
        self._plan = plan
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
        if self._live is not None:
            rows = max(1, progress.console.height - 6)
            self._live.update(table(self._plan, trials, rows), refresh=True)
            return
        is_time = time.monotonic() - self._printed >= self.seconds_a_line
        for trial in trials:
            changed = trial.state != self._states.get(trial.number, "waiting")
            self._states[trial.number] = trial.state
            if changed or (is_time and trial.state == "running"):
                facts = [f"{name} {text}" for name, text in _facts(trial).items() if text]
                is_share = not trial.job.denoise
                facts = [
                    f"{fact} %" if is_share and fact.startswith("validation") else fact
                    for fact in facts
                ]
                facts += [trial.error] if trial.error and trial.state in FAILED else []
                words = ", ".join([trial.state, *facts])
                progress.say(f"[{trial.number + 1}/{len(trials)}] {trial.job.folder}: {words}")
        if is_time:
            self._printed = time.monotonic()
            progress.say(summary(trials))


def summary(trials: Sequence[Trial]) -> str:
    """Returns the number of trials in each state and the time left."""
    counts = Counter(trial.state for trial in trials)
    words = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
    seconds = left(trials)
    return ", ".join([*words, f"about {progress.duration(seconds)} left"] if seconds else words)


def table(plan: Plan, trials: Sequence[Trial], rows: int | None = None) -> Table:
    """Returns one row a trial, by number; of more than `rows` trials, those that matter most."""
    shown = list(trials)
    if rows is not None and len(shown) > rows:
        shown = sorted(shown, key=lambda trial: ORDER.index(trial.state))[:rows]
    title = f"{plan.name}: {'loss' if plan.sweep.pretrain else 'accuracy in %'} on validation"
    grid = Table(title=Text(title), caption=Text(summary(trials)), box=box.SIMPLE_HEAD)
    for name in ("task", "model", "point", "seed", "state", *_NUMBERS):
        is_number = name in ("seed", *_NUMBERS)
        side = "right" if is_number else "left"
        grid.add_column(name, justify=side, overflow="fold", no_wrap=is_number)
    for trial in shown:
        job = trial.job
        words = [job.task, job.model, _point(plan, trial), str(job.seed), trial.state]
        grid.add_row(*map(Text, [*words, *_facts(trial).values()]), style=STYLES.get(trial.state))
    return grid


def points(plan: Plan, trials: Sequence[Trial]) -> Fitted:
    """Returns one row a point: mean and spread over its seeds of what points are compared by.

    Test accuracy is there too if the trials read the test split.
    """
    groups: dict[tuple[int, int], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.pair, trial.point), []).append(trial)
    rows = []
    for seeds in groups.values():
        done = [trial for trial in seeds if trial.state == "complete"]
        others = Counter(trial.state for trial in seeds if trial.state != "complete")
        words = [str(len(done)), *(f"{count} {state}" for state, count in others.items())]
        scale = 1 if plan.sweep.pretrain else 100
        chosen = [scale * trial.validation for trial in done if trial.validation is not None]
        results = [trial.record() for trial in done if trial.job.test]
        tested = [score.accuracy for run in results if run and (score := run.score("test"))]
        job = seeds[0].job
        name = [job.task, job.model, _point(plan, seeds[0])]
        digits = 4 if plan.sweep.pretrain else 2
        rows.append([*name, ", ".join(words), _spread(chosen, digits), _spread(tested, 2)])
    keep = [n for n in range(6) if n < 5 or any(row[5] != "-" for row in rows)]
    head = ["task", "model", "point", "seeds", "validation", "test"]
    cut = [[row[n] for n in keep] for row in rows]
    what = "Mean loss" if plan.sweep.pretrain else "Accuracy in %"
    note = f"{what}: mean ± standard deviation over seeds; of two seeds both values."
    return Fitted([head[n] for n in keep], cut, title=plan.name, notes=[note], words=3)


def _point(plan: Plan, trial: Trial) -> str:
    """Returns the values of a point; numbers have three digits."""
    axes = {config.short(name) for name in plan.sweep.axes}
    bound = map(config.split, trial.job.overrides)
    return " ".join(_short(name, text) for name, text in bound if config.short(name) in axes)


def _short(name: str, text: str) -> str:
    name = name.partition(".")[2] or name
    value = None
    with contextlib.suppress(ValueError):
        value = config.literal(text)
    return f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={text}"


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 2:
        return f"{mean} ({' / '.join(f'{value:.{digits}f}' for value in values)})"
    return mean + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 2 else "")


def _number(trial: Trial) -> str:
    """Returns what a trial is compared by: a loss, or an accuracy in %."""
    assert trial.validation is not None
    return f"{trial.validation:.4f}" if trial.job.denoise else f"{100 * trial.validation:.2f}"


def _facts(trial: Trial) -> dict[str, str]:
    """Returns the texts of a trial's _NUMBERS, empty where they are unknown."""
    seconds = left([trial]) if trial.state == "running" else None
    texts = (
        f"{trial.step}/{trial.num_steps or '?'}",
        "" if trial.validation is None else _number(trial),
        "" if seconds is None else progress.duration(seconds),
    )
    return dict(zip(_NUMBERS, texts, strict=True))
