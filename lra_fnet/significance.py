"""Tests and intervals for accuracies that were measured on the same test rows.

| function | what is a sample | assumes |
|---|---|---|
| `paired` | rows | one run a side; says nothing about other seeds |
| `crossed` | rows, and the seeds of a side of several | independent seeds, normal means |
| `over_tasks` | rows and seeds of every task | tasks are given, and independent of each other |
| `holm` | | nothing about the tests; controls the probability of any false claim |

`compare` chooses between the first two. SciPy takes most of a second to import, so it is imported
at the first test, not with this module.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.05
# Seeds of a side before a difference is called significant, or a cell bold: two show little of the
# spread over seeds.
SEEDS = 3
ROWS = "McNemar's exact test over rows"
SEEDS_AND_ROWS = "test over seeds and rows"
_Z = statistics.NormalDist().inv_cdf(1 - LEVEL / 2)
_LEAST = 1e-15  # the smallest p-value over seeds


class Comparison(NamedTuple):
    """Accuracy of a minus accuracy of b in percentage points, with a 95 % interval."""

    mean: float
    low: float
    high: float
    p_value: float  # two-sided, for the hypothesis of no difference
    test: str  # ROWS or SEEDS_AND_ROWS


def compare(a_right: Sequence, b_right: Sequence) -> Comparison | None:
    """Compares two sets of runs: `paired` for one run each, `crossed` if a side has several.

    Args:
      a_right: for each run of the first model, bool [rows], which rows it answers correctly, or
        None if that was not recorded. All runs are scored on the same rows.
      b_right: the same for the second model.

    Returns:
      The difference, or None if a side has no run or a run did not record its rows.
    """
    if not (len(a_right) and len(b_right)) or any(r is None for r in (*a_right, *b_right)):
        return None
    if len(a_right) == len(b_right) == 1:
        return paired(a_right[0], b_right[0])
    return crossed(np.stack(a_right), np.stack(b_right))


def paired(a_right, b_right) -> Comparison:
    """Compares two runs on the same rows: McNemar's exact test and Tango's score interval.

    Of n rows, let b be those that only the first run answers correctly and c those that only the
    second does. The p-value is that of the binomial test of b in b + c at 1/2 (McNemar 1947,
    Psychometrika 12:153-157, in its exact form). The interval holds the differences d that the
    score test does not reject (Tango 1998, Stat Med 17:891-908): |b - c - n d| <=
    z sqrt(n (2 q + d (1 - d))), where q is the maximum likelihood estimate of the probability of c
    given d.

    Args:
      a_right: bool [n], which rows the first run answers correctly.
      b_right: bool [n], the same for the second run.
    """
    from scipy import special

    a, b = (np.asarray(x, bool) for x in (a_right, b_right))
    n, only_a, only_b = len(a), int((a & ~b).sum()), int((b & ~a).sum())
    mean = (only_a - only_b) / n

    def accepted(difference: float) -> bool:
        return abs(_tango(only_a, only_b, n, difference)) <= _Z

    low, high = (_last(accepted, mean, end) for end in (-1.0, 1.0))
    # At 1/2 both tails are equal. (scipy.stats would take half a second to import.)
    p_value = min(1.0, 2 * float(special.bdtr(min(only_a, only_b), only_a + only_b, 0.5)))
    return Comparison(100 * mean, 100 * low, 100 * high, p_value, ROWS)


def crossed(a_right, b_right) -> Comparison:
    """Compares two models over seeds and rows: both are samples, and every seed meets every row.

    This is the analysis of several readers and cases (Obuchowski and Rockette 1995, Commun Stat
    Simul Comput 24:285-308; Gallas, Pennello and Myers 2007, J Opt Soc Am A 24:B70-B80), with seeds
    as readers: the variance of the difference of means is V_seeds + V_rows. See `_half` for the
    interval; the p-value is the p whose interval of level 1 - p ends at 0. A side of one run, or a
    rule without a seed, adds nothing to V_seeds: the result holds for that run only. Of 1,000 pairs
    of equal models with three seeds each, normally distributed, at most 57 have p < .05 and 3
    p < .001; if each run stays at the floor with probability 1/2, up to 33 have p < .001.

    Args:
      a_right: bool [runs, rows], which rows each run of the first model answers correctly.
      b_right: the same for the second model. One of the two has at least two runs.
    """
    a, b = (np.asarray(side, float) for side in (a_right, b_right))
    mean = float(a.mean() - b.mean())
    pooled = float((a.mean(0) - b.mean(0)).var(ddof=1) / a.shape[1])
    if not pooled and not np.ptp(a) and not np.ptp(b):  # no variance that could be estimated
        return paired(a_right[0], b_right[0])._replace(test=SEEDS_AND_ROWS)
    parts = [_seeds(side) for side in (a, b) if len(side) > 1]
    rows = max(0.0, pooled - sum(_single(side) for side in (a, b) if len(side) > 1))
    half = _half(parts, rows, pooled)
    low, high = max(-1.0, mean - half(LEVEL)), min(1.0, mean + half(LEVEL))
    p_value = _p_value(half, abs(mean))
    return Comparison(100 * mean, 100 * low, 100 * high, p_value, SEEDS_AND_ROWS)


def over_tasks(right: Sequence) -> tuple[float, float, float]:
    """Returns the mean of the tasks' accuracies in %, with a 95 % interval, as in `crossed`.

    The tasks are given, not a sample: their variances add up.

    Args:
      right: for each task bool [runs, rows], which rows each run answers correctly.
    """
    tasks = [np.asarray(task, float) for task in right]
    weight = 1 / len(tasks) ** 2
    parts = [_seeds(task, weight) for task in tasks if len(task) > 1]
    pooled = [weight * float(task.mean(0).var(ddof=1)) / task.shape[1] for task in tasks]
    single = [weight * _single(task) if len(task) > 1 else 0.0 for task in tasks]
    rows = sum(max(0.0, p - s) for p, s in zip(pooled, single, strict=True))
    mean, half = statistics.fmean(task.mean() for task in tasks), _half(parts, rows, sum(pooled))
    return 100 * mean, 100 * max(0.0, mean - half(LEVEL)), 100 * min(1.0, mean + half(LEVEL))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for multiple tests, in the order given (Holm 1979, Scand J Stat 6).

    With m values, the i-th smallest becomes the largest of (m - j + 1) p_j over j <= i, at most 1.
    Calling those up to 0.05 different keeps the probability of any false claim at 5 %.
    """
    order = np.argsort(p_values, kind="stable")
    products = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(products).clip(max=1)
    return adjusted.tolist()


