"""The rules of the accuracy tables: cells, states, averages, rows, each worked by hand."""

import dataclasses
import math

import pytest
from made_results import INIT, a_failure, a_result, cell_text, records, with_test

from lra_fnet import experiment
from lra_fnet.counts import wilson
from lra_fnet.data import store
from lra_fnet.report import accuracy, cells, naming, tables, text
from lra_fnet.report.accuracy.cell import Cell
from lra_fnet.run.folder import Begun


def cell_of(*results, checkpoint="best"):
    return cells.cell(records(*results), checkpoint)


def tables_of(*results):
    return accuracy.tables(records(*results))


# Cells


def test_cell_is_mean_sample_sd_maximum_and_seeds():
    cell = cell_of(*(with_test(n, seed=s) for s, n in enumerate((600, 620, 640))))  # 30, 31, 32 %
    assert (cell.state, cell.mean, cell.sd, cell.maximum, cell.seeds) == (
        "value",
        pytest.approx(31.0),
        pytest.approx(1.0),  # divided by n - 1 = 2; divided by 3 it would be 0.816
        pytest.approx(32.0),
        3,
    )
    assert cell.lines == ["31.00 ± 1.00", "max 32.00", "3 seeds"]


def test_one_seed_has_no_spread():
    cell = cell_of(with_test(614))
    assert cell.sd is None
    assert cell.lines == ["30.70", "1 seed"]


def test_two_seeds_show_both_values_and_no_standard_deviation():
    cell = cell_of(with_test(640, seed=1), with_test(600))
    assert (cell.mean, cell.sd, cell.values) == (pytest.approx(31.0), None, (30.0, 32.0))
    assert cell.lines == ["31.00", "30.00 / 32.00", "2 seeds"]


def test_interval_shows_the_spread_over_seeds():
    """Seeds at 51.28 and 56.60 % of 25,000 rows: not their mean with the error of the rows."""
    task = {"task": "text", "floor": {"correct": 12_500, "count": 25_000}}
    cell = cell_of(*(with_test(n, count=25_000, seed=n % 2, **task) for n in (12_820, 14_151)))
    low, high = wilson(12_820, 25_000)[0], wilson(14_151, 25_000)[1]
    assert (cell.low, cell.high) == pytest.approx((100 * low, 100 * high))
    assert cell.low < 51.28 < 56.6 < cell.high


def test_last_step_has_its_own_cell():
    assert cell_of(with_test(600, last=580), checkpoint="last").mean == pytest.approx(29.0)


# States


@pytest.mark.parametrize(("correct", "floor"), [(361, True), (393, True), (394, False)])
def test_number_at_the_floor_is_marked(correct, floor):
    """Floor 18 % of 2,000 rows: the score equation's boundary is .18 + z sqrt(.18 .82 / 2000)."""
    boundary = 2000 * (0.18 + 1.959963984540054 * math.sqrt(0.18 * 0.82 / 2000))
    assert (correct < boundary) == floor
    cell = cell_of(with_test(correct))
    assert (cell.state, cell.mean, cell.floor) == ("value", pytest.approx(correct / 20), floor)
    assert cell.lines[0] == f"{correct / 20:.2f}" + "¶" * floor


def test_interval_that_touches_the_floor_is_at_it():
    """The lower end at 0 of 5 rows is exactly 0, the floor of a label that test does not hold."""
    run = with_test(0, count=5, floor={"correct": 0, "count": 5})
    run["test"]["best"]["constant"] = False
    assert cell_of(run).lines == ["0.00¶", "1 seed"]


def test_seeds_do_not_multiply_the_test_rows():
    """Three seeds at 390 of 2,000: 1,170 of 6,000 would pass, 390 of 2,000 do not."""
    assert 100 * wilson(1170, 6000)[0] > 18
    assert cell_of(*(with_test(390, seed=seed) for seed in range(3))).floor


