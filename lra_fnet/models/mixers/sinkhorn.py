"""Sparse Sinkhorn Attention: each block attends to itself and to one sorted block.

Tay et al., arXiv:2002.11296.

K is the width of one head, H the number of heads, b the tokens of a block, N = L / b the number of
blocks. The largest arrays have 2 L b entries (logits) and N^2 entries (sorting); sorting takes
about L^2 K / b multiplications. The terms in N^2 are inherent in the paper's method.
"""

import functools
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from lra_fnet.models.kernels import blocks
from lra_fnet.models.kernels.pointwise import keys_of_rows
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.models.mixers.attention import weigh
from lra_fnet.settings import Least

ABSENT = -1e30  # logarithm of a zero weight: finite, so that differences are not NaN
RESOLUTION = 1e-6  # of float32; a sorted key with a smaller share of real tokens is left out


def balance(logits, valid, iterations):
    """Applies Sinkhorn balancing to exp(logits): rows, then columns, to sum 1, `iterations` times.

    It works in the log domain (the paper's Sec. 3.1.2, after Adams and Zemel, arXiv:1106.1925).
    Blocks that are not valid take no part, so the valid ones become doubly stochastic.

    Args:
      logits: [B, H, N, N], row i the block to fill, column j the block to take.
      valid: bool [B, N], True at blocks with a real token.
      iterations: at least 1.

    Returns:
      R, [B, H, N, N]: not negative, 0 where a block is not valid.
    """
    both = valid[:, None, :, None] & valid[:, None, None, :]

    def normalise(logits, axis):
        return jnp.where(both, logits - logsumexp(logits, axis=axis, keepdims=True), ABSENT)

    def step(logits, _):
        return normalise(normalise(logits, -1), -2), None

    logits, _ = lax.scan(step, jnp.where(both, logits, ABSENT), length=iterations)
    return jnp.where(both, jnp.exp(logits), 0)


def sinkhorn_attention(query, key, value, mask, sorting, *, block_size, rate=0.0, rng: Any = None):
    """Computes softmax attention to the tokens of the own block and of the sorted block, 2b keys.

    The sorted block i is the sum over j of R[i, j] times block j, token by token (psi_S of the
    paper's Sec. 3.1), of keys and of values. The paper's Sec. 3.2 writes the scores within a block
    as Q_i psi_S(K)_j + Q_i K_j; here each term is the score of a separate key, with its own value,
    in one softmax over both, since for a sum of scores the paper does not say whose value it
    weighs.

    Masked tokens are left out of their own block and of the sums: a sorted key is the mean over the
    real tokens at its place in the blocks, times the row's sum of R, and so is its value; its
    weight is multiplied by their share of R's row. If all tokens are real, this is the paper's
    formula.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      sorting: R, [B, H, N, N], not negative; N = ceil(L / block_size).
      block_size: b.
      rate: dropout probability of each weight (after the softmax).
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype; zeros where there is no key. The softmax is float32 (or wider).
    """
    length, width = query.shape[1], query.shape[3]
    arrays = blocks.heads_first(query, key, value, mask)
    query, key, value, real = (blocks.cut(a, block_size) for a in arrays)  # [B, H, N, b, K]
    query, real = query * width**-0.5, real[..., 0]
    row = sorting.sum(axis=-1, keepdims=True)
    share = jnp.einsum("bhij,bjt->bhit", sorting, real[:, 0].astype(sorting.dtype))
    share = share / jnp.where(row > 0, row, 1)
    present = share > RESOLUTION
    share = jnp.where(present, share, 1)

    def sort(x):  # -> sorted blocks [B, H, N, b, K]
        x = jnp.where(real[..., None], x, 0)
        taken = jnp.einsum("bhij,bhjtd->bhitd", sorting.astype(x.dtype), x)
        return (taken / share[..., None]).astype(x.dtype)

    logits = [blocks.products(query, keys) for keys in (key, sort(key))]
    logits[1] += jnp.log(share)[..., None, :].astype(logits[1].dtype)
    valid = jnp.concatenate([jnp.broadcast_to(real, present.shape), present], axis=-1)
    valid = valid[..., None, :]
    values = jnp.concatenate([value, sort(value)], axis=-2)
    logits = jnp.concatenate(logits, axis=-1)
    out = weigh(logits, valid, values, rate=rate, rng=rng)
    return jnp.swapaxes(blocks.flat(out, length), 1, 2)


@gin.configurable
class Sinkhorn(HeadMixer):
    """Attends within blocks of tokens and to blocks sorted by a learned, soft permutation.

    The sorting network (the paper's Sec. 3.1.1) reads the sum of a block's real tokens: a Dense
    layer of width D, ReLU, and a Dense layer with max_len / block_size logits for each head, so
    each head has its own permutation; there is no second ReLU, since a logit may be negative. The
    logits, in training with Gumbel noise, are divided by `temperature` and balanced (Sec. 3.1.3).
    """

    block_size: Annotated[int, Least(1, suggest=64)]  # b, tokens
    iterations: Annotated[int, Least(1, suggest=8)]  # of balancing
    temperature: float  # the lower, the closer to a permutation
    gumbel: bool  # noise on the logits in training, from the "dropout" stream

    growth: ClassVar[tuple[float, float]] = (2, 2)  # the sort weighs every pair of blocks

    def mix(self, x, mask, *, train):
        """See `HeadMixer.mix`."""
        query, key, value = (self.heads(x, name) for name in ("query", "key", "value"))
        sorting = self._sorting(x, mask, train=train)
        dropout = self.weight_dropout(train)
        settings = {"block_size": self.block_size, **dropout}
        return sinkhorn_attention(query, key, value, mask, sorting, **settings), value

    def _sorting(self, x, mask, *, train):
        """Computes R [B, H, N, N] of x [B, L, D] and mask bool [B, L], N = ceil(L / block_size)."""
        arrays = x[:, None], mask[:, None, :, None]
        x, real = (blocks.cut(a, self.block_size)[:, 0] for a in arrays)  # [B, N, b, D or 1]
        wide = jnp.promote_types(x.dtype, jnp.float32)
        x = jnp.where(real, x, 0).astype(wide).sum(axis=2)  # [B, N, D]
        batch, num_blocks, dim = x.shape

        # A column for each block of max_len: the number of a block does not depend on padding.
        columns = -(-self.max_len // self.block_size)
        init = nn.initializers.xavier_uniform()
        dense = functools.partial(nn.Dense, dtype=x.dtype, kernel_init=init)
        hidden = nn.relu(dense(dim, name="sort_hidden")(x))
        logits = dense(self.num_heads * columns, name="sort_logits")(hidden)
        logits = logits.reshape(batch, num_blocks, self.num_heads, columns)
        logits = jnp.swapaxes(logits[..., :num_blocks], 1, 2)
        if self.gumbel and train:
            keys = keys_of_rows(self.make_rng("dropout"), batch)
            draw = functools.partial(jax.random.gumbel, shape=logits.shape[1:], dtype=logits.dtype)
            logits = logits + jax.vmap(draw)(keys)
        return balance(logits / self.temperature, real.any(axis=(2, 3)), self.iterations)
