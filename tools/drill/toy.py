"""The task of the drill: is the number of ones in a short text odd?"""

import dataclasses

import gin
import numpy as np

from lra_fnet.tasks import Raw, Task


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Toy(Task):
    """Texts of 3 to 12 digits, so few that a whole run takes a second."""

    name = "toy"
    num_classes = 2
    vocab_size = 257
    configs = {"full": 12}  # noqa: RUF012 (a class variable of Task)

    def raw(self, source, jobs):
        """Returns three splits, each from a separate generator."""
        sizes = {"train": 64, "validation": 24, "test": 32}
        return Raw({name: _rows(seed, n) for seed, (name, n) in enumerate(sizes.items())})


def _rows(seed, n):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        text = rng.integers(0, 2, rng.integers(3, 13)).astype(np.uint8)
        yield text, int(text.sum()) % 2