@pytest.mark.parametrize(
    ("correct", "floor", "says", "state"),
    [
        (361, 360, True, "did not train"),
        (360, 360, False, "value"),
        (360, 360, None, "did not train"),  # an older result: the most frequent label
        (361, 360, None, "value"),
        (1640, 360, None, "value"),  # not one of two labels
        (986, 1014, None, "did not train"),  # the other of two labels
        (985, 1014, None, "value"),
    ],
)
def test_constant_answer_is_told_apart_from_the_floor(correct, floor, says, state):
    run = with_test(correct, floor={"correct": floor, "count": 2000})
    run["test"]["best"]["constant"] = says
    assert cell_of(run).state == state


def test_a_state_has_neither_spread_nor_maximum():
    for task in ("listops", "pathx"):
        cell = cell_of(*(with_test(360, seed=seed, task=task) for seed in range(3)))
        assert (cell.seeds, cell.mean, cell.sd, cell.maximum) == (3, None, None, None)


def test_only_the_checkpoint_with_a_constant_answer_did_not_train():
    run = with_test(700, last=600)
    run["test"]["last"]["constant"], run["test"]["best"]["constant"] = True, False
    assert cell_of(run, checkpoint="best").lines == ["35.00", "1 seed"]
    assert cell_of(run, checkpoint="last").lines == ["did not train", "1 seed"]


def test_constant_seed_counts_with_its_number_and_is_named():
    cell = cell_of(with_test(360), with_test(640, seed=1), with_test(660, seed=2))
    assert cell.mean == pytest.approx((18 + 32 + 33) / 3)
    assert cell.lines[1:] == ["max 33.00", "3 seeds", "1 did not train"]
    both = cell_of(with_test(360), with_test(360, seed=1))
    assert both.lines == ["did not train", "2 seeds"]


def test_pathx_at_the_floor_is_fail_as_in_lra():
    at_floor, above = (with_test(n, task="pathx") for n in (361, 600))
    assert cell_of(at_floor).lines == ["FAIL", "1 seed"]
    assert cell_of(with_test(360, task="pathx")).lines == ["FAIL", "1 seed"]  # a constant answer
    cell = cell_of(at_floor | {"seed": 1}, above)  # a seed that trained is not hidden
    assert cell.lines[0] == f"{(18.05 + 30) / 2:.2f}¶"


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([], "-"),
        (["diverged"], "FAIL"),
        (["OOM"], "OOM"),
        (["OOM", "diverged"], "FAIL"),
    ],
)
def test_cell_without_a_value_shows_its_state(states, text):
    assert cell_of(*(a_failure(s, seed=n) for n, s in enumerate(states))).lines == [text]


def test_failed_seed_is_reported_and_left_out_of_the_mean():
    cell = cell_of(with_test(600), with_test(640, seed=1), a_failure("diverged", seed=2))
    assert cell.mean == pytest.approx(31.0)
    assert cell.lines == ["31.00", "30.00 / 32.00", "2 of 3 seeds"]


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
        *(
            ({"text": Cell(state)}, ["-", "-"])
            for state in ("-", "OOM", "FAIL", "did not train", "n/a")
        ),
        *(({"pathx": Cell(state)}, ["55.00", "-"]) for state in ("-", "OOM", "n/a")),
        ({"text": Cell("value", 60.0, (60.0,), unfinished=1)}, ["-", "-"]),
        ({"pathx": Cell("FAIL", values=(50.0,), unfinished=1)}, ["55.00", "-"]),
        (
            {"text": Cell("value", 50.0, low=49.0, majority=50.0)},
            ["53.00", "52.50"],
        ),  # as LRA averages them
    ],
)
def test_averages_need_every_task_and_count_a_failed_pathx_as_50(changes, texts):
    assert [cell.lines[0] for cell in cells.averages(six(**changes)).values()] == texts


def test_average_of_six_is_what_later_papers_print():
    """53.66 and 54.42 are what later papers print for LRA's Transformer and for FNet."""
    rows = [
        cells.published_cells("transformer", "lra"),
        cells.published_cells("fnet", "fnet"),
    ]
    assert [row["average6"].lines for row in rows if row] == [["53.66"], ["54.42"]]


# Rows and tables


