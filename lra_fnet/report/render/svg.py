"""Plots as compact SVG, drawn once for the page and for files.

Lengths are half pixels, so that whole numbers are enough. Colours are the classes c0 to c4 of
the style sheet: one for each main model, the last for all others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import escape

WIDTH, HEIGHT = 380, 300  # of the box of a panel
LEFT, RIGHT, TOP, BOTTOM = 112, 20, 44, 84  # around the box
LINE = 28  # of text
STYLE = Path(__file__).with_name("templates") / "figure.css"  # also in the page
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """Points of one colour, joined by a line if there are several.

    `dots` draws the points, `bars` a vertical line from low to high at each, `label` a text next to
    the last one; `text` is shown on hover.
    """

    points: Points
    colour: int
    text: str
    dots: bool = True
    bars: Points = ()
    label: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Axes with series; a level is a dotted horizontal line."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    level: float | None = None


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Returns two to six round numbers between the ends of an axis.

    >>> ticks(0, 47)
    [0, 10, 20, 30, 40]
    >>> ticks(90, 4100, log=True)
    [100, 200, 500, 1000, 2000]
    """
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1, 2, 5), (1,)):
            found = [m * 10**p for p in powers for m in steps if low <= m * 10**p <= high]
            if 2 <= len(found) <= 6:
                return found
    unit = 10 ** math.floor(math.log10((high - low) / 4 or 1))
    step = next(m * unit for m in (1, 2, 5, 10) if (high - low) <= 5 * m * unit)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def plot(panels: Sequence[Panel], title: str, legend: Sequence[tuple[str, int]] = ()) -> str:
    """Returns an SVG element with up to four panels in a row, and a legend of names and colours.

    Args:
      panels: at least one.
      title: what a screen reader says of it.
      legend: names with the number of their colour.
    """
    columns = min(len(panels), 4)
    across = LEFT + WIDTH + RIGHT
    parts, bottom = [], 0
    for start in range(0, len(panels), columns):
        label = ""
        for column, panel in enumerate(panels[start : start + columns]):
            parts += _panel(panel, column * across + LEFT, bottom + TOP, panel.y != label)
            label = panel.y
        bottom += TOP + HEIGHT + BOTTOM
    x = LEFT
    for name, colour in legend:
        parts.append(f'<g class="c{colour}"><circle cx="{x}" cy="{bottom + 8}" r="7"/></g>')
        parts.append(_text(x + 16, bottom + 16, name))
        x += 60 + 13 * len(name)
    size = f"0 0 {max(columns * across, x)} {bottom + LINE * bool(legend)}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="group"'
    return "".join([f'{head} aria-label="{escape(title)}">', *parts, "</svg>"])


def standalone(svg: str) -> str:
    """Returns the content of a file: the element with its style."""
    return svg.replace(">", f"><style>\n{STYLE.read_text()}</style>", 1) + "\n"


def _scale(values: Sequence[float], log: bool, start: int, end: int) -> tuple[Callable, list]:
    """Returns the place of a value on an axis, and the ticks."""
    change = math.log10 if log else float
    low, high = change(min(values)), change(max(values))
    margin = 0.1 * (high - low) or abs(low) / 10 or 1.0
    low, high = low - margin, high + margin

    def place(value: float) -> int:
        return round(start + (change(value) - low) / (high - low) * (end - start))

    return place, ticks(10**low, 10**high, True) if log else ticks(low, high)


def _panel(panel: Panel, left: int, top: int, labelled: bool) -> list[str]:
    right, bottom = left + WIDTH, top + HEIGHT
    every = [point for one in panel.series for point in one.points]
    levels = [y for one in panel.series for bar in one.bars for y in bar]
    levels += [] if panel.level is None else [panel.level]
    x, marks = _scale([a for a, _ in every], panel.log_x, left, right)
    y, heights = _scale([*(b for _, b in every), *levels], False, bottom, top)
    parts = [f'<path class="axes" d="M{left} {top}V{bottom}H{right}"/>']
    parts += [_text(x(mark), bottom + LINE, f"{mark:,.6g}", "middle") for mark in marks]
    parts += [_text(left - 8, y(mark) + 8, f"{mark:,.6g}", "end") for mark in heights]
    grid = "".join(f"M{left} {y(mark)}h{WIDTH}" for mark in heights)
    parts.append(f'<path class="grid" opacity=".15" d="{grid}"/>')
    parts.append(_text((left + right) // 2, bottom + 2 * LINE + 4, panel.x, "middle"))
    parts.append(_text((left + right) // 2, top - 14, panel.title, "middle"))
    if labelled:
        parts.append(f'<g transform="rotate(-90 {left - 92} {(top + bottom) // 2})">')
        parts.append(_text(left - 92, (top + bottom) // 2, panel.y, "middle") + "</g>")
    if panel.level is not None:
        dotted = 'stroke-dasharray="3 6"'
        parts.append(f'<path {dotted} d="M{left} {y(panel.level)}h{WIDTH}"/>')
    labels = []
    for one in sorted(panel.series, key=lambda one: -one.colour):
        places = [(x(a), y(b)) for a, b in one.points]
        drawn = f"<title>{escape(one.text)}</title>"
        if len(places) > 1:
            line = "M" + "L".join(f"{a} {b}" for a, b in places)
            dashes = ' stroke-dasharray="8 6"' if one.dashed else ""
            drawn += f'<path stroke-width="3"{dashes} d="{line}"/>'
        if one.bars:
            pairs = zip(places, one.bars, strict=True)
            bars = "".join(f"M{a} {y(low)}V{y(high)}" for (a, _), (low, high) in pairs)
            drawn += f'<path stroke-width="2" d="{bars}"/>'
        if one.dots:
            drawn += "".join(f'<circle cx="{a}" cy="{b}" r="7"/>' for a, b in places)
        parts.append(f'<g class="c{one.colour}">{drawn}</g>')
        if one.label:
            place, level = places[-1]
            anchor, shift = ("end", -12) if place > (left + right) / 2 else ("start", 12)
            labels.append(_text(place + shift, level - 12, one.label, anchor))
    return parts + labels


def _text(x: int, y: int, words: str, anchor: str = "start") -> str:
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x}" y="{y}"{where}>{escape(words)}</text>'
