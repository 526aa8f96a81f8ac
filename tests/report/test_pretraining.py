"""The front of pre-training: groups, means, speeds, the frontier, the paper's order, the figure."""

import dataclasses
import itertools
import json

import pytest
from made_results import a_result, measured, part_of_a_run, records

from lra_fnet.data import store
from lra_fnet.report import Sources, benchmarks, build, figures, page, pretraining
from lra_fnet.report.render import text as texts
from lra_fnet.report.sources import Benchmark


def a_run(model, right, speed, *, seed=0, size=(128, 2), variant=None, **changes):
    """A run on a corpus: `right` of 1,000 masked pieces, speed in steps/s."""
    score = {"step": 900, "correct": right, "count": 1000, "loss": 2500.0 + seed}
    score |= {"order_loss": 30.0, "order_correct": 30 + seed, "rows": 50}
    text = f"Encoder.dim = {size[0]}\nEncoder.num_layers = {size[1]}\nRun.batch_size = 32\n"
    text += "Encoder.dtype = 'float32'\nDenoising.rate = 0.15\nDenoising.replacement = 'bert'\n"
    made = {
        **{"task": "corpus", "preset": "cpu-pretrain", "model": model, "seed": seed},
        **{"variant": variant, "overrides": [], "steps_per_second": speed, "config": text},
        **{
            "denoise": True,
            "test": None,
            "dataset": "v8000_128",
            "floor": {"correct": 1, "count": 2},
        },
        "validation": {"best": score, "last": score | {"step": 1000, "correct": 0}},
    }
    return a_result(**made | changes)


def made_fronts(*results):
    return pretraining.fronts(records(*results))


def test_points_are_means_over_seeds_of_the_best_checkpoint():
    (ours, paper) = made_fronts(
        *(a_run("fnet", 100 + 20 * seed, 4.0 + seed, seed=seed) for seed in (0, 1)),
        a_run("transformer", 200, 3.0),
    )
    (point,) = [p for p in ours.points if p.model == "fnet"]
    assert [point.accuracy, point.loss, point.order] == pytest.approx([11.0, 2.5005, 61.0])
    assert point.milliseconds == 200  # of the faster run
    assert (point.seeds, point.size) == (2, "128 x 2")
    grid = ours.grid()
    rows = {row[0]: dict(zip(grid.head, row, strict=True)) for row in grid.rows}
    assert list(rows) == ["Transformer", "FNet"]  # the best first
    assert (rows["FNet"]["ms a batch"], rows["FNet"]["Examples/s"]) == ("200", "160")
    assert (rows["FNet"]["Speed-up"], rows["Transformer"]["Speed-up"]) == ("1.67", "1.00")
    assert paper.grid().rows[0][3] == "-"


@pytest.mark.parametrize(
    "change",
    [
        {"steps_per_second": 1.0, "data_sha256": "e" * 64},
        {"device": {"name": "Other", "platform": "cpu", "count": 1, "cores": 2}},
        {
            "earlier": [
                part_of_a_run(device={"name": "Other", "platform": "cpu", "count": 1, "cores": 2})
            ]
        },
        {"preset": "paper-pretrain"},
        {"config": "Encoder.dim = 8\nEncoder.num_layers = 1\nRun.batch_size = 16\n"},
    ],
)
def test_only_equal_conditions_share_a_front(change):
    runs = a_run("fnet", 100, 4.0), a_run("linear", 90, 5.0, **change)
    assert len(made_fronts(*runs)) == 3
    assert len(made_fronts(runs[0], a_run("linear", 90, 5.0))) == 2


def a_cell(model, seconds, /, **changes):
    """A cell of a benchmark in the conditions of `a_run`."""
    device = {"name": "Some CPU", "platform": "cpu", "count": 1, "cores": 9}
    made = {"what": "pretrain", "task": "corpus", "preset": "cpu-pretrain", "label": model}
    made |= {"batch_size": 32, "dim": 128, "device": device}
    return measured(model, 256, seconds, **(made | changes))