def test_columns_and_rows_are_in_the_papers_order_then_by_name():
    models = ("my_mixer", "dct", "performer", "fnet", "transformer")
    (table,) = tables_of(*(a_result(model=m, preset="paper") for m in models))
    assert list(table.columns.values()) == [
        *("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X"),
        *("Mean of 5", "Mean of 6"),
    ]
    assert [(row.model, row.source) for row in table.rows] == [
        *(("transformer", source) for source in ("ours", "FNet paper", "LRA paper")),
        *(("fnet", source) for source in ("ours", "FNet paper")),  # the LRA paper has none
        *(("performer", source) for source in ("ours", "LRA paper")),
        ("dct", "ours"),
        ("my_mixer", "ours"),
        ("", ""),
    ]
    assert (table.rows[0].label, table.rows[-1].label) == ("Transformer", "Majority floor")
    last = [row.model for row in table.last_rows]
    assert last == ["transformer", "fnet", "performer", "dct", "my_mixer"]


def test_ours_published_and_floor_have_rows():
    (table,) = tables_of(a_result(preset="tuned"))
    assert cell_text(table, "FNet", "ours", "listops") == "30.00, 1 seed"
    assert cell_text(table, "FNet", "ours", "image") == "-"
    assert cell_text(table, "FNet", "ours", "average5") == "-"
    assert cell_text(table, "FNet", "FNet paper", "listops") == "35.33"
    assert cell_text(table, "FNet", "FNet paper", "pathx") == "FAIL"
    assert cell_text(table, "Majority floor", "", "listops") == "18.00"
    assert cell_text(table, "Majority floor", "", "text") == "-"


def test_cpu_has_no_published_rows_and_no_column_for_its_smoke_runs():
    words = "Path-X: smoke runs at this preset, without a column."
    assert words not in tables_of(a_result())[0].notes
    results = a_result(), a_result(task="pathx"), a_result(model="dct", task="pathx")
    (table,) = tables_of(*results)
    assert [row.source for row in table.rows] == ["ours", ""]  # the smoke run has no row
    assert not {"pathx", "average6"} & {*table.columns, *table.tasks}
    assert words in table.notes
    (small,) = tables_of(*(result | {"preset": "small"} for result in results))
    assert "FNet paper" in [row.source for row in small.rows]
    assert cell_text(small, "FNet", "ours", "pathx") == "30.00, 1 seed"


def hybrid(layers, attention, **changes):
    config = f"Encoder.num_layers = {layers}\nhybrid.attention_layers = {attention}\n"
    return a_result(model="fnet_hybrid", config=config, **changes)


def test_two_rows_are_never_the_same_model():
    (table,) = tables_of(
        hybrid(1, 1),
        hybrid(2, 2, task="text"),
        hybrid(4, 2, task="image"),
        hybrid(4, 0, task="retrieval"),
        a_result(model="fnet_mat"),
        a_result(),
    )
    texts = [cell_text(table, "FNet-Hybrid", "ours", task) for task in table.tasks]
    assert texts == ["n/a", "n/a", "n/a", "30.00, 1 seed", "-"]
    assert [row.model for row in table.last_rows] == ["fnet", "fnet_hybrid"]
    notes = [note for note in table.notes if "alike" in note]
    assert notes[0] == "FNet-Hybrid on ListOps: n/a, all its layers are alike: Transformer."
    assert notes[2] == "FNet-Hybrid on Retrieval: n/a, all its layers are alike: FNet."


def test_overrides_have_separate_rows_that_name_them():
    settings = ["Encoder.num_layers=1", "Run.num_steps=100"]
    changed = with_test(800, overrides=settings, variant="layers1-0a1b2c3d")
    (table,) = tables_of(with_test(600), changed)
    assert cell_text(table, "FNet", "ours", "listops") == "30.00, 1 seed"
    assert "1 layer" not in "".join(row.label for row in table.rows)
    (row,) = table.variants
    assert (row.label, row.cells["listops"].mean) == ("FNet, 1 layer, 100 steps", 40)
    assert "FNet, 1 layer, 100 steps: `Encoder.num_layers=1 Run.num_steps=100`" in table.notes
    assert [part.name for part in table.parts] == ["", "", "variants", "variants"]
    assert "0a1b2c3d" not in text.accuracy_markdown([table]).replace("/fnet+layers1-0a1b2c3d", "")
    assert "layers1-0a1b2c3d" in text.accuracy_csv([table])
    (table,) = tables_of(changed)
    assert not [row for row in table.rows if row.source == "ours"]


