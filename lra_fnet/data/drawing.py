"""Strokes and reductions of small images, as in Pillow and OpenCV.

They are written out here so that generated images do not depend on a library's version.
"""

import itertools
import math

import numpy as np

_BITS = 22  # binary places of a filter's weights, as in Pillow's resampling of 8-bit images


def line(size: int, start: tuple[int, int], end: tuple[int, int], width: int) -> np.ndarray:
    """Draws a stroke as Pillow's ImageDraw.line does: uint8 [size, size], 0 or 255.

    Args:
        size: of the image, which must contain the whole stroke.
        start: (y, x) of its start.
        end: (y, x) of its end, relative to the start.
        width: pixels; 1 is Bresenham's line, more is a filled rectangle with rounded corners.
    """
    image = np.zeros((size, size), np.uint8)
    (y, x), (dy, dx) = start, end
    if width == 1 or end == (0, 0):
        steps = max(abs(dy), abs(dx), 1)
        # Places 0 .. steps along both axes; halves are rounded away from the start.
        place = np.arange(max(abs(dy), abs(dx)) + 1)
        down, right = ((2 * abs(d) * place + steps) // (2 * steps) for d in end)
        image[y + np.sign(dy) * down, x + np.sign(dx) * right] = 255
        return image
    more, less = (width // 2, (width - 1) // 2)  # on the two sides of the line
    length = math.hypot(dy, dx)
    # Halves are rounded towards zero across, and away from it up and down.
    left, right = (round(math.nextafter(n / length * dy, 0)) for n in (less, more))
    away = math.copysign(math.inf, dx)
    above, below = (round(math.nextafter(n / length * dx, away)) for n in (less, more))
    corners = [
        (y + below, x - left),
        (y + dy + below, x + dx - left),
        (y + dy - above, x + dx + right),
        (y - above, x + right),
    ]
    for row in range(min(corners)[0], max(corners)[0] + 1):
        crossings = []
        for (y0, x0), (y1, x1) in itertools.pairwise((*corners, corners[0])):
            if y0 == y1 == row:
                crossings += [x0, x1]
            elif min(y0, y1) <= row <= max(y0, y1) and y0 != y1:
                crossings.append(x0 + (row - y0) * (x1 - x0) / (y1 - y0))
        first, last = math.floor(min(crossings) + 0.5), math.ceil(max(crossings) - 0.5)
        image[row, first : last + 1] = 255
    return image


def dilate(image: np.ndarray, radius: int) -> np.ndarray:
    """Returns the greatest value within `radius` of each pixel; image uint8 [size, size]."""
    from scipy import ndimage  # late: only generating needs it

    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return ndimage.grey_dilation(image, footprint=y**2 + x**2 <= radius**2, mode="constant")


def lanczos(size: int, reduced: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns Lanczos' filter (three lobes) from `size` to `reduced` pixels, in fixed point.

    Returns:
        starts int64 [reduced] and weights int64 [reduced, taps], which sum to about 2^22. A reduced
        pixel is the sum of weights[i, j] * pixels[starts[i] + j], divided by 2^22 (halves are
        rounded up) and clipped to 0 .. 255. Weights beyond the last pixel are 0.
    """
    scale = size / reduced
    centres = (np.arange(reduced)[:, None] + 0.5) * scale
    starts = np.maximum((centres - 3 * scale + 0.5).astype(np.int64), 0)
    places = starts + np.arange(math.ceil(3 * scale) * 2 + 1)
    inside = places < np.minimum((centres + 3 * scale + 0.5).astype(np.int64), size)
    x = (places - centres + 0.5) / scale
    values = np.where(inside & (x >= -3) & (x < 3), np.sinc(x) * np.sinc(x / 3), 0)
    weights = values / values.sum(1, keepdims=True) * 2**_BITS
    rounded = np.trunc(weights + np.copysign(0.5, weights))  # halves away from zero
    return starts[:, 0], rounded.astype(np.int64)


def reduce(image: np.ndarray, size: int) -> np.ndarray:
    """Reduces a square image to uint8 [size, size], as Pillow's resize with LANCZOS."""
    starts, weights = lanczos(len(image), size)
    index = np.minimum(starts[:, None] + np.arange(weights.shape[1]), len(image) - 1)
    for _ in range(2):  # along the rows; then, transposed, along the columns
        total = (image.astype(np.int64)[:, index] * weights).sum(-1)
        image = np.clip((total + 2 ** (_BITS - 1)) >> _BITS, 0, 255).astype(np.uint8).T
    return image
