"""Score against training speed and memory: LRA's figure (arXiv:2011.04006, Figure 3).

The speeds of a task are those of a benchmark in which its models took turns, if there is one; or
else those of the runs, which may have shared their machine with other jobs.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from lra_fnet.benchmark.files import Result
from lra_fnet.report import benchmarks
from lra_fnet.report.accuracy.cell import Cell
from lra_fnet.report.accuracy.table import Row, Table
from lra_fnet.report.render.grid import Grid, rounded
from lra_fnet.report.sources import Benchmark

SPEEDS = (  # of a panel of the figure
    "Where the axis says Training steps/s, the models were timed in interleaved rounds. Where it "
    "says Steps/s of the fastest run, speeds come from training runs made at different times, "
    "possibly next to other jobs."
)
MEAN = "average5"  # the column of LRA's figure, whose speed is that on Text


@dataclasses.dataclass(frozen=True)
class Point:
    """A cell of an accuracy table that has a value, and its speed on one device."""

    row: Row
    column: str
    device: str
    speed: float  # training steps/s
    memory: float | None  # peak, bytes
    benchmark: str = ""  # where the speed was measured; "": in runs
    runs: int = 1  # of which this is the highest speed
    timed: Result | None = None  # the cell of the benchmark

    @property
    def in_turn(self) -> bool:
        """Whether the models took turns where the speed was measured."""
        return self.timed is not None and not self.timed.alone

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
    for column in (*table.tasks, MEAN):
        by_benchmark = [_measured(table, column, benchmark) for benchmark in measured]
        most = max(by_benchmark, key=len, default=[])
        found += most if len(most) > 1 else _from_runs(table, column)
    return found


def _measured(table: Table, column: str, benchmark: Benchmark) -> list[Point]:
    """Returns the points of a column whose speed is in a benchmark."""
    found = []
    for row in table.rows:
        runs = [run for run in _timed(row, column).runs if run.complete]
        timed = (benchmarks.of_run(benchmark.cells, run, "train") for run in runs)
        cell = next(filter(None, timed), None)
        if cell and row.cells[column].mean is not None:
            speed = 1 / statistics.median(cell.seconds)
            place = row, column, str(cell.device)
            found.append(Point(*place, speed, cell.peak_bytes, benchmark.name, timed=cell))
    return found


def _from_runs(table: Table, column: str) -> list[Point]:
    """Returns the points of a column, with the speed of the fastest run on each device."""
    found = []
    for row in table.rows:
        runs = [run for run in _timed(row, column).runs if run.complete and run.steps_per_second]
        for device in dict.fromkeys(run.trained_on for run in runs):
            same = [run for run in runs if run.trained_on == device]
            speeds = [run.steps_per_second for run in same if run.steps_per_second]
            peaks = [run.peak_bytes for run in same if run.peak_bytes]
            if row.cells[column].mean is not None:
                memory = max(peaks, default=None)
                found.append(Point(row, column, device, max(speeds), memory, runs=len(speeds)))
    return found


def _timed(row: Row, column: str) -> Cell:
    """Returns the cell whose runs give the speed of a column."""
    return row.cells["text" if column == MEAN else column]


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
    order = {column: number for number, column in enumerate((*table.tasks, MEAN))}
    rows = [
        [
            *(table.columns[point.column], point.row.label, point.device),
            point.cell.text,
            rounded(point.speed) + (f" (of {point.runs} runs)" if point.runs > 1 else ""),
            "-" if point.memory is None else f"{point.memory / 1e6:,.0f}",
        ]
        for point in sorted(points, key=lambda p: (order[p.column], p.device, -p.speed))
    ]
    head = ["Task", "Model", "Device", "Test accuracy (%)", "Steps/s", "Peak memory (MB)"]
    notes = ["Accuracy: over all seeds."]
    if any(point.column == MEAN for point in points):
        notes[0] += f" {table.columns[MEAN]}: speed and memory are those on Text."
    names = dict.fromkeys(p.benchmark for p in points if p.benchmark)
    for name in names:
        here = [p for p in points if p.benchmark == name]
        tasks = dict.fromkeys(p.column for p in here)
        alone = ", ".join(dict.fromkeys(p.row.label for p in here if not p.in_turn))
        turns = f"turns (except {alone})" if alone else "turns"
        turns = turns if any(p.in_turn for p in here) else "no turns"
        notes.append(
            f"{', '.join(table.columns[task] for task in tasks)}: speed and memory as measured in "
            f"`{name}`, where the models took {turns}. Memory: the peak of the process "
            "above what it held before the model was made."
        )
        for task in tasks:
            timed = {p.row.label for p in points if (p.column, p.benchmark) == (task, name)}
            values = [row for row in table.own if row.cells[task].mean is not None]
            if others := [row.label for row in values if row.label not in timed]:
                left_out = f"left out: {', '.join(others)}"
                why = "not in the benchmark, or no run of this size on its kind of device"
                notes.append(f"{table.columns[task]}: {left_out} ({why}).")
    if any(not point.benchmark for point in points):
        notes.append(
            f"{'Other tasks: s' if names else 'S'}peed of the fastest run on the device, without "
            "evaluations; a run may have shared its machine with other jobs. Memory: peak of the "
            "device; on a CPU, of the whole process."
        )
    title = f"Test accuracy, speed and memory of the runs, preset {table.preset}"
    return Grid(title, head, rows, notes, words=3)
