"""Confidence intervals and tests for differences of accuracies.

`paired` compares two runs on the same rows, and `over_rows` the means of several; `unpaired` serves
where it is unknown which rows each run answered correctly. They describe these trained models only.
Whether one model is better than another for any seed is what `over_seeds` tests. SciPy's
distributions take most of a second to import, so they are imported at the first test, not with this
module.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lra_fnet.counts import wilson
from lra_fnet.run.result import Checkpoint, Record, Score, Split

_TAIL = 0.025  # above a two-sided 95 % interval
_Z = statistics.NormalDist().inv_cdf(1 - _TAIL)
_LEAST = 1e-15  # the smallest p-value over seeds


class Difference(NamedTuple):
    """Accuracy of a minus accuracy of b in percentage points, with a 95 % interval."""

    mean: float
    low: float
    high: float
    p_value: float  # two-sided, for the hypothesis of no difference
    n: int  # pairs of rows if paired; otherwise rows or runs of both sides together


def paired(a_bits, b_bits) -> Difference:
    """Compares two models on the same rows: McNemar's exact test and Tango's score interval.

    Of n rows, let b be those that only the first model answers correctly and c those that only the
    second does:

    - The p-value is that of the binomial test of b in b + c at 1/2 (McNemar 1947, Psychometrika
      12:153-157, in its exact form).
    - The interval holds the differences d that the score test does not reject (Tango 1998, Stat
      Med 17:891-908): |b - c - n d| <= z sqrt(n (2 q + d (1 - d))), where q is the maximum
      likelihood estimate of the probability of c given d. At d = 0 this is McNemar's test without
      correction, so the interval excludes 0 where the test rejects, except that the test is exact.
      Newcombe's method 10 (1998, Stat Med 17:2635-2650) inverts no test and may contradict p.

    Args:
      a_bits: bool [n], which rows the first model answers correctly.
      b_bits: bool [n], the same for the second model.
    """
    from scipy import stats  # takes most of a second

    a, b = (np.asarray(x, bool) for x in (a_bits, b_bits))
    n, only_a, only_b = len(a), int((a & ~b).sum()), int((b & ~a).sum())
    mean = (only_a - only_b) / n

    def accepted(difference: float) -> bool:
        return abs(_tango(only_a, only_b, n, difference)) <= _Z

    low, high = (_last(accepted, mean, end) for end in (-1.0, 1.0))
    discordant = only_a + only_b
    p_value = float(stats.binomtest(only_a, discordant).pvalue) if discordant else 1.0
    return Difference(100 * mean, 100 * low, 100 * high, p_value, n)


def unpaired(correct_a: float, n_a: int, correct_b: float, n_b: int) -> Difference:
    """Compares two models on independent rows: z-test and Newcombe's hybrid score interval.

    With proportions p, their Wilson intervals (l, u) and the pooled proportion r:

    - p-value: of z = (p_a - p_b) / sqrt(r (1 - r) (1 / n_a + 1 / n_b)), the score test.
    - Interval: p_a - p_b - sqrt((p_a - l_a)^2 + (u_b - p_b)^2) to
      p_a - p_b + sqrt((u_a - p_a)^2 + (p_b - l_b)^2) (Newcombe 1998, Stat Med 17:873-890, method
      10).

    Two models that are scored on the same rows agree on most of them, so this interval is wider
    than that of `paired`.
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


def over_rows(a_right, b_right) -> Difference:
    """Compares the means of two sets of runs on the same rows; the rows alone are a sample.

    With d_i the share of the first model's runs that answer row i correctly less that of the second
    model's, z = mean(d) / sqrt(var(d) / rows), the t-test of pairs for many rows. If all d_i are
    equal, they have no variance to estimate, and `unpaired` compares the means.

    Args:
      a_right: bool [runs, rows], which rows each run of the first model answers correctly.
      b_right: the same for the second model; the number of runs may differ.
    """
    a, b = np.mean(a_right, 0), np.mean(b_right, 0)
    each = a - b
    if not np.ptp(each):
        return _of_means(float(a.mean()), float(b.mean()), len(each))
    mean, error = float(each.mean()), math.sqrt(each.var(ddof=1) / len(each))
    p_value = math.erfc(abs(mean) / error / math.sqrt(2))
    ends = mean - _Z * error, mean + _Z * error
    return Difference(100 * mean, 100 * ends[0], 100 * ends[1], p_value, len(each))


def _of_means(share_a: float, share_b: float, rows: int) -> Difference:
    """Compares two shares of correct rows by `unpaired`, on the same number of rows."""
    return unpaired(share_a * rows, rows, share_b * rows, rows)._replace(n=rows)