def test_speeds_are_those_of_a_benchmark_that_measured_all_points_in_turn():
    runs = records(a_run("fnet", 100, 4.0), a_run("transformer", 200, 3.0))
    failed = dataclasses.replace(a_cell("performer", [], state="OOM"), device=None)
    cells = [failed, a_cell("fnet", [0.1, 0.3, 0.2]), a_cell("transformer", [0.5])]
    ours, _ = pretraining.fronts(runs, [Benchmark("results/benchmark/b", cells)])
    assert {p.model: p.milliseconds for p in ours.points} == {"fnet": 200, "transformer": 500}
    assert "took turns in `results/benchmark/b`, 1 x Some CPU (cpu, 9 cores)" in ours.notes[0]


def test_models_measured_alone_are_compared_by_their_medians():
    runs = records(a_run("fnet", 100, 4.0), a_run("transformer", 200, 3.0))
    times = {"fnet": [0.2, 0.1, 0.3], "transformer": [0.9, 0.3, 0.3]}
    for alone, ratio, words in ((False, "3.00", "took turns"), (True, "1.50", "took no turns")):
        cells = [a_cell(model, seconds, alone=alone) for model, seconds in times.items()]
        ours, _ = pretraining.fronts(runs, [Benchmark("b", cells)])
        grid = ours.grid()
        speed_ups = [row[grid.head.index("Speed-up")] for row in grid.rows]
        assert speed_ups == ["1.00", ratio]
        assert words in ours.notes[0]


def test_runs_that_mask_nearly_equal_shares_are_not_compared():
    rates = {"fnet": "0.146", "transformer": "0.154"}
    made = [a_run(model, 100, 4.0) for model in rates]
    for run, rate in zip(made, rates.values(), strict=True):
        run["config"] = run["config"].replace("rate = 0.15", f"rate = {rate}")
    fronts = [front for front in pretraining.fronts(records(*made)) if front.points[0].run]
    assert [len(front.points) for front in fronts] == [1, 1]
    assert "14.6% masked" in fronts[0].title


def test_a_benchmark_of_other_settings_is_not_the_speed_of_a_run():
    """Settings that change no step's program may differ: length, schedule, way of computing."""
    run = records(a_run("fnet", 100, 4.0, overrides=["Run.num_steps=9"], variant="v"))[0]
    for overrides, same in (
        (["Encoder.dropout=0"], False),
        (["Run.microbatch=4"], False),
        (["Optimizer.warmup = 1", "Fourier.method=rfft", "MAX_LEN=9"], True),
    ):
        cell = a_cell("fnet", [0.1], overrides=overrides)
        assert (benchmarks.of_run([cell], run, "pretrain") is not None) == same, overrides


def test_overrides_that_are_written_in_several_ways_are_equal():
    run = records(a_run("fnet", 100, 4.0, overrides=["Encoder.dropout=0.10"], variant="v"))[0]
    for text, same in (("Encoder.dropout = 1e-1", True), ("Encoder.dropout=0.2", False)):
        cell = a_cell("fnet", [0.1], overrides=[text])
        assert (benchmarks.of_run([cell], run, "pretrain") is not None) == same, text


def test_line_of_a_model_joins_the_best_variant_of_each_size():
    made = [
        a_run("fnet", correct, 4.0, size=size, variant=f"v{n}", steps_per_second=speed)
        for n, (correct, size, speed) in enumerate(
            [(100, (64, 4), 8.0), (40, (64, 4), 7.0), (200, (128, 2), 5.0)]
        )
    ]
    ours, _ = made_fronts(*made)
    axes = figures.fronts([ours]).axes[0]
    drawn = [[tuple(map(round, point)) for point in line.get_xydata()] for line in axes.lines]
    assert [(125, 10), (200, 20)] in drawn[1:]  # the first is the front
    assert [(143, 4)] in drawn


