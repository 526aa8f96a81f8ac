"""FNet mixing: the real part of a 2-D DFT (Lee-Thorp et al., arXiv:2105.03824, Eq. 3).

For real x, y = Re(F_seq(F_hidden(x))) = C_L x C_D - S_L x S_D with the cosine and sine matrices C
and S. Hence y[n, k] = y[-n, -k] (indices modulo L and D), and half of the columns determine the
others. C and S are symmetric, so the map is its own transpose: its gradient is the same transform
of the cotangent.
"""

import functools
import math
from typing import ClassVar, Literal

import gin
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.machine import device
from lra_fnet.models.kernels import fastest
from lra_fnet.models.kernels.pointwise import flat_product
from lra_fnet.models.mixer import FixedTransform

TPU_MATMUL_MAX_LEN = 4096  # the paper (Sec. 3.3): up to here DFT matrices beat the FFT on a TPU
MEASURED_MIN_SIZE = 1 << 18  # entries; fewer take well under a millisecond by any method
CONSTANT_MAX_SIZE = 1024  # up to here a DFT matrix is a constant of the program (4 MB in float32)
MATRIX_MAX_SIZE = 65536  # (size - 1)^2 must fit in 32 bits

_product = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)


def definition(x):
    """Computes the paper's listing: the real part of the unnormalised 2-D FFT of the last axes."""
    return jnp.fft.fft2(x).real


def self_transpose(transform):
    """Returns a linear map that is its own transpose with itself as its custom_vjp derivative."""
    mapped = jax.custom_vjp(transform)
    mapped.defvjp(lambda x: (mapped(x), None), lambda _, cotangent: (mapped(cotangent),))
    return mapped


@self_transpose
def rfft(x):
    """Computes `definition` from half of the spectrum, [..., L, D] -> [..., L, D].

    Reverse-mode derivatives only (custom_vjp: the transform is its own transpose); `definition`
    alone has forward mode too.
    """
    half = lax.optimization_barrier(jnp.fft.rfft2(x).real)  # computed once: mirror reads it thrice
    return mirror(half, half, x.shape[-1])


@self_transpose
def packed(x):
    """Computes `definition` like `rfft`, but with D / 2 instead of D / 2 + 1 FFTs along the text.

    On a CPU with several cores, XLA's FFT takes one thread or several, as they happen to be free,
    and rounds differently where a thread's share of the columns does not fill its vectors. With
    D / 2 columns it does at the usual widths and lengths, so that the same bits come every time.
    Reverse-mode derivatives only.
    """
    half = along_text(jnp.fft.rfft(x, axis=-1), x.shape[-1])
    y = lax.optimization_barrier(half.real)
    return mirror(y, y, x.shape[-1])


def along_text(half, dim):
    """Computes the FFT along the text of half a spectrum, with D / 2 transforms.

    Args:
      half: complex [..., L, dim // 2 + 1], columns 0 .. dim // 2 of the FFT of real rows. If dim is
        even, the first and the last are real, and are transformed as one complex column.
      dim: D. If it is odd, all dim // 2 + 1 columns are transformed.

    Returns:
      complex, of the same shape.
    """
    if dim % 2:
        return jnp.fft.fft(half, axis=-2)
    middle = dim // 2
    shared = lax.complex(half[..., :1].real, half[..., middle:].real)
    z = jnp.fft.fft(jnp.concatenate([shared, half[..., 1:middle]], axis=-1), axis=-2)
    forth = z[..., :1]
    back = jnp.roll(jnp.flip(forth, -2), 1, -2).conj()  # row n is the conjugate of row -n
    ends = (forth + back) / 2, (forth - back) / 2j
    return jnp.concatenate([ends[0], z[..., 1:], ends[1]], axis=-1)


def matmul(x):
    """Computes `definition` by DFT matrices, [..., L, D] -> [..., L, D], for fast matrix hardware.

    XLA's default precision is lower on TPU and GPU (bfloat16 or TF32 passes); HIGHEST keeps
    float32. All products are real: C = 2 (D // 2 + 1) columns take L C (L + D) multiplications; the
    authors' complex matrices take L D (L + D) complex ones. Reverse-mode derivatives only.

    Raises:
      UserError: if an axis has more than 65536 entries.
    """
    length, dim = x.shape[-2:]
    cosines, sines = along_hidden(x)
    cos_seq, sin_seq = _dft_matrices(length, length, x.dtype)
    stacked = jnp.concatenate([cosines, sines], axis=-2)
    sequence = jnp.concatenate([cos_seq, -sin_seq], axis=1)
    y = _product("mn,...nk->...mk", sequence, stacked)
    return mirror(y, y, dim)


