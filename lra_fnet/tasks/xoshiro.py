"""Random numbers inside compiled code: xoshiro256** (Blackman & Vigna, arXiv 1805.01407).

It is written out so that generated rows do not depend on a library's generator.
"""

import numba
import numpy as np


@numba.njit(nogil=True)
def _rotate(x, k):
    return (x << np.uint64(k)) | (x >> np.uint64(64 - k))


@numba.njit(nogil=True)
def next_bits(state):
    """Returns 64 random bits and advances `state`, uint64 [4]."""
    result = _rotate(state[1] * np.uint64(5), 7) * np.uint64(9)
    t = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= t
    state[3] = _rotate(state[3], 45)
    return result


@numba.njit(nogil=True)
def below(bits, n):
    """Returns an integer uniform on 0 .. n - 1 (to 2^-28) from the low 32 of 64 random bits."""
    low = bits & np.uint64(0xFFFFFFFF)
    return np.int64((low * np.uint64(n)) >> np.uint64(32))
