"""S4: a state space per channel whose state matrix is diagonal plus low rank, as a convolution."""

from typing import Annotated, ClassVar

import gin
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.models.kernel_mixer import KernelMixer
from lra_fnet.models.kernels.recurrence import normal_hippo
from lra_fnet.models.mixers import state_space
from lra_fnet.models.mixers.state_space import as_complex, complex_normal, modes
from lra_fnet.settings import Least


@gin.configurable
class S4(KernelMixer):
    """The structured state space (Gu et al., arXiv:2111.00396), bidirectional, gated at the end.

    The state matrix of a channel is A = diag(a) - p p^* (so no state grows: arXiv:2202.09729, Sec.
    3.2) and begins as the HiPPO-LegS matrix itself, of which S4D keeps the diagonal part only. The
    input matrix b begins as HiPPO's, but with no entry larger than 2, about as in the authors' code
    (state-spaces/s4 at e757cef, B_clip). The bilinear rule discretises the system. As in the paper,
    the trained output matrix is that of a kernel cut at max_len, c (I - A^max_len) with the
    discrete A; it begins with c complex normal. A second one serves the other direction.
    O(L (log L + state)).
    """

    state: Annotated[int, Least(2, suggest=64, multiple=2)]  # N = 2 P real dimensions per channel
    dt_min: float
    dt_max: float

    bound_to_max_len: ClassVar[bool] = True
    separable: ClassVar[tuple[str, ...]] = ("a", "p", "b", "c", "log_dt")

    def kernels(self, length, dtype, *, train):
        """See `KernelMixer.kernels`."""
        eigenvalues, vectors = normal_hippo(self.state)
        shape = (self.dim, self.state // 2)
        low_rank = vectors.conj().T @ (np.arange(self.state) + 0.5) ** 0.5
        inputs = 2**0.5 * low_rank
        inputs /= np.maximum(np.abs(inputs) / 2, 1)

        def everywhere(values):
            return lambda *_: jnp.broadcast_to(jnp.asarray(values), shape)

        def outputs(key, shape):
            c = complex_normal(0.5**0.5)(key, shape)
            return cut(c, jnp.exp(log_dt), self.max_len)

        log_real, imaginary = self.param(
            "a", state_space.in_every_channel(eigenvalues, self.dim)
        ).astype(dtype)
        p, b = (
            as_complex(modes(self, name, shape, everywhere(values)), dtype)
            for name, values in {"p": low_rank, "b": inputs}.items()
        )
        steps = state_space.log_uniform(self.dt_min, self.dt_max)
        log_dt = self.param("log_dt", steps, (self.dim,))
        c = as_complex(modes(self, "c", (2, *shape), outputs), dtype)
        dt = jnp.exp(log_dt.astype(dtype))[:, None]
        a = dt * lax.complex(-jnp.exp(log_real), imaginary)
        ahead, back = jax.checkpoint(dplr_kernel, static_argnums=4)(
            a, jnp.sqrt(dt) * p, dt * b, c, self.max_len
        )
        return ahead[:length], back[:length]


def dplr_kernel(a, p, b, c, length):
    """Computes K[k] = c (I - A^length)^-1 A^k B, k < length, of x' = (diag(a) - p p^*) x + b u.

    A and B are discrete, by the bilinear rule with a step of 1. K's Fourier transform is a rational
    function at the roots of unity z = exp(-i theta) (arXiv:2111.00396, App. C.3): the bilinear rule
    takes z to the imaginary number 2 i tan(theta / 2), the sums over modes are Cauchy products, and
    the Woodbury identity adds the low rank. All fractions are expanded by cos(theta / 2), so that
    they are finite at theta = pi too, and modes are paired with their conjugates.

    Args:
      a: complex [D, P], with negative real parts; the conjugates of all modes count too.
      p: complex [D, P].
      b: complex [D, P].
      c: complex [C, D, P].
      length: L, the largest k plus 1.

    Returns:
      Real [C, L, D].
    """
    half = np.pi * np.arange(length // 2 + 1)[None, None] / length
    sine, cosine = (jnp.asarray(f(half), a.real.dtype) for f in (np.sin, np.cos))
    size = jnp.abs(a)[..., None]
    # One over (2 i tan(theta / 2) - a) times the same with a's conjugate, expanded twice.
    real = (size * cosine - 2 * sine) * (size * cosine + 2 * sine)
    imaginary = -4 * a.real[..., None] * sine * cosine
    norm = real**2 + imaginary**2
    inverse = jnp.concatenate([real / norm, -imaginary / norm], axis=-1)  # [D, P, 2 F]
    residues = jnp.concatenate(
        [c * b[None], c * p[None], (p.conj() * b)[None], (p.conj() * p)[None]]
    )
    weights = jnp.stack([residues.real, (residues * a.conj()[None]).real])
    sums = jnp.einsum("wvdp,dpf->wvdf", weights, inverse, precision=lax.Precision.HIGHEST)
    first, second = lax.complex(*jnp.split(sums, 2, axis=-1))
    out, mixed, into, inner = jnp.split(
        4j * sine * first - 2 * cosine * second, np.cumsum([len(c), len(c), 1])
    )
    spectrum = out - cosine * mixed * into / (1 + cosine * inner)
    spectrum = lax.complex(cosine, sine) * spectrum
    return jnp.swapaxes(jnp.fft.irfft(spectrum, length), 1, 2)


def cut(c, dt, length):
    """Returns c (I - A^length) for the discrete HiPPO-LegS matrix A of each channel.

    Args:
      c: complex [C, D, P], in the basis of `normal_hippo`; the conjugates of all modes count too.
      dt: [D], steps of the bilinear rule.
      length: the power of A.

    Returns:
      complex [C, D, P].
    """
    # The resolvent (I - dt / 2 A)^-1 by the Woodbury identity, not by LAPACK: on a CPU of two cores
    # the batched solvers of two layers, started at the same time, wait for each other's threads.
    half = 0.5 * dt[:, None]
    eigenvalues, vectors = normal_hippo(2 * c.shape[-1])
    low_rank = vectors.conj().T @ (np.arange(len(vectors)) + 0.5) ** 0.5
    inverse = 1 / (1 - half * eigenvalues[None])  # [D, P]
    with jax.default_matmul_precision("highest"):

        def real(modes):
            """From the basis of the eigenvectors, with the conjugates of all modes [..., P]."""
            return 2 * (modes @ vectors.T).real

        column, row = real(inverse * low_rank[None]), real(inverse.conj() * low_rank[None])
        inner = 2 * (inverse * np.abs(low_rank[None]) ** 2).real.sum(axis=1, keepdims=True)
        diagonal = real(inverse[:, None] * vectors.conj()[None])  # [D, N, N], transposed
        resolvent = jnp.swapaxes(diagonal, 1, 2) - (
            (half / (1 + half * inner) * column)[..., None] * row[:, None]
        )
        discrete = 2 * resolvent - np.eye(len(vectors))[None]
        power = jnp.linalg.matrix_power(discrete, length)
        rows = 2 * (c @ vectors.conj().T).real
        return (rows - jnp.einsum("cdm,dmn->cdn", rows, power)) @ vectors
