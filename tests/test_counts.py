"""Row bits and Wilson's interval, compared with a second way."""

import math

import numpy as np
import pytest
import scipy.optimize

from lra_fnet.counts import Counts, bits, encode, wilson

Z = 1.959963984540054


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
        (encode([True] * 5 + [False] * 4), "5 correct of 8"),
        (encode([True] * 4 + [False] * 4), "5 correct of 8"),
        ("no base64!", "not base64 of zlib data"),
        ("AAAA", "not base64 of zlib data"),
        (7, "not base64 of zlib data"),
    ],
)
def test_damaged_bits_raise_value_error(text, words):
    with pytest.raises(ValueError, match=words):
        bits({"correct": 5, "count": 8, "correct_bits": text})


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


@pytest.mark.parametrize(("correct", "count"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_raise_value_error(correct, count):
    with pytest.raises(ValueError, match=f"{correct} correct of {count}"):
        Counts(correct, count)
