"""Where everything in a figure stands, in the units of an SVG viewBox; the template draws it."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lra_fnet.report import tradeoff

COLOURS = 7  # of the style sheet: Okabe and Ito's, the last one that of the text
MARKERS = (  # paths of about the same area around 0 0, radius 4
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "M-3.5-3.5H3.5V3.5H-3.5Z",
    "M0-4.6 4.4 3.4H-4.4Z",
    "M0-5 5 0 0 5-5 0Z",
    "M0 4.6-4.4-3.4H4.4Z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3Z",
    "M4.6 0-3.4 4.4V-4.4Z",
    "M-4.6 0 3.4-4.4V4.4Z",
    "M0-5 1.4-1.6 5-1.5 2.2.8 3.1 4.3 0 2.3-3.1 4.3-2.2.8-5-1.5-1.4-1.6Z",
)
TEXT = 5.9  # width of a letter at the labels' size
LINE = 12.0  # height of a line of labels


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point: a marker's path, or a disc of a radius."""

    x: float
    y: float
    path: str = ""
    radius: float = 0.0
    hollow: bool = False


@dataclasses.dataclass(frozen=True)
class Label:
    """Words from x on, y their middle; a thin line x1 y1 x2 y2 joins them to what they name."""

    x: float
    y: float
    text: str
    line: tuple[float, float, float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Series:
    """What belongs together, is told in a tip, and stands out when pointed at."""

    name: str
    colour: int
    lines: Sequence[str] = ()  # points of a polyline
    band: str = ""  # points of a polygon
    marks: Sequence[Mark] = ()
    labels: Sequence[Label] = ()
    says: str = ""  # its numbers in words
    tip: str | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """A panel."""

    title: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_label: str
    y_label: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    series: Sequence[Series]
    rules: Sequence[tuple[float, str]] = ()  # vertical lines
    frontier: str = ""  # points of a polyline
    notes: str = ""


@dataclasses.dataclass(frozen=True)
class Scale:
    """Numbers to places."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a number, rounded to what an eye can see."""
        turn = math.log if self.log else float
        share = (turn(value) - turn(self.low)) / (turn(self.high) - turn(self.low))
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Places and texts of at most about so many round numbers."""
        numbers = (_log_ticks if self.log else linear_ticks)(self.low, self.high, count)
        return [(self(number), f"{number:,.6g}") for number in numbers]


def fitted(
    values: Sequence[float], start: float, end: float, *, log: bool = False, margin: float = 0.06
) -> Scale:
    """The scale on which the values fill the space, with a margin."""
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** margin if high > low else 2.0
        return Scale(low / room, high * room, start, end, log=True)
    room = (high - low) * margin or max(abs(high) * 0.05, 0.5)
    return Scale(low - room, high + room, start, end)


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """The multiples in [low, high] of the least 1, 2 or 5 times 10^k that gives at most count."""
    power = math.floor(math.log10((high - low) / count))
    for step in (m * 10.0 ** (power + k) for k in (0, 1, 2) for m in (1, 2, 5)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < count:
            return [round(number * step, 12) for number in range(first, last + 1)]
    raise AssertionError("a step of the third decade is larger than the range")


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers of each decade, as many as are few enough; at least the powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in (range(1, 10), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(found) <= count:
            break
    return found  # pyright: ignore[reportPossiblyUnboundVariable]


def style(index: int) -> tuple[int, str]:
    """Colour and marker of the n-th model: no two of the first 63 are alike in both."""
    return index % COLOURS, MARKERS[(index + index // COLOURS) % len(MARKERS)]


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places moved as little as need be to stand `gap` apart, in their order, within [low, high].

    More than fit stand closer.
    """
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    before = low - gap
    for index in order:
        before = moved[index] = max(places[index], before + gap)
    after = high + gap
    for index in reversed(order):
        after = moved[index] = min(moved[index], after - gap)
    return moved


@dataclasses.dataclass(frozen=True)
class Bar:
    """A row of a chart of intervals, in %."""

    label: str
    index: int
    mean: float
    low: float
    high: float
    seeds: Sequence[float]
    published: Sequence[tuple[str, float]]
    says: str
    tip: str | None


def intervals(title: str, bars: Sequence[Bar], floor: float | None) -> Chart:
    """Accuracies with error bars, a line a model; published numbers hollow, the floor a rule."""
    width, left, top = 440.0, 12 + TEXT * 26, 8.0
    bottom = top + 17 * len(bars)
    values = [v for bar in bars for v in (bar.low, bar.high, *(n for _, n in bar.published))]
    values += [] if floor is None else [floor]
    x = fitted(values, left, width - 12)
    sources = {"FNet paper": MARKERS[3], "LRA paper": MARKERS[2]}
    series, ticks = [], []
    for number, bar in enumerate(bars):
        y = top + 17 * (number + 0.5)
        ticks.append((y, bar.label))
        marks = [Mark(x(value), y, radius=1.8, hollow=True) for value in bar.seeds]
        marks += [
            Mark(x(value), y, sources.get(source, MARKERS[1]), hollow=True)
            for source, value in bar.published
        ]
        marks.append(Mark(x(bar.mean), y, radius=3.6))
        line = f"{x(bar.low)},{y} {x(bar.high)},{y}"
        series.append(Series(bar.label, 0, [line], "", marks, (), bar.says, bar.tip))
    rules = [] if floor is None else [(x(floor), "majority floor")]
    return Chart(
        *(title, width, bottom + 40, left, width - 12, top, bottom, "Test accuracy (%)", ""),
        *(x.ticks(5), ticks, series, rules),
    )


def lines(
    title: str,
    curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    indices: Mapping[str, int],
    labels: tuple[str, str],
    *,
    log: tuple[bool, bool] = (False, False),
    x_ticks: Sequence[float] = (),
    markers: bool = False,
    tips: Mapping[str, str] | None = None,
) -> Chart:
    """A line for each name: the mean of its curves where all of them have a point, and their range.

    Args:
      title: of the panel.
      curves: by name, one or more lists of points.
      indices: of the names, for `style`.
      labels: of the axes.
      log: which axes are logarithmic.
      x_ticks: numbers to mark; round ones without.
      markers: whether each point is marked.
      tips: of names.
    """
    width, height = 440.0, 300.0
    left, top, bottom = 52.0, 10.0, height - 40
    right = width - 12 - TEXT * min(24, max(map(len, curves)))
    points = [point for group in curves.values() for curve in group for point in curve]
    x = fitted([p[0] for p in points], left, right, log=log[0], margin=0.03)
    y = fitted([p[1] for p in points], bottom, top, log=log[1])
    middles = {name: _middle(group) for name, group in curves.items()}
    ends = spread([y(middle[-1][1]) for middle, *_ in middles.values()], LINE, top + 4, bottom)
    series = []
    for (name, (middle, lows, highs)), place in zip(middles.items(), ends, strict=True):
        colour, path = style(indices[name])
        drawn = _points(middle, x, y)
        last = (x(middle[-1][0]), y(middle[-1][1]))
        marks = [Mark(x(a), y(b), path) for a, b in middle] if markers else [Mark(*last, path)]
        band = _points([*lows, *reversed(highs)], x, y) if len(curves[name]) > 1 else ""
        label = Label(right + 12, place, name[:24], (last[0] + 4, last[1], right + 10, place))
        says = f"{labels[1]} {middle[-1][1]:.4g} at {labels[0]} {middle[-1][0]:,.6g}"
        tip = (tips or {}).get(name)
        series.append(Series(name, colour, [drawn], band, marks, [label], says, tip))
    ticks = [(x(value), f"{value:,.6g}") for value in x_ticks] or x.ticks(4)
    return Chart(
        *(title, width, height, left, right, top, bottom, *labels, ticks, y.ticks(5), series)
    )


def thinned(points: Sequence[tuple[float, float]], most: int = 150) -> list[tuple[float, float]]:
    """At most so many points: means of neighbours, the last step of each group kept."""
    size = -(-len(points) // most)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _middle(group: Sequence[Sequence[tuple[float, float]]]):
    """Mean, least and greatest of curves at the places that all of them have."""
    columns = [dict(curve) for curve in group]
    shared = sorted(set.intersection(*(set(column) for column in columns)))
    if not shared:  # nothing in common: the longest alone
        longest = sorted(max(group, key=len))
        return longest, longest, longest
    values = {place: [column[place] for column in columns] for place in shared}
    pick: Sequence[Callable[[Any], float]] = (lambda v: sum(v) / len(v), min, max)
    return tuple([(place, of(own)) for place, own in values.items()] for of in pick)


def _points(curve: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(a)},{y(b)}" for a, b in curve)


def scatter(
    title: str,
    groups: Mapping[str, Sequence[tuple[Any, float]]],
    indices: Mapping[str, int],
    labels: tuple[str, str],
) -> Chart:
    """Trials against one axis of a sweep; a line through the mean at each value of a short axis."""
    every = sorted({value for group in groups.values() for value, _ in group}, key=_order)
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in every)
    few = len(every) <= 8
    log = numeric and every[0] > 0 and every[-1] / every[0] >= 20
    width, height = 440.0, 260.0
    left, top, bottom = 52.0, 10.0, height - 40
    right = width - 12 - TEXT * min(24, max(map(len, groups)))
    place = {value: value if numeric else number for number, value in enumerate(every)}
    x = fitted([float(v) for v in place.values()], left, right, log=log)
    y = fitted([score for group in groups.values() for _, score in group], bottom, top)
    tops = [max(group, key=lambda p: place[p[0]]) for group in groups.values()]
    ends = spread([y(score) for _, score in tops], LINE, top + 4, bottom)
    series = []
    for (name, group), end, last in zip(groups.items(), ends, tops, strict=True):
        colour, path = style(indices[name])
        marks = [Mark(x(place[value]), y(score), path) for value, score in group]
        means = []
        for value in every if few else []:
            own = [score for v, score in group if v == value]
            means += [(place[value], sum(own) / len(own))] if own else []
        drawn = [_points(means, x, y)] if len(means) > 1 else []
        at = (x(place[last[0]]) + 5, y(means[-1][1] if means else last[1]))
        best = max(group, key=lambda p: p[1])
        says = f"best {best[1]:.2f} % at {best[0]}"
        label = Label(right + 12, end, name[:24], (*at, right + 10, end))
        series.append(Series(name, colour, drawn, "", marks, [label], says))
    ticks = [(x(place[v]), str(v)) for v in every] if few or not numeric else x.ticks(5)
    return Chart(
        *(title, width, height, left, right, top, bottom, *labels, ticks, y.ticks(5), series)
    )


def _order(value: Any) -> tuple:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, value, "") if number else (1, 0, str(value))


