"""Score against training speed and memory: LRA's figure (arXiv:2011.04006, Figure 3).

The speeds of a task are those of a benchmark in which its models took turns, if there is one; or
else those of the runs, which may have shared their machine with other jobs.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from lra_fnet.report.accuracy.cell import Cell
from lra_fnet.report.accuracy.table import Row, Table
from lra_fnet.report.render.grid import Grid, rounded
from lra_fnet.report.sources import Benchmark
from lra_fnet.report.speed import tables

MEAN = "average5"  # the column of LRA's figure, whose speed is that on Text
NOTE = (
    "The mean of five tasks has the speed and memory on Text. Where a benchmark is named, the "
    "models took turns in it (* except this one), and memory is the peak of the process above what "
    "it held before the model was made. Elsewhere the speed is that of the fastest run, which may "
    "have shared its machine, and memory that of the device or process."
)


@dataclasses.dataclass(frozen=True)
class Point:
    """A cell of an accuracy table that has a value, and its speed on one device."""

    row: Row
    column: str
    device: str
    speed: float  # training steps/s
    memory: float | None  # peak, bytes
    benchmark: str = ""  # where the speed was measured; "": in runs
    alone: bool = False  # measured in a benchmark, but not in turns with the others

    @property
    def cell(self) -> Cell:
        """The accuracy."""
        return self.row.cells[self.column]


def points(table: Table, measured: Sequence[Benchmark] = ()) -> list[Point]:
    """Returns the points of the preset's own models: each task, then the mean of five.

    Args:
      table: of the preset.
      measured: benchmarks. The one that has most models of a task gives their speeds; it needs two.
    """
    found: list[Point] = []
    for column in [*table.tasks, *([MEAN] if MEAN in table.columns else [])]:
        rows = [row for row in table.own if row.cells[column].mean is not None]
        by_benchmark = [_measured(rows, column, benchmark) for benchmark in measured]
        most = max(by_benchmark, key=len, default=[])
        found += most if len(most) > 1 else _from_runs(rows, column)
    return found


def _runs(row: Row, column: str):
    """Returns the complete runs that give the speed of a column."""
    return [r for r in row.cells["text" if column == MEAN else column].runs if r.complete]


def _measured(rows: Sequence[Row], column: str, benchmark: Benchmark) -> list[Point]:
    """Returns the points of a column whose speed is in a benchmark."""
    found = []
    for row in rows:
        timed = (tables.of_run(benchmark.cells, run, "train") for run in _runs(row, column))
        if cell := next(filter(None, timed), None):
            speed = 1 / statistics.median(cell.seconds)
            place = row, column, str(cell.device)
            found.append(Point(*place, speed, cell.peak_bytes, benchmark.name, cell.alone))
    return found


def _from_runs(rows: Sequence[Row], column: str) -> list[Point]:
    """Returns the points of a column, with the speed of the fastest run on each device."""
    found = []
    for row in rows:
        runs = [run for run in _runs(row, column) if run.steps_per_second]
        for device in dict.fromkeys(run.trained_on for run in runs):
            same = [run for run in runs if run.trained_on == device]
            peak = max((run.peak_bytes for run in same if run.peak_bytes), default=None)
            speed = max(run.steps_per_second or 0.0 for run in same)
            found.append(Point(row, column, device, speed, peak))
    return found


def comparable(points: Sequence[Point], column: str, models: Sequence[str]) -> list[Point]:
    """Returns the points of a column on one device, since only its speeds compare.

    It is the device that has most of `models`, then most others.
    """
    on = [
        [point for point in points if (point.column, point.device) == (column, device)]
        for device in dict.fromkeys(point.device for point in points)
    ]
    return max(on, key=lambda p: (sum(q.row.model in models for q in p), len(p)), default=[])


def grid(table: Table, points: Sequence[Point]) -> Grid:
    """Returns the points as a table, the fastest of each column and device first."""
    order = {column: number for number, column in enumerate(table.columns)}
    rows = [
        [
            *(table.columns[point.column], point.row.label, point.device),
            point.benchmark + "*" * point.alone or "runs",
            *(point.cell.text, rounded(point.speed)),
            "-" if point.memory is None else f"{point.memory / 1e6:,.0f}",
        ]
        for point in sorted(points, key=lambda p: (order[p.column], p.device, -p.speed))
    ]
    head = ["Task", "Model", "Device", "Measured in", "Test accuracy (%)", "Steps/s", "Peak MB"]
    title = f"Test accuracy, speed and memory of the runs, preset {table.preset}"
    return Grid(title, head, rows, [NOTE], words=4)
