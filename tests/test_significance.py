"""Intervals and tests of differences, compared with SciPy, brute force and published examples."""

import itertools
import math

import naive
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from lra_fnet import significance
from lra_fnet.counts import bits, encode, wilson

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


# Which rows are right


@pytest.mark.parametrize("n", [1, 7, 8, 9, 2000, 25_000])
def test_encoded_rows_are_decoded_again(n):
    right = np.random.default_rng(n).random(n) < 0.6
    counts = {"correct": int(right.sum()), "count": n, "correct_bits": encode(right)}
    back = bits(counts)
    assert back is not None
    assert back.dtype == bool
    np.testing.assert_array_equal(back, right)
    assert len(counts["correct_bits"]) < 40 + n / 6 + 1  # four characters for three bytes


def test_counts_without_bits_decode_to_none():
    assert bits({"correct": 3, "count": 5}) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (encode([True] * 9), "2 bytes, but 8 rows need 1"),
        (encode([True] * 4 + [False] * 4), "4 correct rows, but 'correct' says 5"),
        ("no base64!", "not base64 of zlib data"),
        ("AAAA", "not base64 of zlib data"),
        (7, "not base64 of zlib data"),
    ],
)
def test_damaged_bits_raise_value_error(text, words):
    with pytest.raises(ValueError, match=words):
        bits({"correct": 5, "count": 8, "correct_bits": text})


# One proportion


@pytest.mark.parametrize(("correct", "count"), [(0, 10), (7, 10), (600, 2000), (361, 2000), (5, 5)])
def test_wilson_ends_solve_the_score_equation(correct, count):
    """Second way: find the p at which |share - p| is z standard errors OF p."""
    share = correct / count

    def excess(p):
        return abs(share - p) - Z * math.sqrt(p * (1 - p) / count)

    low, high = wilson(correct, count)
    below = scipy.optimize.brentq(excess, 0, share - 1e-12) if correct else 0
    above = scipy.optimize.brentq(excess, share + 1e-12, 1) if correct < count else 1
    assert (low, high) == pytest.approx((below, above), abs=1e-9)


# On the same rows


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
    assert difference.n == 21


def test_interval_of_models_that_agree_on_every_row_is_the_closed_form():
    difference = significance.paired(*rows(40, 0, 0, 60))
    most = 100 * Z**2 / (100 + Z**2)
    assert difference == pytest.approx((0.0, -most, most, 1.0, 100))


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (3, 3), (2, 9), (90, 130), (12_000, 12_500)])
def test_paired_p_value_is_that_of_the_binomial_test_on_discordant_rows(a, b):
    want = scipy.stats.binomtest(a, a + b).pvalue if a + b else 1.0
    assert significance.paired(*rows(5, a, b, 5)).p_value == pytest.approx(want, rel=1e-9)


def test_exchanging_the_models_changes_the_sign():
    a, b = rows(500, 90, 130, 280)
    one, other = significance.paired(a, b), significance.paired(b, a)
    assert other == pytest.approx((-one.mean, -one.high, -one.low, one.p_value, one.n))


def test_paired_interval_holds_the_truth_95_times_in_100():
    rng, held = np.random.default_rng(0), 0
    for only_a, only_b, same in rng.multinomial(200, [0.12, 0.07, 0.81], 1000):
        difference = significance.paired(*rows(same, only_a, only_b, 0))
        held += difference.low <= 5 <= difference.high
    assert 930 <= held <= 970


# On rows taken as independent


def test_published_interval_of_independent_shares():
    """56 of 70 and 48 of 80: Newcombe 1998, Table II (a), method 10."""
    difference = significance.unpaired(56, 70, 48, 80)
    assert (difference.mean, difference.low, difference.high) == pytest.approx(
        (20.0, 5.24, 33.39), abs=0.005
    )
    assert difference.n == 150


@pytest.mark.parametrize("counts", [(56, 70, 48, 80), (600, 2000, 640, 2000), (0, 10, 3, 20)])
def test_unpaired_p_value_is_that_of_the_chi_squared_test(counts):
    right_a, n_a, right_b, n_b = counts
    table = [[right_a, n_a - right_a], [right_b, n_b - right_b]]
    want = scipy.stats.chi2_contingency(table, correction=False).pvalue
    assert significance.unpaired(*counts).p_value == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("counts", [(0, 10, 0, 20), (10, 10, 20, 20)])
