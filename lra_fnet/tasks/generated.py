"""Generated rows: random streams in chunks, drawn by threads, the same at any number of them."""

import collections
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from lra_fnet.data.store import SPLITS, Row
from lra_fnet.tasks.task import Raw

SEED = 0
T = TypeVar("T")


def chunks(draw: Callable[[np.ndarray], T], seed: int, jobs: int) -> Iterator[T]:
    """Yields draw(state) of chunk 0, 1, 2 ... without end, in this order.

    Chunk k has its own random stream, whose state uint64 [4] comes from SeedSequence([seed, k]).
    At most `jobs` + 1 chunks are in memory.
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


def raw(rows: Iterator[Row], counts: tuple[int, int, int], version: int) -> Raw:
    """Returns the first rows as train, the next as validation and the next as test.

    Args:
        rows: generated with `SEED`.
        counts: rows of train, validation and test.
        version: of the generator.
    """
    return Raw(
        {split: itertools.islice(rows, count) for split, count in zip(SPLITS, counts, strict=True)},
        details={"generator": version, "seed": SEED},
        total=sum(counts),
    )
