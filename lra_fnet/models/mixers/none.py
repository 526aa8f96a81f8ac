"""No mixing: the FNet paper's feed-forward-only encoder (arXiv:2105.03824, Sec. 4.1)."""

from typing import ClassVar

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.models.mixer import Mixer


@gin.configurable
class NoMixing(Mixer):
    """No information crosses positions; what pools over them is all that does.

    The paper "completely removes" the mixing sublayer: this one adds nothing to the residual
    connection. The authors' code (google-research/f_net) puts the identity there instead, so that
    its block computes LN(x + x); with LRA's block it would be x + LN(x). The block's LayerNorm in
    front of or behind the sublayer stays, and its parameters are counted.
    """

    identity: bool  # False: the paper; True: the authors' code

    uses_mask: ClassVar[bool] = True

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Returns x [B, L, D], or zeros; mask and train change nothing."""
        return x if self.identity else jnp.zeros_like(x)
