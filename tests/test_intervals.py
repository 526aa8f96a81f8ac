"""Intervals and tests of differences: against SciPy, brute force and published examples."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from lra_fnet import intervals

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
    """Which rows a and b got right."""
    a = [True] * (both + only_a) + [False] * (only_b + neither)
    b = [True] * both + [False] * only_a + [True] * only_b + [False] * neither
    return np.array(a), np.array(b)


# Which rows are right


@pytest.mark.parametrize("n", [1, 7, 8, 9, 2000, 25_000])
def test_which_rows_are_right_comes_back(n):
    right = np.random.default_rng(n).random(n) < 0.6
    counts = {"correct": int(right.sum()), "count": n, "correct_bits": intervals.encode(right)}
    back = intervals.bits(counts)
    assert back is not None
    assert back.dtype == bool
    np.testing.assert_array_equal(back, right)
    assert len(counts["correct_bits"]) < 40 + n / 6 + 1  # four characters for three bytes


def test_without_them_there_are_none():
    assert intervals.bits({"correct": 3, "count": 5}) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (intervals.encode([True] * 9), "2 bytes, but 8 rows need 1"),
        (intervals.encode([True] * 4 + [False] * 4), "4 correct rows, but 'correct' says 5"),
        ("no base64!", "not base64 of zlib data"),
        ("AAAA", "not base64 of zlib data"),
        (7, "not base64 of zlib data"),
    ],
)
def test_broken_ones_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        intervals.bits({"correct": 5, "count": 8, "correct_bits": text})


# On the same rows


@pytest.mark.parametrize("table", TABLES)
def test_the_paired_interval_ends_where_the_score_test_rejects(table):
    """Second way: the most likely table at each end, searched for, not solved for."""
    both, only_a, only_b, neither = table
    n = sum(table)
    found = intervals.paired(*rows(*table))
    assert found.mean == pytest.approx(100 * (only_a - only_b) / n)
    for end in (found.low / 100, found.high / 100):
        if abs(end) > 1 - 1e-9:
            continue  # the largest difference that there is

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
    found = intervals.paired(*rows(1, 1, 7, 12))
    assert (found.mean, found.low, found.high) == pytest.approx((-28.6, -51.7, -2.6), abs=0.05)
    assert found.n == 21


def test_two_that_agree_on_every_row_differ_by_at_most_z2_over_n_and_z2():
    found = intervals.paired(*rows(40, 0, 0, 60))
    most = 100 * Z**2 / (100 + Z**2)
    assert found == pytest.approx((0.0, -most, most, 1.0, 100))


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (3, 3), (2, 9), (90, 130), (12_000, 12_500)])
def test_the_paired_p_is_the_binomial_tests_on_discordant_rows(a, b):
    want = scipy.stats.binomtest(a, a + b).pvalue if a + b else 1.0
    assert intervals.paired(*rows(5, a, b, 5)).p_value == pytest.approx(want, rel=1e-9)


def test_exchanging_the_models_turns_the_sign():
    a, b = rows(500, 90, 130, 280)
    one, other = intervals.paired(a, b), intervals.paired(b, a)
    assert other == pytest.approx((-one.mean, -one.high, -one.low, one.p_value, one.n))


def test_the_paired_interval_holds_the_truth_95_times_in_100():
    rng, held = np.random.default_rng(0), 0
    for only_a, only_b, same in rng.multinomial(200, [0.12, 0.07, 0.81], 1000):
        found = intervals.paired(*rows(same, only_a, only_b, 0))
        held += found.low <= 5 <= found.high
    assert 930 <= held <= 970


# On rows taken as independent


def test_published_interval_of_independent_shares():
    """56 of 70 and 48 of 80: Newcombe 1998, Table II (a), method 10."""
    found = intervals.unpaired(56, 70, 48, 80)
    assert (found.mean, found.low, found.high) == pytest.approx((20.0, 5.24, 33.39), abs=0.005)
    assert found.n == 150


@pytest.mark.parametrize("counts", [(56, 70, 48, 80), (600, 2000, 640, 2000), (0, 10, 3, 20)])
def test_the_unpaired_p_is_that_of_the_chi_squared_test(counts):
    right_a, n_a, right_b, n_b = counts
    table = [[right_a, n_a - right_a], [right_b, n_b - right_b]]
    want = scipy.stats.chi2_contingency(table, correction=False).pvalue
    assert intervals.unpaired(*counts).p_value == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("counts", [(0, 10, 0, 20), (10, 10, 20, 20)])
def test_equal_shares_of_none_or_all_do_not_differ(counts):
    found = intervals.unpaired(*counts)
    assert (found.mean, found.p_value) == (0.0, 1.0)
    assert found.low < 0 < found.high


# Over seeds


@pytest.mark.filterwarnings("ignore:Precision loss")  # SciPy, of a side without spread
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([30.1, 31.2, 30.5], [32.0, 32.4, 31.1]),
        ([30.0, 31.0], [30.4, 30.6]),
        ([27.5, 21.0, 19.0, 23.6, 17.0], [27.1, 22.0]),
        ([50.0, 50.0], [49.0, 49.5, 49.1]),
        ([10.0, 10.1, 10.2], [90.0, 90.1, 90.2]),
    ],
)
def test_seeds_are_compared_by_welchs_test(a, b):
    found = intervals.seeds(a, b)
    want = scipy.stats.ttest_ind(a, b, equal_var=False)
    interval = want.confidence_interval()
    assert found is not None
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.p_value == pytest.approx(want.pvalue, rel=1e-9)
    assert found.n == len(a) + len(b)


@pytest.mark.parametrize(("a", "b"), [([30.0], [31.0, 32.0]), ([], []), ([3.0, 3.0], [4.0, 4.0])])
def test_without_seeds_or_spread_there_is_nothing_to_judge_by(a, b):
    assert intervals.seeds(a, b) is None


# Many tests


def test_holms_values_worked_by_hand():
    """0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1, which may not fall below the one before."""
    assert intervals.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert intervals.holm([0.6, 0.7]) == [1.0, 1.0]
    assert intervals.holm([]) == []


def test_holm_is_bonferroni_of_every_set_of_hypotheses():
    """Second way: a hypothesis falls when every set that it is in falls (closed testing)."""
    p_values = np.random.default_rng(0).random(5) ** 3
    sets = [s for size in range(1, 6) for s in itertools.combinations(range(5), size)]
    want = [
        max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in sets if i in s)
        for i in range(5)
    ]
    assert intervals.holm(list(p_values)) == pytest.approx(want)