def p_text(p_value: float) -> str:
    """Returns a p-value in print: "0.042", and "< 0.001" for a smaller one.

    From a few seeds, no test tells how far below 0.001 a p-value is. One that is not 0.05 never
    reads 0.05: it gets as many digits as show on which side of the 5 % level it lies.
    """
    texts = [f"{p_value:.{digits}g}" for digits in (2, 3, 4, 6, 8)]
    shown = next((text for text in texts if float(text) != LEVEL), texts[0])
    return "< 0.001" if p_value < 0.001 else shown


def _seeds(right: np.ndarray, weight: float = 1.0) -> tuple[float, int]:
    """Returns the variance over seeds of a mean, and its degrees of freedom."""
    return weight * float(right.mean(1).var(ddof=1)) / len(right), len(right) - 1


def _single(right: np.ndarray) -> float:
    """Returns what single answers, [runs, rows], add to the variance of their mean.

    That is the mean square of what neither the run nor the row explains, over the answers.
    """
    runs, rows = right.shape
    rest = right - right.mean(0) - right.mean(1, keepdims=True) + right.mean()
    return float((rest**2).sum() / ((runs - 1) * (rows - 1)) / (runs * rows))


def _half(parts: Sequence[tuple[float, int]], rows: float, pooled: float):
    """Returns a function of p: half the width of the interval of level 1 - p.

        h(p)^2 = max(t(p)^2 V_seeds + z(p)^2 V_rows, z(p)^2 V_pooled)

    Half-widths of independent parts add as squares (Howe 1974, J Am Stat Assoc 69:789-794). t has
    V_seeds^2 / sum(V_i^2 / freedom_i) degrees of freedom, as in Welch's test, but at most the
    number of parts times the fewest of a part: where a few seeds happen to agree, the formula alone
    counts nearly all of the other side's. V_pooled is the variance over rows with single answers,
    so an interval for any seed is never narrower than that for these runs.

    Args:
      parts: of V_seeds, each with its degrees of freedom.
      rows: V_rows, without single answers.
      pooled: V_pooled.
    """
    from scipy import special

    seeds = sum(part for part, _ in parts)
    chance = sum(part**2 / freedom for part, freedom in parts)
    freedom = seeds**2 / chance if chance else math.inf
    freedom = min([freedom, len(parts) * min((df for _, df in parts), default=1)])

    def half(p_value: float) -> float:
        z2 = special.ndtri(p_value / 2) ** 2
        t2 = special.stdtrit(freedom, p_value / 2) ** 2 if chance else z2
        return math.sqrt(max(t2 * seeds + z2 * rows, z2 * pooled))

    return half


def _p_value(half: Callable[[float], float], mean: float) -> float:
    """Returns the p with half(p) = mean; 1 without a difference."""
    from scipy import optimize

    if half(_LEAST) <= mean:
        return _LEAST if mean else 1.0
    # In the logarithm, since p-values differ by orders of magnitude.
    found = optimize.root_scalar(
        lambda log: half(math.exp(log)) - mean, bracket=(math.log(_LEAST), 0.0)
    )
    return math.exp(found.root)


def _tango(only_a: int, only_b: int, n: int, difference: float) -> float:
    """Returns the score statistic of a difference, see `paired`; infinite where that is certain."""
    linear = (2 * n - only_a + only_b) * difference - only_a - only_b
    constant = -only_b * difference * (1 - difference)
    q = (math.sqrt(max(0.0, linear**2 - 8 * n * constant)) - linear) / (4 * n)
    variance = n * (2 * q + difference * (1 - difference))
    distance = only_a - only_b - n * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _last(accepted: Callable[[float], bool], inside: float, outside: float) -> float:
    """Bisects for the last accepted point between `inside` and `outside`.

    SciPy's root finders need a change of sign between the ends; here `outside`, the largest
    possible difference, may be accepted too.
    """
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if accepted(middle) else (inside, middle)
    return outside
