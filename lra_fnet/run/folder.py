"""What a report reads of a run folder besides result.json: the curve, the attention span."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, typed_json

SPAN, METRICS = "attention_span.json", "metrics.jsonl"
_FLOAT32_MAX = float(np.finfo(np.float32).max)


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
    scores = read_metrics(folder, "validation", "accuracy")
    # With that of sentence order.
    losses = {n: s.get("loss", math.nan) + s.get("order_loss", 0.0) for n, s in scores.items()}
    return Curve(
        [(step, line["loss"]) for step, line in read_metrics(folder, "train", "loss").items()],
        [(step, 100 * line["accuracy"]) for step, line in scores.items()],
        [(step, loss) for step, loss in losses.items() if math.isfinite(loss)],
    )


def read_metrics(folder: Path, kind: str, needed: str) -> dict[int, dict[str, Any]]:
    """Returns the lines of a kind in metrics.jsonl, by step; {} without the file.

    Args:
      folder: the run folder.
      kind: "train" or "validation".
      needed: the field that each of these lines must have, a finite number.

    Raises:
      UserError: the file is damaged.
    """
    file, found = folder / METRICS, {}
    for line in disk.read_lines(file):
        if line.get("kind") != kind:
            continue
        value, step = line.get(needed), line.get("step")
        finite = isinstance(value, int | float) and abs(value) < _FLOAT32_MAX
        if not finite or type(step) is not int:
            raise UserError(f"{file}: a line lacks its step or {needed}; move it away")
        found[step] = line
    return found


@dataclasses.dataclass(frozen=True)
class Layer:
    """The spans of an attention layer, in tokens."""

    layer: int
    mean: float
    heads: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Span:
    """The required attention span of a run, in tokens, at its checkpoint best on validation."""

    mean: float  # over heads and layers
    uniform: float  # the span of equal weights on the same rows
    layers: tuple[Layer, ...]
    rows: int  # of the validation split that were measured


def read_span(folder: Path) -> Span | None:
    """Returns the attention spans of a run, or None if they were not measured.

    Raises:
      UserError: the file is damaged.
    """
    return typed_json.load(folder / SPAN, Span)
