"""What a benchmark.json holds: a list of results, one for each cell.

Does not import JAX: a report reads these files on any machine.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

from lra_fnet.machine import typed_json
from lra_fnet.run.result import Device


@dataclasses.dataclass(frozen=True)
class Subject:
    """What a cell measures: the fields that `case.Case` and its result share.

    `what` is "train" (the update of a run), "pretrain" (that of a run of pre-training), "infer"
    (logits of a batch) or "mixing" (the first layer's mixing sublayer alone). `side` is "ours";
    "definition" (mixing only: the plain 2-D FFT with autodiff); or, measured by others, "eager",
    "compiled" or "torch", PyTorch's.
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
    size: str  # for mixing: one of `case.SIZES`; "" uses the preset's
    cls: bool  # whether one of the tokens is CLS
    label: str  # name of the row in the tables
    tokens: int = 0  # per batch, without CLS; 0 uses the preset's number of examples
    devices: int = 0  # that the process sees: GPUs, or simulated on a CPU; 0 uses the machine's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(Subject):
    """What came of a cell.

    A field that has its default is not known. In the state "ok" all sizes, the memory and the times
    are, and those of our own side have a device.

    Raises:
      ValueError: a number cannot have been measured.
    """

    state: str  # "ok", "OOM", or of PyTorch also "FAIL": it cannot compile the model
    # Whether it was measured alone: it did not fit next to the others, or a script timed each cell.
    alone: bool = False
    parameters: int | None = None
    batch_size: int = 0  # examples
    dim: int = 0
    num_layers: int = 0
    dtype: str = ""
    threads: int = 0  # CPU cores that the process may use
    peak_bytes: float = math.inf
    flops: float | None = None  # of a call
    device: Device | None = None
    versions: dict[str, str] | None = None
    commit: str | None = None
    dirty: bool | None = None
    seconds: tuple[float, ...] = ()  # a call in each round; in mixing forward and backward
    forward_seconds: tuple[float, ...] = ()  # only of mixing
    floor_seconds: tuple[float, ...] = ()  # of the dense products alone
    roofline: tuple[dict[str, float], ...] = ()  # where older files have the floor

    def __post_init__(self):
        if self.ok:
            numbers = [self.length, self.batch_size, self.dim, self.num_layers]
            numbers += [*self.seconds, *self.forward_seconds]
            bounds = [*self.floors, self.peak_bytes, self.flops or 0.0]
            missing = not self.seconds or (self.what == "mixing" and not self.forward_seconds)
            wrong = not all(0 < x < math.inf for x in numbers)
            if missing or wrong or not all(0 <= x < math.inf for x in bounds):
                raise ValueError("a number is missing, or cannot have been measured")

    @property
    def ok(self) -> bool:
        """Whether it has times."""
        return self.state == "ok"

    @property
    def floors(self) -> tuple[float, ...]:
        """The seconds of the dense products alone in each round; none if some did not fit."""
        old = [limits.get("floor_seconds") for limits in self.roofline]
        floors = self.floor_seconds or tuple(floor for floor in old if floor is not None)
        return floors if len(floors) == len(self.seconds) else ()

    def to_json(self) -> dict[str, Any]:
        """Returns the object of benchmark.json: without the fields that are not known."""
        kept = {field.name for field in dataclasses.fields(Subject)}
        fields = [f for f in dataclasses.fields(self) if f.name not in kept]
        kept |= {f.name for f in fields if getattr(self, f.name) != f.default}
        return {name: value for name, value in dataclasses.asdict(self).items() if name in kept}


def read(file: Path) -> list[Result]:
    """Returns the results in a benchmark.json; none if there is no file.

    Raises:
      UserError: the file is damaged.
    """
    return typed_json.entries(file, Result)
