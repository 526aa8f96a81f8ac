"""The child's half of the protocol of `cells.Worker`: lines of JSON on standard input and output.

    the fields of a Cell      facts, after the first calls: {"state": "ok", ...}, {"state": "OOM"},
                              "FAIL" if PyTorch cannot compile it, or "ABSENT" if the machine has
                              fewer devices than the cell
    {"seconds": s}            {"calls": n, "seconds": t}: calls one after another until t >= s
    {"steps": n}              {"loss", "all_reduces"}: n training steps and the last one's loss
    {"roofline": s}           `worker.Side.limits`, measured for s seconds

A mistake of the user is {"mistake": one line}. A call of a mixing sublayer is forward and backward;
its replies also have "forward_calls" and "forward_seconds".

    python -m lra_fnet.benchmark.child worker|peer

Imports neither JAX nor PyTorch: the interpreter may lack one of them.
"""

import functools
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from lra_fnet.errors import RunFailed, UserError
from lra_fnet.machine import allocator, signals

METHODS = {"seconds": "round", "steps": "steps", "roofline": "limits"}  # of a side, by request


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether XLA, PyTorch, NumPy or one of our checks says that memory is too small."""
    signs = ("OutOfMemory", "out of memory", "allocate memory", "RESOURCE_EXHAUSTED")
    text = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or any(sign in text for sign in signs)


def serve(make: Callable[..., Any], lines: Iterator[str], answer: Callable[[dict], None]) -> None:
    """Replies to the parent's lines until there are no more or one fails.

    A request that does not fit into memory leaves the side as it was.

    Args:
      make: builds a side, with `facts` and METHODS, from a cell.
      lines: the parent's.
      answer: sends a reply.
    """
    oom = {"state": "OOM"}

    def fitting(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RunFailed, RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return oom

    try:
        from lra_fnet.benchmark.cells import Cell

        first = next(lines, None)
        if first is None:  # the parent has failed
            return
        side = fitting(lambda: make(Cell(**json.loads(first))))
        if side is oom:
            answer(oom)
            return
        answer(side.facts)
        for line in lines:
            ((request, argument),) = json.loads(line).items()
            answer(fitting(functools.partial(getattr(side, METHODS[request]), argument)))
    except UserError as error:
        answer({"mistake": str(error)})
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        mistake = f"{sys.executable} has no {library}: LRA_FNET_PEER_PYTHON expects a Python with"
        answer({"mistake": f"{mistake} PyTorch, transformers and this package (lra-fnet[peers])"})


def main(module: str) -> None:
    """Serves one cell with the `Side` of a module of this package, "worker" or "peer".

    The output of libraries goes to standard error. A parent that was killed ends its children too,
    and a signal that asks to stop ends a child without a word: the parent has one.
    """
    signals.handle(signal.SIG_DFL)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def make(cell):
        return importlib.import_module(f"lra_fnet.benchmark.{module}").Side(cell)

    try:
        serve(
            make, iter(sys.stdin), lambda reply: print(json.dumps(reply), file=replies, flush=True)
        )
    except BrokenPipeError:  # nobody reads the replies
        os._exit(1)  # without flushing the one that is left


if __name__ == "__main__":
    if sys.argv[1] == "worker":  # a peer does so after its peak is measured
        allocator.keep_freed_memory()  # before any thread allocates, as in a run
    main(sys.argv[1])
