"""Softmax attention (Vaswani et al., arXiv:1706.03762, Sec. 3.2), three ways to compute it.

K is the width of one head, H the number of heads. Every function maps query, key, value
[B, L, H, K] and a mask bool [B, L] of the keys to [B, L, H, K]. A row whose keys are all masked
gives zeros.
"""

from typing import ClassVar, Literal

import gin
import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.models.pointwise import dropout

IMPLEMENTATIONS = ("naive", "blockwise", "fused")


def naive(query, key, value, mask, *, rate=0.0, rng=None):
    """softmax(Q K^T / sqrt(K)) V, holding all [B, H, L, L] weights.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      rate: dropout probability of each weight (after the softmax, one draw for each weight).
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype; the softmax is float32 (or wider).
    """
    query, key, value = (jnp.swapaxes(a, 1, 2) for a in (query, key, value))
    return jnp.swapaxes(_rows(query, key, value, mask, rate, rng), 1, 2)


def blockwise(query, key, value, mask, *, block_size, rate=0.0, rng=None):
    """As `naive`, for at most `block_size` queries at a time: memory grows as L, not as L^2.

    The backward pass computes each block's weights again, so it holds no more than the forward
    pass. The length need not be a multiple of the block. Dropout draws other bits than `naive`.
    """
    batch, length, heads, width = query.shape
    num_blocks = -(-length // block_size)
    size = -(-length // num_blocks)  # blocks of nearly equal length, so little is wasted
    query, key, value = (jnp.swapaxes(a, 1, 2) for a in (query, key, value))
    query = jnp.pad(query, ((0, 0), (0, 0), (0, num_blocks * size - length), (0, 0)))
    blocks = jnp.moveaxis(query.reshape(batch, heads, num_blocks, size, width), 2, 0)

    def attend(numbered_block):
        number, block = numbered_block
        block_rng = None if rng is None else jax.random.fold_in(rng, number)
        return _rows(block, key, value, mask, rate, block_rng)

    # Inside a scan nothing can be merged with the recomputation, so prevent_cse is not needed.
    attend = jax.checkpoint(attend, prevent_cse=False)
    out = lax.map(attend, (jnp.arange(num_blocks), blocks))
    out = jnp.moveaxis(out, 0, 2).reshape(batch, heads, num_blocks * size, value.shape[-1])
    return jnp.swapaxes(out[:, :, :length], 1, 2)


def fused(query, key, value, mask, *, backend: Literal["cudnn", "xla"] = "cudnn"):
    """As `naive` in one GPU kernel that holds no weights (cuDNN flash attention); no dropout.

    cuDNN takes lengths, not masks: the True entries of each mask row must come first, as they do
    for padding at the end. It needs an NVIDIA GPU and bfloat16. `backend="xla"` is for tests.
    """
    lengths = mask.sum(axis=1).astype(jnp.int32)
    out = jax.nn.dot_product_attention(
        query,
        key,
        value,
        key_value_seq_lengths=jnp.maximum(lengths, 1),
        implementation=backend,
    )
    return jnp.where((lengths > 0)[:, None, None, None], out, 0)


def _rows(query, key, value, mask, rate, rng):
    """Attention of some queries to all keys, heads before positions: [B, H, Q, K] -> the same."""
    scaled = query * query.shape[-1] ** -0.5
    valid = mask[:, None, None, :]
    logits = jnp.einsum(
        "bhqd,bhkd->bhqk",
        scaled,
        key,
        preferred_element_type=jnp.promote_types(key.dtype, jnp.float32),
    )
    return weigh(logits, valid, value, rate=rate, rng=rng)


def weigh(logits, valid, value, *, rate, rng):
    """softmax(S) V over the valid keys.

    Args:
      logits: S, [..., Q, M], float32 or wider.
      valid: bool, broadcasts to S; False keys get no weight.
      value: V, [..., M, K].
      rate: dropout probability of each weight (after the softmax, one draw for each weight).
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [..., Q, K] in value's dtype; zeros where a row has no valid key.
    """
    logits = jnp.where(valid, logits, jnp.finfo(logits.dtype).min)
    logits = logits - lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    weights = jnp.where(valid, jnp.exp(logits), 0)
    total = weights.sum(axis=-1, keepdims=True)
    if rate > 0:
        weights = dropout(weights, rng, rate)
    out = jnp.einsum("...qm,...mk->...qk", weights.astype(value.dtype), value)
    return (out / jnp.where(total > 0, total, 1)).astype(value.dtype)


@gin.configurable
class Attention(HeadMixer):
    """Multi-head softmax attention with LRA's projections (see `HeadMixer`).

    Raises:
      UserError: if `implementation` is unknown, or "fused" where it cannot run.
    """

    implementation: str  # "naive", "blockwise" or "fused"
    block_size: int  # queries at a time, for "blockwise"; changes memory and speed only

    uses_mask: ClassVar[bool] = True

    def attend(self, query, key, value, mask, *, train):
        """See `naive`; dropout on the weights in training."""
        if self.implementation not in IMPLEMENTATIONS:
            raise UserError(
                f"Attention.implementation must be one of {', '.join(IMPLEMENTATIONS)}, got "
                f"{self.implementation!r}: set it to one of these"
            )
        if self.implementation == "fused":
            self._check_fused(query.dtype)
            return fused(query, key, value, mask)
        dropout = self.weight_dropout(train)
        if self.implementation == "naive":
            return naive(query, key, value, mask, **dropout)
        if self.block_size < 1:
            raise UserError(
                f"Attention.block_size must be at least 1 query, got {self.block_size}: "
                "set it to 256, say"
            )
        return blockwise(query, key, value, mask, block_size=self.block_size, **dropout)

    def _check_fused(self, dtype):
        remedy = "set Attention.implementation = 'blockwise'"
        backend = jax.default_backend()
        if backend != "gpu":
            raise UserError(f"fused attention needs an NVIDIA GPU, this is a {backend}: {remedy}")
        if dtype != jnp.bfloat16:
            raise UserError(
                f"fused attention needs Encoder.dtype = 'bfloat16', got {dtype}: set it, "
                f"or {remedy}"
            )
        if self.dropout > 0:
            raise UserError(
                "fused attention has no dropout on its weights, got Encoder.attention_dropout = "
                f"{self.dropout}: set it to 0, or {remedy}"
            )