def test_variants_have_the_numbers_of_the_last_step_in_its_table():
    (table,) = tables_of(with_test(600, last=580, overrides=["MAX_LEN=4096"], variant="long"))
    parts = [part for part in table.parts if part.name == "variants"]
    means = {part.checkpoint: part.rows[0].cells["listops"].mean for part in parts}
    assert means == {"best": 30, "last": 29}


LONG = INIT | {"run": "cpu/listops/fnet@denoise+long/seed0"}


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "FNet"),
        ({"overrides": ["Encoder.num_layers=4"], "variant": "x-01234567"}, "FNet, 4 layers"),
        ({"overrides": ["Encoder.num_layers=4"], "variant": "deep"}, "FNet, deep"),
        (
            {"overrides": ["Optimizer.learning_rate=0.000316227"], "variant": "x-01234567"},
            "FNet, learning rate 0.000316",
        ),
        (
            {"overrides": ["Head.pooling='mean'", "DATASET='s'"], "variant": "x-01234567"},
            "FNet, Head.pooling mean, dataset s",
        ),
        ({"variant": "pretrained", "init": INIT}, "FNet, pre-trained"),
        (
            {"overrides": ["Run.seed=1"], "variant": "pretrained-x-01234567", "init": INIT},
            "FNet, pre-trained, seed 1",
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
    assert naming.name_of(run) == label
    begun = {name: getattr(run, name) for name in ("task", "model", "variant", "overrides")}
    begun |= {"init": "a/folder", "origin": run.init} if run.init else {}
    assert naming.name_of(Begun(**begun)) == label


def test_pre_training_is_described_once():
    hides = "Denoising.rate = 0.15\n"
    text = {"task": "text", "variant": "pretrained"}
    corpus = INIT | {"run": "cpu/corpus/fnet@denoise/seed0", "objective": hides}
    (table,) = tables_of(
        a_result(variant="pretrained", init=INIT | {"objective": hides, "steps": 1500}),
        a_result(variant="pretrained", init=INIT | {"objective": hides, "steps": 1500}, seed=1),
        *(
            a_result(model=m, init=corpus | {"steps": n}, **text)
            for m, n in (("fnet", 9), ("s5", 8))
        ),
        a_result(task="image", variant="pretrained", init=INIT | {"run": "cpu/image/fnet/seed0"}),
    )
    assert [note for note in table.notes if note.startswith("Pre-trained")] == [
        "Pre-trained: the run began from an encoder that was trained to predict hidden tokens: "
        "ListOps, 1,500 steps, `Denoising.rate = 0.15`; Text, on Corpus, 8 or 9 steps, "
        "`Denoising.rate = 0.15`; Image, 5 steps."
    ]
    (corpus,) = [note for note in table.notes if "orpus of pre" in note]
    assert corpus == "The corpus of pre-training may hold test rows of Text."


def test_presets_have_separate_tables_in_order():
    counts = {"cpu": 600, "mine": 640, "small": 660, "paper": 700}
    tables = tables_of(*(with_test(n, preset=p) for p, n in counts.items()))
    assert [table.preset for table in tables] == ["paper", "small", "cpu", "mine"]
    shown = [cell_text(table, "FNet", "ours", "listops") for table in tables]
    assert shown == ["35.00, 1 seed", "33.00, 1 seed", "30.00, 1 seed", "32.00, 1 seed"]
    notes = [[note for note in table.notes if "papers' setting" in note] for table in tables]
    assert [bool(lines) for lines in notes] == [False, True, True, True]
    assert notes[2] == ["Preset cpu is far from the papers' settings: their results are not shown."]


@pytest.mark.parametrize(
    ("models", "line"),
    [
        (["dct"], []),
        (
            ["fnet"],
            ['FNet paper: the best of several runs, on TPU (the rows marked "ours" there).'],
        ),
        (["local"], ["LRA paper: on TPU; on Text the best of the lengths 1K to 4K"]),
        (["fnet", "local"], ["FNet paper: ", "; LRA paper: "]),
    ],
)
def test_one_line_says_how_the_published_numbers_were_obtained(models, line):
    (table,) = tables_of(*(a_result(model=model, preset="tuned") for model in models))
    found = [note for note in table.notes if note.startswith("Published numbers: ")]
    assert len(found) == bool(line)
    assert all(part in found[0] for part in line)
    assert any("rough guide" in note for note in table.notes) == bool(line)


def test_paper_says_where_the_papers_are_silent():
    (table,) = tables_of(a_result(preset="paper"))
    assert any(note.startswith("Settings that neither paper gives") for note in table.notes)


def test_published_rows_without_a_number_in_the_columns_are_not_shown():
    (table,) = tables_of(a_result(task="my_task", preset="tuned"))
    assert [row.source for row in tables.measured(table, table.parts[0])[1].rows] == ["ours", ""]
    assert not any("rough guide" in note or "Published" in note for note in table.notes)
    (table,) = tables_of(*(a_result(task=t, preset="tuned") for t in ("my_task", "text")))
    assert "FNet paper" in {row.source for row in tables.measured(table, table.parts[0])[1].rows}


def test_marks_are_explained_only_where_they_occur():
    marked = a_result(validation_is_test=True, uses_mask=False)
    markdown = text.accuracy_markdown(tables_of(marked, a_result(model="transformer")))
    assert "| FNet ‡ | 30.00†, 1 seed |" in markdown
    assert "| Transformer | 30.00, 1 seed |" in markdown
    assert "- † The checkpoint was selected on the test rows" in markdown
    assert "- ‡ Padding changes this model's output" in markdown
    plain = text.accuracy_markdown(tables_of(a_result()))
    assert "†" not in plain
    assert "‡" not in plain


def test_different_floors_are_noted_and_the_highest_is_shown():
    other = a_result(model="linear", floor={"correct": 400, "count": 2000}, data_sha256="e" * 64)
    (table,) = tables_of(a_result(), other)
    assert cell_text(table, "Majority floor", "", "listops") == "20.00"
    words = "Runs on ListOps use data with different majority floors: 18.00, 20.00; the table shows"
    assert f"{words} the highest." in table.notes


SHALLOW = {
    "method": "ridge on counts",
    "settings": {"penalty": 0.1},
    "validation": {"correct": 560, "count": 2000},
    "test": {"correct": 570, "count": 2000},
}


def test_shallow_baseline_has_a_row_and_marks_cells_that_are_not_above_it():
    """The interval of 600 of 2,000 rows begins at 28.03 %, that of 620 at 29.01 %."""
    (table,) = tables_of(
        with_test(600, 620, shallow=SHALLOW),
        with_test(620, model="linear", shallow=SHALLOW),
        with_test(361, model="dct", shallow=SHALLOW),
        with_test(600, task="text"),
    )
    assert [row.label for row in table.rows[-2:]] == ["Majority floor", "Shallow baseline"]
    assert table.floors is table.rows[-2]
    assert cell_text(table, "Shallow baseline", "", "listops") == "28.50"
    assert cell_text(table, "Shallow baseline", "", "text") == "-"
    assert cell_text(table, "FNet", "ours", "listops") == "30.00§, 1 seed"
    assert cell_text(table, "FNet", "ours", "text") == "30.00, 1 seed"
    assert cell_text(table, "Linear", "ours", "listops") == "31.00, 1 seed"
    assert table.last_rows[0].cells["listops"].lines[0] == "31.00"
    assert "§ At least one seed is not clearly (95 %) above the shallow baseline." in table.notes
    assert table.baselines == {"listops": "ridge on counts"}
    names = "Shallow baseline, chosen on validation: ListOps: ridge on counts."
    assert names in table.notes


@pytest.mark.parametrize(("last", "sign"), [(600, "§"), (361, "¶")])
def test_signs_of_the_last_step_alone_are_explained(last, sign):
    (table,) = tables_of(with_test(640, last, shallow=SHALLOW))
    assert cell_text(table, "FNet", "ours", "listops") == "32.00, 1 seed"
    assert sign in table.last_rows[0].cells["listops"].marks
    assert sign in [note[0] for note in table.notes]


def test_baseline_is_that_of_the_rows_above_it_and_of_variants_where_there_are_none():
    """A variant on longer texts has a higher baseline than the models of the preset."""
    higher = SHALLOW | {"method": "bigrams", "test": {"correct": 800, "count": 2000}}
    variant = {"variant": "long", "overrides": ["MAX_LEN=4096"], "shallow": higher}
    plain = with_test(600, shallow=SHALLOW)
    (table,) = tables_of(plain, with_test(600, **variant), with_test(600, task="text", **variant))
    assert cell_text(table, "Shallow baseline", "", "listops") == "28.50"
    assert cell_text(table, "Shallow baseline", "", "text") == "40.00"
    assert table.baselines == {"listops": "ridge on counts", "text": "bigrams"}
    assert any(note.endswith("ListOps: ridge on counts; Text: bigrams.") for note in table.notes)
    (table,) = tables_of(plain, with_test(600, model="linear", shallow=higher))
    assert cell_text(table, "Shallow baseline", "", "listops") == "40.00"
    words = "Runs on ListOps have different shallow baselines: 28.50, 40.00; the table shows the"
    assert f"{words} highest." in table.notes


def test_floors_stand_below_the_variants_where_a_task_has_no_other_runs():
    variant = a_result(variant="long", overrides=["MAX_LEN=4096"])
    (table,) = tables_of(variant)
    best, _ = [part for part in table.parts if part.name == "variants"]
    assert [row.label for row in best.rows] == ["FNet, long", "Majority floor"]
    plain = a_result()
    (table,) = tables_of(variant, plain)
    best, _ = [part for part in table.parts if part.name == "variants"]
    assert [row.label for row in best.rows] == ["FNet, long"]
    (table,) = tables_of(variant | {"task": "text", "floor": {"correct": 9, "count": 2000}}, plain)
    best, _ = [part for part in table.parts if part.name == "variants"]
    assert [row.label for row in best.rows] == ["FNet, long", "Majority floor"]
    assert best.rows[-1].cells["text"].mean == 0.45


def test_a_note_names_the_floors_and_baselines_of_variants_that_the_table_does_not_show():
    other = {"floor": {"correct": 400, "count": 2000}, "data_sha256": "e" * 64}
    rule = SHALLOW | {"test": {"correct": 800, "count": 2000}}
    variants = [
        a_result(model=m, variant=v, overrides=["DATASET='x'"], shallow=rule, **other)
        for m, v in (("fnet", "x"), ("linear", "x"))
    ]
    same = a_result(variant="y", overrides=["A.b=1"], shallow=SHALLOW)
    (table,) = tables_of(a_result(shallow=SHALLOW), *variants, same)
    found = [note for note in table.notes if note.startswith("On ")]
    assert found == [
        "On ListOps, the majority floor is 20.00 % for the data of Linear, x; FNet, x.",
        "On ListOps, the shallow baseline is 40.00 % for the data of Linear, x; FNet, x.",
    ]


def test_runs_with_different_code_of_the_user_are_noted():
    runs = [a_result(seed=seed, code={"m.py": code}) for seed, code in enumerate("ab")]
    words = "The runs of FNet on ListOps differ in the code of their imports."
    (table,) = tables_of(*runs)
    assert words in table.notes
    (table,) = tables_of(runs[0], runs[0] | {"seed": 1})
    assert words not in table.notes


def test_rows_that_would_be_named_alike_get_the_name_of_their_variant():
    runs = [
        a_result(overrides=[f"Optimizer.learning_rate={rate}"], variant=f"r-0000000{number}")
        for number, rate in enumerate((0.0003161, 0.0003162, 0.01))
    ]
    (table,) = tables_of(*runs)
    assert [row.label for row in table.variants] == [
        "FNet, learning rate 0.000316 (r-00000000)",
        "FNet, learning rate 0.000316 (r-00000001)",
        "FNet, learning rate 0.01",
    ]


def test_baseline_of_an_older_result_is_that_of_expected_json(monkeypatch):
    facts = {"shallow": {"d" * 64: {"256": [SHALLOW]}}}
    monkeypatch.setattr(store, "expected", lambda: {"listops": {"short_128": facts}})
    config = "# Macros:\nMAX_LEN = 256\nRun.num_steps = 1000\n"
    (run,) = records(a_result(config=config))
    assert run.baseline.test.correct == 570
    other = {"config": config.replace("256", "2560")}, {"config": config, "data_sha256": "e" * 64}
    for changes in (*other, {"config": config, "task": "text"}, {}):
        (run,) = records(a_result(**changes))
        assert run.baseline is None


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"data_sha256": "e" * 64}, "differ in their data"),
        ({"config": "A.b = 2\nA.c = 3\n"}, "differ in A.b"),
        ({"config": "A.b = 1\nA.c = 3\n"}, None),  # today's code has no A.c
        ({"config": "A.b = 1\nOptimizer.beta1 = 0.8\n"}, "differ in Optimizer.beta1"),
        ({"config": "A.b = 1\nOptimizer.beta1 = 0.9\n"}, None),  # the default
    ],
)
def test_seeds_with_other_data_or_bindings_are_noted(changes, differences):
    runs = a_result(config="A.b = 1\n"), a_result(**{"config": "A.b = 1\n", "seed": 1} | changes)
    (table,) = tables_of(*runs)
    (shown,) = text.compact([table])
    for notes in (table.notes, shown.notes):
        notes = [note for note in notes if "differ in" in note]
        assert notes == ([f"The runs of FNet on ListOps {differences}."] if differences else [])


