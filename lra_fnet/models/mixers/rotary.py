"""Rotary positions (Su et al., arXiv:2104.09864) for mixers that compare queries with keys."""

from typing import ClassVar

import gin
import jax.numpy as jnp

from lra_fnet.errors import UserError
from lra_fnet.models.mixer import HeadMixer
from lra_fnet.models.mixers.attention import Attention


def rotate(x):
    """Turns each pair of features by an angle that grows with the position (the paper's Eq. 34).

    Pair i, of features 2i and 2i + 1, is turned by n / 10000^(2i / K) at position n, so the product
    of a query at m and a key at n depends on m - n only.

    Args:
      x: [B, L, H, K], K even.

    Returns:
      [B, L, H, K], computed in float32 (or wider).
    """
    length, size = x.shape[1], x.shape[3]
    wide = jnp.promote_types(x.dtype, jnp.float32)
    rates = 10000.0 ** (-jnp.arange(0, size, 2, dtype=wide) / size)
    angle = (jnp.arange(length, dtype=wide)[:, None] * rates[None])[None, :, None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    even, odd = x[..., 0::2].astype(wide), x[..., 1::2].astype(wide)
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


class Rotary(HeadMixer):
    """Rotates queries and keys; put it in front of a subclass of HeadMixer.

    It rotates every projection whose name begins with "query" or "key", also those of Longformer's
    global positions and Reformer's shared one.

    Example: `class RotaryLongformer(Rotary, Longformer): ...`. Bind Encoder.positions = "none", as
    the paper does.
    """

    equivariant: ClassVar[bool] = False

    def check(self):
        """Raises a UserError unless heads have an even width."""
        super().check()
        if self.qkv_dim // self.num_heads % 2:
            raise UserError(
                "rotary positions need heads of an even width, got "
                f"{self.qkv_dim // self.num_heads}: change Encoder.qkv_dim or num_heads"
            )

    def heads(self, x, name):
        """See `HeadMixer.heads` and `rotate`."""
        y = super().heads(x, name)
        return rotate(y) if name.startswith(("query", "key")) else y


@gin.configurable
class RotaryAttention(Rotary, Attention):
    """Softmax attention with rotary positions."""

    uses_first_only: ClassVar[bool] = True  # position 0 is not turned
