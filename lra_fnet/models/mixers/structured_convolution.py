"""SGConv: long convolutions whose kernels are coarser and smaller farther away (arXiv:2210.09298).

Li et al., "What makes convolutional models great on long sequence modeling?".
"""

import math
from typing import Annotated, ClassVar

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet.models.kernel_mixer import KernelMixer
from lra_fnet.settings import Least


def factors(taps, length) -> list[int]:
    """Returns how far each sub-kernel is stretched: 1, 1, 2, 4, ..., until they cover `length`."""
    return [1, *(2**i for i in range(math.ceil(math.log2(max(length / taps, 1)))))]


def stretched(parts, decay, length):
    """Joins the sub-kernels of all scales, each stretched by linear interpolation (Eq. 1).

    The sum of squares is expected to be 1 if the entries of `parts` have the variance 1; the
    authors divide by the norm of the kernel as it was drawn.

    Args:
      parts: [S, T, D], T taps at each scale.
      decay: factor of the weights from one scale to the next.
      length: of the kernel, at most T 2^(S - 1).

    Returns:
      [length, D].
    """
    taps = parts.shape[1]
    pieces, energies = [], []
    for scale, factor in enumerate(factors(taps, length)):
        size = taps * factor
        piece = jax.image.resize(parts[scale], (size, parts.shape[2]), "linear")
        pieces.append(decay**scale * piece)
        place = (np.arange(size) + 0.5) / factor - 0.5  # of a tap, among those of the sub-kernel
        part = np.where((place < 0) | (place > taps - 1), 0, place % 1)
        energies.append(decay ** (2 * scale) * (part**2 + (1 - part) ** 2))
    norm = np.sqrt(np.concatenate(energies)[:length].sum())
    return jnp.concatenate(pieces)[:length] / norm


@gin.configurable
class StructuredConvolution(KernelMixer):
    """A kernel of max_len taps in each direction per channel, a skip connection and a gate.

    A kernel has `taps` parameters at each of 1 + log2(max_len / taps) scales.
    """

    taps: Annotated[int, Least(1, suggest=64)]
    decay: Annotated[float, Least(0, suggest=0.5)]  # from one scale to the next

    bound_to_max_len: ClassVar[bool] = True
    separable: ClassVar[tuple[str, ...]] = ("kernel",)

    def kernels(self, length, dtype, *, train):
        """See `KernelMixer.kernels`."""
        scales = len(factors(self.taps, self.max_len))
        shape = (2, scales, self.taps, self.dim)  # ahead and back
        parts = self.param("kernel", nn.initializers.normal(1.0), shape).astype(dtype)
        ahead, back = (stretched(part, self.decay, self.max_len)[:length] for part in parts)
        return ahead, back
