"""Mamba: a state space whose matrices depend on the token (Gu and Dao, arXiv:2312.00752).

E = expand D is the number of channels inside, N that of real states per channel. States are
computed in float32 (or wider) at any dtype of the encoder.
"""

import functools
from typing import Annotated, ClassVar

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.models.kernels.convolve import window
from lra_fnet.models.kernels.pointwise import flat_product, recompute
from lra_fnet.models.kernels.recurrence import Method
from lra_fnet.models.kernels.selective_scan import selective_scan
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.state_space import log_uniform
from lra_fnet.settings import Least


@gin.configurable
class Mamba(Mixer):
    """The block of the paper's Fig. 3: out((y + skip u) * SiLU(gate)), y the selective scan of u.

    One matrix projects x to a value and a gate, of E channels each. u is SiLU of the value after a
    causal depthwise convolution; the numbers B and C and the steps of the scan are projections of
    u (Sec. 3.2, Algorithm 2), the steps through ceil(D / 16) numbers and a softplus. Dense layers
    have no bias. Parameters begin as in the authors' code, where the output matrix is divided by
    the root of the number of layers.

    The published model is causal. With `bidirectional`, the value is also read from the end to the
    start, by a convolution and a scan with their own parameters. Both share the projections and
    the gate, as in Vision Mamba (Zhu et al., arXiv:2401.09417, Algorithm 1).

    Padding is zero before the convolution, and the steps are 0 there, so that states pass over it.
    """

    state: Annotated[int, Least(1, suggest=16)]  # N
    expand: Annotated[int, Least(1, suggest=2)]  # E / D
    width: Annotated[int, Least(1, suggest=4)]  # tokens in the window of the convolution
    dt_min: float  # the range of the steps at first, where u is zero
    dt_max: float
    bidirectional: bool
    method: Method  # of the scan; affects speed and memory only

    uses_mask: ClassVar[bool] = True
    separable: ClassVar[tuple[str, ...]] = ("a_log", "dt_bias", "skip")

    @property
    def first_alone(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Mixer`."""
        return not self.bidirectional

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D] under mask bool [B, L] -> [B, L, D]."""
        channels, rank = self.expand * self.dim, -(-self.dim // 16)
        dense = functools.partial(nn.Dense, use_bias=False, dtype=x.dtype, dot_general=flat_product)
        directions = 1 + self.bidirectional

        def parameter(name, init, *shape):
            """Returns a parameter of each direction, [directions, *shape].

            It is stored with the directions in its first axis, so that a vector stays one, which
            Optimizer.decay_mask = "matrices" spares.
            """
            stored = self.param(name, init, (directions * shape[0], *shape[1:]))
            return stored.reshape(directions, *shape)

        parameters = (
            parameter("taps", _within(self.width**-0.5), self.width, channels),
            parameter("bias", _within(self.width**-0.5), channels),
            parameter("select", _within(channels**-0.5), channels, rank + 2 * self.state),
            parameter("dt", _within(rank**-0.5), rank, channels),
            parameter("dt_bias", self._first_steps, channels),
            parameter("a_log", _logarithms, channels, self.state),
            parameter("skip", nn.initializers.ones, channels),
        )
        project = dense(2 * channels, kernel_init=_within(self.dim**-0.5), name="project")
        x = jnp.where(mask[..., None], x, 0)
        value, gate = jnp.split(project(x), 2, axis=-1)
        y = self._read(value, mask, *(leaf[0] for leaf in parameters))
        if self.bidirectional:
            back = self._read(value[:, ::-1], mask[:, ::-1], *(leaf[1] for leaf in parameters))
            y = y + back[:, ::-1]
        init = _within((channels * self.num_layers) ** -0.5)
        out = dense(self.dim, kernel_init=init, name="out")
        return out(recompute(_gated, y, gate))

    def _read(self, value, mask, taps, bias, select, dt, dt_bias, a_log, skip):
        """Reads the value [B, L, E] in one direction -> [B, L, E], float32 or wider."""
        u = recompute(_convolved, value, taps, bias)
        selected = flat_product(u, select.astype(u.dtype))
        low, b, c = jnp.split(selected, [len(dt), len(dt) + self.state], axis=-1)
        wide = jnp.promote_types(u.dtype, jnp.float32)
        dt, dt_bias, a_log, skip = (leaf.astype(wide) for leaf in (dt, dt_bias, a_log, skip))
        step = recompute(_steps, low.astype(wide), dt, dt_bias, mask)
        y = selective_scan(u, step, -jnp.exp(a_log), b, c, method=self.method)
        return y + skip[None, None] * u.astype(wide)

    def _first_steps(self, key, shape):
        """Draws biases whose softplus is log-uniform between dt_min and dt_max."""
        step = jnp.exp(log_uniform(self.dt_min, self.dt_max)(key, shape))
        return step + jnp.log(-jnp.expm1(-step))


def _logarithms(_, shape):
    """Returns log(1), ..., log(N) in each row: the decay rates of S4D-real (Sec. 3.6)."""
    return jnp.broadcast_to(jnp.log(jnp.arange(1.0, shape[1] + 1))[None], shape)


def _within(bound):
    """Returns an initialiser: numbers drawn uniformly from -bound to bound."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def _convolved(x, taps, bias):
    """Computes SiLU(bias + sum over i of taps[i] x[n - K + 1 + i]), zeros before the start."""
    taps, bias = taps.astype(x.dtype), bias.astype(x.dtype)
    return nn.silu(window(x, taps, len(taps) - 1) + bias[None, None])


def _steps(low, kernel, bias, mask):
    """Computes softplus(low kernel + bias), [B, L, E]; 0 at padding."""
    product = flat_product(low, kernel, precision=lax.Precision.HIGHEST)
    return jnp.where(mask[..., None], jax.nn.softplus(product + bias[None, None]), 0)


def _gated(y, gate):
    """Computes y SiLU(gate) in the gate's dtype: the product in that of y."""
    return (y * nn.silu(gate.astype(y.dtype))).astype(gate.dtype)
