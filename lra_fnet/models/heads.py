"""From pooled vectors to logits, and the whole classifier."""

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.models.encoder import Encoder


@gin.configurable
class Head(nn.Module):
    """LRA's head for one text: Dense(mlp_dim), ReLU, Dense(C), in float32 at any dtype."""

    num_classes: int  # from the task
    mlp_dim: int

    @nn.compact
    def __call__(self, pooled):
        """Maps pooled [B, D] -> logits float32 [B, C]."""
        x = pooled.astype(jnp.promote_types(pooled.dtype, jnp.float32))
        return nn.Dense(self.num_classes, name="logits")(
            nn.relu(nn.Dense(self.mlp_dim, name="hidden")(x))
        )


class Classifier(nn.Module):
    """Encoder and head in one module: the model that is trained."""

    encoder: Encoder
    head: Head

    def __call__(self, ids, mask, *, train):
        """Classifies ids int32 [B, L] under mask bool [B, L] -> logits float32 [B, C]."""
        return self.head(self.encoder(ids, mask, train=train))
