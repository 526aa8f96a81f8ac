"""A learned filter in the frequency domain: the smallest step from FNet to a learned mixer."""

from typing import ClassVar

import flax.linen as nn
import gin
import jax.numpy as jnp
from jax import lax

from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.linear import check_length


@gin.configurable
class FourierFilter(Mixer):
    """Multiplies the spectrum along the text by learned complex numbers and transforms back.

    The global filter layer of GFNet (Rao et al., arXiv:2107.00645, Eq. 4) in one dimension: a
    circular convolution over all max_len positions, padding included, with one kernel per channel.

    Raises:
      UserError: on a call with a length other than max_len.
    """

    uses_mask: ClassVar[bool] = False
    bound_to_max_len: ClassVar[bool] = True  # 2 k and 2 k + 1 have equally many frequencies

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D]; mask and train have no effect."""
        check_length(self, x)
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        shape = (2, self.max_len // 2 + 1, self.dim)  # real and imaginary parts
        parts = self.param("filter", nn.initializers.normal(0.02), shape).astype(wide.dtype)
        spectrum = jnp.fft.rfft(wide, axis=1, norm="ortho") * lax.complex(*parts)[None]
        return jnp.fft.irfft(spectrum, self.max_len, axis=1, norm="ortho").astype(x.dtype)