def over_seeds(
    a_values: Sequence[float],
    b_values: Sequence[float],
    count: int,
    right: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    matched: bool,
) -> Difference:
    """Compares two models over seeds and rows: both are samples, and every seed meets every row.

    This is the analysis of several readers and cases, with seeds as readers (Obuchowski and
    Rockette 1995, Commun Stat Simul Comput 24:285-308; for right and wrong answers Gallas, Pennello
    and Myers 2007, J Opt Soc Am A 24:B70-B80). The variance of the difference of the two means is
    V_seeds + V_rows, where V_seeds is the variance of the seeds' differences over their number, and
    V_rows that of the rows' mean differences over theirs, less what single answers add to it (0 if
    that is negative). With different seeds on the two sides, V_seeds is the sum of both variances,
    as in Welch's test.

    The interval at level 1 - p reaches h(p) to both sides of the difference, and the p-value is the
    p with h(p) = |difference|:

        h(p)^2 = max(t(p)^2 V_seeds + z(p)^2 V_rows, z(p)^2 V_pooled).

    z is the normal quantile, and t that of V_seeds^2 / sum(V_i^2 / (seeds_i - 1)) degrees of
    freedom, but of at most twice those of the side with fewer seeds: where a few seeds happen to
    agree, the formula alone counts nearly all of the other side's. Half-widths of independent parts
    add as squares (Howe 1974, J Am Stat Assoc 69:789-794). V_pooled is V_rows with single answers,
    as in `over_rows`, so the interval for any seed is never narrower than that for these runs. The
    usual t-test takes one quantile for the sum of the variances (Hillis 2007, Stat Med 26:596-619).
    Where three seeds happen to agree, its quantile falls with V_seeds: of 1,000 pairs of equal
    models it calls up to 75 different at p = .05 and 11 at p = .001, and this test at most 57 and 3
    (with two seeds, 111 and 26 against 62 and 1). With three seeds against ten, this test calls at
    most 62 and 5 different; without the limit on the degrees of freedom, 65 and 11. With two seeds
    against three or ten, it calls up to 74 and 6, or 86 and 10, different if the two vary several
    times as much, and about 24 at p = .05 if both sides vary alike. All these are of normally
    distributed seeds: if each run stays at the floor with probability 1/2, up to 33 of 1,000 pairs
    with three seeds have p < .001.

    Where it is unknown which rows a side answered correctly, the rows of the two models are taken
    as independent: V_rows = V_pooled = (p_a (1 - p_a) + p_b (1 - p_b)) / rows. Models agree on most
    rows, so this finds fewer differences. Without any variance, `unpaired` compares the means.

    Args:
      a_values: the accuracy in % of each run of the first model, at least two.
      b_values: the same for the second model.
      count: rows.
      right: which rows each run of both models answers correctly, bool [runs, rows]; None if that
        is unknown of any run.
      matched: whether the i-th runs of both models have the same seed.
    """
    a, b = (np.asarray(values, float) / 100 for values in (a_values, b_values))
    mean = float(a.mean() - b.mean())
    samples = [a - b] if matched else [a, b]
    parts = [(sample.var(ddof=1) / len(sample), len(sample) - 1) for sample in samples]
    if right is None:
        pooled = rows = sum(p * (1 - p) for p in (a.mean(), b.mean())) / count
    else:
        answers = [np.asarray(side, float) for side in right]
        pooled = (answers[0].mean(0) - answers[1].mean(0)).var(ddof=1) / count
        sides = [answers[0] - answers[1]] if matched else answers
        rows = max(0.0, pooled - sum(map(_single, sides)))
    if not pooled and not any(part for part, _ in parts):
        return _of_means(float(a.mean()), float(b.mean()), count)._replace(n=len(a) + len(b))
    half, p_value = _crossed(abs(mean), parts, rows, pooled)
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return Difference(100 * mean, 100 * low, 100 * high, p_value, len(a) + len(b))


def _crossed(mean: float, parts: Sequence[tuple[float, int]], rows: float, pooled: float):
    """Returns half the 95 % interval and the p-value of `over_seeds`.

    Args:
      mean: the size of the difference.
      parts: of V_seeds, each with its degrees of freedom.
      rows: V_rows.
      pooled: V_pooled.
    """
    from scipy import optimize, special  # take a while

    seeds = sum(part for part, _ in parts)
    chance = sum(part**2 / freedom for part, freedom in parts)
    most = len(parts) * min(freedom for _, freedom in parts)
    freedom = min(most, seeds**2 / chance) if chance else math.inf

    def half(p_value: float) -> float:
        z2 = special.ndtri(p_value / 2) ** 2
        t2 = special.stdtrit(freedom, p_value / 2) ** 2 if chance else z2
        return math.sqrt(max(t2 * seeds + z2 * rows, z2 * pooled))

    if half(_LEAST) <= mean:
        return half(2 * _TAIL), _LEAST
    # In the logarithm, since p-values differ by orders of magnitude.
    found = optimize.root_scalar(
        lambda log: half(math.exp(log)) - mean, bracket=(math.log(_LEAST), 0.0)
    )
    return half(2 * _TAIL), math.exp(found.root)