@self_transpose
def matmul_fft(x):
    """Computes `definition` by a DFT matrix (hidden axis) and the FFTs of `packed`.

    Reverse-mode derivatives only.
    """
    cosines, sines = along_hidden(x)
    y = along_text(lax.complex(cosines, -sines), x.shape[-1]).real
    return mirror(y, y, x.shape[-1])


@self_transpose
def four_step(x):
    """Computes `definition` by matrices only, in O(L D (D + N1 + N2)) for a length L = N1 N2.

    The four-step factorisation (Bailey 1990, J. Supercomputing 4:23-35): with m = N2 i + j and
    n = a + N1 c, exp(-2 pi i m n / L) is the product of DFT entries of size N1 in (i, a), of
    twiddle factors exp(-2 pi i j a / L) and of DFT entries of size N2 in (j, c). N1 is the largest
    divisor of L up to its square root; a prime length has N1 = 1 and needs the whole matrix.
    Features stay the last axis, so only whole rows are transposed. Reverse-mode only.

    Raises:
      UserError: if D or N2 is more than 65536.
    """
    length, dim = x.shape[-2:]
    outer, inner = factors(length)
    parts = jnp.concatenate(along_hidden(x), axis=-1)  # cosines, then sines
    parts = parts.reshape(*x.shape[:-2], outer, inner, parts.shape[-1])

    cos, sin = _dft_matrices(outer, outer, x.dtype)
    summed = _product("sai,...ijk->...sajk", jnp.stack([cos, sin]), parts)
    (cos_cos, cos_sin), (sin_cos, sin_sin) = (
        jnp.split(part, 2, axis=-1) for part in jnp.moveaxis(summed, -4, 0)
    )
    real, imaginary = cos_cos - sin_sin, -(sin_cos + cos_sin)  # (C - i S)(cosines - i sines)

    angle = 2 * np.pi / length * np.outer(np.arange(outer), np.arange(inner))
    angle = angle.reshape((1,) * (x.ndim - 2) + (outer, inner, 1))
    cos, sin = (jnp.asarray(f(angle), x.dtype) for f in (np.cos, np.sin))
    turned = (real * cos + imaginary * sin, imaginary * cos - real * sin)

    matrices = jnp.concatenate(_dft_matrices(inner, inner, x.dtype), axis=1)
    stacked = jnp.concatenate(turned, axis=-2)
    y = _product("cj,...ajk->...cak", matrices, stacked)
    y = y.reshape(*x.shape[:-1], y.shape[-1])
    return mirror(y, y, dim)


def factors(length):
    """Returns N1 and N2 = L / N1 of `four_step`."""
    outer = next(n for n in range(math.isqrt(length), 0, -1) if length % n == 0)
    return outer, length // outer


