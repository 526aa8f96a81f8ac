"""Score against speed and memory: LRA's figure (arXiv:2011.04006, Figure 3), and its frontier."""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Sequence

from lra_fnet.report import accuracy
from lra_fnet.report.accuracy import Table
from lra_fnet.report.grid import Grid
from lra_fnet.report.sources import Benchmark
from lra_fnet.run.record import Record


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


def from_runs(table: Table) -> list[Tradeoff]:
    """Returns one for each task and device, from the runs themselves; then LRA's, over tasks.

    LRA's score is the mean of the five tasks, its speed that on Text.
    """
    by_place: dict[tuple[str, str], list[Point]] = defaultdict(list)  # by column and device
    for row in table.rows:
        cells: dict[str, dict[str, accuracy.Cell]] = defaultdict(dict)
        on_text: dict[str, Point] = {}
        for task in table.tasks:
            by_device: dict[str, list[Record]] = defaultdict(list)
            for run in row.cells[task].runs:
                if run.complete:
                    by_device[str(run.device)].append(run)
            for device, runs in by_device.items():
                cells[device][task] = accuracy.cell(runs)
                if point := _point(row.label, cells[device][task]):
                    by_place[task, device].append(point)
                    on_text |= {device: point} if task == "text" else {}
        for device, point in on_text.items():
            missing = dict.fromkeys(accuracy.TASKS, accuracy.Cell("-"))
            score = accuracy.averages(missing | cells[device])["average5"].mean
            if score is not None:
                by_place["average5", device].append(dataclasses.replace(point, score=score))
    speed = "Speed: of the runs themselves, without evaluations."
    notes = {"average5": "Score: mean of the five tasks without Path-X. Speed and memory: on Text."}
    return [
        Tradeoff(
            f"{table.columns[column]}, preset {table.preset}, {device}",
            f"{notes.get(column, speed)} Memory: peak of the device; on CPU, of the whole process.",
            points,
        )
        for column in (*table.tasks, "average5")
        for (place, device), points in by_place.items()
        if place == column and len(points) > 1
    ]


def _point(label: str, cell: accuracy.Cell) -> Point | None:
    """Returns the point of a cell's runs on one device; None without an accuracy or a speed."""
    speeds = [run.steps_per_second for run in cell.runs if run.steps_per_second]
    if cell.mean is None or len(speeds) < len(cell.runs):
        return None
    peaks = [run.peak_bytes for run in cell.runs if run.peak_bytes]
    return Point(label, cell.mean, statistics.fmean(speeds), max(peaks, default=None))


def from_benchmark(benchmark: Benchmark, table: Table) -> list[Tradeoff]:
    """Returns scores of an accuracy table with speeds of a benchmark at its longest length."""
    tradeoffs = []
    for task in table.tasks:
        cells = [
            cell
            for cell in benchmark.cells
            if (cell["what"], cell["side"], cell["state"]) == ("train", "ours", "ok")
            and (cell["preset"], cell["task"]) == (table.preset, task)
            and cell["label"] == cell["model"]
            and not cell.get("cls")
        ]
        length = max((cell["length"] for cell in cells), default=0)
        by_model = {cell["model"]: cell for cell in cells if cell["length"] == length}
        points = [
            Point(row.label, mean, 1 / statistics.median(cell["seconds"]), int(cell["peak_bytes"]))
            for row in table.rows
            if row.ours and row.variant is None and (cell := by_model.get(row.model))
            if (mean := row.cells[task].mean) is not None
        ]
        if len(points) > 1:
            title = f"{table.columns[task]}, preset {table.preset}, benchmark {benchmark.name}"
            note = f"Speed and memory: of a training step at {length:,} tokens."
            tradeoffs.append(Tradeoff(title, note, points))
    return tradeoffs
