"""Linear Transformer: attention with elu features (Katharopoulos et al., arXiv:2006.16236)."""

from typing import ClassVar

import gin
import jax.numpy as jnp

from lra_fnet.models.mixer import HeadMixer
from lra_fnet.models.mixers import performer


def elu_attention(query, key, value, mask):
    """Computes phi(Q) (phi(K)^T V), each row divided by phi(Q) (phi(K)^T 1) (the paper's Eq. 4-6).

    phi(x) = elu(x) + 1 (Eq. 7) is computed as x + 1 above 0 and e^x below, which stays positive
    where elu(x) + 1 would round to 0. So the denominator needs no epsilon (the authors' code adds
    1e-6 to it). Queries are not scaled, as in the paper and the authors' code.

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.

    Returns:
      [B, L, H, K] in value's dtype; zeros where a row has no key.
    """

    def phi(x):
        x = jnp.swapaxes(x.astype(jnp.promote_types(x.dtype, jnp.float32)), 1, 2)
        return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))

    return performer.linear_attention(phi(query), phi(key), value, mask)


@gin.configurable
class LinearAttention(HeadMixer):
    """Elu-kernel attention with LRA's projections; bidirectional; padding is masked; linear in L.

    There are no attention weights, so `dropout` has no effect (as in LRA).
    """

    uses_dropout: ClassVar[bool] = False
    equivariant: ClassVar[bool] = True
    uses_first_only: ClassVar[bool] = True

    def attend(self, query, key, value, mask, *, train):
        """See `elu_attention`."""
        return elu_attention(query, key, value, mask)
