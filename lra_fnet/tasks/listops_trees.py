"""Random ListOps trees, compiled.

The grammar is that of the Long-Range Arena (arXiv 2011.04006, Sec. 2.2; its generator at commit
cd31e5c, after Nangia & Bowman, arXiv 1804.06028). Tokens are values 0-14: digits 0-9, then
[MIN [MAX [MED [SM and ] (`lra_fnet.tasks.listops.TOKENS`).
"""

import numba
import numpy as np

from lra_fnet.data.streams import below, next_bits

MAX_DEPTH = 10  # the root has depth 1; a node at MAX_DEPTH is a leaf
MAX_ARGS = 10  # an operator has 2 .. MAX_ARGS arguments
MIN, MAX, SM, CLOSE = 10, 11, 13, 14


@numba.njit(nogil=True)
def _apply(op, counts):
    """Returns an operator's value from the histogram of its arguments, counts int64 [10]."""
    n, total, smallest, largest = 0, 0, 9, 0
    for digit in range(10):
        if counts[digit]:
            n += counts[digit]
            total += digit * counts[digit]
            smallest = min(smallest, digit)
            largest = digit
    if op == MIN:
        return smallest
    if op == MAX:
        return largest
    if op == SM:
        return total % 10
    seen, lower, upper = 0, -1, -1  # MED: the two middle digits; the same digit if n is odd
    for digit in range(10):
        seen += counts[digit]
        if lower < 0 and seen > (n - 1) // 2:
            lower = digit
        if upper < 0 and seen > n // 2:
            upper = digit
    return (lower + upper) // 2  # the integer part of the median


@numba.njit(nogil=True)
def _draw_tree(state, out, longest):
    """Draws one tree into `out`. Returns (tokens, value), or (0, 0) if it exceeds `longest`.

    Each node uses one 64-bit number. The top two bits choose a leaf (3 of 4) or an operator, the
    next two bits the operator, and the low 32 bits the digit or the number of arguments.
    """
    op = np.empty(MAX_DEPTH + 1, np.int64)
    left = np.empty(MAX_DEPTH + 1, np.int64)  # arguments still to come
    counts = np.empty((MAX_DEPTH + 1, 10), np.int64)  # digits among the arguments so far
    depth, size = 1, 0
    needed = 1  # least number of tokens of the tree; exact when it is complete
    while True:
        bits = next_bits(state)
        if depth < MAX_DEPTH and bits >> np.uint64(62) == 0:
            num_args = 2 + below(bits, MAX_ARGS - 1)
            needed += num_args + 1
            if needed > longest:
                return 0, 0
            op[depth] = MIN + np.int64((bits >> np.uint64(60)) & np.uint64(3))
            left[depth] = num_args
            counts[depth] = 0
            out[size] = op[depth]
            size += 1
            depth += 1
            continue
        value = below(bits, 10)
        out[size] = value
        size += 1
        while depth > 1:  # pass the value to the operator above; close it if it is complete
            counts[depth - 1, value] += 1
            left[depth - 1] -= 1
            if left[depth - 1]:
                break
            depth -= 1
            value = _apply(op[depth], counts[depth])
            out[size] = CLOSE
            size += 1
        if depth == 1:
            return size, value


@numba.njit(nogil=True)
def draw_trees(state, num_trees, shortest, longest):
    """Draws trees until `num_trees` have `shortest` to `longest` tokens; others are dropped.

    A tree is abandoned as soon as it is certain to be too long.

    Returns:
        values uint8 [sum of lengths], ends int64 [num_trees] (where each tree ends in values),
        labels int64 [num_trees], and the number of trees begun.
    """
    values = np.empty(num_trees * longest, np.uint8)
    ends = np.empty(num_trees, np.int64)
    labels = np.empty(num_trees, np.int64)
    done, end, roots = 0, 0, 0
    while done < num_trees:
        roots += 1
        size, label = _draw_tree(state, values[end:], longest)
        if size >= shortest:
            end += size
            ends[done] = end
            labels[done] = label
            done += 1
    return values[:end].copy(), ends, labels, roots
