"""The child process that measures a cell, and how it answers its parent (`turns.Child`).

The first message is a Case, the answer its facts: {"state": "ok", ...}, or {"state": "OOM"}. Each
further message is a number of seconds; the answer has the mean seconds of a call, measured for that
long: {"seconds"}, for a mixing sublayer (forward and backward) also "forward_seconds", and
"floor_seconds" if the products fit next to the program. A mistake of the user is {"mistake": line}.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from lra_fnet.errors import RunFailed, UserError, out_of_memory
from lra_fnet.machine import allocator, signals


def main(pipe: Connection, environment: Mapping[str, str], make: Callable | None) -> None:
    """Serves one cell. JAX is imported after the environment is set.

    Args:
      pipe: to the parent.
      environment: variables to set.
      make: see `serve`; None measures our own programs.

    The output of libraries goes to standard error. A parent that was killed ends its children too,
    and a signal that asks to stop ends a child without a word: the parent has one.
    """
    os.environ.update(environment)
    os.dup2(2, 1)
    signals.handle(signal.SIG_DFL)
    allocator.keep_freed_memory()  # before any thread allocates, as in a run
    if make is None:
        from lra_fnet.benchmark import programs

        make = programs.Measured
    with contextlib.suppress(EOFError, BrokenPipeError):
        serve(pipe, make)


def serve(pipe: Connection, make: Callable[[Any], Any]) -> None:
    """Answers messages until the parent closes the pipe.

    Args:
      pipe: to the parent.
      make: turns a cell into a side, which has `facts` and `round(seconds)`.
    """
    side: Any = None
    while True:
        message = pipe.recv()
        try:
            if side is None:
                side = make(message)
                answer = side.facts
            else:
                answer = side.round(message)
        except UserError as error:
            answer = {"mistake": str(error)}
        except (RunFailed, RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            answer = {"state": "OOM"}
        pipe.send(answer)
