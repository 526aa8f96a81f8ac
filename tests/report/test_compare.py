"""`lra-fnet report --compare` of two runs or two models."""

import io
import json
import shutil

import numpy as np
import pytest
from made_results import INIT, RIGHT, a_failure, a_result, part_of_a_run, put, scored, with_test
from rich.console import Console

from lra_fnet import significance
from lra_fnet.report import compare

MODELS = ("cpu/listops/fnet", "cpu/listops/linear")


@pytest.fixture
def run(tmp_path, command):
    """Writes results, then compares; returns as `command`."""

    def call(results, a, b, *options):
        for result in results:
            put(tmp_path / "runs", result)
        return command("compare", a, b, *options)

    return call


def comparison(run, results, a=MODELS[0], b=MODELS[1]):
    return json.loads(run(results, a, b, "--json").out)


def test_folder_of_results_that_is_not_there_is_refused_if_it_was_named(run):
    """The default folders need not exist."""
    assert run(both(1, 1), *MODELS)[0] == 0
    for option in ("--runs", "--results"):
        assert f"{option} expects a folder, rnus" in run([], *MODELS, option, "rnus").mistake


def both(seeds_a, seeds_b):
    runs = [scored("fnet", seed) for seed in range(seeds_a)]
    return runs + [scored("linear", seed) for seed in range(seeds_b)]


@pytest.mark.parametrize("seeds", [(1, 1), (3, 2)])
def test_models_are_compared_on_test_row_by_row(run, seeds):
    compared = comparison(run, both(*seeds))
    want = significance.compare(RIGHT[0, : seeds[0]], RIGHT[1, : seeds[1]])
    assert compared["test"] == pytest.approx(want._asdict())
    for side, right in (("a", RIGHT[0, : seeds[0]]), ("b", RIGHT[1, : seeds[1]])):
        accuracies = {"validation": 30.5, "test": 100 * right.mean()}
        assert compared[side]["accuracies"] == pytest.approx(accuracies)


def test_run_folders_are_compared_too(run):
    compared = comparison(run, both(1, 1), *(f"runs/{model}/seed0" for model in MODELS))
    assert (compared["a"]["model"], compared["b"]["seeds"]) == (MODELS[0], [0])


def test_runs_that_did_not_record_their_rows_have_no_test(run):
    compared = comparison(run, [a_result(), with_test(640, model="linear")])
    assert compared["test"] is None
    assert "+2.00" not in run([], *MODELS).out
    assert "-2.00" in run([], *MODELS).out


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
    assert compared["a"]["accuracies"] == {"validation": 30.5}
    (note,) = compared["notes"]
    assert "runs/cpu/listops/fnet/seed0 never read the test split" in note


GPU = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}


@pytest.mark.parametrize(
    ("changes", "noted"),
    [({}, False), ({"device": GPU}, True), ({"earlier": [part_of_a_run(device=GPU)]}, True)],
)
def test_speeds_of_several_devices_are_noted(run, changes, noted):
    other = a_result(model="linear", steps_per_second=17.0)
    compared = comparison(run, [a_result(**changes), other])
    assert (compared["a"]["steps_per_second"], compared["b"]["steps_per_second"]) == (8.5, 17.0)
    assert bool(compared["notes"]) == noted


def test_variants_are_models_and_configurations_are_compared(run):
    override = {"overrides": ["Run.num_steps=2000"], "config": "Run.num_steps = 2000\n"}
    longer = a_result(variant="long", **override)
    compared = comparison(run, [a_result(), longer], b="cpu/listops/fnet+long")
    assert compared["config"] == ["Run.num_steps: 1000 -> 2000"]


def test_pretraining_and_code_of_the_user_are_among_the_differences(run):
    begun = {"variant": "pretrained", "model": "linear", "code": {"mine.py": "0123456789ab"}}
    init = INIT | {"objective": "Denoising.rate=0.1"}
    seeds = [a_result(seed=s, init=init | {"steps": 5 + s}, **begun) for s in range(2)]
    compared = comparison(run, [a_result(), *seeds], b="cpu/listops/linear+pretrained")
    assert compared["config"] == [
        "code of mine.py: absent -> 0123456789ab",
        "pre-training: none -> cpu/listops/fnet@denoise, 5 steps, Denoising.rate=0.1",
    ]
    words = ("differ in their pre-training", "from the same pre-trained encoder")
    for note, part in zip(compared["notes"], words, strict=True):
        assert part in note


def test_failed_seeds_are_left_out_and_named(run):
    failed = a_failure("diverged", model="linear", seed=2)
    compared = comparison(run, [*both(2, 2), failed])
    assert compared["b"]["seeds"] == [0, 1]
    assert compared["notes"] == ["cpu/listops/linear: left out seed 2 diverged"]


def test_terminal_shows_accuracies_interval_test_and_differences(run):
    changed = [result | {"config": "Run.num_steps = 7\n"} for result in both(0, 2)]
    out = run([*both(2, 0), *changed], *MODELS).out
    for part in (
        *("A  cpu/listops/fnet, seed 0, 1", "B  cpu/listops/linear, seed 0, 1"),
        f"{np.mean(100 * RIGHT[0, :2]):.2f} %",
        *("12,345", "8.5", "test: test over seeds and rows", "  Run.num_steps: 1000 -> 7"),
    ):
        assert part in out, part


OTHER_DATA = {"data_sha256": "e" * 64}


@pytest.mark.parametrize(
    ("other", "b", "words"),
    [
        (a_result(task="text"), "cpu/text/fnet", "same task, got listops"),
        (a_result(model="linear", **OTHER_DATA), MODELS[1], "same data, got dddddddddddd"),
        (a_result(seed=1, **OTHER_DATA), MODELS[0], "got dddddddddddd and eeeeeeeeeeee"),
        (a_result(model="linear"), "cpu/listops/linea", "did you mean cpu/listops/linear?"),
        (a_failure("OOM", model="linear"), MODELS[1], "run of cpu/listops/linear, got OOM"),
        (a_result(seed=1), MODELS[0], "cpu/listops/fnet, seed 0, is on both sides"),
        (a_result(seed=1), "copy", "is on both sides"),
        (with_test(600), "fnet", "a run folder with a result.json, or preset/task/model"),
    ],
)
def test_incomparable_runs_fail_with_one_line(run, tmp_path, other, b, words):
    folder = put(tmp_path / "runs", a_result()).parent
    shutil.copytree(folder, tmp_path / "copy")
    assert words in run([other], MODELS[0], b).mistake
