"""The FNet paper's "Linear" mixing: two learned dense matrices (arXiv:2105.03824, Sec. 4.1)."""

from typing import ClassVar

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.errors import UserError
from lra_fnet.models.mixer import Mixer


def linear_mix(x, sequence, hidden):
    """Computes S x W: y[n, k] = sum over m, d of S[n, m] x[m, d] W[d, k].

    Args:
      x: [B, L, D].
      sequence: S, [L, L], or some of its rows.
      hidden: W, [D, D].

    Returns:
      [B, L, D]; as many positions as rows.
    """
    if len(sequence) == 1:  # the longer axis first
        return jnp.einsum("nm,bmd->bnd", sequence, x) @ hidden
    return jnp.einsum("nm,bmk->bnk", sequence, x @ hidden)


def check_length(mixer, x):
    """Raises a UserError unless x [B, L, D] has the length that the mixer was built for."""
    if x.shape[1] != mixer.max_len:
        raise UserError(
            f"{type(mixer).__name__} is built for exactly {mixer.max_len} positions, got "
            f"{x.shape[1]}: pad or cut every batch to {mixer.max_len}"
        )


@gin.configurable
class LinearMixing(Mixer):
    """Has no bias, no nonlinearity and no mask: every output sees every input, padding too.

    The sequence matrix has max_len x max_len entries, so the length is fixed: 16384 tokens would
    take 268 million parameters per layer.

    Raises:
      UserError: on a call with a length other than max_len.
    """

    uses_mask: ClassVar[bool] = False
    uses_first_only: ClassVar[bool] = True
    growth: ClassVar[tuple[float, float]] = (2, 2)

    @nn.compact
    def __call__(self, x, mask, *, train, first_only=False):
        """Mixes x [B, L, D] -> [B, L, D], or [B, 1, D] with first_only; mask has no effect."""
        check_length(self, x)
        sequence = self.matrix("sequence", self.max_len)[: 1 if first_only else None]
        hidden = self.matrix("hidden", self.dim)
        return linear_mix(x, sequence.astype(x.dtype), hidden.astype(x.dtype))

    def matrix(self, name, size):
        """Returns the matrix of this name, float32 [size, size]."""
        return self.param(name, nn.initializers.normal(0.02), (size, size))
