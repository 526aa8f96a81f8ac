"""Mega: attention of one head, gated, after a moving average (Ma et al., arXiv:2209.10655).

Z is the width of queries and keys, V that of values, P the number of averages of a channel. The
moving average and attention weights are computed in float32 (or wider) at any dtype of the encoder.
"""

import functools
from typing import Annotated, ClassVar, Literal

import flax.linen as nn
import gin
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.models.kernels import blocks
from lra_fnet.models.kernels.convolve import long_convolution
from lra_fnet.models.kernels.pointwise import dropout, flat_product, recompute
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers import attention
from lra_fnet.models.mixers.state_space import vandermonde
from lra_fnet.settings import Least

DEVIATION = 0.02  # of kernels, scales and the relative positions at first: the authors' code


def moving_average(x, alpha, delta, beta, eta):
    """Computes the damped moving average of P dimensions (Sec. 3.1), in both directions.

    For one channel, from the start of the text,

        h[n, p] = alpha[p] beta[p] x[n] + (1 - alpha[p] delta[p]) h[n - 1, p],
        y[n] = sum over p of eta[p] h[n, p].

    The same from the end of the text with other parameters is added; a token counts in both. This
    is a convolution with the kernel K[l], the sum over p of
    eta[p] alpha[p] beta[p] (1 - alpha[p] delta[p])^l.

    Args:
      x: [B, L, D], float32 or float64.
      alpha: [2, D, P], ahead and back, in (0, 1].
      delta: [2, D, P], in (0, 1].
      beta: [2, D, P].
      eta: [2, D, P].

    Returns:
      [B, L, D].
    """
    shape = (-1, alpha.shape[-1])
    # Below 1, so that the logarithm of a decay that rounds to 0 is finite.
    exponents = jnp.log1p(-jnp.minimum(alpha * delta, 1 - 1e-7)).reshape(shape)
    weights = (eta * alpha * beta).reshape(1, *shape)
    ahead, back = jnp.split(vandermonde(weights, exponents, x.shape[1])[0], 2, axis=-1)
    ahead = ahead + jnp.pad(back[:1], ((0, x.shape[1] - 1), (0, 0)))
    return long_convolution(x, ahead, jnp.roll(back, -1, axis=0))


def laplace(x):
    """Computes (1 + erf((x - mu) / (sigma sqrt(2)))) / 2, mu^2 = 1 / 2, sigma^2 = 1 / (4 pi).

    It is close to the square of ReLU, with a bounded slope (Sec. 3.2, Eq. 16).
    """
    return 0.5 * (1 + lax.erf((x - np.sqrt(0.5)) * np.sqrt(2 * np.pi)))


def weigh_by_laplace(logits, valid, value, *, rate, rng):
    """Computes `laplace`(S) V over the valid keys; see `attention.weigh`."""
    weights = jnp.where(valid, laplace(logits), 0)
    if rate > 0:
        weights = dropout(weights, rng, rate)
    return blocks.weighted(weights.astype(value.dtype), value, value.dtype)


def chunked_attention(
    query, key, value, mask, bias, *, kind, chunk=None, block_size, rate=0.0, rng=None
):
    """Computes f(Q K^T / tau + bias[j - i]) V for query i and key j within each chunk of the text.

    f is a softmax with tau = sqrt(Z), or `laplace` with tau the number of keys in the chunk. No
    array has more than `block_size` rows of weights; the backward pass computes them again.

    Args:
      query: [B, L, Z].
      key: [B, L, Z].
      value: [B, L, V].
      mask: bool [B, L], True at keys that may be attended to.
      bias: [2 C - 1], of the offsets 1 - C to C - 1; C is at least the length of a chunk.
      kind: "softmax" or "laplace".
      chunk: adjacent positions that see each other; None for all. The last one may be shorter.
      block_size: queries of a chunk at a time.
      rate: dropout probability of each weight.
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, V] in value's dtype; zeros where a chunk has no key.
    """
    batch, length = mask.shape
    size = min(chunk or length, length)
    query, key, value, mask = (
        blocks.cut(a[:, None], size).reshape(-1, 1, size, a.shape[-1])
        for a in (query, key, value, mask[..., None])
    )
    mask = mask[:, 0, :, 0]
    if kind == "softmax":
        query = query * query.shape[-1] ** -0.5
    else:
        query = query / jnp.maximum(mask.sum(axis=1), 1)[:, None, None, None].astype(query.dtype)
    middle = len(bias) // 2
    bias = bias[middle + 1 - size : middle + size]

    def logits(block, shared):
        (rows, numbers), (key, bias) = block, shared
        return blocks.products(rows, key) + _biases(bias, numbers[0, 0, 0, 0], rows.shape[2])

    rows, value = (query, jnp.arange(size)[None, None, :, None]), jnp.swapaxes(value, 1, 2)
    weigh = attention.weigh if kind == "softmax" else weigh_by_laplace
    settings = {"block_size": block_size, "rate": rate, "rng": rng, "weigh": weigh}
    out = attention.by_rows(rows, logits, (key, bias), value, mask, **settings)
    return out.reshape(batch, -1, out.shape[-1])[:, :length]


def _biases(bias, first, rows):
    """Returns bias[j - i] of all keys j and the queries i from `first` on, [1, 1, rows, C].

    Rows of a Toeplitz matrix are slices of one line, which lie one after the other in copies of it.
    The gradient of a gather would add in no fixed order on a GPU.
    """
    size = (len(bias) + 1) // 2
    line = lax.dynamic_slice(jnp.pad(bias, (rows, 0)), (size - first,), (size + rows - 1,))
    copies = jnp.tile(jnp.pad(line, (0, 1)), rows)[: rows * len(line)]
    return copies.reshape(rows, len(line))[None, None, :, rows - 1 :]


