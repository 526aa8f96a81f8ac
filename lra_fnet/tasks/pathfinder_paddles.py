"""Footprints of Pathfinder's paddles, and every angle and weight of a step, as integer tables.

A contour is a chain of paddles: straight strokes with gaps. Strokes and discs are drawn at twice
the size, reduced with Lanczos' filter and rounded to 8 bits, as the original generator (D. Linsley
and J. Kim, github.com/drewlinsley/pathfinder, commit ab9c130) does with Pillow and OpenCV. Drawing
and reduction are written out here, so that the images do not depend on a library's version.

Coordinates are (y, x) in pixels, y downwards; an angle a points to (sin a, cos a). Orientations are
numbers: 0 .. 359 is the angle (number - 180) degrees of a first paddle; 360 + k points from a pivot
to place k of the arc round it.

The original rounds `coordinate + distance * sin(angle)` up to the next pixel, in double precision.
There sin(180 degrees) is 1.2e-16, which moves a place by one pixel where the coordinate is so small
that the sum does not lose it: a paddle straight down from x = 2 bends to x = 3. Tables therefore
hold the new coordinate for every old one.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lra_fnet.data import drawing

SCALE = 2  # strokes and discs are drawn at this size
DEGREES = 360  # orientations of a first paddle
ONE = 2**30  # weight of a step straight on


class Scene(NamedTuple):
    """The rules that a set is drawn by. Lengths are in pixels, lengths of contours in paddles."""

    window: int  # height and width of an image when it is drawn
    padding: int  # width of the frame that contours avoid
    contour_length: int  # length of the two long contours, at least 2
    distractor_length: int
    num_distractors: int  # at most; a distractor that finds no place is left out
    paddle_length: int
    paddle_thickness: float  # twice its value is an integer
    margins: tuple[int, int]  # half the gap between paddles; each image uses one of the two
    seed_distance: int  # between the first ends of the two contours
    marker_radius: float  # of a disc; twice its value is an integer
    continuity: float  # turns of more than 90 degrees / continuity never happen
    paddle_contrast: float  # brightness of the long contours, relative to snake_contrast
    snake_contrast: float  # brightness of distractors
    rows: tuple[int, int, int]  # train, validation, test
    block: int = 1  # height and width of the squares of drawn pixels whose mean is a pixel

    @property
    def side(self) -> int:
        """Height and width of an image in pixels."""
        return self.window // self.block


class Paddles(NamedTuple):
    """Tables for one setting and margin, with O = 360 + K orientations."""

    half: int  # a footprint reaches this far from its paddle's first end
    images: np.ndarray  # float32 [2, T, 2 half + 1, 2 half + 1]: brightness of the stroke, which
    # starts at the centre, in a long contour and in a distractor; white is 1
    masks: np.ndarray  # uint8 [T, 2 half + 1, 2 half + 1]: the stroke widened by the margin
    boxes: np.ndarray  # int64 [T, 4]: first and last row, first and last column that hold either
    footprint: np.ndarray  # int64 [O]: which of the T to draw
    # Of coordinate c, in rows and in columns: entry c + half, for c of -half .. window + half - 1.
    step: np.ndarray  # int64 [O, 2, window + 2 half]: from one pivot to the next
    head: np.ndarray  # int64 [360, 2, window + 2 half]: from a first paddle's tail to its head
    back: np.ndarray  # int64 [360, 2, window + 2 half]: from that head to the pivot
    second: np.ndarray  # int64 [360, 2, window + 2 half]: from the first tail to the second
    seat: np.ndarray  # int64 [360, F, 2]: pixels that must be free round a first tail, repeated
    usable: np.ndarray  # bool [360]: see `_usable`
    arc: np.ndarray  # int64 [K, 2]: places for the next head, from the pivot
    weights: np.ndarray  # int64 [O, K]: of a place after an orientation, at most ONE
    disc: np.ndarray  # int64 [D, 2]: pixels within the margin


def paddles(setting: Scene, margin: int) -> Paddles:
    """Returns the tables of a setting for one margin.

    An orientation after another has the weight cos^2(min(continuity * turn, 90 degrees)).
    """
    length, thickness = setting.paddle_length, setting.paddle_thickness
    radius = length + margin
    arc = _arc(radius)
    angles = [degrees * math.pi / 180 for degrees in range(-180, DEGREES)]
    seeds, around = angles[:DEGREES], angles[180:]
    onward = [math.atan2(y, x) for y, x in arc]
    back, flipped = (
        [angle + math.pi if angle < 0 else angle - math.pi for angle in some]
        for some in (seeds, onward)
    )
    half = length + math.ceil(thickness) + margin
    # A first paddle runs from its tail to its head, every other from its head to the pivot.
    centre = np.array([SCALE * half])
    ends = _moved(centre, SCALE * length, (*seeds, *flipped))[..., 0] - centre
    ends = [(int(y), int(x)) for y, x in ends]
    kinds = {end: i for i, end in enumerate(sorted(set(ends)))}
    places = np.arange(-half, setting.window + half)
    footprints = [_footprint(end, thickness, margin, half) for end in kinds]
    images, masks = (np.stack(stack) for stack in zip(*footprints, strict=True))
    seats = [_seat(masks[kinds[end]], radius) for end in ends[:DEGREES]]
    most = max(map(len, seats))
    contrasts = (setting.paddle_contrast * setting.snake_contrast, setting.snake_contrast)
    ys, xs = np.mgrid[-margin : margin + 1, -margin : margin + 1]
    return Paddles(
        half=half,
        images=np.stack([(images / 255 * x).astype(np.float32) for x in contrasts]),
        masks=masks,
        boxes=np.array([_box(both) for both in images | masks]),
        footprint=np.array([kinds[end] for end in ends]),
        step=_moved(places, length + 2 * margin, (*seeds, *onward)),
        head=_moved(places, length, seeds),
        back=_moved(places, radius, back),
        second=_moved(places, setting.seed_distance, around, np.rint),
        seat=np.stack([np.resize(pixels, (most, 2)) for pixels in seats]),
        usable=np.array([_usable(pixels) for pixels in seats]),
        arc=np.array(arc),
        weights=np.array(
            [[_weight(setting.continuity, a, b) for b in onward] for a in (*seeds, *onward)],
            np.int64,
        ),
        disc=np.argwhere(ys**2 + xs**2 <= margin**2) - margin,
    )


@functools.cache
def sine_and_cosine(angle: float) -> tuple[float, float]:
    """Returns both, correctly rounded: where places slip depends on their last bit.

    C libraries are only nearly so precise. Sums 100 terms of the series in integers.
    """
    numerator, denominator = angle.as_integer_ratio()
    x = (numerator << 200) // denominator
    sums, term = [0, 0], 1 << 200
    for n in range(100):
        sums[n % 2] += term if n % 4 < 2 else -term
        term = (term * x >> 200) // (n + 1)
    return sums[1] / (1 << 200), sums[0] / (1 << 200)


def _moved(
    places: np.ndarray, distance: float, angles: Sequence[float], rounded: Callable = np.ceil
) -> np.ndarray:
    """Returns where coordinates int64 [C] go by a distance in some directions: int64 [A, 2, C]."""
    ways = distance * np.array([sine_and_cosine(angle) for angle in angles])
    return rounded(places + ways[..., None]).astype(np.int64)


def _arc(radius: int) -> list[tuple[int, int]]:
    """Returns the distinct pixels of a circle, sampled once per pixel of its arc, rounded down."""
    count = math.ceil(2 * math.pi * radius)
    samples = (sine_and_cosine(i / radius) for i in range(count))
    return sorted({(math.floor(radius * y), math.floor(radius * x)) for y, x in samples})


def _weight(continuity: float, last: float, angle: float) -> int:
    turn = abs(angle - last)
    turn = min(turn, 2 * math.pi - turn)
    return round(math.cos(min(continuity * turn, math.pi / 2)) ** 2 * ONE)


def _footprint(
    end: tuple[int, int], thickness: float, margin: int, half: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns stroke and mask, uint8 [2 half + 1, 2 half + 1], of a paddle from the centre.

    Args:
        end: its end, relative to its start, at twice the size.
        thickness: of the stroke, in pixels; twice its value must be an integer.
        margin: pixels by which the mask is wider on all sides.
        half: pixels from the centre to the edge.
    """
    size, centre = 2 * half + 1, SCALE * half
    stroke = drawing.line(2 * centre + 1, (centre, centre), end, round(SCALE * thickness))
    return drawing.reduce(stroke, size), drawing.reduce(
        drawing.dilate(stroke, SCALE * margin), size
    )


def _seat(mask: np.ndarray, radius: int) -> np.ndarray:
    """Returns the pixels [F, 2], relative to a tail, that must be free: those of a full mask.

    The original looks them up one pixel too far down and right, and only within `radius`.
    """
    pixels = np.argwhere(mask == 255) - len(mask) // 2 + 1
    return pixels[(np.abs(pixels) <= radius).all(1)]


def _usable(seat: np.ndarray) -> bool:
    """Returns whether a first paddle of this orientation, with seat [F, 2], can be placed at all.

    It can if, at each corner of the image, a pixel of the seat is inside. Otherwise OpenCV's
    dilation has no pixel to look at there and gives its least number, at which the original finds
    no free pixel in the whole image. That excludes nine of ten orientations at 32 pixels, so that
    most distractors find no place, and none at 128 and 256 pixels.
    """
    y, x = seat.T
    return all((v * y >= 0)[(u * x >= 0)].any() for v in (-1, 1) for u in (-1, 1))


def _box(image: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
    return [int(i) for i in (rows[0], rows[-1], columns[0], columns[-1])]
