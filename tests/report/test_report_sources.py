"""What the report reads, and its tables other than accuracy."""

import csv
import dataclasses
import io
import json
import math
import re

import pytest
from made_results import (
    a_failure,
    a_measured_cell,
    a_result,
    a_span,
    a_trial,
    measured,
    put,
    put_curve,
    put_sweep,
    records,
    with_test,
)

from lra_fnet import report
from lra_fnet.machine import typed_json
from lra_fnet.report import accuracy, grids, page, sources, sweeps, text, tradeoff
from lra_fnet.report.render.grid import Grid
from lra_fnet.run.folder import Span
from lra_fnet.sweep.files import Entry

LOG = "test_log.jsonl"


def logged(root, *lines):
    text = "".join(json.dumps({"run": run, "kind": kind}) + "\n" for run, kind in lines)
    (root / LOG).write_text(text)


# Reading


def test_evaluation_on_test_counts_once_although_it_logs_two_checkpoints(tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    put(runs, a_result())
    put(runs, a_result(seed=1))
    put(runs, a_result(seed=2, test=None))
    put(results, a_result(seed=3))  # no log
    put(results, a_result(seed=4, test=None))
    name = "cpu/listops/fnet/seed"
    both = ("last", "best")
    logged(runs, *[(f"{name}0", k) for k in both * 3], *[(f"{name}1", k) for k in both])
    read = report.Sources([runs, results])
    assert read.readings == {
        f"runs/{name}0": 3,
        f"runs/{name}1": 1,
        f"runs/{name}2": 0,
    }
    rows = list(csv.DictReader(io.StringIO(text.runs_csv(report.build(read)))))
    counts = {row["folder"]: row["test_readings"] for row in rows}
    unknown = {f"results/{name}{seed}": "" for seed in (3, 4)}
    assert counts == {run: str(n) for run, n in read.readings.items()} | unknown


def test_lines_of_the_log_without_a_run_are_not_counted(tmp_path):
    put(tmp_path, a_result())
    (tmp_path / LOG).write_text('{"what": "something else"}\n')
    assert list(report.Sources([tmp_path]).readings.values()) == [1]


def test_line_of_the_log_that_is_being_written_is_no_problem(tmp_path):
    put(tmp_path, a_result())
    name = "cpu/listops/fnet/seed0"
    logged(tmp_path, *[(name, "best")] * 2)
    with (tmp_path / LOG).open("a") as lines:
        lines.write('{"run": "cpu/li')
    read = report.Sources([tmp_path])
    assert (read.problems, [*read.readings.values()]) == ([], [2])


def test_curve_has_loss_and_accuracy_without_an_incomplete_line(tmp_path):
    file = put_curve(put(tmp_path, a_result()), steps=100, drop=2.0)
    with file.open("a") as lines:
        lines.write('{"kind": "train", "st')
    (curve,) = report.Sources([tmp_path]).curves.values()
    assert [step for step, _ in curve.loss] == list(range(10, 101, 10))
    assert curve.loss[0] == (10, pytest.approx(2.2))
    assert curve.validation == [(50, pytest.approx(5.0)), (100, pytest.approx(10.0))]


def put_benchmark(root, name, content):
    folder = root / "benchmark" / name
    folder.mkdir(parents=True)
    (folder / "benchmark.json").write_text(content)
    return folder / "benchmark.json"


def lacking(name, **changes):
    """Returns a measured cell without a field."""
    cell = a_measured_cell("fnet", 512, [1.0], **changes)
    del cell[name]
    return cell


DAMAGED = {
    "metrics.jsonl": (
        *("{\n", b"\xff\n", "1\n", '{"kind": "train", "step": 1}\n'),
        '{"kind": "train", "step": null, "loss": 1}\n',
        f'{{"kind": "train", "step": {10**28}, "loss": 1}}\n',
        '{"kind": "train", "step": 1, "loss": NaN}\n',
    ),
    "attention_span.json": ("[]", '{"mean": 1}', '{"mean": 1, "uniform": 1, "layers": [1]}'),
    "run.json": (
        *("", "[]", '{"model": "fnet", "task": 1}'),
        '{"model": "fnet", "task": "text", "sha256": "of other content"}',
    ),
    "result.json": ("", "[]", "{}", b"\xff", "[" * 100_000),
    "trials.json": ("{}", '[{"number": 1}]', json.dumps([a_trial(0) | {"step": "x"}])),
    "selected.json": ("{", "[1]"),
    "sweep.json": ("[]", "{}", '{"preset": "cpu", "sampler": "grid", "axes": []}'),
    "benchmark.json": (
        *("[1]", "{}", '[{"what": "train", "side": "ours"}]'),
        json.dumps([a_measured_cell("fnet", 512, [0.0])]),
        *(json.dumps([lacking(name)]) for name in ("cls", "model", "size", "seconds")),
        json.dumps([a_measured_cell("fnet", 512, [1.0]) | {"length": "512"}]),
        json.dumps([a_measured_cell("fnet", 512, [math.inf])]),
        json.dumps([a_measured_cell("fnet", 512, [1.0], peak_bytes=math.nan)]),
        json.dumps([a_measured_cell("fnet", 512, [1.0], batch_size=0)]),
        json.dumps([lacking("forward_seconds", what="mixing")]),
    ),
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, text) for name, texts in DAMAGED.items() for text in texts]
)
def test_damaged_file_is_left_out_with_one_line_that_names_it(tmp_path, name, content):
    kept, run = put(tmp_path, a_result(seed=1)), put(tmp_path, a_result())
    sweep = put_sweep(tmp_path, "s", [a_trial(0)], [])
    put_benchmark(tmp_path, "b", json.dumps([a_measured_cell("fnet", 512, [1.0])]))
    places = {"benchmark.json": tmp_path / "benchmark" / "b"}
    places |= dict.fromkeys(("trials.json", "selected.json", "sweep.json"), sweep)
    file = places.get(name, run.parent) / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    read = report.Sources([tmp_path])
    (line,) = read.problems
    assert line.startswith(str(file))
    assert "\n" not in line
    assert kept.parent in {run.path for run in read.runs}
    assert len(read.runs) == 2 - (name == "result.json")
    assert len(read.sweeps) == 1 - (places.get(name) == sweep)
    assert len(read.benchmarks) == 1 - (name == "benchmark.json")