def test_seeds_that_began_from_different_pretraining_are_noted():
    def notes(run, **changes):
        init = INIT | {"run": run} | changes
        runs = (a_result(variant="pretrained", init=i, seed=s) for s, i in enumerate((INIT, init)))
        (table,) = tables_of(*runs)
        return [note for note in table.notes if "their pre-training" in note]

    assert notes("cpu/listops/fnet@denoise/seed1") == []
    for found in (notes("mine/corpus/fnet@denoise/seed1"), notes(INIT["run"], steps=6)):
        assert found == ["The runs of FNet, pre-trained on ListOps differ in their pre-training."]


@pytest.mark.parametrize(("second", "noted"), [(INIT["sha256"], True), ("1" * 64, False)])
def test_seeds_that_began_from_one_encoder_are_noted(second, noted):
    inits = (INIT, INIT | {"sha256": second})
    (table,) = tables_of(
        *(a_result(variant="pretrained", init=i, seed=s) for s, i in enumerate(inits))
    )
    found = [note for note in table.notes if "the same pre-trained encoder" in note]
    assert len(found) == noted
    assert all(note.startswith("Several runs of FNet, pre-trained on ListOps") for note in found)


@pytest.mark.parametrize(("seeds", "noted"), [(1, False), (2, True)])
def test_seeds_that_share_a_draw_are_noted(seeds, noted):
    config = "MAX_LEN = 128\nPerformer.seed = 0\n"
    (table,) = tables_of(*(a_result(config=config, seed=seed) for seed in range(seeds)))
    assert (
        any("have the same fixed draw (`Performer.seed`)" in note for note in table.notes) == noted
    )


