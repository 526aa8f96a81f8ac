"""Every figure, drawn by Matplotlib: inline SVG for the page, SVG and PNG files for the rest.

The same numbers give the same bytes. In the page, text and axes take the colour of the text and
the series those of the style sheet, so that the figures follow a dark scheme.
"""

import io
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from lra_fnet import tasks
from lra_fnet.machine import disk
from lra_fnet.report import benchmarks, tradeoff
from lra_fnet.report.accuracy import Table

# The colours of Okabe and Ito, which are distinct for every type of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "*")
INK = "#1b1b1b"  # axes and text
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "lra-fnet",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "grid.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.markersize": 5,
}
Points = Sequence[tuple[float, float]]


def lines(
    curves: Mapping[str, Sequence[Points]],
    labels: tuple[str, str],
    indices: Mapping[str, int] | None = None,
) -> Figure:
    """Draws a line for each name: the mean of its curves where all have a point, and their range.

    Args:
      curves: by name, one or more lists of points.
      labels: of the axes.
      indices: by name, the place in the cycle of colours; by default the order of `curves`.
    """
    figure, axes = _axes(labels, len(curves))
    for number, (name, group) in enumerate(curves.items()):
        style = _style(indices[name] if indices else number)
        x, mean, low, high = _mean(group)
        text = f"{name}: {labels[1]} {mean[-1]:.4g} at {labels[0]} {x[-1]:,.6g}"
        axes.plot(x, mean, label=name, markevery=[-1], gid=_titled(text), **style)
        if len(group) > 1:
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    return _with_legend(figure)


def growth(curves: Mapping[str, Points], label: str, *, fitted: bool = True) -> Figure:
    """Draws curves over the length on logarithmic axes; the legend has the fitted exponents."""
    figure, axes = _axes(("Length (tokens)", label), len(curves))
    for number, (name, points) in enumerate(curves.items()):
        x, y = zip(*points, strict=True)
        text = f"{name}: L^{benchmarks.exponent(x, y):.2f}" if fitted else name
        axes.loglog(x, y, label=text, gid=_titled(text), **_style(number))
    _log_ticks(axes.xaxis)
    _log_ticks(axes.yaxis)
    axes.set_xticks(sorted({x for points in curves.values() for x, _ in points}))
    return _with_legend(figure)


def scatter(groups: Mapping[str, Sequence[tuple[Any, float]]], labels: tuple[str, str]) -> Figure:
    """Draws points by name, and a line through the means if there are few values of x.

    Values of x that are not all numbers are placed side by side under their text.
    """
    values = {value for group in groups.values() for value, _ in group}
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    order = sorted(values) if numeric else sorted(values, key=str)
    place = {value: value if numeric else number for number, value in enumerate(order)}
    figure, axes = _axes(labels, len(groups))
    for number, (name, group) in enumerate(groups.items()):
        style = _style(number)
        x, y = [place[value] for value, _ in group], [score for _, score in group]
        best = max(group, key=lambda point: point[1])
        text = f"{name}: best {best[1]:.2f} at {best[0]}"
        axes.plot(x, y, label=name, gid=_titled(text), linestyle="none", **style)
        if len(values) <= 8:
            means = [
                np.mean([b for a, b in zip(x, y, strict=True) if a == v]) for v in sorted({*x})
            ]
            axes.plot(sorted({*x}), means, color=style["color"])
    if numeric and order[0] > 0 and order[-1] / order[0] >= 20:
        axes.set_xscale("log")
        _log_ticks(axes.xaxis)
    if len(values) <= 8 or not numeric:
        axes.set_xticks(list(place.values()), [str(value) for value in place])
    return _with_legend(figure)


