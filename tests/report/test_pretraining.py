"""The front of pre-training: groups, means, speeds, the frontier, the figure."""

import itertools
import re

import pytest
from made_results import a_result, measured, part_of_a_run, records

from lra_fnet.report import pretraining
from lra_fnet.report.render import figures
from lra_fnet.report.sources import Benchmark

OTHER = {"name": "Other", "platform": "cpu", "count": 1, "cores": 2}


def a_run(model, right, speed, *, seed=0, size=(128, 2), variant=None, **changes):
    """A run on a corpus: `right` of 1,000 masked pieces, speed in steps/s."""
    score = {"step": 900, "correct": right, "count": 1000, "loss": 2500.0 + seed}
    score |= {"order_loss": 30.0, "order_correct": 30 + seed, "rows": 50}
    text = f"Encoder.dim = {size[0]}\nEncoder.num_layers = {size[1]}\nRun.batch_size = 32\n"
    text += "Encoder.dtype = 'float32'\nDenoising.rate = 0.15\nDenoising.replacement = 'bert'\n"
    made = {
        **{"task": "corpus", "preset": "cpu-pretrain", "model": model, "seed": seed},
        **{"variant": variant, "overrides": [], "steps_per_second": speed, "config": text},
        **{"denoise": True, "test": None, "dataset": "v8000_128"},
        "floor": {"correct": 1, "count": 2},
        "validation": {"best": score, "last": score | {"step": 1000, "correct": 0}},
    }
    return a_result(**made | changes)


def a_cell(model, seconds, /, **changes):
    """A cell of a benchmark in the conditions of `a_run`."""
    device = {"name": "Some CPU", "platform": "cpu", "count": 1, "cores": 9}
    made = {"what": "pretrain", "task": "corpus", "preset": "cpu-pretrain", "label": model}
    made |= {"batch_size": 32, "dim": 128, "device": device}
    return measured(model, 256, seconds, **(made | changes))


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
    rows = [dict(zip(ours.grid().head, row, strict=True)) for row in ours.grid().rows]
    assert [row["Model"] for row in rows] == ["Transformer", "FNet"]  # the best first
    assert (rows[1]["ms a batch"], rows[1]["Speed measured in"]) == ("200", "runs")
    assert paper.grid().rows[0][4] == "-"


@pytest.mark.parametrize(
    "change",
    [
        {"steps_per_second": 1.0, "data_sha256": "e" * 64},
        {"device": OTHER},
        {"earlier": [part_of_a_run(device=OTHER)]},
        {"preset": "paper-pretrain"},
        {"old": "Run.batch_size = 32", "new": "Run.batch_size = 16"},
        {"old": "Denoising.rate = 0.15", "new": "Denoising.rate = 0.146"},
        {"old": "'bert'", "new": "'mask'"},
    ],
)
def test_only_equal_conditions_share_a_front(change):
    other = a_run("linear", 90, 5.0)
    old, new = change.pop("old", ""), change.pop("new", "")
    other |= {"config": other["config"].replace(old, new)} | change
    assert len(made_fronts(a_run("fnet", 100, 4.0), other)) == 3
    assert len(made_fronts(a_run("fnet", 100, 4.0), a_run("linear", 90, 5.0))) == 2


def test_speeds_are_those_of_the_first_benchmark_that_measured_a_run_on_one_machine():
    models = [("fnet", 128, 2), ("transformer", 128, 2), ("fnet", 64, 4), ("fnet", 64, 3)]
    runs = records(*(a_run(m, 100, 4.0, size=(d, n), variant=f"v{d}_{n}") for m, d, n in models))
    listed = [
        Benchmark("a", [a_cell("performer", [], state="OOM"), a_cell("fnet", [0.1, 0.3, 0.2])]),
        Benchmark("b", [a_cell("fnet", [9.0]), a_cell("transformer", [0.5])]),
        Benchmark("c", [a_cell("fnet", [0.1], dim=64, num_layers=4, threads=1)]),
    ]
    ours, _ = pretraining.fronts(runs, listed)
    shown = {(p.model, p.size): (p.milliseconds, p.measured_in) for p in ours.points}
    nothing = (float("inf"), "")  # on another machine, or not measured
    assert shown == {
        ("fnet", "128 x 2"): (200, "a"),
        ("transformer", "128 x 2"): (500, "b"),
        ("fnet", "64 x 4"): nothing,
        ("fnet", "64 x 3"): nothing,
    }


