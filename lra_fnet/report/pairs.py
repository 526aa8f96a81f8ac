"""Compares the main models with each other, two at a time, on every task of a preset."""

import dataclasses
import itertools
from collections.abc import Sequence

from lra_fnet import significance
from lra_fnet.report.cells import MARKS
from lra_fnet.report.grid import Grid
from lra_fnet.report.tables import Row, Table
from lra_fnet.run.result import Record
from lra_fnet.significance import LEVEL, Comparison, holm, p_text


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two rows of an accuracy table on one task."""

    task: str
    a: Row
    b: Row
    comparison: Comparison
    p_adjusted: float | None  # by Holm's method, for all pairs of the preset with seeds enough

    @property
    def significant(self) -> bool | None:
        """Whether the two differ at the 5 % level, all pairs taken into account.

        None if a side has fewer than `significance.SEEDS`, or one without a value.
        """
        return None if self.p_adjusted is None else self.p_adjusted <= LEVEL


def pairs(table: Table, models: Sequence[str]) -> list[Pair]:
    """Returns the pairs of the preset's own rows that have a value on the same data.

    Args:
      table: of the preset.
      models: those to compare; the later ones are compared with the earlier ones.
    """
    own = [row for model in models for row in table.own if row.model == model]
    sides = [two for two in itertools.combinations(own, 2) if two[0].model != two[1].model]
    found: list[tuple[str, Row, Row, Comparison]] = []
    for task, (b, a) in itertools.product(table.tasks, sides):
        first, second = (_complete(row, task) for row in (a, b))
        if first and second and len({run.data_sha256 for run in (*first, *second)}) == 1:
            found.append((task, a, b, significance.compare(first, second, "test")))
    enough = [
        all(
            row.cells[task].seeds >= significance.SEEDS and not row.cells[task].unfinished
            for row in rows
        )
        for task, *rows, _ in found
    ]
    tested = [
        comparison.difference.p_value
        for (*_, comparison), tells in zip(found, enough, strict=True)
        if tells
    ]
    adjusted = iter(holm(tested))
    return [
        Pair(*each, next(adjusted) if tells else None)
        for each, tells in zip(found, enough, strict=True)
    ]


def _complete(row: Row, task: str) -> list[Record]:
    """Returns the runs of a cell that has a value."""
    cell = row.cells[task]
    return [] if cell.mean is None else [run for run in cell.runs if run.score("test")]


def _marked(row: Row, task: str) -> str:
    """Returns a row's label, with a mark if its checkpoint was selected on the test rows."""
    mark = MARKS["validation_is_test"][0]
    return f"{row.label} {mark}" if row.cells[task].validation_is_test else row.label


def grid(table: Table, listed: Sequence[Pair]) -> Grid:
    """Returns a row for each pair, with difference, interval and p-values."""
    tests = list(dict.fromkeys(pair.comparison.test for pair in listed))
    several = len(tests) > 1
    rows = []
    for pair in listed:
        difference = pair.comparison.difference
        least = min(row.cells[pair.task].seeds for row in (pair.a, pair.b))
        unknown = {1: "rows only", 2: "two seeds"}.get(least, "seeds failed")
        verdict = {None: unknown, True: "yes", False: "no"}
        rows.append(
            [
                *(table.columns[pair.task], *(_marked(row, pair.task) for row in (pair.a, pair.b))),
                verdict[pair.significant],
                f"{difference.mean:+.2f}",
                f"{difference.low:+.2f} to {difference.high:+.2f}",
                p_text(difference.p_value),
                "-" if pair.p_adjusted is None else p_text(pair.p_adjusted),
                " / ".join(row.cells[pair.task].ratio for row in (pair.a, pair.b)),
                *[str(tests.index(pair.comparison.test) + 1)] * several,
            ]
        )
    named = [f"({number}) {test}" if several else test for number, test in enumerate(tests, 1)]
    notes = [
        "Accuracy of the model minus that of the other, in percentage points, with a 95 % interval "
        f"(single, not adjusted). Tests: {'; '.join(named)}. Significant: p adjusted by Holm's "
        f"method for all rows of this table with {significance.SEEDS} seeds or more on both sides "
        f"is at most {LEVEL}. Rows only: one side has a single seed, so p and the interval "
        "describe variation over test rows, not over seeds. Two seeds on a side say too little of "
        "its spread for a verdict. Seeds failed: only seeds that finished are compared."
    ]
    if any(row.cells[p.task].validation_is_test for p in listed for row in (p.a, p.b)):
        notes.append(MARKS["validation_is_test"])
    head = ["Task", "Model", "Against", "Significant", "Difference", "95 % interval"]
    head += ["p", "p adjusted", "Seeds", *["Test"] * several]
    return Grid(f"Main models in pairs, preset {table.preset}", head, rows, notes, words=4)
