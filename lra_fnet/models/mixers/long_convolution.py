"""Long convolutions: learned kernels as long as the sequence (Fu et al., arXiv:2302.06646)."""

from typing import Annotated, ClassVar

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.models.kernel_mixer import KernelMixer
from lra_fnet.models.kernels.pointwise import Dropout
from lra_fnet.settings import Least


def squash(kernel, threshold):
    """Moves each entry towards 0 by the threshold, at most to 0 (the paper's Sec. 3.2)."""
    return jnp.sign(kernel) * jnp.maximum(jnp.abs(kernel) - threshold, 0)


@gin.configurable
class LongConvolution(KernelMixer):
    """A kernel of max_len taps in each direction per channel, a skip connection and a gate.

    The squash operator makes the kernels sparse, which the paper needs to train them from nothing.
    Encoder.attention_dropout is the rate of dropout on the kernel's entries.
    """

    threshold: Annotated[float, Least(0, suggest=0.003)]  # of `squash`
    # Standard deviation of the kernel's entries at initialisation.
    scale: Annotated[float, Least(0, suggest=0.002)]

    separable: ClassVar[tuple[str, ...]] = ("kernel",)
    uses_dropout: ClassVar[bool] = True

    def kernels(self, length, dtype, *, train):
        """See `KernelMixer.kernels`."""
        shape = (2, self.max_len, self.dim)  # ahead and back
        kernel = self.param("kernel", nn.initializers.normal(self.scale), shape)
        kernel = squash(kernel, self.threshold).astype(dtype)
        kernel = Dropout(self.dropout, shared=True)(kernel, train=train)
        ahead, back = kernel[:, :length]
        return ahead, back
