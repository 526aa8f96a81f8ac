"""Score against speed and memory: LRA's figure (arXiv:2011.04006, Figure 3), and its frontier."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from lra_fnet.report import cells
from lra_fnet.report.accuracy import Row, Table
from lra_fnet.report.grid import Grid


@dataclasses.dataclass(frozen=True)
class Point:
    """A model: a row of an accuracy table."""

    label: str
    score: float  # test accuracy, %
    speed: float  # training steps/s
    memory: int | None  # peak, bytes


@dataclasses.dataclass(frozen=True)
class Tradeoff:
    """At least two models whose speeds were measured in the same way."""

    title: str
    note: str
    points: list[Point]

    def grid(self) -> Grid:
        """Returns the figure's numbers as a table, the fastest first."""
        best = frontier(self.points)
        rows = [
            [
                point.label,
                f"{point.score:.2f}",
                f"{point.speed:.3g}",
                "-" if point.memory is None else f"{point.memory / 1e6:,.0f}",
                "yes" if point in best else "no",
            ]
            for point in sorted(self.points, key=lambda point: -point.speed)
        ]
        head = ["Model", "Test accuracy (%)", "Steps/s", "Peak memory (MB)", "On the frontier"]
        return Grid(self.title, head, rows, [self.note])


def frontier(points: Sequence[Point]) -> list[Point]:
    """Returns the points that no other beats in score without being slower, by speed."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.speed, -p.score)):
        if not kept or point.score > kept[-1].score:
            kept.append(point)
    return kept[::-1]


def of_task(table: Table, task: str, models: Sequence[str]) -> list[tuple[Row, Point]]:
    """Returns the preset's own models with score and speed on one device.

    It is the device that has most of `models`, then most others: only its speeds compare.
    """
    own = [row for row in table.rows if row.ours]
    devices = dict.fromkeys(str(run.device) for row in own for run in row.cells[task].runs)
    found = [
        [(row, point) for row in own if (point := _point(row, task, device))] for device in devices
    ]
    return max(
        found, key=lambda on: (sum(row.model in models for row, _ in on), len(on)), default=[]
    )


def from_runs(table: Table) -> list[Tradeoff]:
    """Returns one for each task and device, from the runs themselves; then LRA's, over tasks.

    LRA's score is the mean of the five tasks, its speed that on Text.
    """
    runs = [run for row in table.rows for cell in row.cells.values() for run in cell.runs]
    devices = list(dict.fromkeys(str(run.device) for run in runs))
    speed = "Speed: of the runs themselves, without evaluations."
    notes = {"average5": "Score: mean of the five tasks without Path-X. Speed and memory: on Text."}
    tradeoffs = [
        Tradeoff(
            f"{table.columns[column]}, preset {table.preset}, {device}",
            f"{notes.get(column, speed)} Memory: peak of the device; on CPU, of the whole process.",
            [point for row in table.rows if (point := _point(row, column, device))],
        )
        for column, device in itertools.product((*table.tasks, "average5"), devices)
    ]
    return [tradeoff for tradeoff in tradeoffs if len(tradeoff.points) > 1]


def _point(row: Row, column: str, device: str) -> Point | None:
    """Returns the point of a row's runs on one device; None without an accuracy or a speed."""
    on_device = {
        task: cells.cell([r for r in cell.runs if r.complete and str(r.device) == device])
        for task, cell in row.cells.items()
    }
    score = (on_device | cells.averages(on_device))[column].mean
    runs = on_device["text" if column == "average5" else column].runs
    speeds = [run.steps_per_second for run in runs if run.steps_per_second]
    if score is None or len(speeds) < len(runs):
        return None
    peaks = [run.peak_bytes for run in runs if run.peak_bytes]
    return Point(row.label, score, statistics.fmean(speeds), max(peaks, default=None))
