"""Diagonal state-space layers: S4D, S5 and LRU, bidirectional, with a gate at the end.

P is the number of complex modes of a state. States and kernels are computed in float32 (or wider)
at any dtype of the encoder. Padding counts as zeros, which leave no trace at real tokens.
"""

import functools
from typing import Annotated, ClassVar, Literal

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.models.gate import Gate, GateKind
from lra_fnet.models.kernel_mixer import KernelMixer
from lra_fnet.models.kernels.pointwise import flat_product
from lra_fnet.models.kernels.recurrence import Method, linear_recurrence, normal_hippo
from lra_fnet.models.mixer import Mixer
from lra_fnet.settings import Least


def modes(mixer, name, shape, init):
    """Returns a complex parameter of the mixer, stored as real and imaginary parts [2, *shape].

    Args:
      mixer: the module, inside its compact call.
      name: of the parameter.
      shape: of the complex array.
      init: (key, shape) -> complex array.
    """

    def parts(key):
        value = init(key, shape)
        return jnp.stack([value.real, value.imag]).astype(jnp.float32)

    return mixer.param(name, parts)


def as_complex(parts, dtype):
    """Joins the real and imaginary parts [2, ...] to complex numbers of twice the dtype's width."""
    return lax.complex(*parts.astype(dtype))