def test_two_shares_of_none_or_all_do_not_differ(counts):
    difference = significance.unpaired(*counts)
    assert (difference.mean, difference.p_value) == (0.0, 1.0)
    assert difference.low < 0 < difference.high


# Over rows


def test_means_over_runs_are_compared_as_pairs_of_rows():
    rng = np.random.default_rng(3)
    easy = rng.random(4000)
    a, b = (
        rng.random((runs, 4000)) * 0.6 + 0.4 * easy > cut for runs, cut in ((3, 0.5), (1, 0.52))
    )
    got = significance.over_rows(a, b)
    want = scipy.stats.ttest_1samp(a.mean(0) - b.mean(0), 0)
    assert got.mean == pytest.approx(100 * (a.mean() - b.mean()))
    assert got.p_value == pytest.approx(want.pvalue, rel=0.02)
    low, high = want.confidence_interval()
    assert (got.low, got.high) == pytest.approx((100 * low, 100 * high), abs=0.01)
    assert got.n == 4000
    separate = significance.unpaired(a.mean() * 4000, 4000, b.sum(), 4000)
    assert got.high - got.low < 0.8 * (separate.high - separate.low)


def test_means_of_one_run_each_have_the_variance_of_discordant_rows():
    a, b = np.zeros((2, 1, 50), bool)
    a[0, :12], b[0, 8:13] = True, True  # 8 only the first, 1 only the second
    got = significance.over_rows(a, b)
    error = math.sqrt((9 / 50 - (7 / 50) ** 2) / 49)
    assert got.mean == pytest.approx(14)
    assert got.high - got.low == pytest.approx(2 * 1.959964 * 100 * error)


# Over seeds and rows


def answers(seed, runs=3, rows=40, means=(0.5, 0.6), spread=0.05, shared=0.2):
    """Returns the correct rows of two models whose seeds and rows both differ in difficulty."""
    rng = np.random.default_rng(seed)
    easy = shared * rng.standard_normal(rows)
    sides = (mean + spread * rng.standard_normal((runs, 1)) + easy for mean in means)
    return [rng.random((runs, rows)) < side for side in sides]


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.2])
@pytest.mark.parametrize(("seed", "matched"), [(0, True), (1, True), (2, False), (3, False)])
def test_interval_over_seeds_and_rows_is_that_of_the_loops(seed, matched, spread):
    """Second way: products of pairs of answers (`naive.crossed_variance`) and SciPy's quantiles."""
    sides = answers(seed, spread=spread)
    difference = significance.over_seeds(
        *(100 * side.mean(1) for side in sides), 40, sides, matched=matched
    )
    signed = [sides[0] * 1.0 - sides[1]] if matched else [side * 1.0 for side in sides]
    seeds = [side.mean(1).var(ddof=1) / 3 for side in signed]
    freedom = sum(seeds) ** 2 / sum(part**2 / 2 for part in seeds)
    rows = max(0.0, naive.crossed_variance(*sides, matched) - sum(seeds))
    pooled = significance.over_rows(*sides)

    def half(p_value):
        t, z = (d.isf(p_value / 2) for d in (scipy.stats.t(freedom), scipy.stats.norm))
        return math.sqrt(max(t**2 * sum(seeds) + z**2 * rows, (z / Z * pooled_half) ** 2))

    pooled_half = (pooled.high - pooled.low) / 200
    mean = sides[0].mean() - sides[1].mean()
    ends = 100 * max(-1, mean - half(0.05)), 100 * min(1, mean + half(0.05))
    assert difference[:3] == pytest.approx((100 * mean, *ends), rel=1e-9)
    assert half(difference.p_value) == pytest.approx(abs(mean), rel=1e-6)
    assert difference.n == 6


