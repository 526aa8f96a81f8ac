"""The FNet paper's "Random" mixing: two fixed random matrices (arXiv:2105.03824, Sec. 4.1)."""

from typing import ClassVar

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.linear import linear_mix

TRUNCATED_SD = 0.8796256610342398  # of a standard normal kept within two standard deviations


def draw_matrix(rng, size):
    """lecun_normal entries: mean 0, variance 1 / size, none beyond 2.27 of these deviations.

    Row by row, each from a key of its own, so that no more than the matrix and a row is held.

    Returns:
      float32 [size, size].
    """
    scale = size**-0.5 / TRUNCATED_SD

    def row(number):
        key = jax.random.fold_in(rng, number)
        return scale * jax.random.truncated_normal(key, -2.0, 2.0, (size,), jnp.float32)

    return lax.map(row, jnp.arange(size))


@gin.configurable
class RandomMixing(Mixer):
    """As LinearMixing, with matrices that are drawn once and never trained.

    They are a pure function of (seed, layer), kept in the collection "constants": checkpoints
    hold them and the optimizer does not see them. The authors' code draws them from other keys, so
    the distribution is theirs, the numbers are not. The sequence matrix has max_len x max_len
    entries, so the length is fixed: 16384 tokens take 1 GiB a layer.

    Raises:
      UserError: if the input's length is not max_len.
    """

    seed: int

    uses_mask: ClassVar[bool] = False

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D]; mask and train change nothing."""
        if x.shape[1] != self.max_len:
            raise UserError(
                f"RandomMixing has a matrix for exactly {self.max_len} positions, got "
                f"{x.shape[1]}: pad or cut every batch to {self.max_len}"
            )

        def constant(name, number, size):
            def draw():
                # A named generator: the matrices do not depend on JAX's default one.
                rng = jax.random.fold_in(jax.random.key(self.seed, impl="threefry2x32"), self.layer)
                return draw_matrix(jax.random.fold_in(rng, number), size)

            return self.variable("constants", name, draw).value.astype(x.dtype)

        sequence = constant("sequence", 0, self.max_len)
        hidden = constant("hidden", 1, self.dim)
        return linear_mix(x, sequence, hidden)
