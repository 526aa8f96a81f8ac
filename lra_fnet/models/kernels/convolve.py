"""Depthwise convolutions: within a window, and by FFT with kernels as long as the sequence."""

import jax
import jax.numpy as jnp


def fast_size(length, real=False):
    """Returns the smallest size of a fast FFT that is at least `length`."""
    import scipy.fft  # late: it brings numpy.f2py, a tenth of the start

    return scipy.fft.next_fast_len(length, real)


def window(x, taps, before=None):
    """Computes y[n, d] = sum over i of taps[i, d] x[n + i - before, d], zeros outside.

    It adds in float32, or wider if x is.

    Args:
      x: [B, L, D].
      taps: [K, D].
      before: tokens of the window on the left of the output's own; None: (K - 1) // 2.

    Returns:
      [B, L, D] in x.dtype.
    """
    width, length = len(taps), x.shape[1]
    before = (width - 1) // 2 if before is None else before
    wide = jnp.promote_types(x.dtype, jnp.float32)
    padded = jnp.pad(x, ((0, 0), (before, width - 1 - before), (0, 0))).astype(wide)
    taps = taps.astype(wide)
    shifted = (padded[:, i : i + length] * taps[i, None, None] for i in range(width))
    return jnp.asarray(sum(shifted)).astype(x.dtype)


@jax.custom_vjp
def long_convolution(x, ahead, back):
    """Convolves each channel with a kernel over all offsets, without wrapping around.

    y[n] = sum over m <= n of ahead[n - m] x[m] + sum over m > n of back[m - n - 1] x[m].

    The backward pass keeps both spectra and takes real transforms only; that of jnp.fft.rfft takes
    complex ones of the whole size. Reverse-mode derivatives only.

    Args:
      x: [B, L, D], float32 or float64.
      ahead: [L, D], the influence of a token on itself and on those after it.
      back: [L, D], its influence on those before it; the last entry has no effect.

    Returns:
      [B, L, D].
    """
    return _forward(x, ahead, back)[0]


def _forward(x, ahead, back):
    length = x.shape[1]
    size = _size(length)
    gap = jnp.zeros((size - 2 * length + 1, x.shape[2]), x.dtype)
    kernel = _spectrum(jnp.concatenate([ahead, gap, back[: length - 1][::-1]]), size)
    spectrum = _spectrum(x, size)
    return _signal(spectrum * kernel[None], size)[:, :length], (spectrum, kernel)


def _backward(kept, cotangent):
    spectrum, kernel = kept
    length = cotangent.shape[1]
    size = _size(length)
    slope = _spectrum(cotangent, size)
    of_x = _signal(slope * kernel.conj()[None], size)[:, :length]
    of_kernel = _signal((slope * spectrum.conj()).sum(axis=0), size)
    of_back = jnp.pad(of_kernel[size - length + 1 :][::-1], ((0, 1), (0, 0)))
    return of_x, of_kernel[:length], of_back


long_convolution.defvjp(_forward, _backward)


def _size(length):
    return fast_size(2 * length - 1, real=True)


def _spectrum(x, size):
    """Transforms [..., L, D] along L, zero-padded to `size` -> [..., D, size // 2 + 1]."""
    return jnp.fft.rfft(jnp.swapaxes(x, -1, -2), size)


def _signal(spectrum, size):
    return jnp.swapaxes(jnp.fft.irfft(spectrum, size), -1, -2)
