"""The rules of the accuracy tables: cells, states, averages, rows, each worked by hand."""

import numpy as np
import pytest
from made_results import FIVE_SEEDS, INIT, a_failure, a_result, records, scored, with_test

from lra_fnet import counts, significance
from lra_fnet.counts import wilson
from lra_fnet.data import store
from lra_fnet.report.accuracy import build as accuracy
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.cell import TASKS, Cell, averages, cell
from lra_fnet.report.accuracy.notes import legend
from lra_fnet.report.accuracy.published import published_cells


def cell_of(*results):
    return cell(records(*results))


def tables_of(*results):
    return accuracy.tables(records(*results))


def cell_text(table, label, source, column):
    (row,) = [r for r in table.rows if (r.label, r.source) == (label, source)]
    return row.cells[column].text


# Cells


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([], "-"),
        ([a_failure("diverged")], "FAIL"),
        ([a_failure("OOM")], "OOM"),
        ([a_failure("OOM"), a_failure("diverged", seed=1)], "FAIL"),
        ([with_test(614)], "30.70 (1)"),
        ([with_test(640, seed=1), with_test(600)], "31.00 (2)"),
        # 30, 31 and 32 %: the squares are divided by n - 1 = 2
        ([with_test(n, seed=n) for n in (600, 620, 640)], "31.00 ± 1.00 (3)"),
        ([with_test(n, seed=n) for n in (600, 604, 608)], "30.20 ± .20 (3)"),
        ([with_test(600), a_failure("diverged", seed=2)], "30.00 (1 of 2 trained)"),
        # 360 of 2,000 is the majority floor: the same answer for every row
        (
            [with_test(360), with_test(1897, seed=1), with_test(360, seed=2)],
            "94.85 (1 of 3 trained)",
        ),
        ([with_test(360), with_test(360, seed=1)], "collapsed"),
        ([with_test(360), a_failure("OOM", seed=1)], "collapsed"),
        ([with_test(361, task="pathx")], "FAIL"),
        ([with_test(360, task="pathx")], "FAIL"),
        (
            [with_test(360, task="pathx", seed=1), with_test(600, task="pathx")],
            "30.00 (1 of 2 trained)",
        ),
    ],
)
def test_a_cell_in_print(results, text):
    shown = cell_of(*results)
    assert shown.text == text
    assert (shown.mean is None) == (shown.state != "value")
    assert len(shown.values) == shown.seeds
    if shown.mean is None:
        assert (shown.sd, shown.italic) == (None, False)


def test_interval_shows_the_spread_over_seeds():
    """Seeds at 51.28 and 56.60 % of 25,000 rows: not their mean with the error of the rows."""
    task = {"task": "text", "floor": {"correct": 12_500, "count": 25_000}}
    cell = cell_of(*(with_test(n, count=25_000, seed=n % 2, **task) for n in (12_820, 14_151)))
    low, high = wilson(12_820, 25_000)[0], wilson(14_151, 25_000)[1]
    assert (cell.low, cell.high) == pytest.approx((100 * low, 100 * high))
    assert cell.low < 51.28 < 56.6 < cell.high


CHANCE = float(2000 * np.log(2))  # the loss of a constant answer


@pytest.mark.parametrize(
    ("correct", "constant", "collapsed", "last", "state"),
    [
        (1015, True, None, {}, "collapsed"),
        (1014, False, None, {}, "value"),
        (1014, False, 800, {"variation": 0.0}, "collapsed"),
        (1014, False, 800, {"variation": 0.5}, "collapsed"),
        (1640, False, 800, {"variation": 0.0}, "value"),  # its best step was before
        (990, False, None, {"loss": CHANCE + 0.1}, "collapsed"),  # an older result
        (990, False, None, {"loss": CHANCE - 0.3}, "value"),
        (1100, False, None, {"loss": CHANCE}, "value"),
        (990, False, None, {"loss": CHANCE, "variation": 2e-3}, "value"),  # at chance so far
    ],
)
def test_constant_answer_is_told_apart_from_the_floor(correct, constant, collapsed, last, state):
    run = with_test(correct, floor={"correct": 1014, "count": 2000}, collapsed=collapsed)
    run["test"]["best"]["constant"] = constant
    run["validation"]["last"] |= last
    assert cell_of(run).state == state


