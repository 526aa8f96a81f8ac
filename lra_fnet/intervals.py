"""Whether two accuracies differ: differences with 95 % intervals, each with the test that fits.

Two runs that scored the same rows are `paired`; where it is not known which rows each got right,
they are `unpaired`. Both speak of the two trained models alone. Whether one model is better than
another whatever the seed is a matter of `seeds`. NumPy and the standard library only.
"""

import base64
import itertools
import math
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

_LEVEL = 0.95
_Z = statistics.NormalDist().inv_cdf((1 + _LEVEL) / 2)


class Difference(NamedTuple):
    """Accuracy of a minus that of b in percentage points, with a 95 % interval."""

    mean: float
    low: float
    high: float
    p_value: float  # two-sided, of no difference
    n: int  # pairs of rows if paired; else rows or runs of both together


def encode(correct) -> str:
    """Which rows are right, bool [n], as text: base64 of zlib of `numpy.packbits`."""
    return base64.b64encode(zlib.compress(np.packbits(correct).tobytes(), 9)).decode()


def bits(counts: Mapping) -> np.ndarray | None:
    """What `encode` took, bool [n], of {"correct", "count", "correct_bits"}; None without the last.

    Raises:
      ValueError: it is not what `encode` gives for so many rows, so many of them right.
    """
    text = counts.get("correct_bits")
    if text is None:
        return None
    try:
        packed = zlib.decompress(base64.b64decode(text, validate=True))
    except (TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"no base64 of zlib ({error})") from None
    count = counts["count"]
    if len(packed) != -(-count // 8):
        raise ValueError(f"{len(packed)} bytes, {count} rows take {-(-count // 8)}")
    found = np.unpackbits(np.frombuffer(packed, np.uint8), count=count).astype(bool)
    if found.sum() != counts["correct"]:
        raise ValueError(f"{found.sum()} right rows, 'correct' says {counts['correct']}")
    return found


def wilson(correct: float, count: float) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927, JASA 22:209-212).

    It holds the p with |correct / count - p| <= z sqrt(p (1 - p) / count), where z is the normal
    distribution's 97.5 % quantile. Both ends are fractions in [0, 1].
    """
    z2 = _Z**2
    share = correct / count
    center = share + z2 / (2 * count)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * count)) / count)
    scale = 1 + z2 / count
    return max(0.0, (center - half) / scale), min(1.0, (center + half) / scale)


def paired(a_bits, b_bits) -> Difference:
    """Two models on the same rows: McNemar's exact test and Tango's score interval.

    With b rows that only the first got right and c that only the second did, of n:

    - p is that of the binomial test of b in b + c at 1/2 (McNemar 1947, Psychometrika 12:153-157,
      in its exact form).
    - The interval holds the differences d that the score test does not reject (Tango 1998, Stat
      Med 17:891-908): |b - c - n d| <= z sqrt(n (2 q + d (1 - d))), where q, the probability of c,
      is its maximum likelihood estimate given d. At d = 0 this is McNemar's test without
      correction: the interval leaves 0 out where the test rejects, but for the test's exactness.
      Newcombe's method 10 (1998, Stat Med 17:2635-2650) inverts no test, so it may disagree with p.

    Args:
      a_bits: bool [n], which rows the first got right.
      b_bits: bool [n], the same rows of the second.
    """
    a, b = (np.asarray(x, bool) for x in (a_bits, b_bits))
    n, only_a, only_b = len(a), int((a & ~b).sum()), int((b & ~a).sum())
    mean = (only_a - only_b) / n

    def accepted(difference: float) -> bool:
        return abs(_tango(only_a, only_b, n, difference)) <= _Z

    low, high = (_last(accepted, mean, end) for end in (-1.0, 1.0))
    return Difference(100 * mean, 100 * low, 100 * high, _binomial(only_a, only_b), n)


def unpaired(correct_a: float, n_a: int, correct_b: float, n_b: int) -> Difference:
    """Two models on rows taken as independent: the z-test and Newcombe's hybrid score interval.

    With shares p, their Wilson intervals (l, u) and the share of both together r:

    - p-value: of z = (p_a - p_b) / sqrt(r (1 - r) (1 / n_a + 1 / n_b)), the score test.
    - Interval: p_a - p_b - sqrt((p_a - l_a)^2 + (u_b - p_b)^2) to
      p_a - p_b + sqrt((u_a - p_a)^2 + (p_b - l_b)^2) (Newcombe 1998, Stat Med 17:873-890, method
      10).

    Two models that were scored on the same rows agree on most, so that this is wider than `paired`.
    """
    share_a, share_b = correct_a / n_a, correct_b / n_b
    (low_a, high_a), (low_b, high_b) = wilson(correct_a, n_a), wilson(correct_b, n_b)
    mean = share_a - share_b
    low = mean - math.hypot(share_a - low_a, high_b - share_b)
    high = mean + math.hypot(high_a - share_a, share_b - low_b)
    pooled = (correct_a + correct_b) / (n_a + n_b)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n_a + 1 / n_b))
    p_value = math.erfc(abs(mean) / error / math.sqrt(2)) if error else 1.0
    return Difference(100 * mean, 100 * low, 100 * high, p_value, n_a + n_b)


def seeds(a_values: Sequence[float], b_values: Sequence[float]) -> Difference | None:
    """Two models over independent seeds: Welch's t-test (Welch 1947, Biometrika 34:28-35).

    t = (mean_a - mean_b) / sqrt(v_a + v_b), where v is a sample's variance over its size, with
    (v_a + v_b)^2 / (v_a^2 / (n_a - 1) + v_b^2 / (n_b - 1)) degrees of freedom (Satterthwaite 1946,
    Biometrics 2:110-114).

    Args:
      a_values: an accuracy in % of each run.
      b_values: the same of the other model.

    Returns:
      None with fewer than two runs on a side, or where neither side has any spread.
    """
    if min(len(a_values), len(b_values)) < 2:
        return None
    errors = [statistics.variance(x) / len(x) for x in (a_values, b_values)]
    if sum(errors) == 0:
        return None
    mean = statistics.fmean(a_values) - statistics.fmean(b_values)
    freedom = sum(errors) ** 2 / sum(
        error**2 / (len(x) - 1) for error, x in zip(errors, (a_values, b_values), strict=True)
    )
    scale = math.sqrt(sum(errors))
    half = _t_quantile(freedom) * scale
    p_value = _t_both_tails(mean / scale, freedom)
    return Difference(mean, mean - half, mean + half, p_value, len(a_values) + len(b_values))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for many tests, in the order given (Holm 1979, Scand J Stat 6:65-70).

    With m values, the i-th smallest becomes the largest of (m - j + 1) p_j over j <= i, at most 1:
    calling those up to 0.05 different keeps the chance of any false call at 5 %.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for smaller, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - smaller) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _tango(only_a: int, only_b: int, n: int, difference: float) -> float:
    """The score statistic of a difference, see `paired`; at its ends it may be infinite."""
    linear = (2 * n - only_a + only_b) * difference - only_a - only_b
    constant = -only_b * difference * (1 - difference)
    q = (math.sqrt(max(0.0, linear**2 - 8 * n * constant)) - linear) / (4 * n)
    variance = n * (2 * q + difference * (1 - difference))
    distance = only_a - only_b - n * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _last(accepted: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where `accepted` ends between a point inside and one that is outside or its limit."""
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if accepted(middle) else (inside, middle)
    return outside


