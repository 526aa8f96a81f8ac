"""Results are checked as a reader can: whole, of their names, scored again and trained again."""

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import made_results
import made_runs
import numpy as np
import pytest
import safetensors.numpy
from made_runs import change, untrained
from paths import OUTSIDE

from lra_fnet import cli, config, experiment
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import model as trained
from lra_fnet.run import provenance, verify
from lra_fnet.run import result as record
from lra_fnet.training import replay

ROOT = Path(__file__).parents[2]
PARITY = str(OUTSIDE / "parity.py")
ROWS = [np.array([0, 1, 1], np.uint8), np.array([1], np.uint8)]
pytestmark = pytest.mark.usefixtures("clean_tree")


@pytest.fixture
def check(folders, tmp_path):
    """Copies a trained run, changes the copy, and returns the findings about it."""

    def call(edit=lambda folder: None, replay=0, model="fnet"):
        folder = shutil.copytree(folders[model], tmp_path / "copy/seed0")
        edit(folder)
        data = Path(disk.read_json(folder / "run.json")["data"])
        options = verify.Options(data, (PARITY,), (OUTSIDE,), replay)
        return verify.verify(folder, options).findings

    return call


def test_trained_run_is_scored_and_replayed_exactly(check):
    findings = check(replay=6)
    assert [findings[name].state for name in ("result", "config", "data", "score", "replay")] == [
        "ok"
    ] * 5
    assert findings["score"].reason == "exactly"
    assert "exactly as recorded" in findings["replay"].reason


