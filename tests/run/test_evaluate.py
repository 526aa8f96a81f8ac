"""A trained run is scored on test once, without a training loop."""

import dataclasses
import hashlib
import json
import re
import runpy
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from made_runs import STEPS, change, trained
from paths import EXAMPLES, OUTSIDE

import lra_fnet
from lra_fnet import config, counts
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import evaluate, provenance, verify
from lra_fnet.run import job as jobs
from lra_fnet.run import result as results
from lra_fnet.tasks import Prepared

pytestmark = pytest.mark.usefixtures("clean_tree")


def as_trial(folder, root):
    """Copies a run folder; the copy is as `--no-test` leaves it."""
    copy = root / "runs/cpu/parity" / folder.parent.name / "seed0"
    shutil.copytree(folder, copy)
    change(copy / "result.json", test=None)
    return copy


@pytest.fixture
def trial(folders, tmp_path):
    return as_trial(folders["fnet"], tmp_path)


def test_example_shows_where_dropout_acts(tmp_path, capsys):
    folder = trained(tmp_path / "runs", "fnet", *STEPS, "Encoder.dropout=0.5")
    best = disk.read_json(folder / "result.json")["validation"]["best"]
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / "dropout_gap.py"))["main"](folder)
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title == f"rate 0.5, {best['count']} rows"
    (nowhere,) = (line.split() for line in lines if line.startswith("nowhere"))
    assert float(nowhere[1]) == round(100 * best["correct"] / best["count"], 2)


def answers_of(run, rows):
    batch = run.task.tokens(rows.values, rows.lengths)
    return np.asarray(run.model.apply(run.variables, *batch, train=False)).argmax(-1)


def test_training_rows_are_scored_evenly_spread_and_as_many_as_validation_has(folders):
    """By the model of the last step, on each fourth of the 80 rows."""
    run = lra_fnet.load_run(folders["transformer"], "last")
    rows = run.data().arrays("train")
    right = (answers_of(run, rows) == rows.labels)[::4]
    train = disk.read_json(folders["transformer"] / "result.json")["train"]
    assert train == {"correct": int(right.sum()), "count": 20}


def test_rows_of_test_are_counted_by_label_and_answer(folders):
    run = lra_fnet.load_run(folders["transformer"], "last")
    rows, classes = run.data().arrays("test"), range(run.task.num_classes)
    answers = answers_of(run, rows)
    want = [[sum((rows.labels == y) & (answers == a)) for a in classes] for y in classes]
    result = disk.read_json(folders["transformer"] / "result.json")
    assert result["test"]["last"]["confusion"] == want
    assert "confusion" not in result["validation"]["last"]


def readings(folder):
    log = folder.parents[3] / "test_log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize(("model", "checkpoints"), [("fnet", 1), ("transformer", 2)])
def test_evaluate_gives_the_scores_of_training(folders, tmp_path, monkeypatch, model, checkpoints):
    """Whether best and last are one checkpoint, which is then scored once, or two."""
    expected = disk.read_json(folders[model] / "result.json")
    assert len({score["step"] for score in expected["test"].values()}) == checkpoints
    trial = as_trial(folders[model], tmp_path)
    calls = []
    make_scorer = evaluate.make_scorer

    def counting(*args):
        score = make_scorer(*args)
        return lambda *given, **named: calls.append(given) or score(*given, **named)

    monkeypatch.setattr(evaluate, "make_scorer", counting)
    result = evaluate.evaluate(trial)
    assert result.raw == disk.read_json(trial / "result.json") == expected
    assert len(calls) == checkpoints
    assert [reading["kind"] for reading in readings(trial)] == ["intended", "last", "best"]
    for reading in readings(trial)[1:]:
        assert reading["run"] == f"cpu/parity/{model}+tiny/seed0"
        score = expected["test"][reading["kind"]]
        assert all(reading[name] == score[name] for name in ("step", "correct", "count", "loss"))


@pytest.mark.parametrize(
    ("answers", "constant"),
    [
        ([1, 1, 1, 1, 1], True),
        ([1, 1, 1, 1, 2], False),
        ([1, 1, 1, 1, 0], True),  # as right as a constant answer, which is all that is kept
        ([3, 3, 3, 3, 3], False),  # a label that test does not hold: nothing is right, so unknown
        ([0, 1, 1, 2, 2], False),  # all right
    ],
)
def test_constant_answer_is_recorded(tmp_path, answers, constant):
    labels = np.array([0, 1, 1, 2, 2])
    right = np.array(answers) == labels
    sums = {"correct": int(right.sum()), "count": 5, "loss": 1.0}
    sums["correct_bits"] = counts.encode(right)
    data = SimpleNamespace(arrays=lambda split: SimpleNamespace(labels=labels))
    states = {"best": (1, {}), "last": (2, {})}
    scores = evaluate.score_test(lambda *_, **__: sums, states, data, tmp_path)
    assert [scores[kind]["constant"] for kind in ("best", "last")] == [constant] * 2