def test_runs_without_sentence_order_have_no_front():
    score = {"step": 9, "correct": 1, "count": 2, "loss": 1.0}
    other = a_run("fnet", 1, 1.0, validation={"best": score, "last": score})
    assert made_fronts(other, a_result()) == []


def test_floor_is_the_best_rule_for_masked_pieces():
    scores = {"validation": {"correct": 330, "count": 1000}, "test": {"correct": 1, "count": 2}}
    rule = {"method": "recorded", "settings": {}, **scores, "of": "hidden pieces"}
    text = "MAX_LEN = 256\n" + a_run("fnet", 1, 1.0)["config"]
    made = [a_run(m, 100, 4.0, shallow=rule, config=text) for m in ("fnet", "linear")]
    ours, _ = made_fronts(*made)
    assert ours.floor == 33
    assert "33.00 %" in ours.notes[-1]
    assert made_fronts(a_run("fnet", 100, 4.0))[0].floor is None


def test_the_front_is_what_no_other_point_beats():
    """Against all pairs: a point is on it unless one is as good in both and better in one."""
    results = [
        a_run(model, right, speed, size=size, variant=f"v{size[0]}")
        for size, k in (((128, 2), 1), ((256, 4), 3))
        for model, right, speed in (
            ("fnet", 100 * k, 9.0 / k),
            ("linear", 110 * k, 9.0 / k),
            ("transformer", 120 * k, 4.0 / k),
            ("random", 90 * k, 3.0 / k),
        )
    ]
    ours, _ = made_fronts(*results)
    beaten = {
        b.run
        for a, b in itertools.permutations(ours.timed, 2)
        if a.milliseconds <= b.milliseconds
        and a.accuracy >= b.accuracy
        and (a.milliseconds, a.accuracy) != (b.milliseconds, b.accuracy)
    }
    assert {p.run for p in ours.best} == {p.run for p in ours.points} - beaten
    rows = ours.grid().rows
    assert {row[2] for row in rows if row[-1] == "yes"} == {p.run for p in ours.best}


def test_line_of_a_model_joins_the_best_variant_of_each_size():
    made = [
        a_run("fnet", correct, speed, size=size, variant=f"v{n}")
        for n, (correct, size, speed) in enumerate(
            [(100, (64, 4), 8.0), (40, (64, 4), 7.0), (200, (128, 2), 5.0)]
        )
    ]
    ours, _ = made_fronts(*made)
    titles = re.findall(r"<title>(.*?)</title>", figures.fronts([ours]))
    assert {
        "FNet 64 x 4: 10 % of masked pieces, 125 ms; FNet 128 x 2: 20 % of masked pieces, 200 ms",
        "FNet 64 x 4: 4 % of masked pieces, 143 ms",
    } < {*titles}


def test_the_papers_front_is_what_it_prints():
    """arXiv:2105.03824, Tables 3 and 5."""
    paper = pretraining.paper()
    assert [(p.model, p.size) for p in paper.best] == [
        (model, "768 x 12") for model in ("ff_only", "fnet", "fnet_hybrid", "transformer")
    ]
    rows = {(row[0], row[1]): row for row in paper.grid().rows}
    assert rows["FNet", "768 x 12"][5:9] == ["58.00", "2.06", "80.00", "169"]
    assert rows["Transformer", "1024 x 24"][8] == "-"  # out of memory