def bubbles(points: Sequence[tradeoff.Point], indices: Mapping[str, int] | None = None) -> Figure:
    """Draws score against speed; a marker's area is the peak memory, a line the frontier."""
    figure, axes = _axes(("Training speed (steps/s)", "Test accuracy (%)"), len(points), width=7.5)
    most = max((point.memory or 0 for point in points), default=0)
    best = tradeoff.frontier(points)
    x, y = [point.speed for point in best], [point.score for point in best]
    axes.plot(x, y, color=INK, linestyle="--", linewidth=1, zorder=1)
    for number, point in enumerate(points):
        style = _style(indices[point.label] if indices else number)
        area = max(16.0, 500 * (point.memory or 0) / most) if most else 30.0
        memory = f", {point.memory / 1e6:,.0f} MB" if point.memory else ""
        text = f"{point.label}: {point.score:.2f} %, {point.speed:.3g} steps/s{memory}"
        axes.plot([], [], label=point.label, linestyle="none", **style)  # for the legend
        style |= {"s": area, "zorder": 2 + 1 / area}  # small ones on top
        axes.scatter(point.speed, point.score, alpha=0.6, gid=_titled(text), **style)
    speeds = [point.speed for point in points]
    if max(speeds) > 4 * min(speeds):
        axes.set_xscale("log")
        _log_ticks(axes.xaxis)
    axes.margins(0.1)
    return _with_legend(figure)