RIGHT = np.arange(2000) < 640  # 32 %


def baseline(right, **changes):
    """A shallow baseline that answers these test rows correctly."""
    test = {"correct": int(right.sum()), "count": len(right)}
    rule = {"method": "ridge on counts", "settings": {}, "validation": test, "test": test}
    return {**rule, "correct_bits": counts.encode(right), **changes}


def run_of(right, seed=0, **changes):
    result = with_test(int(right.sum()), seed=seed, **changes)
    result["test"]["best"]["correct_bits"] = counts.encode(right)
    return result


def test_italics_are_of_the_paired_test_on_rows_and_not_of_an_interval():
    """640 against 610 of 2,000: the interval of 640 begins below 610, but the same rows differ."""
    below = np.arange(2000) < 610  # nested: 30 rows, all won by the run
    nested = cell_of(run_of(RIGHT, shallow=baseline(below)))
    assert nested.low < 30.5
    assert (nested.above, nested.italic, nested.baseline) == (True, False, 30.5)
    crossed = np.roll(below, 500)  # 530 rows won, 500 lost
    assert cell_of(run_of(RIGHT, shallow=baseline(crossed))).italic
    assert cell_of(run_of(below, shallow=baseline(RIGHT))).italic  # significantly below


def test_one_seed_that_is_not_above_the_baseline_is_enough_for_italics():
    rule = baseline(np.arange(2000) < 610)
    above = [run_of(np.arange(2000) < n, n, shallow=rule) for n in (620, 720)]
    assert not cell_of(*above).italic
    assert cell_of(*above, run_of(np.roll(RIGHT, 500), shallow=rule)).italic


@pytest.mark.parametrize(("correct", "italic"), [(640, True), (641, False)])
def test_a_baseline_without_rows_is_compared_by_the_means(correct, italic):
    rule = baseline(RIGHT)
    del rule["correct_bits"]
    assert cell_of(with_test(correct, shallow=rule)).italic == italic


def test_a_cell_without_a_baseline_is_not_in_italics():
    assert (cell_of(with_test(600)).above, cell_of(with_test(600)).italic) == (None, False)


def test_trial_without_test_is_in_no_table():
    assert tables_of(a_result(test=None)) == []
    assert tables_of(a_failure("OOM", closed=True)) == []
    assert tables_of(a_failure("OOM"))


# Averages


def six(**changes):
    shares = {"listops": 30, "text": 60, "retrieval": 70, "image": 40, "pathfinder": 75}
    numbers = {task: Cell("value", float(share)) for task, share in shares.items()}
    return numbers | {"pathx": Cell("FAIL")} | changes


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, ["55.00", "54.17"]),  # 275 / 5, 325 / 6: a failed Path-X counts 50
        ({"pathx": Cell("value", 85.0)}, ["55.00", "60.00"]),
        *(({"text": Cell(s)}, ["-", "-"]) for s in ("-", "OOM", "FAIL", "collapsed", "n/a")),
        *(({"pathx": Cell(state)}, ["55.00", "-"]) for state in ("-", "OOM", "n/a")),
        ({"text": cell_of(with_test(600), with_test(360, seed=1))}, ["-", "-"]),
    ],
)
def test_averages_need_every_seed_of_every_task_and_count_a_failed_pathx_as_50(changes, texts):
    assert [average.text for average in averages(six(**changes)).values()] == texts


def test_average_of_six_is_what_later_papers_print():
    """53.66 and 54.42 are what later papers print for LRA's Transformer and for FNet."""
    rows = [published_cells("transformer", "lra"), published_cells("fnet", "fnet")]
    assert [row["average6"].text for row in rows if row] == ["53.66", "54.42"]


