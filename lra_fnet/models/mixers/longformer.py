"""Longformer: a sliding window and global positions (Beltagy et al., arXiv:2004.05150, Sec. 3.1).

K is the width of one head, H the number of heads, G the number of global positions. Linear in L:
no array has L x L entries.
"""

from typing import Annotated

import gin

from lra_fnet.models.kernels import blocks
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.settings import Least


def longformer_attention(
    query, key, value, mask, *, window, global_projections=None, rate=0.0, rng=None
):
    """Computes softmax attention of i to |i - j| <= window / 2 and to the first G positions.

    The first G positions themselves attend to all, by separate projections. The others see the
    ordinary keys and values of the global positions (as in the authors' code; the paper does not
    say). A global key inside the window counts once.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      window: w, even; a query sees w / 2 positions on each side, and itself.
      global_projections: query [B, G, H, K], key and value [B, L, H, K]; None for G = 0.
      rate: dropout probability of each weight.
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype; zeros where a query has no key.
    """
    num_global = 0 if global_projections is None else global_projections[0].shape[1]
    across = global_projections and blocks.heads_first(*global_projections, mask=mask)
    rngs = blocks.split(rng, 3)
    arrays = query, key, value, mask = blocks.heads_first(query, key, value, mask)
    rest = blocks.after(mask, num_global)
    near = blocks.band(query, key, value, rest, reach=window // 2, rate=rate, rng=rngs[0])
    return blocks.complete([near], arrays, num_global, across, rate=rate, rngs=rngs[1:])


@gin.configurable
class Longformer(HeadMixer):
    """Attends to a sliding window and global first positions; LRA's projections.

    Global attention has separate matrices (query_global, key_global, value_global), initialised
    independently: the paper starts them from the pretrained ones, and here nothing is pretrained.
    The window is not dilated and is the same in every layer: the paper varies both in its language
    models only.
    """

    window: Annotated[int, Least(2, suggest=512, multiple=2)]  # w: positions on both sides together
    # G, from position 0 on: CLS or the first token; 0 in LRA's code.
    num_global: Annotated[int, Least(0, suggest=1)]

    def mix(self, x, mask, *, train):
        """See `HeadMixer.mix` and `longformer_attention`."""
        query, key, value = (self.heads(x, name) for name in ("query", "key", "value"))
        across = None
        if self.num_global:
            first = self.heads(x[:, : self.num_global], "query_global")
            across = first, self.heads(x, "key_global"), self.heads(x, "value_global")
        layout = {"window": self.window, "global_projections": across}
        dropout = self.weight_dropout(train)
        return longformer_attention(query, key, value, mask, **layout, **dropout), value
