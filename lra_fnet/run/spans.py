"""What an attention_span.json holds; `attention_span` measures it. Imports no JAX, for reports."""

import dataclasses


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