def _single(answers: np.ndarray) -> float:
    """Returns what single answers, [runs, rows], add to the variance of their mean.

    That is the mean square of what neither the run nor the row explains, over the answers.
    """
    runs, rows = answers.shape
    rest = answers - answers.mean(0) - answers.mean(1, keepdims=True) + answers.mean()
    return float((rest**2).sum() / ((runs - 1) * (rows - 1)) / (runs * rows))


def could_be_best(p_values: Sequence[Sequence[float]]) -> list[float]:
    """Returns for each model the p-value of the hypothesis that none of the others is better.

    These are Hsu's multiple comparisons with the best (1981, Ann Stat 9:1026-1034; Edwards and Hsu
    1983, J Am Stat Assoc 78:965-971), with Bonferroni's bound in place of Dunnett's quantile, since
    the pairs have different variances and degrees of freedom. Leaving out the models with p <= 0.05
    keeps the probability that the best one is left out at 5 %, whichever has the highest number.

    Args:
      p_values: [i][j] is the one-sided p-value for "j is better than i"; [i][i] is not read.
    """
    others = [[p for j, p in enumerate(row) if j != i] for i, row in enumerate(p_values)]
    return [min(1.0, len(row) * min(row)) if row else 1.0 for row in others]


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
    shown = next((text for text in texts if float(text) != 0.05), texts[0])
    return "< 0.001" if p_value < 0.001 else shown


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


# Two or three differences of pairs have so few degrees of freedom that a test of pairs finds fewer
# differences than one that does not pair the runs.
MATCHED = 5
LEVEL = 0.05
# Seeds of each side before a difference is called significant, or a cell bold: two show little of
# the spread over seeds.
SEEDS = 3
CROSSED = "test over seeds and rows"
INDEPENDENT = "test over seeds and rows taken as independent"
AVERAGED = "z-test over rows"
PAIRED = "McNemar's exact test, Tango's interval"
UNPAIRED = "two-proportion z-test, Newcombe's interval"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two sets of runs on the same rows: mean accuracies in %, their difference, and the test."""

    a: float
    b: float
    difference: Difference
    test: str  # CROSSED, INDEPENDENT, AVERAGED, PAIRED or UNPAIRED
    why: str  # the reason for this test


def compare(
    a: Sequence[Record], b: Sequence[Record], split: Split, checkpoint: Checkpoint = "best"
) -> Comparison:
    """Compares two sets of complete runs by the test that fits.

    Several seeds on both sides are compared over seeds and rows, in pairs if they are the same
    `MATCHED` seeds or more. One run on each side is compared row by row (McNemar), one run against
    several by the mean of each row. All take the rows of the two sides as independent if some run
    did not keep which rows it answered correctly.
    """
    a, b = (sorted(runs, key=lambda run: run.seed) for runs in (a, b))
    scores = [[s for run in runs if (s := run.score(split, checkpoint))] for runs in (a, b)]
    values_a, values_b = ([score.accuracy for score in side] for side in scores)
    means = statistics.fmean(values_a), statistics.fmean(values_b)
    right = _right(scores)
    count, numbers = scores[0][0].count, f"{len(a)} and {len(b)} seeds"
    if min(len(a), len(b)) > 1:
        same = len(a) >= MATCHED and [run.seed for run in a] == [run.seed for run in b]
        difference = over_seeds(values_a, values_b, count, right, matched=same)
        why = f"{numbers}, in pairs" if same else numbers
        if right is None:
            why += "; not every run recorded which rows it got right"
        return Comparison(*means, difference, CROSSED if right else INDEPENDENT, why)
    if len(a) == len(b) == 1:
        if right:
            why = "one run each, on the same rows; a claim about seeds needs two seeds of each"
            return Comparison(*means, paired(right[0][0], right[1][0]), PAIRED, why)
        why = "one run each, but not both recorded which rows they got right: no pairs"
    else:
        why = f"{numbers}; a spread over seeds needs two of each, so means over rows are compared"
        if right:
            return Comparison(*means, over_rows(*right), AVERAGED, why)
    rows = (means[0] / 100 * count, count, means[1] / 100 * count, count)
    return Comparison(*means, unpaired(*rows), UNPAIRED, why)


def _right(sides: Sequence[Sequence[Score]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns which rows are correct, bool [runs, rows] of both sides; None unless all say."""
    a, b = ([row for score in side if (row := score.right) is not None] for side in sides)
    return (np.stack(a), np.stack(b)) if (len(a), len(b)) == tuple(map(len, sides)) else None