def test_report_lists_every_damaged_file_and_shows_the_rest(tmp_path, capfd):
    put(tmp_path, a_result())
    bad = [put(tmp_path, a_result(seed=seed)) for seed in (1, 2)]
    for file in bad:
        file.write_text("{")
    (tmp_path / LOG).write_text('{"run": "x"}\n{"run": \n')
    report.main([tmp_path], tmp_path / "reports")
    lines = capfd.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines[:2]] == list(map(str, bad))
    assert all(line.startswith("left out: ") for line in lines)
    assert len(lines) == 3
    for name in ("index.html", "report.md"):
        text = (tmp_path / "reports" / name).read_text()
        assert all(text.count(str(file)) == 1 for file in (*bad, f"{LOG}, line 2"))
        assert "30.00" in text  # the run that is not damaged


def test_benchmarks_below_runs_and_results_are_named_by_their_folder(tmp_path):
    texts = [json.dumps([a_measured_cell("fnet", 512, [time])]) for time in (1.0, 1.1)]
    put_benchmark(tmp_path / "results", "h200/text", texts[0])
    put_benchmark(tmp_path / "results", "mine", texts[1])  # a copy
    put_benchmark(tmp_path / "runs", "mine", texts[1])
    read = report.Sources([tmp_path / "runs", tmp_path / "results"])
    assert [b.name for b in read.benchmarks] == [
        "runs/benchmark/mine",
        "results/benchmark/h200/text",
    ]


def test_cells_without_numbers_need_no_fields_of_a_measurement(tmp_path):
    out = lacking("seconds", state="OOM")
    for name in ("peak_bytes", "roofline", "parameters", "device"):
        del out[name]
    peer = lacking("roofline", side="eager")
    for name in ("device", "flops", "commit", "dirty"):
        del peer[name]
    put_benchmark(tmp_path, "b", json.dumps([a_measured_cell("fnet", 256, [1.0]), out, peer]))
    read = report.Sources([tmp_path])
    assert read.problems == []
    assert len(read.benchmarks) == 1


# Tables


def tables_of(*results):
    return accuracy.tables(records(*results))


def test_gap_is_train_minus_test_at_the_last_step():
    (table,) = tables_of(
        with_test(600, last=500, train={"correct": 900, "count": 1000}),
        with_test(600, last=540, seed=1, train={"correct": 800, "count": 1000}),
        a_failure("OOM", model="linear"),
    )
    grid = grids.generalisation(table)
    assert list(grid.head) == ["Model", "ListOps train", "ListOps test", "ListOps gap"]
    # Means: train (90 + 80) / 2, test (25 + 27) / 2.
    assert [list(row) for row in grid.rows] == [["FNet", "85.00", "26.00", "+59.00"]]


def missing(*results, begun=None):
    (table,) = tables_of(*results)
    grid = grids.missing(table, begun or {})
    return {row[0]: list(row[1:]) for row in grid.rows}


