"""No mixing: the FNet paper's feed-forward-only encoder (arXiv:2105.03824, Sec. 4.1)."""

from typing import ClassVar

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.models.mixer import Mixer


@gin.configurable
class NoMixing(Mixer):
    """Moves no information across positions; only pooling does.

    The paper "completely removes" the mixing sublayer, so this one adds nothing to the residual
    connection. The authors' code (google-research/f_net) uses the identity instead: its block
    computes LN(x + x), and LRA's block would compute x + LN(x). The block keeps the LayerNorm next
    to the sublayer, and its parameters are counted.
    """

    identity: bool  # False: the paper; True: the authors' code

    uses_mask: ClassVar[bool] = True
    equivariant: ClassVar[bool] = True
    first_alone: ClassVar[bool] = True

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Returns x [B, L, D], or zeros; mask and train have no effect."""
        return x if self.identity else jnp.zeros_like(x)
