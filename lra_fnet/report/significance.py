"""Chooses the test for two sets of runs, and finds the best cells of each column with it.

The rows of a column that have runs on the same data are compared by Hsu's multiple comparisons with
the best: every row with every other one, not only with the one that happens to be the highest.
"""

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from lra_fnet import intervals
from lra_fnet.intervals import Difference
from lra_fnet.report.tables import Row
from lra_fnet.run.result import Checkpoint, Record, Score, Split

# Two or three differences of pairs have so few degrees of freedom that a test of pairs finds fewer
# differences than one that does not pair the runs.
MATCHED = 5
LEVEL = 0.05
# Seeds of each side before a difference is called significant, or a cell bold: two show little of
# the spread over seeds.
SEEDS = 3
CROSSED = "test over seeds and rows"
INDEPENDENT = "test over seeds and rows taken as independent"
AVERAGED = "z-test over rows"
PAIRED = "McNemar's exact test, Tango's interval"
UNPAIRED = "two-proportion z-test, Newcombe's interval"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two sets of runs on the same rows: mean accuracies in %, their difference, and the test."""

    a: float
    b: float
    difference: Difference
    test: str  # CROSSED, INDEPENDENT, AVERAGED, PAIRED or UNPAIRED
    why: str  # the reason for this test


def compare(
    a: Sequence[Record], b: Sequence[Record], split: Split, checkpoint: Checkpoint = "best"
) -> Comparison:
    """Compares two sets of complete runs by the test that fits.

    Several seeds on both sides are compared over seeds and rows, in pairs if they are the same
    `MATCHED` seeds or more. One run on each side is compared row by row (McNemar), one run against
    several by the mean of each row. All take the rows of the two sides as independent if some run
    did not keep which rows it answered correctly.
    """
    a, b = (sorted(runs, key=lambda run: run.seed) for runs in (a, b))
    scores = [[s for run in runs if (s := run.score(split, checkpoint))] for runs in (a, b)]
    values_a, values_b = ([score.accuracy for score in side] for side in scores)
    means = statistics.fmean(values_a), statistics.fmean(values_b)
    right = _right(scores)
    count, numbers = scores[0][0].count, f"{len(a)} and {len(b)} seeds"
    if min(len(a), len(b)) > 1:
        same = len(a) >= MATCHED and [run.seed for run in a] == [run.seed for run in b]
        difference = intervals.over_seeds(values_a, values_b, count, right, matched=same)
        why = f"{numbers}, in pairs" if same else numbers
        if right is None:
            why += "; not every run recorded which rows it got right"
        return Comparison(*means, difference, CROSSED if right else INDEPENDENT, why)
    if len(a) == len(b) == 1:
        if right:
            why = "one run each, on the same rows; a claim about seeds needs two seeds of each"
            return Comparison(*means, intervals.paired(right[0][0], right[1][0]), PAIRED, why)
        why = "one run each, but not both recorded which rows they got right: no pairs"
    else:
        why = f"{numbers}; a spread over seeds needs two of each, so means over rows are compared"
        if right:
            return Comparison(*means, intervals.over_rows(*right), AVERAGED, why)
    rows = (means[0] / 100 * count, count, means[1] / 100 * count, count)
    return Comparison(*means, intervals.unpaired(*rows), UNPAIRED, why)


def _right(sides: Sequence[Sequence[Score]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns which rows are correct, bool [runs, rows] of both sides; None unless all say."""
    a, b = ([row for score in side if (row := score.right) is not None] for side in sides)
    return (np.stack(a), np.stack(b)) if (len(a), len(b)) == tuple(map(len, sides)) else None


@dataclasses.dataclass(frozen=True)
class Against:
    """A cell compared with the highest of its column on the same data."""

    best: str  # label of the highest cell's row
    comparison: Comparison
    p_value: float  # that no other row of the column is better, adjusted for their number

    @property
    def significant(self) -> bool:
        """Whether some row is significantly better."""
        return self.p_value <= LEVEL


@dataclasses.dataclass(frozen=True)
class Marks:
    """The best cells of a table. A cell is named by its row's model and variant, and its column."""

    bold: frozenset[tuple[str, str | None, str]]
    against: Mapping[tuple[str, str | None, str], Against]

    def has(self, row: Row, column: str) -> bool:
        """Whether the cell is bold."""
        return row.ours and (*row.key, column) in self.bold

    @property
    def note(self) -> str:
        """What bold means in the table; empty where nothing is bold."""
        if not self.bold:
            return ""
        counts = Counter(against.comparison.test for against in self.against.values())
        tests = "; ".join(f"{n} ({counts[n]})" for n in (CROSSED, INDEPENDENT) if counts[n])
        return (
            f"Bold: every row of at least {SEEDS} seeds, all of them clearly above the majority "
            "floor, that may be the best of its column at the 5 % level, among such rows on the "
            "same data (Hsu's multiple comparisons with the best, one-sided). Nothing is bold "
            f"where a row that was not compared has the highest number. Tests: {tests}."
        )


def marks(rows: Sequence[Row], columns: Sequence[str], checkpoint: Checkpoint = "best") -> Marks:
    """Returns the marks of a table.

    Args:
      rows: rows of an accuracy table. Only ours take part, and only cells of at least SEEDS runs,
        each with a value clearly above the majority floor. Where another of ours on the same
        data is higher than all of these, nothing is bold.
      columns: tasks.
      checkpoint: "best" on validation, or "last".
    """
    bold, against = set(), {}
    for column in columns:
        groups = defaultdict(list)  # rows with all runs on the same data
        highest = defaultdict(float)  # of the other rows' means on these data
        for row in (row for row in rows if row.ours and row.cells[column].mean is not None):
            cell = row.cells[column]
            data = {run.data_sha256 for run in cell.runs}
            whole = cell.seeds >= SEEDS and not cell.unfinished and len(data) == 1
            if whole and not (cell.floor or cell.constant):
                groups[data.pop()].append(row)
            else:
                highest |= {name: max(highest[name], cell.mean or 0.0) for name in data}
        for data, group in groups.items():
            if len(group) == 1:
                continue
            best, compared = _column(group, column, checkpoint)
            against |= compared
            if highest[data] <= (best.cells[column].mean or 0.0):
                bold |= {(*best.key, column)}
                bold |= {place for place, other in compared.items() if not other.significant}
    return Marks(frozenset(bold), against)


def _column(group: Sequence[Row], column: str, checkpoint: Checkpoint):
    """Returns the highest row, and the comparison of each other cell with it."""
    runs = [row.cells[column].runs for row in group]
    compared = [[compare(a, b, "test", checkpoint) for b in runs] for a in runs]
    p_values = [[_better(comparison.difference) for comparison in line] for line in compared]
    adjusted = intervals.could_be_best(p_values)
    best = max(range(len(group)), key=lambda i: group[i].cells[column].mean or 0)
    return group[best], {
        (*row.key, column): Against(group[best].label, compared[i][best], adjusted[i])
        for i, row in enumerate(group)
        if i != best
    }


def _better(difference: Difference) -> float:
    """Returns the one-sided p-value for "b is better than a" of a - b."""
    return difference.p_value / 2 if difference.mean < 0 else 1 - difference.p_value / 2
