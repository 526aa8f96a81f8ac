"""The first tenth of a run, trained again, is compared with the recorded losses."""

import json
import shutil
from pathlib import Path

import pytest
from paths import OUTSIDE

from lra_fnet.machine import disk
from lra_fnet.run import drift
from lra_fnet.run import result as record
from lra_fnet.run.drift import Window


@pytest.fixture
def results(folders, tmp_path):
    """A folder of results with one trained run, and the words that check it."""
    run = folders["fnet"]
    job = disk.read_json(run / "run.json")
    folder = tmp_path / "results" / Path(*run.parts[-4:])
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints"))
    words = ["drift", "--results", tmp_path / "results", "--data", job["data"]]
    words += ["--import", OUTSIDE / "parity.py", "--gin-dir", OUTSIDE]
    words += [word for text in job["overrides"] for word in ("--set", text)]
    words += ["--name", job["variant"]]
    for name in ("task", "model", "preset"):
        words += [f"--{name}", job[name]]
    return folder, words


def change_losses(folder, factor):
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    changed = [{**x, "loss": x["loss"] * factor} if x["kind"] == "train" else x for x in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in changed))


@pytest.mark.parametrize(
    ("factor", "code", "verdict"),
    [
        (1, 0, "no drift, bit for bit: "),
        (1.00001, 0, "no drift, the same up to rounding: "),
        (1.005, 0, "no drift beyond the spread over seeds, but more than rounding; "),
        (1.02, 1, "DRIFTS: 0 of "),
    ],
)
def test_drift_is_judged_by_the_losses(results, command, factor, code, verdict):
    folder, words = results
    if factor != 1:
        change_losses(folder, factor)
    got, err, out = command(*words)
    assert got == code, err
    assert verdict in out


def test_losses_are_means_over_as_many_steps_as_the_recorded_ones(results, command):
    folder, words = results
    assert record.read(folder).setting("Run.log_every") != 3
    code, err, out = command(*words, "--set", "Run.log_every=3")
    assert code == 0, err
    assert "no drift, bit for bit: " in out
    assert "the preset has changed: Run.log_every" in out


def test_results_without_a_curve_or_of_other_rows_are_one_line(results, command):
    folder, words = results
    value = disk.read_json(folder / "result.json") | {"data_sha256": "0" * 64}
    (folder / "result.json").write_text(json.dumps(record.seal(value)))
    code, err, _ = command(*words)
    assert code == 2
    assert "prepare the same source" in err.splitlines()[-1]
    (folder / "metrics.jsonl").unlink()
    code, err, _ = command(*words)
    assert code == 2
    assert "metrics.jsonl to compare with" in err


def test_run_that_diverged_is_no_reference_and_does_not_widen_the_band(results, command):
    folder, words = results
    failed = shutil.copytree(folder, folder.with_name("seed1"))
    value = disk.read_json(failed / "result.json")
    value |= {"seed": 1, "state": "diverged", "validation": None, "test": None}
    (failed / "result.json").write_text(json.dumps(record.seal(value)))
    change_losses(failed, 3)
    change_losses(folder, 1.02)
    code, err, out = command(*words)
    assert code == 1, err
    assert "(1 seed, " in out
    shutil.rmtree(folder)
    code, err, _ = command(*words)
    assert code == 2
    assert "metrics.jsonl to compare with" in err


def test_result_that_began_pretrained_fails_with_one_line(results, command):
    folder, words = results
    begun = "cpu/parity/fnet@denoise/seed0"
    value = disk.read_json(folder / "result.json")
    value["init"] = {"run": begun, "objective": "", "rate": 0.15, "step": 4, "steps": 6}
    value["init"] |= {"wall_seconds": 1.0, "sha256": "0" * 64}
    (folder / "result.json").write_text(json.dumps(record.seal(value)))
    code, err, _ = command(*words)
    assert code == 2
    assert f"began from {begun}, and drift trains from scratch" in err.splitlines()[-1]


def test_band_is_one_percent_or_three_standard_deviations_over_the_seeds():
    curves = [{10: 2.0, 20: 1.0, 40: 9.0}, {10: 2.0, 20: 1.3}, {10: 2.0, 20: 1.6}]
    windows = drift.compare({10: 2.03, 20: 1.8, 30: 1.0}, curves[0], curves)
    assert windows == [
        Window(10, 2.03, 2.0, pytest.approx(0.02)),
        Window(20, 1.8, 1.0, pytest.approx(0.9)),
    ]
    assert [window.inside for window in windows] == [False, True]


def test_a_tenth_of_the_losses_may_lie_outside_but_none_may_be_nan():
    inside, outside, nan = (Window(1, loss, 1.0, 0.1) for loss in (1.0, 2.0, float("nan")))
    assert not drift.drifts([inside] * 9 + [outside])
    assert drift.drifts([inside] * 8 + [outside])
    assert drift.drifts([inside] * 99 + [nan])


def test_decisions_of_the_recorded_run_are_taken(results, command):
    folder, words = results
    value = disk.read_json(folder / "result.json")
    value["resolved"] = dict.fromkeys(value["resolved"], "unknown")
    (folder / "result.json").write_text(json.dumps(record.seal(value)))
    code, err, _ = command(*words)
    assert code == 2
    assert "the run's decision about" in err.splitlines()[-1]


def test_settings_that_differ_are_named(results, command):
    _, words = results
    _, _, out = command(*words, "--set", "Optimizer.weight_decay=0.5")
    assert "the preset has changed: Optimizer.weight_decay" in out
