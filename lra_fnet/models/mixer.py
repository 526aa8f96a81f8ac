"""What every mixing sublayer is: [B, L, D] -> [B, L, D], all that differs between models."""

from typing import Any, ClassVar

import flax.linen as nn
import jax

from lra_fnet.models.pointwise import flat_product


class Mixer(nn.Module):
    """Base class. The encoder fills these fields; a subclass adds its own, bound in its gin file.

    A subclass is callable as `mixer(x, mask, *, train)` with x [B, L, D] and mask bool [B, L] (True
    at real tokens), returns [B, L, D] in x.dtype, computes in x.dtype and keeps float32 parameters.
    It declares `uses_mask`: True if its outputs at real tokens are the same whatever the padding
    holds and however much there is. The tests hold it to that, both ways.
    """

    dim: int  # D
    num_heads: int  # for mixers with heads; divides qkv_dim
    qkv_dim: int  # width of all heads together
    max_len: int  # L as the mixer sees it, CLS included
    layer: int  # 0 .. num_layers - 1
    num_layers: int
    dropout: float  # on attention weights; a mixer without such weights has nothing to drop

    uses_mask: ClassVar[bool]


class HeadMixer(Mixer):
    """Projects to heads, lets `attend` mix them, and projects back.

    LRA's projections: four matrices without bias, xavier_uniform. A subclass defines `attend`, or
    a compact `__call__` of its own with `heads` and `merge`.
    """

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D] under mask bool [B, L] -> [B, L, D]."""
        query, key, value = (self.heads(x, name) for name in ("query", "key", "value"))
        return self.merge(self.attend(query, key, value, mask, train=train))

    def heads(self, x, name) -> jax.Array:
        """Projects x [B, L, D] by the matrix of this name -> [B, L, H, K]."""
        y = self._project(x, self.qkv_dim, name)
        return y.reshape(*x.shape[:2], self.num_heads, self.qkv_dim // self.num_heads)

    def merge(self, y) -> jax.Array:
        """Joins the heads and projects back, [B, L, H, K] -> [B, L, D]."""
        return self._project(y.reshape(*y.shape[:2], self.qkv_dim), self.dim, "out")

    def weight_dropout(self, train) -> dict[str, Any]:
        """`rate` and `rng` of the dropout on attention weights: none outside training."""
        rate = self.dropout if train else 0.0
        return {"rate": rate, "rng": self.make_rng("dropout") if rate > 0 else None}

    def _project(self, x, features, name):
        init = nn.initializers.xavier_uniform()
        dense = nn.Dense(
            features, False, x.dtype, kernel_init=init, dot_general=flat_product, name=name
        )
        return dense(x)

    def attend(self, query, key, value, mask, *, train) -> jax.Array:
        """Mixes values over positions: three [B, L, H, K] and bool [B, L] -> [B, L, H, K]."""
        raise NotImplementedError(f"{type(self).__name__} must define attend")
