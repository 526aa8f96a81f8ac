"""Which test compares two sets of runs, and which cells of a table are bold."""

import pytest
from made_results import FIVE_SEEDS, RIGHT, a_failure, a_result, records, scored, with_test

from lra_fnet import significance
from lra_fnet.report import accuracy, marks


def compared(seeds_a, seeds_b, split="test"):
    a = records(*(scored("fnet", seed) for seed in range(seeds_a)))
    b = records(*(scored("linear", seed) for seed in range(seeds_b)))
    return significance.compare(a, b, split)


def test_one_run_each_is_compared_row_by_row():
    comparison = compared(1, 1)
    assert comparison.difference == pytest.approx(significance.paired(RIGHT[0, 0], RIGHT[1, 0]))
    assert comparison.test == significance.PAIRED
    assert (comparison.a, comparison.b) == pytest.approx(tuple(100 * RIGHT[:, 0].mean(1)))
    runs = records(scored("fnet", 0)), records(scored("linear", 0))
    last = significance.compare(*runs, "test", "last")
    assert last.difference == pytest.approx(significance.paired(~RIGHT[0, 0], ~RIGHT[1, 0]))


def test_rows_without_bits_count_as_independent():
    comparison = compared(1, 1, "validation")
    assert comparison.difference == pytest.approx(significance.unpaired(610, 2000, 610, 2000))
    assert "no pairs" in comparison.why
    pair = records(scored("fnet", 0)), records(with_test(640, model="linear"))
    comparison = significance.compare(*pair, "test")
    expected = significance.unpaired(int(RIGHT[0, 0].sum()), 2000, 640, 2000)
    assert comparison.difference == pytest.approx(expected)
    assert comparison.test == significance.UNPAIRED


@pytest.mark.parametrize(("seeds_a", "seeds_b"), [(5, 5), (4, 4), (2, 2), (3, 2)])
def test_several_seeds_are_compared_over_seeds_and_rows(seeds_a, seeds_b):
    sides = FIVE_SEEDS[0, :seeds_a], FIVE_SEEDS[1, :seeds_b]
    values = [100 * side.mean(1) for side in sides]
    same = seeds_a == seeds_b == 5  # fewer have too few differences
    for split, right in (("test", sides), ("validation", None)):
        comparison = compared(seeds_a, seeds_b, split)
        if split == "validation":
            values = [[30.5] * seeds_a, [30.5] * seeds_b]
        expected = significance.over_seeds(*values, 2000, right, matched=same)
        assert comparison.difference == pytest.approx(expected)
        assert comparison.test == (significance.CROSSED if right else significance.INDEPENDENT)
        assert ("in pairs" in comparison.why) == same
        assert ("not every run recorded" in comparison.why) == (right is None)


def test_order_of_the_runs_does_not_matter():
    runs = [records(*(scored(model, seed) for seed in range(3))) for model in ("fnet", "linear")]
    expected = significance.compare(*runs, "test")
    assert significance.compare(runs[0][::-1], runs[1], "test") == expected


def test_one_seed_against_several_compares_the_mean_on_one_split():
    comparison = compared(3, 1)
    assert comparison.test == significance.AVERAGED
    assert comparison.difference == pytest.approx(significance.over_rows(RIGHT[0], RIGHT[1, :1]))
    assert "needs two of each" in comparison.why
    comparison = compared(3, 1, "validation")
    assert comparison.test == significance.UNPAIRED
    assert comparison.difference == pytest.approx(significance.unpaired(610, 2000, 610, 2000))


# Bold cells


def marks_of(*results):
    (table,) = accuracy.tables(records(*results))
    return marks.marks(table.rows, table.tasks)


def three(n, model="fnet", **changes):
    """Three seeds around n correct rows of 2,000."""
    return [with_test(n + d, model=model, seed=s, **changes) for s, d in enumerate((-4, 0, 4))]


