"""Which cells of a column are the best: those that a test does not tell from the highest.

Every cell is compared with the highest of its column among runs on the same data. With two seeds or
more on both sides the test is Welch's over seeds; one run each is compared row by row where both
know which test rows they got right (McNemar); all else as if their rows were independent. The p
values of a column are adjusted by Holm.
"""

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lra_fnet import intervals as tests
from lra_fnet.report import accuracy as tables

LEVEL = 0.05
WELCH, PAIRED, UNPAIRED = "Welch over seeds", "McNemar on the same rows", "unpaired two-proportion"


@dataclasses.dataclass(frozen=True)
class Against:
    """A cell against the highest of its column on the same data, in percentage points."""

    best: str  # label of the row that holds it
    mean: float
    low: float  # of the 95 % interval
    high: float
    p_value: float  # adjusted
    test: str

    @property
    def told_apart(self) -> bool:
        """Whether the test tells the two apart."""
        return self.p_value <= LEVEL


@dataclasses.dataclass(frozen=True)
class Marks:
    """The outcome for one table. A cell is named by its row's model and variant, and its column."""

    bold: frozenset[tuple[str, str | None, str]]
    against: Mapping[tuple[str, str | None, str], Against]

    def has(self, row: tables.Row, column: str) -> bool:
        """Whether the cell is bold."""
        return row.source == "ours" and (row.model, row.variant, column) in self.bold

    @property
    def note(self) -> str:
        """What bold means in the table; nothing where nothing is bold."""
        if not self.bold:
            return ""
        tests = Counter(found.test for found in self.against.values())
        told = ", ".join(
            f"{name} ({tests[name]})" for name in (WELCH, PAIRED, UNPAIRED) if tests[name]
        )
        return (
            "Bold: the highest of a column and what a test at the 5 % level does not tell from it, "
            f"among runs on the same data; p adjusted by Holm a column. Tests: {told}. All but "
            "Welch's speak of the trained models on these test rows, not of other seeds."
        )


def best(
    rows: Sequence[tables.Row],
    columns: Sequence[str],
    runs: Mapping[str, dict[str, Any]],
    checkpoint: str = "best",
) -> Marks:
    """The marks of a table.

    Args:
      rows: of an accuracy table; only ours take part, and of them whole cells with a value.
      columns: tasks.
      runs: results by folder.
      checkpoint: "best" on validation, or "last".
    """
    bold, against = set(), {}
    for column in columns:
        groups = defaultdict(list)  # rows with runs on the same data
        for row in rows:
            cell = row.cells[column]
            if row.source == "ours" and cell.mean is not None and not cell.unfinished:
                data = {runs[folder]["data_sha256"] for folder in cell.folders}
                groups[tuple(sorted(data))].append(row)
        for group in groups.values():
            if len(group) > 1:
                marks = _column(group, column, runs, checkpoint)
                against |= marks.against
                bold |= marks.bold
    return Marks(frozenset(bold), against)


def _column(group: Sequence[tables.Row], column: str, runs, checkpoint: str) -> Marks:
    ordered = sorted(group, key=lambda row: -(row.cells[column].mean or 0))
    highest, others = ordered[0], ordered[1:]

    def scores(row):
        return [runs[folder]["test"][checkpoint] for folder in row.cells[column].folders]

    compared = [_compare(scores(row), scores(highest)) for row in others]
    adjusted = tests.holm([difference.p_value for difference, _ in compared])
    against = {
        (row.model, row.variant, column): Against(
            highest.label, difference.mean, difference.low, difference.high, p_value, test
        )
        for row, (difference, test), p_value in zip(others, compared, adjusted, strict=True)
    }
    bold = {place for place, found in against.items() if not found.told_apart}
    return Marks(frozenset({(highest.model, highest.variant, column), *bold}), against)


def _compare(own: Sequence[dict], best: Sequence[dict]) -> tuple[Any, str]:
    """The difference by the test that fits, and that test's name."""
    shares = [[counts["correct"] / counts["count"] for counts in side] for side in (own, best)]
    if found := tests.seeds(*([100 * share for share in side] for side in shares)):
        return found, WELCH
    if len(own) == len(best) == 1:
        rows = [tests.bits(side[0]) for side in (own, best)]
        if rows[0] is not None and rows[1] is not None:
            return tests.paired(*rows), PAIRED
    counts = [side[0]["count"] for side in (own, best)]  # of one test set, see tables.cell
    correct = [statistics.fmean(side) * count for side, count in zip(shares, counts, strict=True)]
    return tests.unpaired(correct[0], counts[0], correct[1], counts[1]), UNPAIRED