def test_run_without_a_result_is_in_a_table_of_its_own(tmp_path):
    put(tmp_path, a_result()).with_name("run.json").write_text(
        json.dumps({"task": "listops", "model": "fnet"})
    )
    folder = tmp_path / "cpu/listops/fnet+x-01234567/seed1"
    folder.mkdir(parents=True)
    facts = {
        "task": "listops",
        "model": "fnet",
        "preset": "cpu",
        "seed": 1,
        "variant": "x-01234567",
    }
    (folder / "run.json").write_text(json.dumps(facts | {"overrides": ["Encoder.num_layers=1"]}))
    put_curve(folder / "result.json", steps=40)
    for name in ("fnet/.seed0.moved-1", "linear+num_layers-1/seed0"):  # moved aside; pruned
        (tmp_path / "cpu/listops" / name).mkdir(parents=True)
        (tmp_path / "cpu/listops" / name / "run.json").write_text(json.dumps(facts))
    put_sweep(tmp_path, "s", [a_trial(0, "linear", state="pruned")])
    built = report.build(sources.Sources([tmp_path, tmp_path]))
    assert built.unfinished.rows == [["ListOps", "cpu", "FNet, 1 layer", "1", "40"]]
    assert [row.label for row in built.tables[0].ours] == ["FNet"]
    assert built.unfinished.title in page.render(built)


# Sweeps


TRIALS = [
    a_trial(0, layers=1, seed=0, validation=0.30),
    a_trial(1, layers=1, seed=1, validation=0.34),
    a_trial(2, layers=2, seed=0, validation=0.33),
    a_trial(3, layers=2, seed=1, validation=0.32),
    a_trial(4, layers=3, seed=0, validation=0.90),
    a_trial(5, layers=3, seed=1, state="diverged", error="step 41: loss nan | x"),
    a_trial(6, "linear", layers=2, state="running", validation=0.2),
]
SELECTED = {
    "task": "listops",
    "model": "fnet",
    "preset": "cpu",
    "overrides": ["Encoder.num_layers=2", "Run.num_steps=100"],
    "seeds": [0, 1],
    "validation": 0.325,
}


@pytest.fixture
def sweep(tmp_path):
    put_sweep(tmp_path, "s", TRIALS, [SELECTED])
    (sweep,) = report.Sources([tmp_path]).sweeps
    return sweep


def test_trials_show_axis_state_error_and_step_and_what_was_selected(sweep):
    grid = sweeps.trials(sweep)
    head = ["Trial", "Task", "Model", "State", "Encoder.num_layers", "Seed", "Step", "Validation"]
    assert list(grid.head) == [*head, "Selected"]
    step = ["100", "33.00", "selected"]
    assert list(grid.rows[2]) == ["2", "ListOps", "fnet", "complete", "2", "0", *step]
    state = "diverged: step 41: loss nan | x"
    assert list(grid.rows[5][3:]) == [state, "3", "1", "40 of 100", "-", ""]
    assert [row[0] for row in grid.rows if row[-1]] == ["2", "3"]  # not 6, another model
    assert grid.notes[0] == "Bound in every trial: `Run.num_steps=100`."
    assert "nan \\| x" in grid.markdown()


def test_values_of_an_axis_are_python_literals_or_text():
    overrides = ["A.b=[1, 2]", "C.d=@Fourier", "E.f = 1e-3", "I.j=None"]
    trial = typed_json.build(Entry, a_trial(0, overrides=overrides))
    values = [sweeps.value_of(trial, axis) for axis in ("A.b", "C.d", "E.f", "G.h", "I.j")]
    assert values == [[1, 2], "@Fourier", 1e-3, None, "None"]


def test_sweep_in_two_roots_counts_once_and_the_first_root_wins(tmp_path):
    put_sweep(tmp_path / "runs", "s", TRIALS)
    put_sweep(tmp_path / "results", "s", TRIALS[:1])
    put_sweep(tmp_path / "results", "t", TRIALS[:1])
    read = report.Sources([tmp_path / "runs", tmp_path / "results"]).sweeps
    assert [(s.name, len(s.trials)) for s in read] == [("s", len(TRIALS)), ("t", 1)]


def test_selected_settings_and_trials_are_written(sweep, tmp_path):
    setting = "Encoder.num_layers=2 Run.num_steps=100"
    rows = [["ListOps", "fnet", setting, "0, 1", "32.50"]]
    assert [list(row) for row in sweeps.selected(sweep).rows] == rows
    files = report.main([tmp_path], tmp_path / "reports")  # a sweep alone makes a report
    (file,) = [file for file in files if file.name == "trials.csv"]
    lines = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [line["validation"] for line in lines][:2] == ["0.3", "0.34"]
    assert (lines[5]["state"], lines[5]["validation"]) == ("diverged", "")
    assert lines[2]["overrides"] == setting


