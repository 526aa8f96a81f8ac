"""Results are checked as a reader can: whole, of their names, scored again and trained again."""

import json
import shutil
from pathlib import Path

import made_runs
import pytest
from made_runs import change, untrained
from paths import OUTSIDE

from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import model as trained
from lra_fnet.run import result as results
from lra_fnet.run import verify
from lra_fnet.training import replay, score

ROOT = Path(__file__).parents[2]
PARITY = str(OUTSIDE / "parity.py")
pytestmark = pytest.mark.usefixtures("clean_tree")


@pytest.fixture
def check(folders, tmp_path):
    """Copies a trained run, changes the copy, and returns the findings about it."""

    def call(edit=lambda folder: None, replay=0, model="fnet"):
        folder = shutil.copytree(folders[model], tmp_path / "copy/seed0")
        edit(folder)
        data = Path(disk.read_json(folder / "run.json")["data"])
        options = verify.Options(data, (PARITY,), (OUTSIDE,), replay)
        return verify.verify(folder, options)

    return call


def test_trained_run_is_scored_and_replayed_exactly(check):
    findings = check(replay=6)
    assert [findings[name].state for name in ("result", "config", "data", "replay")] == ["ok"] * 4


def test_run_that_stopped_at_its_collapse_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(score, "variation", lambda logits: 0.0)
    folder = made_runs.trained(tmp_path / "runs", "fnet", *made_runs.STEPS)
    result = results.read(folder)
    assert (result.collapsed, result.steps, result.complete) == (6, 6, True)
    assert result.score("test").step <= 6
    options = verify.Options(tmp_path / "data", (PARITY,), (OUTSIDE,), replay=12)
    findings = verify.verify(folder, options)
    assert [findings[name].state for name in ("result", "config", "data", "replay")] == ["ok"] * 4
    change(folder / "result.json", collapsed=None)
    assert "expected 12, got 6" in verify.verify(folder, options)["config"].reason


def edit_score(split="test", kind="best", **changes):
    """Returns an edit of a score, as by somebody who also mends the sha256."""

    def edit(folder):
        value = disk.read_json(folder / "result.json")
        value[split][kind] |= changes
        (folder / "result.json").write_text(json.dumps(results.seal(value)))

    return edit


def edit_without_seal(folder):
    value = disk.read_json(folder / "result.json")
    value["test"]["best"]["correct"] += 1
    (folder / "result.json").write_text(json.dumps(value))


def edit_config(folder):
    text = disk.read_json(folder / "result.json")["config"]
    assert "Optimizer.learning_rate = 0.03\n" in text
    changed(config=text.replace("learning_rate = 0.03", "learning_rate = 0.01"))(folder)


def edit_curve(folder):
    lines = disk.read_lines(folder / "metrics.jsonl")
    lines = [line | ({"loss": line["loss"] * 0.9} if "loss" in line else {}) for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def choose_another_best(folder):
    """Makes the worst evaluation the best, as by somebody who selects on test."""
    value = disk.read_json(folder / "result.json")
    best = value["validation"]["best"]
    lines = disk.read_lines(folder / "metrics.jsonl")
    lines = [line for line in lines if line["kind"] == "validation"]
    worst = max(lines, key=lambda line: (-line["accuracy"], line["loss"]))
    correct = round(worst["accuracy"] * best["count"])
    best |= {"step": worst["step"], "correct": correct, "correct_bits": None}
    best["loss"] = worst["loss"] * best["count"]
    value["test"]["best"]["step"] = worst["step"]
    (folder / "result.json").write_text(json.dumps(results.seal(value)))


def changed(**fields):
    return lambda folder: change(folder / "result.json", **fields)


@pytest.mark.parametrize(
    ("edit", "name", "reason"),
    [
        (edit_without_seal, "result", "correct_bits"),
        (edit_score(step=3), "result", "on test 3"),
        (edit_score("validation", correct=20, correct_bits=None), "result", "best: rows right"),
        (edit_score("validation", "last", loss=1.0), "result", "last: loss"),
        (choose_another_best, "result", "step of the best"),
        (changed(floor={"correct": 1, "count": 30}), "data", "floor"),
        (changed(data_sha256="0" * 64), "data", "got 00000000"),
        (edit_config, "config", "Optimizer.learning_rate: 0.01 -> 0.03"),
        (changed(parameters=1), "config", "parameters"),
        (changed(uses_mask=True), "config", "uses_mask"),
        (edit_curve, "replay", "0.1"),
    ],
)
def test_result_that_was_edited_by_hand_is_refused_with_the_reason(check, edit, name, reason):
    findings = check(edit, replay=12 if name == "replay" else 0)
    assert findings[name].state == "FAILED"
    assert reason in findings[name].reason


@pytest.mark.parametrize(
    ("edit", "name", "word"),
    [
        (lambda folder: (folder / "metrics.jsonl").unlink(), "result", "metrics.jsonl"),
        (changed(commit="HEAD"), "code", "repository"),
    ],
)
def test_what_cannot_be_compared_is_noted(check, edit, name, word):
    state, reason = check(edit)[name]
    assert state == "note"
    assert word in reason


@pytest.mark.parametrize("part", ["cpu-pretrain", "tuned/image", "cpu/image/s4d"])
def test_committed_results_pass(capsys, part):
    """`lra-fnet verify results` checks them all; S4D's were made at another width of attention."""
    code = verify.main([ROOT / "results" / part], verify.Options(ROOT / "no data"))
    table = capsys.readouterr().out
    assert code == 0, table
    assert table.count("\n| ") == 1 + len([*(ROOT / "results" / part).rglob("result.json")])


def test_export_is_checked(folders, tmp_path):
    trained.export(folders["fnet"], tmp_path / "out", imports=[PARITY])
    data = Path(disk.read_json(folders["fnet"] / "run.json")["data"])
    options = verify.Options(data, (PARITY,), (OUTSIDE,))
    findings = verify.verify(tmp_path / "out", options)
    assert {findings[name].state for name in ("config", "data")} == {"ok"}


def test_folder_without_results_fails_with_one_line(tmp_path):
    with pytest.raises(UserError, match="holds no result: name a run folder"):
        verify.main([tmp_path], verify.Options())


def test_submitted_results_are_checked_when_they_are_named(tmp_path):
    ours, theirs = "cpu/listops/fnet/seed0", "submitted/ada/cpu/listops/fnet/seed0"
    for folder in (ours, theirs, ".old/cpu/listops/fnet/seed0"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "result.json").touch()
    assert verify.find(tmp_path) == [tmp_path / ours]
    assert verify.find(tmp_path / "submitted") == [tmp_path / theirs]


def test_result_without_checkpoints_and_data_is_checked_as_far_as_it_goes(tmp_path):
    folder = untrained(tmp_path / "runs", "listops", "fnet")
    shutil.rmtree(folder / "checkpoints")
    findings = verify.verify(folder, verify.Options(tmp_path, replay=5))
    assert findings["replay"].state == "not there"
    assert "data" in findings["replay"].reason


def test_losses_are_added_as_in_training():
    """With Python 3.12 or later, `sum` would give 1e16 + 2."""
    assert replay.mean_loss([0.0, 1e16, 1.0, 1.0], 4, 3) == 1e16 / 3