def test_an_average_has_the_interval_over_its_tasks():
    cells = {task: cell_of(*(scored("fnet", s, task=task) for s in range(3))) for task in TASKS}
    average = averages(cells)["average5"]
    want = significance.over_tasks([FIVE_SEEDS[0, :3]] * 5)
    assert (average.mean, average.low, average.high) == pytest.approx(want)
    cells["text"] = cell_of(*(with_test(600, seed=s, task="text") for s in range(3)))  # no rows
    assert averages(cells)["average5"].low is None


# Rows and tables


def test_rows_are_in_the_papers_order_then_by_name_with_controls_last():
    models = ("my_mixer", "ff_only", "dct", "performer", "random", "fnet", "transformer")
    (table,) = tables_of(*(a_result(model=m, preset="paper") for m in models))
    assert [(row.model, row.source) for row in table.rows] == [
        *(("transformer", source) for source in ("ours", "FNet paper", "LRA paper")),
        *(("fnet", source) for source in ("ours", "FNet paper")),  # the LRA paper has none
        *(("performer", source) for source in ("ours", "LRA paper")),
        *(("dct", "ours"), ("my_mixer", "ours")),
        *(("ff_only", "ours"), ("random", "ours")),
        ("", ""),
    ]
    assert (table.rows[0].label, table.rows[-1].label) == ("Transformer", "Majority floor")
    texts = [
        *(("FNet", "ours", "listops"), ("FNet", "FNet paper", "listops")),
        *(("FNet", "FNet paper", "pathx"), ("FNet", "ours", "pathx")),
        *(("Majority floor", "", "listops"), ("Majority floor", "", "text")),
    ]
    want = ["30.00 (1)", "35.33", "FAIL", "-", "18.00", "-"]
    assert [cell_text(table, *place) for place in texts] == want


def test_columns_are_those_with_a_run_and_averages_with_a_number():
    five = [task for task in TASKS if task != "pathx"]
    for tasks, extra in ((five[:4], []), (five, ["average5"]), (TASKS, ["average5", "average6"])):
        (table,) = tables_of(*(a_result(task=task, preset="small") for task in tasks))
        assert list(table.columns) == [*tasks, *extra]


def test_cpu_has_no_published_rows_and_no_column_for_its_smoke_runs():
    results = a_result(), a_result(task="pathx"), a_result(model="dct", task="pathx")
    (table,) = tables_of(*results)
    assert [row.source for row in table.rows] == ["ours", ""]  # the smoke run has no row
    assert not {"pathx", "average6"} & {*table.columns, *table.tasks}
    (small,) = tables_of(*(result | {"preset": "small"} for result in results))
    assert "FNet paper" in [row.source for row in small.rows]
    assert cell_text(small, "FNet", "ours", "pathx") == "30.00 (1)"


def hybrid(layers, attention, **changes):
    config = f"Encoder.num_layers = {layers}\nhybrid.attention_layers = {attention}\n"
    return a_result(model="fnet_hybrid", config=config, **changes)


def test_two_rows_are_never_the_same_model():
    (table,) = tables_of(
        hybrid(1, 1),
        hybrid(2, 2, task="text"),
        *(a_result(task=task) for task in ("text", "retrieval")),
        hybrid(4, 2, task="image"),
        hybrid(4, 0, task="retrieval"),
        a_result(model="fnet_mat"),
        a_result(),
    )
    texts = [cell_text(table, "FNet-Hybrid", "ours", task) for task in table.tasks]
    assert texts == ["n/a", "n/a", "n/a", "30.00 (1)"]
    assert [row.model for row in table.own] == ["fnet", "fnet_hybrid"]


def test_overrides_have_separate_rows_that_name_them():
    settings = ["Encoder.num_layers=1", "Run.num_steps=100"]
    changed = with_test(800, overrides=settings, variant="layers1-0a1b2c3d")
    (table,) = tables_of(with_test(600), changed)
    assert cell_text(table, "FNet", "ours", "listops") == "30.00 (1)"
    (row,) = table.variants
    assert (row.label, row.cells["listops"].mean) == (
        "FNet, Encoder.num_layers=1, Run.num_steps=100",
        40,
    )
    (table,) = tables_of(changed)
    assert not table.own