def along_hidden(x):
    """Computes columns 0 .. D // 2 of x C and x S over the last axis: two [..., L, D // 2 + 1]."""
    dim = x.shape[-1]
    matrices = jnp.concatenate(_dft_matrices(dim, dim // 2 + 1, x.dtype), axis=1)
    both = flat_product(x, matrices, precision=lax.Precision.HIGHEST)
    cosines, sines = jnp.split(both, 2, axis=-1)
    return cosines, sines


def mirror(left, right, dim):
    """Completes columns 0 .. dim // 2 of y to all `dim` by y[-n, -k] = right[n, k].

    It sums zero-padded pieces, which XLA fuses into one pass; joining the pieces by concatenate
    costs as much as the transform itself.

    Args:
      left: the first dim // 2 + 1 columns, [..., L, dim // 2 + 1].
      right: the columns that the others mirror, of the same shape.
      dim: number of columns of the result.

    Returns:
      [..., L, dim].
    """
    length, columns = left.shape[-2:]
    flipped = jnp.flip(right[..., 1 : dim - columns + 1], (-2, -1))  # row i is row L - 1 - i

    def place(piece, row, column):
        rows = (row, length - row - piece.shape[-2], 0)
        cols = (column, dim - column - piece.shape[-1], 0)
        zero = jnp.zeros((), left.dtype)
        return lax.pad(piece, zero, [(0, 0, 0)] * (left.ndim - 2) + [rows, cols])

    return (
        place(left, 0, 0)
        + place(flipped[..., :-1, :], 1, columns)
        + place(flipped[..., -1:, :], 0, columns)
    )


def _dft_matrices(size, columns, dtype):
    """Returns cosine and sine of 2 pi n k / size, n < size and k < columns: two [size, columns].

    Large ones are computed by the program that uses them: as constants, those of 16384 positions
    would add 2 GB to it.
    """
    if size <= CONSTANT_MAX_SIZE:
        angle = 2 * np.pi / size * (np.arange(size)[:, None] * np.arange(columns)[None] % size)
        return jnp.asarray(np.cos(angle), dtype), jnp.asarray(np.sin(angle), dtype)
    if size > MATRIX_MAX_SIZE:
        raise UserError(
            f"a DFT matrix takes at most {MATRIX_MAX_SIZE} entries a side, got {size}: "
            "set Fourier.method to rfft"
        )
    n, k = (lax.broadcasted_iota(jnp.uint32, (size, columns), axis) for axis in (0, 1))
    # 32 unsigned bits hold n k, so the angle, in [-pi, pi], is accurate to 4e-7 in float32.
    turns = n * k % size
    signed = turns.astype(jnp.int32) - jnp.where(turns > size // 2, size, 0)
    angle = (2 * np.pi / size) * signed.astype(dtype)
    return jnp.cos(angle), jnp.sin(angle)


TRANSFORMS = {f.__name__: f for f in (definition, rfft, packed, matmul, matmul_fft, four_step)}


def fastest_method(shape) -> str:
    """Returns the method of "auto" for inputs [B, L, D] on the default device.

    Small inputs take the paper's choice (Sec. 3.3): matrices on a TPU up to 4096 tokens, else the
    FFT, `packed` on a CPU with several cores. For larger ones the methods without a sequence matrix
    of more than 4096 entries a side are measured once (see `fastest.fastest`), and one that is at
    least 1.2 times as fast replaces the paper's choice.
    """
    length = shape[-2]
    on_tpu = jax.default_backend() == "tpu"
    threads = max(jax.process_count(), device.threads())
    fft = "packed" if jax.default_backend() == "cpu" and threads > 1 else "rfft"
    usual = "matmul" if on_tpu and length <= TPU_MATMUL_MAX_LEN else fft
    if math.prod(shape) < MEASURED_MIN_SIZE:
        return usual
    candidates = {fft: TRANSFORMS[fft], "matmul_fft": matmul_fft}
    if factors(length)[1] <= TPU_MATMUL_MAX_LEN:
        candidates["four_step"] = four_step
    if length <= TPU_MATMUL_MAX_LEN:
        candidates["matmul"] = matmul
    return fastest.fastest("fourier method", candidates, shape, usual)


def fourier_mix(x, method="auto", scale="none"):
    """Computes Re(F_seq(F_hidden(x))).

    Args:
      x: [..., L, D] real; transformed in float32 (or wider) and returned in its own dtype.
      method: "auto" (see `fastest_method`) or one of TRANSFORMS, which differ by rounding only.
      scale: "none", unnormalised as in the paper, or "ortho", divided by sqrt(L D).
    """
    if method == "auto":
        shape = "x".join(map(str, x.shape))
        method = fastest.decide(f"fourier {shape}", lambda: fastest_method(x.shape))
    y = TRANSFORMS[method](x.astype(jnp.promote_types(x.dtype, jnp.float32)))
    return scaled(y, x.shape, scale).astype(x.dtype)


def scaled(y, shape, scale):
    """Divides y by sqrt(L D), of the shape [..., L, D], if the scale is "ortho"."""
    return y * np.asarray(math.prod(shape[-2:]) ** -0.5, y.dtype) if scale == "ortho" else y


@gin.configurable
class Fourier(FixedTransform):
    """FNet's mixing: see `fourier_mix`.

    Unscaled, its outputs are up to sqrt(L D) times as large as its inputs. At initialisation on
    ListOps in preset `paper` their rms is 710 in the first layer and 1,012 in each other one, where
    LayerNorm gives inputs of 1 and an MLP returns 0.48: in a pre-norm block the mixing covers all
    that the MLPs add (docs/differences.md). "ortho" keeps the size: applied twice, the map then
    returns the even part of its input, (x[n, k] + x[-n, -k]) / 2.
    """

    method: Literal["auto", "definition", "rfft", "packed", "matmul", "matmul_fft", "four_step"]
    # "ortho" divides by sqrt(L D), with L the length of the transform, padding included.
    scale: Literal["none", "ortho"] = "none"

    uses_first_only: ClassVar[bool] = True

    @property
    def growth(self) -> tuple[float, float]:
        """The method "matmul" has matrices of L x L entries."""
        return (2, 2) if self.method == "matmul" else (1, 1)

    @property
    def speed_only(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """By matrices the numbers are those of the model `fnet`."""
        return self.method == "matmul"

    def __call__(self, x, mask, *, train, first_only=False):
        """See `FixedTransform`; with first_only -> [B, 1, D].

        At position 0 the transform along the text is the sum over it.
        """
        if not first_only:
            return super().__call__(x, mask, train=train)
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        y = jnp.fft.fft(wide.sum(axis=-2, keepdims=True)).real
        return scaled(y, x.shape, self.scale).astype(x.dtype)

    def transform(self, x):
        """See `fourier_mix`; while the model is initialised, "auto" measures nothing."""
        unused = self.method == "auto" and self.is_initializing()  # the output, by `init`
        return fourier_mix(x, "rfft" if unused else self.method, self.scale)
