"""The head, from pooled vectors to logits, the whole classifier, and the model of pre-training."""

import flax.linen as nn
import gin
import jax.numpy as jnp

from lra_fnet.errors import UserError
from lra_fnet.models.encoder import Encoder, deviation
from lra_fnet.models.kernels.pointwise import LayerNorm
from lra_fnet.settings import at_least, check_settings

INTERACTIONS = {1: ("none",), 2: ("concat", "nli")}  # by the number of texts


def interact(pooled, interaction):
    """Combines the vectors of two texts: [B, 2, D] -> [B, 2 D] ("concat") or [B, 4 D] ("nli").

    For vectors e1 and e2, "concat" is [e1, e2] and "nli" is [e1, e2, e1 * e2, e1 - e2] (Long-Range
    Arena, arXiv:2011.04006, Sec. 2.2).
    """
    first, second = pooled[:, 0], pooled[:, 1]
    parts = [first, second]
    if interaction == "nli":
        parts += [first * second, first - second]
    return jnp.concatenate(parts, axis=-1)


@gin.configurable
class Head(nn.Module):
    """LRA's heads, in float32 at any dtype.

    One text: Dense(mlp_dim), ReLU, Dense(C); with mlp_dim 0 only the last. Two texts:
    `interact`, Dense(mlp_dim), ReLU, Dense(mlp_dim // 2), ReLU, Dense(C).

    Raises:
      UserError: on construction, if a setting is unknown or does not fit the task.
    """

    num_classes: int  # from the task
    mlp_dim: int  # of one text: 0 for no hidden layer
    num_inputs: int = 1  # texts per row, from the task
    interaction: str = "none"  # of two texts: "concat" or "nli"; "none" for one text

    def __post_init__(self):
        known = INTERACTIONS.get(self.num_inputs, ("of one or two texts",))
        if self.interaction not in known:
            raise UserError(
                f"Head.interaction must be {' or '.join(known)} for a task with "
                f"num_inputs = {self.num_inputs}, got {self.interaction!r}: set it so"
            )
        check_settings(self)
        at_least("Head.mlp_dim", self.mlp_dim, 0 if self.num_inputs == 1 else 2, 256)
        super().__post_init__()

    @nn.compact
    def __call__(self, pooled):
        """Maps pooled [B, D], or [B, 2, D] for two texts -> logits float32 [B, C]."""
        x = pooled.astype(jnp.promote_types(pooled.dtype, jnp.float32))
        if self.num_inputs == 2:
            x = interact(x, self.interaction)
        if self.mlp_dim:
            x = nn.relu(nn.Dense(self.mlp_dim, name="hidden")(x))
        if self.num_inputs == 2:
            x = nn.relu(nn.Dense(self.mlp_dim // 2, name="hidden_half")(x))
        return nn.Dense(self.num_classes, name="logits")(x)


class Classifier(nn.Module):
    """Encoder and head in one module: the model that is trained.

    The encoder sees the two texts of a row as separate rows.
    """

    encoder: Encoder
    head: Head

    def __call__(self, ids, mask, *, train):
        """Classifies rows -> logits float32 [B, C].

        Args:
          ids: int32 [B, L], or [B, 2, L] for two texts per row.
          mask: bool of the same shape, False at padding.
          train: whether dropout acts.
        """
        texts = ids.shape[:-1]
        ids, mask = (x.reshape(-1, x.shape[-1]) for x in (ids, mask))
        pooled = self.encoder(ids, mask, train=train)
        return self.head(pooled.reshape(*texts, -1))


class Denoiser(nn.Module):
    """Encoder and one Dense layer in one module: predicts tokens from the vectors at their places.

    It is trained by `objective.Denoise`. A single layer leaves the work to the encoder, which is
    all that fine-tuning takes over.
    """

    encoder: Encoder
    num_outputs: int  # values of a token; 1 for a gray value as a number

    @nn.compact
    def __call__(self, ids, mask, places=None, *, train):
        """Predicts tokens -> float32 [T, K, num_outputs], or [T, L, num_outputs] without places.

        Args:
          ids: int32 [T, L]; [B, 2, L] for two texts per row, which count as separate rows.
          mask: bool of the same shape, False at padding.
          places: int32 [T, K], the positions to predict.
          train: whether dropout acts.
        """
        length = ids.shape[-1]
        ids, mask = (x.reshape(-1, length) for x in (ids, mask))
        x = self.encoder(ids, mask, train=train, pooled=False)[:, -length:]  # without CLS
        if places is not None:
            x = jnp.take_along_axis(x, places[..., None], axis=1)
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return nn.Dense(self.num_outputs, name="output")(x)


class Pretrainer(nn.Module):
    """Encoder and BERT's two heads in one module, as in the FNet authors' code.

    Masked pieces: Dense(D), GELU, LayerNorm, then the product with the encoder's embedding table
    and a bias for each id. The label: Dense from the pooled vector. It is trained by
    `objective.Pretrain`.
    """

    encoder: Encoder
    num_classes: int  # of the row's label

    @nn.compact
    def __call__(self, ids, mask, places=None, types=None, *, train):
        """Predicts ids -> float32 [B, K, V], and the label -> float32 [B, C].

        Args:
          ids: int32 [B, L].
          mask: bool [B, L], False at padding.
          places: int32 [B, K], the positions to predict; None for all.
          types: int32 [B, L], the kind of each token; None for 0 everywhere.
          train: whether dropout acts.
        """
        encoder, dim = self.encoder, self.encoder.dim
        x, pooled = encoder(ids, mask, train=train, types=types, pooled="too")
        x = x[:, -ids.shape[-1] :]  # without CLS
        if places is not None:
            x = jnp.take_along_axis(x, places[..., None], axis=1)
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        init = nn.initializers.normal(deviation(encoder.initialisation, dim))
        x = nn.gelu(nn.Dense(dim, kernel_init=init, name="transform")(x))
        x = LayerNorm(encoder.norm_epsilon, name="norm")(x)
        table = encoder.get_variable("params", "embedding")
        bias = self.param("bias", nn.initializers.normal(0.02), (encoder.vocab_size,))
        label = nn.Dense(self.num_classes, kernel_init=init, name="order")(pooled)
        return x @ table.T + bias[None, None], label


def encode(model, variables, ids, mask, **options):
    """Applies the encoder of a Classifier, Denoiser or Pretrainer, at all positions of all layers.

    Args:
      model: the module that has the encoder.
      variables: of the model.
      ids: int32 [B, L], or [B, 2, L] for two texts per row, which count as separate rows.
      mask: bool of the same shape, False at padding.
      **options: of `flax.linen.Module.apply`, such as mutable.

    Returns:
      [T, L, D] (L + 1 for "cls"), or what the options add to it.
    """

    def positions(model, ids, mask):
        return model.encoder(ids, mask, train=False, pooled=False)

    ids, mask = (x.reshape(-1, x.shape[-1]) for x in (ids, mask))
    return model.apply(variables, ids, mask, method=positions, **options)
