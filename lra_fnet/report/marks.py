"""Finds the best cells of each column.

The rows of a column that have runs on the same data are compared by Hsu's multiple comparisons with
the best: every row with every other one, not only with the one that happens to be the highest.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from lra_fnet.report.tables import Row
from lra_fnet.run.result import Checkpoint
from lra_fnet.significance import (
    CROSSED,
    INDEPENDENT,
    LEVEL,
    SEEDS,
    Comparison,
    Difference,
    compare,
    could_be_best,
)


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
    adjusted = could_be_best(p_values)
    best = max(range(len(group)), key=lambda i: group[i].cells[column].mean or 0)
    return group[best], {
        (*row.key, column): Against(group[best].label, compared[i][best], adjusted[i])
        for i, row in enumerate(group)
        if i != best
    }


def _better(difference: Difference) -> float:
    """Returns the one-sided p-value for "b is better than a" of a - b."""
    return difference.p_value / 2 if difference.mean < 0 else 1 - difference.p_value / 2
