"""What the report reads beside result.json, and the tables that it makes of it."""

import csv
import io
import json

import pytest
from made_results import (
    a_failure,
    a_measured_cell,
    a_result,
    a_span,
    a_trial,
    put,
    put_curve,
    put_sweep,
    with_test,
)

from lra_fnet import report
from lra_fnet.errors import UserError
from lra_fnet.report import accuracy as tables
from lra_fnet.report import grids, sources, tradeoff
from lra_fnet.report.grid import Grid

LOG = "test_log.jsonl"


def logged(root, *lines):
    text = "".join(json.dumps({"run": run, "kind": kind}) + "\n" for run, kind in lines)
    (root / LOG).write_text(text)


# Reading


def test_an_evaluation_on_test_is_counted_once_though_it_logs_two_checkpoints(tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    put(runs, a_result())
    put(runs, a_result(seed=1))
    put(runs, a_result(seed=2, test=None))
    put(results, a_result(seed=3))  # no log: its result tells of one
    put(results, a_result(seed=4, test=None))
    name = "cpu/listops/fnet/seed"
    both = ("last", "best")
    logged(runs, *[(f"{name}0", k) for k in both * 3], *[(f"{name}1", k) for k in both])
    found = sources.read([runs, results])
    assert found.readings == {
        f"runs/{name}0": 3,
        f"runs/{name}1": 1,
        f"runs/{name}2": 0,
        f"results/{name}3": 1,
        f"results/{name}4": 0,
    }
    rows = list(csv.DictReader(io.StringIO(report.render_runs_csv(found.results, found.readings))))
    assert [row["test_readings"] for row in rows] == ["3", "1", "0", "1", "0"]


def test_lines_of_the_log_without_a_run_count_for_none(tmp_path):
    put(tmp_path, a_result())
    (tmp_path / LOG).write_text('{"what": "something else"}\n')
    assert list(sources.read([tmp_path]).readings.values()) == [1]


def test_a_curve_has_loss_and_accuracy_and_leaves_half_a_line_out(tmp_path):
    file = put_curve(put(tmp_path, a_result()), steps=100, drop=2.0)
    with file.open("a") as lines:
        lines.write('{"kind": "train", "st')
    (curve,) = sources.read([tmp_path]).curves.values()
    assert [step for step, _ in curve.loss] == list(range(10, 101, 10))
    assert curve.loss[0] == (10, pytest.approx(2.2))
    assert curve.validation == [(50, pytest.approx(5.0)), (100, pytest.approx(10.0))]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("metrics.jsonl", "{\n", "cannot be read"),
        ("metrics.jsonl", '{"kind": "train", "step": 1}\n', "a line lacks 'loss'"),
        ("attention_span.json", "[]", "expected a JSON dict, got a list"),
        ("attention_span.json", '{"mean": 1}', "an entry lacks 'uniform'"),
        ("run.json", "", "cannot be read"),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(tmp_path, name, text, problem):
    file = put(tmp_path, a_result()).with_name(name)
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        sources.read([tmp_path])
    assert str(caught.value).startswith(f"{file}: {problem}")
    assert str(caught.value).endswith("move it away")


def test_a_broken_sweep_or_benchmark_is_one_line_that_names_it(tmp_path):
    folder = put_sweep(tmp_path, "s", [{"number": 1}])
    with pytest.raises(UserError, match=r"trials\.json: an entry lacks 'task'"):
        sources.read([tmp_path])
    (folder / "trials.json").write_text("[]")
    (tmp_path / "benchmark.json").write_text("[1]")
    with pytest.raises(UserError, match=r"benchmark\.json: an entry lacks 'what'"):
        sources.read([tmp_path / "none"], tmp_path)


def test_benchmarks_are_found_under_results_and_reports_and_named_by_their_folder(tmp_path):
    for folder in ("results/benchmark/h200/text", "reports"):
        (tmp_path / folder).mkdir(parents=True)
        text = json.dumps([a_measured_cell("fnet", 512, [1.0])])
        (tmp_path / folder / "benchmark.json").write_text(text)
    found = sources.read([tmp_path / "results"], tmp_path / "reports").benchmarks
    assert [b.name for b in found] == ["results/benchmark/h200/text", "reports"]


# Tables


def accuracy(tmp_path, *results):
    for result in results:
        put(tmp_path / "runs", result)
    found = sources.read([tmp_path / "runs"])
    return found, tables.accuracy_tables(found.results)


def test_the_gap_is_train_minus_test_at_the_last_step(tmp_path):
    found, (table,) = accuracy(
        tmp_path,
        with_test(600, last=500, train={"correct": 900, "count": 1000}),
        with_test(600, last=540, seed=1, train={"correct": 800, "count": 1000}),
        a_failure("OOM", model="linear"),
    )
    grid = grids.generalisation(table, {run["folder"]: run for run in found.results})
    assert grid is not None
    assert list(grid.head) == ["Model", "ListOps train", "ListOps test", "ListOps gap"]
    # Means: train (90 + 80) / 2, test (25 + 27) / 2.
    assert [list(row) for row in grid.rows] == [["FNet", "85.00", "26.00", "+59.00"]]


def test_what_is_missing_is_told_with_a_command_that_a_shell_takes(tmp_path):
    _, (table,) = accuracy(tmp_path, a_result(), a_result(model="linear"), a_result(task="text"))
    grid = grids.missing(table, {})
    assert grid is not None
    rows = {row[0]: (row[1], row[2]) for row in grid.rows}
    assert list(rows) == ["Text", "Retrieval", "Image", "Pathfinder", "Path-X"]
    assert rows["Text"] == ("1 of 2", "make lra TASK=text MODEL=linear PRESET=cpu")
    assert rows["Image"] == (
        "2 of 2",
        "for model in linear fnet; do make lra TASK=image MODEL=$model PRESET=cpu; done",
    )


def test_a_users_module_stands_in_the_command(tmp_path):
    file = put(tmp_path / "runs", a_result(model="mine"))
    begun = {"task": "listops", "model": "mine", "imports": ["my mixer.py"], "gin_dirs": ["g"]}
    file.with_name("run.json").write_text(json.dumps(begun))
    found, (table,) = accuracy(tmp_path)
    grid = grids.missing(table, found.begun)
    assert grid is not None
    command = "make lra TASK=text MODEL=mine PRESET=cpu IMPORT='my mixer.py' GIN_DIR=g"
    assert grid.rows[0][2] == command


def test_a_failed_cell_is_not_missing_and_a_variant_fills_none(tmp_path):
    variant = a_result(overrides=["A.b=1"], variant="v", task="text")
    _, (table,) = accuracy(tmp_path, a_failure("OOM"), variant)
    grid = grids.missing(table, {})
    assert grid is not None
    assert [row[0] for row in grid.rows][:2] == ["Text", "Retrieval"]


# Sweeps


TRIALS = [
    a_trial(0, layers=1, seed=0, validation=0.30),
    a_trial(1, layers=1, seed=1, validation=0.34),
    a_trial(2, layers=2, seed=0, validation=0.33),
    a_trial(3, layers=2, seed=1, validation=0.32),  # the mean of 2 layers: 0.325 > 0.32
    a_trial(4, layers=3, seed=0, validation=0.90),  # not whole: the other seed diverged
    a_trial(5, layers=3, seed=1, state="diverged", error="step 41: loss nan | x"),
    a_trial(6, "linear", layers=1, state="running", validation=0.2),
]


def test_the_best_setting_has_the_highest_mean_over_whole_seeds(tmp_path):
    put_sweep(tmp_path, "s", TRIALS)
    (sweep,) = sources.read([tmp_path]).sweeps
    assert grids.best_trials(sweep) == {2, 3}


def test_a_trials_row_has_its_axis_state_error_and_step(tmp_path):
    put_sweep(tmp_path, "s", TRIALS)
    (sweep,) = sources.read([tmp_path]).sweeps
    grid = grids.trials(sweep)
    head = ["Trial", "Task", "Model", "State", "Encoder.num_layers", "Seed", "Step", "Validation"]
    assert list(grid.head) == [*head, "Chosen"]
    step = ["100", "33.00", "best"]
    assert list(grid.rows[2]) == ["2", "ListOps", "fnet", "complete", "2", "0", *step]
    state = "diverged: step 41: loss nan | x"
    assert list(grid.rows[5][3:]) == [state, "3", "1", "40 of 100", "-", ""]
    assert grid.notes[0] == "Bound in every trial: `Run.num_steps=100`."
    assert "nan \\| x" in grid.markdown()


def test_values_of_an_axis_are_pythons_and_else_text():
    trial = a_trial(0, overrides=["A.b=[1, 2]", "C.d=@Fourier", "E.f = 1e-3"])
    found = [grids.value_of(trial, axis) for axis in ("A.b", "C.d", "E.f", "G.h")]
    assert found == [[1, 2], "@Fourier", 1e-3, None]


def test_a_sweep_in_two_roots_counts_once_and_the_first_root_wins(tmp_path):
    put_sweep(tmp_path / "runs", "s", TRIALS)
    put_sweep(tmp_path / "results", "s", TRIALS[:1])
    put_sweep(tmp_path / "results", "t", TRIALS[:1])
    found = sources.read([tmp_path / "runs", tmp_path / "results"]).sweeps
    assert [(s.name, len(s.trials)) for s in found] == [("s", len(TRIALS)), ("t", 1)]


def test_what_was_selected_and_trials_csv(tmp_path):
    chosen = {"task": "listops", "model": "fnet", "overrides": ["A=1", "B=2"], "seeds": [0, 1]}
    put_sweep(tmp_path, "s", TRIALS, [chosen | {"validation": 0.325}])
    (sweep,) = sources.read([tmp_path]).sweeps
    grid = grids.selected(sweep)
    assert grid is not None
    assert [list(row) for row in grid.rows] == [["ListOps", "fnet", "A=1 B=2", "0, 1", "32.50"]]
    rows = list(csv.DictReader(io.StringIO(report.render_trials_csv([sweep]))))
    assert [row["validation"] for row in rows][:2] == ["0.3", "0.34"]
    assert (rows[5]["state"], rows[5]["validation"]) == ("diverged", "")
    assert rows[0]["overrides"] == "Encoder.num_layers=1 Run.num_steps=100"


def test_a_sweep_alone_makes_a_report(tmp_path):
    put_sweep(tmp_path / "runs", "s", TRIALS)
    files = report.main([tmp_path / "runs"], tmp_path / "reports")
    assert "trials.csv" in [file.name for file in files]


def test_spans_are_told_beside_equal_weights(tmp_path):
    file = put(tmp_path / "runs", a_result(model="transformer"))
    file.with_name("attention_span.json").write_text(json.dumps(a_span(12.0, 40.5)))
    found = sources.read([tmp_path / "runs"])
    grid = grids.spans(found.spans, {run["folder"]: run for run in found.results})
    assert grid is not None
    row = ["ListOps", "cpu", "Transformer", "0", "26.2", "80.0", "12.0, 40.5", "1,000"]
    assert [list(row) for row in grid.rows] == [row]


# Score against speed


def points(*numbers):
    return [
        tradeoff.Point(f"m{i}", score, speed, None, f"m{i}", None)
        for i, (score, speed) in enumerate(numbers)
    ]


def test_the_frontier_holds_what_no_other_beats():
    """Second way: a point is out if another is as good in both and better in one."""
    numbers = [(s * 7 % 11, v * 5 % 13) for s in range(1, 6) for v in range(1, 6)]
    every = points(*numbers)

    def beaten(p):
        return any(
            q.score >= p.score and q.speed >= p.speed and (q.score, q.speed) != (p.score, p.speed)
            for q in every
        )

    wanted = {(p.score, p.speed) for p in every if not beaten(p)}
    found = tradeoff.frontier(every)
    assert {(p.score, p.speed) for p in found} == wanted
    assert [p.speed for p in found] == sorted(p.speed for p in found)


def test_runs_of_another_device_or_preset_stand_in_no_common_figure(tmp_path):
    other = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}
    found, (paper, cpu) = accuracy(
        tmp_path,
        with_test(600, peak_bytes=10),
        with_test(640, model="linear", peak_bytes=30, steps_per_second=4.0),
        with_test(700, model="performer", device=other),
        with_test(700, model="linear", preset="paper"),
        with_test(361, model="local"),  # FAIL: no value
    )
    assert tradeoff.from_runs(paper, found.results) == []
    (trade,) = tradeoff.from_runs(cpu, found.results)
    assert trade.title == "ListOps, preset cpu, 1 x Some CPU (cpu, 2 cores)"
    numbers = [(p.label, p.score, p.speed, p.memory) for p in trade.points]
    assert numbers == [("Linear", 32.0, 4.0, 30), ("FNet", 30.0, 8.5, 10)]


