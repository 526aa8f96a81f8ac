"""The cells of the accuracy tables, and the published numbers.

A cell is a value (the mean over seeds, in % of test rows) or a state: `-` not run, `OOM` out of
memory, `FAIL` diverged or, on Path-X as in LRA, not above the majority floor, `did not train` every
seed gives all rows the same answer, `n/a` not reported by the source, or not a model of its own. A
state is never a number: it does not count as 0 and enters no average.
"""

import dataclasses
import functools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra_fnet import tasks
from lra_fnet.run.result import Checkpoint, Record

TASKS = {name: tasks.title(name) for name in tasks.BUILT_IN}
AVERAGES = {"average5": "Mean of 5", "average6": "Mean of 6"}
FAILED_PATHX = 50.0  # %: what S4 and its successors count for a failed Path-X
MARKS = {
    "validation_is_test": "† The checkpoint was selected on the test rows (validation is test).",
    "shallow": "§ At least one seed is not clearly (95 %) above the shallow baseline.",
    "floor": "¶ At least one seed is not clearly (95 %) above the majority floor.",
}


@functools.cache
def published() -> dict[str, Any]:
    """Returns the numbers of published.json; each group of them names its paper and table."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def corrected(number: Any) -> Any:
    """Returns the number or state of an entry of published.json, with misprints corrected."""
    return number["corrected"] if isinstance(number, dict) else number


def printed_cell(number: Any) -> "Cell":
    """Returns the cell of an accuracy or a state in published.json."""
    number = corrected(number)
    return Cell(number) if isinstance(number, str) else Cell("value", float(number))


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell: a value in %, or a state (see the module's docstring).

    The interval reaches from the lowest to the highest end of the seeds' 95 % Wilson intervals. So
    it shows the spread over seeds as well as that of the rows of one test set: all seeds share
    these rows, so adding their counts would count each row several times.
    """

    state: str  # "value", "-", "OOM", "FAIL", "did not train" or "n/a"
    mean: float | None = None
    values: tuple[float, ...] = ()  # of the complete runs, by seed; none for other numbers
    unfinished: int = 0  # further runs that diverged or ran out of memory
    constant: int = 0  # complete runs that give all rows the same answer
    low: float | None = None  # ends of the interval
    high: float | None = None
    validation_is_test: bool = False
    majority: float | None = None  # the highest majority floor of the runs, %
    baseline: float | None = None  # the highest shallow baseline of those that have one, %
    runs: tuple[Record, ...] = ()  # unfinished ones included

    @property
    def seeds(self) -> int:
        """The number of complete runs."""
        return len(self.values)

    @property
    def sd(self) -> float | None:
        """The sample standard deviation over seeds; None below three, which show their values."""
        several = self.mean is not None and len(self.values) > 2
        return statistics.stdev(self.values) if several else None

    @property
    def maximum(self) -> float | None:
        """The highest value."""
        return None if self.mean is None else max(self.values, default=None)

    @property
    def floor(self) -> bool:
        """Whether the interval does not lie above the majority floor of some run."""
        return _reaches(self.low, self.majority)

    @property
    def shallow(self) -> bool:
        """Whether the interval does not lie above the shallow baseline of some run."""
        return _reaches(self.low, self.baseline)

    @property
    def marks(self) -> str:
        """The signs of `MARKS` that hold for the cell."""
        return "".join(words[0] for name, words in MARKS.items() if getattr(self, name))

    @property
    def compact(self) -> str:
        """The text in a terminal: "30.70 ± .41 (3)"; of an average and a floor the number."""
        if self.mean is None or not self.seeds:
            return f"{self.lines[0]} ({self.ratio})" if self.seeds else self.lines[0]
        spread = "" if self.sd is None else f" ± {f'{self.sd:.2f}'.removeprefix('0')}"
        return f"{self.mean:.2f}{self.marks}{spread} ({self.tally})"

    @property
    def tally(self) -> str:
        """The number of seeds: "3", "3 of 8", "3, 1 did not train"."""
        return self.ratio + f", {self.constant} did not train" * bool(self.constant)

    @property
    def ratio(self) -> str:
        """The number of seeds with a value: "3", or "3 of 8" if others have none."""
        total = f" of {self.seeds + self.unfinished}" if self.unfinished else ""
        return f"{self.seeds}{total}"

    @property
    def interval(self) -> str:
        """The interval in words; empty for a state."""
        if self.low is None:
            return ""
        whose = "95 % interval" if self.seeds == 1 else "95 % intervals of all seeds"
        return f"{whose} for these test rows: {self.low:.2f} to {self.high:.2f}"

    @property
    def lines(self) -> list[str]:
        """The text, most important part first: ["30.70 ± 0.41", "max 31.10", "3 seeds"]."""
        seeds = f"{self.ratio} {'seed' if self.seeds + self.unfinished == 1 else 'seeds'}"
        if self.mean is None:
            return [self.state + self.marks, *([seeds] * bool(self.seeds))]
        spread = "" if self.sd is None else f" ± {self.sd:.2f}"
        first = f"{self.mean:.2f}{spread}{self.marks}"
        if not self.seeds:
            return [first]
        several = [f"max {self.maximum:.2f}"] if self.sd is not None else []
        if self.seeds == 2:
            several = [" / ".join(f"{value:.2f}" for value in self.values)]
        return [first, *several, seeds, *([f"{self.constant} did not train"] * bool(self.constant))]