def test_a_benchmark_on_another_processor_of_the_platform_is_the_speed_of_a_run():
    run = records(a_run("fnet", 100, 4.0))[0]
    cell = a_cell("fnet", [0.1])
    assert cell.device is not None
    for changes, same in (({"name": "Other CPU", "cores": 1}, True), ({"platform": "gpu"}, False)):
        device = dataclasses.replace(cell.device, **changes)
        other = dataclasses.replace(cell, device=device)
        assert (benchmarks.of_run([other], run, "pretrain") is not None) == same, changes


def test_each_size_has_the_speeds_of_a_benchmark_with_all_its_models():
    models = [("fnet", 128, 2), ("transformer", 128, 2), ("fnet", 64, 4), ("fnet", 64, 3)]
    runs = records(*(a_run(m, 100, 4.0, size=(d, n), variant=f"v{d}_{n}") for m, d, n in models))
    small = {"dim": 64, "num_layers": 4}
    listed = [
        Benchmark("half", [a_cell("fnet", [0.9])]),
        Benchmark("whole", [a_cell("fnet", [0.2]), a_cell("transformer", [0.5])]),
        Benchmark("small", [a_cell("fnet", [0.1], **small)]),
    ]
    ours, _ = pretraining.fronts(runs, listed)
    assert {(p.model, p.size): p.milliseconds for p in ours.points} == {
        ("fnet", "128 x 2"): 200,
        ("transformer", "128 x 2"): 500,
        ("fnet", "64 x 4"): 100,
        ("fnet", "64 x 3"): None,
    }
    assert "a size took turns in `whole` and `small`, 1 x" in ours.notes[0]


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 1},
        {"device": {"name": "Some CPU", "platform": "cpu", "count": 1, "cores": 2}},
        {},
    ],
)
def test_speeds_of_two_machines_are_not_in_one_front(change):
    runs = records(a_run("fnet", 100, 4.0), a_run("fnet", 100, 9.0, size=(64, 4), variant="v"))
    small = a_cell("fnet", [0.1], dim=64, num_layers=4, **change)
    listed = [Benchmark("a", [a_cell("fnet", [0.2])]), Benchmark("b", [small])]
    ours, _ = pretraining.fronts(runs, listed)
    assert [p.milliseconds for p in ours.points] == [200, None if change else 100]
    assert ("`a` and `b`" in ours.notes[0]) == (not change)


def test_a_further_run_of_a_model_that_the_benchmark_lacks_has_no_speed():
    runs = records(
        a_run("fnet_hybrid", 100, 4.0, variant="odd", parameters=99),
        a_run("fnet_hybrid", 300, 4.0),
        a_run("transformer", 200, 3.0),
    )
    cells = [a_cell("fnet_hybrid", [0.2]), a_cell("transformer", [0.5])]
    ours, _ = pretraining.fronts(runs, [Benchmark("b", cells)])
    assert {p.run: p.milliseconds for p in ours.points if p.model == "fnet_hybrid"} == {
        "fnet_hybrid@denoise+odd": None,
        "fnet_hybrid@denoise": 200,
    }
    speeds = {row[2]: row[7:10] for row in ours.grid().rows}
    assert speeds["fnet_hybrid@denoise+odd"] == ["-", "-", "-"]
    assert speeds["fnet_hybrid@denoise"] == ["200", "160", "2.50"]
    assert [p.run for p in ours.best] == ["fnet_hybrid@denoise"]
    assert "Hybrid, Transformer; 0 of 1 pairs" in ours.notes[-1]  # its better run counts


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Denoising.rate = 0.15", "Denoising.rate = 0.01", "of 32 rows, 1% masked, 1 x"),
        ("'bert'", "'mask'", 'of 32 rows, 15% masked ("mask"), 1 x'),
    ],
)
def test_another_objective_is_another_front(old, new, said):
    run = a_run("fnet", 900, 4.0, variant="easy")
    easy = run | {"config": run["config"].replace(old, new)}
    first, second, _ = made_fronts(easy, a_run("fnet", 100, 4.0))
    assert said in first.title
    assert "of 32 rows, 15% masked, 1 x" in second.title


