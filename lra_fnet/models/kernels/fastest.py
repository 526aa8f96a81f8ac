"""Chooses the fastest of several equivalent functions on this device, and remembers the choice.

The candidates are equal up to rounding, so a resumed run must take the same ones: `decisions`
collects what was chosen while programs were built, and imposes it again.
"""

import contextlib
import contextvars
import functools
import json
import math
import os
import statistics
import timeit
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk

# A candidate replaces the usual one only if it is this many times as fast; noise must not decide.
MARGIN = 1.2
ROUNDS = 5
HOPELESS = 3.0  # candidates this many times slower than the fastest in round one are dropped


_made: contextvars.ContextVar[dict | None] = contextvars.ContextVar("made", default=None)


@contextlib.contextmanager
def decisions(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Imposes the decisions in `made` on programs that are traced in the block, and adds theirs.

    Args:
      made: a JSON object, as in run.json and result.json; changed in place.
    """
    token = _made.set(made)
    try:
        yield made
    finally:
        _made.reset(token)


def made() -> dict[str, Any]:
    """Returns the decisions that the surrounding block of `decisions` has made so far."""
    return dict(_made.get() or {})


def decide(what: str, choose: Callable[[], Any]) -> Any:
    """Returns the decision that was made about `what` on this kind of device, or else makes it.

    Args:
      what: the subject, with all that the choice depends on but the machine.
      choose: returns a JSON value; not called if the decision is given (see `decisions`).
    """
    made = _made.get()
    if made is None:
        return choose()
    what = f"{what} on {jax.default_backend()}"
    if what not in made:
        made[what] = choose()
    return made[what]


def measured(candidates, shape) -> dict[str, float]:
    """Measures the seconds per call; adds nothing to a program that is being traced."""
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    # Lowered outside of the block below, in which a matrix would be a constant of the program:
    # those of 4,000 positions took XLA longer than all else. jax keeps the constants of a traced
    # function as long as the function: one made here goes.
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    calls = {n: jax.jit(lambda x, f=f: f(x)).lower(like).compile() for n, f in candidates.items()}
    with jax.ensure_compile_time_eval():
        x = jax.device_put(x)
        for call in calls.values():
            jax.block_until_ready(call(x))
        times = {name: [_seconds(call, x)] for name, call in calls.items()}
        least = min(first for (first,) in times.values())
        for _ in range(ROUNDS - 1):
            for name, call in calls.items():
                if times[name][0] <= HOPELESS * least:
                    times[name].append(_seconds(call, x))
    return {name: statistics.median(rounds) for name, rounds in times.items()}


def _seconds(call, x) -> float:
    return timeit.timeit(lambda: jax.block_until_ready(call(x)), number=1)


def fastest(
    what: str,
    candidates: Mapping[str, Callable],
    shape: tuple[int, ...],
    usual: str,
    measure: Callable[..., dict[str, float]] = measured,
) -> str:
    """Returns the name of the candidate that takes the least time on the default device.

    The candidates are timed in turn, by medians of five rounds, on random float32 inputs of
    `shape`, with fewer rows on the first axis if it is large. The times are kept in the user's
    cache folder for this device, number of cores, version of jax and shape; if it cannot be
    written, they hold for this process. With several processes, which must run the same program,
    nothing is measured and the choice is `usual`.

    Args:
      what: name of the group of candidates in the file.
      candidates: functions of one array, by name, that are equal up to rounding.
      shape: of the input.
      usual: the candidate to return unless another is at least 1.2 times as fast.
      measure: returns the seconds of candidates, by name, at a shape.
    """
    if jax.process_count() > 1:
        return usual
    size = 1 << (21 if jax.default_backend() == "cpu" else 26)  # most entries of a timed input
    rows = min(shape[0], max(1, size // math.prod(shape[1:])))
    device = jax.local_devices()[0]
    place = f"{device.device_kind}, {len(os.sched_getaffinity(0))} cores, jax {jax.__version__}"
    key = f"{what} {'x'.join(map(str, (rows, *shape[1:])))} on {place}"
    return _kept(key, tuple(candidates.items()), (rows, *shape[1:]), usual, measure)


@functools.cache
def _kept(key, candidates, shape, usual, measure):
    path = disk.user_cache() / "choices.json"
    table = {}
    with contextlib.suppress(UserError):  # it is damaged
        table = disk.read_json(path) or {}
    seconds = table.get(key)
    if not isinstance(seconds, dict) or set(seconds) != {name for name, _ in candidates}:
        seconds = measure(dict(candidates), shape)
        with contextlib.suppress(OSError):  # the next process measures again
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(table | {key: seconds}, indent=1, sort_keys=True)
            disk.replace(path, text + "\n")
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[usual] >= MARGIN * seconds[best] else usual
