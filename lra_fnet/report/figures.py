"""Every figure, drawn by Matplotlib: inline SVG for the page, SVG and PNG files for the rest.

The same numbers give the same bytes. The four main models have a colour each, the others are grey.
In the page, text and axes take the colour of the text and the series those of the style sheet, so
that the figures follow a dark scheme.
"""

import functools
import io
import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from lra_fnet import config
from lra_fnet.benchmark.files import Result
from lra_fnet.machine import disk
from lra_fnet.report import benchmarks, pretraining, tradeoff
from lra_fnet.report.accuracy.names import MAIN
from lra_fnet.report.accuracy.table import Table
from lra_fnet.report.render.grid import rounded

# Those of the main models, from Okabe and Ito, distinct for every type of colour vision; others'.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#808080")
MARKERS = ("o", "s", "^", "D", ".", "v", "P", "<", ">", "*", "X", "p", "h")
NAMED = 4  # models other than the main ones that a legend names; more are its OTHERS
OTHERS = "other models"
HEIGHT = 3.2  # of a figure without names at its lines' ends, inches
TICKS = "{x:,.6g}"
SIDES = {"ours": "-", "eager": ":", "compiled": "--"}  # line styles: ours, PyTorch's
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


def lines(curves: Mapping[str, Sequence[Points]], labels: tuple[str, str]) -> Figure:
    """Draws a line for each name: the mean of its curves where all have a point, and their range.

    The lines are named in a legend, or at their ends if it would not name them all.

    Args:
      curves: by name, one or more lists of points.
      labels: of the axes.
    """
    styles = _styles(curves)
    many = OTHERS in (style["label"] for style in styles.values())
    figure, axes = _axes(labels, _height(curves) if many else HEIGHT)
    ends = []
    for name, group in curves.items():
        style = styles[name]
        x, mean, low, high = _mean(group)
        text = f"{name}: {labels[1]} {mean[-1]:.4g} at {labels[0]} {x[-1]:,.6g}"
        axes.plot(x, mean, markevery=[-1], gid=_titled(text), **style)
        if len(group) > 1:
            axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        ends.append((name, x[-1], mean[-1], style["color"]))
    if many:
        _name_ends(figure, axes, ends)
        return figure
    return _with_legend(figure)


def growth(curves: Mapping[str, Points], label: str, *, fitted: bool = True) -> Figure:
    """Draws curves over the length on logarithmic axes, named at their ends.

    Args:
      curves: by name: that of a model, for PyTorch's followed by ", PyTorch " and a side.
      label: of the vertical axis.
      fitted: whether to write the fitted exponents next to the names.
    """
    figure, axes = _axes(("Length (tokens)", label), _height(curves))
    ends = []
    for name, points in curves.items():
        x, y = zip(*points, strict=True)
        text = f"{name}: L^{benchmarks.exponent(x, y):.2f}" if fitted else name
        model, _, side = name.partition(", PyTorch ")
        plain = model.partition(" (")[0]  # of a way to compute it, where only that was measured
        style = _style(model if plain in curves else plain) | {
            "linestyle": SIDES.get(side, "-"),
            "label": text,
        }
        axes.loglog(x, y, gid=_titled(text), **style)
        ends.append((text, x[-1], y[-1], style["color"]))
    _log_ticks(axes.xaxis)
    _log_ticks(axes.yaxis)
    axes.set_xticks(sorted({x for points in curves.values() for x, _ in points}))
    _name_ends(figure, axes, ends)
    return figure


