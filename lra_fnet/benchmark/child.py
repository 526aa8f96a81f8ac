"""The protocol of every process that measures: one line of JSON each way.

    the fields of a cell            its `facts`, once it is built, compiled and warm
    {"method": {"name": value}}     what that method returns

A request that cannot be met has the reply {"mistake": one line} or {"state": "OOM"}. This module
needs the standard library only: the side of PyTorch imports it before anything else.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lra_fnet.errors import UserError

Outcome = Callable[[Exception], dict[str, Any] | None]


def replies(make: Callable[..., Any], lines: Iterable[str], outcome: Outcome) -> Iterator[dict]:
    """Yields the reply to each request, up to the first that cannot be met.

    Args:
      make: called with the fields of the first request; its value has the attribute `facts` and
        the methods that later requests name.
      lines: the requests.
      outcome: the reply for an exception that is a result, such as running out of memory; None
        for one that is a bug, which is raised.
    """
    requests = map(json.loads, lines)
    try:
        side = make(**next(requests))
        yield side.facts
        for request in requests:
            ((method, arguments),) = request.items()
            yield getattr(side, method)(**arguments)
    except UserError as error:
        yield {"mistake": str(error)}
    except Exception as error:
        reply = outcome(error)
        if reply is None:
            raise
        yield reply


def serve(make: Callable[..., Any], outcome: Outcome) -> None:
    """Answers the parent on standard output; prints of libraries go to standard error."""
    parent = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for reply in replies(make, sys.stdin, outcome):
        print(json.dumps(reply), file=parent, flush=True)


class Child:
    """A process that serves; close it after use."""

    def __init__(
        self, name: str, module: str, python: str = sys.executable, env: Mapping[str, str] = {}
    ):
        """Starts `python -m lra_fnet.benchmark.<module>`; `name` is for the error message."""
        self._name = name
        self._process = subprocess.Popen(
            [python, "-m", f"lra_fnet.benchmark.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | env,
        )

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request; returns the reply, or {"state": "OOM"} if the kernel killed the child.

        Raises:
          UserError: the child reports a mistake, or has failed with a traceback.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line and self._process.wait() == -signal.SIGKILL:  # the kernel, for memory
            return {"state": "OOM"}
        reply = json.loads(line or f'{{"mistake": "{self._name} cannot be measured: see above"}}')
        if "mistake" in reply:
            raise UserError(reply["mistake"])
        return reply

    def close(self) -> None:
        """Closes the child's input, which ends it, and waits for its end."""
        with self._process:
            pass
