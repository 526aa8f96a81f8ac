"""Local attention in blocks without overlap (Parmar et al., arXiv:1802.05751, Sec. 3.3: 1-D).

K is the width of one head, H the number of heads. Linear in L: no array has L x L entries.
"""

from typing import Annotated

import gin
import jax.numpy as jnp

from lra_fnet.models.kernels import blocks
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.settings import Least


def local_attention(query, key, value, mask, *, block_size, neighbours=0, rate=0.0, rng=None):
    """Computes softmax attention of each position to its block: j // block_size = i // block_size.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      block_size: adjacent positions in a block; the last block may be shorter.
      neighbours: additional blocks on each side whose keys a query sees.
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
    """Attends within blocks, as the LRA paper describes its Local Attention; LRA's projections.

    Parmar et al. decode: a query sees its own block and some blocks before it. An encoder has
    blocks on both sides, and LRA's sees its own block only. LRA's code joins positions
    L / block_size apart instead of adjacent ones.

    The blocks are the same in every layer. Without neighbours, CLS therefore sees the first block
    only; in LRA's code it also sees one block, whose tokens are spread over the whole text.
    """

    block_size: Annotated[int, Least(1, suggest=50)]  # positions
    neighbours: Annotated[int, Least(0, suggest=0)]  # blocks on each side; 0 for no overlap

    def attend(self, query, key, value, mask, *, train):
        """See `local_attention`; dropout on the weights in training."""
        layout = {"block_size": self.block_size, "neighbours": self.neighbours}
        return local_attention(query, key, value, mask, **layout, **self.weight_dropout(train))
