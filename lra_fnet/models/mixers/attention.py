"""Softmax attention (Vaswani et al., arXiv:1706.03762, Sec. 3.2), three ways to compute it.

K is the width of one head, H the number of heads. `naive`, `blockwise` and `fused` map query, key,
value [B, L, H, K] and a mask bool [B, L] of the keys to [B, L, H, K]. A row whose keys are all
masked gives zeros.
"""

from typing import Annotated, ClassVar, Literal

import gin
import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.models.mixer import HeadMixer, Least
from lra_fnet.models.pointwise import dropout


def naive(query, key, value, mask, *, rate=0.0, rng=None):
    """Computes softmax(Q K^T / sqrt(K)) V with all [B, H, L, L] weights in memory.

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
    """Computes `naive` for at most `block_size` queries at a time: memory grows as L, not as L^2.

    See `map_rows`. Dropout draws different bits from `naive`.
    """
    query, key, value = (jnp.swapaxes(a, 1, 2) for a in (query, key, value))

    def attend(block, block_rng):
        return _rows(block, key, value, mask, rate, block_rng)

    return map_rows(attend, query, length=query.shape[2], block_size=block_size, rng=rng)


def map_rows(attend, rows, *, length, block_size, rng):
    """Computes the rows of an attention matrix, times the values, block by block.

    The backward pass computes each block again, so it holds no more than the forward pass. The
    length need not be a multiple of the block.

    Args:
      attend: (block, rng) -> [B, H, Q, K]; block holds Q entries of `rows` along axis 2.
      rows: tree of arrays [B or 1, H, L, any width] from which the rows are made.
      length: L.
      block_size: largest Q.
      rng: key of the dropout, folded with the block's number; or None.

    Returns:
      [B, L, H, K].
    """
    num_blocks = -(-length // block_size)
    size = -(-length // num_blocks)  # blocks of nearly equal length, so little is wasted

    def split(x):
        x = jnp.pad(x, ((0, 0), (0, 0), (0, num_blocks * size - length), (0, 0)))
        return jnp.moveaxis(x.reshape(*x.shape[:2], num_blocks, size, x.shape[3]), 2, 0)

    def attend_numbered(numbered_block):
        number, block = numbered_block
        return attend(block, None if rng is None else jax.random.fold_in(rng, number))

    # Inside a scan nothing can be merged with the recomputation, so prevent_cse is not needed.
    attend_numbered = jax.checkpoint(attend_numbered, prevent_cse=False)
    out = lax.map(attend_numbered, (jnp.arange(num_blocks), jax.tree.map(split, rows)))
    out = jnp.moveaxis(out, 0, 2)
    out = out.reshape(*out.shape[:2], num_blocks * size, out.shape[-1])
    return jnp.swapaxes(out[:, :, :length], 1, 2)


def fused(query, key, value, mask, *, backend: Literal["cudnn", "xla"] = "cudnn"):
    """Computes `naive` by cuDNN flash attention, one GPU kernel without weights or dropout.

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
    """Attends from some queries to all keys, heads before positions: [B, H, Q, K] -> the same."""
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
    """Computes softmax(S) V over the valid keys.

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
      UserError: on a call, if "fused" attention cannot run.
    """

    implementation: Literal["naive", "blockwise", "fused"]
    # Queries at a time, for "blockwise"; affects memory and speed only.
    block_size: Annotated[int, Least(1, 256)]

    uses_mask: ClassVar[bool] = True
    equivariant: ClassVar[bool] = True

    @property
    def growth(self) -> tuple[float, float]:
        """Only the naive implementation holds all weights."""
        return 2, 2 if self.implementation == "naive" else 1

    def attend(self, query, key, value, mask, *, train):
        """See `naive`; dropout on the weights in training."""
        if self.implementation == "fused":
            self._check_fused(query.dtype)
            return fused(query, key, value, mask)
        dropout = self.weight_dropout(train)
        if self.implementation == "naive":
            return naive(query, key, value, mask, **dropout)
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