def log_uniform(low, high):
    """Returns an initialiser: logarithms of numbers drawn uniformly on a logarithmic scale."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, np.log(low), np.log(high))

    return init


def in_every_channel(a, dim):
    """Returns an initialiser: ln(-Re a) and Im a of modes a [P] for each channel, [2, D, P]."""
    parts = np.stack([np.log(-np.real(a)), np.imag(a)])
    return lambda key: jnp.asarray(np.broadcast_to(parts[:, None], (2, dim, len(a))), jnp.float32)


def complex_normal(deviation):
    """Returns an initialiser: complex normal numbers, each part with this standard deviation."""

    def init(key, shape):
        return lax.complex(*(deviation * jax.random.normal(key, (2, *shape))))

    return init


_product = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)
_dense = functools.partial(flat_product, precision=lax.Precision.HIGHEST)


@gin.configurable
class S4D(KernelMixer):
    """One state space per channel, as a convolution (Gu et al., arXiv:2206.11893).

    The kernel of a channel is K[l] = 2 Re(sum over p of C[p] B[p] exp(l dt A[p])) with the input
    matrix after zero-order hold, B[p] = (exp(dt A[p]) - 1) / A[p] (the input matrix is 1 and its
    trained values are absorbed in C). A second C serves the other direction. O(L log L).
    """

    state: Annotated[int, Least(2, suggest=64, multiple=2)]  # N = 2 P real dimensions per channel
    initial: Literal["legs", "lin"]  # of A: eigenvalues of HiPPO's normal part, or -1/2 + i pi p
    dt_min: float
    dt_max: float

    separable: ClassVar[tuple[str, ...]] = ("a", "c", "log_dt")

    def kernels(self, length, dtype, *, train):
        """See `KernelMixer.kernels`."""
        shape = (self.dim, self.state // 2)
        start = normal_hippo(self.state)[0]
        if self.initial == "lin":
            start = -0.5 + 1j * np.pi * np.arange(len(start))
        log_real, imaginary = self.param("a", in_every_channel(start, self.dim)).astype(dtype)
        a = lax.complex(-jnp.exp(log_real), imaginary)
        c = as_complex(modes(self, "c", (2, *shape), complex_normal(0.5**0.5)), dtype)
        log_dt = self.param("log_dt", log_uniform(self.dt_min, self.dt_max), (self.dim,))
        dt_a = jnp.exp(log_dt.astype(dtype))[:, None] * a
        ahead, back = 2 * vandermonde(c * (jnp.expm1(dt_a) / a)[None], dt_a, length)
        return ahead, back


def vandermonde(weights, exponents, length):
    """Computes K[l, d] = Re(sum over p of weights[d, p] exp(l exponents[d, p])), l < length.

    With l = M i + j the powers factor into [D, P, L / M] and [D, P, M] for M about sqrt(L), so
    their products take D P L operations but no array of that size.

    Args:
      weights: [C, D, P], complex, or real as the exponents.
      exponents: [D, P], complex or real.
      length: L.

    Returns:
      Real [C, L, D].
    """
    size = int(np.ceil(np.sqrt(length)))
    real = exponents.real.dtype
    steps = jnp.arange(size, dtype=real)
    fine, coarse = (jnp.exp(exponents[..., None] * m[None, None]) for m in (steps, size * steps))
    left = weights[..., None] * coarse[None]
    if jnp.iscomplexobj(left):
        # Real products only: Re(u v) = Re(u) Re(v) - Im(u) Im(v).
        left = jnp.concatenate([left.real, -left.imag], axis=2)
        fine = jnp.concatenate([fine.real, fine.imag], axis=1)
    k = _product("cdpi,dpj->cijd", left, fine)
    return k.reshape(len(k), size * size, k.shape[-1])[:, :length]


class Recurrent(Mixer):
    """One diagonal state for all channels: y = Re(C x) + D u, x the states of a recurrence of B u.

    A subclass defines `system`. Two matrices C serve the two directions.
    """

    method: Method  # of the scan; affects speed and memory only
    gate: GateKind

    uses_mask: ClassVar[bool] = True

    @nn.compact
    def __call__(self, u, mask, *, train):
        """Mixes u [B, L, D] under mask bool [B, L] -> [B, L, D]."""
        dtype = jnp.promote_types(u.dtype, jnp.float32)
        wide = jnp.where(mask[..., None], u, 0).astype(dtype)
        exponent, b, c, skip = self.system(dtype)
        into = jnp.concatenate([b.real, b.imag]).T  # real products only: [D, 2 P]
        inputs = lax.complex(*jnp.split(_dense(wide, into), 2, axis=-1))
        directions = (
            linear_recurrence(exponent, inputs, reverse=reverse, method=self.method)
            for reverse in (False, True)
        )
        states = jnp.concatenate([part for x in directions for part in (x.real, -x.imag)], axis=-1)
        out = jnp.concatenate([part for one in c for part in (one.real, one.imag)], axis=-1)
        y = _dense(states, out.T) + skip[None, None] * wide
        return Gate(self.dim, self.gate, name="gate")(y.astype(u.dtype))

    def system(self, dtype):
        """Returns the discrete system: the decays' logarithms [P], B [P, D], C [2, D, P], D [D].

        All but D are complex.
        """
        raise NotImplementedError(f"{type(self).__name__} must define system")


@gin.configurable
class S5(Recurrent):
    """A state space with many inputs and outputs (Smith et al., arXiv:2208.04933).

    The state matrix begins as `blocks` copies of HiPPO's normal part, diagonalised; zero-order hold
    discretises it (Sec. 2.1, Eq. 6). Modes come in conjugate pairs, of which one is computed. Real
    parts of eigenvalues count as -1e-4 at most, so that no state grows (the authors' clip_eigs).
    """

    state: Annotated[int, Least(2, suggest=64)]  # 2 P real dimensions
    blocks: Annotated[int, Least(1, suggest=1)]  # J; 2 J divides the state
    dt_min: float
    dt_max: float
    # How B and C begin; all but the first are the authors' values of C_init: see `system`.
    initial: Literal["fan_in", "lecun_normal", "trunc_standard_normal", "complex_normal"] = "fan_in"

    separable: ClassVar[tuple[str, ...]] = ("lambda", "b", "log_dt")

    def check(self):
        """Raises a UserError for blocks that do not fit."""
        if self.state % (2 * self.blocks):
            raise UserError(
                f"S5.state must be a multiple of 2 * blocks = {2 * self.blocks}, got {self.state}: "
                "change one of them"
            )

    def system(self, dtype):
        """See the paper's Sec. 3 and App. B.1.

        Before the change of basis, with `initial` "fan_in", B begins with LeCun's variance, 1 / D,
        and C, which is real, with half of it, 1 / (2 state), since y sums two directions. In the
        authors' code (lindermanlab/S5 at 3c18fdb, ssm_init.py) B begins with the variance
        1 / state, and C is complex; each part has the variance 1 / (D state) for "lecun_normal" and
        1 / state for "trunc_standard_normal". For "complex_normal" C has E|c|^2 = 1 after the
        change of basis.
        """
        eigenvalues, vectors = normal_hippo(self.state // self.blocks)
        size, half = self.state // self.blocks, self.state // 2
        shape = (self.blocks, size, self.dim)
        lecun = nn.initializers.lecun_normal()
        scale = {"lecun_normal": 1 / self.dim, "trunc_standard_normal": 1.0}.get(self.initial)

        def decays(key):
            parts = np.tile(np.stack([np.real(eigenvalues), np.imag(eigenvalues)]), self.blocks)
            return jnp.asarray(parts, jnp.float32)

        def inputs(key, _):
            if self.initial == "fan_in":
                b = lecun(key, (self.dim, self.state)).T.reshape(shape)
            else:
                b = lecun(key, (self.state, self.dim)).reshape(shape)
            return jnp.einsum("np,jnd->jpd", vectors.conj(), b).reshape(half, self.dim)

        def outputs(key, _):
            if self.initial == "complex_normal":
                return complex_normal(0.5**0.5)(key, (2, self.dim, half))
            if scale is None:
                c = lecun(key, (2, self.state, self.dim)).reshape(2, *shape)
            else:
                draw = nn.initializers.variance_scaling(
                    scale, "fan_in", "truncated_normal", in_axis=2, out_axis=3, batch_axis=(0, 1)
                )
                parts = draw(key, (2, 2, self.state, self.dim))
                c = lax.complex(*parts).reshape(2, *shape)
            return jnp.einsum("cjnd,np->cdjp", c, vectors).reshape(2, self.dim, half)

        real, imaginary = self.param("lambda", decays).astype(dtype)
        eigen = lax.complex(jnp.minimum(real, -1e-4), imaginary)
        b = as_complex(modes(self, "b", (half, self.dim), inputs), dtype)
        c = as_complex(modes(self, "c", (2, self.dim, half), outputs), dtype)
        log_dt = self.param("log_dt", log_uniform(self.dt_min, self.dt_max), (half,))
        skip = self.param("skip", nn.initializers.normal(1.0), (self.dim,)).astype(dtype)
        dt_a = eigen * jnp.exp(log_dt.astype(dtype))
        return dt_a, (jnp.expm1(dt_a) / eigen)[:, None] * b, 2 * c, skip


@gin.configurable
class LRU(Recurrent):
    """The linear recurrent unit (Orvieto et al., arXiv:2303.06349).

    decay = exp(-exp(nu) + i exp(theta)) begins uniformly on a ring in the complex plane (Lemma
    3.2), and exp(gamma), at first sqrt(1 - |decay|^2), scales the inputs (Sec. 3.3 and 3.4).
    """

    state: Annotated[int, Least(1, suggest=64)]  # P complex modes
    radius_min: float
    radius_max: float
    max_phase: float  # radians

    separable: ClassVar[tuple[str, ...]] = ("decay", "gamma", "b")

    def system(self, dtype):
        """See the paper's App. A."""

        def ring(key):
            radius, phase = jax.random.uniform(key, (2, self.state), minval=1e-6)
            span = self.radius_max**2 - self.radius_min**2
            log_radius = 0.5 * jnp.log(radius * span + self.radius_min**2)
            log_radius = jnp.minimum(log_radius, -1e-7)  # of a radius that rounds to 1
            return jnp.stack([jnp.log(-log_radius), jnp.log(self.max_phase * phase)])

        nu, theta = self.param("decay", ring).astype(dtype)
        exponent = lax.complex(-jnp.exp(nu), jnp.exp(theta))
        gamma = self.param(
            "gamma", lambda key: 0.5 * jnp.log(-jnp.expm1(-2 * jnp.exp(nu))).astype(jnp.float32)
        )
        b_init, c_init = (complex_normal(n**-0.5) for n in (2 * self.dim, self.state))
        b = as_complex(modes(self, "b", (self.state, self.dim), b_init), dtype)
        c = as_complex(modes(self, "c", (2, self.dim, self.state), c_init), dtype)
        skip = self.param("skip", nn.initializers.normal(1.0), (self.dim,)).astype(dtype)
        return exponent, jnp.exp(gamma.astype(dtype))[:, None] * b, c, skip
