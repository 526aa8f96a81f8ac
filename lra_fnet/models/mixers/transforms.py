"""The other fixed transforms that the FNet paper tried (arXiv:2105.03824, App. A.3).

Like the paper's Fourier transform (Eq. 1), none is normalised: the first output is the plain sum of
the inputs. This is our choice: neither the paper nor its code says how these were scaled.
"""

import gin
import jax.numpy as jnp
import numpy as np

from lra_fnet.models.mixer import FixedTransform
from lra_fnet.models.mixers.fourier import along_text, mirror, self_transpose


@self_transpose
def sequence_fourier(x):
    """Computes Re(F_seq(x)), y[n] = sum over m of x[m] cos(2 pi n m / L), for each feature.

    It uses half of the spectrum, as y[n] = y[-n]. The map is symmetric and hence its own transpose:
    reverse-mode derivatives only.

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
    """Computes Re(F) - Im(F) of the 2-D Fourier transform F over the last two axes (App. A.3).

    y[n, k] = sum over m, d of x[m, d] (cos(a) + sin(a)), a = 2 pi (n m / L + k d / D). Applied
    twice it gives L D x. It is symmetric and hence its own transpose: reverse-mode derivatives
    only. It uses half of the spectrum Z: Z[-n, -k] is the conjugate of Z[n, k], so
    y[-n, -k] = Re(Z[n, k]) + Im(Z[n, k]). It is not the product of two 1-D Hartley transforms,
    which differs from it for D > 2 and L > 2.

    Args:
      x: [..., L, D] in float32 or float64.

    Returns:
      [..., L, D].
    """
    half = along_text(jnp.fft.rfft(x, axis=-1), x.shape[-1])
    return mirror(half.real - half.imag, half.real + half.imag, x.shape[-1])


def dct(x):
    """Computes the discrete cosine transform, type II, over both axes, without normalisation.

    y[n, k] = sum over m, d of x[m, d] cos(pi n (2 m + 1) / 2L) cos(pi k (2 d + 1) / 2D). The
    transform that libraries call unnormalised has a factor 2 for each axis, so it is 4 y.

    Args:
      x: [B, L, D] in float32 or float64, of any length.

    Returns:
      [B, L, D].
    """
    return jnp.swapaxes(_dct_of_rows(jnp.swapaxes(_dct_of_rows(x), 1, 2)), 1, 2)


def _dct_of_rows(x):
    """Transforms the last axis, N long, by one real FFT of N (Makhoul 1980, IEEE TASSP 28:27-34).

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
    """Computes the Walsh-Hadamard transform of both axes, in Sylvester's order, entries +1 and -1.

    H[2N] = [[H[N], H[N]], [H[N], -H[N]]] with H[1] = 1, by log2(L D) steps of additions on the
    flattened input, as H[L D] is the Kronecker product of H[L] and H[D]. An axis whose length is
    not a power of two is padded with zeros to the next one and cut afterwards: y is then a corner
    of the larger transform, and applying it twice gives L D x only at powers of two. It is
    symmetric either way and hence its own transpose: reverse-mode derivatives only.

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


@gin.configurable
class SequenceFourier(FixedTransform):
    """FNet without the transform of the hidden axis: see `sequence_fourier`."""

    transform = staticmethod(sequence_fourier)


@gin.configurable
class Hartley(FixedTransform):
    """The 2-D Hartley transform: see `hartley`."""

    transform = staticmethod(hartley)


@gin.configurable
class DCT(FixedTransform):
    """The 2-D discrete cosine transform: see `dct`."""

    transform = staticmethod(dct)


@gin.configurable
class Hadamard(FixedTransform):
    """The 2-D Walsh-Hadamard transform: see `hadamard`."""

    transform = staticmethod(hadamard)