def test_attention_spans_are_shown_with_equal_weights():
    runs = records(a_result(model="transformer"), a_result())
    grid = grids.spans(runs, {runs[0].folder: typed_json.build(Span, a_span(12.0, 40.5))})
    row = ["ListOps", "cpu", "Transformer", "0", "26.2", "80.0", "12.0, 40.5", "1,000"]
    assert [list(row) for row in grid.rows] == [row]


# Score against speed


def test_speeds_are_those_of_the_benchmark_that_has_most_models_of_a_task():
    config = "Encoder.dim = 64\nEncoder.num_layers = 2\nRun.batch_size = 4\n"
    config += "Encoder.dtype = 'float32'\n"
    (table,) = tables_of(
        *(with_test(600, model=m, config=config) for m in ("fnet", "linear", "performer")),
        with_test(600, task="image", config=config),
    )
    both = [measured(m, 256, s) for m, s in (("fnet", [0.1, 0.3, 0.2]), ("linear", [0.5]))]
    listed = [
        sources.Benchmark("one", [measured("fnet", 256, [9.0])]),
        sources.Benchmark("both", both),
        sources.Benchmark("other", [dataclasses.replace(cell, batch_size=8) for cell in both]),
    ]
    points = tradeoff.points(table, listed)
    shown = [(p.column, p.row.model, p.speed, p.benchmark) for p in points]
    assert shown == [
        ("listops", "linear", 2.0, "both"),
        ("listops", "fnet", 5.0, "both"),  # performer is not in it
        ("image", "fnet", 8.5, ""),
    ]
    notes = tradeoff.grid(table, points).notes
    assert notes[0] == "Accuracy: over all seeds."
    assert notes[1].startswith("ListOps: speed and memory as measured in `both`")
    assert notes[2].startswith("ListOps: left out: Performer (not in the benchmark, or ")
    assert notes[3].startswith("Other tasks: speed of the fastest run")


def test_speed_is_that_of_any_run_on_the_machine_of_the_benchmark():
    config = "Encoder.dim = 64\nEncoder.num_layers = 2\nRun.batch_size = 4\n"
    config += "Encoder.dtype = 'float32'\n"
    other = {"name": "Other", "platform": "cpu", "count": 1, "cores": 2}
    runs = [
        with_test(600, model=m, seed=s, config=config) for m in ("fnet", "linear") for s in (0, 1)
    ]
    runs[0]["device"] = other
    (table,) = tables_of(*runs)
    cells = [measured(m, 256, [s]) for m, s in (("fnet", 0.2), ("linear", 0.5))]
    points = tradeoff.points(table, [sources.Benchmark("both", cells)])
    assert [(p.row.model, p.speed) for p in points] == [("linear", 2.0), ("fnet", 5.0)]


def test_signs_of_accuracies_next_to_speeds_are_explained():
    (table,) = tables_of(with_test(361, validation_is_test=True))
    grid = tradeoff.grid(table, tradeoff.points(table))
    assert grid.rows[0][3] == "18.05†¶ (1)"
    assert [note[0] for note in grid.notes[-2:]] == ["†", "¶"]


def test_the_highest_of_several_speeds_says_of_how_many_runs():
    (table,) = tables_of(with_test(600), with_test(600, seed=1, steps_per_second=4.0))
    (row,) = tradeoff.grid(table, tradeoff.points(table)).rows
    assert row[4] == "8.5 (of 2 runs)"


def test_points_are_compared_on_one_device_only():
    other = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}
    paper, cpu = tables_of(
        with_test(600, peak_bytes=10),
        with_test(640, model="linear", peak_bytes=30, steps_per_second=4.0),
        with_test(700, model="performer", device=other),
        with_test(700, model="linear", preset="paper"),
        with_test(360, model="local"),  # did not train: no value
    )
    assert [p.row.label for p in tradeoff.points(paper)] == ["Linear"]
    points = tradeoff.points(cpu)
    shown = tradeoff.comparable(points, "listops", ["fnet", "performer", "linear"])
    numbers = [(p.row.label, p.cell.mean, p.speed, p.memory) for p in shown]
    assert numbers == [("Linear", 32.0, 4.0, 30), ("FNet", 30.0, 8.5, 10)]
    shown = tradeoff.comparable(points, "listops", ["performer"])
    assert [p.row.label for p in shown] == ["Performer"]
    rows = [tuple(row) for row in tradeoff.grid(cpu, points).rows]
    assert rows[0][1:3] == ("Performer", "1 x GPU (gpu, 8 cores)")
    assert rows[1:] == [
        ("ListOps", "FNet", "1 x Some CPU (cpu, 2 cores)", "30.00 (1)", "8.5", "0"),
        ("ListOps", "Linear", "1 x Some CPU (cpu, 2 cores)", "32.00 (1)", "4", "0"),
    ]


