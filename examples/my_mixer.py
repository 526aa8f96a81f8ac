"""Your own encoder: every channel is filtered along the sequence (a depthwise convolution).

`lra_fnet.testing.check_mixer(MyMixer, width=3)` checks that a mixer keeps its contract.
"""

from typing import Annotated, ClassVar

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.models.mixer import Mixer
from lra_fnet.settings import Least


@gin.configurable
class MyMixer(Mixer):
    """y[n, d] = sum over i of taps[i, d] x[n + i - width // 2, d], zeros outside the sequence."""

    width: Annotated[int, Least(1, suggest=7)]  # tokens that an output sees

    uses_mask: ClassVar[bool] = True  # padding changes no output; a run checks this at its start

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D] under mask bool [B, L] -> [B, L, D]."""
        init = nn.initializers.normal(self.width**-0.5)
        taps = self.param("taps", init, (self.width, self.dim)).astype(x.dtype)
        before = self.width // 2
        x = jnp.where(mask[:, :, None], x, 0)
        padded = jnp.pad(x, ((0, 0), (before, self.width - 1 - before), (0, 0)))
        length = x.shape[1]
        return sum(padded[:, i : i + length] * taps[i, None, None] for i in range(self.width))
