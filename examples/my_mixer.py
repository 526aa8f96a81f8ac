import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.models.mixer import Mixer


@gin.configurable
class MyMixer(Mixer):
    """Filters every channel of x [B, L, D] along the sequence; mask is bool [B, L]."""

    width: int  # tokens that an output sees
    uses_mask = True  # padding changes no output; a run checks this at its start

    @nn.compact
    def __call__(self, x, mask, *, train):
        x = jnp.where(mask[:, :, None], x, 0)
        filtered = nn.Conv(self.dim, [self.width], feature_group_count=self.dim, use_bias=False)
        return filtered(x).astype(x.dtype)
