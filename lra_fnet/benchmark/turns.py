"""Each case is measured by one child process, in turn with the cases it is compared with."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from lra_fnet.benchmark import child
from lra_fnet.benchmark.case import Case
from lra_fnet.benchmark.files import Result
from lra_fnet.benchmark.timing import RESTLESS, spread
from lra_fnet.errors import UserError
from lra_fnet.machine import progress, typed_json

ATTEMPTS = 3  # measurements of a group
CORES = 4  # for each child that compiles: as many compile at once as have these
PAUSE = 0.3  # seconds between turns, in which the threads of the previous child stop spinning
ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several children share a GPU
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # compilation is timed, and its memory counted
}


class Child:
    """A process that measures a cell, and its measurements so far; close it after use.

    Args:
      cell: the measured cell.
      make: see `child.serve`; None measures our own programs.

    Attributes:
      cell: the measured cell.
      facts: the child's, with the present "state", see `child`.
      rounds: lists with one entry for each round: "seconds" a call, for mixing also
        "forward_seconds", and "floor_seconds".
    """

    def __init__(self, cell: Case, make: Callable | None = None):
        self.cell = cell
        self.facts: dict[str, Any] = {"state": "ok"}
        self.rounds: dict[str, list[float]] = defaultdict(list)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        environment = ENVIRONMENT | _devices(cell.devices)
        self._process = context.Process(target=child.main, args=(theirs, environment, make))
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Makes the child build, compile and warm up.

        Raises:
          UserError: the cell cannot be measured, or the child fails with a traceback.
        """
        self.facts |= self.ask(self.cell)

    def round(self) -> None:
        """Adds a measurement of each kind."""
        reply = self.ask(self.cell.seconds)
        self.facts["state"] = reply.pop("state", "ok")
        for kind, seconds in reply.items():
            self.rounds[kind].append(seconds)

    def pop(self) -> dict[str, list[float]]:
        """Returns the measurements of all rounds, and forgets them."""
        rounds, self.rounds = self.rounds, defaultdict(list)
        return rounds

    def result(self, rounds: dict[str, list[float]]) -> Result:
        """Returns what came of the cell, with these rounds."""
        # The cell's own "seconds" are those to spend in a round.
        value = {**dataclasses.asdict(self.cell), **self.facts, "seconds": (), **rounds}
        return typed_json.build(Result, json.loads(json.dumps(value)), self.cell.label)

    def close(self) -> None:
        """Closes the pipe, which ends the child, and waits for its end."""
        self._pipe.close()
        self._process.join()

    def ask(self, message: Any) -> dict[str, Any]:
        """Sends a message to the child and returns its answer.

        Raises:
          UserError: the child reports a mistake, or fails with a traceback.
        """
        try:
            self._pipe.send(message)
            reply = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            if self._process.exitcode == -signal.SIGKILL:  # the kernel, for memory
                return {"state": "OOM"}
            name = f"{self.cell.model} at {self.cell.length} tokens"
            reply = {"mistake": f"{name} cannot be measured: see above"}
        if "mistake" in reply:
            raise UserError(reply["mistake"])
        return reply


def _devices(number: int) -> dict[str, str]:
    """Returns the environment in which a process sees that many GPUs; `device.use` is for CPUs."""
    if not number:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(number))))
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[:number])}


def run(
    cells: Sequence[Case],
    rounds: int,
    save: Callable[[list[Result]], None],
    start: Callable[[Case], Child] = Child,
) -> list[Result]:
    """Returns what comes of the cells; those with the same program, size and length take turns.

    Args:
      cells: those to measure.
      rounds: number of measurements of each.
      save: called with all results so far after each group that took turns.
      start: starts the process of a cell.

    Raises:
      UserError: a cell cannot be built; the results before it have been saved.
    """

    def group_of(cell):
        return (cell.what, cell.size, cell.length)

    results: list[Result] = []
    with progress.Bar("measuring", len(cells), unit="cells") as bar:
        for _, cells_in_turn in itertools.groupby(sorted(cells, key=group_of), group_of):
            group = list(cells_in_turn)
            measured = _in_turn(group, rounds, start)
            for index, cell in enumerate(group):
                if measured[index].state == "OOM" and len(group) > 1:
                    alone = _in_turn([cell], rounds, start)[0]
                    measured[index] = dataclasses.replace(alone, alone=True)
            results += measured
            save(results)
            bar.update(len(results))
    return results


def _in_turn(group: Sequence[Case], rounds: int, start: Callable[[Case], Child]) -> list[Result]:
    """Measures a group round by round, again if the rounds of a cell differ too much.

    All its cells are measured again, since speed-ups are ratios within a round; the calmest of
    ATTEMPTS counts.
    """

    def worst(attempt: Sequence[dict[str, list[float]]]) -> float:
        return max((spread(timed["seconds"]) for timed in attempt if "seconds" in timed), default=0)

    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(contextlib.closing(start(cell))) for cell in group]
        at_once = max(1, len(os.sched_getaffinity(0)) // CORES)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda one: one.ready(), children))
        attempts = []
        while len(attempts) < ATTEMPTS and (not attempts or worst(attempts[-1]) > RESTLESS):
            for number in range(rounds):
                first = number % len(children)
                for one in children[first:] + children[:first]:
                    if one.facts["state"] == "ok":
                        time.sleep(PAUSE)
                        one.round()
            attempts.append([one.pop() for one in children])
        calmest = min(attempts, key=worst)
        return [one.result(timed) for one, timed in zip(children, calmest, strict=True)]