def test_a_name_that_stands_for_two_recipes_has_two_rows_that_say_which():
    def run(*overrides, **changes):
        return with_test(800, variant="mine", overrides=[*overrides], **changes)

    dim, norm = "Encoder.dim=8", "Encoder.norm='post'"
    deep = run("Encoder.dim = 8", norm, task="text"), run(norm, dim, task="text", seed=1)
    (table,) = tables_of(run("Encoder.dim=9"), *deep)
    label = "FNet, mine, Encoder.dim="
    assert [row.label for row in table.variants] == [f"{label}8, Encoder.norm='post'", f"{label}9"]
    assert [row.cells["text"].text for row in table.variants] == ["40.00 (2)", "-"]
    assert [row.label for row in tables_of(*deep)[0].variants] == ["FNet, mine"]


LONG = INIT | {"run": "cpu/listops/fnet@denoise+long/seed0"}


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "FNet"),
        (
            {"overrides": ["Encoder.num_layers = 4"], "variant": "x-01234567"},
            "FNet, Encoder.num_layers=4",
        ),
        ({"overrides": ["Encoder.num_layers=4"], "variant": "deep"}, "FNet, deep"),
        ({"variant": "pretrained", "init": INIT}, "FNet, pre-trained"),
        (
            {"overrides": ["Run.seed=1"], "variant": "pretrained-x-01234567", "init": INIT},
            "FNet, pre-trained, Run.seed=1",
        ),
        ({"variant": "pretrained-long", "init": LONG}, "FNet, pre-trained (long)"),
        (
            {"variant": "pretrained-long", "init": LONG, "overrides": ["Run.num_steps=9"]},
            "FNet, pre-trained, long",  # both runs have the overrides
        ),
        (
            {"variant": "pretrained-long-wide", "init": LONG, "overrides": ["Encoder.dim=9"]},
            "FNet, pre-trained (long), wide",
        ),
    ],
)
def test_variants_are_named_by_what_differs(changes, label):
    (run,) = records(a_result(**changes))
    assert names.name_of(run) == label


def test_presets_have_separate_tables_in_order():
    counts = {"cpu": 600, "mine": 640, "small": 660, "paper": 700}
    tables = tables_of(*(with_test(n, preset=p) for p, n in counts.items()))
    assert [table.preset for table in tables] == ["paper", "small", "cpu", "mine"]
    shown = [cell_text(table, "FNet", "ours", "listops") for table in tables]
    assert shown == ["35.00 (1)", "33.00 (1)", "30.00 (1)", "32.00 (1)"]
    notes = [any("papers' settings" in note for note in table.notes) for table in tables]
    assert notes == [False, True, True, True]


def test_of_different_floors_the_highest_is_shown():
    other = a_result(model="linear", floor={"correct": 400, "count": 2000}, data_sha256="e" * 64)
    (table,) = tables_of(a_result(), other)
    assert cell_text(table, "Majority floor", "", "listops") == "20.00"


def test_shallow_baseline_has_a_row_and_its_method_a_line():
    """A variant on longer texts has a higher baseline: it counts only where there is no other."""
    higher = baseline(np.arange(2000) < 800, method="bigrams")
    variant = {"variant": "long", "overrides": ["MAX_LEN=4096"], "shallow": higher}
    plain = with_test(600, shallow=baseline(RIGHT))
    (table,) = tables_of(plain, with_test(600, **variant), with_test(600, task="text", **variant))
    assert [row.label for row in table.references] == ["Majority floor", "Shallow baseline"]
    assert cell_text(table, "Shallow baseline", "", "listops") == "32.00"
    assert cell_text(table, "Shallow baseline", "", "text") == "40.00"
    methods = "ListOps: ridge on counts; Text: bigrams."
    assert f"Shallow baseline, chosen on validation: {methods}" in table.notes


RULE = baseline(RIGHT)


