"""Aggregates over tasks: against closed forms, enumeration and the definitions written out."""

import itertools
import math

import numpy as np
import pytest
from made_results import RIGHT, a_failure, records, scored, with_test
from scipy import stats

from lra_fnet.report import accuracy, aggregates
from lra_fnet.report.cells import Cell

RNG = np.random.default_rng(1)
SCORES = [RNG.integers(0, 9, (4, n)) / 1.0 for n in (3, 5)]  # with ties
BRACKETS = str.maketrans("", "", "()")


def test_scores_are_shares_of_the_way_to_all_rows():
    (values,) = aggregates.above([np.array([20.0, 60.0, 100.0, 10.0])], [20.0])
    assert values.tolist() == [0.0, 50.0, 100.0, -12.5]


def test_interquartile_mean_is_scipys_trimmed_mean_and_works_sample_by_sample():
    means = aggregates.interquartile_mean(SCORES)
    assert means.shape == (4,)
    for sample, value in enumerate(means):
        pooled = np.concatenate([scores[sample] for scores in SCORES])
        assert value == pytest.approx(stats.trim_mean(pooled, 0.25))


def test_mean_weighs_tasks_alike():
    scores = [np.array([1.0, 2.0, 3.0]), np.array([10.0])]
    assert aggregates.mean(scores) == 6.0
    assert aggregates.profile(scores, [0, 1, 2.5, 10]) == pytest.approx([100, 250 / 3, 200 / 3, 0])


def test_probability_of_improvement_is_that_of_all_pairs():
    a, b = SCORES, [scores[:, :2] + 1 for scores in SCORES[::-1]]
    for sample, value in enumerate(aggregates.improvement(a, b)):
        tasks = [
            np.mean(
                [(x > y) + (x == y) / 2 for x, y in itertools.product(one[sample], two[sample])]
            )
            for one, two in zip(a, b, strict=True)
        ]
        assert value == pytest.approx(100 * np.mean(tasks))
    assert aggregates.improvement(a, a) == pytest.approx(50)


def moments(right):
    """Mean and variance of the resampled mean, in closed form, of bool [runs, rows]."""
    x = right.astype(float)
    runs, rows = x.shape
    row, run = x.mean(0) - x.mean(), x.mean(1) - x.mean()
    rest = x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()
    variance = np.mean(row**2) / rows + np.mean(run**2) / runs + np.mean(rest**2) / (runs * rows)
    return 100 * x.mean(), 1e4 * variance


def test_closed_form_is_that_of_all_samples():
    """Of 2 runs and 3 rows there are 2^2 * 3^3 samples."""
    right = np.array([[1, 0, 1], [0, 0, 1]], bool)
    samples = [
        100 * right[np.ix_(runs, rows)].mean()
        for runs in itertools.product(range(2), repeat=2)
        for rows in itertools.product(range(3), repeat=3)
    ]
    assert (np.mean(samples), np.var(samples)) == pytest.approx(moments(right))


def test_resampled_means_have_the_moments_of_the_closed_form():
    right = (RIGHT[0] ^ RIGHT[1]) & (RNG.random((3, 1)) < 0.9) | (np.arange(2000) < 300)
    right[0, 300:600] = True  # runs that differ by more than their rows do
    (samples,) = aggregates.resampled([right], np.random.default_rng(0))
    assert samples.shape == (aggregates.REPLICATES, 3)
    mean, variance = moments(right)
    error = math.sqrt(variance / aggregates.REPLICATES)
    assert samples.mean() == pytest.approx(mean, abs=4 * error)
    assert samples.mean(1).var() == pytest.approx(variance, rel=0.15)


def test_both_sides_are_resampled_on_the_same_rows():
    """Of equal runs, all samples are equal; of opposite ones, they add up to 100 %."""
    right = RIGHT[0, :1]
    same, equal, opposite = aggregates.resampled([right, right, ~right], np.random.default_rng(0))
    assert (same == equal).all()
    assert len(np.unique(same)) > aggregates.REPLICATES / aggregates.CHUNK  # each sample is drawn
    np.testing.assert_allclose(same + opposite, 100)
    assert same.std() == pytest.approx(100 * math.sqrt(0.3 * 0.7 / 2000), rel=0.1)


