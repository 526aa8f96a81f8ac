"""FNet-Hybrid: Fourier mixing, and attention in a few layers (arXiv:2105.03824, App. A.5)."""

import functools

import gin

from lra_fnet.errors import UserError
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.models.mixers.fourier import Fourier

LAYOUTS = ("TOP", "BOTTOM", "MIDDLE", "MIXED")


def is_attention(layer, num_layers, attention_layers, layout) -> bool:
    """Whether this layer is one of the k attention layers among n; with k >= n every one is.

    TOP: the last k. BOTTOM: the first k. MIDDLE: n - k <= 2 layer < n + k. MIXED: evenly spread
    from the first layer on, k layers exactly. The authors' code takes every (n // k)-th layer for
    MIXED, which is the same where k divides n; elsewhere it takes more than k, and at k = 0 it
    divides by 0.
    """
    return {
        "TOP": layer >= num_layers - attention_layers,
        "BOTTOM": layer < attention_layers,
        "MIDDLE": num_layers - attention_layers <= 2 * layer < num_layers + attention_layers,
        "MIXED": layer * attention_layers % num_layers < attention_layers,
    }[layout]


@gin.configurable
def hybrid(
    layer,
    num_layers,
    *,
    attention_layers,
    layout,
    fourier_method,
    attention_implementation,
    attention_block_size,
):
    """The mixer class of a layer, `Attention` or `Fourier`, for `Encoder.mixers`.

    The settings of both are the layout's own, read at any number of attention layers: with all or
    none, one of the classes is not there to read its own.

    Args:
      layer: 0 .. num_layers - 1.
      num_layers: n.
      attention_layers: k; as many as num_layers, or more: every layer is attention.
      layout: one of LAYOUTS, see `is_attention`.
      fourier_method: `Fourier.method`.
      attention_implementation: `Attention.implementation`.
      attention_block_size: `Attention.block_size`.

    Raises:
      UserError: if attention_layers is negative or the layout unknown.
    """
    if attention_layers < 0:
        raise UserError(
            f"hybrid.attention_layers must be at least 0, got {attention_layers}: set it to 2, say"
        )
    if layout not in LAYOUTS:
        raise UserError(
            f"hybrid.layout must be one of {', '.join(LAYOUTS)}, got {layout!r}: "
            "set it to one of these"
        )
    if is_attention(layer, num_layers, attention_layers, layout):
        return functools.partial(
            Attention,
            implementation=attention_implementation,
            block_size=attention_block_size,
        )
    return functools.partial(Fourier, method=fourier_method)