def test_finished_run_is_only_read(folders, monkeypatch):
    """Every write of the package goes through `disk`, which refuses here as a read-only disk."""

    def refuse(path, *given, **named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    folder = folders["fnet"]  # trained here if no test has asked for it before
    for name in ("partial", "append_line", "try_lock"):
        monkeypatch.setattr(disk, name, refuse)
    log = folder.parents[3] / record.TEST_LOG
    before = log.read_bytes()
    data = Path(disk.read_json(folder / "run.json")["data"])
    options = verify.Options(data, (PARITY,), (OUTSIDE,), 6)
    findings = verify.verify(folder, options).findings
    assert {findings[name].state for name in ("score", "replay")} == {"ok"}
    assert log.read_bytes() == before


def test_complete_replay_gives_the_parameters(check):
    assert check(replay=12)["replay"] == ("ok", "all 12 steps: the same parameters")


@pytest.mark.slow
def test_run_with_batch_norm_and_groups_is_scored_and_replayed_exactly(tmp_path, capsys):
    """Averages and groups are in the checkpoint, and in an export the averages."""
    groups = "Optimizer.groups={'kernel': (0.003, 0.0)}"
    more = (groups, "Encoder.batch_norm=0.5", "Encoder.mlp_dim=0")
    folder = made_runs.trained(tmp_path / "runs", "long_conv", *made_runs.STEPS, *more)
    options = verify.Options(tmp_path / "data", (PARITY,), (OUTSIDE,), replay=12)
    findings = verify.verify(folder, options).findings
    assert {findings[name].state for name in ("result", "config", "score", "replay")} == {"ok"}
    words = [f"--import={PARITY}", "--run", str(folder), "--out", str(tmp_path / "out")]
    assert cli.main(["export", *words, "--checkpoint=last"]) == 0
    run, exported = trained.load_run(folder, "last"), trained.load_run(tmp_path / "out")
    np.testing.assert_array_equal(run.logits(ROWS), exported.logits(ROWS))
    moments = run.variables["averages"]["encoder"]["norm"]["moments"]
    assert not np.allclose(moments[0], 0)
    exported.variables["averages"] = jax.tree.map(jnp.zeros_like, run.variables["averages"])
    assert not np.allclose(run.logits(ROWS), exported.logits(ROWS))
    file = tmp_path / "out/model.safetensors"
    weights = safetensors.numpy.load_file(file)
    weights["averages/encoder/norm/moments"] += 1
    safetensors.numpy.save_file(weights, file)
    with pytest.raises(UserError, match="the parameters differ from those of"):
        trained.load_run(tmp_path / "out")


def edit_score(split="test", kind="best", **changes):
    """Returns an edit of a score, as by somebody who also mends the sha256."""

    def edit(folder):
        value = disk.read_json(folder / "result.json")
        value[split][kind] |= changes
        (folder / "result.json").write_text(json.dumps(record.seal(value)))

    return edit


def edit_without_seal(folder):
    value = disk.read_json(folder / "result.json")
    value["test"]["best"]["correct"] += 1
    (folder / "result.json").write_text(json.dumps(value))


def edit_config(folder):
    text = disk.read_json(folder / "result.json")["config"]
    assert "Optimizer.learning_rate = 0.03\n" in text
    change(
        folder / "result.json", config=text.replace("learning_rate = 0.03", "learning_rate = 0.01")
    )
    (folder / "config.gin").unlink()  # a copy, which may be missing


def hide_a_setting(folder):
    text = disk.read_json(folder / "result.json")["config"]
    change(folder / "result.json", config=text.replace("Optimizer.learning_rate = 0.03\n", ""))
    (folder / "config.gin").unlink()


def edit_curve(folder):
    lines = disk.read_lines(folder / "metrics.jsonl")
    lines = [line | ({"loss": line["loss"] * 0.9} if "loss" in line else {}) for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def move_curve(folder):
    lines = disk.read_lines(folder / "metrics.jsonl")
    lines = [line | {"step": line["step"] + 1} for line in lines if line["kind"] != "validation"]
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
    (folder / "result.json").write_text(json.dumps(record.seal(value)))


@pytest.mark.parametrize(
    ("edit", "name", "reason"),
    [
        (edit_without_seal, "result", "test.best: correct_bits: "),
        (edit_score(loss=1.0), "score", "test best: loss 1, now "),
        (edit_score(loss=float("nan")), "score", "test best: loss nan, now "),
        (edit_score(correct=30, correct_bits=None), "score", "test best: "),
        (edit_score("validation", correct=20), "score", "validation best: "),
        (edit_score("validation", "last", loss=1.0), "score", "validation last: loss 1, now "),
        (
            lambda f: change(f / "result.json", parameters_sha256="0" * 64),
            "score",
            "the parameters",
        ),
        (lambda f: change(f / "result.json", floor={"correct": 1, "count": 30}), "data", "floor "),
        (edit_score(step=3), "result", " on validation, step 3 on test"),
        (edit_config, "config", "Optimizer.learning_rate: 0.01 -> 0.03"),
        (hide_a_setting, "config", "Optimizer.learning_rate: absent -> 0.03"),
        (lambda f: (f / "config.gin").write_text(""), "config", "config.gin was edited: it is a"),
        (lambda f: change(f / "result.json", data_sha256="0" * 64), "data", "00000000 is not the"),
        (lambda f: change(f / "result.json", parameters=1), "config", "1 parameters, its config"),
        (lambda f: change(f / "result.json", commit="main"), "code", "no commit: 'main'"),
        (edit_curve, "replay", "losses of 12 steps differ by up to 0.1"),
        (move_curve, "replay", "metrics.jsonl has no loss at a multiple of"),
        (choose_another_best, "result", " was better"),
        (
            edit_score("validation", correct=20, correct_bits=None),
            "result",
            "best: 20 rows correct",
        ),
        (edit_score("validation", "last", loss=1.0), "result", "last: loss 0."),
        (lambda f: change(f / "result.json", uses_mask=True), "config", "uses_mask is True, its"),
        (lambda f: change(f / "result.json", mixer_length=1), "config", "mixer_length is 1, its"),
    ],
)
def test_result_that_was_edited_by_hand_is_refused_with_the_reason(check, edit, name, reason):
    findings = check(edit, replay=12 if name == "replay" else 0)
    assert findings[name].state == "FAILED"
    assert reason in findings[name].reason


def test_scores_without_metrics_to_compare_with_are_noted(check):
    finding = check(lambda folder: (folder / "metrics.jsonl").unlink())["result"]
    assert finding.state == "note"
    assert finding.reason == "no validation scores in metrics.jsonl to compare with"


def test_run_that_began_with_other_code_is_noted_and_need_not_be_equal_to_the_bit(
    check, monkeypatch
):
    def edit(folder):
        value = disk.read_json(folder / "result.json")
        value["test"]["best"]["loss"] *= 1.001
        origin = {name: value[name] for name in ("device", "versions", "dirty")}
        value |= {"earlier": [origin | {"commit": "b" * 40}], "commit": "a" * 40, "dirty": False}
        (folder / "result.json").write_text(json.dumps(record.seal(value)))

    monkeypatch.setattr(verify, "_is_known", lambda commit: True)
    findings = check(edit)
    assert findings["score"].state == "ok"
    assert findings["code"].state == "note"
    assert "it began with other code or on another machine: bbb" in findings["code"].reason


@pytest.mark.parametrize(
    ("model", "denoise", "has"),
    [("fnet", False, True), ("long_conv", True, True), ("transformer", False, False)],
)
def test_numbers_of_models_with_an_fft_need_not_be_equal_on_several_cores(
    folders, monkeypatch, model, denoise, has
):
    built = experiment.load("listops", model, "cpu", denoise=denoise)
    result = record.read(folders["fnet"])
    here = provenance.of_process()
    for cores in (1, 4):
        device = dataclasses.replace(here.device, cores=cores)
        monkeypatch.setattr(
            provenance, "of_process", lambda d=device: dataclasses.replace(here, device=d)
        )
        same = dataclasses.replace(result, device=device)
        assert verify._same_bits(same, built) == (cores == 1 or not has)


CPU = made_results.part_of_a_run()


@pytest.mark.parametrize(
    ("now", "recorded", "state"),
    [
        ({}, {}, "FAILED"),
        ({"commit": "a" * 40}, {}, "ok"),
        ({"dirty": True}, {}, "ok"),
        ({}, {"dirty": True}, "ok"),
        ({}, {"versions": {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}}, "ok"),
        ({}, {"versions": {"optax": "0.1"}}, "ok"),
        ({}, {"scored_by": CPU}, "ok"),
    ],
)
def test_only_in_the_same_code_and_settings_must_a_run_be_equal_to_the_bit(
    check, monkeypatch, now, recorded, state
):
    def edit(folder):
        file = folder / "result.json"
        value = disk.read_json(file)
        edit_score(loss=1.001 * value["test"]["best"]["loss"])(folder)
        change(file, **{n: value[n] | v if n == "versions" else v for n, v in recorded.items()})

    here = provenance.of_process()
    monkeypatch.setattr(provenance, "of_process", lambda: dataclasses.replace(here, **now))
    monkeypatch.setattr(verify, "_transforms", lambda experiment: False)
    assert check(edit)["score"].state == state


def test_all_notes_about_the_code_are_given(monkeypatch, tmp_path):
    earlier = [made_results.part_of_a_run(commit="b" * 40)]
    fields = {"code": {"parity.py": "0" * 64}, "commit": "a" * 40, "dirty": True}
    fields |= {"config": "TASK = @Parity()", "scored_by": made_results.part_of_a_run()}
    result = record.parse(made_results.a_result(**fields, earlier=earlier))
    monkeypatch.setattr(verify, "_is_known", lambda commit: True)
    config.import_modules([PARITY])
    state, reason = verify._code(tmp_path, result, verify.Options(imports=(PARITY,)))
    assert state == "note"
    first, second, third, fourth = reason.split("; ")
    assert first.startswith("code of parity.py: 0000")
    assert second == "files differed from its commit"
    assert third.startswith("it began with other code or on another machine: bbb")
    assert fourth.startswith("it was scored on test with other code or on another machine: 0123456")


def test_score_without_a_loss_is_noted(check):
    """Older results have none."""

    def edit(folder):
        value = disk.read_json(folder / "result.json")
        del value["test"]["best"]["loss"]
        (folder / "result.json").write_text(json.dumps(record.seal(value)))

    findings = check(edit)
    assert findings["score"] == ("note", "exactly, but its test best has no loss to compare")
    assert findings["replay"].state == "not asked for"


def test_baseline_that_is_not_that_of_the_data_is_refused(tmp_path):
    folder = shutil.copytree(ROOT / "results/cpu/listops/fnet/seed0", tmp_path / "seed0")
    value = disk.read_json(folder / "result.json")
    value["shallow"]["test"]["correct"] = 1567
    value["shallow"]["correct_bits"] = None
    (folder / "result.json").write_text(json.dumps(record.seal(value)))
    found = verify.verify(folder, verify.Options(tmp_path)).findings["data"]
    assert found.state == "FAILED"
    assert "15.67 % of the test rows; listops/short_128 has most frequent" in found.reason


def test_content_that_does_not_fit_its_sha256_is_refused(check):
    def edit(folder):
        text = (folder / "result.json").read_text()
        (folder / "result.json").write_text(text.replace('"wall_seconds": ', '"wall_seconds": 1'))

    assert "its sha256 belongs to other content" in check(edit)["result"].reason


def test_committed_results_pass(capsys, monkeypatch):
    monkeypatch.setattr(verify, "_count", lambda *args: None)  # the next test counts them
    code = verify.main([ROOT / "results"], verify.Options(), data=ROOT / "no data")
    table = capsys.readouterr().out
    assert code == 0, table
    assert table.count("\n| ") == 1 + len(record.collect([ROOT / "results"])[0])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["cpu/retrieval", "cpu-pretrain", "tuned/image"])
def test_committed_results_have_the_parameters_of_their_configurations(capsys, part):
    """Of twelve encoders, and of both objectives; `lra-fnet verify results` counts them all.

    Those with fused attention, which needs a GPU, are noted.
    """
    code = verify.main([ROOT / "results" / part], verify.Options(), data=ROOT / "no data")
    assert code == 0, capsys.readouterr().out


def test_export_is_checked_and_scored(folders, tmp_path, capsys):
    words = [f"--import={PARITY}", "--run", str(folders["fnet"]), "--out", str(tmp_path / "out")]
    assert cli.main(["export", *words]) == 0
    data = disk.read_json(folders["fnet"] / "run.json")["data"]
    words = [f"--import={PARITY}", f"--gin-dir={OUTSIDE}", f"--data={data}", "--json"]
    capsys.readouterr()
    assert cli.main(["verify", *words, str(tmp_path / "out")]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["score"] == {"state": "ok", "reason": "exactly"}


def test_data_are_those_that_the_run_names(folders, tmp_path, capsys, monkeypatch):
    """From any folder. A damaged checkpoint fails without data too."""
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "seed0"
    shutil.copytree(folders["fnet"], copy)
    capsys.readouterr()  # of the training
    words = [f"--import={PARITY}", f"--gin-dir={OUTSIDE}", "--json", str(copy)]

    def score(*more):
        code = cli.main(["verify", *words, *more])
        (row,) = json.loads(capsys.readouterr().out)
        return code, row["score"]

    assert score() == (0, {"state": "ok", "reason": "exactly"})
    (tmp_path / "nothing").mkdir()
    assert score("--data=nothing")[1]["state"] == "not there"
    (copy / "checkpoints/best/state.safetensors").write_bytes(b"")
    code, found = score("--data=nothing")
    assert (code, found["state"]) == (1, "FAILED"), found


def test_folder_without_results_fails_with_one_line(tmp_path):
    with pytest.raises(UserError, match="holds no result: name a run folder"):
        verify.main([tmp_path], verify.Options())


def test_submitted_results_are_checked_when_they_are_named(tmp_path):
    ours, theirs = "cpu/listops/fnet/seed0", "submitted/ada/cpu/listops/fnet/seed0"
    for folder in (ours, theirs, ".old/cpu/listops/fnet/seed0"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "result.json").touch()
    assert verify.find(tmp_path) == [(tmp_path / ours, False)]
    assert verify.find(tmp_path / "submitted") == [(tmp_path / theirs, False)]


def test_result_without_checkpoints_and_data_is_checked_as_far_as_it_goes(tmp_path):
    folder = untrained(tmp_path / "runs", "listops", "fnet")
    shutil.rmtree(folder / "checkpoints")
    findings = verify.verify(folder, verify.Options(tmp_path, replay=5)).findings
    assert findings["score"] == ("not there", "no checkpoint")
    assert findings["replay"].state == "not there"
    assert "data" in findings["replay"].reason


def test_losses_are_added_as_in_training():
    """With Python 3.12 or later, `sum` would give 1e16 + 2."""
    assert replay.mean_loss([0.0, 1e16, 1.0, 1.0], 4, 3) == 1e16 / 3
