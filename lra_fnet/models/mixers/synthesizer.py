"""Synthesizer: attention weights made without comparing tokens (Tay et al., arXiv:2005.00743).

K is the width of one head, H the number of heads, Q the rows of one block. Time grows as L^2, as in
the paper; with blocks of rows, memory grows as L, except for the parameters of "random" (H L^2).
"""

from typing import Annotated, Literal

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp

from lra_fnet.models.kernels.blocks import products
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.models.mixers.attention import by_rows
from lra_fnet.settings import Least, one_of

KINDS = ("dense", "random", "factorized_dense", "factorized_random", "attention")


def tiled(first, second):
    """Computes H_A(A) * H_B(B) of the paper's factorised dense Synthesizer (Sec. 3.3).

    Entry j of a row is A[j // b] B[j mod b]: one factor repeats each entry, the other repeats as a
    whole, so that every pair occurs once. The paper only says that both are tiled.

    Args:
      first: A, [..., a].
      second: B, [..., b].

    Returns:
      [..., a b].
    """
    product = first[..., :, None] * second[..., None, :]
    return product.reshape(*product.shape[:-2], -1)


@gin.configurable
class Synthesizer(HeadMixer):
    """Mixes by one or more `kinds` of logits [L, L] per head, summed before the softmax.

    "dense": W_2 relu(W_1 x_i) (Sec. 3.1); "random": a learned matrix R (Sec. 3.2);
    "factorized_dense": `tiled` products of b = `factor` and a = max_len / b outputs on such a
    hidden layer, cut off at the end where b does not divide; "factorized_random": R_1 R_2^T of
    rank `factor` (Sec. 3.3); "attention": Q K^T / sqrt(K), as in the Transformer. Several are
    summed: with weights alpha, learned for every head, that sum to 1 (the paper's Mixture of
    Synthesizers), initially a softmax of zeros, as in the authors' code; or without weights, as in
    LRA's code (`mixture`). There are no biases, as in LRA and in the paper's count of parameters.

    Matrices are drawn with xavier_uniform for each head by itself. LRA's code counts the heads in
    the fans, so the standard deviation of its R is 1 / sqrt(num_heads) of ours.

    Inputs shorter than max_len use the first rows and columns. "random" has num_heads x max_len^2
    parameters: 268 million per head for 16384 tokens.
    """

    kinds: tuple[str, ...]  # one or more of KINDS
    factor: Annotated[int, Least(1, suggest=8)]  # k of the paper, for the factorised ones
    # Rows at a time; affects memory and speed only.
    block_size: Annotated[int, Least(1, suggest=256)]
    mixture: Literal["softmax", "sum"] = "softmax"  # the weights of several kinds

    @property
    def growth(self) -> tuple[float, float]:
        """Only "random" has a matrix of L x L entries."""
        return 2, 2 if "random" in self.kinds else 1

    def check(self):
        """See `Mixer.check`; `kinds` lists known ones."""
        for kind in self.kinds:
            one_of("Synthesizer.kinds", kind, KINDS)

    def mix(self, x, mask, *, train):
        """See `HeadMixer.mix`."""
        value = self.heads(x, "value")
        parts = (getattr(self, f"_{kind}")(x) for kind in self.kinds)
        rows, shared, makers = zip(*parts, strict=True)
        if len(self.kinds) > 1 and self.mixture == "softmax":
            alpha = self.param("alpha", nn.initializers.zeros, (len(self.kinds), self.num_heads))
            alpha = jax.nn.softmax(alpha.astype(_wide(x)), axis=0)[:, None, :, None, None]
        else:
            alpha = jnp.ones((len(self.kinds), 1, 1, 1, 1), _wide(x))

        def logits(blocks, shared):
            parts = zip(alpha, makers, blocks, shared, strict=True)
            return sum(weight * make(block, own) for weight, make, block, own in parts)

        dropout = self.weight_dropout(train)
        size = self.block_size
        return by_rows(rows, logits, shared, value, mask, block_size=size, **dropout), value

    # Each kind returns what its logits are computed from, the rows and what they share, and the
    # function that does it.

    def _dense(self, x):
        columns = self._columns(x, "dense", self.max_len)[:, : x.shape[1]]
        return self._hidden(x, "dense"), columns, products

    def _random(self, x):
        length = x.shape[1]
        matrix = self._matrix("random", self.max_len, self.max_len)[:, :length, :length]
        return matrix.astype(_wide(x))[None], None, lambda block, _: block

    def _factorized_dense(self, x):
        first = self._columns(x, "factorized_dense_first", -(-self.max_len // self.factor))
        second = self._columns(x, "factorized_dense_second", self.factor)

        def make(block, factors):
            return tiled(*(products(block, factor) for factor in factors))[..., : x.shape[1]]

        return self._hidden(x, "factorized_dense"), (first, second), make

    def _factorized_random(self, x):
        left, right = (
            self._matrix(f"factorized_random_{side}", self.max_len, self.factor)[:, : x.shape[1]]
            for side in ("left", "right")
        )
        return left.astype(_wide(x))[None], right.astype(_wide(x)), products

    def _attention(self, x):
        query, key = (jnp.swapaxes(self.heads(x, name), 1, 2) for name in ("query", "key"))
        return query * query.shape[-1] ** -0.5, key, products

    def _hidden(self, x, name):
        return jnp.swapaxes(nn.relu(self.heads(x, f"{name}_hidden")), 1, 2)

    def _columns(self, x, name, size):
        return self._matrix(f"{name}_weights", size, self.qkv_dim // self.num_heads).astype(x.dtype)

    def _matrix(self, name, rows, columns):
        init = nn.initializers.xavier_uniform(batch_axis=0)
        return self.param(name, init, (self.num_heads, rows, columns))


def _wide(x):
    return jnp.promote_types(x.dtype, jnp.float32)
