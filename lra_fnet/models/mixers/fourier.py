"""FNet mixing: the real part of a 2-D DFT (Lee-Thorp et al., arXiv:2105.03824, Eq. 3).

For real x, y = Re(F_seq(F_hidden(x))) = C_L x C_D - S_L x S_D with the cosine and sine matrices C
and S. Hence y[n, k] = y[-n, -k] (indices modulo L and D): half of the columns give the rest. And C
and S are symmetric, so the map is its own transpose: its gradient is the same transform of the
cotangent.
"""

import functools
from typing import ClassVar

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.models.mixers.mixer import Mixer

METHODS = ("auto", "definition", "rfft", "matmul")
TPU_MATMUL_MAX_LEN = 4096  # the paper (Sec. 3.3): up to here DFT matrices beat the FFT on a TPU


def definition(x):
    """The paper's listing: real part of the unnormalised 2-D FFT over the last two axes."""
    return jnp.fft.fft2(x).real


@jax.custom_vjp
def rfft(x):
    """As `definition` from half of the spectrum, [..., L, D] -> [..., L, D].

    Reverse-mode derivatives only (custom_vjp: the transform is its own transpose); `definition` and
    `matmul` also have forward mode.
    """
    return _mirror(jnp.fft.rfft2(x).real, x.shape[-1])


rfft.defvjp(lambda x: (rfft(x), None), lambda _, cotangent: (rfft(cotangent),))


def matmul(x, *, precision=lax.Precision.HIGHEST):
    """As `definition` by DFT matrices, [..., L, D] -> [..., L, D]; for devices made for matmuls.

    The default of XLA is coarser on TPU and GPU (bfloat16 or TF32 passes); HIGHEST keeps float32.
    """
    length, dim = x.shape[-2:]
    half = dim // 2 + 1
    cos_seq, sin_seq = _dft_matrices(length)
    cos_hidden, sin_hidden = _dft_matrices(dim)
    hidden = np.concatenate([cos_hidden[:, :half], sin_hidden[:, :half]], axis=1).astype(x.dtype)
    sequence = np.concatenate([cos_seq, -sin_seq], axis=1).astype(x.dtype)
    both = jnp.matmul(x, hidden, precision=precision)
    stacked = jnp.concatenate([both[..., :half], both[..., half:]], axis=-2)
    y = jnp.einsum("mn,...nk->...mk", sequence, stacked, precision=precision)
    return _mirror(y, dim)


def _mirror(half, dim):
    """Completes columns 0 .. dim // 2 of y to all `dim` by y[n, k] = y[-n, -k].

    Sums of zero-padded pieces: XLA fuses them into one pass, where joining the pieces with
    concatenate costs as much as the transform itself.
    """
    columns = half.shape[-1]
    flipped = jnp.flip(half[..., 1 : dim - columns + 1], (-2, -1))  # row i comes from row L - 1 - i
    length = half.shape[-2]

    def place(piece, row, column):
        rows = (row, length - row - piece.shape[-2], 0)
        cols = (column, dim - column - piece.shape[-1], 0)
        zero = jnp.zeros((), half.dtype)
        return lax.pad(piece, zero, [(0, 0, 0)] * (half.ndim - 2) + [rows, cols])

    return (
        place(half, 0, 0)
        + place(flipped[..., :-1, :], 1, columns)
        + place(flipped[..., -1:, :], 0, columns)
    )


@functools.cache
def _dft_matrices(size):
    """Cosine and sine of 2 pi n k / size, two float64 [size, size] (n k taken modulo size)."""
    n = np.arange(size)
    angle = 2 * np.pi / size * (n[:, None] * n[None, :] % size)
    return np.cos(angle), np.sin(angle)


def choose_method(length):
    """The method that "auto" means for this length on this machine's default device."""
    on_tpu = jax.default_backend() == "tpu"
    return "matmul" if on_tpu and length <= TPU_MATMUL_MAX_LEN else "rfft"


def fourier_mix(x, method="auto"):
    """Re(F_seq(F_hidden(x))), unnormalised, as in the paper.

    Args:
      x: [..., L, D] real; transformed in float32 (or wider) and returned in its own dtype.
      method: one of METHODS; all give the same numbers up to rounding.

    Raises:
      UserError: if the method is unknown.
    """
    if method not in METHODS:
        raise UserError(
            f"Fourier.method must be one of {', '.join(METHODS)}, got {method!r}: "
            "set it to one of these"
        )
    if method == "auto":
        method = choose_method(x.shape[-2])
    transform = {"definition": definition, "rfft": rfft, "matmul": matmul}[method]
    return transform(x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)


@gin.configurable
class Fourier(Mixer):
    """Has no parameters and cannot respect a padding mask: every output sees every input."""

    method: str

    uses_mask: ClassVar[bool] = False

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D]; mask and train change nothing."""
        return fourier_mix(x, self.method)
