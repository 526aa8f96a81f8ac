"""Convolutions with kernels as long as the text, by FFT."""

import jax.numpy as jnp

from lra_fnet.models.pointwise import recompute


def fast_size(length, real=False):
    """Returns the smallest size of a fast FFT that is at least `length`."""
    import scipy.fft  # late: it brings numpy.f2py, a tenth of the start

    return scipy.fft.next_fast_len(length, real)


def long_convolution(x, ahead, back):
    """Convolves each channel with a kernel over all offsets, without wrapping around.

    y[n] = sum over m <= n of ahead[n - m] x[m] + sum over m > n of back[m - n - 1] x[m].

    The backward pass computes the spectra of x and of the kernel again. Reverse-mode derivatives
    only.

    Args:
      x: [B, L, D], float32 or float64.
      ahead: [L, D], the influence of a token on itself and on those after it.
      back: [L, D], its influence on those before it; the last entry has no effect.

    Returns:
      [B, L, D].
    """
    return recompute(_long_convolution, x, ahead, back)


def _long_convolution(x, ahead, back):
    length = x.shape[1]
    size = fast_size(2 * length - 1, real=True)
    gap = jnp.zeros((size - 2 * length + 1, x.shape[2]), x.dtype)
    kernel = jnp.concatenate([ahead, gap, back[: length - 1][::-1]])
    spectrum = jnp.fft.rfft(x, size, axis=1) * jnp.fft.rfft(kernel, axis=0)[None]
    return jnp.fft.irfft(spectrum, size, axis=1)[:, :length]
