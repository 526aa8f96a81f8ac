"""Cells worked by hand, states, averages, rows: the rules of the accuracy tables."""

import math

import pytest
from made_results import a_failure, a_result, collected, the_cell, with_test

from lra_fnet import report
from lra_fnet.report import accuracy as tables

# Statistics


@pytest.mark.parametrize(("correct", "count"), [(0, 10), (7, 10), (600, 2000), (361, 2000), (5, 5)])
def test_wilson_ends_solve_the_score_equation(correct, count):
    """Second way: bisection for the p at which |share - p| is z standard errors OF p."""
    z, share = 1.959963984540054, correct / count

    def solve(inside, outside):
        for _ in range(100):
            middle = (inside + outside) / 2
            error = z * math.sqrt(middle * (1 - middle) / count)
            inside, outside = (
                (middle, outside) if abs(share - middle) <= error else (inside, middle)
            )
        return inside

    low, high = tables.wilson(correct, count)
    assert low == pytest.approx(solve(share, 0.0), abs=1e-9)
    assert high == pytest.approx(solve(share, 1.0), abs=1e-9)


def test_a_cell_is_mean_sample_sd_maximum_and_seeds():
    runs = [with_test(n, seed=s) for s, n in enumerate((600, 620, 640))]  # 30, 31, 32 %
    cell = tables.cell(runs)
    assert (cell.state, cell.mean, cell.sd, cell.maximum, cell.seeds) == (
        "value",
        pytest.approx(31.0),
        pytest.approx(1.0),  # divided by n - 1 = 2; divided by 3 it would be 0.816
        pytest.approx(32.0),
        3,
    )
    assert cell.lines == ["31.00 ± 1.00", "max 32.00", "3 seeds"]


def test_one_seed_has_no_spread():
    cell = tables.cell([with_test(614)])
    assert cell.sd is None
    assert cell.lines == ["30.70", "1 seed"]


def test_the_last_step_is_a_cell_of_its_own():
    assert tables.cell([with_test(600, last=580)], "last").mean == pytest.approx(29.0)


# States


def test_no_run_is_a_dash():
    assert tables.cell([]).lines == ["-"]


@pytest.mark.parametrize(("correct", "state"), [(361, "FAIL"), (393, "FAIL"), (394, "value")])
def test_fail_is_the_lower_end_of_the_interval_not_the_accuracy(correct, state):
    """Floor 18 % of 2,000 rows: the score equation's boundary is .18 + z sqrt(.18 .82 / 2000)."""
    boundary = 2000 * (0.18 + 1.959963984540054 * math.sqrt(0.18 * 0.82 / 2000))
    assert (correct > boundary) == (state == "value")
    assert tables.cell([with_test(correct)]).state == state


def test_an_interval_that_touches_the_floor_fails():
    """The lower end at 0 of 5 rows is exactly 0, the floor of a label that test does not hold."""
    run = with_test(0, count=5, floor={"correct": 0, "count": 5})
    assert tables.cell([run]).lines == ["FAIL"]


def test_seeds_do_not_multiply_the_test_rows():
    """Three seeds at 390 of 2,000: 1,170 of 6,000 would pass, 390 of 2,000 do not."""
    runs = [with_test(390, seed=seed) for seed in range(3)]
    assert 100 * tables.wilson(1170, 6000)[0] > 18
    assert tables.cell(runs).state == "FAIL"


def test_a_diverged_run_fails_and_oom_says_so():
    assert tables.cell([a_failure("diverged")]).lines == ["FAIL"]
    assert tables.cell([a_failure("OOM")]).lines == ["OOM"]
    assert tables.cell([a_failure("OOM"), a_failure("diverged", seed=1)]).lines == ["FAIL"]


def test_a_seed_that_failed_is_said_and_kept_out_of_the_mean():
    cell = tables.cell([with_test(600), with_test(640, seed=1), a_failure("diverged", seed=2)])
    assert cell.mean == pytest.approx(31.0)
    assert cell.lines == ["31.00 ± 1.41", "max 32.00", "2 of 3 seeds"]


def test_a_trial_without_test_is_in_no_table(tmp_path):
    results = collected(tmp_path, a_result(test=None))
    assert len(results) == 1
    assert tables.accuracy_tables(results) == []