# What the backward pass computes again, with the letters of `Mega`.


def _scaled(shared, scale, offset):
    """Returns queries and keys, [2, B, L, Z]."""
    return nn.silu(shared)[None] * scale[:, None, None] + offset[:, None, None]


def _reset(reset, y):
    return nn.silu(reset) * y


def _updated(hidden, update, y, x):
    return nn.sigmoid(update) * (nn.silu(hidden + y) - x)


@gin.configurable
class Mega(Mixer):
    """Moving average equipped gated attention (Ma et al., arXiv:2209.10655, Sec. 3.1 to 3.5).

    With X the input, * entry by entry and f of `chunked_attention`,

        X' = SiLU(average(X) + omega * X)         `moving_average`
        S = SiLU(X' W_s + b_s)                    [B, L, Z], Z = qkv_dim
        O = f(S * kappa_q + mu_q, S * kappa_k + mu_k) SiLU(X W_v + b_v)
        R = SiLU(X' W_r + b_r)                    reset gate, [B, L, V], V = expansion D
        U = sigmoid(X' W_u + b_u)                 update gate, [B, L, D]
        H = SiLU(X' W_h + (R * O) U_h + b_h)
        Y = U * (H - X).

    X' is that of the authors' code (facebookresearch/mega at aeaa4b4,
    exponential_moving_average.py); in the paper it is the average alone (Eq. 6).

    After X is added, Y is the paper's U * H + (1 - U) * X, so with Encoder.norm "post" the rest of
    the block is the paper's. With "pre", X is the normalised input N(x) of the block, which returns
    x + U * (H - N(x)); the paper's returns x + U * (H - x). Encoder.num_heads has no effect.
    O(L^2), and with chunks of C tokens O(L log L + L C).
    """

    state: Annotated[int, Least(1, suggest=16)]  # P, the paper's h
    expansion: Annotated[int, Least(1, suggest=2)]  # V / D
    function: Literal["softmax", "laplace"]  # of the attention weights
    # Tokens that see each other by attention: Mega-chunk; None for the whole text.
    chunk: Annotated[int, Least(1, suggest=128)] | None
    # Queries at a time; affects memory and speed only.
    block_size: Annotated[int, Least(1, suggest=256)]

    uses_mask: ClassVar[bool] = True
    uses_dropout: ClassVar[bool] = True
    separable: ClassVar[tuple[str, ...]] = ("alpha", "delta", "beta", "eta")

    @property
    def growth(self) -> tuple[float, float]:
        """Chunks make the time linear."""
        return (1 if self.chunk else 2), 1

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D] under mask bool [B, L] -> [B, L, D]."""
        kernel_init = nn.initializers.normal(DEVIATION)
        dense = functools.partial(
            nn.Dense, dtype=x.dtype, kernel_init=kernel_init, dot_general=flat_product
        )
        width = self.expansion * self.dim
        average = self._average(x, mask)
        value = recompute(nn.silu, dense(width, name="value")(x))
        sizes = self.qkv_dim, width, self.dim, self.dim
        parts = dense(sum(sizes), name="project")(average)
        shared, reset, hidden, update = jnp.split(parts, np.cumsum(sizes[:-1]), axis=-1)
        scale = self.param("scale", kernel_init, (2, self.qkv_dim)).astype(x.dtype)
        offset = self.param("offset", nn.initializers.zeros, (2, self.qkv_dim)).astype(x.dtype)
        query, key = recompute(_scaled, shared, scale, offset)
        longest = min(self.chunk or self.max_len, self.max_len)
        bias = self.param("positions", kernel_init, (2 * longest - 1,))
        bias = bias.astype(jnp.promote_types(query.dtype, jnp.float32))
        layout = {"kind": self.function, "chunk": self.chunk, "block_size": self.block_size}
        dropout = self.weight_dropout(train)
        y = chunked_attention(query, key, value, mask, bias, **layout, **dropout)
        y = dense(self.dim, use_bias=False, name="out")(recompute(_reset, reset, y))
        return recompute(_updated, hidden, update, y, x)

    def _average(self, x, mask):
        """Returns X' for x [B, L, D] under mask bool [B, L], [B, L, D] in x.dtype."""
        wide = jnp.where(mask[..., None], x, 0).astype(jnp.promote_types(x.dtype, jnp.float32))
        shape, normal = (2, self.dim, self.state), nn.initializers.normal

        def alternating(key, shape):
            signs = (-1.0) ** np.arange(self.state, dtype=np.float32)
            return signs[None, None] + normal(DEVIATION)(key, shape)

        def parameter(name, init, shape=shape):
            return self.param(name, init, shape).astype(wide.dtype)

        alpha, delta = (parameter(name, normal(0.2)) for name in ("alpha", "delta"))
        beta, eta = parameter("beta", alternating), parameter("eta", normal(1.0))
        skip = parameter("skip", normal(1.0), (self.dim,))
        alpha, delta, eta = nn.sigmoid(alpha), nn.sigmoid(delta), eta * self.state**-0.5
        y = moving_average(wide, alpha, delta, beta, eta) + skip[None, None] * wide
        return recompute(nn.silu, y).astype(x.dtype)
