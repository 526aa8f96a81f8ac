"""The other fixed transforms that the FNet paper tried (arXiv:2105.03824, App. A.3).

None has parameters and none can respect a padding mask: every output sees every input. As the
paper's Fourier transform (Eq. 1) none is normalised: the first output is the plain sum of the
inputs. That is ours: neither the paper nor its code says how these were scaled.
"""

from typing import ClassVar

import flax.linen as nn
import gin
import jax.numpy as jnp
import numpy as np

from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.fourier import mirror, self_transpose


@self_transpose
def sequence_fourier(x):
    """Re(F_seq(x)): y[n] = sum over m of x[m] cos(2 pi n m / L), for each feature by itself.

    From half of the spectrum, as y[n] = y[-n]. Symmetric, so its own transpose: reverse-mode
    derivatives only.

    Args:
      x: [B, L, D] in float32 or float64.

    Returns:
      [B, L, D].
    """
    half = jnp.fft.rfft(x, axis=1).real
    rest = jnp.flip(half[:, 1 : x.shape[1] - half.shape[1] + 1], 1)
    return jnp.concatenate([half, rest], axis=1)


@self_transpose
def hartley(x):
    """Re(F) - Im(F) of the 2-D Fourier transform F of x over its last two axes (App. A.3).

    y[n, k] = sum over m, d of x[m, d] (cos(a) + sin(a)), a = 2 pi (n m / L + k d / D). Twice gives
    L D x. Symmetric, so its own transpose: reverse-mode derivatives only. From half of the
    spectrum Z: Z[-n, -k] is the conjugate of Z[n, k], so y[-n, -k] = Re(Z[n, k]) + Im(Z[n, k]).
    Not the product of two 1-D Hartley transforms, which differs from it for D > 2 and L > 2.

    Args:
      x: [..., L, D] in float32 or float64.

    Returns:
      [..., L, D].
    """
    half = jnp.fft.rfft2(x)
    return mirror(half.real - half.imag, half.real + half.imag, x.shape[-1])


def dct(x):
    """The discrete cosine transform, type II, over both axes, without normalisation.

    y[n, k] = sum over m, d of x[m, d] cos(pi n (2 m + 1) / 2L) cos(pi k (2 d + 1) / 2D); a quarter
    of what libraries call unnormalised, whose definition has a factor 2 for each axis.

    Args:
      x: [B, L, D] in float32 or float64, of any length.

    Returns:
      [B, L, D].
    """
    return jnp.swapaxes(_dct_of_rows(jnp.swapaxes(_dct_of_rows(x), 1, 2)), 1, 2)


def _dct_of_rows(x):
    """Over the last axis, N long, by one real FFT of N (Makhoul 1980, IEEE TASSP 28:27-34).

    The even entries, then the odd ones from the last to the first, have the spectrum V, and
    y[k] = Re(w[k] V[k]) with w[k] = exp(-i pi k / 2N). As V[-k] is the conjugate of V[k],
    y[N - k] = -Im(w[k] V[k]).
    """
    size = x.shape[-1]
    order = jnp.concatenate([x[..., ::2], jnp.flip(x[..., 1::2], -1)], axis=-1)
    spectrum = jnp.fft.rfft(order)
    turn = np.exp(-0.5j * np.pi / size * np.arange(size // 2 + 1)).astype(spectrum.dtype)
    turned = spectrum * turn[None, None]
    rest = -jnp.flip(turned[..., 1 : (size + 1) // 2].imag, -1)
    return jnp.concatenate([turned.real, rest], axis=-1)


@self_transpose
def hadamard(x):
    """The Walsh-Hadamard transform over both axes, in Sylvester's order, entries +1 and -1.

    H[2N] = [[H[N], H[N]], [H[N], -H[N]]] with H[1] = 1, by log2(L D) steps of additions on the
    flattened input, as H[L D] is the Kronecker product of H[L] and H[D]. An axis whose length is no
    power of two is padded with zeros to the next one and cut afterwards: y is then a corner of
    the larger transform, and twice no longer gives L D x, as it does at powers of two. Symmetric
    either way, so its own transpose: reverse-mode derivatives only.

    Args:
      x: [B, L, D] in float32 or float64.

    Returns:
      [B, L, D].
    """
    batch, length, dim = x.shape
    rows, columns = (1 << (size - 1).bit_length() for size in (length, dim))
    y = jnp.pad(x, ((0, 0), (0, rows - length), (0, columns - dim)))
    width = 1
    while width < rows * columns:
        pairs = y.reshape(batch, -1, 2, width)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        y = jnp.stack([first + second, first - second], axis=2)
        width *= 2
    return y.reshape(batch, rows, columns)[:, :length, :dim]


def _wide(transform, x):
    """Transforms in float32 (or wider) and returns x's own dtype."""
    return transform(x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)


@gin.configurable
class SequenceFourier(Mixer):
    """FNet without the transform of the hidden axis: see `sequence_fourier`."""

    uses_mask: ClassVar[bool] = False

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D]; mask and train change nothing."""
        return _wide(sequence_fourier, x)


@gin.configurable
class Hartley(Mixer):
    """The 2-D Hartley transform: see `hartley`."""

    uses_mask: ClassVar[bool] = False

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D]; mask and train change nothing."""
        return _wide(hartley, x)


@gin.configurable
class DCT(Mixer):
    """The 2-D discrete cosine transform: see `dct`."""

    uses_mask: ClassVar[bool] = False

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D]; mask and train change nothing."""
        return _wide(dct, x)


@gin.configurable
class Hadamard(Mixer):
    """The 2-D Walsh-Hadamard transform: see `hadamard`."""

    uses_mask: ClassVar[bool] = False

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D]; mask and train change nothing."""
        return _wide(hadamard, x)
