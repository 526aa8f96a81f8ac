"""The files of a run folder besides result.json and the checkpoints. Imports no JAX."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, typed_json
from lra_fnet.machine.typed_json import T
from lra_fnet.run.result import Init, Process, seal

RESTORE = "restore it, or --force moves the folder aside"  # what to do about run.json
SPAN = "attention_span.json"
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
        raise UserError(
            f"{file}: its sha256 belongs to other content, so it was changed after the run began; "
            f"{RESTORE}"
        )
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
    file = folder / "metrics.jsonl"
    lines = disk.read_lines(file)
    try:
        if any("kind" not in line for line in lines):
            raise ValueError("kind is missing in a line")
        scores = [x for x in lines if x["kind"] == "validation"]
        return Curve(
            [_point(x, "loss") for x in lines if x["kind"] == "train"],
            [_point(x, "accuracy") for x in scores],
            list(_losses(scores)),
        )
    except ValueError as error:
        raise UserError(f"{file}: {error}; move it away") from None


def evaluations(folder: Path) -> dict[int, dict[str, Any]]:
    """Returns the lines of the validation scores in metrics.jsonl, by step; {} without the file.

    Raises:
      UserError: the file is damaged.
    """
    curve(folder)  # checks it
    lines = disk.read_lines(folder / "metrics.jsonl")
    return {line["step"]: line for line in lines if line["kind"] == "validation"}


def _losses(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[int, float]]:
    """Yields the step and the loss, with that of sentence order, where it is finite."""
    for line in lines:
        parts = [line.get("loss", math.nan), line.get("order_loss", 0.0)]
        loss = sum(typed_json.convert(part, float, "loss") for part in parts)
        if math.isfinite(loss):
            yield line["step"], loss


def _point(line: dict[str, Any], name: str) -> tuple[int, float]:
    """Returns the step of a line with its loss, or its accuracy in percent."""
    if absent := {"step", name} - line.keys():
        raise ValueError(f"{min(absent)} is missing in a line")
    step = typed_json.convert(line["step"], int, "step")
    number = typed_json.convert(line[name], float, name)
    if not 0 <= step < 2**53:  # a figure's axis is float64
        raise ValueError(f"step should be from 0 to 2**53, is {step}")
    if name == "loss":
        if not abs(number) <= _FLOAT32_MAX:
            raise ValueError(f"loss should be a number that float32 holds, is {number}")
        return step, number
    if not 0 <= number <= 1:
        raise ValueError(f"accuracy should be from 0 to 1, is {number}")
    return step, 100 * number


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