def _name_ends(figure: Figure, axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Writes a text to the right of the axes for the end of each line: (text, x, y, colour)."""
    gap = 0.145 / (figure.get_figheight() - 0.6)  # a line of text, as a part of the axes' height
    axes.autoscale_view()
    ends = sorted(ends, key=lambda end: end[2])
    to_axes = axes.transScale + axes.transLimits
    places = [to_axes.transform((x, y))[1] for _, x, y, _ in ends]
    places = _apart([min(place, 1 - gap * n) for n, place in enumerate(places[::-1])][::-1], gap)
    for (text, x, y, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            text,
            (x, y),
            (1.03, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=INK if colour == COLOURS[-1] else colour,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),
                "color": colour,
                "linewidth": 0.5,
                "shrinkB": 2,
            },
        )


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Returns rising places, moved up as far as needed to lie a gap apart."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, 0.0))
    return moved


def scatter(groups: Mapping[str, Sequence[tuple[Any, float]]], labels: tuple[str, str]) -> Figure:
    """Draws points by name, and a line through the means if there are few values of x.

    Values of x that are not all numbers are placed side by side under their text.
    """
    values = {value for group in groups.values() for value, _ in group}
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    order = sorted(values) if numeric else sorted(values, key=str)
    place = {value: value if numeric else number for number, value in enumerate(order)}
    figure, axes = _axes(labels)
    styles = _styles(groups)
    for name, group in groups.items():
        style = styles[name]
        x, y = [place[value] for value, _ in group], [score for _, score in group]
        best = max(group, key=lambda point: point[1])
        text = f"{name}: best {best[1]:.2f} at {best[0]}"
        points: dict[str, Any] = style | {"linestyle": "none"}
        axes.plot(x, y, gid=_titled(text), **points)
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


def intervals(table: Table, task: str) -> Figure | None:
    """Draws a task's accuracies of the preset's own models with error bars, the best first.

    Published accuracies are hollow. Without a value there is no figure.
    """
    bars = [row for row in table.own if row.cells[task].mean is not None]
    if not bars:
        return None
    bars.sort(key=lambda row: -(row.cells[task].mean or 0))
    figure, axes = _axes(("Test accuracy (%)", ""), height=0.8 + 0.2 * len(bars))
    hollow: dict[str, Any] = {"markerfacecolor": "none", "color": INK, "linestyle": "none"}
    markers = {"FNet paper": "D", "LRA paper": "^"}
    for y, row in enumerate(bars):
        cell = row.cells[task]
        gid = _titled(f"{row.label}: {cell.text}")
        colour = _style(row.label)["color"]
        axes.plot(np.array([cell.low, cell.high], float), [y, y], color=colour, gid=gid)
        axes.plot(np.array(cell.mean, float), y, "o", color=colour, gid=gid)
        seeds = cell.values if cell.seeds > 1 else ()
        axes.plot(seeds, [y] * len(seeds), marker="o", markersize=3, **hollow)
        for paper in table.rows:
            value = paper.cells[task].mean
            if paper.published and paper.model == row.model and value is not None:
                gid = _titled(f"{row.label}, {paper.source}: {value:.2f}")
                axes.plot(value, y, marker=markers.get(paper.source, "s"), gid=gid, **hollow)
    for reference, style in zip(table.references, ("--", ":"), strict=False):
        value = reference.cells[task].mean
        if value is not None:
            axes.axvline(value, color=INK, linestyle=style, linewidth=1)
    axes.set_yticks(range(len(bars)), [_short(row.label) for row in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    return figure


def _short(label: str) -> str:
    """Returns a label that leaves room for the axes: a long one without its middle.

    >>> _short("FNet, 6 steps, batch size 4, width 16, learning rate 0.001, 1 layer")
    'FNet, 6 steps, batch siz … rate 0.001, 1 layer'
    """
    return label if len(label) <= 48 else f"{label[:24]} … {label[-21:]}"


def above_baseline(table: Table, points: Sequence[tradeoff.Point]) -> Figure | None:
    """Draws accuracy above the shallow baseline against training speed, a panel a column.

    Bars are the intervals of `cells.Cell`. A panel needs two models with a baseline on one
    device. It names its best model, unless that is at the majority floor.

    Args:
      table: of a preset.
      points: of its own models.
    """
    rated = [point for point in points if point.cell.baseline is not None]
    panels = {
        column: shown
        for column in table.columns
        if len(shown := tradeoff.comparable(rated, column, MAIN)) > 1
    }
    if not panels:
        return None
    with mpl.rc_context(_STYLE):
        rows = -(-len(panels) // 4)
        columns = -(-len(panels) // rows)
        size = (2.6 * max(3, columns), 2.5 * rows + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        for number, (column, shown) in enumerate(panels.items()):
            axes = figure.add_subplot(rows, columns, number + 1)
            axes.axhline(0, color=INK, linestyle=":", linewidth=1)
            for point in sorted(shown, key=lambda point: point.row.model in MAIN):
                cell, main = point.cell, point.row.model in MAIN
                baseline = cell.baseline or 0.0
                speed = f"{rounded(point.speed)} steps/s"
                text = f"{point.row.label}: {cell.text}, {speed}"
                gid = _titled(f"{text}; baseline {baseline:.2f}")
                style = _style(point.row.label) | {"linestyle": "none", "markersize": 4 + 2 * main}
                x, y = point.speed, (cell.mean or 0.0) - baseline
                style["label"] = point.row.label if main else OTHERS
                axes.plot(x, y, gid=gid, **style)
                if cell.low is not None and cell.high is not None:
                    ends = [cell.low - baseline, cell.high - baseline]
                    axes.plot([x, x], ends, color=style["color"], linewidth=1)
            speeds = [point.speed for point in shown]
            if max(speeds) > 2 * min(speeds):
                axes.set_xscale("log")
                _log_ticks(axes.xaxis)
            axes.margins(0.12, 0.18)
            best = max(shown, key=lambda point: point.cell.mean or 0.0)
            if not best.cell.italic:
                top = best.cell.high or best.cell.mean or 0.0
                right = best.speed > (max(speeds) * min(speeds)) ** 0.5
                axes.annotate(
                    best.row.label,
                    (best.speed, top - (best.cell.baseline or 0.0)),
                    (4 if right else -4, 2),
                    textcoords="offset points",
                    ha="right" if right else "left",
                    va="bottom",
                    fontsize=7,
                )
            axes.set_title(table.columns[column])
            label = "Steps/s of the fastest run"
            if all(point.benchmark for point in shown):
                in_turn = all(point.in_turn for point in shown)
                label = "Training steps/s" + ", not interleaved" * (not in_turn)
            axes.set_xlabel(label)
            if number % columns == 0:
                axes.set_ylabel("Points above shallow baseline")
    return _with_legend(figure)


def fronts(listed: Sequence[pretraining.Front]) -> Figure:
    """Draws accuracy of masked pieces against the time of a step.

    Each front with several points has a panel. A line joins the sizes of a model, by its best
    variant of each; the dashed one joins the points that no other beats.
    """
    listed = [one for one in listed if len(one.points) > 1]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.6 * len(listed), 3.4), layout="constrained")
        styles = _styles(point.label for front in listed for point in front.points)
        for axes, one in zip(
            figure.subplots(1, len(listed), squeeze=False)[0], listed, strict=True
        ):
            axes.set_title(textwrap.fill(one.name, 36), fontsize=9)
            axes.set_xlabel(f"Time of a batch of {one.batch_size} (ms)")
            axes.set_ylabel("Masked pieces right (%)")
            best = [(point.milliseconds, point.accuracy) for point in one.best]
            axes.plot(*zip(*best, strict=True), color=INK, linestyle="--", linewidth=1, zorder=1)
            for name in dict.fromkeys(point.label for point in one.points):
                timed = [p for p in one.timed if p.label == name]
                best_of = {p.size: p for p in sorted(timed, key=lambda point: point.accuracy)}
                line = sorted(best_of.values(), key=lambda point: point.milliseconds or 0)
                others = [[p] for p in timed if best_of[p.size] is not p]
                for drawn in (line, *others):
                    x, y = [p.milliseconds for p in drawn], [p.accuracy for p in drawn]
                    text = "; ".join(point.text for point in drawn)
                    axes.plot(x, y, gid=_titled(text), **({"linewidth": 1} | styles[name]))
            if one.floor is not None:
                gid = _titled(f"Shallow baseline: {one.floor:.4g} % of masked pieces")
                axes.axhline(one.floor, color=INK, linestyle=":", linewidth=1, gid=gid)
                where = {"xy": (1, one.floor), "xycoords": ("axes fraction", "data")}
                drawn = {"xytext": (-3, 3), "textcoords": "offset points", "ha": "right"}
                axes.annotate("shallow baseline", fontsize=7, **where, **drawn)
            axes.set_xscale("log")
            _log_ticks(axes.xaxis)
            axes.margins(0.1)
    return _with_legend(figure)


def measured(cells: Sequence[Result]) -> dict[str, tuple[str, Figure]]:
    """Returns the figures of a benchmark by file name: time and memory over length, with titles.

    PyTorch's curves are next to ours. A quantity with fewer than two curves has no figure.
    """
    figures, memory = {}, benchmarks.unit_of_memory(cells)
    for name, what, value, title, unit, scale in (
        ("train_time", "train", "seconds", "Training", "ms a step", 1e-3),
        ("infer_time", "infer", "seconds", "Inference", "ms a batch", 1e-3),
        ("train_memory", "train", "peak_bytes", "Peak memory of training", *memory),
    ):
        kept = [c for c in cells if c.what == what and c.side in SIDES]
        curves = {}
        for side, label in itertools.product(SIDES, benchmarks.labels(kept)):
            own = [cell for cell in kept if cell.side == side]
            points = list(zip(*benchmarks.curve(own, label, value), strict=True))
            if len(points) > 1:
                whose = label if side == "ours" else f"{label}, PyTorch {side}"
                curves[whose] = [(x, y / scale) for x, y in points]
        if len(curves) > 1:
            tokens = any(cell.tokens for cell in kept)
            unit = "ms an example" if tokens and value == "seconds" else unit
            grows = value == "seconds" or not tokens
            drawn = growth(curves, f"{title} ({unit})", fitted=grows)
            figures[name] = (f"{title}{benchmarks.constant(kept)}", drawn)
    return figures


def draw(cells: Sequence[Result], out_dir: Path) -> list[Path]:
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
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
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


def _axes(labels: tuple[str, str], height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Returns an empty figure and its axes."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.0, height), layout="constrained")
        axes = figure.subplots()
        axes.xaxis.set_major_formatter(TICKS)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
    return figure, axes


def _height(names: Collection[str]) -> float:
    """Returns the height of a figure, in inches, that has room for names at its lines' ends."""
    return max(HEIGHT, 0.6 + 0.15 * len(names))


def _with_legend(figure: Figure) -> Figure:
    """Adds a legend below, in which a label of several lines is once."""
    with mpl.rc_context(_STYLE):
        shown = [axes.get_legend_handles_labels() for axes in figure.axes]
        handles = {n: m for marks, names in shown for m, n in zip(marks, names, strict=True)}
        order = sorted(handles, key=_place)
        legend = {"loc": "outside lower center", "ncols": min(len(order), 5)}
        figure.legend([handles[label] for label in order], order, **legend)
    return figure


def _log_ticks(axis: Axis) -> None:
    """Labels 1, 2 and 5 of each decade; in less than a factor of 5, round numbers."""
    low, high = axis.get_view_interval()
    narrow = high < 5 * low
    axis.set_major_locator(
        MaxNLocator(5, steps=[1, 2, 5, 10]) if narrow else LogLocator(subs=(1, 2, 5))
    )
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(TICKS)


@functools.cache
def _place(name: str) -> int:
    """Returns the place of a model among the main ones, by its name or title; else their number."""
    return next((i for i, m in enumerate(MAIN) if name in (m, config.title(m))), len(MAIN))


def _style(name: str) -> dict[str, Any]:
    """Returns colour and marker of a model: grey unless it is a main one."""
    place = _place(name)
    front = {"zorder": 3} if place < len(MAIN) else {"linewidth": 1}
    return {"color": COLOURS[place], "marker": MARKERS[place], **front}


def _styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the styles of all models of a figure, with labels for its legend."""
    styles = {name: _style(name) | {"label": name} for name in names}
    others = [name for name in styles if _place(name) == len(MAIN)]
    for number, name in enumerate(others):
        if len(others) > NAMED:
            styles[name]["label"] = OTHERS
        else:
            styles[name]["marker"] = MARKERS[len(COLOURS) + number]
    return styles


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