# Averages


def six(**changes):
    shares = {"listops": 30, "text": 60, "retrieval": 70, "image": 40, "pathfinder": 75}
    cells = {task: tables.Cell("value", float(share)) for task, share in shares.items()}
    return cells | {"pathx": tables.Cell("FAIL")} | changes


def texts(cells):
    return [cell.lines[0] for cell in tables.averages(cells).values()]


def test_averages_of_five_and_of_six_with_a_failed_pathx_as_50():
    assert texts(six()) == ["55.00", "54.17"]  # 275 / 5, 325 / 6
    assert texts(six(pathx=tables.Cell("value", 85.0))) == ["55.00", "60.00"]


@pytest.mark.parametrize("state", ["-", "OOM", "FAIL", "n/a"])
def test_a_missing_task_leaves_no_average(state):
    assert texts(six(text=tables.Cell(state))) == ["-", "-"]


@pytest.mark.parametrize("state", ["-", "OOM", "n/a"])
def test_only_a_failed_pathx_counts_50(state):
    assert texts(six(pathx=tables.Cell(state))) == ["55.00", "-"]


def test_a_cell_with_a_lost_seed_enters_no_average():
    assert texts(six(text=tables.Cell("value", 60.0, seeds=1, unfinished=1))) == ["-", "-"]


def test_the_s4_lineage_average_of_the_papers_rows():
    """53.66 and 54.42 are what later papers print for LRA's Transformer and for FNet."""
    transformer = tables.published_cells("transformer", "lra")
    fnet = tables.published_cells("fnet", "fnet")
    assert transformer is not None
    assert fnet is not None
    assert transformer["average6"].lines == ["53.66"]
    assert fnet["average6"].lines == ["54.42"]


# Rows and tables


