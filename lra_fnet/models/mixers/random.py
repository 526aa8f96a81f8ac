"""The FNet paper's "Random" mixing: two fixed random matrices (arXiv:2105.03824, Sec. 4.1)."""

from typing import Annotated, ClassVar

import gin
import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.models.mixer import fixed_key
from lra_fnet.models.mixers.linear import LinearMixing
from lra_fnet.settings import Least

TRUNCATED_SD = 0.8796256610342398  # of a standard normal kept within two standard deviations


def draw_matrix(rng, size):
    """Draws lecun_normal entries: mean 0, variance 1 / size, cut off at 2.27 standard deviations.

    Each row is drawn from its own key, so that only the matrix and one row are in memory.

    Returns:
      float32 [size, size].
    """
    scale = size**-0.5 / TRUNCATED_SD

    def row(number):
        key = jax.random.fold_in(rng, number)
        return scale * jax.random.truncated_normal(key, -2.0, 2.0, (size,), jnp.float32)

    return lax.map(row, jnp.arange(size))


@gin.configurable
class RandomMixing(LinearMixing):
    """Mixes as LinearMixing does, but with matrices that are drawn once and never trained.

    They are a pure function of (seed, layer) in the collection "constants": checkpoints hold them
    and the optimizer does not see them. The authors' code draws them from other keys, so the
    distribution is theirs but the numbers are not. The sequence matrix has max_len x max_len
    entries, so the length is fixed: 16384 tokens take 1 GiB per layer.

    Raises:
      UserError: on a call with a length other than max_len.
    """

    seed: Annotated[int, Least(0, suggest=0, below=2**32)]

    uses_first_only: ClassVar[bool] = True

    def matrix(self, name, size):
        """See `LinearMixing.matrix`."""

        def draw():
            number = ("sequence", "hidden").index(name)
            return draw_matrix(jax.random.fold_in(fixed_key(self.seed, self.layer), number), size)

        return self.variable("constants", name, draw).value
