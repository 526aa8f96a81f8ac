"""Pre-trained runs against runs from scratch, against made-up results."""

import pytest
from made_results import INIT, a_failure, put, scored, with_test

from lra_fnet import report, significance
from lra_fnet.report import page

STEPS = 400  # of the 1,000 in all


def pretrained(result, steps=STEPS, task="listops"):
    """A run of 1,000 - STEPS steps that began from one of `steps`."""
    init = {**INIT, "steps": steps, "run": f"cpu/{task}/{result['model']}@denoise/seed0"}
    for split in ("validation", "test"):
        result[split]["last"]["step"] = 1000 - STEPS
        result[split]["best"]["step"] = 500
    own = result["variant"]
    return {**result, "init": init, "variant": f"pretrained-{own}" if own else "pretrained"}


def grid_of(root, *results):
    for result in results:
        put(root, result)
    made = report.build(report.Sources([root]))
    (preset,) = made.presets
    return made, preset.self_pretraining


def test_seeds_of_both_sides_stand_beside_the_difference_and_its_test(tmp_path):
    results = [scored("fnet", seed) for seed in (0, 1, 2)]
    results += [pretrained(scored("fnet", seed)) for seed in (3, 4)]
    made, grid = grid_of(tmp_path, *results)
    (row,) = grid.rows
    runs = [[run for run in made.runs if bool(run.init) is side] for side in (True, False)]
    values = [[run.score("test").accuracy for run in side] for side in runs]
    means = [sum(side) / len(side) for side in values]
    want = significance.compare(*runs, "test")
    assert row[:2] == ["ListOps", "FNet"]
    for cell, side in zip(row[2:4], values, strict=True):
        assert cell.rstrip("§¶") == " / ".join(f"{value:.2f}" for value in side)
    assert float(row[4]) == pytest.approx(means[0] - means[1], abs=0.005)
    assert row[5] == f"{want.difference.low:+.2f} to {want.difference.high:+.2f}"
    assert row[7] == significance.CROSSED
    assert made.sections["Pre-training"] == [grid]
    html = page.render(made)
    assert grid.title in html
    assert "Accuracy on masked pieces" not in html  # no run on a corpus


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
def test_only_equal_steps_on_the_same_rows_are_compared(tmp_path, other):
    _, grid = grid_of(tmp_path, with_test(600), other)
    assert not grid


def test_variants_are_compared_with_their_own_kind(tmp_path):
    wide = {"variant": "wide", "overrides": ["Encoder.dim = 256"]}
    results = with_test(500), with_test(600, **wide), pretrained(with_test(700, **wide))
    _, grid = grid_of(tmp_path, *results)
    (row,) = grid.rows
    assert row[1:5] == ["FNet, wide", "35.00", "30.00", "+5.00"]


def test_a_side_without_a_value_shows_its_state(tmp_path):
    failed = a_failure("OOM", seed=1)
    constant = pretrained(with_test(360))  # as many as the most frequent label
    _, grid = grid_of(tmp_path, with_test(600), failed, constant)
    assert [row[2:] for row in grid.rows] == [
        ["did not train", "30.00, 1 unfinished", "-", "-", "-", "-"]
    ]