def test_columns_and_rows_stand_in_the_papers_order(tmp_path):
    models = ("performer", "my_mixer", "fnet", "transformer")
    (table,) = tables.accuracy_tables(collected(tmp_path, *(a_result(model=m) for m in models)))
    assert list(table.columns.values()) == [
        *("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "Path-X"),
        *("Mean of 5", "Mean of 6"),
    ]
    assert [(row.label, row.source) for row in table.rows] == [
        *(("Transformer", source) for source in ("ours", "FNet paper", "LRA paper")),
        *(("FNet", source) for source in ("ours", "FNet paper")),  # the LRA paper has none
        *(("Performer", source) for source in ("ours", "LRA paper")),
        ("my_mixer", "ours"),
        ("Majority floor", ""),
    ]
    assert [row.label for row in table.last_rows] == [
        *("Transformer", "FNet", "Performer", "my_mixer")
    ]


def test_ours_stands_beside_published_and_the_floor(tmp_path):
    (table,) = tables.accuracy_tables(collected(tmp_path, a_result()))
    assert the_cell(table, "FNet", "ours", "listops") == "30.00, 1 seed"
    assert the_cell(table, "FNet", "ours", "image") == "-"
    assert the_cell(table, "FNet", "ours", "average5") == "-"
    assert the_cell(table, "FNet", "FNet paper", "listops") == "35.33"
    assert the_cell(table, "FNet", "FNet paper", "pathx") == "FAIL"
    assert the_cell(table, "Majority floor", "", "listops") == "18.00"
    assert the_cell(table, "Majority floor", "", "text") == "-"


def test_overrides_are_rows_of_their_own_and_written_out(tmp_path):
    settings = ["Encoder.num_layers=1", "Run.num_steps=100"]
    changed = {"overrides": settings, "variant": "layers1-0a1b2c3d"}
    results = collected(tmp_path, with_test(600), with_test(800, **changed))
    (table,) = tables.accuracy_tables(results)
    assert the_cell(table, "FNet", "ours", "listops") == "30.00, 1 seed"
    assert the_cell(table, "fnet+layers1-0a1b2c3d", "ours", "listops") == "40.00, 1 seed"
    note = "`fnet+layers1-0a1b2c3d`: `Encoder.num_layers=1 Run.num_steps=100`"
    assert note in table.notes
    assert f"- {note}\n" in report.render_markdown([table])


def test_runs_with_overrides_never_fill_a_presets_cell(tmp_path):
    changed = a_result(overrides=["Run.num_steps=100"], variant="short")
    (table,) = tables.accuracy_tables(collected(tmp_path, changed))
    assert the_cell(table, "FNet", "ours", "listops") == "-"


def test_presets_stand_apart_and_in_order(tmp_path):
    counts = {"cpu": 600, "mine": 640, "paper": 700}
    results = collected(tmp_path, *(with_test(n, preset=p) for p, n in counts.items()))
    found = tables.accuracy_tables(results)
    assert [table.preset for table in found] == ["paper", "cpu", "mine"]
    cells = [the_cell(table, "FNet", "ours", "listops") for table in found]
    assert cells == ["35.00, 1 seed", "30.00, 1 seed", "32.00, 1 seed"]
    text = report.render_markdown(found)
    assert text.count("### Preset ") == 3
    assert "Preset cpu is not the papers' setting" in text
    assert "Preset paper is not" not in text


def test_marks_are_explained(tmp_path):
    one = a_result(validation_is_test=True, uses_mask=False)
    found = tables.accuracy_tables(collected(tmp_path, one, a_result(model="transformer")))
    text = report.render_markdown(found)
    assert "| FNet ‡ | ours | 30.00†, 1 seed |" in text
    assert "| Transformer | ours | 30.00, 1 seed |" in text
    assert "- † The checkpoint was selected on the test rows" in text
    assert "- ‡ This model sees the padding" in text


def test_nothing_is_marked_without_cause(tmp_path):
    text = report.render_markdown(tables.accuracy_tables(collected(tmp_path, a_result())))
    assert "†" not in text
    assert "‡" not in text


def test_floors_of_different_data_are_told(tmp_path):
    other = a_result(model="linear", floor={"correct": 400, "count": 2000}, data_sha256="e" * 64)
    (table,) = tables.accuracy_tables(collected(tmp_path, a_result(), other))
    assert the_cell(table, "Majority floor", "", "listops") == "20.00"
    assert "Runs on listops read data with different floors: 18.00, 20.00." in table.notes


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"data_sha256": "e" * 64}, "their data"), ({"config": "A.b = 2\nA.c = 3\n"}, "A.b")],
)
def test_seeds_that_are_not_alike_are_told(tmp_path, changes, what):
    runs = a_result(config="A.b = 1\n"), a_result(**{"config": "A.b = 1\n", "seed": 1} | changes)
    (table,) = tables.accuracy_tables(collected(tmp_path, *runs))
    assert f"The runs of `fnet` on listops differ in {what}." in table.notes


def test_a_binding_that_a_later_version_brought_makes_no_other_configuration(tmp_path):
    runs = a_result(config="A.b = 1\n"), a_result(seed=1, config="A.b = 1\nA.c = 3\n")
    (table,) = tables.accuracy_tables(collected(tmp_path, *runs))
    assert not [note for note in table.notes if "differ in" in note]


def test_provenance_names_folder_seeds_commit_device_and_data(tmp_path):
    runs = [a_result(seed=0), a_result(seed=1), a_result(seed=2, dirty=True)]
    (table,) = tables.accuracy_tables(collected(tmp_path, *runs))
    machine = f"1 x Some CPU (cpu, 2 cores); data short from generator, {'d' * 12}"
    assert table.provenance == [
        f"`runs/cpu/listops/fnet`, seed 0, 1: commit 0123456789ab; {machine}",
        f"`runs/cpu/listops/fnet`, seed 2: commit 0123456789ab (dirty); {machine}",
    ]


def test_a_users_own_task_is_a_column_and_enters_no_average(tmp_path):
    (table,) = tables.accuracy_tables(collected(tmp_path, a_result(), a_result(task="my_task")))
    assert list(table.columns)[-2:] == ["average6", "my_task"]
    assert the_cell(table, "FNet", "ours", "my_task") == "30.00, 1 seed"
    assert the_cell(table, "FNet", "FNet paper", "my_task") == "n/a"
    assert the_cell(table, "FNet", "FNet paper", "average5") == "55.30"