def test_seeds_of_equal_accuracy_have_the_interval_of_the_rows():
    """What single answers add to the variance of the rows would otherwise be missing."""
    rng = np.random.default_rng(0)
    sides = [np.stack([rng.permutation(row) for _ in range(3)]) for (row,) in answers(0, 1, 400)]
    values = [100 * side.mean(1) for side in sides]
    found = significance.over_seeds(*values, 400, sides, matched=False)
    assert found[:4] == pytest.approx(significance.over_rows(*sides)[:4], rel=1e-6)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([30.1, 31.2, 30.5], [32.0, 32.4, 31.1]),
        ([23.5, 21.0, 22.0, 23.6, 22.1], [27.1, 22.0, 18.0]),
        ([10.0, 10.1, 10.2], [90.0, 90.3, 90.2]),
    ],
)
def test_with_countless_rows_it_is_the_t_test_over_seeds(a, b):
    """Then the rows add nothing: Welch's test, or the test of pairs if the seeds are the same."""
    want = scipy.stats.ttest_ind(a, b, equal_var=False)
    found = significance.over_seeds(a, b, 10**15, matched=False)
    ends = tuple(want.confidence_interval())
    assert (found.low, found.high, found.p_value) == pytest.approx((*ends, want.pvalue), rel=1e-5)
    if len(a) == len(b):
        pairs = significance.over_seeds(a, b, 10**15, matched=True)
        assert pairs.p_value == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, rel=1e-5)


def test_without_spread_over_seeds_it_is_the_z_test_on_rows():
    found = significance.over_seeds([30.0, 30.0], [32.0, 32.0], 2000, matched=True)
    error = math.sqrt((0.3 * 0.7 + 0.32 * 0.68) / 2000)
    assert found.p_value == pytest.approx(2 * scipy.stats.norm.sf(0.02 / error))
    assert significance.over_seeds([10.0] * 2, [90.0] * 2, 2000, matched=True).p_value <= 1e-15


@pytest.mark.parametrize("wrong", [False, True])
def test_without_any_spread_several_runs_say_as_much_as_one(wrong):
    """All answers of a side are alike, so that no variance can be estimated."""
    a, b = np.ones((3, 50), bool), np.full((2, 50), not wrong)
    want = significance.unpaired(50, 50, 0 if wrong else 50, 50)
    assert want.low + 5 < want.mean
    values = [100.0] * 3, [0.0 if wrong else 100.0] * 2
    for right in (None, (a, b)):
        assert significance.over_seeds(*values, 50, right, matched=False) == want._replace(n=5)
    assert significance.over_rows(a, b[:1]) == want._replace(n=50)
    single = significance.paired(a[0], b[0])
    assert (want.low, want.high) == pytest.approx((single.low, single.high), abs=8)
    assert significance.over_rows(a[:, :1], b[:, :1]).low < -5  # a single row


def test_equal_models_differ_in_at_most_5_of_100_samples_of_seeds_and_rows():
    """A test on rows alone, which takes the seeds for all seeds, claims many more differences."""
    claimed = over_rows = 0
    for seed in range(400):
        sides = answers(seed, 3, 400, means=(0.5, 0.5), spread=0.03)
        values = [100 * side.mean(1) for side in sides]
        claimed += significance.over_seeds(*values, 400, sides, matched=False).p_value < 0.05
        over_rows += significance.over_rows(*sides).p_value < 0.05
    assert 4 <= claimed <= 24
    assert over_rows > 40


def test_three_seeds_that_happen_to_agree_give_no_small_p_value():
    """The usual t-test takes one quantile for the sum of the variances, and one per cent is three.

    Only the first model varies over seeds, with four times the variance of the rows.
    """
    rng, rows = np.random.default_rng(0), 0.5 / 1000
    claimed = usual = 0
    for _ in range(2000):
        a = 0.5 + math.sqrt(12 * rows) * rng.standard_normal(3)
        a += math.sqrt(rows) * rng.standard_normal()
        b = np.full(3, 0.5)
        claimed += significance.over_seeds(100 * a, 100 * b, 1000, matched=False).p_value < 0.01
        seeds = a.var(ddof=1) / 3
        total = seeds + rows
        t = (a.mean() - 0.5) / math.sqrt(total)
        usual += 2 * scipy.stats.t.sf(abs(t), total**2 / (seeds**2 / 2)) < 0.01
    assert claimed <= 20
    assert usual > 45


