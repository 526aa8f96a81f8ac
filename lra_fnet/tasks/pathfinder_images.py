"""Random Pathfinder images, compiled.

The rules are those of the original generator (D. Linsley and J. Kim, commit ab9c130, snakes2) that
Long-Range Arena used. The tables come from `lra_fnet.tasks.pathfinder_paddles`. All decisions are
made on integers (a mask of 255 is full) with the random numbers of `lra_fnet.data.streams`, so
that the images do not depend on a library's generator.
"""

import numba
import numpy as np

from lra_fnet.data.streams import below, next_bits
from lra_fnet.tasks.pathfinder_paddles import DEGREES, ONE

PADDLE_TRIES = 3  # draws of a paddle's place before its contour fails
DISTRACTOR_TRIES = 5  # draws of a whole distractor before it is left out
FULL = 459  # 1.8 * 255: the masks of two paddles must sum to less in every pixel
FREE = 76  # 0.3 * 255: the greatest mask at which a pixel is free for a first paddle
DEAD_END = 255 * ONE // 10_000  # least sum of weights with which a contour continues
NO_PADDLE = -1


@numba.njit(nogil=True)
def _inside(y, x, window):
    return 0 <= y < window and 0 <= x < window


@numba.njit(nogil=True)
def _moved(table, turn, y, x, half):
    """Returns where a table of `Paddles` moves a place that is at most `half` pixels outside."""
    return table[turn, 0, y + half], table[turn, 1, x + half]


@numba.njit(nogil=True)
def _paste(canvas, shapes, boxes, paddle, half):
    """Paints a paddle (footprint, y, x) where it is brighter than the canvas; the edge cuts it."""
    kind, top, left = paddle[0], paddle[1] - half, paddle[2] - half
    window = canvas.shape[0]
    for i in range(max(boxes[kind, 0], -top), min(boxes[kind, 1], window - 1 - top) + 1):
        for j in range(max(boxes[kind, 2], -left), min(boxes[kind, 3], window - 1 - left) + 1):
            value = shapes[kind, i, j]
            if value > canvas[top + i, left + j]:
                canvas[top + i, left + j] = value


@numba.njit(nogil=True)
def _collides(mask, masks, boxes, paddle, half):
    """Returns whether the mask and a paddle's mask sum to 1.8 or more in any pixel."""
    kind, top, left = paddle[0], paddle[1] - half, paddle[2] - half
    window = mask.shape[0]
    for i in range(max(boxes[kind, 0], -top), min(boxes[kind, 1], window - 1 - top) + 1):
        for j in range(max(boxes[kind, 2], -left), min(boxes[kind, 3], window - 1 - left) + 1):
            if np.int64(mask[top + i, left + j]) + np.int64(masks[kind, i, j]) >= FULL:
                return True
    return False


@numba.njit(nogil=True)
def _first_paddle(paddle, pivot, tables, turn, y, x, window):
    """Puts a first paddle's tail at (y, x). Returns whether its head and pivot are inside."""
    head_y, head_x = _moved(tables.head, turn, y, x, tables.half)
    pivot[0], pivot[1] = _moved(tables.back, turn, head_y, head_x, tables.half)
    pivot[2] = turn
    paddle[0], paddle[1], paddle[2] = tables.footprint[turn], y, x
    return _inside(head_y, head_x, window) and _inside(pivot[0], pivot[1], window)


@numba.njit(nogil=True)
def _extend(state, mask, contour, i, pivot, tables):
    """Adds paddle i to a contour, int64 [length, 3], and returns whether it succeeded.

    `mask` receives the mask of paddle i - 1; `pivot` (y, x, orientation) advances.
    """
    window = mask.shape[0]
    last = pivot[2]
    y, x = _moved(tables.step, last, pivot[0], pivot[1], tables.half)
    places = tables.arc.shape[0]
    sums = np.empty(places, np.int64)
    total = 0
    for k in range(places):
        head_y, head_x = y + tables.arc[k, 0], x + tables.arc[k, 1]
        weight = tables.weights[last, k]
        if weight > 0 and _inside(head_y, head_x, window):
            most = 0
            for d in range(tables.disc.shape[0]):
                near_y, near_x = head_y + tables.disc[d, 0], head_x + tables.disc[d, 1]
                if _inside(near_y, near_x, window):
                    most = max(most, np.int64(mask[near_y, near_x]))
            total += weight * (255 - most)
        sums[k] = total
    if total < DEAD_END:
        return False
    new = contour[i]
    for _ in range(PADDLE_TRIES):
        drawn = np.int64(next_bits(state) % np.uint64(total))
        k = 0
        while sums[k] <= drawn:
            k += 1
        new[0] = tables.footprint[DEGREES + k]
        new[1], new[2] = y + tables.arc[k, 0], x + tables.arc[k, 1]
        if not _collides(mask, tables.masks, tables.boxes, new, tables.half):
            _paste(mask, tables.masks, tables.boxes, contour[i - 1], tables.half)
            pivot[0], pivot[1], pivot[2] = y, x, DEGREES + k
            return True
    return False