def test_provenance_names_folder_seeds_commit_device_and_data():
    (table,) = tables_of(a_result(seed=0), a_result(seed=1), a_result(seed=2, dirty=True))
    machine = f"1 x Some CPU (cpu, 2 cores); data short_128 from generator, {'d' * 12}"
    assert table.provenance == [
        f"`runs/cpu/listops/fnet`, seed 0, 1: commit 0123456789ab; {machine}",
        f"`runs/cpu/listops/fnet`, seed 2: commit 0123456789ab (dirty); {machine}",
    ]


def test_task_of_a_user_is_a_column_and_enters_no_average():
    results = a_result(), a_result(task="my_task")
    (table,) = tables_of(*(result | {"preset": "paper"} for result in results))
    assert list(table.columns)[-2:] == ["average6", "my_task"]
    assert cell_text(table, "FNet", "ours", "my_task") == "30.00, 1 seed"
    assert cell_text(table, "FNet", "FNet paper", "my_task") == "n/a"
    assert cell_text(table, "FNet", "FNet paper", "average5") == "55.30"


def test_a_way_to_compute_a_model_is_named_below_the_table():
    (table,) = tables_of(a_result(), a_result(model="fnet_mat"))
    assert [row.model for row in table.rows if row.ours] == ["fnet"]
    assert "`fnet_mat` is a way to compute a model and has no row." in table.notes


