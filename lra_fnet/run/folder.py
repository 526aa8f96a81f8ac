"""The files of a run folder besides result.json and the checkpoints. Imports no JAX."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, typed_json
from lra_fnet.machine.typed_json import T
from lra_fnet.run.result import Init, Process, seal

RESTORE = "restore it, or --force moves the folder aside"  # what to do about run.json
SPAN, METRICS = "attention_span.json", "metrics.jsonl"
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun:
    """What run.json says of a run: its names, and what it began with. Older files say less."""

    task: str
    model: str
    preset: str = ""
    seed: int = 0
    overrides: tuple[str, ...] = ()
    variant: str | None = None
    denoise: bool = False
    imports: tuple[str, ...] = ()
    gin_dirs: tuple[str, ...] = ()
    code: dict[str, str] = dataclasses.field(default_factory=dict)  # see `config.code_of`
    init: str | None = None  # folder of the pre-trained run
    origin: Init | None = None  # what that run was
    config: str | None = None  # the operative gin text
    data_sha256: str | None = None
    # What was chosen by measurement or by the machine: `fastest.decisions`.
    resolved: dict[str, Any] = dataclasses.field(default_factory=dict)
    # The code and the machine of each process that trained it, if they changed.
    processes: tuple[Process, ...] = ()


def write_begun(folder: Path, begun: dict[str, Any]) -> None:
    """Writes the object of a run.json, sealed.

    Raises:
      UserError: the disk refuses.
    """
    disk.write_json(folder / "run.json", seal(begun))


def read_begun(folder: Path) -> Begun | None:
    """Returns what the run.json of a folder says, or None if there is none.

    Raises:
      UserError: the file is damaged.
    """
    value = read_run_json(folder)
    return None if value is None else build(folder, Begun, value)


def read_run_json(folder: Path) -> dict[str, Any] | None:
    """Returns the object of a run.json, or None if the folder has none.

    Raises:
      UserError: the file is no JSON object, or not as it was written.
    """
    file = folder / "run.json"
    value = disk.read_json(file, cure=RESTORE)
    if value and "sha256" in value and value != seal(value):  # older ones have none
        raise UserError(f"{file} was changed after the run began (its sha256 differs); {RESTORE}")
    return value


def build(folder: Path, cls: type[T], value: dict[str, Any], **given: Any) -> T:
    """Returns the object of a run.json as a dataclass; `given` are fields that are not in it.

    Raises:
      UserError: a field is missing or has another type.
    """
    try:
        return typed_json.build(cls, value, **given)
    except ValueError as error:
        raise UserError(f"{folder / 'run.json'}: {error}; {RESTORE}") from None


@dataclasses.dataclass(frozen=True)
class Curve:
    """The course of a run by optimizer step."""

    loss: list[tuple[int, float]]  # (step, nats): mean over the training rows since the last line
    validation: list[tuple[int, float]]  # (step, accuracy in percent)
    validation_loss: list[tuple[int, float]]  # (step, mean loss, with that of sentence order)

    @property
    def step(self) -> int:
        """The newest step; 0 if there is none."""
        return max((step for step, _ in (*self.loss, *self.validation)), default=0)


def curve(folder: Path) -> Curve:
    """Returns the course of a run so far; it is empty if the folder has no metrics.jsonl.

    Raises:
      UserError: the file is damaged.
    """
    lines = _lines(folder)
    scores = [line for line in lines if line["kind"] == "validation"]
    losses = [(line["step"], _loss(line)) for line in scores]
    return Curve(
        [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"],
        [(line["step"], 100 * line["accuracy"]) for line in scores],
        [(step, loss) for step, loss in losses if math.isfinite(loss)],
    )


def evaluations(folder: Path) -> dict[int, dict[str, Any]]:
    """Returns the lines of the validation scores in metrics.jsonl, by step; {} without the file.

    Raises:
      UserError: the file is damaged.
    """
    return {line["step"]: line for line in _lines(folder) if line["kind"] == "validation"}


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl; [] without the file."""
    file = folder / METRICS
    lines = disk.read_lines(file)
    for line in lines:
        needed = {"train": "loss", "validation": "accuracy"}.get(str(line.get("kind")), "kind")
        value = line.get(needed)
        fits = needed == "kind" or (isinstance(value, int | float) and abs(value) < _FLOAT32_MAX)
        if not fits or value is None or type(line.get("step")) is not int:
            raise UserError(f"{file}: a line lacks a step or its {needed}; move it away")
    return lines


def _loss(line: dict[str, Any]) -> float:
    """Returns the loss of an evaluation, with that of sentence order."""
    return line.get("loss", math.nan) + line.get("order_loss", 0.0)


@dataclasses.dataclass(frozen=True)
class Layer:
    """The spans of an attention layer, in tokens."""

    layer: int
    mean: float
    heads: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """The required attention span of a run, in tokens, at its checkpoint best on validation."""

    mean: float  # over heads and layers
    uniform: float  # the span of equal weights on the same rows
    layers: tuple[Layer, ...]
    step: int | None = None  # of the checkpoint
    split: str = ""
    rows: int  # of the split that were measured
    data_sha256: str = ""


def read_span(folder: Path) -> Span | None:
    """Returns the attention spans of a run, or None if they were not measured.

    Raises:
      UserError: the file is damaged.
    """
    return typed_json.load(folder / SPAN, Span)
