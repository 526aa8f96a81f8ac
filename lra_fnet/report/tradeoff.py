"""Score against speed and memory: LRA's figure (arXiv:2011.04006, Figure 3), and its frontier."""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lra_fnet.report import accuracy as tables
from lra_fnet.report.grid import Grid
from lra_fnet.report.sources import Benchmark


@dataclasses.dataclass(frozen=True)
class Point:
    """A model: a row of an accuracy table."""

    label: str
    score: float  # test accuracy, %
    speed: float  # training steps/s
    memory: int | None  # peak, bytes
    model: str
    variant: str | None


@dataclasses.dataclass(frozen=True)
class Tradeoff:
    """Models whose speeds were measured alike, two at least."""

    column: str  # of the accuracy table: a task or "average5"
    title: str
    note: str
    points: list[Point]

    def grid(self) -> Grid:
        """The figure as a table, the fastest first."""
        on = {point.label for point in frontier(self.points)}
        rows = [
            [
                point.label,
                f"{point.score:.2f}",
                f"{point.speed:.3g}",
                "-" if point.memory is None else f"{point.memory / 1e6:,.0f}",
                "yes" if point.label in on else "no",
            ]
            for point in sorted(self.points, key=lambda point: -point.speed)
        ]
        head = ["Model", "Test accuracy (%)", "Steps/s", "Peak memory (MB)", "On the frontier"]
        return Grid(self.title, head, rows, [self.note])


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that none beats in score without losing speed or the other way, by speed."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.speed, -p.score)):
        if not kept or point.score > kept[-1].score:
            kept.append(point)
    return kept[::-1]


def from_runs(table: tables.Table, results: Sequence[dict[str, Any]]) -> list[Tradeoff]:
    """One for each task and device, from the runs themselves; then LRA's, over tasks.

    LRA's score is the mean of the five tasks, its speed that on Text.
    """
    runs = {run["folder"]: run for run in results}
    by_place: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for row in table.rows:
        means: dict[str, dict[str, tables.Cell]] = defaultdict(dict)
        speeds: dict[tuple[str, str], Point] = {}
        for task, cell in row.cells.items():
            for device, own in _by_device([runs[folder] for folder in cell.folders]).items():
                found = tables.cell(own)
                means[device][task] = found
                rates: list[Any] = [run.get("steps_per_second") for run in own]
                if found.mean is None or found.unfinished or not all(rates):
                    continue
                peaks = [run["peak_bytes"] for run in own if run["peak_bytes"]]
                point = Point(
                    *(row.label, found.mean, statistics.fmean(rates), max(peaks, default=None)),
                    *(row.model, row.variant),
                )
                by_place[task, device].append(point)
                speeds[task, device] = point
        for device, cells in means.items():
            average = tables.averages(dict.fromkeys(tables.TASKS, tables.Cell("-")) | cells)
            score = average["average5"].mean
            if score is not None and ("text", device) in speeds:
                point = dataclasses.replace(speeds["text", device], score=score)
                by_place["average5", device].append(point)
    order = [*(task for task in table.columns if task not in tables.AVERAGES), "average5"]
    notes = {
        "average5": "Score: the mean of the five tasks without Path-X. Speed and memory: on Text.",
    }
    return [
        Tradeoff(
            task,
            f"{table.columns[task]}, preset {table.preset}, {device}",
            notes.get(task, "Speed: of the runs themselves, evaluations left out.")
            + " Memory: the peak of the device; on CPU of the whole process.",
            points,
        )
        for task in order
        for (place, device), points in by_place.items()
        if place == task and len(points) > 1
    ]


def from_benchmark(benchmark: Benchmark, found: Sequence[tables.Table]) -> list[Tradeoff]:
    """Scores of an accuracy table with speed and memory of a benchmark's longest length."""
    out = []
    for table in found:
        for task in (task for task in table.columns if task not in tables.AVERAGES):
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
                Point(
                    *(row.label, mean, 1 / statistics.median(by_model[row.model]["seconds"])),
                    *(int(by_model[row.model]["peak_bytes"]), row.model, None),
                )
                for row in table.rows
                if row.source == "ours" and row.variant is None and row.model in by_model
                if (mean := row.cells[task].mean) is not None
            ]
            if len(points) > 1:
                title = f"{table.columns[task]}, preset {table.preset}, benchmark {benchmark.name}"
                note = f"Speed and memory: a training step at {length:,} tokens, measured in turn."
                out.append(Tradeoff(task, title, note, points))
    return out


def device(run: dict[str, Any]) -> str:
    """The machine of a run: "1 x AMD EPYC (cpu, 2 cores)"."""
    about = run["device"]
    return f"{about['count']} x {about['name']} ({about['platform']}, {about['cores']} cores)"


def _by_device(runs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for run in runs:
        if run["state"] == "complete":
            found[device(run)].append(run)
    return found
