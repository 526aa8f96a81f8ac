"""Chooses the test for two sets of runs, and finds the best cells of each column with it.

Every cell is compared with the highest of its column among runs on the same data. The p-values of
a column are adjusted by Holm's method.
"""

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from lra_fnet import intervals
from lra_fnet.intervals import Difference
from lra_fnet.report.accuracy import Row
from lra_fnet.run.record import Checkpoint, Record, Split

LEVEL = 0.05
WELCH = "Welch's t-test over seeds"
PAIRED = "McNemar's exact test, Tango's interval"
UNPAIRED = "two-proportion z-test, Newcombe's interval"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two sets of runs on the same rows: mean accuracies in %, their difference, and the test."""

    a: float
    b: float
    difference: Difference
    test: str  # WELCH, PAIRED or UNPAIRED
    why: str  # the reason for this test


def compare(
    a: Sequence[Record], b: Sequence[Record], split: Split, checkpoint: Checkpoint = "best"
) -> Comparison:
    """Compares two sets of complete runs by the test that fits.

    Several seeds on both sides are compared over seeds (Welch). One run on each side is compared
    row by row if both kept which rows they answered correctly (McNemar), and otherwise as if the
    rows were independent. So are one seed and several: the mean on the rows of one split.
    """
    scores = [[s for run in runs if (s := run.score(split, checkpoint))] for runs in (a, b)]
    accuracies = [[score.accuracy for score in side] for side in scores]
    mean_a, mean_b = (statistics.fmean(side) for side in accuracies)
    numbers = f"{len(a)} and {len(b)} seeds"
    if difference := intervals.seeds(*accuracies):
        why = f"{numbers}, so the spread over seeds is known"
        return Comparison(mean_a, mean_b, difference, WELCH, why)
    if len(a) == len(b) == 1:
        right_a, right_b = (runs[0].right(split, checkpoint) for runs in (a, b))
        if right_a is not None and right_b is not None:
            why = "one run each, on the same rows; a claim about seeds needs two seeds of each"
            difference = intervals.paired(right_a, right_b)
            return Comparison(mean_a, mean_b, difference, PAIRED, why)
        why = "one run each, and which rows they answered correctly is not kept: no pairs"
    elif min(len(a), len(b)) > 1:
        why = f"{numbers} without any spread: the mean on the rows of one split"
    else:
        why = f"{numbers}, but Welch's test needs two of each: the mean on the rows of one split"
    n_a, n_b = (side[0].count for side in scores)
    difference = intervals.unpaired(mean_a / 100 * n_a, n_a, mean_b / 100 * n_b, n_b)
    return Comparison(mean_a, mean_b, difference, UNPAIRED, why)


@dataclasses.dataclass(frozen=True)
class Against:
    """A cell compared with the highest of its column on the same data."""

    best: str  # label of the highest cell's row
    comparison: Comparison
    p_value: float  # adjusted

    @property
    def significant(self) -> bool:
        """Whether the cell is significantly below the highest."""
        return self.p_value <= LEVEL


@dataclasses.dataclass(frozen=True)
class Marks:
    """The best cells of a table. A cell is named by its row's model and variant, and its column."""

    bold: frozenset[tuple[str, str | None, str]]
    against: Mapping[tuple[str, str | None, str], Against]

    def has(self, row: Row, column: str) -> bool:
        """Whether the cell is bold."""
        return row.ours and (row.model, row.variant, column) in self.bold

    @property
    def note(self) -> str:
        """What bold means in the table; empty where nothing is bold."""
        if not self.bold:
            return ""
        counts = Counter(against.comparison.test for against in self.against.values())
        tests = "; ".join(f"{n} ({counts[n]})" for n in (WELCH, PAIRED, UNPAIRED) if counts[n])
        return (
            "Bold: the highest of a column and every result that is not significantly different "
            "from it at the 5 % level, among runs on the same data; p-values adjusted by Holm's "
            f"method per column. Tests: {tests}. All but Welch's describe the trained models on "
            "these test rows, not other seeds."
        )


def marks(rows: Sequence[Row], columns: Sequence[str], checkpoint: Checkpoint = "best") -> Marks:
    """Returns the marks of a table.

    Args:
      rows: rows of an accuracy table. Only ours take part, and only cells in which every seed has
        a value.
      columns: tasks.
      checkpoint: "best" on validation, or "last".
    """
    bold, against = set(), {}
    for column in columns:
        groups = defaultdict(list)  # rows with runs on the same data
        for row in rows:
            cell = row.cells[column]
            if row.ours and cell.mean is not None and not cell.unfinished:
                groups[tuple(sorted({run.data_sha256 for run in cell.runs}))].append(row)
        for group in (group for group in groups.values() if len(group) > 1):
            best, others = _column(group, column, checkpoint)
            against |= others
            bold |= {(best.model, best.variant, column)}
            bold |= {place for place, other in others.items() if not other.significant}
    return Marks(frozenset(bold), against)


def _column(group: Sequence[Row], column: str, checkpoint: Checkpoint):
    """Returns the highest row, and the comparison of each other cell with it."""
    highest, *others = sorted(group, key=lambda row: -(row.cells[column].mean or 0))
    best = highest.cells[column].runs
    compared = [compare(row.cells[column].runs, best, "test", checkpoint) for row in others]
    adjusted = intervals.holm([comparison.difference.p_value for comparison in compared])
    return highest, {
        (row.model, row.variant, column): Against(highest.label, comparison, p_value)
        for row, comparison, p_value in zip(others, compared, adjusted, strict=True)
    }