def test_baseline_of_an_older_result_is_that_of_expected_json(monkeypatch):
    facts = {"shallow": {"d" * 64: {"256": [RULE]}}}
    monkeypatch.setattr(store, "expected", lambda: {"listops": {"short_128": facts}})
    config = "# Macros:\nMAX_LEN = 256\nRun.num_steps = 1000\n"
    (run,) = records(a_result(config=config))
    assert run.baseline.test.correct == 640
    other = {"config": config.replace("256", "2560")}, {"config": config, "data_sha256": "e" * 64}
    for changes in (*other, {"config": config, "task": "text"}, {}):
        (run,) = records(a_result(**changes))
        assert run.baseline is None


@pytest.mark.parametrize(
    ("first", "second", "differences"),
    [
        ({}, {"data_sha256": "e" * 64}, "their data"),
        ({}, {"config": "A.b = 2\nA.c = 3\n"}, "A.b"),
        ({}, {"config": "A.b = 1\nA.c = 3\n"}, None),  # today's code has no A.c
        ({}, {"config": "A.b = 1\nOptimizer.beta1 = 0.8\n"}, "Optimizer.beta1"),
        ({}, {"config": "A.b = 1\nOptimizer.beta1 = 0.9\n"}, None),  # the default
        ({"code": {"m.py": "a"}}, {"code": {"m.py": "b"}}, "the code of their imports"),
        ({}, {"config": "A.b = 1\nEncoder.qkv_dim = 9\n"}, None),  # as many parameters
        ({}, {"config": "A.b = 1\nEncoder.qkv_dim = 9\n", "parameters": 1}, "Encoder.qkv_dim"),
    ],
)
def test_seeds_that_differ_in_more_are_noted(first, second, differences):
    plain = {"config": "A.b = 1\n"}
    (table,) = tables_of(a_result(**plain | first), a_result(**plain | {"seed": 1} | second))
    notes = [note for note in table.notes if "differ in" in note]
    expected = f"The runs of FNet on ListOps differ in {differences}."
    assert notes == ([expected] if differences else [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "cpu/listops/fnet@denoise/seed1", "sha256": "1" * 64}, None),
        ({"steps": 6, "sha256": "1" * 64}, "differ in their pre-training."),
        ({}, "began from the same pre-trained encoder"),
        ({"run": "cpu/corpus/fnet@denoise/seed0"}, "may hold test rows of ListOps."),
    ],
)
def test_what_pretrained_seeds_share_is_noted(changes, words):
    inits = enumerate((INIT, INIT | changes))
    (table,) = tables_of(*(a_result(variant="pretrained", init=i, seed=s) for s, i in inits))
    assert any(words in note for note in table.notes) if words else len(table.notes) == 1


def test_checkpoints_selected_on_the_test_rows_are_noted():
    (table,) = tables_of(a_result(validation_is_test=True))
    assert any("On ListOps, the checkpoints were selected" in note for note in table.notes)


def test_legend_explains_the_states_and_the_mark_that_occur():
    shown = [cell_of(with_test(n)) for n in (600, 360)]
    assert "`collapsed`" in legend(shown)
    assert not any(words in legend(shown) for words in ("OOM", "FAIL", "n/a", "Italics"))
    low = run_of(np.arange(2000) < 610, shallow=baseline(RIGHT))
    assert "Italics" in legend([cell_of(low)])


def test_task_of_a_user_is_a_column_and_enters_no_average():
    results = a_result(), a_result(task="my_task")
    (table,) = tables_of(*(result | {"preset": "paper"} for result in results))
    assert list(table.columns) == ["listops", "my_task"]
    assert cell_text(table, "FNet", "ours", "my_task") == "30.00 (1)"
    assert cell_text(table, "FNet", "FNet paper", "my_task") == "n/a"
    assert cell_text(table, "FNet", "FNet paper", "average5") == "55.30"