# The table


def aggregates_of(*results):
    (table,) = accuracy.tables(records(*results))
    return aggregates.over_tasks(table)


def grids_of(*results):
    return [aggregate.grid for aggregate in aggregates_of(*results)]


def three(model, task, **changes):
    return [scored(model, seed, task=task, **changes) for seed in range(3)]


def as_transformer(result):
    return result | {"model": "transformer"}


def test_whole_rows_have_every_number_and_an_interval():
    runs = [run for task in ("listops", "text") for run in three("fnet", task)]
    others = [run for task in ("listops", "text") for run in three("linear", task)]
    (grid,) = grids_of(*runs, *map(as_transformer, others))
    assert grid.title == "Over ListOps and Text, preset cpu"
    rows = {row[0]: dict(zip(grid.head, row, strict=True)) for row in grid.rows}
    values = 100 * RIGHT[0].mean(1)
    fnet = rows["FNet"]
    assert fnet["Seeds"] == "3"
    number, low, _, high = fnet["Mean"].translate(BRACKETS).split()
    assert float(number) == pytest.approx(values.mean(), abs=0.005)
    variance = moments(RIGHT[0])[1] / 2  # of the mean of two tasks
    assert float(high) - float(low) == pytest.approx(2 * 1.96 * math.sqrt(variance), rel=0.1)
    chance = 100 * (values - 18) / 82  # the floor is 360 of 2,000
    assert float(fnet["Above chance"].split()[0]) == pytest.approx(chance.mean(), abs=0.005)
    trimmed = stats.trim_mean([*chance, *chance], 0.25)
    assert float(fnet["Interquartile mean"].split()[0]) == pytest.approx(trimmed, abs=0.005)
    better = np.mean([a > b for a, b in itertools.product(values, 100 * RIGHT[1].mean(1))])
    number, low, _, high = fnet["Better than Transformer"].translate(BRACKETS).split()
    assert float(number) == pytest.approx(100 * better, abs=0.005)
    assert float(low) < 100 * better < float(high)
    assert fnet["Runs above 10, 25, 50, 75"] == "100, 0, 0, 0"
    assert rows["Transformer"]["Better than Transformer"] == "-"
    assert "Above shallow baseline" not in grid.head  # these runs have none
    assert not any("fewer than" in note for note in grid.notes)


def test_profile_falls_by_a_third_at_the_score_of_each_of_three_runs():
    tasks = ("listops", "text")
    runs = [run for task in tasks for run in three("fnet", task)]
    (aggregate,) = aggregates_of(*runs, *(with_test(600, model="linear", task=t) for t in tasks))
    assert [*aggregate.profiles] == ["FNet"]  # the other has too few seeds
    scores, shares = zip(*aggregate.profiles["FNet"], strict=True)
    assert scores == pytest.approx(np.sort(100 * (100 * RIGHT[0].mean(1) - 18) / 82))
    assert shares == pytest.approx([200 / 3, 100 / 3, 0])


def test_seeds_on_different_data_are_no_aggregate():
    runs = [
        with_test(600 + seed, task=task, model=model, seed=seed, data_sha256=f"{seed % 2}" * 64)
        for task in ("listops", "text")
        for model in ("fnet", "linear")
        for seed in range(3)
    ]
    (table,) = accuracy.tables(records(*runs))
    assert not aggregates.over_tasks(table)


def test_overrides_on_tasks_of_a_user_are_rows_of_their_own():
    runs = [
        with_test(right, task=task, overrides=[f"MAX_LEN={length}"], variant=f"MAX_LEN-{length}")
        for right, length in ((500, 32), (900, 64))
        for task in ("mine", "yours")
    ]
    (grid,) = grids_of(*runs)
    assert {row[0]: row[2] for row in grid.rows} == {
        "FNet, MAX_LEN-32": "25.00",
        "FNet, MAX_LEN-64": "45.00",
    }