def test_accuracy_of_a_point_is_that_of_all_seeds_and_speed_that_of_the_device():
    other = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}
    (table,) = tables_of(
        with_test(600), with_test(640, seed=1, device=other, steps_per_second=90.0)
    )
    points = tradeoff.points(table)
    assert [(p.cell.mean, p.speed) for p in points] == [(31.0, 8.5), (31.0, 90.0)]


def test_points_over_tasks_have_the_mean_of_five_and_the_speed_on_text():
    (table,) = tables_of(
        *(
            with_test(count, task=task, model=model, steps_per_second=rate)
            for model, count in (("fnet", 800), ("linear", 900))
            for rate, task in enumerate([t for t in accuracy.TASKS if t != "pathx"], 1)
        )
    )
    points = tradeoff.points(table)
    words = "Accuracy: over all seeds. Mean of 5: speed and memory are those on Text."
    assert tradeoff.grid(table, points).notes[0] == words
    shown = tradeoff.comparable(points, tradeoff.MEAN, ["fnet"])
    numbers = [(p.row.label, round(p.cell.mean, 6), p.speed) for p in shown]
    assert numbers == [("Linear", 45.0, 2), ("FNet", 40.0, 2)]  # text is the second task


def test_published_speeds_are_shown_for_what_was_measured_here():
    """Hand-copied from arXiv:2105.03824, Tables 4b, 4c and 7."""

    def published(*whats):
        cells = [measured("fnet", 512, [1.0], what=what) for what in whats]
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


def test_names_with_html_or_line_breaks_are_text_in_markdown(tmp_path):
    hostile = "x<script>alert(1)</script>\n\n# y"
    put(tmp_path, a_result(dataset=hostile, overrides=[hostile], variant="v"))
    put(tmp_path, a_result(task="<b>t"))
    put_sweep(tmp_path, hostile.replace("/", ""), TRIALS)
    text_of = text.markdown(report.build(report.Sources([tmp_path])))
    assert "&lt;script>" in text_of
    assert "<" not in re.sub("</?(details|summary)>", "", text_of)
    assert "\n# y" not in text_of


def test_markdown_of_a_grid_is_whole_and_aligned():
    grid = Grid("T", ["a", "b", "c"], [["x|y", "1", "2"]], ["Note."], words=2)
    assert grid.markdown() == (
        "**T**\n\n| a | b | c |\n|---|---|---:|\n| x\\|y | 1 | 2 |\n\n- Note.\n"
    )


def test_every_table_but_accuracy_is_in_tables_csv_and_report_md(tmp_path):
    put_sweep(tmp_path, "s", TRIALS)
    for result in (a_result(), with_test(640, model="linear")):
        put(tmp_path, result)
    built = report.build(report.Sources([tmp_path]))
    headings = [
        "Significance",
        "Training and test rows",
        "Score against speed",
        "Cost",
        "Sweeps",
        "Missing",
    ]
    assert list(built.sections) == headings
    rows = list(csv.DictReader(io.StringIO(text.tables_csv(built))))
    place = ("Training and test rows", "FNet", "ListOps gap")
    (row,) = [r for r in rows if (r["section"], r["row"], r["column"]) == place]
    assert row["value"] == "+6.00"  # 700 of 2,000 train rows, 580 of 2,000 test rows
    markdown = text.markdown(built)
    for heading, listed in built.sections.items():
        assert f"\n## {heading}\n" in markdown
        assert all(grid.markdown().strip() in markdown for grid in listed)


def test_memory_is_the_most_of_the_runs_on_a_device():
    (table,) = tables_of(with_test(600, peak_bytes=30), with_test(600, seed=1, peak_bytes=10))
    assert [point.memory for point in tradeoff.points(table)] == [30]


def test_gap_is_of_means_and_not_of_medians():
    (table,) = tables_of(
        *(
            with_test(600, last=last, seed=seed, train={"correct": train, "count": 1000})
            for seed, (last, train) in enumerate(((500, 900), (540, 800), (700, 400)))
        )
    )
    # Means: train (90 + 80 + 40) / 3, test (25 + 27 + 35) / 3.
    assert grids.generalisation(table).rows[0] == ["FNet", "70.00", "29.00", "+41.00"]