def test_overrides_on_a_task_of_a_user_are_no_variants():
    """It has no settings of its own in a preset, so most of its runs have some."""
    changes = {"overrides": ["MAX_LEN=64"], "variant": "MAX_LEN-64"}
    (table,) = tables_of(a_result(task="my_task", **changes), a_result(**changes))
    assert [row.label for row in table.variants] == ["FNet, MAX_LEN-64"]
    (table,) = tables_of(a_result(task="my_task", **changes))
    assert [row.cells["my_task"].lines for row in table.rows if row.ours] == [["30.00", "1 seed"]]
    assert not table.variants


@pytest.mark.parametrize("task", ["image", "pathfinder", "pathx"])
def test_padding_is_marked_only_where_rows_have_padding(task):
    black = experiment.load(task, "fnet", "lra-code").config
    white = black.replace("black_is_padding = True", "black_is_padding = False")
    own = "TASK/pets.Pets.black_is_padding = False\n"
    runs = [
        a_result(task=task, uses_mask=False, config=white),
        a_result(task=task, uses_mask=False, model="linear", config=black),
        a_result(task="my_pets", uses_mask=False, model="hartley", config=own),
        a_result(task="text", uses_mask=False, model="dct"),
        a_result(task="text", model="transformer"),
    ]
    (table,) = tables_of(*(run | {"preset": "lra-code"} for run in runs))
    marked = {row.model: row.marked.endswith(" ‡") for row in table.rows if row.ours}
    assert marked == {
        **dict.fromkeys(("fnet", "hartley", "transformer"), False),
        **dict.fromkeys(("linear", "dct"), True),
    }


