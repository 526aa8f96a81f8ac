"""Cells: what one child process measures each, and the parent that has them measure in turn."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lra_fnet import experiment
from lra_fnet.errors import UserError
from lra_fnet.machine import progress

PAUSE = 0.3  # seconds between turns: the threads of the last side stop spinning
PEER_PYTHON = "LRA_FNET_PEER_PYTHON"  # the interpreter that has PyTorch
PEERS = ("eager", "compiled", "torch")  # sides that PyTorch computes
LIMITED = ("ours", "eager", "compiled")  # sides whose floor is measured
SIZES = {"base": (768, 12), "large": (1024, 16)}  # width and heads: arXiv:2105.03824, Table 6
WHATS = ("train", "infer", "mixing")
ENVIRONMENT = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several children share a GPU
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # compilation is timed, and its memory counted
}
PEER_MODELS = ("fnet", "transformer")  # the latter beside BERT
MIXING_LENGTH = 512  # tokens, of Table 8
ACCELERATOR_BATCH = 64  # examples, of the mixing sublayer alone: the paper's on GPUs (Table 8)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One configuration, measured by one process.

    `what` is "train" (the update of a run), "infer" (logits of a batch) or "mixing" (the first
    layer's mixing sublayer alone). `side` is "ours"; "eager" or "compiled", a model of
    `transformers`; or, of mixing only, "definition" (the plain 2-D FFT with autodiff) or "torch".
    """

    what: str
    side: str
    task: str
    model: str
    preset: str
    length: int  # tokens that the mixer sees, CLS included
    overrides: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    gin_dirs: tuple[str, ...] = ()
    seconds: float = 2.0  # of each round
    size: str = ""  # of mixing: one of SIZES; "" takes the preset's
    cls: bool = False  # the last of the tokens is CLS
    label: str = ""  # the row of the tables
    tokens: int = 0  # of a batch, CLS not counted; 0 takes the preset's number of examples
    devices: int = 0  # that the process sees: GPUs, or simulated on a CPU; 0 takes the machine's

    @classmethod
    def from_json(cls, text: str) -> "Cell":
        """What `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        for name in ("overrides", "imports", "gin_dirs"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    def load(self, accelerator: bool = False) -> experiment.Experiment:
        """The experiment, at exactly this length; the overrides win over the rest.

        Args:
          accelerator: whether the device is none of the CPUs; `size` then means the paper's batch.

        Raises:
          UserError: see experiment.load.
        """
        bindings = [f"MAX_LEN={self.length - self.cls}", "Run.steps_per_dispatch=2"]
        bindings += ["Encoder.pooling=cls"] if self.cls else []
        if self.tokens:
            bindings += [f"Run.batch_size={max(1, self.tokens // (self.length - self.cls))}"]
        if self.size:
            dim, num_heads = SIZES[self.size]
            bindings += [f"Encoder.{field}={dim}" for field in ("dim", "qkv_dim")]
            bindings += [f"Encoder.num_heads={num_heads}"]
            bindings += [f"Run.batch_size={ACCELERATOR_BATCH}"] if accelerator else []

        def load(*more):
            return experiment.load(
                self.task,
                self.model,
                self.preset,
                (*bindings, *more, *self.overrides),
                self.imports,
                [Path(folder) for folder in self.gin_dirs],
            )

        built = load()
        if built.model.encoder.mixer_length > self.length:  # the preset puts CLS in front
            built = load("Encoder.pooling=mean")
        return built


class Worker:
    """A child process and what it has measured so far.

    Attributes:
      cell: what it measures.
      result: the cell's fields; "state": "ok", "OOM" or, of PyTorch's compiler, "FAIL"; the child's
        facts; a number for each round: "seconds" a call, of mixing also "forward_seconds", and
        "roofline", what bounds a call.
    """

    def __init__(self, cell: Cell):
        peer = cell.side in PEERS
        python = os.environ.get(PEER_PYTHON, sys.executable) if peer else sys.executable
        module = "peer" if peer else "worker"
        self.cell = cell
        self.result: dict[str, Any] = {**dataclasses.asdict(cell), "state": "ok"}
        del self.result["seconds"]  # asked for; those measured come in its place
        self._process = subprocess.Popen(
            [python, "-m", f"lra_fnet.benchmark.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT | _devices(cell.devices),
        )

    def ready(self) -> None:
        """Has the child build, compile and warm up.

        Raises:
          UserError: the child says why the cell cannot be measured, or fails with a traceback.
        """
        self.result |= self.ask(dataclasses.asdict(self.cell))

    def round(self) -> None:
        """One more number of each kind: seconds a call, and of the products that it must do."""
        reply = self.ask({"seconds": self.cell.seconds})
        for kind in ("", "forward_"):
            if f"{kind}calls" in reply:
                a_call = reply[f"{kind}seconds"] / reply[f"{kind}calls"]
                self.result.setdefault(f"{kind}seconds", []).append(a_call)
        if self.cell.side in LIMITED and self.result["state"] == "ok":
            limits = self.ask({"roofline": self.cell.seconds})
            self.result.setdefault("roofline", []).append(limits)

    def close(self) -> None:
        """Ends the child."""
        with self._process:
            pass  # closes its input

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one line to the child and returns its reply.

        Raises:
          UserError: the child says why the cell cannot be measured, or fails with a traceback.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            reply = json.loads(self._process.stdout.readline() or "{}")
        except BrokenPipeError:
            reply = {}
        if not reply and self._process.wait() == -9:  # killed by the kernel, for memory
            reply = {"state": "OOM"}
        if not reply or "mistake" in reply:
            where = f"{self.cell.model} at {self.cell.length} tokens ({self.cell.side})"
            raise UserError(reply.get("mistake", f"{where} cannot be measured: see above"))
        if reply.get("state") == "OOM":
            self.result["state"] = "OOM"
        return reply


def _devices(number: int) -> dict[str, str]:
    """Returns the environment in which a process sees that many devices."""
    if not number:
        return {}
    flag = f"--xla_force_host_platform_device_count={number}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))
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
    """The cells of the tables, each of which can be built.

    Args:
      shared: what all have in common.
      models: names; NAME:BINDING is a row of its own, of the model with one more binding.
      whats: of WHATS.
      lengths: tokens; mixing without any takes the paper's.
      cls: also each length with CLS in front, L + 1.
      peer: also the models of `transformers`, and the FFT of PyTorch.

    Raises:
      UserError: an unknown model or binding, or programs that need lengths and have none.
    """
    if not lengths and set(whats) - {"mixing"}:
        raise UserError(f"--what {','.join(whats)} needs --lengths, 512,1024 say")
    places = [
        (length + more, bool(more)) for length in lengths for more in ((0, 1) if cls else (0,))
    ]
    found = []
    for what, word in itertools.product(whats, models):
        model, _, binding = word.partition(":")
        row = dataclasses.replace(
            shared,
            what=what,
            model=model,
            overrides=(*shared.overrides, binding) if binding else shared.overrides,
            label=f"{model} ({binding.partition('=')[2] or binding})" if binding else model,
        )
        sides = ["ours"]
        if what == "mixing":
            sides += ["definition"] * (word == "fnet") + ["torch"] * (peer and word == "fnet")
        elif peer and word in PEER_MODELS:
            sides += ["eager", "compiled"]
        for (length, has_cls), size in itertools.product(
            places or [(MIXING_LENGTH, False)], SIZES if what == "mixing" else [""]
        ):
            cell = dataclasses.replace(row, length=length, cls=has_cls, size=size)
            cell.load()  # a mistake shows now, not after an hour
            found += [dataclasses.replace(cell, side=side) for side in sides]
    return found


def run(
    cells: Sequence[Cell], rounds: int, save: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Measures the cells, those of equal program, length and size in turn.

    Calls `save` with all results so far after each such group.

    Returns:
      `Worker.result` of each cell.

    Raises:
      UserError: a cell that cannot be built; what was measured before stays in the files.
    """
    found: list[dict[str, Any]] = []
    with progress.Bar("measuring", len(cells), unit="cells") as bar:
        for group in _groups(cells):
            found += _measure(group, rounds)
            save(found)
            bar.update(len(found))
    return found


def _groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells whose sides and models are compared with each other."""

    def place(cell):
        return (cell.what, cell.size, cell.length)

    return [list(group) for _, group in itertools.groupby(sorted(cells, key=place), place)]


def _measure(group: Sequence[Cell], rounds: int) -> list[dict[str, Any]]:
    """In turn; what did not fit beside the others, once more alone."""
    found = _in_turn(group, rounds)
    for index, cell in enumerate(group):
        if found[index]["state"] == "OOM" and len(group) > 1:
            found[index] = {**_in_turn([cell], rounds)[0], "alone": True}
    return found


def _in_turn(group: Sequence[Cell], rounds: int) -> list[dict[str, Any]]:
    children: list[Worker] = []
    try:
        for cell in group:
            children.append(Worker(cell))
            children[-1].ready()
        for number in range(rounds):
            first = number % len(children)
            for child in children[first:] + children[:first]:
                if child.result["state"] == "ok":
                    time.sleep(PAUSE)
                    child.round()
    finally:
        for child in children:
            child.close()
    return [child.result for child in children]