def test_bold_is_every_row_that_may_be_the_best():
    counts = {"fnet": 640, "linear": 600, "local": 540}
    marks = marks_of(*(run for model, n in counts.items() for run in three(n, model)))
    assert marks.bold == {("fnet", None, "listops"), ("linear", None, "listops")}
    against = marks.against["local", None, "listops"]
    assert (against.best, against.significant) == ("FNet", True)
    values = [[(n + d) / 20 for d in (-4, 0, 4)] for n in (540, 600, 640)]
    p_values = [
        significance.over_seeds(values[0], other, 2000, matched=False).p_value / 2
        for other in values[1:]
    ]
    assert against.p_value == pytest.approx(2 * min(p_values))
    assert f"Tests: {significance.INDEPENDENT} (2)." in marks.note


@pytest.mark.parametrize(("correct", "bold"), [(650, False), (630, True)])
def test_nothing_is_bold_below_a_row_of_fewer_seeds(correct, bold):
    marks = marks_of(*three(640), *three(540, "linear"), with_test(correct, model="conv"))
    assert bool(marks.bold) == bold
    assert marks.against["linear", None, "listops"].significant


def test_marks_of_the_last_step_compare_its_numbers():
    """At the last step, all answers of `scored` are the other ones."""
    runs = [scored(model, seed) for model in ("fnet", "linear") for seed in range(3)]
    (table,) = accuracy.tables(records(*runs))
    found = marks.marks(table.last_rows, table.tasks, checkpoint="last")
    (against,) = found.against.values()
    sides = [records(*runs[:3]), records(*runs[3:])]
    if against.best == "FNet":
        sides.reverse()
    expected = significance.compare(*sides, "test", "last")
    assert against.comparison.difference == pytest.approx(expected.difference)


def test_rows_that_kept_their_bits_are_compared_row_by_row():
    runs = [scored(model, seed) for model in ("fnet", "linear") for seed in range(3)]
    assert f"Tests: {significance.CROSSED} (1)." in marks_of(*runs).note


def test_number_of_rows_changes_what_is_bold():
    """570 against 640 of 2,000: p is below 0.05 as one of 2 comparisons, above it as one of 30."""
    others = [run for n in range(30) for run in three(570, f"m{n}")]
    assert marks_of(*three(640), *others[:6]).bold == {("fnet", None, "listops")}
    assert len(marks_of(*three(640), *others).bold) == 31


def test_seeds_on_different_data_are_not_compared():
    """Their rows are others, of another number: the accuracies have no pairs."""
    runs = [scored(model, seed) for model in ("fnet", "linear") for seed in range(2)]
    other = {"data_sha256": "e" * 64, "floor": {"correct": 180, "count": 1000}}
    runs += [with_test(300, model=m, seed=2, count=1000, **other) for m in ("fnet", "linear")]
    assert not marks_of(*runs).bold


def test_nothing_is_bold_without_two_whole_rows_of_three_seeds_on_the_same_data():
    marks = marks_of(
        *three(640),
        *three(700, "linear", data_sha256="e" * 64),
        *three(690, "performer"),
        a_failure("OOM", model="performer", seed=3),  # so not every seed has a value
        *three(640, "dct")[:2],
        *(with_test(360, model="local", seed=seed) for seed in range(3)),  # did not train
        a_result(model="hadamard", test=None),
    )
    assert marks.bold == frozenset()
    assert marks.note == ""


def test_row_with_a_seed_at_the_floor_is_not_bold():
    """Such a row varies so much that it may be the best, but one seed did not learn the task."""
    failed = with_test(360, model="performer", seed=2)  # the majority floor
    sure = [*three(640), *three(620, "linear")]
    marks = marks_of(*sure, *three(650, "performer")[:2], failed)
    assert {model for model, *_ in marks.bold} == {"fnet", "linear"}


def test_five_other_seeds_are_no_pairs():
    a, b = (
        records(*(with_test(600 + 7 * k * k, model=m, seed=k + first) for k in range(5)))
        for m, first in (("fnet", 0), ("linear", 1))
    )
    found = significance.compare(a, b, "test")
    values = [[run.accuracy("test") for run in side] for side in (a, b)]
    want = significance.over_seeds(*values, 2000, matched=False)
    assert found.difference == pytest.approx(want)
    assert "in pairs" not in found.why
