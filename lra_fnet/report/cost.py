"""What each cell of an accuracy table has cost: settings tried, minutes, readings of test."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

from lra_fnet.report.cells import published_cells
from lra_fnet.report.grid import Grid
from lra_fnet.report.naming import SOURCES, UNCOMPARED
from lra_fnet.report.sources import Sources, Sweep
from lra_fnet.report.tables import Table
from lra_fnet.run.result import Record

_ABOUT = {
    "Settings tried": "Settings tried: those of the sweeps here that selected this one. -: no "
    "sweep here selected it; comments in the preset's files say what else was tried.",
    "Minutes a run": "Minutes a run: the median over seeds, with evaluations and saves, without "
    "compilation, and with pre-training where a run began from it. Other jobs on the machine "
    "lengthen it.",
    "To the baseline": "To the baseline: minutes until validation accuracy first reached that of "
    "the shallow baseline on validation, with pre-training; the median over seeds, at the mean "
    "speed of a run. -: there is no baseline, or no metrics.jsonl.",
    "To the paper": "To the paper: minutes, with pre-training, until validation accuracy first "
    "reached the model's test accuracy in the FNet paper or, if that has none, the LRA paper. -: "
    "neither has one, or no metrics.jsonl.",
    "Test readings": "Test readings: how often the test split was scored, over the seeds of the "
    "line. Each seed needs one. -: there is no test_log.jsonl.",
}


def grid(table: Table, sources: Sources) -> Grid:
    """Returns a line for each cell and device with runs; variants come last."""
    body = []
    for row, task in itertools.product(table.ours, table.tasks):
        on: dict[str, list[Record]] = {}
        for run in row.cells[task].runs:
            on.setdefault(run.trained_on, []).append(run)
        goal = None if table.preset in UNCOMPARED else _printed(row.model, task)
        body += [
            [row.label, table.columns[task], device, *_line(runs, goal, sources)]
            for device, runs in on.items()
        ]
    made = Grid(
        f"Cost of each result, preset {table.preset}",
        ["Model", "Task", "Device", "Seeds", *_ABOUT],
        body,
        words=3,
    ).filled
    notes = [words for column, words in _ABOUT.items() if column in made.head]
    return dataclasses.replace(made, notes=notes)


def _line(runs: Sequence[Record], printed: float | None, sources: Sources) -> list[str]:
    """Returns the texts of a cell's runs on one device, from their number on.

    Args:
      runs: the runs.
      printed: the accuracy that a paper has of the model, if any, in %.
      sources: has the sweeps, the curves and the readings of test.
    """
    minutes = [run.total_seconds / 60 for run in runs if run.total_seconds is not None]
    rules = [run.baseline and run.baseline.validation.accuracy for run in runs]
    readings = [sources.readings.get(run.folder) for run in runs]
    return [
        str(len(runs)),
        str(settings(runs[0], sources.sweeps) or "-"),
        f"{statistics.median(minutes):.1f}" if minutes else "-",
        _reached(runs, rules, sources),
        _reached(runs, [printed] * len(runs), sources),
        "-" if None in readings else str(sum(filter(None, readings))),
    ]


def _printed(model: str, task: str) -> float | None:
    """Returns the accuracy of the first paper that has one of the model; None without any."""
    rows = (published_cells(model, source) for source in SOURCES)
    numbers = (row[task].mean for row in rows if row and task in row)
    return next((number for number in numbers if number is not None), None)


def settings(run: Record, sweeps: Sequence[Sweep]) -> int:
    """Returns how many settings the sweeps tried that selected this run's; 0 if none did."""
    tried = {
        tuple(sorted(trial.overrides))
        for sweep in sweeps
        for choice in sweep.selected
        if choice.selects(run)
        for trial in sweep.trials
        if (trial.task, trial.model) == (run.task, run.model)
    }
    return len(tried)


def seconds_to(
    accuracy: float, points: Sequence[tuple[int, float]], steps: int, seconds: float
) -> float | None:
    """Returns when a run first reached an accuracy, at its mean speed; None if it never did.

    Args:
      accuracy: in %.
      points: (step, accuracy in %) of the run, by step.
      steps: of the whole run.
      seconds: of the whole run.
    """
    reached = next((step for step, value in points if value >= accuracy), None)
    return None if reached is None else seconds * reached / steps


def _reached(runs: Sequence[Record], goals: Sequence[float | None], sources: Sources) -> str:
    """Returns the median time to each run's goal in minutes, and how many got there if not all.

    A run that did not get there counts as infinitely slow.
    """
    times = []
    for run, goal in zip(runs, goals, strict=True):
        curve, before = sources.curves.get(run.folder), run.init.wall_seconds if run.init else 0
        if goal is None or before is None:
            continue
        if curve and curve.validation and run.wall_seconds and run.steps:
            time = seconds_to(goal, curve.validation, run.steps, run.wall_seconds)
            times.append(math.inf if time is None else (before + time) / 60)
    if not times:
        return "-"
    reached, middle = sum(map(math.isfinite, times)), statistics.median(times)
    share = "" if reached in (0, len(times)) else f" ({reached} of {len(times)})"
    return (f"{middle:.1f}" if math.isfinite(middle) else "not reached") + share
