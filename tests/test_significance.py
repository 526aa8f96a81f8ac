"""Intervals and tests of differences, compared with SciPy, brute force and published examples."""

import itertools
import math

import naive
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from lra_fnet import significance

Z = 1.959963984540054
TABLES = [  # both right, only a, only b, both wrong
    (1, 1, 7, 12),
    (36, 12, 2, 0),
    (500, 90, 130, 280),
    (3, 1, 0, 6),
    (0, 4, 0, 3),
    (700, 0, 25, 1275),
]


def rows(both, only_a, only_b, neither):
    """Returns which rows a and b answer correctly."""
    a = [True] * (both + only_a) + [False] * (only_b + neither)
    b = [True] * both + [False] * only_a + [True] * only_b + [False] * neither
    return np.array(a), np.array(b)


@pytest.mark.parametrize("table", TABLES)
def test_the_paired_interval_ends_where_the_score_test_rejects(table):
    """Second way: the most likely table at each end, difference by search instead of a formula."""
    both, only_a, only_b, neither = table
    n = sum(table)
    difference = significance.paired(*rows(*table))
    assert difference.mean == pytest.approx(100 * (only_a - only_b) / n)
    for end in (difference.low / 100, difference.high / 100):
        if abs(end) > 1 - 1e-9:
            continue  # the largest possible difference

        def unlikely(share, end=end):  # share: the probability of "only b"
            cells = [(only_b, share), (only_a, share + end), (both + neither, 1 - 2 * share - end)]
            return -sum(k * math.log(p) for k, p in cells if k)

        bounds = (max(0.0, -end) + 1e-12, (1 - end) / 2 - 1e-12)
        share = scipy.optimize.minimize_scalar(
            unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-12}
        ).x
        error = math.sqrt(n * (2 * share + end - end**2))
        assert abs(only_a - only_b - n * end) / error == pytest.approx(Z, rel=1e-4)


def test_published_intervals_of_paired_shares():
    """Airway hyper-responsiveness before and after transplantation (Fagerland et al. 2014)."""
    difference = significance.paired(*rows(1, 1, 7, 12))
    assert (difference.mean, difference.low, difference.high) == pytest.approx(
        (-28.6, -51.7, -2.6), abs=0.05
    )


def test_interval_of_models_that_agree_on_every_row_is_the_closed_form():
    difference = significance.paired(*rows(40, 0, 0, 60))
    most = 100 * Z**2 / (100 + Z**2)
    assert difference[:4] == pytest.approx((0.0, -most, most, 1.0))


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (3, 3), (2, 9), (90, 130), (12_000, 12_500)])
def test_paired_p_value_is_that_of_the_binomial_test_on_discordant_rows(a, b):
    want = scipy.stats.binomtest(a, a + b).pvalue if a + b else 1.0
    assert significance.paired(*rows(5, a, b, 5)).p_value == pytest.approx(want, rel=1e-9)


# Over seeds and rows


def answers(seed, runs=3, rows=40, means=(0.5, 0.6), spread=0.05, shared=0.2):
    """Returns the correct rows of two models whose seeds and rows both differ in difficulty."""
    rng = np.random.default_rng(seed)
    easy = shared * rng.standard_normal(rows)
    sides = (mean + spread * rng.standard_normal((runs, 1)) + easy for mean in means)
    return [rng.random((runs, rows)) < side for side in sides]


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("seed", [0, 1])
def test_interval_over_seeds_and_rows_is_that_of_the_loops(seed, spread):
    """Second way: products of pairs of answers (`naive.crossed_variance`) and SciPy's quantiles."""
    sides = answers(seed, spread=spread)
    difference = significance.crossed(*sides)
    seeds = [side.mean(1).var(ddof=1) / 3 for side in sides]
    freedom = sum(seeds) ** 2 / sum(part**2 / 2 for part in seeds)
    rows = max(0.0, naive.crossed_variance(*sides, matched=False) - sum(seeds))
    pooled = (sides[0].mean(0) - sides[1].mean(0)).var(ddof=1) / 40

    def half(p_value):
        t, z = (d.isf(p_value / 2) for d in (scipy.stats.t(freedom), scipy.stats.norm))
        return math.sqrt(max(t**2 * sum(seeds) + z**2 * rows, z**2 * pooled))

    mean = sides[0].mean() - sides[1].mean()
    ends = 100 * max(-1, mean - half(0.05)), 100 * min(1, mean + half(0.05))
    assert difference[:3] == pytest.approx((100 * mean, *ends), rel=1e-9)
    assert half(difference.p_value) == pytest.approx(abs(mean), rel=1e-6)


def spread_over_seeds(shares, rows=20_000):
    """Rows of runs with these shares of correct answers, every answer independent of the others."""
    rng = np.random.default_rng(0)
    right = np.arange(rows)
    return np.stack([rng.permutation(right) < share * rows for share in shares])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([0.30, 0.41, 0.35], [0.52, 0.55, 0.41]),
        ([0.235, 0.11, 0.42, 0.33, 0.21], [0.271, 0.62, 0.18]),
    ],
)
def test_with_many_rows_it_is_welchs_test_over_seeds(a, b):
    want = scipy.stats.ttest_ind(a, b, equal_var=False)
    found = significance.crossed(spread_over_seeds(a), spread_over_seeds(b))
    assert found.p_value == pytest.approx(want.pvalue, rel=0.03)
    low, high = want.confidence_interval()
    assert (found.low, found.high) == pytest.approx((100 * low, 100 * high), rel=0.03)