def test_the_figure_over_tasks_has_the_mean_of_five_and_the_speed_on_text(tmp_path):
    five = [
        with_test(count, task=task, model=model, steps_per_second=rate)
        for model, count in (("fnet", 800), ("linear", 900))
        for rate, task in enumerate([t for t in tables.TASKS if t != "pathx"], 1)
    ]
    found, (table,) = accuracy(tmp_path, *five)
    trade = tradeoff.from_runs(table, found.results)[-1]
    numbers = [(p.label, round(p.score, 6), p.speed) for p in trade.points]
    assert numbers == [("Linear", 45.0, 2), ("FNet", 40.0, 2)]  # text is the second task


def test_a_benchmarks_longest_length_gives_speed_and_memory(tmp_path):
    cells = [
        a_measured_cell("fnet", 512, [1.0]),
        a_measured_cell("fnet", 1024, [0.5, 0.25, 0.1]),
        a_measured_cell("linear", 1024, [2.0], peak_bytes=5),
        a_measured_cell("local", 1024, [], state="OOM"),
        a_measured_cell("fnet", 1024, [9.0], what="infer"),
        a_measured_cell("performer", 1024, [9.0], preset="paper"),
    ]
    _, (table,) = accuracy(tmp_path, *(a_result(model=m) for m in ("fnet", "linear", "local")))
    (trade,) = tradeoff.from_benchmark(sources.Benchmark("b", cells), [table])
    numbers = [(p.label, p.speed, p.memory) for p in trade.points]
    assert numbers == [("Linear", 0.5, 5), ("FNet", 4.0, 1024000000)]
    assert "1,024 tokens" in trade.note


