"""The report's tables other than accuracy and speed."""

import dataclasses

import pytest
from made_results import (
    INIT,
    RIGHT,
    a_failure,
    a_result,
    a_span,
    a_trial,
    put,
    put_sweep,
    records,
    scored,
    table_of,
    with_test,
)

from lra_fnet import report, significance
from lra_fnet.machine import typed_json
from lra_fnet.report import sections
from lra_fnet.report.render import markdown
from lra_fnet.run.folder import Span

# Pairs


def models(*numbers):
    """Runs of FNet and Linear, as many of each as the numbers say."""
    return [
        scored(m, s) for m, n in zip(("fnet", "linear"), numbers, strict=True) for s in range(n)
    ]


@pytest.mark.parametrize(
    ("seeds", "verdict"), [((3, 3), "no"), ((3, 2), "few seeds"), ((1, 1), "few seeds")]
)
def test_main_models_are_compared_in_pairs(seeds, verdict):
    grid = sections.pairs(table_of(*models(*seeds)))
    (row,) = (dict(zip(grid.head, row, strict=True)) for row in grid.rows)
    want = significance.compare(RIGHT[0, : seeds[0]], RIGHT[1, : seeds[1]])
    assert (row["Model"], row["Against"]) == ("FNet", "Linear")
    assert float(row["Difference"]) == pytest.approx(want.mean, abs=0.005)
    assert row["95 % interval"] == f"{want.low:+.2f} to {want.high:+.2f}"
    assert row["p"] == significance.p_text(want.p_value)
    assert (row["Significant"], row["Seeds"]) == (verdict, f"{seeds[0]} / {seeds[1]}")
    assert (row["p adjusted"] == "-") == (verdict == "few seeds")


def test_p_values_of_all_pairs_of_a_preset_are_adjusted_together():
    """Three models on two tasks, one as another: six pairs."""
    runs = [run | {"task": task} for task in ("listops", "text") for run in models(3, 3)]
    runs += [run | {"model": "performer"} for run in runs if run["model"] == "fnet"]
    grid = sections.pairs(table_of(*runs))
    assert [row[:3] for row in grid.rows[:3]] == [
        ["ListOps", "FNet", "Linear"],
        ["ListOps", "Performer", "Linear"],
        ["ListOps", "Performer", "FNet"],
    ]
    want = significance.crossed(RIGHT[0], RIGHT[1]).p_value
    adjusted = significance.holm([want, want, 1.0] * 2)
    column = list(grid.head).index("p adjusted")
    assert [row[column] for row in grid.rows] == [significance.p_text(p) for p in adjusted]


@pytest.mark.parametrize(("seeds", "style"), [(3, "bold"), (2, "")])
def test_what_mixing_buys_is_the_difference_from_no_mixing(seeds, style):
    """Bold: significant after Holm's correction, with three seeds on both sides."""
    runs = models(seeds, 3)
    for run in runs:
        if run["model"] == "fnet":
            run["test"]["best"] = run["test"]["last"] | {"step": run["test"]["best"]["step"]}
        else:
            run["model"] = "ff_only"
    grid = sections.gains(table_of(*runs))
    want = significance.compare(~RIGHT[0, :seeds], RIGHT[1])
    ((label, cell),) = grid.rows
    assert (label, cell.style) == ("FNet", style)
    assert cell == f"{want.mean:+.2f} ({want.low:+.2f} to {want.high:+.2f})"
    assert not sections.gains(table_of(*models(3, 3)))


@pytest.mark.parametrize(
    "other",
    [
        [scored("linear", 0, data_sha256="e" * 64)],
        [with_test(600, model="linear")],  # its rows were not recorded
        [a_failure("OOM", model="linear")],
        [scored("linear", 0) | {"model": "dct"}],  # no main model
    ],
)
def test_models_that_cannot_be_compared_have_no_pair(other):
    assert not sections.pairs(table_of(scored("fnet", 0), *other))


# Training and test


def test_gap_is_train_minus_test_at_the_last_step():
    """Means, not medians: train (90 + 80 + 40) / 3, test (25 + 27 + 35) / 3."""
    numbers = enumerate(((500, 900, 60.0), (540, 800, 120.0), (700, 400, 600.0)))
    runs = [
        with_test(600, last=last, seed=s, train={"correct": n, "count": 1000}, wall_seconds=time)
        for s, (last, n, time) in numbers
    ]
    grid = sections.training(table_of(*runs, a_failure("OOM", model="linear")))
    assert list(grid.head) == ["Task", "Model", "Training", "Test", "Gap", "Minutes"]
    assert grid.rows == [["ListOps", "FNet", "70.00", "29.00", "+41.00", "2.0"]]


