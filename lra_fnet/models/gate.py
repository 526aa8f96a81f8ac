"""The pointwise end of convolution and state-space mixers: GELU and a gated linear unit."""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from lra_fnet.models.pointwise import flat_product

GateKind = Literal["none", "full", "half1", "half2"]


class Gate(nn.Module):
    """Applies g = GELU(y), then mixes the channels by a gated linear unit.

    "full" gives (g V) * sigmoid(g G) (S4's), "half1" g * sigmoid(g G), "half2" y * sigmoid(g G)
    (S5's two, arXiv:2208.04933, App. G.1), "none" g.
    """

    dim: int
    kind: GateKind

    @nn.compact
    def __call__(self, y):
        """Maps [B, L, D] -> [B, L, D]."""
        g = nn.gelu(y)
        if self.kind == "none":
            return g
        width = 2 * self.dim if self.kind == "full" else self.dim
        product = nn.Dense(width, dtype=y.dtype, dot_general=flat_product, name="dense")(g)
        if self.kind == "full":
            value, gate = jnp.split(product, 2, axis=-1)
        else:
            value, gate = (g if self.kind == "half1" else y), product
        return value * nn.sigmoid(gate)
