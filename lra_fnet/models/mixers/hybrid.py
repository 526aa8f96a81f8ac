"""FNet-Hybrid: Fourier mixing with attention in a few layers (arXiv:2105.03824, App. A.5)."""

import gin

from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.models.mixers.fourier import Fourier
from lra_fnet.settings import at_least, one_of

LAYOUTS = ("TOP", "BOTTOM", "MIDDLE", "MIXED")


def is_attention(layer, num_layers, attention_layers, layout) -> bool:
    """Returns whether a layer is one of the k attention layers among n; all are if k >= n.

    TOP: the last k. BOTTOM: the first k. MIDDLE: n - k <= 2 layer < n + k. MIXED: exactly k layers,
    evenly spread from the first one on. The authors' code takes every (n // k)-th layer for MIXED,
    which is the same if k divides n; otherwise it takes more than k, and k = 0 divides by 0.
    """
    return {
        "TOP": layer >= num_layers - attention_layers,
        "BOTTOM": layer < attention_layers,
        "MIDDLE": num_layers - attention_layers <= 2 * layer < num_layers + attention_layers,
        "MIXED": layer * attention_layers % num_layers < attention_layers,
    }[layout]


@gin.configurable(allowlist=["attention_layers", "layout"])  # pyright: ignore[reportCallIssue]
def hybrid(*, attention_layers, layout, **fields) -> Mixer:
    """Returns the mixer of one layer, an `Attention` or a `Fourier`, for `Encoder.mixers`.

    It constructs both, so that the settings of both are checked, and read from gin, at any number
    of attention layers.

    Args:
      attention_layers: k, the number of attention layers; if k >= num_layers, every layer is one.
      layout: one of LAYOUTS, see `is_attention`.
      **fields: the fields of `Mixer`.

    Raises:
      UserError: if attention_layers is negative or the layout unknown.
    """
    at_least("hybrid.attention_layers", attention_layers, 0, 2)
    one_of("hybrid.layout", layout, LAYOUTS)
    fourier, attention = Fourier(**fields), Attention(**fields)
    layer, num_layers = fields["layer"], fields["num_layers"]
    return attention if is_attention(layer, num_layers, attention_layers, layout) else fourier