def test_score_above_the_shallow_baseline():
    counts = {"correct": 500, "count": 2000}  # 25 %
    rule = {"method": "a rule", "settings": {}, "validation": counts, "test": counts}
    runs = [
        with_test(n, model=model, task=task, shallow=rule)
        for model, n in (("fnet", 800), ("linear", 200))
        for task in ("listops", "text")
    ]
    (grid,) = grids_of(*runs)
    column = list(grid.head).index("Above shallow baseline")
    assert [row[column] for row in grid.rows] == ["20.00", "-20.00"]  # (40 - 25) / 75


@pytest.mark.parametrize(("counts", "shown"), [((1, 2), "1 to 2"), ((2, 2), "2")])
def test_one_or_two_seeds_have_only_means(counts, shown):
    runs = [
        scored(model, seed, task=task)
        for model in ("fnet", "linear")
        for task, count in zip(("listops", "text"), counts, strict=True)
        for seed in range(count)
    ]
    (grid,) = grids_of(*runs)
    assert grid.head == ["Model", "Seeds", "Mean", "Above chance"]
    assert [row[1] for row in grid.rows] == [shown] * 2
    assert not any("(" in row[2] for row in grid.rows)
    assert any("fewer than 3 seeds on some task" in note for note in grid.notes)


def test_no_probability_of_improvement_over_too_few_runs():
    tasks = ("listops", "text")
    runs = [run for task in tasks for run in three("fnet", task)]
    (grid,) = grids_of(*runs, *(with_test(600, model="transformer", task=task) for task in tasks))
    assert "Better than Transformer" not in grid.head
    assert "Interquartile mean" in grid.head
    (note,) = [note for note in grid.notes if "rliable" in note]
    assert "Better than" not in note


def test_of_two_transformers_none_is_the_one_that_others_are_compared_with():
    own = {"overrides": ["A.b=1"], "variant": "b"}
    runs = [
        scored(model, seed, task=task) | changes
        for task in ("mine", "yours")
        for seed in range(3)
        for model, changes in (
            ("fnet", {}),
            ("linear", {"model": "transformer"}),
            ("linear", {"model": "transformer"} | own),
        )
    ]
    (grid,) = grids_of(*runs)
    assert [row[0] for row in grid.rows if row[0].startswith("Transformer")] == [
        *("Transformer", "Transformer, b")
    ]
    assert "Better than Transformer" not in grid.head


def test_interval_is_of_the_same_side_as_the_number():
    high, low = (
        aggregates.Model([Cell("value", value, (value,))], [np.full((9, 1), value)])
        for value in (40.0, 30.0)
    )
    assert high.against(low) == "100.00 (no spread)"  # all samples agree
    middle = aggregates.Model(
        [Cell("value", 35.0, (35.0,))], [np.array([[30.0], [50.0]] * 4 + [[30.0]])]
    )
    assert high.against(middle) == "100.00 (0.00 to 100.00)"
    assert middle.against(low) == "100.00 (50.00 to 100.00)"


def test_interval_needs_the_rows_of_both():
    tasks = ("listops", "text")
    runs = [run for task in tasks for run in three("fnet", task)]
    others = [with_test(500, model="transformer", task=t, seed=s) for t in tasks for s in range(3)]
    (grid,) = grids_of(*runs, *others)
    assert "(" in grid.rows[0][2]
    assert grid.rows[0][list(grid.head).index("Better than Transformer")] == "100.00"


def test_a_reference_of_100_percent_has_no_scores_above_it():
    every = {"correct": 2000, "count": 2000}
    rule = {"method": "a rule", "settings": {}, "validation": every, "test": every}
    models, tasks = ("fnet", "linear"), ("listops", "text")
    runs = [run for model in models for task in tasks for run in three(model, task, shallow=rule)]
    (grid,) = grids_of(*runs)
    assert "Above chance" in grid.head
    assert "Above shallow baseline" not in grid.head
    (grid,) = grids_of(*(run | {"floor": every} for run in runs))
    assert grid.head == ["Model", "Seeds", "Mean"]


