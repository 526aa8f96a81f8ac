"""Score against training speed and memory: LRA's figure (arXiv:2011.04006, Figure 3)."""

import dataclasses
import itertools
from collections.abc import Sequence

from lra_fnet.report.accuracy import Row, Table
from lra_fnet.report.cells import Cell
from lra_fnet.report.grid import Grid

MEAN = "average5"  # the column of LRA's figure, whose speed is that on Text


@dataclasses.dataclass(frozen=True)
class Point:
    """A cell of an accuracy table that has a value, and its speed on one device."""

    row: Row
    column: str
    device: str
    cell: Cell
    speed: float  # training steps/s
    memory: int | None  # peak, bytes


def from_runs(table: Table) -> list[Point]:
    """Returns the points of the preset's own models: each task, then the mean of five."""
    runs = [run for row in table.rows for cell in row.cells.values() for run in cell.runs]
    devices = dict.fromkeys(str(run.device) for run in runs)
    places = itertools.product((*table.tasks, MEAN), devices, table.rows)
    return [point for place in places if (point := _point(*place))]


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
            point.cell.compact,
            f"{point.speed:.3g}",
            "-" if point.memory is None else f"{point.memory / 1e6:,.0f}",
        ]
        for point in sorted(points, key=lambda p: (order[p.column], p.device, -p.speed))
    ]
    head = ["Task", "Model", "Device", "Test accuracy (%)", "Steps/s", "Peak memory (MB)"]
    notes = [
        "Accuracy: over all seeds. Speed: of the fastest run on the device, without evaluations: "
        "others may have shared it; compare speeds on one device only. Memory: peak of the device; "
        "on CPU, of the whole process. Mean of 5: speed and memory are those on Text."
    ]
    title = f"Test accuracy, speed and memory of the runs, preset {table.preset}"
    return Grid(title, head, rows, notes, words=3)


def _point(column: str, device: str, row: Row) -> Point | None:
    """Returns the point of a row and a device; None without an accuracy or a speed."""
    cell, timed = row.cells[column], row.cells["text" if column == MEAN else column]
    runs = [run for run in timed.runs if run.complete and str(run.device) == device]
    speeds = [run.steps_per_second for run in runs if run.steps_per_second]
    if cell.mean is None or not speeds:
        return None
    peaks = [run.peak_bytes for run in runs if run.peak_bytes]
    return Point(row, column, device, cell, max(speeds), max(peaks, default=None))