def _reaches(low: float | None, reference: float | None) -> bool:
    return low is not None and reference is not None and low <= reference


def meanings(cells: Iterable[Cell]) -> list[str]:
    """Returns the meaning of the signs in these cells."""
    shown = list(cells)
    return [words for name, words in MARKS.items() if any(getattr(c, name) for c in shown)]


def cell(runs: Sequence[Record], checkpoint: Checkpoint = "best") -> Cell:
    """Returns the cell of one model, preset, variant and task, over seeds.

    If some seeds diverged or ran out of memory, the cell shows the others and says how many;
    without any value it is FAIL if one diverged, else OOM. A number at the floor stays a number, as
    in LRA's tables, except on Path-X if it is that of every seed.

    Args:
      runs: each has a test accuracy, or the state OOM or diverged.
      checkpoint: "best" on validation, or "last".
    """
    if not runs:
        return Cell("-")
    runs = sorted(runs, key=lambda run: run.seed)
    scored = [(run, score) for run in runs if (score := run.score("test", checkpoint))]
    baselines = [run.baseline.test.accuracy for run in runs if run.baseline]
    facts: dict[str, Any] = {
        "unfinished": len(runs) - len(scored),
        "validation_is_test": any(run.validation_is_test for run in runs),
        "majority": max(run.floor.accuracy for run in runs),
        "baseline": max(baselines, default=None),
        "runs": tuple(runs),
    }
    if not scored:
        diverged = any(run.state == "diverged" for run in runs)
        return Cell("FAIL" if diverged else "OOM", **facts)
    facts["values"] = tuple(score.accuracy for _, score in scored)
    facts["constant"] = sum(run.constant(checkpoint) for run, _ in scored)
    lows, highs = zip(*(score.interval for _, score in scored), strict=True)
    if runs[0].task == "pathx" and max(lows) <= facts["majority"]:
        return Cell("FAIL", **facts)
    if facts["constant"] == len(scored):
        return Cell("did not train", **facts)
    return Cell("value", statistics.fmean(facts["values"]), low=min(lows), high=max(highs), **facts)


def averages(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Returns LRA's mean of five tasks, and S4's of six in which a failed Path-X counts 50.

    Each is `-` unless all its tasks have a value of every seed. OOM is not a failed Path-X. Its
    baseline is the mean of those of its tasks, if all have one.
    """

    def value(task: str) -> float | None:
        cell = cells[task]
        if cell.seeds and cell.unfinished:
            return None
        return FAILED_PATHX if (task, cell.state) == ("pathx", "FAIL") else cell.mean

    def mean(tasks: list[str]) -> Cell:
        values = [number for task in tasks if (number := value(task)) is not None]
        if len(values) < len(tasks):
            return Cell("-")
        rules = [rule for task in tasks if (rule := cells[task].baseline) is not None]
        return Cell(
            "value",
            statistics.fmean(values),
            baseline=statistics.fmean(rules) if len(rules) == len(tasks) else None,
            validation_is_test=any(cells[task].validation_is_test for task in tasks),
        )

    return {"average5": mean([t for t in TASKS if t != "pathx"]), "average6": mean(list(TASKS))}


def published_cells(model: str, source: str, columns: Sequence[str] = ()) -> dict[str, Cell] | None:
    """Returns a model's row of a paper's accuracy table, or None if the paper has none.

    Args:
      model: its name on the command line.
      source: an accuracy table of published.json, "fnet" or "lra".
      columns: tasks that the paper does not have; their cells are n/a.
    """
    row = published()["accuracy"][source]["rows"].get(model)
    if row is None:
        return None
    cells = {column: Cell("n/a") for column in columns}
    cells |= {task: printed_cell(row[task]) for task in TASKS}
    return cells | averages(cells)
