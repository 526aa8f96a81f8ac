"""FNet mixing of each text at its own length, so that padding has no effect.

FNet transforms the padded length (arXiv:2105.03824, Eq. 3), so the same text gives other vectors in
another batch. Here a row of n tokens is transformed by DFTs of n points along the text and of D
along the width, for rows of different lengths at once: Bluestein's chirp transform (Bluestein 1970,
IEEE Trans. Audio Electroacoustics 18:451-455) computes a DFT of any size n <= L by convolutions of
one fixed FFT size.
"""

from typing import ClassVar

import gin
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.models.kernels.convolve import fast_size
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.fourier import along_hidden

MAX_LEN = 65536  # j^2 must fit in 32 bits


@jax.custom_vjp
def exact_fourier(x, lengths):
    """Computes Re(DFT_n along L, DFT_D along D) of each row's first n positions, unnormalised.

    With w = exp(-2 pi i / n) and j k = (j^2 + k^2 - (k - j)^2) / 2, the DFT of z is
    Z[k] = c[k] sum over j of (z[j] c[j]) conj(c[k - j]), with the chirp c[j] = w^(j^2 / 2): a
    convolution. c has the period 2 n in j^2, which is reduced in whole numbers. Half of the columns
    give the others: y[m, k] = y[-m mod n, -k mod D]. On a row's first n positions the map is
    symmetric, hence its own transpose. Reverse-mode derivatives only.

    Args:
      x: [B, L, D], float32 or float64; positions from `lengths` on have no effect.
      lengths: int32 [B], n of each row, at most L.

    Returns:
      [B, L, D], zeros from position n on.

    Raises:
      UserError: if L is more than 65536.
    """
    (_, length, dim), dtype = x.shape, x.dtype
    if length > MAX_LEN:
        raise UserError(f"ExactFourier takes at most {MAX_LEN} positions, got {length}: cut them")
    points = jnp.maximum(lengths, 1).astype(jnp.uint32)[:, None]  # n, [B, 1]
    positions = jnp.arange(length, dtype=jnp.uint32)[None]
    real = positions < lengths.astype(jnp.uint32)[:, None]  # [B, L]
    turns = positions * positions % (2 * points)
    signed = turns.astype(jnp.int32) - jnp.where(turns > points, 2 * points, 0).astype(jnp.int32)
    angle = np.pi * signed.astype(dtype) / points.astype(dtype)
    chirp = lax.complex(jnp.cos(angle), -jnp.sin(angle))  # [B, L]

    size = fast_size(2 * length - 1)
    gap = jnp.zeros((len(x), size - 2 * length + 1), chirp.dtype)
    kernel = jnp.concatenate([chirp, gap, chirp[:, :0:-1]], axis=1).conj()  # c is even in j

    opposite = jnp.where(positions == 0, 0, points - positions)  # -m mod n
    opposite = jnp.where(real, opposite, 0).astype(jnp.int32)[..., None]

    def mirrored(z):
        return jnp.take_along_axis(z, opposite, axis=1)

    # Re F(a - i b) = Re F(r) + Im F(r), where r, which is real, is the even part of a plus the odd
    # part of b. So one transform serves two columns: F(first) and i F(second) are the parts of
    # F(first + i second) that are even and odd under conjugation and m -> -m.
    cosines, sines = along_hidden(jnp.where(real[..., None], x, 0))
    r = (cosines + mirrored(cosines) + sines - mirrored(sines)) / 2  # [B, L, D // 2 + 1]
    r = jnp.where(real[..., None], r, 0)
    columns, pairs = r.shape[-1], (r.shape[-1] + 1) // 2
    second = jnp.pad(r[..., pairs:], ((0, 0), (0, 0), (0, 2 * pairs - columns)))
    z = lax.complex(r[..., :pairs], second) * chirp[..., None]
    product = jnp.fft.fft(z, size, axis=1) * jnp.fft.fft(kernel, axis=1)[..., None]
    z = jnp.fft.ifft(product, axis=1)[:, :length] * chirp[..., None]
    even, odd = (z + mirrored(z).conj()) / 2, (z - mirrored(z).conj()) / 2
    y = jnp.concatenate([even.real + even.imag, odd.imag - odd.real], axis=-1)[..., :columns]
    y = jnp.where(real[..., None], y, 0)

    left = y[..., dim - columns : 0 : -1]  # columns D - k for k = D // 2 + 1 .. D - 1
    rest = jnp.where(real[..., None], mirrored(left), 0)
    return jnp.concatenate([y, rest], axis=-1)


exact_fourier.defvjp(
    lambda x, lengths: (exact_fourier(x, lengths), lengths),
    lambda lengths, cotangent: (exact_fourier(cotangent, lengths), None),
)


@gin.configurable
class ExactFourier(Mixer):
    """FNet's mixing of each text at its own length; equal to `Fourier` where there is no padding.

    A row's length reaches to its last real token.
    """

    uses_mask: ClassVar[bool] = True
    uses_first_only: ClassVar[bool] = True

    @nn.compact
    def __call__(self, x, mask, *, train, first_only=False):
        """Mixes x [B, L, D] under mask bool [B, L] -> [B, L, D], or [B, 1, D] with first_only."""
        wide = jnp.where(mask[..., None], x, 0).astype(jnp.promote_types(x.dtype, jnp.float32))
        if first_only:  # the transform along the text is the sum over it
            return jnp.fft.fft(wide.sum(axis=1, keepdims=True)).real.astype(x.dtype)
        lengths = (mask * jnp.arange(1, x.shape[1] + 1)[None]).max(axis=1).astype(jnp.int32)
        return exact_fourier(wide, lengths).astype(x.dtype)
