"""Sparse Transformer: factorised attention patterns (Child et al., arXiv:1904.10509, Sec. 4).

K is the width of one head, H the number of heads, l the stride. With l near sqrt(L), time and
memory grow as L sqrt(L): no array has L x L entries.
"""

import math
from typing import Annotated, ClassVar, Literal

import gin
import jax.numpy as jnp

from lra_fnet.models.kernels import blocks
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.settings import Least, at_least


def sparse_attention(
    query,
    key,
    value,
    mask,
    *,
    pattern,
    block_size,
    summary,
    causal,
    global_first,
    rate=0.0,
    rng=None,
):
    """Computes softmax attention of i to A1(i) and A2(i) together (the paper's Sec. 5.1, merged).

    "strided" (Sec. 4.3): A1 = {j: |i - j| <= l}, A2 = {j: (i - j) mod l = 0}.
    "fixed": A1 = {j: j // l = i // l}, A2 = {j: j mod l >= l - c}.
    The paper's sets are restricted to j <= i, as they are here with `causal`; without it each
    pattern is the union of the paper's and its mirror image. A key in both sets counts once.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      pattern: "fixed" or "strided".
      block_size: l.
      summary: c, for "fixed": all positions see the last c positions of each block.
      causal: whether keys after the query are excluded.
      global_first: whether position 0 sees every position and every position sees it, even if
        `causal`.
      rate: dropout probability of each weight.
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype; zeros where a query has no key.
    """
    row_rng, column_rng, *rngs = blocks.split(rng, 4)
    arrays = query, key, value, mask = blocks.heads_first(query, key, value, mask)
    size, num_global = min(block_size, query.shape[2]), int(global_first)
    rest = blocks.after(mask, num_global)
    if pattern == "strided":
        parts = _strided(query, key, value, rest, size, causal, rate, rngs)
    else:
        parts = _fixed(query, key, value, rest, size, summary, causal, rate, rngs)
    first = query[:, :, :1], key, value, mask
    rngs = column_rng, row_rng
    return blocks.complete(parts, arrays, num_global, first, rate=rate, rngs=rngs)


def _strided(query, key, value, mask, size, causal, rate, rngs) -> list[blocks.Part]:
    """Computes the parts of A1 and of A2 without A1: the same column of blocks not adjacent."""
    length = query.shape[2]
    near = blocks.band(query, key, value, mask, reach=size, causal=causal, rate=rate, rng=rngs[0])
    columns = [jnp.swapaxes(blocks.cut(a, size), 2, 3) for a in (query, key, value, mask)]
    back = _back(columns[0].shape[3])
    allowed = back > 1 if causal else abs(back) > 1
    far = blocks.attend(*columns, allowed=allowed[None, None, None], rate=rate, rng=rngs[1])
    far = blocks.Part(*(jnp.swapaxes(a, 2, 3) for a in far))
    return [near, blocks.flat(far, length)]


def _fixed(query, key, value, mask, size, summary, causal, rate, rngs) -> list[blocks.Part]:
    """Computes the parts of A1 and of A2 without A1: the last columns of the other blocks."""
    length = query.shape[2]
    cut = [blocks.cut(a, size) for a in (query, key, value, mask)]
    allowed = (_back(size) >= 0)[None, None, None] if causal else None
    own = blocks.attend(*cut, allowed=allowed, rate=rate, rng=rngs[0])
    width = min(summary, size)
    columns = [blocks.flat(a[:, :, :, size - width :]) for a in cut[1:]]
    back = jnp.arange(length)[:, None] // size - jnp.arange(columns[0].shape[2])[None] // width
    allowed = back > 0 if causal else back != 0
    others = blocks.attend(query, *columns, allowed=allowed[None, None], rate=rate, rng=rngs[1])
    return [blocks.flat(own, length), others]


def _back(number):
    """Returns the lags i - j of all i and j below `number`: int [number, number]."""
    return jnp.arange(number)[:, None] - jnp.arange(number)[None]


@gin.configurable
class SparseAttention(HeadMixer):
    """Attends in the Sparse Transformer's patterns, each head to both sets; LRA's projections.

    As in LRA, two features of the paper are left out: its residual blocks and initialisation, and
    summary columns that differ between heads (Sec. 4.3). Every head uses the last columns of a
    block.
    """

    pattern: Literal["fixed", "strided"]
    # l; 0 for the smallest integer >= sqrt(max_len).
    block_size: Annotated[int, Least(0, suggest=0)]
    summary: int  # c, for "fixed"; with c >= l all see every position
    causal: bool
    global_first: bool

    bound_to_max_len: ClassVar[bool] = True
    growth: ClassVar[tuple[float, float]] = (1.5, 1.5)  # with l near sqrt(L)

    @property
    def first_alone(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Mixer`."""
        return self.causal and not self.global_first

    def check(self):
        """See `Mixer.check`; "strided" ignores the summary."""
        if self.pattern == "fixed":
            at_least("SparseAttention.summary", self.summary, 1, 8)

    def attend(self, query, key, value, mask, *, train):
        """See `sparse_attention`; dropout on the weights in training."""
        size = self.block_size or math.isqrt(self.max_len - 1) + 1
        sets = {"pattern": self.pattern, "block_size": size, "summary": self.summary}
        limits = {"causal": self.causal, "global_first": self.global_first}
        dropout = self.weight_dropout(train)
        return sparse_attention(query, key, value, mask, **sets, **limits, **dropout)
