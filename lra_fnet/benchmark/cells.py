"""Cells: each is measured by one child process, in turn with the cells it is compared with."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lra_fnet import experiment
from lra_fnet.benchmark.files import Result, Setting
from lra_fnet.benchmark.timing import RESTLESS, spread
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress, typed_json
from lra_fnet.run import job as jobs

ATTEMPTS = 3  # measurements of a group
CORES = 4  # for each child that compiles: as many compile at once as have these
PAUSE = 0.3  # seconds between turns, in which the threads of the previous side stop spinning
PEER_PYTHON = "LRA_FNET_PEER_PYTHON"  # the interpreter that has PyTorch
PEERS = ("eager", "compiled", "torch")  # sides that PyTorch computes
SIZES = {"base": (768, 12), "large": (1024, 16)}  # width and heads: arXiv:2105.03824, Table 6
ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several children share a GPU
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # compilation is timed, and its memory counted
}
PEER_MODELS = ("fnet", "transformer")  # PyTorch has FNet and BERT
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


class Worker:
    """A child process and its measurements so far; close it after use.

    Attributes:
      cell: the measured cell.
      facts: the child's, with the present "state", see `child`.
      rounds: lists with one entry for each round: "seconds" a call, for mixing also
        "forward_seconds", and "roofline", the limits of a call.
    """

    def __init__(self, cell: Cell):
        self.cell = cell
        self.facts: dict[str, Any] = {"state": "ok"}
        self.rounds: dict[str, list[Any]] = defaultdict(list)
        python, module = sys.executable, "worker"
        if cell.side in PEERS:
            python, module = os.environ.get(PEER_PYTHON, sys.executable), "peer"
        self._process = subprocess.Popen(
            [python, "-m", "lra_fnet.benchmark.child", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT | _devices(cell.devices),
        )

    def ready(self) -> None:
        """Makes the child build, compile and warm up.

        Raises:
          UserError: the cell cannot be measured, or the child fails with a traceback.
        """
        self.facts |= self.ask(dataclasses.asdict(self.cell))

    def round(self) -> None:
        """Adds a measurement of each kind: of the programs and of their limits.

        Limits that do not fit into memory are empty.
        """
        reply = self.ask({"seconds": self.cell.seconds})
        self.facts["state"] = reply.get("state", "ok")
        for kind in ("", "forward_"):
            if f"{kind}calls" in reply:
                a_call = reply[f"{kind}seconds"] / reply[f"{kind}calls"]
                self.rounds[f"{kind}seconds"].append(a_call)
        if self.cell.side == "ours" and self.facts["state"] == "ok":
            limits = self.ask({"roofline": self.cell.seconds})
            self.rounds["roofline"].append({} if "state" in limits else limits)

    def pop(self) -> dict[str, list[Any]]:
        """Returns the measurements of all rounds, and forgets them."""
        rounds, self.rounds = self.rounds, defaultdict(list)
        return rounds

    def result(self, rounds: dict[str, list[Any]]) -> Result:
        """Returns what came of the cell, with these rounds."""
        # The cell's own "seconds" are those to spend in a round.
        value = {**dataclasses.asdict(self.cell), **self.facts, "seconds": (), **rounds}
        return typed_json.build(Result, json.loads(json.dumps(value)), self.cell.label)

    def close(self) -> None:
        """Closes the child's input, which ends it, and waits for its end."""
        with self._process:
            pass

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one line to the child and returns its reply.

        Raises:
          UserError: the child reports a mistake, or fails with a traceback.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            reply = json.loads(self._process.stdout.readline() or "{}")
        except BrokenPipeError:
            reply = {}
        if not reply and self._process.wait() == -signal.SIGKILL:  # the kernel, for memory
            reply = {"state": "OOM"}
        if not reply or "mistake" in reply:
            name = f"{self.cell.model} at {self.cell.length} tokens ({self.cell.side})"
            raise UserError(reply.get("mistake", f"{name} cannot be measured: see above"))
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
    peer: bool = False,
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
      peer: also measures the models of `transformers`, and PyTorch's FFT.

    Raises:
      UserError: a model or binding is unknown, the binding of a row is one of the batch or the
        length, a length does not divide the tokens, or one would be measured both with and without
        CLS.
    """
    measured = lengths or [MIXING_LENGTH] * ("mixing" in whats)
    if unequal := [length for length in measured if shared.tokens % length]:
        raise UserError(
            f"--tokens expects a multiple of every length, so that all batches have as many, got "
            f"{shared.tokens} and the length {unequal[0]}"
        )
    lengths = list(dict.fromkeys(lengths))
    if both := [n for n in lengths if cls and n + 1 in lengths]:
        raise UserError(
            f"--cls measures {both[0]} with CLS in front as {both[0] + 1}: leave {both[0]} or "
            f"{both[0] + 1} out of --lengths, or --cls"
        )
    places = [(length + extra, bool(extra)) for length in lengths for extra in range(1 + cls)]
    cells = []
    for what, ((model, binding), label) in itertools.product(whats, _labels(models).items()):
        row = dataclasses.replace(
            shared,
            what=what,
            model=model,
            overrides=(*shared.overrides, *filter(None, [binding])),
            label=label,
        )
        sides = ["ours"]
        if what == "mixing":
            plain = model == "fnet" and not binding
            sides += ["definition"] * plain + ["torch"] * (peer and plain)
        elif peer and what != "pretrain" and model in PEER_MODELS and not binding:
            sides += ["eager", "compiled"]
        for (length, has_cls), size in itertools.product(
            places or [(MIXING_LENGTH, False)], SIZES if what == "mixing" else [""]
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


def folder(root: Path, cells: Sequence[Cell], name: str | None = None) -> Path:
    """Makes a new folder for the results of these cells, and returns it.

    Args:
      root: holds the folders of all benchmarks.
      cells: without a name, the folder's name is made of their task, preset and programs, and 8 hex
        digits of everything else; a number is added if they were measured before.
      name: the folder's name.

    Raises:
      UserError: there is a benchmark of this name, or it cannot be the name of a folder; the disk
        refuses.
    """
    digest = hashlib.sha256(repr(cells).encode()).hexdigest()[:8]
    words = dict.fromkeys(word for c in cells for word in (c.task, c.preset, c.what))
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join([*words, digest]))
    numbered = itertools.chain([slug], (f"{slug}-{number}" for number in itertools.count(2)))
    names = iter([str(jobs.variant((), name))]) if name else numbered
    while True:
        chosen = root / next(names)
        with disk.writable(chosen):
            try:
                chosen.mkdir(parents=True)
            except FileExistsError:
                if name:
                    raise UserError(
                        f"{chosen} holds a benchmark already: choose another --name"
                    ) from None
            else:
                return chosen


def run(cells: Sequence[Cell], rounds: int, save: Callable[[list[Result]], None]) -> list[Result]:
    """Returns what comes of the cells; those with the same program, size and length take turns.

    Calls `save` with all results so far after each such group.

    Raises:
      UserError: a cell cannot be built; the results before it have been saved.
    """

    def group_of(cell):
        return (cell.what, cell.size, cell.length)

    results: list[Result] = []
    with progress.Bar("measuring", len(cells), unit="cells") as bar:
        for _, group in itertools.groupby(sorted(cells, key=group_of), group_of):
            results += _measure(list(group), rounds)
            save(results)
            bar.update(len(results))
    return results


def _measure(group: Sequence[Cell], rounds: int) -> list[Result]:
    """Measures a group in turn, then alone each cell that did not fit next to the others."""
    results = _in_turn(group, rounds)
    for index, cell in enumerate(group):
        if results[index].state == "OOM" and len(group) > 1:
            results[index] = dataclasses.replace(_in_turn([cell], rounds)[0], alone=True)
    return results


def _in_turn(group: Sequence[Cell], rounds: int) -> list[Result]:
    """Measures a group round by round, again if the rounds of a cell differ too much.

    All its cells are measured again, since speed-ups are ratios within a round; the calmest of
    ATTEMPTS counts.
    """
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(contextlib.closing(Worker(cell))) for cell in group]
        at_once = max(1, len(os.sched_getaffinity(0)) // CORES)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(Worker.ready, workers))
        attempts = []
        while len(attempts) < ATTEMPTS and (not attempts or _worst(attempts[-1]) > RESTLESS):
            for number in range(rounds):
                first = number % len(workers)
                for worker in workers[first:] + workers[:first]:
                    if worker.facts["state"] == "ok":
                        time.sleep(PAUSE)
                        worker.round()
            attempts.append([worker.pop() for worker in workers])
        calmest = min(attempts, key=_worst)
        return [worker.result(timed) for worker, timed in zip(workers, calmest, strict=True)]


def _worst(attempt: Sequence[dict[str, list[Any]]]) -> float:
    """Returns the greatest `spread` of a group's cells."""
    return max((spread(timed["seconds"]) for timed in attempt if "seconds" in timed), default=0.0)
