"""Local attention in blocks without overlap (Parmar et al., arXiv:1802.05751, Sec. 3.3: 1-D).

K is the width of one head, H the number of heads. Linear in L: no array has L x L entries.
"""

from typing import ClassVar

import gin
import jax.numpy as jnp

from lra_fnet.errors import UserError
from lra_fnet.models import blocks
from lra_fnet.models.mixer import HeadMixer


def local_attention(query, key, value, mask, *, block_size, neighbours=0, rate=0.0, rng=None):
    """Softmax attention of each position to its block: j // block_size = i // block_size.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      block_size: positions that stand side by side in a block; the last one may be shorter.
      neighbours: blocks on each side whose keys a query sees too.
      rate: dropout probability of each weight.
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype; zeros where a query's block has no key.
    """
    length = query.shape[1]
    size = min(block_size, length)
    arrays = blocks.heads_first(query, key, value, mask)
    query, key, value, mask = (blocks.cut(a, size) for a in arrays)
    side = min(neighbours, query.shape[2] - 1)
    key, value, mask = (blocks.around(a, side, side) for a in (key, value, mask))
    part = blocks.attend(query, key, value, mask, rate=rate, rng=rng)
    out = blocks.combine([part], value.dtype)
    return jnp.swapaxes(blocks.flat(out, length), 1, 2)


@gin.configurable
class LocalAttention(HeadMixer):
    """Attention within blocks, as the LRA paper describes its Local Attention; LRA's projections.

    Parmar et al. decode: a query's keys are its own block and some before it. An encoder's are on
    both sides, and LRA's are the own block alone. LRA's code joins positions L / block_size apart
    instead of neighbours.

    Raises:
      UserError: if `block_size` or `neighbours` is too small.
    """

    block_size: int  # positions
    neighbours: int  # blocks on each side; 0 for blocks on their own

    uses_mask: ClassVar[bool] = True

    def attend(self, query, key, value, mask, *, train):
        """See `local_attention`; dropout on the weights in training."""
        if self.block_size < 1:
            raise UserError(
                f"LocalAttention.block_size must be at least 1 position, got {self.block_size}: "
                "set it to 50, say"
            )
        if self.neighbours < 0:
            raise UserError(
                f"LocalAttention.neighbours must be at least 0 blocks, got {self.neighbours}: "
                "set it to 0, say"
            )
        return local_attention(
            query,
            key,
            value,
            mask,
            block_size=self.block_size,
            neighbours=self.neighbours,
            **self.weight_dropout(train),
        )
