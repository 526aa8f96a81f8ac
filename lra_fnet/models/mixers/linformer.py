"""Linformer: attention to a fixed number of projected keys (Wang et al., arXiv:2006.04768).

K is the width of one head, H the number of heads, k the number of projected positions. Time and
memory grow as L k; no array has L x L entries.
"""

from typing import Annotated, ClassVar, Literal

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.models.mixer import HeadMixer
from lra_fnet.models.mixers import attention
from lra_fnet.settings import Least


def projected_attention(query, key, value, mask, project_key, project_value, *, rate=0.0, rng=None):
    """Computes softmax(Q (E K)^T / sqrt(K)) (F V), the paper's Eq. 7.

    Masked keys and values are set to zero before the projection, so that padding does not
    contribute; the softmax is over all k projected keys.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      project_key: E, [k, L] for all heads or [H, k, L].
      project_value: F, like E.
      rate: dropout probability of each of the L x k weights.
      rng: key of the dropout; needed if rate > 0.

    Returns:
      [B, L, H, K] in value's dtype; zeros where a row has no key.
    """

    def project(matrix, x):
        x = jnp.where(mask[:, :, None, None], x, 0)
        heads = "kl" if matrix.ndim == 2 else "hkl"
        return jnp.einsum(f"{heads},blhd->bkhd", matrix.astype(x.dtype), x)

    key, value = project(project_key, key), project(project_value, value)
    all_valid = jnp.ones(key.shape[:2], bool)  # without a token all projected values are zeros
    return attention.naive(query, key, value, all_valid, rate=rate, rng=rng)


@gin.configurable
class Linformer(HeadMixer):
    """Linformer's attention with LRA's projections; shorter inputs use the first columns of E.

    `sharing` follows the paper's Sec. 4: "none" has an E and an F for every head, "headwise" one of
    each for all heads, "kv" (key-value) one matrix for keys, values and heads. The paper's
    "layerwise", one matrix for all layers, is not implemented, since a mixer has the parameters of
    one layer. The initial values are normal with variance 1 / max_len, which is close to the
    authors' code (xavier_uniform with gain 1 / sqrt(2): 1 / (max_len + k)) and makes a projected
    key as large as a key. LRA's code has xavier_uniform with gain 1: 2 / (max_len + k).
    """

    k: Annotated[int, Least(1, suggest=256)]  # projected positions
    sharing: Literal["none", "headwise", "kv"]

    uses_first_only: ClassVar[bool] = True

    def attend(self, query, key, value, mask, *, train):
        """See `projected_attention`; dropout on the weights in training."""
        names = ("projection",) if self.sharing == "kv" else ("project_key", "project_value")
        matrices = [self._matrix(name)[..., : key.shape[1]] for name in names]
        dropout = self.weight_dropout(train)
        return projected_attention(query, key, value, mask, matrices[0], matrices[-1], **dropout)

    def _matrix(self, name):
        heads = (self.num_heads,) if self.sharing == "none" else ()
        init = nn.initializers.normal(self.max_len**-0.5)
        return self.param(name, init, (*heads, self.k, self.max_len))