def test_signs_of_the_accuracy_table_stay():
    changes = {"uses_mask": False, "validation_is_test": True}
    runs = [with_test(600, task=task, **changes) for task in ("listops", "text")]
    runs += [with_test(500, task=task, model="linear") for task in ("listops", "text")]
    (grid,) = grids_of(*runs)
    assert [row[0] for row in grid.rows] == ["FNet ‡", "Linear"]
    assert [row[2] for row in grid.rows] == ["30.00†", "25.00"]
    assert {note[0] for note in grid.notes} >= {"†", "‡"}


def test_three_seeds_without_rows_have_no_interval_and_unequal_numbers_no_interquartile_mean():
    runs = [
        with_test(600 + seed, model=model, task=task, seed=seed)
        for model in ("transformer", "linear")
        for task in ("listops", "text")
        for seed in range(4 if (model, task) == ("linear", "text") else 3)
    ]
    (grid,) = grids_of(*runs)
    rows = {row[0]: dict(zip(grid.head, row, strict=True)) for row in grid.rows}
    assert not any("(" in cell for row in grid.rows for cell in row)
    assert not any("In parentheses" in note for note in grid.notes)
    assert rows["Linear"]["Interquartile mean"] == "-"
    assert rows["Transformer"]["Interquartile mean"] != "-"
    pairs = (50 + (6 + 1.5) / 12 * 100) / 2  # of 3 x 4 pairs 6 are won, 3 tied
    assert rows["Linear"]["Better than Transformer"] == f"{pairs:.2f}"


def test_only_models_with_the_same_tasks_and_data_are_in_one_table():
    def runs(model, *tasks, **changes):
        return [with_test(600, model=model, task=task, **changes) for task in tasks]

    grids = grids_of(
        *runs("fnet", "listops", "text", "image"),
        *runs("linear", "listops", "text", "image"),
        *runs("performer", "listops", "text"),
        *runs("local", "listops"),
        *runs("dct", "listops", "text", data_sha256="e" * 64),
        *runs("transformer", "listops", "text"),
        a_failure("OOM", model="transformer", task="text", seed=1),
    )
    assert [(grid.title.split(",")[0], [row[0] for row in grid.rows]) for grid in grids] == [
        ("Over ListOps", ["Linear", "FNet"]),
        ("Over ListOps and Text", ["Linear", "FNet", "Performer"]),
    ]
    shared = [run for model in ("fnet", "linear") for run in runs(model, "listops", "text")]
    other = [
        with_test(600, model=m, task=t, data_sha256="e" * 64)
        for m in ("dct", "bigbird")
        for t in ("listops", "text")
    ]
    titles = [grid.title for grid in grids_of(*shared, *other)]
    assert len(set(titles)) == len(titles) == 2
    assert titles[1].endswith(", data eeeeeeee, eeeeeeee")


def test_models_that_failed_a_task_are_named():
    tasks = ("listops", "text", "image")
    runs = [with_test(600, model=m, task=t) for m in ("fnet", "linear") for t in tasks]
    runs += [with_test(700, model="conv", task=t) for t in ("listops", "text")]
    runs.append(with_test(360, model="conv", task="image"))  # the majority floor
    whole, part = grids_of(*runs)
    assert whole.notes[-1] == (
        "Left out, because they failed one of the tasks: Convolution (Image: did not train)."
    )
    assert part.notes[-1] == (
        "Shown here, but failed another task: Convolution (Image: did not train)."
    )


def test_a_model_of_which_no_seed_has_a_value_is_named_with_its_state():
    tasks = ("listops", "text")
    runs = [with_test(600, model=m, task=t) for m in ("fnet", "linear") for t in tasks]
    runs += [with_test(600, model="conv"), a_failure("OOM", model="conv", task="text")]
    runs += [with_test(600, model="dct"), with_test(600, model="dct", task="text")]
    runs += [a_failure("diverged", model="dct", task="text", seed=1)]
    (grid,) = grids_of(*runs)
    assert grid.notes[-1] == (
        "Left out, because they failed one of the tasks: Convolution (Text: OOM), "
        "Cosine transform (Text: seeds failed)."
    )


def test_equal_runs_give_equal_tables_in_any_order():
    runs = [
        run for task in ("listops", "text") for m in ("fnet", "linear") for run in three(m, task)
    ]
    assert grids_of(*runs) == grids_of(*runs[::-1])