def test_one_run_against_several_is_the_t_test_of_one_sample():
    """A rule has no seed: only the seeds of the other side vary."""
    a, rule = [0.30, 0.41, 0.35], spread_over_seeds([0.28])
    want = scipy.stats.ttest_1samp(a, 0.28)
    found = significance.crossed(spread_over_seeds(a), rule)
    assert found.p_value == pytest.approx(want.pvalue, rel=0.03)
    mirrored = significance.crossed(rule, spread_over_seeds(a))
    assert mirrored[:4] == pytest.approx((-found.mean, -found.high, -found.low, found.p_value))


def test_seeds_of_equal_accuracy_have_the_interval_of_the_rows():
    """What single answers add to the variance of the rows would otherwise be missing."""
    rng = np.random.default_rng(0)
    a, b = (np.stack([rng.permutation(row) for _ in range(3)]) for (row,) in answers(0, 1, 400))
    found = significance.crossed(a, b)
    error = math.sqrt((a.mean(0) - b.mean(0)).var(ddof=1) / 400)
    assert (found.high - found.low) / 200 == pytest.approx(Z * error, rel=1e-6)


@pytest.mark.parametrize("wrong", [False, True])
def test_without_any_spread_several_runs_say_as_much_as_one(wrong):
    """All answers of a side are alike, so that no variance can be estimated."""
    a, b = np.ones((3, 50), bool), np.full((2, 50), not wrong)
    assert significance.crossed(a, b)[:4] == significance.paired(a[0], b[0])[:4]


def test_equal_models_differ_in_at_most_5_of_100_samples_of_seeds_and_rows():
    """A test on rows alone, which takes the seeds for all seeds, claims many more differences."""
    claimed = over_rows = 0
    for seed in range(400):
        sides = answers(seed, 3, 400, means=(0.5, 0.5), spread=0.03)
        claimed += significance.crossed(*sides).p_value < 0.05
        a, b = (side.mean(0) for side in sides)
        over_rows += scipy.stats.ttest_rel(a, b).pvalue < 0.05
    assert 4 <= claimed <= 24
    assert over_rows > 40


def test_three_seeds_that_agree_do_not_count_as_the_ten_of_the_other_side():
    """Welch's degrees of freedom would be 9.5 here, where those of three seeds alone are 2."""
    a = [0.500, 0.501, 0.502]
    b = [0.51, 0.55, 0.49, 0.525, 0.505, 0.53, 0.54, 0.50, 0.515, 0.535]
    error = math.sqrt(np.var(a, ddof=1) / 3 + np.var(b, ddof=1) / 10)
    want = 2 * scipy.stats.t(4).sf((np.mean(b) - np.mean(a)) / error)
    found = significance.crossed(spread_over_seeds(a, 200_000), spread_over_seeds(b, 200_000))
    assert found.p_value == pytest.approx(want, rel=0.05)
    assert scipy.stats.ttest_ind(a, b, equal_var=False).pvalue < want / 2


def test_comparison_takes_the_test_that_fits_and_needs_the_rows_of_every_run():
    a, b = answers(0)
    assert significance.compare(a[:1], b[:1]) == significance.paired(a[0], b[0])
    assert significance.compare(a, b[:1]) == significance.crossed(a, b[:1])
    assert significance.compare(a, b) == significance.crossed(a, b)
    assert significance.compare([*a, None], b) is None
    assert significance.compare(a, [None]) is None
    assert significance.compare(a, []) is None


# Over tasks


def test_mean_over_tasks_adds_the_variances_of_the_tasks():
    """Of one task it is the difference from a rule that is never right; of two, half of both."""
    (a, b), never = answers(1), np.zeros((1, 40), bool)
    one, other = (significance.crossed(side, never) for side in (a, b))
    assert significance.over_tasks([a]) == pytest.approx(one[:3])
    assert significance.over_tasks([a, b])[0] == pytest.approx((one.mean + other.mean) / 2)
    _, low, high = significance.over_tasks([a[:1], b[:1]])
    error = math.sqrt(sum(side[0].var(ddof=1) / 40 for side in (a, b))) / 2
    assert high - low == pytest.approx(200 * Z * error)


def test_interval_over_tasks_holds_the_truth_95_times_in_100():
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        tasks = []
        for runs, rows in ((3, 300), (5, 200)):
            share = 0.5 + 0.03 * rng.standard_normal((runs, 1)) + 0.2 * rng.standard_normal(rows)
            tasks.append(rng.random((runs, rows)) < share)
        _, low, high = significance.over_tasks(tasks)
        held += low <= 50 <= high
    assert held >= 372


# Many tests


def test_holms_values_worked_by_hand():
    """0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1, which may not fall below the one before."""
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.6, 0.7]) == [1.0, 1.0]
    assert significance.holm([]) == []


def test_holm_is_bonferroni_of_every_set_of_hypotheses():
    """Second way, closed testing: reject a hypothesis if every set that holds it is rejected."""
    p_values = np.random.default_rng(0).random(5) ** 3
    sets = [s for size in range(1, 6) for s in itertools.combinations(range(5), size)]
    want = [
        max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in sets if i in s)
        for i in range(5)
    ]
    assert significance.holm(list(p_values)) == pytest.approx(want)


@pytest.mark.parametrize(
    ("p_value", "words"),
    [
        *((0.0421, "0.042"), (1.0, "1"), (0.001, "0.001"), (0.00099, "< 0.001")),
        *((0.0504, "0.0504"), (0.0496, "0.0496"), (0.05003, "0.05003"), (0.05, "0.05")),
    ],
)
def test_p_value_in_print_is_on_its_side_of_the_level_and_not_below_a_thousandth(p_value, words):
    assert significance.p_text(p_value) == words
