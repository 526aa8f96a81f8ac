"""Counts of correct rows, which rows those are as text, and Wilson's interval of an accuracy."""

import base64
import dataclasses
import math
import statistics
import zlib
from collections.abc import Mapping

import numpy as np

_Z = statistics.NormalDist().inv_cdf(0.975)


@dataclasses.dataclass(frozen=True)
class Counts:
    """The number of rows answered correctly, and of all rows; never a percentage."""

    correct: int
    count: int

    def __post_init__(self):
        if not 0 <= self.correct <= self.count or self.count == 0:
            raise ValueError(f"{self.correct} correct of {self.count} rows is impossible")

    @property
    def accuracy(self) -> float:
        """The accuracy in percent."""
        return 100 * self.correct / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the accuracy's 95 % interval in percent, see `wilson`."""
        low, high = wilson(self.correct, self.count)
        return 100 * low, 100 * high


def encode(correct) -> str:
    """Returns which rows are correct, bool [n], as text: base64 of zlib of `numpy.packbits`."""
    return base64.b64encode(zlib.compress(np.packbits(correct).tobytes(), 9)).decode()


def bits(counts: Mapping) -> np.ndarray | None:
    """Returns the array that `encode` was given, bool [n], or None if it was not kept.

    Args:
      counts: has the keys correct, count and, if it was kept, correct_bits.

    Raises:
      ValueError: the text does not encode `count` rows of which `correct` are correct.
    """
    text = counts.get("correct_bits")
    if text is None:
        return None
    count = counts["count"]
    wanted, stream = -(-count // 8), zlib.decompressobj()
    try:  # no more than is wanted: a few bytes can hold gigabytes
        packed = stream.decompress(base64.b64decode(text, validate=True), wanted + 1)
    except (TypeError, ValueError, OverflowError, zlib.error) as error:
        raise ValueError(f"correct_bits: not base64 of zlib data ({error})") from None
    correct = np.unpackbits(np.frombuffer(packed, np.uint8), count=count).astype(bool)
    if len(packed) != wanted or not stream.eof or correct.sum() != counts["correct"]:
        raise ValueError(f"correct_bits: not those of {counts['correct']} correct of {count} rows")
    return correct


def wilson(correct: float, count: float) -> tuple[float, float]:
    """Returns the 95 % score interval of a proportion (Wilson 1927, JASA 22:209-212).

    The interval holds every p with |correct / count - p| <= z sqrt(p (1 - p) / count), where z is
    the 97.5 % quantile of the normal distribution. `correct` may be a mean over runs, so it need
    not be an integer. Both ends are fractions in [0, 1].
    """
    z2 = _Z**2
    share = correct / count
    center = share + z2 / (2 * count)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * count)) / count)
    scale = 1 + z2 / count
    return max(0.0, (center - half) / scale), min(1.0, (center + half) / scale)
