"""The base class of mixers that convolve each channel with a kernel as long as the sequence."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from lra_fnet.models.gate import Gate, GateKind
from lra_fnet.models.kernels.convolve import long_convolution
from lra_fnet.models.mixer import Mixer


class KernelMixer(Mixer):
    """Adds to each channel's convolution a multiple of its input, then applies a `Gate`.

    A subclass defines `kernels`. Padding counts as zeros, and the kernels are in float32 or wider.
    """

    gate: GateKind

    uses_mask: ClassVar[bool] = True

    def kernels(self, length, dtype, *, train) -> tuple[jax.Array, jax.Array]:
        """Makes the parameters and returns `ahead` and `back` of `long_convolution`, [L, D]."""
        raise NotImplementedError(f"{type(self).__name__} must define kernels")

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D] under mask bool [B, L] -> [B, L, D]."""
        wide = jnp.where(mask[..., None], x, 0).astype(jnp.promote_types(x.dtype, jnp.float32))
        ahead, back = self.kernels(x.shape[1], wide.dtype, train=train)
        skip = self.param("skip", nn.initializers.normal(1.0), (self.dim,)).astype(wide.dtype)
        y = long_convolution(wide, ahead, back) + skip[None, None] * wide
        return Gate(self.dim, self.gate, name="gate")(y.astype(x.dtype))