def _binomial(first: int, second: int) -> float:
    """Two-sided p of so many of the one and of the other, at 1/2 each."""
    smaller, total = min(first, second), first + second
    if 2 * smaller == total:
        return 1.0
    # P(X <= k) of n draws at 1/2 is I_{1/2}(n - k, k + 1) (DLMF 8.17.5).
    return min(1.0, 2 * _beta(total - smaller, smaller + 1, 0.5))


def _t_both_tails(t: float, freedom: float) -> float:
    """P(|T| >= |t|) of Student's t: I_x(f / 2, 1/2) at x = f / (f + t^2)."""
    return _beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _t_quantile(freedom: float) -> float:
    """Student's t with 2.5 % of the distribution above it."""
    above = 1.0
    while _t_both_tails(above, freedom) > 1 - _LEVEL:
        above *= 2
    return _last(lambda t: _t_both_tails(t, freedom) > 1 - _LEVEL, 0.0, above)


def _beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction.

    DLMF 8.17.22, evaluated from the front (Lentz 1976, Applied Optics 15:668-671). It converges in
    some sqrt(a + b) terms for x up to about the mean; beyond, 1 - I_{1-x}(b, a) is taken.
    """
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, 1 - x)
    if x == 0:
        return 0.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    fraction = numerator_ratio = 1.0
    denominator_ratio = 0.0
    for number in itertools.count(1):
        m = number // 2
        if number % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator_ratio = 1 / (1 + term * denominator_ratio)
        numerator_ratio = 1 + term / numerator_ratio
        change = numerator_ratio * denominator_ratio
        fraction *= change
        if abs(change - 1) < 1e-15:
            break
    return front / fraction