@pytest.mark.parametrize("swapped", [False, True])
def test_three_seeds_that_agree_do_not_count_as_the_ten_of_the_other_side(swapped):
    """Welch's degrees of freedom would be 9.5 here, where those of three seeds alone are 2."""
    a, b = [50.0, 50.1, 50.2], [51.0, 55.0, 49.0, 52.5, 50.5, 53.0, 54.0, 50.0, 51.5, 53.5]
    error = math.sqrt(np.var(a, ddof=1) / 3 + np.var(b, ddof=1) / 10)
    want = 2 * scipy.stats.t(4).sf((np.mean(b) - np.mean(a)) / error)
    sides = (b, a) if swapped else (a, b)
    found = significance.over_seeds(*sides, 10**15, matched=False)
    assert found.p_value == pytest.approx(want, rel=1e-5)
    assert scipy.stats.ttest_ind(a, b, equal_var=False).pvalue < want / 2


def test_an_interval_ends_at_a_difference_of_all_rows():
    found = significance.over_seeds([50.0, 95.0], [50.5, 51.0], 2000, matched=False)
    assert (found.low, found.high) == (-100, 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "most"),
    [((2, 2), (0.067, 0.0022)), ((3, 3), (0.062, 0.0045)), ((3, 10), (0.073, 0.0074))],
    ids=["2v2", "3v3", "3v10"],
)
@pytest.mark.parametrize(("ratio", "share"), [(0.1, 0.0), (0.0, 0.2), (1.0, 0.5), (0.1, 0.5)])
def test_equal_models_differ_no_more_often_than_documented(seeds, most, ratio, share):
    """At p = .05 and .001, with four standard errors to spare; `ratio` of the sides' spreads."""
    rng, draws = np.random.default_rng(0), 20_000
    rows = 0.5 / 1000 if share else 1e-9
    parts = 1 / seeds[0] + ratio**2 / seeds[1]
    spread = math.sqrt(rows * (1 - share) / share / parts) if share else 0.05
    count = round(0.5 / rows)
    a, b = (
        50 + 100 * spread * scale * rng.standard_normal((draws, number))
        for number, scale in zip(seeds, (1, ratio), strict=True)
    )
    a += 100 * math.sqrt(rows) * rng.standard_normal((draws, 1))
    found = [
        significance.over_seeds(*pair, count, matched=False) for pair in zip(a, b, strict=True)
    ]
    p_values = np.array([difference.p_value for difference in found])
    assert (p_values < 0.05).mean() <= most[0]
    assert (p_values < 0.001).mean() <= most[1]


def test_three_pairs_of_seeds_find_fewer_differences_than_six_runs():
    """Why `significance.MATCHED` is 5."""
    claimed = {True: 0, False: 0}
    for seed in range(200):
        sides = answers(seed, 3, 1000, means=(0.5, 0.56), spread=0.01)
        values = [100 * side.mean(1) for side in sides]
        for matched in claimed:
            found = significance.over_seeds(*values, 1000, sides, matched=matched)
            claimed[matched] += found.p_value < 0.05
    assert claimed[False] > claimed[True] + 20


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


def test_p_values_of_the_best_worked_by_hand():
    """Each row's smallest p-value against the others, times their number."""
    p_values = [[0.5, 0.01, 0.2], [0.99, 0.5, 0.9], [0.8, 0.1, 0.5]]
    assert significance.could_be_best(p_values) == pytest.approx([0.02, 1.0, 0.2])
    assert significance.could_be_best([[0.5]]) == [1.0]


def test_best_model_is_left_out_in_at_most_5_of_100_samples():
    """Four equal models (the worst case) of known error: any of them may be the best."""
    rng, left_out = np.random.default_rng(0), 0
    for numbers in rng.standard_normal((1000, 4)):
        p_values = [[scipy.stats.norm.sf((b - a) / math.sqrt(2)) for b in numbers] for a in numbers]
        left_out += significance.could_be_best(p_values)[0] <= 0.05
    assert 25 <= left_out <= 55


@pytest.mark.parametrize(
    ("p_value", "words"),
    [(0.0421, "0.042"), (1.0, "1"), (0.001, "0.001"), (0.00099, "< 0.001"), (3e-95, "< 0.001")],
)
def test_no_p_value_below_a_thousandth_is_printed(p_value, words):
    assert significance.p_text(p_value) == words


@pytest.mark.parametrize(
    ("p_value", "words"),
    [
        (0.0504, "0.0504"),
        (0.0496, "0.0496"),
        (0.05003, "0.05003"),
        (0.05, "0.05"),
        (0.056, "0.056"),
    ],
)
def test_p_value_in_print_is_on_its_side_of_the_level(p_value, words):
    assert significance.p_text(p_value) == words
