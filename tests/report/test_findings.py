"""The sentences of the page and the pairs of main models, against made-up results."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import pytest
from made_results import (
    a_failure,
    a_measured_cell,
    a_result,
    a_span,
    a_trial,
    measured,
    put,
    put_sweep,
    records,
    scored,
    with_test,
)
from paths import ROOT

from lra_fnet import report
from lra_fnet.benchmark.files import Result
from lra_fnet.machine import typed_json
from lra_fnet.report import (
    accuracy,
    benchmarks,
    contents,
    findings,
    literature,
    naming,
    page,
    pairs,
    significance,
    sources,
    tradeoff,
)
from lra_fnet.report.cells import Cell
from lra_fnet.report.grid import Grid
from lra_fnet.run import result as record

SHALLOW = {name: {"correct": 600, "count": 2000} for name in ("validation", "test")}  # 30 %
SHALLOW |= {"method": "m", "settings": {}}

GRIDS = "self_pretraining", "generalisation", "cost", "missing"
NO_GRIDS: dict = dict.fromkeys(GRIDS, Grid("", [], []))


def built(root, *results):
    for result in results:
        put(root, result)
    return report.build(report.Sources([root]))


def test_result_counts_what_lies_above_the_baseline_and_compares_fnet(tmp_path):
    (preset,) = built(
        tmp_path,
        with_test(900, shallow=SHALLOW, steps_per_second=9.0),  # 45 %
        with_test(600, shallow=SHALLOW, model="transformer", steps_per_second=2.0),  # 30 %
        with_test(620, shallow=SHALLOW, model="linear"),  # 31 %: its interval holds 30 %
        with_test(900, model="linear", task="text"),  # no baseline
        a_failure("OOM", model="performer", shallow=SHALLOW),
    ).presets
    assert findings.result(preset) == [
        "In 1 of 3 results under preset cpu, the whole 95 % interval lies above the shallow "
        "baseline: FNet on ListOps.",
        "FNet's accuracy minus the Transformer's on ListOps is +15.00 points.",
    ]
    assert findings.scores(preset.table) == [
        "4 results of 3 models on 2 tasks, variants not counted.",
        "Highest: ListOps, FNet (45.00 %); Text, Linear (45.00 %).",
    ]


def test_all_rows_that_share_the_highest_number_are_named(tmp_path):
    own = {"task": "mine", "overrides": ["A.b=1"], "variant": "b"}
    runs = (
        with_test(600),
        with_test(600, **own),
        with_test(600, model="linear"),
    )
    (preset,) = built(tmp_path, *(run | {"task": "mine"} for run in runs)).presets
    assert findings.scores(preset.table) == [
        "3 results of 2 models on 1 task, variants not counted.",
        "Highest: mine, Linear, FNet and FNet, b (30.00 %).",
    ]


def test_highest_result_counts_only_above_the_majority_floor(tmp_path):
    runs = (
        with_test(600, task="text"),
        with_test(600, task="image"),
        with_test(350),  # 17.5 %: its interval reaches the floor
        with_test(340, model="linear"),
    )
    (preset,) = built(tmp_path, *runs).presets
    assert preset.table.best.keys() == {"text", "image"}
    assert (
        findings.scores(preset.table)[-1] == "Highest: Text, FNet (30.00 %); Image, FNet (30.00 %)."
    )
    (preset,) = built(tmp_path / "low", *runs[2:]).presets
    assert findings.scores(preset.table) == [
        "2 results of 2 models on 1 task, variants not counted."
    ]


def test_accuracies_are_subtracted_only_on_the_same_data_and_as_in_the_table_of_pairs(tmp_path):
    right = {"fnet": [601, 604, 610], "transformer": [700, 703, 705]}
    runs = [with_test(n, model=m, seed=s) for m, ns in right.items() for s, n in enumerate(ns)]
    other = [with_test(600, model=m, task="text", data_sha256=m[0] * 64) for m in right]
    made = built(tmp_path, *runs, *other)
    (preset,) = made.presets
    (row,) = made.sections["Significance"][0].rows
    assert findings.result(preset) == [
        f"FNet's accuracy minus the Transformer's on ListOps is {row[4]} points."
    ]


def test_speeds_are_compared_only_where_the_models_took_turns(tmp_path):
    config = "Encoder.dim = 64\nEncoder.num_layers = 2\nRun.batch_size = 4\n"
    config += "Encoder.dtype = 'float32'\n"
    times = {"fnet": [0.2, 0.1, 0.3], "transformer": [0.9, 0.3, 0.3]}  # 4.5, 3 and 1 times
    cells = [a_measured_cell(m, 256, seconds) for m, seconds in times.items()]
    folder = tmp_path / "benchmark" / "one"
    folder.mkdir(parents=True)
    (folder / "benchmark.json").write_text(json.dumps(cells))
    results = (with_test(900, model=m, config=config) for m in ("fnet", "transformer"))
    (preset,) = built(tmp_path, *results).presets
    assert findings.result(preset)[-1] == (
        "In interleaved rounds on one machine, FNet takes 3.0 times as many training steps per "
        "second as the Transformer on ListOps."
    )
    for cell, note in ((0, "took turns (except FNet)"), (1, "took no turns")):
        cells[cell]["alone"] = True
        (folder / "benchmark.json").write_text(json.dumps(cells))
        (preset,) = report.build(report.Sources([tmp_path])).presets
        assert "interleaved" not in " ".join(findings.result(preset))
        assert note in tradeoff.grid(preset.table, preset.points).notes[1]


def test_growth_is_that_of_the_transformer_of_the_ratios(tmp_path):
    naive = {"label": "transformer (naive)", "overrides": ['Attention.implementation="naive"']}
    lengths = 512, 1024, 2048, 4096
    cells = [a_measured_cell("fnet", n, [n / 1000]) for n in lengths]
    cells += [a_measured_cell("transformer", n, [n * n / 400_000], **naive) for n in lengths]
    plain = [a_measured_cell("transformer", n, [n**1.5 / 1000]) for n in lengths]
    folder = tmp_path / "benchmark" / "one"
    folder.mkdir(parents=True)
    put(tmp_path, with_test(900))
    for shown in (plain, plain[:2], []):
        (folder / "benchmark.json").write_text(json.dumps(cells + shown))
        said = findings.speed(report.build(report.Sources([tmp_path])))
        assert "the Transformer's (transformer (naive)) at lengths 512 to 4,096" in said[0]
        assert said[1].endswith("FNet's time grows as L^1.00 and the Transformer's as L^2.00.")


def test_speeds_of_other_devices_are_not_compared(tmp_path):
    other = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}
    results = with_test(900), with_test(600, model="transformer", device=other)
    (preset,) = built(tmp_path, *results).presets
    assert findings.result(preset) == [
        "FNet's accuracy minus the Transformer's on ListOps is +15.00 points."
    ]


def test_nothing_is_said_of_nothing(tmp_path):
    empty = report.build(report.Sources([tmp_path]))
    said = findings.of(empty)
    assert {name for name, sentences in said.items() if sentences} == {"literature"}


def test_pairs_are_compared_on_equal_data_and_adjusted_by_hand():
    runs = [scored(model, seed) for model in ("fnet", "linear") for seed in range(3)]
    runs += [with_test(900 + seed, model="transformer", seed=seed) for seed in range(3)]
    runs += [with_test(600, model="local")]
    runs += [scored(model, seed, task="image") for model in ("fnet", "linear") for seed in range(2)]
    runs += [with_test(900, model="performer", data_sha256="e" * 64)]
    runs += [with_test(900, task="text"), with_test(300, task="text", model="linear")]
    (table,) = accuracy.tables(records(*runs))
    listed = pairs.pairs(table, naming.MAIN)
    *listed, single, two = listed
    for few, task in ((single, "text"), (two, "image")):
        assert (few.task, few.p_adjusted, few.significant) == (task, None, None)
    names = [(pair.a.model, pair.b.model) for pair in listed]
    assert names == [("linear", "transformer"), ("fnet", "transformer"), ("fnet", "linear")]
    sides = {row.model: row.cells["listops"].runs for row in table.rows if row.ours}
    p_values = [
        significance.compare(sides[a], sides[b], "test").difference.p_value for a, b in names
    ]
    order = sorted(range(3), key=p_values.__getitem__)
    holm, least = {}, 0.0
    for rank, index in enumerate(order):
        least = holm[index] = min(1.0, max(least, (3 - rank) * p_values[index]))
    assert [pair.p_adjusted for pair in listed] == pytest.approx([holm[i] for i in range(3)])
    grid = pairs.grid(table, [*listed, single, two])
    verdict = "yes" if holm[1] <= 0.05 else "no"
    assert grid.rows[1][:4] == ["ListOps", "FNet", "Transformer", verdict]
    assert grid.rows[3][:4] == ["Text", "FNet", "Linear", "rows only"]
    assert grid.rows[4][:4] == ["Image", "FNet", "Linear", "two seeds"]
    assert grid.head[-3:] == ["p adjusted", "Seeds", "Test"]
    assert [row[-2:] for row in grid.rows] == [
        *(["3 / 3", "1"], ["3 / 3", "1"], ["3 / 3", "2"], ["1 / 1", "3"], ["2 / 2", "2"])
    ]
    named = f"Tests: (1) {significance.INDEPENDENT}; (2) {significance.CROSSED}; (3) "
    assert named in grid.notes[0]


def test_overrides_on_a_task_of_a_user_leave_the_other_tasks_their_pairs():
    own = {"task": "mine", "overrides": ["MAX_LEN=64"], "variant": "MAX_LEN-64"}
    right = {"transformer": {"listops": 500, "mine": 600}, "fnet": {"listops": 600, "mine": 800}}
    runs = [with_test(n, model=m, task=t) for m, of in right.items() for t, n in of.items()]
    (table,) = accuracy.tables(records(*runs, with_test(900, **own)))
    listed = pairs.pairs(table, naming.MAIN)
    assert [(p.task, p.a.label, p.b.label) for p in listed] == [
        ("listops", "FNet", "Transformer"),
        ("mine", "FNet", "Transformer"),
        ("mine", "FNet, MAX_LEN-64", "Transformer"),
    ]
    points = tradeoff.points(table)
    preset = contents.Preset(table, {}, aggregates=[], pairs=listed, points=points, **NO_GRIDS)
    assert findings.result(preset)[-1].endswith("is +5.00 and +10.00 points.")


def test_a_pair_with_a_failed_seed_has_no_verdict():
    """The seeds that ended may be the lucky ones."""
    runs = [scored(model, seed) for model in ("fnet", "linear") for seed in range(3)]
    runs.append(a_failure("diverged", model="fnet", seed=3))
    (table,) = accuracy.tables(records(*runs))
    (pair,) = pairs.pairs(table, naming.MAIN)
    assert (pair.significant, pair.p_adjusted) == (None, None)
    (row,) = pairs.grid(table, [pair]).rows
    assert (row[3], row[-1]) == ("seeds failed", "3 of 4 / 3")


def test_a_pair_whose_checkpoint_was_selected_on_test_says_so():
    runs = with_test(600, validation_is_test=True), with_test(620, model="linear")
    (table,) = accuracy.tables(records(*runs))
    grid = pairs.grid(table, pairs.pairs(table, naming.MAIN))
    assert grid.rows[0][1:3] == ["FNet †", "Linear"]
    assert grid.notes[-1].startswith("† The checkpoint was selected on the test rows")
    (table,) = accuracy.tables(records(with_test(600), runs[1]))
    assert len(pairs.grid(table, pairs.pairs(table, naming.MAIN)).notes) == 1


def test_significance_names_the_largest_difference_with_its_winner_first():
    right = {"transformer": 900, "fnet": 300, "linear": 310}
    runs = [with_test(n + 2 * k, model=m, seed=k) for m, n in right.items() for k in range(3)]
    (table,) = accuracy.tables(records(*runs))
    listed = pairs.pairs(table, naming.MAIN)
    preset = contents.Preset(table, {}, aggregates=[], pairs=listed, points=[], **NO_GRIDS)
    first, second = findings.significance([preset])
    assert first.startswith(
        "2 of the 3 differences between two main models on one task, with 3 seeds or more of "
        "each, are significant at the 5 % level, adjusted for the number of pairs under the preset."
    )
    (pair,) = [p for p in listed if (p.a.model, p.b.model) == ("fnet", "transformer")]
    low, high = pair.comparison.difference[1:3]
    assert f"Transformer is 30.00 points ({-high:.2f} to {-low:.2f}) above FNet on" in second


def test_speed_is_the_ratio_of_medians_to_the_faster_transformer(tmp_path):
    naive = {"overrides": ["Attention.implementation='naive'"], "label": "transformer (naive)"}
    cells = [
        cell
        for n, blocks, plain in ((512, 4.0, 3.0), (1024, 8.0, 12.0))
        for cell in (
            measured("fnet", n, [1.0, 1.0, 50.0], peak_bytes=1e6),
            measured("transformer", n, [blocks] * 3, peak_bytes=4e6),
            measured("transformer", n, [plain] * 3, peak_bytes=2e6, **naive),
        )
    ]
    cells.append(measured("fnet", 2048, [9.0] * 3))  # where the Transformer has no time
    made = built(tmp_path)
    made.sources.benchmarks.append(sources.Benchmark("b", cells))
    first, second = findings.speed(made)
    assert first == (
        "FNet's training step is 3.0 to 8.0 times as fast as the Transformer's (transformer "
        "(naive), then transformer) at lengths 512 to 1,024, batches of 4, and its peak memory is "
        "25 to 50 % of the Transformer's, in b."
    )
    growth = math.log2(8 / 3)
    assert second == (
        "Fitted over these lengths, FNet's time grows as L^0.00 and the Transformer's as "
        f"L^{growth:.2f}."
    )


def test_speed_is_against_the_transformer_of_the_same_benchmark(tmp_path):
    """The tables of both are one, though they differ in their rounds."""
    first, second = (
        [a_measured_cell(m, n, [s] * rounds) for m, s in sides.items() for n in (8, 16)]
        for rounds, sides in (
            (2, {"transformer": 4.0, "linear": 1.0}),
            (3, {"transformer": 6.0, "fnet": 1.0}),
        )
    )
    for name, cells in (("a", first), ("b", second)):
        (tmp_path / "benchmark" / name).mkdir(parents=True)
        (tmp_path / "benchmark" / name / "benchmark.json").write_text(json.dumps(cells))
    made = built(tmp_path)
    (_,) = made.benchmarks
    assert findings.speed(made)[0].startswith("FNet's training step is 6.0 times as fast")
    assert page.render(made)


def test_results_are_those_with_a_baseline_of_their_own(tmp_path):
    """And those that did not train count as results in both sentences."""
    made = built(
        tmp_path,
        with_test(900, shallow=SHALLOW),
        with_test(400, model="linear", data_sha256="e" * 64),
        with_test(360, model="dct", shallow=SHALLOW),
    )
    (preset,) = made.presets
    assert findings.result(preset)[0] == (
        "In 1 of 2 results under preset cpu, the whole 95 % interval lies above the shallow "
        "baseline: FNet on ListOps."
    )
    assert findings.scores(preset.table)[0].startswith("3 results of 3 models on 1 task")


def test_learning_runs_sweeps_and_spans_are_counted(tmp_path):
    put_sweep(tmp_path, "s", [a_trial(0, validation=0.3), a_trial(1, "linear", 2, validation=0.33)])
    spanned = put(tmp_path, a_result(model="transformer"))
    spanned.with_name("attention_span.json").write_text(json.dumps(a_span(3.0, 5.0)))
    same = {"step": 900, "correct": 610, "count": 2000, "loss": 1.0}
    last = a_result(seed=1, validation={"best": same, "last": same}, wall_seconds=60.0)
    last["test"]["last"]["step"] = 900
    hiding = a_result(model="linear", denoise=True, test=None)  # its best is by loss
    assert findings.learning(built(tmp_path / "other", hiding)) == []
    said = findings.of(built(tmp_path, a_result(wall_seconds=60.0), last))
    assert said["learning"] == [
        "2 of 3 runs had the best validation accuracy before the last step.",
        "Accuracy on training rows minus that on test rows, at the last step, is at most 6.00 "
        "points: Transformer on ListOps, preset cpu, seed 0.",
    ]
    trained = "3 runs on 1 kind of machine trained for 4 min 0 s together."
    assert said["runs"] == [trained]  # without the log nothing is known of readings
    (tmp_path / "test_log.jsonl").touch()
    assert findings.of(built(tmp_path))["runs"] == [
        trained,
        "None of them read the test split more than once.",
    ]
    assert said["sweeps"] == [
        "1 sweep with 2 trials, 2 of them complete; trials never read the test split.",
        "Highest validation accuracy on ListOps, preset cpu: 33.00 %, Linear with "
        "Encoder.num_layers=2 "
        "Run.num_steps=100.",
    ]
    assert said["inside"] == [
        "1 run with a measured attention span: 4.0 tokens, where equal weights would give 80."
    ]


def test_literature_names_the_highest_of_all_and_of_one_protocol():
    entries = [
        literature.Entry(model, {"average5": Cell(state, mean)}, protocol, "1", tier, "")
        for model, state, mean, protocol, tier in (
            ("A", "value", 86.3, "pixels", "self"),
            ("B", "value", 55.1, "lra", "self"),
            ("C", "-", None, "lra", "here"),
            ("D", "value", 54.62, "lra", "here"),
        )
    ]
    assert findings.literature(entries) == [
        "4 rows: 2 as printed in papers, 2 run here, 0 submitted; only rows of one protocol "
        "compare.",
        "Highest mean of five: A, 86.30 % (protocol pixels); under LRA's own protocol: B, 55.10 %.",
    ]


def test_sentences_about_the_committed_results_hold():
    """Each count and maximum again, from the records and the cells."""
    runs, _ = record.collect([ROOT / "results"])
    (table,) = accuracy.tables(run for run in runs if run.preset == "cpu")
    points = tradeoff.points(table)
    preset = contents.Preset(table, {}, aggregates=[], pairs=[], points=points, **NO_GRIDS)
    total = above = 0
    for row in (row for row in table.rows if row.ours):
        for task in table.tasks:
            cell, floor = row.cells[task], table.shallow.cells[task]
            if cell.seeds and floor.mean is not None:  # one that did not train is not above
                total += 1
                above += cell.mean is not None and cell.low > floor.mean
    assert f"In {above or 'none'} of {total} results" in findings.result(preset)[0]
    best = re.search(r"ListOps, [^;]+ \(([\d.]+) %\)", findings.scores(table)[1])
    values = [row.cells["listops"].mean for row in table.rows if row.ours]
    assert best is not None
    assert float(best[1]) == round(max(value for value in values if value is not None), 2)


# Benchmarks under the same conditions


def test_benchmarks_under_the_same_conditions_are_one():
    first = [measured(m, n, [s]) for m, s in (("transformer", 4.0), ("fnet", 1.0)) for n in (8, 16)]
    times = {"transformer": 6.0, "linear": 2.0, "mega": 150.0}
    second = [measured(m, n, [s]) for m, s in times.items() for n in (8, 16)]
    assert benchmarks.conditions(first) == benchmarks.conditions(second)
    cells, grids = benchmarks.together([first, second])
    assert benchmarks.labels(cells) == ["transformer", "fnet", "linear", "mega"]
    speeds = {row[0]: row[1] for row in grids[0].rows}
    assert speeds == {  # linear against the Transformer of its own rounds
        "transformer": "0.25",
        "fnet": "1 (4.0x)",
        "linear": "0.5 (3.0x)",
        "mega": "0.00667 (0.04x)",
    }
    assert grids[0].notes[-1].startswith("From 2 benchmarks: the Transformer's row is that of the")
    assert benchmarks.together([first])[1][0].notes == grids[0].notes[:-1]
    for field, value in (
        ("commit", "f"),
        ("batch_size", 8),
        ("threads", 1),
        ("dim", 128),
        ("overrides", ("A.b=1",)),
    ):
        other = [dataclasses.replace(cell, **{field: value}) for cell in second]
        assert benchmarks.conditions(first) != benchmarks.conditions(other), field
    assert benchmarks.conditions(first) != benchmarks.conditions(second[:1])  # another length
    bound = {"overrides": ("A.b=1",)}
    own = [dataclasses.replace(c, label=f"{c.label} (1)", **bound) for c in second]
    assert benchmarks.conditions(first) == benchmarks.conditions(own)
    assert "with A.b=1; " in benchmarks.caption([dataclasses.replace(c, **bound) for c in first])
    assert "with " not in benchmarks.caption(own)


def test_report_merges_them_and_names_all(tmp_path):
    for name, model in (("one", "fnet"), ("two", "linear")):
        folder = tmp_path / "benchmark" / name
        folder.mkdir(parents=True)
        cells = [a_measured_cell(model, length, [1.0]) for length in (8, 16)]
        (folder / "benchmark.json").write_text(json.dumps(cells))
    built = report.build(report.Sources([tmp_path]))
    first, *others = built.sections["Speed and memory"]
    read = [typed_json.build(Result, cell) for cell in cells]
    assert first.notes[-2:] == [benchmarks.caption(read), benchmarks.LEGEND]
    assert not any(benchmarks.LEGEND in grid.notes for grid in others)
    ((benchmark, grids),) = built.benchmarks
    assert benchmark.name == f"{tmp_path.name}/benchmark (one, two)"
    assert [row[0] for row in grids[0].rows] == ["fnet", "linear"]


def test_the_best_trial_is_complete_and_two_readings_are_more_than_one():
    words = {"state": "complete", "task": "listops", "preset": "cpu", "overrides": ()}
    trials = [
        SimpleNamespace(**words, validation=0.5, model="fnet"),
        SimpleNamespace(**words | {"state": "pruned"}, validation=0.9, model="linear"),
    ]
    about = SimpleNamespace(axes={"Run.seed": [1]}, pretrain=False)
    swept = SimpleNamespace(about=about, trials=trials)
    assert "50.00 %, FNet" in findings.sweeps([swept])[-1]
    read = SimpleNamespace(readings={"runs/a": 2})
    runs = [SimpleNamespace(wall_seconds=1.0, devices=["cpu"])]
    made = SimpleNamespace(runs=runs, sources=read)
    assert findings.runs(made)[-1] == "1 of them read the test split more than once: runs/a."
    made = SimpleNamespace(runs=runs * 2, sources=read)  # of one nothing is known
    assert findings.runs(made)[-1].startswith("1 of 1 run with a log read the test split more")
    read.readings = {}
    assert len(findings.runs(made)) == 1
