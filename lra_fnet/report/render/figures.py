"""The figures of a report: accuracy against speed, learning curves."""

from collections.abc import Iterable, Mapping, Sequence

from lra_fnet import config
from lra_fnet.report import pretraining
from lra_fnet.report.accuracy.names import MAIN
from lra_fnet.report.accuracy.table import Table
from lra_fnet.report.render import svg
from lra_fnet.report.render.grid import rounded
from lra_fnet.report.render.svg import Panel, Points, Series
from lra_fnet.report.speed import points as speed

OTHERS = len(MAIN)  # the colour of all other models


def above_no_mixing(table: Table, points: Sequence[speed.Point]) -> str:
    """Draws accuracy above that of `ff_only` against training speed, a panel a column.

    Bars are 95 % intervals of the difference. A panel needs two models with one on one device. It
    names its best model. Without a panel, returns "".

    Args:
      table: of a preset.
      points: of its own models.
    """
    compared = [point for point in points if point.cell.gain]
    panels = []
    for column, title in table.columns.items():
        shown = speed.comparable(compared, column, MAIN)
        gains = [(point, gain) for point in shown if (gain := point.cell.gain)]
        best = max((gain.mean for _, gain in gains), default=0.0)
        series = [
            Series(
                [(point.speed, gain.mean)],
                _colour(point.row.model),
                f"{point.row.label}: {point.cell.text}, {rounded(point.speed)} steps/s",
                bars=[(gain.low, gain.high)],
                label=point.row.label if gain.mean == best else "",
            )
            for point, gain in gains
        ]
        if len(series) > 1:
            axes = "Training steps/s", "Points above no mixing"
            panels.append(Panel(title, *axes, series, True, level=0.0))
    title = f"Accuracy above no mixing against training speed, preset {table.preset}"
    models = [point.row.model for point in compared]
    return svg.plot(panels, title, _legend(models)) if panels else ""


def fronts(listed: Sequence[pretraining.Front]) -> str:
    """Draws accuracy of masked pieces against the time of a step, a panel for each front.

    A line joins the sizes of a model, by its best variant of each; the dashed one joins the points
    that no other beats.
    """
    panels, models = [], []
    for front in (front for front in listed if len(front.timed) > 1):
        best = [(point.milliseconds, point.accuracy) for point in front.best]
        series = [Series(best, OTHERS, "Points that no other beats", dots=False, dashed=True)]
        for model in dict.fromkeys(point.model for point in front.timed):
            timed = [point for point in front.timed if point.model == model]
            best_of = {p.size: p for p in sorted(timed, key=lambda point: point.accuracy)}
            line = sorted(best_of.values(), key=lambda point: point.milliseconds)
            others = [[point] for point in timed if best_of[point.size] is not point]
            for drawn in (line, *others):
                places = [(point.milliseconds, point.accuracy) for point in drawn]
                text = "; ".join(point.text for point in drawn)
                series.append(Series(places, _colour(model), text))
            models.append(model)
        x = f"Time of a batch of {front.batch_size} (ms)"
        y = "Masked pieces right (%)"
        panels.append(Panel(front.name, x, y, series, True, front.floor))
    title = "Accuracy on masked pieces against the time of a batch"
    return svg.plot(panels, title, _legend(models)) if panels else ""


def learning(task: str, curves: Mapping[str, Sequence[Points]]) -> str:
    """Draws the validation accuracy of each model over the steps, the mean over its seeds.

    Args:
      task: title.
      curves: by model, one for each seed.
    """
    series = []
    for model, group in curves.items():
        mean = _mean(group)
        text = f"{config.title(model)}: {mean[-1][1]:.4g} at {mean[-1][0]:,.6g}"
        series.append(Series(mean, _colour(model), text, dots=False))
    panel = Panel(task, "Optimizer step", "Validation (%)", series)
    return svg.plot([panel], f"{task}: validation accuracy", _legend(curves))


def _colour(model: str) -> int:
    """Returns the colour of a model."""
    return MAIN.index(model) if model in MAIN else OTHERS


def _legend(models: Iterable[str]) -> list[tuple[str, int]]:
    colours = sorted({_colour(model) for model in models})
    return [(config.title(MAIN[n]) if n < OTHERS else "other models", n) for n in colours]


def _mean(curves: Sequence[Points]) -> list[tuple[float, float]]:
    """Returns the mean where all curves have a point, or else the longest curve."""
    columns = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*map(set, columns)))
    if not shared:
        return list(max(curves, key=len))
    return [(x, sum(column[x] for column in columns) / len(columns)) for x in shared]
