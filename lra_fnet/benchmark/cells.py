"""Cells: each is measured by one child process, in turn with the cells it is compared with."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lra_fnet import experiment
from lra_fnet.benchmark import child
from lra_fnet.benchmark.files import Result, Setting
from lra_fnet.benchmark.timing import RESTLESS, spread
from lra_fnet.errors import UserError
from lra_fnet.machine import progress, typed_json

ATTEMPTS = 3  # measurements of a group
CORES = 4  # for each child that compiles: as many compile at once as have these
PAUSE = 0.3  # seconds between turns, in which the threads of the previous child stop spinning
SIZES = {"base": (768, 12), "large": (1024, 16)}  # width and heads: arXiv:2105.03824, Table 6
ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several children share a GPU
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # compilation is timed, and its memory counted
}
_SHARED = re.compile(r"(.*[./])?Run\.batch_size|MAX_LEN")  # settings that rows may not differ in
MIXING_LENGTH = 512  # tokens: arXiv:2105.03824, Table 8
ACCELERATOR_BATCH = 64  # examples, for the mixing sublayer on a GPU: arXiv:2105.03824, Table 8


@dataclasses.dataclass(frozen=True)
class Cell(Setting):
    """One configuration, measured by one process."""

    size: str = ""
    cls: bool = False
    label: str = ""
    seconds: float = 2.0  # per round

    def load(self, accelerator: bool = False) -> experiment.Experiment:
        """Returns the experiment at exactly this length and number of tokens.

        Args:
          accelerator: whether the device is not a CPU; `size` then implies the paper's batch,
            unless `tokens` gives another.

        Raises:
          UserError: see experiment.load; or an override changes the length or the tokens.
        """
        bindings = [f"MAX_LEN={self.length - self.cls}", "Run.steps_per_dispatch=2"]
        bindings += ["Encoder.pooling=cls"] if self.cls else []
        rows = 0
        if self.tokens:
            rows = max(1, self.tokens // (self.length - self.cls))
            bindings += [f"Run.batch_size={rows}"]
        if self.size:
            dim, num_heads = SIZES[self.size]
            bindings += [f"Encoder.{field}={dim}" for field in ("dim", "qkv_dim")]
            bindings += [f"Encoder.num_heads={num_heads}"]
            paper = accelerator and not self.tokens
            bindings += [f"Run.batch_size={ACCELERATOR_BATCH}"] if paper else []
        load = functools.partial(
            experiment.load,
            self.task,
            self.model,
            self.preset,
            imports=self.imports,
            gin_dirs=[Path(folder) for folder in self.gin_dirs],
            denoise=self.what == "pretrain",
        )
        built = load((*bindings, *self.overrides))
        if built.model.encoder.mixer_length > self.length:  # the preset puts CLS in front
            bindings += ["Encoder.pooling=mean"]
            built = load((*bindings, *self.overrides))
        if built.model.encoder.mixer_length != self.length:
            raise UserError(
                "--lengths and --cls decide what is measured, and --set changes it from "
                f"{self.length} to {built.model.encoder.mixer_length} tokens: leave MAX_LEN and "
                "Encoder.pooling out of --set"
            )
        if rows and built.run.batch_size != rows:
            raise UserError(
                f"--tokens {self.tokens} means {rows} rows of {self.length} tokens, and --set "
                f"gives {built.run.batch_size}: leave one of them out"
            )
        return built


def sizes(built: experiment.Experiment) -> dict[str, Any]:
    """Returns the facts of a side that depend on the experiment and the process only."""
    encoder = built.model.encoder
    return {
        "batch_size": built.run.batch_size,
        **{name: getattr(encoder, name) for name in ("dim", "num_layers", "dtype")},
        "threads": len(os.sched_getaffinity(0)),
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

    def __init__(self, cell: Cell, make: Callable | None = None):
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
    """Returns the environment in which a process sees that many devices."""
    if not number:
        return {}
    flag = f"--xla_force_host_platform_device_count={number}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(number))))
    return {
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip(),
        "CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[:number]),
    }


def plan(
    shared: Cell,
    models: Sequence[str],
    whats: Sequence[str],
    lengths: Sequence[int],
    *,
    cls: bool = False,
    devices: Sequence[int] = (),
) -> list[Cell]:
    """Returns the cells of the tables; each of them can be built.

    Args:
      shared: the settings that all cells share.
      models: names; NAME:BINDING is a separate row for the model with one more binding. A word that
        comes twice counts once.
      whats: some of `benchmark.WHATS`.
      lengths: tokens, each once; mixing has the paper's length if there are none, and the others
        need one.
      cls: also measures each length with CLS in front, L + 1.
      devices: numbers of devices, each a separate row; none uses the machine's.

    Raises:
      UserError: a model or binding is unknown, the binding of a row is one of the batch or the
        length, or a length does not divide the tokens.
    """
    if min(lengths, default=1) < 1:
        raise UserError(f"--lengths expects positive numbers, got {min(lengths)}")
    if unequal := [length for length in lengths or [MIXING_LENGTH] if shared.tokens % length]:
        raise UserError(
            f"--tokens expects a multiple of every length, so that all batches have as many, got "
            f"{shared.tokens} and the length {unequal[0]}"
        )
    places = {length + 1: True for length in lengths if cls} | dict.fromkeys(lengths, False)
    cells = []
    rows = itertools.product(whats, _labels(models).items(), devices or [shared.devices])
    for what, ((model, binding), label), number in rows:
        row = dataclasses.replace(
            shared,
            what=what,
            model=model,
            overrides=(*shared.overrides, *filter(None, [binding])),
            label=f"{label}, {number} device{'s' * (number > 1)}" if number else label,
            devices=number,
        )
        sides = ["ours", *["definition"] * (what == "mixing" and model == "fnet" and not binding)]
        for (length, has_cls), size in itertools.product(
            sorted(places.items()) or [(MIXING_LENGTH, False)],
            SIZES if what == "mixing" else [""],
        ):
            cell = dataclasses.replace(row, length=length, cls=has_cls, size=size)
            cell.load()  # reports a mistake now, not after an hour
            cells += [dataclasses.replace(cell, side=side) for side in sides]
    return cells


def _labels(models: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns the label of each row, by model and binding: NAME, or NAME (value of the binding).

    Rows whose labels would be equal show the whole binding.

    Raises:
      UserError: a binding is of the batch or the length.
    """
    labels = {}
    for model, _, binding in (word.partition(":") for word in models):
        name, _, value = binding.partition("=")
        if _SHARED.fullmatch(name.strip()):
            raise UserError(
                f"--models {model}:{binding}: expected a binding of the model, got one of the "
                "batch or the length, which all rows share: give --set, --tokens or --lengths"
            )
        labels[model, binding] = f"{model} ({value or binding})" if binding else model
    often = Counter(labels.values())
    return {
        row: f"{row[0]} ({row[1]})" if often[label] > 1 else label for row, label in labels.items()
    }


def run(
    cells: Sequence[Cell],
    rounds: int,
    save: Callable[[list[Result]], None],
    start: Callable[[Cell], Child] = Child,
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


def _in_turn(group: Sequence[Cell], rounds: int, start: Callable[[Cell], Child]) -> list[Result]:
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
