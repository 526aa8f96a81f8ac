"""The task of the drill: that of tests/outside, in bytes, so that it can predict."""

import dataclasses

import gin

from tests.outside import parity


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Toy(parity.Parity):
    """Is the number of ones in a short text odd?"""

    name = "toy"
    vocab_size = 257