def bubbles(found: tradeoff.Tradeoff, indices: Mapping[str, int], tips: Mapping[str, str]) -> Chart:
    """Score against speed, a disc's area the peak memory; a line joins the frontier."""
    width, height = 720.0, 420.0
    left, right, top, bottom = 52.0, width - 24, 14.0, height - 40
    points = sorted(found.points, key=lambda point: -(point.memory or 0))  # the small ones on top
    speeds = [point.speed for point in points]
    x = fitted(speeds, left, right, log=max(speeds) > 4 * min(speeds), margin=0.12)
    y = fitted([point.score for point in points], bottom, top, margin=0.14)
    most = max((point.memory or 0 for point in points), default=0)
    discs = [
        (x(p.speed), y(p.score), max(3.0, 22 * math.sqrt((p.memory or 0) / most)) if most else 5.0)
        for p in points
    ]
    labels = beside(discs, [point.label for point in points], (left, right, top, bottom))
    series = []
    for point, (cx, cy, radius), label in zip(points, discs, labels, strict=True):
        colour, _ = style(indices[point.label])
        memory = f", {point.memory / 1e6:,.0f} MB" if point.memory else ""
        says = f"{point.score:.2f} %, {point.speed:.3g} steps/s{memory}"
        mark = Mark(cx, cy, radius=round(radius, 1))
        tip = tips.get(point.label)
        series.append(Series(point.label, colour, (), "", [mark], [label], says, tip))
    best = tradeoff.frontier(points)
    joined = " ".join(f"{x(p.speed)},{y(p.score)}" for p in best) if len(best) > 1 else ""
    scale = f"The largest disc is {most / 1e6:,.0f} MB. " if most else "No memory was measured. "
    return Chart(
        *(found.title, width, height, left, right, top, bottom),
        *("Training speed (steps/s)", "Test accuracy (%)", x.ticks(7), y.ticks(6), series),
        frontier=joined,
        notes=f"{scale}{found.note}",
    )