def test_trial_leaves_the_test_split_closed_until_it_is_evaluated(tmp_path, command, monkeypatch):
    opened, arrays = set(), Prepared.arrays
    monkeypatch.setattr(
        Prepared, "arrays", lambda data, split: opened.add(split) or arrays(data, split)
    )
    words = f"--import={OUTSIDE / 'parity.py'}", f"--gin-dir={OUTSIDE}"
    assert command("data", "--task=parity", *words, f"--data={tmp_path / 'data'}")[0] == 0
    opened.clear()  # the shallow baselines read it
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2", options=["--no-test"])
    assert opened == {"train", "validation"}
    assert disk.read_json(folder / "result.json")["test"] is None
    assert readings(folder) == []
    assert command("evaluate", "--run", folder)[0] == 0
    result = disk.read_json(folder / "result.json")
    assert result["test"]["best"]["count"] == 30
    assert "scored_by" not in result
    assert len(readings(folder)) == 3


def test_process_that_scores_later_with_other_code_is_recorded(trial, monkeypatch):
    here = provenance.of_process()
    other = dataclasses.replace(here, commit="e" * 40)
    monkeypatch.setattr(provenance, "of_process", lambda: other)
    result = evaluate.evaluate(trial)
    assert (result.commit, result.scored_by) == (here.commit, other)


def test_folder_copied_to_another_seed_is_refused(tmp_path, command):
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2")
    copy = shutil.copytree(folder, folder.with_name("seed1"))
    (copy / "result.json").unlink()
    begun = (copy / "run.json").read_bytes()
    line = command(*jobs.read(folder).command(), "--seed", "1").mistake
    assert "run: cpu/parity/fnet+tiny/seed0 -> cpu/parity/fnet+tiny/seed1" in line
    assert (copy / "run.json").read_bytes() == begun


def test_code_of_an_import_is_recorded_and_another_one_is_another_configuration(
    tmp_path, command, monkeypatch
):
    options = [f"--import={OUTSIDE / 'parity.py'}"]
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2", options=options)
    words = jobs.read(folder).command()
    (digits,) = results.read(folder).code.values()
    assert hashlib.sha256((OUTSIDE / "parity.py").read_bytes()).hexdigest()[:12] == digits
    assert command(*words)[0] == 0  # complete already
    monkeypatch.setattr(config, "code_of", lambda names: {"parity.py": "edited"})
    edited = f"code of parity.py: {digits} -> edited"
    assert edited in command(*words).mistake
    change(folder / "result.json", test=None)
    assert edited in command("evaluate", "--run", folder, *options).mistake
    assert not results.read(folder).tested
    code, err, _ = command("export", "--run", folder, *options, "--out", tmp_path / "out")
    assert (code, edited in err) == (0, True)
    row = verify.verify(folder, verify.Options(imports=(str(OUTSIDE / "parity.py"),)))
    assert row["code"].state == "note"
    assert edited in row["code"].reason


def test_import_that_is_left_out_or_added_is_another_configuration(tmp_path, command):
    """A module without configurables may change other code."""
    files = [tmp_path / f"patches_{name}.py" for name in ("one", "two", "three")]
    for file in files:
        file.write_text(f"NAME = {file.stem!r}\n")
    first, second, third = (f"--import={file}" for file in files)
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2", options=[first, second])
    words = dataclasses.replace(jobs.read(folder), imports=()).command()
    assert command(*words, second, first)[0] == 0  # complete already
    change(folder / "result.json", test=None)
    for options, line in (
        ([first], r"code of patches_two.py: \w{12} -> not imported"),
        ([first, second, third], r"code of patches_three.py: not recorded -> \w{12}"),
    ):
        for call in (words, ["evaluate", "--run", folder]):
            assert re.search(line, command(*call, *options).mistake)
            assert not results.read(folder).tested
    with pytest.raises(UserError, match=r"outside code, code of patches_two.py: if you trust"):
        lra_fnet.load_run(folder, imports=[files[0]])
    renamed = shutil.copy(files[1], tmp_path / "renamed.py")
    assert command("evaluate", "--run", str(folder), first, f"--import={renamed}")[0] == 0
    assert results.read(folder).tested


def test_reading_is_logged_before_the_split_is_opened_and_after_half_a_line(trial, monkeypatch):
    log = trial.parents[3] / "test_log.jsonl"
    log.write_text('{"run": "cpu/parity/a/seed0", "kind": "best"}\n{"run": "cpu/pa')

    def killed(data, split):
        raise SystemExit(137)

    # When the split is opened, not when it is scored.
    monkeypatch.setattr(Prepared, "arrays", killed)
    with pytest.raises(SystemExit):
        evaluate.evaluate(trial)
    assert [line.get("kind") for line in disk.read_lines(log, skip=True)] == ["best", "intended"]
    monkeypatch.undo()
    evaluate.evaluate(trial)
    kinds = [line["kind"] for line in disk.read_lines(log, skip=True)]
    assert kinds == ["best", "intended", "intended", "last", "best"]


def test_unfinished_run_fails_with_the_command_that_finishes_it(trial, command):
    (trial / "result.json").unlink()
    before = sorted(trial.rglob("*"))
    words = command("evaluate", "--run", trial).mistake.partition("lra-fnet train")[2].split()
    assert words.count("--set") == len(STEPS)
    assert command("train", *words)[0] == 0
    assert disk.read_json(trial / "result.json")["state"] == "complete"
    assert set(before) <= set(trial.rglob("*"))


def test_other_data_than_the_runs_fails_with_one_line(trial):
    change(trial / "result.json", data_sha256="0" * 64)
    with pytest.raises(UserError, match=r"was trained on data 00000000, .* holds [0-9a-f]{8}: "):
        evaluate.evaluate(trial)
    assert readings(trial) == []