def test_the_papers_speeds_stand_beside_what_was_measured_here():
    """Hand-copied from arXiv:2105.03824, Tables 4b, 4c and 7."""

    def published(*whats):
        cells = [a_measured_cell("fnet", 512, [1.0], what=what) for what in whats]
        return grids.published([sources.Benchmark("b", cells)])

    assert published("mixing") == []
    speeds = {grid.title: grid for grid in published("train")}
    gpu = speeds["Published: training speed (steps/s) on 8 V100, arXiv:2105.03824, Table 4b"]
    assert gpu.head == ["model", "512", "1,024", "2,048", "4,096", "8,192"]
    assert ["fnet", "43 (2.0x)", "24 (2.3x)", "14 (3.2x)", "7", "4"] in gpu.rows
    assert ["transformer", "21", "10", "4", "OOM", "OOM"] in gpu.rows
    times = published("infer", "mixing")
    assert all("inference time (ms/batch)" in grid.title for grid in times)
    assert times[-1].head[-1] == "16,384"  # printed as 16386


# Text


def test_markdown_of_a_grid_is_whole_and_aligned():
    grid = Grid("T", ["a", "b", "c"], [["x|y", "1", "2"]], ["Note."], words=2)
    assert grid.markdown() == (
        "**T**\n\n| a | b | c |\n|---|---|---:|\n| x\\|y | 1 | 2 |\n\n- Note.\n"
    )


def test_every_other_table_is_in_tables_csv_and_report_md(tmp_path):
    put_sweep(tmp_path / "runs", "s", TRIALS)
    found, accuracies = accuracy(tmp_path, a_result(), with_test(640, model="linear"))
    sections = grids.sections(found, accuracies)
    assert list(sections) == [
        *("Training and test rows", "Score against speed", "Sweeps", "Missing"),
    ]
    rows = list(csv.DictReader(io.StringIO(report.render_grids_csv(sections))))
    place = ("Training and test rows", "FNet", "ListOps gap")
    (row,) = [r for r in rows if (r["section"], r["row"], r["column"]) == place]
    assert row["value"] == "+6.00"  # 700 of 2,000 train rows, 580 of 2,000 test rows
    report.write(found, tmp_path / "reports")
    text = (tmp_path / "reports" / "report.md").read_text()
    for heading, own in sections.items():
        assert f"\n## {heading}\n" in text
        assert all(grid.markdown().strip() in text for grid in own)
