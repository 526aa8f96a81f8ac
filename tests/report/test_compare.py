"""Two runs or models side by side: the test that fits, and what cannot be compared."""

import json
import subprocess
import sys

import numpy as np
import pytest
from made_results import a_failure, a_result, put, with_test

from lra_fnet import cli, intervals

RIGHT = np.random.default_rng(0).random((2, 3, 2000)) < 0.3  # models, seeds, rows


def scored(model, seed, right, **changes):
    """A run that knows which test rows it got right; at its last step it has all others right."""
    hits = {"best": right, "last": ~right}
    result = with_test(*(int(x.sum()) for x in hits.values()), model=model, seed=seed, **changes)
    for checkpoint, counts in result["test"].items():
        counts["correct_bits"] = intervals.encode(hits[checkpoint])
    return result


@pytest.fixture
def go(tmp_path, monkeypatch, capfd):
    """Writes results, calls `lra-fnet compare`; returns exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(results, a, b, *more):
        for result in results:
            put(tmp_path / "runs", result)
        code = cli.main(["compare", a, b, *more])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def of(go, results, a, b):
    code, out, _ = go(results, a, b, "--json")
    assert code == 0
    return json.loads(out)


def numbers(difference):
    return tuple(difference[name] for name in intervals.Difference._fields)


def both(seeds_a, seeds_b):
    every = [scored("fnet", s, RIGHT[0, s]) for s in range(seeds_a)]
    return every + [scored("linear", s, RIGHT[1, s]) for s in range(seeds_b)]


MODELS = ("cpu/listops/fnet", "cpu/listops/linear")


def test_one_run_each_is_compared_row_by_row(go):
    found = of(go, both(1, 1), "runs/cpu/listops/fnet/seed0", "runs/cpu/listops/linear/seed0")
    test = found["differences"]["test"]
    assert numbers(test) == pytest.approx(intervals.paired(RIGHT[0, 0], RIGHT[1, 0]))
    assert test["test"].startswith("McNemar")
    assert (test["a"], test["b"]) == pytest.approx(tuple(100 * RIGHT[:, 0].mean(1)))
    assert found["pairs"] == []


def test_validation_rows_are_taken_as_independent(go):
    found = of(go, both(1, 1), *MODELS)
    validation = found["differences"]["validation"]
    assert numbers(validation) == pytest.approx(intervals.unpaired(610, 2000, 610, 2000))
    assert "the pairs are missing" in validation["why"]


def test_without_the_rows_that_are_right_the_pairs_are_said_to_be_missing(go):
    older = [scored("fnet", 0, RIGHT[0, 0]), with_test(640, model="linear")]
    test = of(go, older, *MODELS)["differences"]["test"]
    want = intervals.unpaired(int(RIGHT[0, 0].sum()), 2000, 640, 2000)
    assert numbers(test) == pytest.approx(want)
    assert "the pairs are missing" in test["why"]


def test_several_seeds_are_compared_over_seeds_and_each_row_by_row(go):
    found = of(go, both(3, 2), *MODELS)
    test = found["differences"]["test"]
    accuracies = [list(100 * RIGHT[0].mean(1)), list(100 * RIGHT[1, :2].mean(1))]
    assert numbers(test) == pytest.approx(intervals.seeds(*accuracies))
    assert test["test"].startswith("Welch")
    pairs = found["pairs"]
    assert [pair["seed"] for pair in pairs] == [0, 1]
    for pair in pairs:
        want = intervals.paired(*RIGHT[:, pair["seed"]])
        assert numbers(pair) == pytest.approx(want)
    want = intervals.holm([pair["p_value"] for pair in pairs])
    assert [pair["p_adjusted"] for pair in pairs] == pytest.approx(want)


def test_one_seed_against_several_says_that_seeds_are_missing(go):
    found = of(go, both(3, 1), *MODELS)
    test = found["differences"]["test"]
    mean = RIGHT[0].sum(1).mean()
    want = intervals.unpaired(mean, 2000, int(RIGHT[1, 0].sum()), 2000)
    assert numbers(test) == pytest.approx(want)
    assert "seeds are missing" in test["why"]
    assert len(found["pairs"]) == 1


def test_seeds_without_spread_are_no_sample(go):
    runs = [("fnet", 600, 0), ("fnet", 600, 1), ("linear", 640, 0), ("linear", 640, 1)]
    found = of(go, [with_test(n, model=model, seed=s) for model, n, s in runs], *MODELS)
    assert numbers(found["differences"]["test"]) == pytest.approx(
        intervals.unpaired(600, 2000, 640, 2000)
    )
    assert "without any spread" in found["differences"]["test"]["why"]


def test_a_run_that_never_read_test_is_compared_on_validation(go):
    found = of(go, [a_result(test=None), a_result(model="linear")], *MODELS)
    assert list(found["differences"]) == ["validation"]
    assert found["notes"] == [
        "No test accuracy: runs/cpu/listops/fnet/seed0 never read the test split"
    ]


def test_speeds_are_divided_only_on_one_device(go):
    fast = a_result(model="linear", steps_per_second=17.0)
    assert of(go, [a_result(), fast], *MODELS)["steps_per_second_ratio"] == 0.5
    fast["device"] = {**fast["device"], "cores": 8}
    assert of(go, [fast], *MODELS)["steps_per_second_ratio"] is None
    assert "the runs were not timed on one device" in go([], *MODELS)[1]


def test_variants_are_models_and_configurations_are_diffed(go):
    more = a_result(
        overrides=["Run.num_steps=2000"], variant="long", config="Run.num_steps = 2000\n"
    )
    found = of(go, [a_result(), more], "cpu/listops/fnet", "cpu/listops/fnet+long")
    assert found["config"] == ["Run.num_steps: 1000 -> 2000"]
    assert found["b"]["overrides"] == ["Run.num_steps=2000"]


def test_seeds_that_failed_are_left_out_and_named(go):
    results = [*both(2, 2), a_failure("diverged", model="linear", seed=2)]
    found = of(go, results, *MODELS)
    assert found["b"]["seeds"] == [0, 1]
    assert found["notes"] == ["cpu/listops/linear: left out seed 2 diverged"]


def test_the_terminal_shows_accuracies_interval_test_and_what_differs(go):
    changed = [run | {"config": "Run.num_steps = 7\n"} for run in both(0, 2)]
    code, out, _ = go([*both(2, 0), *changed], *MODELS)
    assert code == 0
    for part in (
        "A  cpu/listops/fnet, seed 0, 1",
        "B  cpu/listops/linear, seed 0, 1",
        f"{100 * RIGHT[0, :2].mean():.2f} %",
        "test, seed 1",
        "(Holm)",
        "12,345",
        "x 1.00",
        "test: Welch's t-test over seeds (2 and 2 seeds, so that the spread over seeds is known)",
        "  Run.num_steps: 1000 -> 7",
    ):
        assert part in out, part


@pytest.mark.parametrize(
    ("other", "b", "words"),
    [
        (
            a_result(task="text"),
            "cpu/text/fnet",
            "expects runs on the same task, got listops (cpu/listops/fnet) and text",
        ),
        (
            a_result(model="linear", data_sha256="e" * 64),
            "cpu/listops/linear",
            "expects runs on the same data, got dddddddddddd (cpu/listops/fnet) and eeeeeeeeeeee",
        ),
        (
            a_failure("OOM", model="linear"),
            "cpu/listops/linear",
            "expects a complete run of cpu/listops/linear, got OOM",
        ),
        (a_result(), "fnet", "expects a run folder with a result.json, or preset/task/model"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_code_2(go, other, b, words):
    code, out, err = go([a_result(), other], "cpu/listops/fnet", b)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert words in err


def test_runs_of_one_model_on_other_data_are_refused(go):
    code, _, err = go(
        [a_result(), a_result(seed=1, data_sha256="e" * 64)], *["cpu/listops/fnet"] * 2
    )
    assert code == 2
    assert "got dddddddddddd and eeeeeeeeeeee (cpu/listops/fnet)" in err


def test_statistics_need_no_jax():
    code = "import sys, lra_fnet.intervals; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
