"""A cell of an accuracy table.

A cell is a value (the mean test accuracy over the seeds that trained, in %) or a state: `-` not
run, `OOM` out of memory, `FAIL` diverged or, on Path-X as in LRA, not above the majority floor,
`collapsed` no seed's answer depends on the input (`Record.untrained`), `n/a` not reported by the
source, or not a model of its own. A state is never a number: it does not count as 0 and enters no
average.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lra_fnet import significance, tasks
from lra_fnet.baselines.shallow import Shallow
from lra_fnet.run.result import Record
from lra_fnet.significance import Comparison

TASKS = {name: tasks.title(name) for name in tasks.BUILT_IN}
AVERAGES = {"average5": "Mean of 5", "average6": "Mean of 6"}
FAILED_PATHX = 50.0  # %: what S4 and its successors count for a failed Path-X


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell: a value in %, or a state (see the module's docstring), and what is said of it.

    The interval of one model on one task reaches from the lowest to the highest end of the seeds'
    95 % Wilson intervals: all seeds share the test rows, so adding their counts would count each
    row several times. The interval of an average is that of `significance.over_tasks`.
    """

    state: str  # "value", "-", "OOM", "FAIL", "collapsed" or "n/a"
    mean: float | None = None
    values: tuple[float, ...] = ()  # of the runs that trained, by seed
    low: float | None = None  # ends of the interval
    high: float | None = None
    runs: tuple[Record, ...] = ()  # all of them, by seed
    baseline: float | None = None  # the highest shallow baseline of the runs, %
    above: bool | None = None  # every run significantly above that baseline; None without one
    gain: Comparison | None = None  # from `ff_only` of the same table: what mixing buys
    bold: bool = False  # not significantly below the best of its column, see `table.tables`

    @property
    def seeds(self) -> int:
        """The number of runs that trained."""
        return len(self.values)

    @property
    def whole(self) -> bool:
        """Whether every run trained."""
        return self.seeds == len(self.runs)

    @property
    def trained(self) -> list[Record]:
        """The runs that trained, by seed: complete, and not `Record.untrained`."""
        return [run for run in self.runs if run.score("test") and not run.untrained]

    @property
    def right(self) -> list[np.ndarray | None]:
        """Which test rows each run that trained answers correctly; None where not recorded."""
        return [run.right("test") for run in self.trained]

    @property
    def data(self) -> frozenset[str]:
        """The digests of the data of its runs."""
        return frozenset(run.data_sha256 for run in self.runs)

    @property
    def validation(self) -> float | None:
        """The mean validation accuracy of the runs that trained, in %."""
        scores = [score.accuracy for run in self.trained if (score := run.score("validation"))]
        return statistics.fmean(scores) if scores else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation over seeds; None below three."""
        return statistics.stdev(self.values) if len(self.values) > 2 else None

    @property
    def italic(self) -> bool:
        """Whether some run is not significantly above the shallow baseline."""
        return self.mean is not None and self.above is False

    @property
    def text(self) -> str:
        """The cell in print: "30.70 ± .41 (3)", "94.85 (1 of 3 trained)" or the state."""
        if self.mean is None:
            return self.state
        if not self.runs:  # an average, a reference or a published number
            return f"{self.mean:.2f}"
        spread = "" if self.sd is None else f" ± {f'{self.sd:.2f}'.removeprefix('0')}"
        tally = f"{self.seeds}" if self.whole else f"{self.seeds} of {len(self.runs)} trained"
        return f"{self.mean:.2f}{spread} ({tally})"


def cell(runs: Sequence[Record]) -> Cell:
    """Returns the cell of one model, preset, variant and task, over seeds.

    It shows the seeds that trained, and says how many; without any it has the state of the others.

    Args:
      runs: each has a test accuracy, or the state OOM or diverged.
    """
    if not runs:
        return Cell("-")
    runs = sorted(runs, key=lambda run: run.seed)
    rules = [rule for run in runs if (rule := run.baseline)]
    rule = max(rules, key=lambda rule: rule.test.accuracy, default=None)
    known = Cell("value", runs=tuple(runs), baseline=rule and rule.test.accuracy)
    scored = [score for run in runs if (score := run.score("test"))]
    trained = [score for run in known.trained if (score := run.score("test"))]
    if not scored:
        diverged = any(run.state == "diverged" for run in runs)
        return dataclasses.replace(known, state="FAIL" if diverged else "OOM")
    floor = max(run.floor.accuracy for run in runs)
    if runs[0].task == "pathx" and max(score.interval[0] for score in scored) <= floor:
        return dataclasses.replace(known, state="FAIL")
    if not trained:
        return dataclasses.replace(known, state="collapsed")
    values = tuple(score.accuracy for score in trained)
    mean = statistics.fmean(values)
    lows, highs = zip(*(score.interval for score in trained), strict=True)
    above = _above(known, rule) if rule else None
    facts: dict[str, Any] = {"low": min(lows), "high": max(highs), "above": above}
    return dataclasses.replace(known, mean=mean, values=values, **facts)


def _above(cell: Cell, rule: Shallow) -> bool:
    """Returns whether every run of a cell is significantly above a shallow baseline, row by row.

    Where the baseline's or a run's rows were not recorded, a higher accuracy is enough.
    """
    baseline = rule.right if len(cell.data) == 1 else None
    for run, right in zip(cell.trained, cell.right, strict=True):
        difference = significance.compare([right], [baseline])
        unsure = difference and difference.p_value > significance.LEVEL
        if unsure or (run.accuracy("test") or 0.0) <= rule.test.accuracy:
            return False
    return True


def averages(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Returns LRA's mean of five tasks, and S4's of six in which a failed Path-X counts 50.

    Each is `-` unless all its tasks have a value of every seed. OOM is not a failed Path-X.
    """

    def value(task: str) -> float | None:
        cell = cells[task]
        if cell.runs and cell.mean is not None and not cell.whole:
            return None
        return FAILED_PATHX if (task, cell.state) == ("pathx", "FAIL") else cell.mean

    def mean(names: list[str]) -> Cell:
        values = [number for task in names if (number := value(task)) is not None]
        if len(values) < len(names):
            return Cell("-")
        shown = [cells[task] for task in names]
        rules = [cell.baseline for cell in shown if cell.baseline is not None]
        baseline = statistics.fmean(rules) if len(rules) == len(names) else None
        average = Cell("value", statistics.fmean(values), baseline=baseline)
        right = [[rows for rows in cell.right if rows is not None] for cell in shown]
        if any(len(r) != c.seeds or not r for r, c in zip(right, shown, strict=True)):
            return average
        _, low, high = significance.over_tasks([np.stack(rows) for rows in right])
        return dataclasses.replace(average, low=low, high=high)

    return {"average5": mean([t for t in TASKS if t != "pathx"]), "average6": mean(list(TASKS))}