def test_overrides_on_a_task_of_a_user_are_no_variants():
    """It has no settings of its own in a preset, so most of its runs have some."""
    changes = {"overrides": ["MAX_LEN=64"], "variant": "MAX_LEN-64"}
    (table,) = tables_of(a_result(task="my_task", **changes), a_result(**changes))
    assert [row.label for row in table.variants] == ["FNet, MAX_LEN-64"]
    (table,) = tables_of(a_result(task="my_task", **changes))
    assert [row.cells["my_task"].text for row in table.own] == ["30.00 (1)"]
    assert not table.variants


# What a cell says of others


def shares(model, *numbers, **changes):
    """Returns runs of a model whose first rows are right."""
    rows = [np.arange(2000) < number for number in numbers]
    return [run_of(right, seed, model=model, **changes) for seed, right in enumerate(rows)]


def bold(*results):
    (table,) = tables_of(*results)
    return {row.model for row in table.own if row.cells["listops"].bold}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (shares("linear", 700, 706, 712), {"fnet"}),  # 4 points below
        (shares("linear", 790, 796, 802), {"fnet", "linear"}),  # the same
        (shares("linear", 700, 706), set()),  # nothing to compare with
        (shares("linear", 900), set()),  # a single seed is higher
        (shares("linear", 900, 906, 912), {"linear"}),
        (shares("linear", 900, 906, 360), set()),  # not every seed trained
        (shares("linear", 790, 796, 802, data_sha256="e" * 64), set()),
    ],
)
def test_bold_is_the_best_of_three_seeds_and_what_is_not_below_it(others, expected):
    assert bold(*shares("fnet", 794, 800, 806), *others) == expected


def test_variants_are_not_bold():
    other = {"variant": "v", "overrides": ["A.b=1"]}
    (table,) = tables_of(*shares("fnet", 794, 800, 806, **other), *shares("dct", 7, 8, 9, **other))
    assert not any(row.cells["listops"].bold for row in table.ours)


def test_number_of_rows_changes_what_is_bold():
    """Holm: a difference with p just below .05 is none among twenty."""
    first, other = shares("fnet", 768, 800, 832), shares("linear", 690, 722, 754)
    alone = significance.compare(
        *([r.right("test") for r in records(*side)] for side in (first, other))
    )
    assert 0.02 < alone.p_value < 0.05
    assert bold(*first, *other) == {"fnet"}
    many = [run for n in range(20) for run in shares(f"m{n}", 690, 722, 754)]
    assert len(bold(*first, *other, *many)) == 22


def test_a_cell_has_its_difference_from_no_mixing_on_the_same_data():
    mixing, none = [scored("fnet", s) for s in range(3)], [scored("linear", s) for s in range(3)]
    none = [run | {"model": "ff_only"} for run in none]
    variant = scored("fnet", 0, variant="v", overrides=["A.b=1"])
    (table,) = tables_of(*mixing, *none, variant, *shares("dct", 600, data_sha256="e" * 64))
    gains = {row.label: row.cells["listops"].gain for row in table.ours}
    assert gains["FNet"] == significance.crossed(*FIVE_SEEDS[:, :3])
    assert gains["FNet, v"] == significance.crossed(FIVE_SEEDS[0, :1], FIVE_SEEDS[1, :3])
    assert [gains[label] for label in ("FF-only", "Cosine transform")] == [None, None]


def test_the_best_of_a_task_is_chosen_on_validation_among_three_seeds_above_the_baseline():
    def three(model, test, validation, **changes):
        score = {"step": 900, "correct": validation, "count": 2000, "loss": 1.0}
        both = {"best": score, "last": score | {"step": 1000}}
        return [run | {"validation": both} for run in shares(model, *test, **changes)]

    low = {"shallow": baseline(np.arange(2000) < 500)}
    (table,) = tables_of(
        *three("fnet", (700, 700, 700), 800),
        *three("linear", (900, 900, 900), 700),  # higher on test alone
        *three("dct", (700, 700), 900),  # two seeds
        *three("s5", (480, 480, 480), 900, **low),  # below the baseline
    )
    assert {task: row.model for task, row in table.best.items()} == {"listops": "fnet"}
