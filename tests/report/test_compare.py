"""`lra-fnet report --compare` of two runs or two models."""

import io
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from made_results import INIT, RIGHT, a_failure, a_result, part_of_a_run, put, scored, with_test
from rich.console import Console

from lra_fnet import cli, significance
from lra_fnet.report import compare

MODELS = ("cpu/listops/fnet", "cpu/listops/linear")


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Writes results, then compares; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(results, a, b, *options):
        for result in results:
            put(tmp_path / "runs", result)
        code = cli.main(["compare", a, b, *options])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def comparison(run, results, a=MODELS[0], b=MODELS[1]):
    code, out, _ = run(results, a, b, "--json")
    assert code == 0
    return json.loads(out)


def test_runs_of_pretraining_are_refused(run):
    """Hidden tokens of a row depend on each other: a test that counts them claims too much."""
    hidden = [a_result(model=model, denoise=True, test=None) for model in ("fnet", "linear")]
    names = [f"cpu/listops/{model}@denoise" for model in ("fnet", "linear")]
    code, out, err = run(hidden, *names)
    assert (code, out) == (2, "")
    assert "cpu/listops/fnet@denoise is a run of `lra-fnet pretrain`" in err


def test_folder_of_results_that_is_not_there_is_refused_if_it_was_named(run):
    """The default folders need not exist."""
    assert run(both(1, 1), *MODELS)[0] == 0
    for option in ("--runs", "--results"):
        code, _, err = run([], *MODELS, option, "rnus")
        assert code == 2
        assert err.startswith(f"lra-fnet: {option} expects a folder of runs, rnus does not exist")


def both(seeds_a, seeds_b):
    runs = [scored("fnet", seed) for seed in range(seeds_a)]
    return runs + [scored("linear", seed) for seed in range(seeds_b)]


def test_run_folders_are_compared_on_validation_and_test(run):
    folders = [f"runs/{model}/seed0" for model in MODELS]
    compared = comparison(run, both(1, 1), *folders)
    assert list(compared["differences"]) == ["validation", "test"]
    test = compared["differences"]["test"]
    numbers = tuple(test[name] for name in significance.Difference._fields)
    assert numbers == pytest.approx(significance.paired(RIGHT[0, 0], RIGHT[1, 0]))
    assert (test["a"], test["b"]) == pytest.approx(tuple(100 * RIGHT[:, 0].mean(1)))
    assert test["test"] == significance.PAIRED
    assert compared["pairs"] == []


def test_equal_seeds_are_compared_row_by_row_too(run):
    pairs = comparison(run, both(3, 2))["pairs"]
    assert [pair["seed"] for pair in pairs] == [0, 1]
    for pair in pairs:
        numbers = tuple(pair[name] for name in significance.Difference._fields)
        assert numbers == pytest.approx(significance.paired(*RIGHT[:, pair["seed"]]))
    adjusted = significance.holm([pair["p_value"] for pair in pairs])
    assert [pair["p_adjusted"] for pair in pairs] == pytest.approx(adjusted)


def test_pairs_are_of_equal_seeds_where_one_side_lacks_the_first(run):
    sides = [("fnet", (0, 1, 2)), ("linear", (1, 2))]
    runs = [scored(model, seed) for model, seeds in sides for seed in seeds]
    pairs = comparison(run, runs)["pairs"]
    assert [pair["seed"] for pair in pairs] == [1, 2]
    for pair in pairs:
        numbers = tuple(pair[name] for name in significance.Difference._fields)
        assert numbers == pytest.approx(significance.paired(*RIGHT[:, pair["seed"]]))


@pytest.mark.parametrize("width", [40, 80])
def test_comparison_fits_a_narrow_terminal(tmp_path, width):
    for result in both(2, 2):
        put(tmp_path, result)
    stream = io.StringIO()
    for part in compare.render(compare.compare(*(compare.find(m, [tmp_path]) for m in MODELS))):
        Console(file=stream, width=width).print(part)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert ["12,345"] in [line.split()[-1:] for line in lines]


def test_run_that_never_read_test_is_compared_on_validation(run):
    compared = comparison(run, [a_result(test=None), a_result(model="linear")])
    assert list(compared["differences"]) == ["validation"]
    note = "No test accuracy: runs/cpu/listops/fnet/seed0 never read the test split"
    assert compared["notes"] == [note]


def test_speeds_are_divided_only_on_one_device(run):
    fast = a_result(model="linear", steps_per_second=17.0)
    assert comparison(run, [a_result(), fast])["steps_per_second_ratio"] == 0.5
    assert "runs may have shared their machine" in run([], *MODELS)[1]
    fast["device"] = {**fast["device"], "cores": 8}
    assert comparison(run, [fast])["steps_per_second_ratio"] is None
    assert "the runs were not all timed on one device" in run([], *MODELS)[1]


def test_a_side_with_runs_on_two_devices_has_no_mean_speed(run):
    other = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}
    fast = a_result(seed=1, device=other, steps_per_second=90.0)
    compared = comparison(run, [a_result(), fast, a_result(model="linear")])
    assert compared["a"]["steps_per_second"] is None
    assert compared["b"]["steps_per_second"] == 8.5
    assert ["steps/s", "-", "8.5"] in [line.split() for line in run([], *MODELS)[1].splitlines()]


def test_run_that_went_on_on_another_machine_has_no_speed_to_compare(run):
    gpu = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}
    begun = a_result(earlier=[part_of_a_run(device=gpu)])
    compared = comparison(run, [begun, a_result(model="linear")])
    assert compared["a"]["steps_per_second"] is None
    assert compared["steps_per_second_ratio"] is None


