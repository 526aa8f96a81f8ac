"""Nyströmformer: softmax attention through landmarks (Xiong et al., arXiv:2102.03902).

K is the width of one head, H the number of heads, m the number of landmarks. Time and memory grow
as L m; no array has L x L entries.
"""

from typing import Annotated, ClassVar

import gin
import jax
import jax.numpy as jnp

from lra_fnet.models.kernels import blocks
from lra_fnet.models.kernels.convolve import window
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.models.mixers import attention
from lra_fnet.settings import Least


def nystrom_attention(query, key, value, mask, *, landmarks, iterations):
    """Approximates softmax(Q K^T / sqrt(K)) V by the Nyström method.

    softmax(Q K~^T / sqrt(K)) A^+ softmax(Q~ K^T / sqrt(K)) V, A = softmax(Q~ K~^T / sqrt(K)): Q~
    and K~ are the means of the queries and keys of each segment (`segments`), and A^+ is what
    `pseudo_inverse` gives. For a text of at most m tokens it is softmax attention, as exact as A^+.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at real tokens; others contribute neither keys nor queries.
      landmarks: m.
      iterations: those of the inverse.

    Returns:
      [B, L, H, K] in value's dtype; zeros in a text without tokens.
    """
    dtype = jnp.promote_types(value.dtype, jnp.float32)
    means, there = segments(mask, landmarks, dtype)
    query, key, wide = (jnp.swapaxes(a, 1, 2).astype(dtype) for a in (query, key, value))
    query = query * query.shape[-1] ** -0.5
    real, there = mask[:, None, None, :], there[:, None, None, :]
    centers, keys = (means[:, None] @ jnp.where(real.mT, a, 0) for a in (query, key))
    scores = blocks.products(centers, keys)
    weights, total, _ = blocks.soften(scores, there, dtype, rate=0.0, rng=None)
    between = jnp.where(there.mT, weights / jnp.where(total > 0, total, 1), 0)
    values = attention.weigh(blocks.products(centers, key), real, wide, rate=0.0, rng=None)
    inverse = pseudo_inverse(between, iterations)
    values = jnp.matmul(inverse, values, precision=jax.lax.Precision.HIGHEST)
    out = attention.weigh(blocks.products(query, keys), there, values, rate=0.0, rng=None)
    return jnp.swapaxes(out, 1, 2).astype(value.dtype)


def segments(mask, count, dtype=jnp.float32):
    """Cuts the n real tokens of each text into `count` segments of nearly equal length.

    With fewer tokens than segments, each token has one, and the others are empty. The authors' code
    cuts the padded text instead, whose segments depend on the amount of padding.

    Args:
      mask: bool [B, L].
      count: m.
      dtype: of the matrix.

    Returns:
      the matrix [B, m, L] that averages the tokens of each segment, and which segments have
      some, bool [B, m].
    """
    number = jnp.cumsum(mask, axis=1) - 1  # among the real tokens
    tokens = mask.sum(axis=1, keepdims=True)
    segment = number * count // jnp.maximum(tokens, 1)
    inside = (segment[:, None, :] == jnp.arange(count)[None, :, None]) & mask[:, None, :]
    size = inside.sum(axis=2, keepdims=True)
    return inside / jnp.maximum(size, 1).astype(dtype), size[..., 0] > 0


def pseudo_inverse(matrix, iterations):
    """Approximates the Moore-Penrose inverse of non-negative matrices [..., m, m].

    Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4, of third order, begins with A^T over the norms
    |A|_1 and |A|_inf, each matrix by its own. Rows and columns of zeros stay zeros. It computes in
    the matrix's dtype at full precision, on a GPU without TF32, since its entries cancel.
    """

    def times(a, b):
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)

    norms = matrix.sum(axis=-2).max(axis=-1) * matrix.sum(axis=-1).max(axis=-1)
    inverse = matrix.mT / jnp.where(norms > 0, norms, 1)[..., None, None]
    eye = jnp.broadcast_to(jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape)
    for _ in range(iterations):
        near = times(matrix, inverse)  # close to I, at last
        inner = 15 * eye - times(near, 7 * eye - near)
        inverse = times(inverse, 13 * eye - times(near, inner)) / 4
    return inverse


@gin.configurable
class Nystrom(HeadMixer):
    """Attention through landmarks plus a convolution of the values, with LRA's projections.

    The convolution, a skip connection, has the same taps for all channels of a head. Attention
    weights have no dropout, as in the authors' code.
    """

    landmarks: Annotated[int, Least(1, suggest=64)]  # m
    iterations: Annotated[int, Least(1, suggest=6)]  # of the inverse
    width: Annotated[int, Least(0, suggest=35)]  # taps of the convolution; 0 for none

    uses_dropout: ClassVar[bool] = False

    def attend(self, query, key, value, mask, *, train):
        """See `nystrom_attention`."""
        sizes = {"landmarks": self.landmarks, "iterations": self.iterations}
        y = nystrom_attention(query, key, value, mask, **sizes)
        if not self.width:
            return y
        taps = self.param("taps", _uniform, (self.width, self.num_heads)).astype(value.dtype)
        taps = jnp.repeat(taps, value.shape[-1], axis=1)
        flat = jnp.where(mask[:, :, None, None], value, 0).reshape(*mask.shape, -1)
        return y + jnp.reshape(window(flat, taps), value.shape)


def _uniform(key, shape):
    """Draws taps [K, H] from U(-1 / sqrt(K), 1 / sqrt(K)), as the authors' convolution begins."""
    bound = shape[0] ** -0.5
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)