@numba.njit(nogil=True)
def _has_room(mask, tables, turn, y, x, border):
    """Returns whether a first paddle can have its tail at (y, x); the border counts as occupied."""
    window = mask.shape[0]
    for i in range(tables.seat.shape[1]):
        v, u = y + tables.seat[turn, i, 0], x + tables.seat[turn, i, 1]
        edge = not _inside(v - border, u - border, window - 2 * border)
        if _inside(v, u, window) and (edge or mask[v, u] > FREE):
            return False
    return True


@numba.njit(nogil=True)
def _draw_tail(state, mask, tables, turn, border):
    """Returns a random pixel with room for a first paddle's tail; (-1, -1) if there is none."""
    low = max(border - tables.half, 0)
    size = mask.shape[0] - 2 * low
    for _ in range(64):  # a few draws usually suffice
        y, x = low + below(next_bits(state), size), low + below(next_bits(state), size)
        if _has_room(mask, tables, turn, y, x, border):
            return y, x
    y, x, count = -1, -1, 0
    for place in range(size * size):
        v, u = low + place // size, low + place % size
        if _has_room(mask, tables, turn, v, u, border):
            count += 1
            if below(next_bits(state), count) == 0:  # of `count` places, each is as likely
                y, x = v, u
    return y, x


@numba.njit(nogil=True)
def _start_anywhere(state, mask, paddle, pivot, tables, border):
    """Puts a first paddle on a random free place inside the border and returns its success."""
    for _ in range(PADDLE_TRIES):
        turn = below(next_bits(state), DEGREES)
        if not tables.usable[turn]:
            return False
        y, x = _draw_tail(state, mask, tables, turn, border)
        if y < 0:
            return False
        if _first_paddle(paddle, pivot, tables, turn, y, x, mask.shape[0]):
            return True
    return False


@numba.njit(nogil=True)
def _two_first_paddles(state, mask, contours, pivot, tables, seed_distance):
    """Puts down the first paddles of contours int64 [2, length, 3]; fills pivot int64 [2, 3].

    The first tail, and all pixels round it that must be free, are at least twice seed_distance from
    every edge. The second tail is at seed_distance from the first, even if pixels there are taken.
    """
    if not _start_anywhere(state, mask, contours[0, 0], pivot[0], tables, 2 * seed_distance):
        return False
    for _ in range(PADDLE_TRIES):
        turn = below(next_bits(state), DEGREES)
        angle = below(next_bits(state), DEGREES)
        y, x = _moved(tables.second, angle, contours[0, 0, 1], contours[0, 0, 2], tables.half)
        if _first_paddle(contours[1, 0], pivot[1], tables, turn, y, x, mask.shape[0]):
            return True
    return False


@numba.njit(nogil=True)
def _two_contours(state, mask, contours, tables, padding, seed_distance):
    """Tries once to draw both long contours, paddle by paddle in turn; returns its success.

    `contours` int64 [2, length, 3] receives the paddles, and `mask` the pixels that they occupy
    except those of the first contour's last paddle, as in the original.
    """
    window = mask.shape[0]
    low, high = padding, window - padding
    for i in range(window):
        for j in range(window):
            mask[i, j] = 0 if low <= i < high and low <= j < high else 255
    pivot = np.empty((2, 3), np.int64)
    if not _two_first_paddles(state, mask, contours, pivot, tables, seed_distance):
        return False
    for i in range(1, contours.shape[1]):
        for k in range(2):
            if not _extend(state, mask, contours[k], i, pivot[k], tables):
                return False
    _paste(mask, tables.masks, tables.boxes, contours[1, -1], tables.half)
    return True


@numba.njit(nogil=True)
def _distractor(state, mask, contour, tables):
    """Tries once to draw one distractor, contour int64 [length, 3]; returns its success.

    A failure leaves `mask` partly changed.
    """
    pivot = np.empty(3, np.int64)
    if not _start_anywhere(state, mask, contour[0], pivot, tables, 1):
        return False
    for i in range(1, contour.shape[0]):
        if not _extend(state, mask, contour, i, pivot, tables):
            return False
    _paste(mask, tables.masks, tables.boxes, contour[-1], tables.half)
    return True