def beside(
    discs: Sequence[tuple[float, float, float]],
    names: Sequence[str],
    box: tuple[float, float, float, float],
) -> list[Label]:
    """A label for each disc (x, y, radius), at the nearest place where it covers nothing.

    Tried: right, left, above, below, then further off in all directions, joined by a line. Where
    nothing is free the last place is taken.
    """
    taken = [(x - r * 0.9, y - r * 0.9, x + r * 0.9, y + r * 0.9) for x, y, r in discs]
    labels = []
    for disc, name in zip(discs, names, strict=True):
        wide = TEXT * len(name)
        x, y, off = _free(disc, wide, box, taken)
        taken.append((x, y - LINE / 2, x + wide, y + LINE / 2))
        line = None
        if off:
            line = (min(max(disc[0], x), x + wide), y, *disc[:2])
        labels.append(Label(round(x, 1), round(y, 1), name, line))
    return labels


def _free(disc, wide: float, box, taken) -> tuple[float, float, float]:
    """Where a label begins and its middle, and how far it stands off the disc's edge."""
    (cx, cy, radius), (left, right, top, bottom) = disc, box
    x, y, off = cx, cy, 0
    for off in range(0, 150, 10):
        for turn in range(0, 360, 30 if off else 90):
            along, up = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            reach = radius + 4 + off
            x = cx + reach * along - wide / 2 * (1 - along)
            y = cy - (reach + LINE / 3) * up
            area = (x, y - LINE / 2, x + wide, y + LINE / 2)
            inside = left < x and x + wide < right + 20 and top < y < bottom - LINE / 2
            if inside and not any(_overlap(area, other) for other in taken):
                return x, y, off
    return x, y, off


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