def test_a_mean_of_tasks_has_the_mark_of_any_of_them():
    row = {task: Cell("value", 50.0) for task in cells.TASKS}
    row["text"] = dataclasses.replace(row["text"], validation_is_test=True)
    assert [cell.marks for cell in cells.averages(row).values()] == ["†", "†"]


def test_a_cell_is_held_against_the_highest_floor_and_baseline_of_its_runs():
    """Seeds at 21 %, on data whose floors are 18 and 20 %, or baselines 15 and 20 %."""
    low, high = ({"correct": n, "count": 2000} for n in (300, 400))
    cell = cell_of(with_test(420, floor=low), with_test(420, seed=1, floor=high))
    assert (cell.marks, cell.majority, cell.baseline) == ("¶", 20.0, None)
    rules = [{"method": "bigrams", "settings": {}, "validation": s, "test": s} for s in (low, high)]
    runs = (with_test(420, seed=n, floor=low, shallow=rule) for n, rule in enumerate(rules))
    cell = cell_of(*runs)
    assert (cell.marks, cell.majority, cell.baseline) == ("§", 15.0, 20.0)


def test_means_over_tasks_are_shown_where_a_model_has_all_tasks():
    five = [task for task in cells.TASKS if task != "pathx"]
    for tasks, shown in (
        (five[:4], []),
        (five, ["average5"]),
        (cells.TASKS, ["average5", "average6"]),
    ):
        (table,) = tables_of(*(with_test(600, task=task, preset="small") for task in tasks))
        columns = tables.measured(table, table.parts[0])[0].columns
        assert [column for column in columns if column not in cells.TASKS] == shown


def test_a_mean_of_tasks_has_the_mean_of_their_baselines_if_all_have_one():
    row = {task: Cell("value", 50.0, baseline=20.0) for task in cells.TASKS}
    row["text"] = dataclasses.replace(row["text"], baseline=30.0)
    assert cells.averages(row)["average5"].baseline == 22.0
    row["text"] = dataclasses.replace(row["text"], baseline=None)
    assert cells.averages(row)["average5"].baseline is None


def test_an_override_that_was_typed_in_two_ways_is_shown_once():
    given = [f"Encoder.pooling={quote}cls{quote}" for quote in ("'", '"', "")] + ["no binding"]
    runs = (a_result(seed=n, overrides=[text], variant="c") for n, text in enumerate(given))
    (table,) = tables_of(a_result(), *runs)
    assert "FNet, c: `Encoder.pooling='cls'` or `no binding`" in table.notes