@numba.njit(nogil=True)
def _distractors(state, mask, drawn, tables):
    """Draws the distractors: drawn int64 [number, length, 3].

    A distractor that fails five times is left out. So are all the rest once less than 1 % of the
    mask is free. The rows of missing distractors, at the end, get NO_PADDLE.
    """
    count = 0
    for _ in range(drawn.shape[0]):
        free = 0
        for value in mask.flat:
            free += value <= FREE
        if free * 100 < mask.size:
            break
        before = mask.copy()
        for _ in range(DISTRACTOR_TRIES):
            if _distractor(state, mask, drawn[count], tables):
                count += 1
                break
            for i in range(mask.size):
                mask.flat[i] = before.flat[i]
    for i in range(count, drawn.shape[0]):
        for j in range(drawn.shape[1]):
            drawn[i, j, 0] = NO_PADDLE


@numba.njit(nogil=True)
def _reduced(total):
    """Rounds a fixed-point sum of the filter to 8 bits."""
    return np.uint8(min(max((total + (1 << 21)) >> 22, 0), 255))


@numba.njit(nogil=True)
def draw_disc(canvas, y, x, radius, starts, weights):
    """Paints a disc, drawn at twice the size and reduced, where it is brighter than the canvas.

    Args:
        canvas: float64 [window, window]; white is 1.
        y: row of the centre.
        x: column of the centre.
        radius: pixels of the canvas.
        starts: with `weights`, the filter from twice the window to the window (see `lanczos`).
        weights: see `starts`.
    """
    window, taps = canvas.shape[0], weights.shape[1]
    twice = np.int64(2 * radius)  # the radius at twice the size
    reach = twice // 2 + 4
    first, last = max(2 * y - twice, 0), min(2 * y + twice, 2 * window - 1)
    left, right = max(x - reach, 0), min(x + reach, window - 1)
    rows = np.zeros((last - first + 1, right - left + 1), np.int64)
    for v in range(first, last + 1):
        for j in range(left, right + 1):
            total = 0
            for t in range(taps):
                u = starts[j] + t
                if (v - 2 * y) ** 2 + (u - 2 * x) ** 2 <= twice * twice:
                    total += weights[j, t] * 255
            rows[v - first, j - left] = _reduced(total)
    for i in range(max(y - reach, 0), min(y + reach, window - 1) + 1):
        for j in range(left, right + 1):
            total = 0
            for t in range(taps):
                v = starts[i] + t
                if first <= v <= last:
                    total += weights[i, t] * rows[v - first, j - left]
            canvas[i, j] = max(canvas[i, j], _reduced(total) / 255)


@numba.njit(nogil=True)
def draw_images(state, number, setting, tables, starts, weights):
    """Draws images and labels.

    Args:
        state: uint64 [4], of the random numbers; advances.
        number: number of images.
        setting: `lra_fnet.tasks.pathfinder_paddles.Scene`.
        tables: two `Paddles`, one for each of the setting's margins.
        starts: int64 [window]; with `weights`, the filter that reduces discs.
        weights: int64 [window, taps].

    Returns:
        images uint8 [number, window * window]; labels uint8 [number], 1 if both discs mark the same
        contour; paddles int64 [number, P, 3] (footprint, y, x), the two long contours first,
        NO_PADDLE for missing distractors; choices int64 [number, 2]: which of the margins, and the
        contour whose first end is marked.
    """
    window, length = setting.window, setting.contour_length
    targets = 2 * length
    num_paddles = targets + setting.num_distractors * setting.distractor_length
    images = np.empty((number, window * window), np.uint8)
    labels = np.empty(number, np.uint8)
    paddles = np.empty((number, num_paddles, 3), np.int64)
    choices = np.zeros((number, 2), np.int64)
    mask = np.empty((window, window), np.uint8)
    for n in range(number):
        labels[n] = next_bits(state) >> np.uint64(63)
        choices[n, 0] = np.int64(next_bits(state) >> np.uint64(63))
        table = tables[choices[n, 0]]
        contours = paddles[n, :targets].reshape(2, length, 3)
        while not _two_contours(
            state, mask, contours, table, setting.padding, setting.seed_distance
        ):
            pass
        rest = paddles[n, targets:].reshape(setting.num_distractors, setting.distractor_length, 3)
        _distractors(state, mask, rest, table)
        canvas = np.zeros((window, window))
        for i in range(num_paddles):
            if paddles[n, i, 0] != NO_PADDLE:
                bright = table.images[np.int64(i >= targets)]
                _paste(canvas, bright, table.boxes, paddles[n, i], table.half)
        choices[n, 1] = marked = np.int64(next_bits(state) >> np.uint64(63))
        other = marked if labels[n] else 1 - marked
        for tip in (contours[marked, 0], contours[other, length - 1]):
            draw_disc(canvas, tip[1], tip[2], setting.marker_radius, starts, weights)
        low = canvas.min()
        scale = 255.0 / (canvas.max() - low)  # stretches the range to 0 .. 255
        for i in range(canvas.size):
            images[n, i] = np.uint8((canvas.flat[i] - low) * scale + 0.5)
    return images, labels, paddles, choices
