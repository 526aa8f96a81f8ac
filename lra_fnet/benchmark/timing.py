"""How calls are timed."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

CALL_SECONDS = 0.01  # a faster call is repeated, because its dispatch costs time too
REPEATS = 16
RESTLESS = 0.3  # `spread` above which rounds are measured again


def spread(seconds: Sequence[float]) -> float:
    """Returns half the range of the rounds over their median."""
    return (max(seconds) - min(seconds)) / 2 / statistics.median(seconds)


def mean_seconds(call: Callable[[], Any], seconds: float) -> float:
    """Returns the mean seconds of a call, called at least once and until `seconds` have passed.

    Args:
      call: returns when its result is there.
      seconds: time to spend.
    """
    calls, taken, begun = 0, 0.0, time.perf_counter()
    while not calls or taken < seconds:
        call()
        calls, taken = calls + 1, time.perf_counter() - begun
    return taken / calls


def least_seconds(call: Callable[[int], Any], seconds: float) -> float:
    """Returns the least seconds of a repetition, measured for about `seconds`.

    The least counts because a slower call is not a limit of the device.

    Args:
      call: repeats the work as often as its argument says: once, or REPEATS times if it is short.
      seconds: time to spend; there are at least two measurements.
    """

    def once() -> float:
        begun = time.perf_counter()
        call(repeats)
        return (time.perf_counter() - begun) / repeats

    repeats = 1
    once()  # compiles
    repeats = 1 if once() >= CALL_SECONDS else REPEATS
    times, until = [once(), once()], time.perf_counter() + seconds
    while time.perf_counter() < until:
        times.append(once())
    return min(times)
