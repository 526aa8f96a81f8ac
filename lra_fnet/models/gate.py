"""The pointwise end of convolution and state-space mixers: GELU and a gated linear unit."""

import functools
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from lra_fnet.models.kernels.pointwise import activated_product, recompute

GateKind = Literal["none", "full", "half1", "half2"]


class Gate(nn.Module):
    """Applies g = GELU(y), then mixes the channels by a gated linear unit.

    "full" gives (g V) * sigmoid(g G) (S4's), "half1" g * sigmoid(g G), "half2" y * sigmoid(g G)
    (S5's two, arXiv:2208.04933, App. G.1), "none" g. It keeps y and the product for the backward
    pass, and computes the rest again.
    """

    dim: int
    kind: GateKind

    @nn.compact
    def __call__(self, y):
        """Maps [B, L, D] -> [B, L, D]."""
        if self.kind == "none":
            return nn.gelu(y)
        width = 2 * self.dim if self.kind == "full" else self.dim
        multiply = activated_product(0.0, None)
        product = nn.Dense(width, dtype=y.dtype, dot_general=multiply, name="dense")(y)
        return recompute(functools.partial(_gated, self.kind), product, y)


def _gated(kind, product, y):
    if kind == "full":
        value, gate = jnp.split(product, 2, axis=-1)
    else:
        value, gate = (nn.gelu(y) if kind == "half1" else y), product
    return value * nn.sigmoid(gate)
