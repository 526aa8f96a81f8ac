"""Random numbers inside compiled code: xoshiro256** (Blackman & Vigna, arXiv 1805.01407).

It is written out so that generated rows do not depend on a library's generator. Rows are drawn in
chunks by threads and are the same with any number of them.
"""

import collections
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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


def chunks(draw: Callable[[np.ndarray], Any], seed: int, jobs: int) -> Iterator[Any]:
    """Yields draw(state) of chunk 0, 1, 2 ... without end, in this order.

    Chunk k has its own random stream, whose state uint64 [4] comes from SeedSequence([seed, k]).
    At most `jobs` + 1 chunks are in memory; `jobs` threads draw them.
    """
    with ThreadPoolExecutor(jobs) as pool:

        def start(chunk):
            state = np.random.SeedSequence([seed, chunk]).generate_state(4, np.uint64)
            return pool.submit(draw, state)

        waiting = collections.deque(start(chunk) for chunk in range(jobs + 1))
        for chunk in itertools.count(jobs + 1):
            result = waiting.popleft().result()
            waiting.append(start(chunk))
            yield result
