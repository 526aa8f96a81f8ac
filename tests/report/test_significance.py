"""Which test compares two sets of runs, and which cells of a table are bold."""

import pytest
from made_results import RIGHT, a_failure, a_result, records, scored, with_test

from lra_fnet import intervals
from lra_fnet.report import accuracy, significance


def compared(seeds_a, seeds_b, split="test"):
    a = records(*(scored("fnet", seed) for seed in range(seeds_a)))
    b = records(*(scored("linear", seed) for seed in range(seeds_b)))
    return significance.compare(a, b, split)


def test_one_run_each_is_compared_row_by_row():
    comparison = compared(1, 1)
    assert comparison.difference == pytest.approx(intervals.paired(RIGHT[0, 0], RIGHT[1, 0]))
    assert comparison.test == significance.PAIRED
    assert (comparison.a, comparison.b) == pytest.approx(tuple(100 * RIGHT[:, 0].mean(1)))
    runs = records(scored("fnet", 0)), records(scored("linear", 0))
    last = significance.compare(*runs, "test", "last")
    assert last.difference == pytest.approx(intervals.paired(~RIGHT[0, 0], ~RIGHT[1, 0]))


def test_rows_without_bits_count_as_independent():
    comparison = compared(1, 1, "validation")
    assert comparison.difference == pytest.approx(intervals.unpaired(610, 2000, 610, 2000))
    assert "no pairs" in comparison.why
    pair = records(scored("fnet", 0)), records(with_test(640, model="linear"))
    comparison = significance.compare(*pair, "test")
    expected = intervals.unpaired(int(RIGHT[0, 0].sum()), 2000, 640, 2000)
    assert comparison.difference == pytest.approx(expected)
    assert comparison.test == significance.UNPAIRED


def test_several_seeds_are_compared_over_seeds():
    comparison = compared(3, 2)
    accuracies = [list(100 * RIGHT[0].mean(1)), list(100 * RIGHT[1, :2].mean(1))]
    assert comparison.difference == pytest.approx(intervals.seeds(*accuracies))
    assert comparison.test == significance.WELCH


def test_one_seed_against_several_compares_the_mean_on_one_split():
    comparison = compared(3, 1)
    mean = RIGHT[0].sum(1).mean()
    expected = intervals.unpaired(mean, 2000, int(RIGHT[1, 0].sum()), 2000)
    assert comparison.difference == pytest.approx(expected)
    assert "needs two of each" in comparison.why


def test_seeds_without_spread_are_not_a_sample():
    a, b = (records(*(with_test(n, seed=seed) for seed in (0, 1))) for n in (600, 640))
    comparison = significance.compare(a, b, "test")
    assert comparison.difference == pytest.approx(intervals.unpaired(600, 2000, 640, 2000))
    assert "without any spread" in comparison.why


# Bold cells


def marks_of(*results):
    (table,) = accuracy.tables(records(*results))
    return significance.marks(table.rows, table.tasks)


def test_bold_is_the_highest_and_everything_not_significantly_different():
    counts = {"fnet": 640, "linear": 590, "local": 560}
    marks = marks_of(*(with_test(n, model=model) for model, n in counts.items()))
    p_values = [intervals.unpaired(n, 2000, 640, 2000).p_value for n in (590, 560)]
    assert marks.bold == {("fnet", None, "listops"), ("linear", None, "listops")}
    against = marks.against["local", None, "listops"]
    assert (against.best, against.significant) == ("FNet", True)
    assert against.p_value == pytest.approx(intervals.holm(p_values)[1])
    assert f"Tests: {significance.UNPAIRED} (2)." in marks.note


def test_correction_for_many_tests_changes_what_is_bold():
    """570 against 640 of 2,000: p = 0.016 alone; 0.047 as the smallest of 3, above 0.05 of 4."""
    near = intervals.unpaired(570, 2000, 640, 2000).p_value
    assert 3 * near < 0.05 < 4 * near
    others = [with_test(570, model=f"m{n}") for n in range(4)]
    three = marks_of(with_test(640), *others[:3])
    assert three.bold == {("fnet", None, "listops")}
    assert len(marks_of(with_test(640), *others).bold) == 5


def test_nothing_is_bold_without_two_whole_values_on_the_same_data():
    marks = marks_of(
        with_test(640),
        with_test(700, model="linear", data_sha256="e" * 64),
        with_test(690, model="performer"),
        a_failure("OOM", model="performer", seed=1),  # so not every seed has a value
        with_test(361, model="local"),  # FAIL
        a_result(model="dct", test=None),
    )
    assert marks.bold == frozenset()
    assert marks.note == ""