def intervals(table: Table, task: str) -> Figure | None:
    """Draws a task's accuracies of the preset's own models with error bars, the best first.

    Published accuracies are hollow. Without a value there is no figure.
    """
    bars = [row for row in table.rows if row.ours and row.cells[task].mean is not None]
    if not bars:
        return None
    bars.sort(key=lambda row: -(row.cells[task].mean or 0))
    figure, axes = _axes(("Test accuracy (%)", ""), 0, height=0.8 + 0.2 * len(bars))
    hollow: dict[str, Any] = {"markerfacecolor": "none", "color": INK, "linestyle": "none"}
    markers = {"FNet paper": "D", "LRA paper": "^"}
    for y, row in enumerate(bars):
        cell = row.cells[task]
        gid = _titled(f"{row.label}: {', '.join(cell.lines)}; {cell.interval}")
        axes.plot(np.array([cell.low, cell.high], float), [y, y], color=COLOURS[0], gid=gid)
        axes.plot(np.array(cell.mean, float), y, "o", color=COLOURS[0], gid=gid)
        seeds = cell.values if cell.seeds > 1 else ()
        axes.plot(seeds, [y] * len(seeds), marker="o", markersize=3, **hollow)
        for paper in table.rows:
            value = paper.cells[task].mean
            if paper.published and paper.model == row.model and value is not None:
                gid = _titled(f"{row.label}, {paper.source}: {value:.2f}")
                axes.plot(value, y, marker=markers.get(paper.source, "s"), gid=gid, **hollow)
    for reference, style in ((table.floors, "--"), (table.shallow, ":")):
        value = reference.cells[task].mean
        if value is not None:
            axes.axvline(value, color=INK, linestyle=style, linewidth=1)
    axes.set_yticks(range(len(bars)), [row.label for row in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    return figure


def overview(table: Table, cells: Sequence[benchmarks.Result], models: Sequence[str]) -> Figure:
    """Draws the README's figure: accuracy of these models on each task, and training speed.

    Args:
      table: has a row of each model without overrides.
      cells: training speeds, one for each model and length; without any there is one panel.
      models: names.
    """
    rows = [row for row in table.rows if row.ours and row.model in models]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        axes, *speed = figure.subplots(1, 2 if cells else 1, squeeze=False)[0]
        shown = [t for t in table.tasks if any(row.cells[t].mean is not None for row in rows)]
        for number, row in enumerate(rows):
            values = [row.cells[task].mean for task in shown]
            x = np.arange(len(shown)) + 0.2 * (number - (len(rows) - 1) / 2)
            heights = np.array(values, float)
            axes.bar(x, heights, 0.17, label=row.label, color=COLOURS[number], alpha=0.85)
            for place, task in zip(x, shown, strict=True):
                seeds = row.cells[task].values if row.cells[task].mean is not None else ()
                axes.plot([place] * len(seeds), seeds, ".", color=INK)
            for panel in speed:
                own = {cell["length"]: cell for cell in cells if cell["label"] == row.model}
                if row.model == benchmarks.BASELINE:  # in the way that is faster at each length
                    same = {n: [c for c in cells if c["length"] == n] for n in own}
                    own = {n: benchmarks.faster(group) or own[n] for n, group in same.items()}
                rates = [1 / statistics.median(own[n]["seconds"]) for n in sorted(own)]
                panel.plot(sorted(own), rates, color=COLOURS[number], marker="o")
        for place, task in enumerate(shown):
            for reference, style in ((table.floors, "--"), (table.shallow, ":")):
                level = np.array([reference.cells[task].mean] * 2, float)
                label = reference.label if place == 0 else None
                ends = [place - 0.42, place + 0.42]
                axes.plot(ends, level, style, color=INK, linewidth=1, label=label)
        axes.set_xticks(range(len(shown)), [table.columns[task] for task in shown])
        axes.set_title(f"Accuracy, preset {table.preset} (dots: seeds)")
        axes.set_ylabel("Test accuracy (%)")
        for panel in speed:
            panel.set_xscale("log")
            _log_ticks(panel.xaxis)
            panel.set_xticks(sorted({cell["length"] for cell in cells}))
            panel.set_ylim(bottom=0)
            cores = f"{cells[0]['threads']} {cells[0]['device']['platform'].upper()} cores"
            size = tasks.title(cells[0]["task"])
            panel.set_title(f"Speed, {size} sizes{benchmarks.constant(cells)}, {cores}")
            panel.set_xlabel("Length (tokens). Transformer: its faster way of computing attention")
            panel.set_ylabel("Training steps/s")
        figure.legend(loc="outside lower center", ncols=len(rows) + 2)
    return figure


def above_baseline(table: Table, models: Sequence[str]) -> Figure | None:
    """Draws accuracy above the shallow baseline against training speed, a panel a task.

    Bars are the intervals of `cells.Cell`. A task needs a baseline and two models.

    Args:
      table: of a preset.
      models: those with a colour and a name; the others are grey.
    """
    panels = {
        task: points
        for task in table.tasks
        if table.shallow.cells[task].mean is not None
        and len(points := tradeoff.of_task(table, task, models)) > 1
    }
    if not panels:
        return None
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(2.6 * max(2, len(panels)), 3.0), layout="constrained")
        handles: dict[str, Any] = {}
        for axes, (task, points) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            baseline = table.shallow.cells[task].mean or 0.0
            axes.axhline(0, color=INK, linestyle=":", linewidth=1)
            for row, point in sorted(points, key=lambda pair: pair[0].model in models):
                cell, named = row.cells[task], row.model in models
                style = _style(models.index(row.model)) if named else {"color": INK, "marker": "."}
                style |= {"alpha": 1.0 if named else 0.35, "linestyle": "none"}
                ends = np.array([cell.low, cell.high], float) - baseline
                text = f"{row.label}: {', '.join(cell.lines)}, {point.speed:.3g} steps/s"
                gid = _titled(f"{text}; {cell.interval}; baseline {baseline:.2f}")
                x, y = point.speed, point.score - baseline
                (mark,) = axes.plot(x, y, gid=gid, **style)
                axes.plot([x, x], ends, **style | {"linestyle": "-", "marker": ""}, linewidth=1)
                handles[row.label if named else "other models"] = mark
            speeds = [point.speed for _, point in points]
            if max(speeds) > 2 * min(speeds):
                axes.set_xscale("log")
                _log_ticks(axes.xaxis)
            axes.margins(0.12)
            axes.set_title(table.columns[task])
            axes.set_xlabel("Training steps/s")
        figure.axes[0].set_ylabel("Points above shallow baseline")
        order = sorted(handles, key=lambda label: label == "other models")
        legend = {"loc": "outside lower center", "ncols": len(order)}
        figure.legend([handles[label] for label in order], order, **legend)
    return figure


def measured(cells: Sequence[benchmarks.Result]) -> dict[str, tuple[str, Figure]]:
    """Returns the figures of a benchmark by file name: time and memory over length, with titles."""
    figures = {}
    for name, what, value, title, unit, scale in (
        ("train_time", "train", "seconds", "Training", "ms a step", 1e-3),
        ("infer_time", "infer", "seconds", "Inference", "ms a batch", 1e-3),
        ("train_memory", "train", "peak_bytes", "Peak memory of training", "MB", 1e6),
    ):
        kept = [cell for cell in cells if (cell["what"], cell["side"]) == (what, "ours")]
        rows = {label: benchmarks.curve(kept, label, value) for label in benchmarks.labels(kept)}
        curves = {
            label: [(x, y / scale) for x, y in zip(*row, strict=True)]
            for label, row in rows.items()
            if len(row[0]) > 1
        }
        if curves:
            tokens = any(cell.get("tokens") for cell in kept)
            unit = "ms an example" if tokens and value == "seconds" else unit
            grows = value == "seconds" or not tokens
            drawn = growth(curves, f"{title} ({unit})", fitted=grows)
            figures[name] = (f"{title}{benchmarks.constant(kept)}", drawn)
    return figures


def draw(cells: Sequence[benchmarks.Result], out_dir: Path) -> list[Path]:
    """Writes the figures of a benchmark into a folder, as SVG and PNG; returns their paths."""
    figures = measured(cells)
    return [
        save(figure, out_dir / f"{name}.{kind}")
        for name, (_, figure) in figures.items()
        for kind in ("svg", "png")
    ]


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure; the ending of the path says in which format.

    Raises:
      UserError: the disk refuses.
    """
    with disk.writable(path):
        disk.replace(path, drawn(figure, path.suffix[1:]))
    return path


def drawn(figure: Figure, form: str) -> bytes:
    """Returns a figure as the content of a file, "svg" or "png"."""
    file = io.BytesIO()
    with mpl.rc_context(_STYLE):
        metadata = {"Date": None} if form == "svg" else None
        figure.savefig(file, format=form, dpi=150, metadata=metadata)
    return file.getvalue()


def inline(figure: Figure, key: str, title: str) -> str:
    """Returns a figure as an SVG element for a page.

    Args:
      figure: as one of the functions above returns it.
      key: a word that makes the ids in the element unique in the page.
      title: what a screen reader says of it.
    """
    file = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(file, format="svg", transparent=True)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace("xlink:href", "href")
    svg = re.sub(r"\s*<(metadata|style).*?</\1>", "", svg, flags=re.S)
    svg = re.sub(r'\s*<g id="[^"]*"/>|font-family: [^;]*; ?', "", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    svg = f'<svg {view[0]} role="group" aria-label="{escape(title)}">' + svg[svg.index(">") + 1 :]
    svg = re.sub(r'<g id="title:([^"]*)">', r"<g><title>\1</title>", svg)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{key}-", svg).replace(INK, "currentColor")
    for number, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--c{number})")
    return svg


def thinned(points: Points, most: int = 150) -> list[tuple[float, float]]:
    """Returns at most `most` points: means of neighbours, at the last step of each group."""
    size = -(-len(points) // most)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _axes(
    labels: tuple[str, str], entries: int, width: float = 6.0, height: float = 3.2
) -> tuple[Figure, Axes]:
    """Returns an empty figure, high enough for a legend with this many entries, and its axes."""
    with mpl.rc_context(_STYLE):
        size = (width, max(height, 0.5 + 0.17 * entries))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
    return figure, axes


def _with_legend(figure: Figure) -> Figure:
    with mpl.rc_context(_STYLE):
        figure.legend(loc="outside right upper")
    return figure


def _log_ticks(axis: Axis) -> None:
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))


def _style(index: int) -> dict[str, Any]:
    """Returns colour and marker of the n-th series: no two of the first 63 share both."""
    marker = MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]
    return {"color": COLOURS[index % len(COLOURS)], "marker": marker}


def _titled(text: str) -> str:
    """Returns the id that `inline` turns into the title of an element."""
    return "title:" + text.replace('"', "'")  # Matplotlib then always quotes it in the same way


def _mean(curves: Sequence[Points]) -> tuple[list[float], Any, Any, Any]:
    """Returns the places that all curves have, with mean, least and greatest there.

    Curves that have no place in common are represented by the longest alone.
    """
    columns = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*map(set, columns)))
    if not shared:
        columns = [max(columns, key=len)]
        shared = sorted(columns[0])
    values = np.array([[column[x] for x in shared] for column in columns])
    return shared, values.mean(0), values.min(0), values.max(0)
