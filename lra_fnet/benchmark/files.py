"""What a benchmark.json holds: a list of results, one for each cell.

Imports neither JAX nor PyTorch: a report reads these files on any machine.
"""

import dataclasses
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

from lra_fnet.errors import UserError
from lra_fnet.machine import typed_json
from lra_fnet.run.result import Device


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a cell measures: the fields that `cells.Cell` and its result share.

    `what` is "train" (the update of a run), "pretrain" (that of a run of pre-training), "infer"
    (logits of a batch) or "mixing" (the first layer's mixing sublayer alone). `side` is
    "ours"; "eager" or "compiled", a model of `transformers`; or, for mixing only, "definition" (the
    plain 2-D FFT with autodiff) or "torch".
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
    _: dataclasses.KW_ONLY
    size: str  # for mixing: one of `cells.SIZES`; "" uses the preset's
    cls: bool  # whether one of the tokens is CLS
    label: str  # name of the row in the tables
    tokens: int = 0  # per batch, without CLS; 0 uses the preset's number of examples
    devices: int = 0  # that the process sees: GPUs, or simulated on a CPU; 0 uses the machine's


@dataclasses.dataclass(frozen=True)
class Limits:
    """The bounds of a call in one round; false if they did not fit into memory."""

    floor_seconds: float = 0.0  # of the dense products alone
    copy_bytes_per_second: float = 0.0
    bytes: float = 0.0  # that a call must move
    flops: float = 0.0  # of the products

    def __bool__(self) -> bool:
        """Whether there are limits."""
        return self.copy_bytes_per_second != 0

    @property
    def plausible(self) -> bool:
        """Whether all of them can have been measured, or none is known."""
        numbers = (self.floor_seconds, self.bytes, self.flops)
        positive = all(map(_finite, numbers)) and _positive(self.copy_bytes_per_second)
        return positive or self == Limits()

    @property
    def roofline(self) -> float:
        """The longer of the floor and of the time in which a copy moves as many bytes, seconds."""
        return max(self.floor_seconds, self.bytes / self.copy_bytes_per_second)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(Setting):
    """What came of a cell.

    A field that has its default is not known. In the state "ok" all sizes, the memory and the times
    are, and those of our own side have device and limits.

    Raises:
      ValueError: a field is missing, or a number cannot have been measured.
    """

    state: str  # "ok"; "OOM", "FAIL", "ABSENT": see `child`
    reason: str | None = None  # of "FAIL"
    # Whether it was measured alone: it did not fit next to the others, or a script timed each cell.
    alone: bool = False
    parameters: int | None = None
    batch_size: int = 0  # examples
    dim: int = 0
    num_layers: int = 0
    dtype: str = ""
    threads: int = 0  # CPU cores that the process may use
    peak_bytes: float = math.inf
    planned_bytes: float | None = None  # XLA's plan of a step
    flops: float | None = None  # of a call; also None if they cannot be counted
    compile_seconds: float | None = None
    device: Device | None = None
    versions: dict[str, str] | None = None
    commit: str | None = None
    dirty: bool | None = None
    seconds: tuple[float, ...] = ()  # a call in each round; in mixing forward and backward
    forward_seconds: tuple[float, ...] = ()  # only of mixing
    roofline: tuple[Limits, ...] = ()  # of each round

    def __post_init__(self):
        if not self.ok:
            return
        ours, rounds = self.side == "ours", len(self.seconds)
        right = {
            "parameters": self.parameters is not None,
            "dtype": bool(self.dtype),
            "device": bool(self.device or not ours),
            "seconds": rounds > 0 and all(map(_positive, self.seconds)),
            "forward_seconds": all(map(_positive, self.forward_seconds))
            and (self.what != "mixing" or len(self.forward_seconds) == rounds),
            "roofline": not ours
            or (len(self.roofline) == rounds and all(one.plausible for one in self.roofline)),
        }
        for name in ("length", "batch_size", "dim", "num_layers", "threads"):
            right[name] = _positive(getattr(self, name))
        for name in ("peak_bytes", "planned_bytes", "flops"):
            right[name] = _finite(getattr(self, name) or 0)
        if wrong := [name for name, is_right in right.items() if not is_right]:
            raise ValueError(f"{wrong[0]} is missing, or cannot have been measured")

    @property
    def ok(self) -> bool:
        """Whether it has times."""
        return self.state == "ok"

    def to_json(self) -> dict[str, Any]:
        """Returns the object of benchmark.json: without the fields that are not known.

        What a process of ours cannot know of itself is null, not left out.
        """
        known = {field.name for field in dataclasses.fields(Setting)} | {"state"}
        known |= {"flops", "commit", "dirty"} if self.device else set()
        known |= {f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}
        value = {name: x for name, x in dataclasses.asdict(self).items() if name in known}
        if self.roofline:
            value["roofline"] = [dataclasses.asdict(one) if one else {} for one in self.roofline]
        return value


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A row of scaling.json: one program on some devices."""

    scaling: Literal["strong", "weak"]
    devices: int
    batch_size: int
    # What follows is not known where the machine has fewer devices.
    steps_per_second: tuple[float, ...] = ()  # of each round
    loss: float | None = None  # nats, after `scaling.STEPS` steps
    all_reduces: int | None = None  # in the program
    platform: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the object of scaling.json: without the fields that are not known."""
        return {name: value for name, value in vars(self).items() if value not in ((), None, "")}


def read(file: Path) -> list[Result]:
    """Returns the results in a benchmark.json; none if there is no file.

    Raises:
      UserError: the file is damaged.
    """
    results = typed_json.entries(file, Result)
    rows, rounds = set(), defaultdict(set)
    for result in (one for one in results if one.ok):
        place = result.what, result.size, result.length
        rounds[place].add(len(result.seconds))
        row = (*place, result.side, result.label, result.cls)
        if row in rows or len(rounds[place]) > 1:
            why = "twice" if row in rows else "in another number of rounds than the others"
            where = f"{result.label!r} at {result.length} tokens ({result.side}, {result.what})"
            raise UserError(f"{file}: {where} is measured {why}; move it away")
        rows.add(row)
    return results


def _finite(number: float) -> bool:
    return abs(number) <= sys.float_info.max


def _positive(number: float) -> bool:
    return 0 < number <= sys.float_info.max