def test_of_two_ways_to_compute_a_model_the_faster_counts():
    runs = records(a_run("fnet", 100, 4.0), a_run("transformer", 200, 3.0))
    cells = [a_cell("transformer", [0.5]), a_cell("transformer", [5.0]), a_cell("fnet", [0.2])]
    ours, _ = pretraining.fronts(runs, [Benchmark("b", cells)])
    assert {p.model: p.milliseconds for p in ours.points} == {"fnet": 200, "transformer": 500}


def test_speed_ups_are_against_the_fastest_transformer_of_the_size():
    slow = a_run("transformer", 100, 1.0, variant="a_slow")
    (ours, _) = made_fronts(slow, a_run("transformer", 200, 5.0), a_run("fnet", 300, 10.0))
    assert {row[2]: row[9] for row in ours.grid().rows} == {
        "fnet@denoise": "2.00",
        "transformer@denoise": "1.00",
        "transformer@denoise+a_slow": "0.20",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        *({"what": "train"}, {"side": "eager"}, {"state": "OOM"}, {"task": "text"}),
        *({"preset": "paper-pretrain"}, {"length": 128}, {"batch_size": 16}, {"dim": 64}),
        *({"num_layers": 4}, {"parameters": 1}, {"model": "linear"}),
        {"device": {"name": "Other", "platform": "gpu", "count": 1, "cores": 9}},
    ],
)
def test_a_benchmark_of_something_else_gives_no_speeds(change):
    runs = records(a_run("fnet", 100, 4.0), a_run("transformer", 200, 5.0))
    cells = [a_cell("transformer", [0.5]), a_cell("fnet", [0.1], **change)]
    ours, _ = pretraining.fronts(runs, [Benchmark("b", cells)])
    assert {p.model: p.milliseconds for p in ours.points} == {"fnet": 250, "transformer": 200}
    assert "of training, without evaluations" in ours.notes[0]


def test_runs_without_sentence_order_have_no_front():
    score = {"step": 9, "correct": 1, "count": 2, "loss": 1.0}
    other = a_run("fnet", 1, 1.0, validation={"best": score, "last": score})
    assert made_fronts(other, a_result()) == []


def a_rule(of, right):
    """A shallow baseline in the form of data/expected.json."""
    scores = {"validation": {"correct": right, "count": 1000}}
    scores["test"] = {"correct": 500, "count": 1000}
    return {"method": f"rule of {of} {right}", "settings": {}, **scores, "of": of}


def test_shallow_baselines_stand_below_the_models(monkeypatch):
    rules = [a_rule("labels", 570), a_rule("hidden pieces", 330), a_rule("hidden pieces", 130)]
    facts = {"v8000_128": {"shallow": {"d" * 64: {"256": rules}}}}
    monkeypatch.setattr(store, "expected", lambda: {"corpus": facts})
    text = "MAX_LEN = 256\nEncoder.dim = 128\nEncoder.num_layers = 2\nRun.batch_size = 32\n"
    text += "Denoising.rate = 0.15\nDenoising.replacement = 'bert'\n"
    recorded = {**rules[1], "method": "recorded"}
    runs = [
        a_run("fnet", 100, 4.0, config=text),
        a_run("linear", 90, 5.0, config=text, shallow=recorded),
    ]
    ours, _ = made_fronts(*runs)
    rows = [(row[0], row[2], row[4], row[6]) for row in ours.grid().rows[2:]]
    assert rows == [
        ("rule of labels 570", "shallow baseline", "-", "57.00"),
        ("rule of hidden pieces 330", "shallow baseline", "33.00", "-"),
        ("rule of hidden pieces 130", "shallow baseline", "13.00", "-"),
    ]
    assert ours.floor == 33
    drawn = figures.drawn(figures.fronts([ours]), "svg").decode()
    assert "Shallow baseline: 33 % of masked pieces" in drawn
    assert [run.baseline.method for run in records(*runs)] == [
        "rule of hidden pieces 330",
        "recorded",
    ]
    (order,) = records(a_run("fnet", 100, 4.0, config=text, denoise=False))
    assert order.baseline.method == "rule of labels 570"
    # Of a corpus that data/expected.json does not list, the best one is in result.json.
    other = {"data_sha256": "e" * 64, "config": text}
    ours, _ = made_fronts(a_run("fnet", 100, 4.0, shallow=recorded, **other))
    assert [row[0] for row in ours.grid().rows] == ["FNet", "recorded"]
    ours, _ = made_fronts(a_run("fnet", 100, 4.0, **other))
    assert (len(ours.grid().rows), ours.floor) == (1, None)
    # Those of masked pieces hide 15 % of them by BERT's rules.
    for old, new in (("0.15", "0.5"), ("'bert'", "'mask'")):
        easy = a_run("fnet", 100, 4.0, shallow=recorded, config=text.replace(old, new))
        ours, _ = made_fronts(easy)
        assert [row[0] for row in ours.grid().rows] == ["FNet", "rule of labels 570"]
        assert [run.baseline for run in records(easy)] == [None]