def test_variants_are_models_and_configurations_are_compared(run):
    override = {"overrides": ["Run.num_steps=2000"], "config": "Run.num_steps = 2000\n"}
    longer = a_result(variant="long", **override)
    compared = comparison(run, [a_result(), longer], b="cpu/listops/fnet+long")
    assert compared["config"] == ["Run.num_steps: 1000 -> 2000"]
    assert compared["b"]["overrides"] == ["Run.num_steps=2000"]


def test_pretraining_and_code_of_the_user_are_among_the_differences(run):
    begun = {"variant": "pretrained", "model": "linear", "code": {"mine.py": "0123456789ab"}}
    init = INIT | {"objective": "Denoising.rate=0.1"}
    seeds = [a_result(seed=s, init=init | {"steps": 5 + s}, **begun) for s in range(2)]
    compared = comparison(run, [a_result(), *seeds], b="cpu/listops/linear+pretrained")
    assert compared["config"] == [
        "code of mine.py: absent -> 0123456789ab",
        "pre-training: none -> cpu/listops/fnet@denoise, 5 steps, Denoising.rate=0.1",
    ]
    assert compared["notes"] == [
        "The runs of cpu/listops/linear+pretrained differ in their pre-training",
        "Several runs of cpu/listops/linear+pretrained began from the same pre-trained encoder, so "
        "spreads and tests over seeds do not cover its own seed",
    ]


def test_failed_seeds_are_left_out_and_named(run):
    failed = a_failure("diverged", model="linear", seed=2)
    compared = comparison(run, [*both(2, 2), failed])
    assert compared["b"]["seeds"] == [0, 1]
    assert compared["notes"] == ["cpu/listops/linear: left out seed 2 diverged"]


def test_terminal_shows_accuracies_interval_test_and_differences(run):
    changed = [result | {"config": "Run.num_steps = 7\n"} for result in both(0, 2)]
    code, out, _ = run([*both(2, 0), *changed], *MODELS)
    assert code == 0
    for part in (
        "A  cpu/listops/fnet, seed 0, 1",
        "B  cpu/listops/linear, seed 0, 1",
        f"{np.mean(100 * RIGHT[0, :2]):.2f} %",
        "test, seed 1",
        "(Holm)",
        "12,345",
        "x 1.00",
        "validation: test over seeds and rows taken as independent (2 and 2 seeds",
        "; these rows selected the checkpoints",
        "test: test over seeds and rows (2 and 2 seeds)",
        "  Run.num_steps: 1000 -> 7",
    ):
        assert part in out, part


OTHER_DATA = {"data_sha256": "e" * 64}


@pytest.mark.parametrize(
    ("other", "b", "words"),
    [
        (
            a_result(task="text"),
            "cpu/text/fnet",
            "expected runs on the same task, got listops (cpu/listops/fnet) and text",
        ),
        (
            a_result(model="linear", **OTHER_DATA),
            "cpu/listops/linear",
            "expected runs on the same data, got dddddddddddd (cpu/listops/fnet) and eeeeeeeeeeee",
        ),
        (
            a_result(preset="small", dataset="full", **OTHER_DATA),
            "small/listops/fnet",
            "got listops/short_128 (cpu/listops/fnet) and listops/full (small/listops/fnet): name",
        ),
        (
            a_result(model="transformer"),
            "cpu/listops/transfomer",
            "got 'cpu/listops/transfomer' (did you mean cpu/listops/transformer?)",
        ),
        (
            a_result(seed=1, **OTHER_DATA),
            "cpu/listops/fnet",
            "got dddddddddddd and eeeeeeeeeeee (cpu/listops/fnet)",
        ),
        (
            a_failure("OOM", model="linear"),
            "cpu/listops/linear",
            "expected a complete run of cpu/listops/linear, got OOM",
        ),
        (a_result(seed=1), "cpu/listops/fnet", "cpu/listops/fnet, seed 0, is on both sides"),
        (with_test(600), "fnet", "expected a run folder with a result.json, or preset/task/model"),
    ],
)
def test_incomparable_runs_fail_with_one_line(run, other, b, words):
    code, out, err = run([a_result(), other], "cpu/listops/fnet", b)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert words in err


def test_copy_of_a_run_is_on_both_sides(run, tmp_path):
    run([a_result(), a_result(seed=1)], *MODELS)
    copy = shutil.copytree(tmp_path / "runs/cpu/listops/fnet/seed1", tmp_path / "copy")
    code, _, err = run([], str(copy), MODELS[0])
    assert (code, len(err.splitlines())) == (2, 1)
    assert "cpu/listops/fnet, seed 1, is on both sides: name two sets of runs" in err


def test_importing_statistics_or_report_imports_neither_jax_nor_scipy_stats():
    """A table must come at once, on a machine without an accelerator's driver too."""
    heavy = "{'jax', 'flax', 'tensorflow', 'scipy.stats', 'matplotlib'} & set(sys.modules)"
    code = f"import sys, lra_fnet.significance, lra_fnet.report; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_speed_of_a_side_is_the_mean_over_its_seeds(run):
    fast = a_result(seed=1, steps_per_second=17.0)
    compared = comparison(run, [a_result(), fast, a_result(model="linear")])
    assert compared["a"]["steps_per_second"] == 12.75
    assert compared["steps_per_second_ratio"] == 1.5