def test_minutes_count_the_pre_training():
    run = a_result(init=INIT | {"wall_seconds": 59.5}, variant="pretrained")
    (row,) = sections.training(table_of(run)).rows
    assert row[-1] == "3.0"  # 120.5 s after it


# Pre-trained runs


STEPS = 400  # of the 1,000 in all


def pretrained(result, steps=STEPS, task="listops"):
    """A run of 1,000 - STEPS steps that began from one of `steps`."""
    init = {**INIT, "steps": steps, "run": f"cpu/{task}/{result['model']}@denoise/seed0"}
    for split in ("validation", "test"):
        result[split]["last"]["step"] = 1000 - STEPS
        result[split]["best"]["step"] = 500
    own = result["variant"]
    return {**result, "init": init, "variant": f"pretrained-{own}" if own else "pretrained"}


def test_pretrained_seeds_stand_beside_those_from_scratch_with_the_difference():
    results = [scored("fnet", seed) for seed in (0, 1, 2)]
    results += [pretrained(scored("fnet", seed)) for seed in (3, 4)]
    table = table_of(*results)
    (row,) = sections.pretrained(table).rows
    sides = [c.cells["listops"] for c in (*table.variants, *table.own)]
    want = significance.crossed(*(side.right for side in sides))
    assert row == [
        *("ListOps", "FNet"),
        *(" / ".join(f"{value:.2f}" for value in side.values) for side in sides),
        *(f"{want.mean:+.2f}", f"{want.low:+.2f} to {want.high:+.2f}"),
        significance.p_text(want.p_value),
    ]


@pytest.mark.parametrize(
    "other",
    [
        pretrained(with_test(600), steps=STEPS - 1),  # fewer steps in all
        pretrained(with_test(600), task="corpus"),
        pretrained(with_test(600, data_sha256="b" * 64)),
        pretrained(with_test(600, model="linear")),  # not trained from scratch
        pretrained(with_test(600, variant="wide")),
    ],
)
def test_only_equal_steps_on_the_same_rows_are_compared(other):
    assert not sections.pretrained(table_of(with_test(600), other))


def test_variants_are_compared_with_their_own_kind_and_states_are_shown():
    wide = {"variant": "wide", "overrides": ["Encoder.dim = 256"]}
    (row,) = sections.pretrained(
        table_of(with_test(500), with_test(600, **wide), pretrained(with_test(700, **wide)))
    ).rows
    assert row[1:5] == ["FNet, wide", "35.00", "30.00", "-"]  # the rows were not recorded
    constant = pretrained(with_test(360))
    (row,) = sections.pretrained(table_of(with_test(600), constant)).rows
    assert row[2:] == ["collapsed", "30.00", "-", "-", "-"]


# Attention spans


def test_attention_spans_are_shown_with_equal_weights():
    runs = records(a_result(model="transformer"), a_result())
    grid = sections.spans(runs, {runs[0].folder: typed_json.build(Span, a_span(12.0, 40.5))})
    row = ["ListOps", "cpu", "Transformer", "0", "26.2", "80.0", "12.0, 40.5", "1,000"]
    assert [list(row) for row in grid.rows] == [row]


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
    grid = sections.trials(sweep)
    head = ["Trial", "Task", "Model", "State", "Encoder.num_layers", "Seed", "Step", "Validation"]
    assert list(grid.head) == [*head, "Selected"]
    step = ["100", "33.00", "selected"]
    assert list(grid.rows[2]) == ["2", "ListOps", "fnet", "complete", "2", "0", *step]
    state = "diverged: step 41: loss nan | x"
    assert list(grid.rows[5][3:]) == [state, "3", "1", "40", "-", ""]
    assert [row[0] for row in grid.rows if row[-1]] == ["2", "3"]  # not 6, another model
    assert "nan \\| x" in grid.markdown()
    sweep.about = dataclasses.replace(sweep.about, pretrain=True)
    assert sections.trials(sweep).rows[2][7] == "0.33"  # a loss


def test_a_sweep_alone_makes_a_report(sweep, tmp_path):
    assert report.main([tmp_path], tmp_path / "reports")


def test_every_table_is_in_report_md_below_its_heading(tmp_path):
    put_sweep(tmp_path, "s", TRIALS)
    for result in models(3, 3):
        put(tmp_path, result)
    built = report.build(report.Sources([tmp_path]))
    headings = ["Significance", "Training and test", "Score against speed", "Protocol", "Sweeps"]
    assert list(built.sections) == headings
    text = markdown.everything(built)
    for heading, listed in built.sections.items():
        assert f"\n## {heading}\n" in text
        assert all(grid.markdown().strip() in text for grid in listed)
