"""A gated depthwise convolution: mixing within a bounded window, and nothing else."""

from typing import Annotated, ClassVar

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.models.kernels.convolve import window
from lra_fnet.models.kernels.pointwise import flat_product
from lra_fnet.models.mixer import Mixer
from lra_fnet.settings import Least


@gin.configurable
class Convolution(Mixer):
    """y = (conv(x V) * sigmoid(conv(x G))) O, each channel convolved by itself.

    The gated linear unit of convolutional networks (Dauphin et al., arXiv:1612.08083, Eq. 1) with
    depthwise separable convolutions: a Dense layer, then `width` taps for each channel. An output
    sees (width - 1) / 2 tokens on each side. Positions outside the text count as zeros.
    """

    # Tokens in the window; an even one has more on the right.
    width: Annotated[int, Least(1, suggest=5)]

    uses_mask: ClassVar[bool] = True

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D] under mask bool [B, L] -> [B, L, D]."""
        dense = {"dtype": x.dtype, "dot_general": flat_product}
        both = nn.Dense(2 * self.dim, **dense, name="project")(x)
        both = jnp.where(mask[..., None], both, 0)
        init = nn.initializers.normal(self.width**-0.5)
        taps = self.param("taps", init, (self.width, 2 * self.dim)).astype(x.dtype)
        value, gate = jnp.split(window(both, taps), 2, axis=-1)
        return nn.Dense(self.dim, **dense, name="out")(value * nn.sigmoid(gate))
