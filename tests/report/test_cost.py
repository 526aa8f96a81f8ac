"""What results cost: settings tried, minutes, times to a goal, readings of test."""

import json

import pytest
from made_results import a_result, a_trial, part_of_a_run, put, put_curve, put_sweep

from lra_fnet.report import cost
from lra_fnet.report.contents import build
from lra_fnet.report.sources import Sources

COUNTS = {"correct": 300, "count": 2000}  # 15 %
RULE = {"method": "a rule", "settings": {}, "validation": COUNTS}
RULE["test"] = {"correct": 1900, "count": 2000}


def line_of(root, label, preset="cpu"):
    """The line of a model in the table of a preset, by column."""
    report = build(Sources([root]))
    grid = next(p.cost for p in report.presets if p.table.preset == preset)
    assert grid in report.sections["Cost"]
    (line,) = [row for row in grid.rows if row[0] == label]
    return dict(zip(grid.head, line, strict=True))


def test_a_time_is_a_share_of_the_run():
    points = [(50, 5.0), (100, 10.0), (150, 9.0), (200, 20.0)]
    assert cost.seconds_to(10.0, points, 400, 60.0) == 15.0
    assert cost.seconds_to(10.1, points, 400, 60.0) == 30.0
    assert cost.seconds_to(20.1, points, 400, 60.0) is None


def test_line_of_a_cell_is_over_its_seeds(tmp_path):
    for seed, seconds in enumerate((100.0, 200.0, 600.0)):
        put_curve(put(tmp_path, a_result(seed=seed, wall_seconds=seconds, shallow=RULE)), 200)
    log = [{"run": "cpu/listops/fnet/seed0", "kind": "best"}] * 2
    (tmp_path / "test_log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    line = line_of(tmp_path, "FNet")
    assert line == {
        "Model": "FNet",
        "Task": "ListOps",
        "Device": "1 x Some CPU (cpu, 2 cores)",
        "Seeds": "3",
        "Minutes a run": "3.3",
        "To the baseline": "0.5",  # 15 % is reached at step 150 of 1,000
        "Test readings": "4",
    }


def test_each_device_of_a_cell_has_its_own_line(tmp_path):
    gpu = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}
    put(tmp_path, a_result(wall_seconds=600.0))
    for seed, seconds in ((1, 60.0), (2, 120.0)):
        put(tmp_path, a_result(seed=seed, wall_seconds=seconds, device=gpu))
    begun = [part_of_a_run(device=gpu), part_of_a_run()]
    put(tmp_path, a_result(seed=3, wall_seconds=240.0, earlier=begun))
    (grid,) = build(Sources([tmp_path])).sections["Cost"]
    assert [row[2:] for row in grid.rows] == [
        ["1 x Some CPU (cpu, 2 cores)", "1", "10.0"],
        ["1 x GPU (gpu, 8 cores)", "2", "1.5"],
        ["1 x GPU (gpu, 8 cores), then 1 x Some CPU (cpu, 2 cores)", "1", "4.0"],
    ]


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        ((100, 200, 200), "0.3 (2 of 3)"),
        ((100, 200), "not reached (1 of 2)"),  # the median of a time and infinity
        ((100, 100), "not reached"),
    ],
)
def test_runs_that_never_reach_a_goal_are_counted(tmp_path, steps, shown):
    for seed, count in enumerate(steps):
        put_curve(put(tmp_path, a_result(seed=seed, shallow=RULE)), count)
    assert line_of(tmp_path, "FNet")["To the baseline"] == shown


def test_papers_number_is_that_of_the_paper_that_has_the_model(tmp_path):
    for model in ("fnet", "local", "dct"):
        file = put(tmp_path, a_result(model=model, preset="paper", wall_seconds=600.0))
        put_curve(file, 1000)
    column = "To the paper"
    assert line_of(tmp_path, "FNet", "paper")[column] == "4.0"  # 35.33 at step 400
    assert line_of(tmp_path, "Local Attention", "paper")[column] == "2.0"  # LRA: 15.82 at 200
    assert line_of(tmp_path, "Cosine transform", "paper")[column] == "-"


def test_settings_are_those_of_the_sweep_that_selected_the_row(tmp_path):
    trials = [a_trial(n, layers=n // 2 + 1, seed=n % 2, validation=0.3) for n in range(6)]
    trials += [a_trial(6, "linear", layers=9, validation=0.3)]
    chosen = {
        name: trials[2][name] for name in ("task", "model", "preset", "overrides", "validation")
    }
    put_sweep(tmp_path, "layers", trials, [chosen | {"seeds": [0, 1]}])
    put(tmp_path, a_result(overrides=chosen["overrides"][::-1], variant="two"))
    put(tmp_path, a_result(overrides=["Run.num_steps=7"], variant="other"))
    put(tmp_path, a_result(model="linear"))
    assert line_of(tmp_path, "FNet, two")["Settings tried"] == "3"
    assert line_of(tmp_path, "FNet, other")["Settings tried"] == "-"
    assert line_of(tmp_path, "Linear")["Settings tried"] == "-"


def test_minutes_count_the_pre_training(tmp_path):
    init = {"run": "cpu/listops/fnet@denoise/seed0", "objective": "", "rate": 0.5, "step": 10}
    init |= {"steps": 10, "wall_seconds": 60.0, "sha256": "0" * 64}
    changes = {"init": init, "variant": "pretrained", "shallow": RULE}
    put_curve(put(tmp_path, a_result(wall_seconds=120.0, **changes)), 200)
    line = line_of(tmp_path, "FNet, pre-trained")
    assert line["Minutes a run"] == "3.0"
    assert line["To the baseline"] == "1.3"  # 1 minute, and step 150 of 1,000 in 2 minutes


def test_the_goal_is_that_of_the_fnet_paper_if_it_has_one():
    assert cost._printed("transformer", "listops") == 36.06  # LRA's paper: 36.37
    assert cost._printed("linformer", "listops") == 35.70