def test_the_front_is_what_no_other_point_beats():
    """Against all pairs: a point is on it unless one is as good in both and better in one."""
    results = [
        a_run(model, right, speed, size=size, variant=f"v{size[0]}")
        for size, k in (((128, 2), 1), ((256, 4), 3))
        for model, right, speed in (
            *(("transformer", 60 * k, 3 / k), ("linear", 50 * k, 5 / k)),
            *(("fnet", 55 * k, 6 / k), ("ff_only", 20 * k, 7 / k)),
        )
    ]
    (ours, _) = made_fronts(*results)

    def beaten(p):
        of_p = p.milliseconds, -p.accuracy
        others = [(q.milliseconds, -q.accuracy) for q in ours.points]
        return any(q != of_p and q[0] <= of_p[0] and q[1] <= of_p[1] for q in others)

    want = [point for point in ours.points if not beaten(point)]
    assert sorted(ours.best, key=id) == sorted(want, key=id)
    assert 2 < len(want) < len(ours.points)


def test_the_order_is_compared_with_the_papers():
    printed = ["transformer", "fnet_hybrid", "linear", "fnet", "random", "ff_only"]
    best = ["fnet", "transformer", "linear", "random"]
    (ours, _) = made_fronts(*(a_run(m, 200 - 10 * i, 1.0) for i, m in enumerate(best)))
    pairs = list(itertools.combinations(best, 2))
    same = sum(printed.index(a) < printed.index(b) for a, b in pairs)
    assert ours.notes[-1] == (
        "Size 128 x 2, the best first: FNet, Transformer, Linear, Random; "
        f"{same} of 6 pairs are in the paper's order."
    )
    assert same == 4


def test_the_papers_front_is_what_it_prints():
    paper = pretraining.paper()
    assert [(p.model, p.size) for p in paper.best] == [
        (model, "768 x 12") for model in ("ff_only", "fnet", "fnet_hybrid", "transformer")
    ]
    cells = {(row[0], row[1]): row[7:10] for row in paper.grid().rows}
    assert cells["FNet", "768 x 12"] == ["169", "378.7", "1.80"]  # Table 3 prints 1.8x
    assert cells["Transformer", "1024 x 24"] == ["OOM", "-", "-"]


def test_every_form_of_the_report_has_the_front(tmp_path):
    for model, right, speed in (("fnet", 100, 4.0), ("linear", 90, 5.0)):
        folder = tmp_path / f"cpu-pretrain/corpus/{model}@denoise/seed0"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(a_run(model, right, speed)))
    report = build(Sources([tmp_path]))
    assert len(report.fronts) == 2
    assert "Pre-training" in report.sections
    html = page.render(report)
    assert 'id="pre-training"' in html
    assert "FNet 128 x 2: 10 % of masked pieces, 250 ms" in html
    assert "of 32 rows, 15% masked, 1 x Some CPU" in texts.markdown(report)
    drawn = figures.drawn(figures.fronts(report.fronts), "svg").decode()
    assert "Ours: v8000_128 (dddddddd), 1,000" in drawn  # the rest is on a second line
    assert "FNet paper: C4, 8 V100" in drawn
