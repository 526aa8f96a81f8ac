"""A trained run is scored on test once, without a training loop."""

import contextlib
import dataclasses
import hashlib
import json
import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from made_runs import STEPS, change, trained
from paths import EXAMPLES, OUTSIDE

import lra_fnet
from lra_fnet import config, counts, experiment
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import evaluate, provenance, verify
from lra_fnet.run import job as jobs
from lra_fnet.run import result as record
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
    rows = {line[:28].strip(): [float(cell) for cell in line[28:].split()] for line in lines}
    blocks = [f"encoder/block_{i}" for i in range(len(rows) // 2 - 1)]
    places = [f"{block}/{name}" for block in blocks for name in ("Dropout_0", "mlp")]
    assert [*rows] == ["nowhere", "everywhere", "encoder/Dropout_0", *places]
    accuracy, loss, *_ = rows["nowhere"]
    assert accuracy == round(100 * best["correct"] / best["count"], 2)
    assert abs(loss - best["loss"] / best["count"]) < 6e-4
    still = {name for name, row in rows.items() if row[3] == 0}
    assert still == {"nowhere"} | {name for name in places if "block_0" not in name}
    assert len({row[1] for row in rows.values()}) == len(rows)  # each place has its own effect


def test_example_shows_how_much_pooled_vectors_differ(folders, monkeypatch, capsys):
    run = lra_fnet.load_run(folders["fnet"])

    def load(task, model, preset, overrides):
        assert (task, model, preset) == ("parity", "fnet", "cpu")
        (momentum,) = [float(text.partition("=")[2]) for text in overrides] or [None]
        encoder = run.model.encoder.clone(batch_norm=momentum)
        return SimpleNamespace(task=run.task, model=run.model.clone(encoder=encoder))

    monkeypatch.setattr(experiment, "load", load)
    module = runpy.run_path(str(EXAMPLES / "pooled_share.py"))
    data = disk.read_json(folders["fnet"] / "run.json")["data"]
    capsys.readouterr()
    module["main"]("parity", "cpu", "fnet", data=data)
    name, *shares = capsys.readouterr().out.splitlines()[1].split()
    rows = run.data().arrays("validation").take(slice(module["ROWS"]))
    ids, mask = run.task.tokens(rows.values, rows.lengths)
    want = []
    for seed in range(module["SEEDS"]):
        variables = run.model.encoder.init(jax.random.key(seed), ids[:2], mask[:2], train=False)
        vectors = np.asarray(run.model.encoder.apply(variables, ids, mask, train=False), float)
        want.append(vectors.std(0).mean() / np.sqrt((vectors**2).mean()))
    assert (name, shares[0]) == ("fnet", f"{np.mean(want):.3f}")
    assert float(shares[1]) > float(shares[0])


def test_training_rows_are_scored_evenly_spread_and_as_many_as_validation_has(folders):
    """By the model of the last step, on each fourth of the 80 rows."""
    run = lra_fnet.load_run(folders["transformer"], "last")
    rows = run.data().arrays("train")
    batch = run.task.tokens(rows.values[::4], rows.lengths[::4])
    logits = run.model.apply(run.variables, *batch, train=False)
    right = np.asarray(logits).argmax(-1) == rows.labels[::4]
    train = disk.read_json(folders["transformer"] / "result.json")["train"]
    assert train == {"correct": int(right.sum()), "count": 20}


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
        ([0, 0, 0, 0, 0], True),
        ([1, 1, 1, 1, 2], False),
        ([1, 1, 1, 1, 0], True),  # as right as a constant answer, which is all that is kept
        ([1, 2, 0, 1, 0], False),
        ([3, 3, 3, 3, 3], False),  # a label that test does not hold: nothing is right, so unknown
        ([0, 1, 1, 2, 2], False),  # all right
    ],
)
def test_constant_answer_is_recorded(tmp_path, answers, constant):
    """Second way: the answers themselves, of which the scorer keeps only which are right."""
    labels = np.array([0, 1, 1, 2, 2])
    right = np.array(answers) == labels
    sums = {"correct": int(right.sum()), "count": 5, "loss": 1.0}

    def score(variables, arrays, between, *, bits):
        return sums | {"correct_bits": counts.encode(right)}

    data = SimpleNamespace(arrays=lambda split: SimpleNamespace(labels=labels))
    folder = tmp_path / "p/t/m/seed0"
    folder.mkdir(parents=True)
    scores = evaluate.score_test(score, {"best": (1, {}), "last": (2, {})}, data, folder)
    assert [scores[kind]["constant"] for kind in ("best", "last")] == [constant] * 2


def test_scored_run_is_returned_without_reading_data_or_checkpoints(trial, command):
    evaluate.evaluate(trial)
    change(trial / "run.json", data="nowhere")
    shutil.rmtree(trial / "checkpoints")
    before = (trial / "result.json").stat().st_mtime_ns
    code, err, out = command("evaluate", "--run", trial)
    assert (code, err) == (0, "")
    assert "parity" in out
    assert (trial / "result.json").stat().st_mtime_ns == before
    assert len(readings(trial)) == 3


def test_run_that_another_process_scores_first_is_not_scored_again(folders, trial, monkeypatch):
    lock = jobs.lock

    @contextlib.contextmanager
    def late(folder):
        with lock(folder):
            shutil.copy(folders["fnet"] / "result.json", folder)
            yield

    monkeypatch.setattr(jobs, "lock", late)
    assert evaluate.evaluate(trial).score("test")
    assert readings(trial) == []


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


def test_complete_run_without_checkpoints_is_not_trained_again_for_its_test(tmp_path, command):
    options = ["--no-test"]
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2", options=options)
    shutil.rmtree(folder / "checkpoints")
    kept = {path: path.read_bytes() for path in folder.glob("*.json*")}
    words = jobs.read_job(folder).command()
    assert words[-1] == "--no-test"
    code, err, _ = command(*words[:-1])
    assert code == 2
    assert "its folder checkpoints is gone: put it back" in err
    assert {path: path.read_bytes() for path in folder.glob("*.json*")} == kept
    assert command(*words)[0] == 0  # it is complete


def test_out_of_memory_as_it_is_scored_leaves_a_complete_run_as_it_is(
    tmp_path, command, monkeypatch
):
    options = ["--no-test"]
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2", options=options)
    words = jobs.read_job(folder).command()[:-1]
    kept = (folder / "result.json").read_bytes()

    def full(*given):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(evaluate, "score_test", full)
        code, err, _ = command(*words)
    assert code == 1, err
    assert "out of device memory" in err
    assert (folder / "result.json").read_bytes() == kept
    assert command(*words)[0] == 0
    assert record.read(folder).score("test")


def test_folder_copied_to_another_seed_is_refused(tmp_path, command):
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2")
    copy = shutil.copytree(folder, folder.with_name("seed1"))
    (copy / "result.json").unlink()
    begun = (copy / "run.json").read_bytes()
    code, err, _ = command(*jobs.read_job(folder).command(), "--seed", "1")
    assert code == 2
    assert "seed1 holds the run cpu/parity/fnet+tiny/seed0, and was copied or renamed" in err
    assert (copy / "run.json").read_bytes() == begun


def test_code_of_an_import_is_recorded_and_another_one_is_another_configuration(
    tmp_path, command, monkeypatch
):
    options = [f"--import={OUTSIDE / 'parity.py'}"]
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2", options=options)
    words = jobs.read_job(folder).command()
    (digits,) = record.read(folder).code.values()
    assert hashlib.sha256((OUTSIDE / "parity.py").read_bytes()).hexdigest()[:12] == digits
    assert command(*words)[0] == 0  # complete already
    monkeypatch.setattr(config, "code_of", lambda names: {"parity.py": "edited"})
    code, err, _ = command(*words)
    assert code == 2
    assert f"another configuration (code of parity.py: {digits} -> edited)" in err
    change(folder / "result.json", test=None)
    code, err, _ = command("evaluate", "--run", str(folder), *options)
    assert code == 2
    (said,) = err.splitlines()
    assert f"(code of parity.py: {digits} -> edited): restore it" in said
    assert not record.read(folder).tested
    code, err, _ = command("export", "--run", str(folder), *options, "--out", str(tmp_path / "out"))
    assert code == 0, err
    assert f"was trained with other code (code of parity.py: {digits} -> edited)" in err
    row = verify.verify(folder, verify.Options(imports=(str(OUTSIDE / "parity.py"),)))
    state, reason = row.findings["code"]
    assert state == "note"
    assert reason.startswith(f"code of parity.py: {digits} -> edited")


def test_edit_of_an_import_that_a_run_does_not_use_leaves_the_run_alone(tmp_path, command):
    """As when a baseline is trained by the command that trains one's own mixer."""
    option = f"--import={EXAMPLES / 'my_mixer.py'}"
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2", options=[option])
    begun = jobs.read_job(folder)
    assert begun.imports == ()
    assert record.read(folder).code == {}
    assert lra_fnet.load_run(folder).imports == ()  # which would refuse a run of outside code
    change(folder / "run.json", imports=["my_mixer.py"], code={"my_mixer.py": "0" * 12})
    code, err, _ = command(*begun.command(), option)  # begun by a version that recorded it
    assert code == 0, err
    assert "complete already" in err


def test_import_that_is_left_out_or_added_is_another_configuration(tmp_path, command):
    """A module without configurables may change other code."""
    names = ("patches_one", "patches_two")
    files = [tmp_path / f"{name}.py" for name in names]
    for file in files:
        file.write_text(f"NAME = {file.stem!r}\n")
    first, second = (f"--import={file}" for file in files)
    folder = trained(tmp_path / "runs", "fnet", "Run.num_steps=2", options=[first, second])
    assert record.read(folder).code.keys() == {f"{name}.py" for name in names}
    words = dataclasses.replace(jobs.read_job(folder), imports=()).command()
    assert command(*words, second, first)[0] == 0  # complete already
    for kept, gone in ((first, "patches_two"), (second, "patches_one")):
        code, err, _ = command(*words, kept)
        assert code == 2
        assert re.search(rf"\(code of {gone}.py: \w{{12}} -> not imported\): --force", err)
    third = tmp_path / "patches_three.py"
    third.write_text("NAME = 3\n")
    code, err, _ = command(*words, first, second, f"--import={third}")
    assert code == 2
    assert re.search(r"\(code of patches_three.py: not recorded -> \w{12}\): --force", err)
    change(folder / "result.json", test=None)
    score = ("evaluate", "--run", str(folder))
    for options, reason in (
        ([], "-> not imported): name it with --import, if you trust your copy"),
        ([first], "patches_two.py: "),
        ([first, second, f"--import={third}"], "code of patches_three.py: not recorded -> "),
    ):
        code, err, _ = command(*score, *options)
        assert code == 2
        assert reason in err
        assert not record.read(folder).tested
    with pytest.raises(UserError, match=r"outside code, \S+/patches_two.py: if you trust"):
        lra_fnet.load_run(folder, imports=[files[0]])
    renamed = tmp_path / "renamed.py"
    shutil.copy(files[1], renamed)
    assert command(*score, first, f"--import={renamed}")[0] == 0
    assert record.read(folder).tested


def test_dotted_import_of_which_an_older_version_recorded_no_code_is_accepted():
    config.import_modules(["json"])
    assert record.code_differences({}, "", ["json"], named=["json"]) == []
    (one,) = record.code_differences({}, "", ["json"], named=[])
    assert (one.name, one.old) == ("code of json.py", "not recorded")


def test_reading_is_logged_before_the_split_is_opened_and_after_half_a_line(trial, monkeypatch):
    log = trial.parents[3] / "test_log.jsonl"
    log.write_text('{"run": "cpu/parity/a/seed0", "kind": "best"}\n{"run": "cpu/pa')

    def killed(data, split):
        raise SystemExit(137)

    monkeypatch.setattr(
        Prepared, "arrays", killed
    )  # when the split is opened, not when it is scored
    with pytest.raises(SystemExit):
        evaluate.evaluate(trial)
    assert [line.get("kind") for line in disk.read_lines(log, skip=True)] == ["best", "intended"]
    monkeypatch.undo()
    evaluate.evaluate(trial)
    kinds = [line["kind"] for line in disk.read_lines(log, skip=True)]
    assert kinds == ["best", "intended", "intended", "last", "best"]


def test_moved_run_folder_keeps_its_readings_inside(folders, tmp_path):
    moved = shutil.copytree(folders["fnet"], tmp_path / "elsewhere")
    change(moved / "result.json", test=None)
    evaluate.evaluate(moved)
    assert len(disk.read_lines(moved / "test_log.jsonl")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.parametrize("way", ["above", "link"])
def test_a_folder_that_is_named_in_another_way_logs_where_all_runs_do(trial, monkeypatch, way):
    root = trial.parents[3]
    monkeypatch.chdir(trial)
    (root / "link").symlink_to(trial)
    evaluate.evaluate({"above": Path("../seed0"), "link": root / "link"}[way])
    lines = disk.read_lines(root / "test_log.jsonl")
    assert {line["run"] for line in lines} == {trial.relative_to(root).as_posix()}


def test_unfinished_run_fails_with_the_command_that_finishes_it(trial, command):
    (trial / "result.json").unlink()
    before = sorted(trial.rglob("*"))
    code, err, out = command("evaluate", "--run", trial)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{trial} holds an unfinished run; to finish it: lra-fnet train --task parity" in err
    words = err.partition("lra-fnet train")[2].split()
    assert words.count("--set") == len(STEPS)
    assert command("train", *words)[0] == 0
    assert disk.read_json(trial / "result.json")["state"] == "complete"
    assert set(before) <= set(trial.rglob("*"))


def test_unfinished_run_that_was_moved_resumes_in_another_folder_of_runs_only(trial, tmp_path):
    (trial / "result.json").unlink()
    parts = trial.parts[-4:]
    moved = tmp_path / "elsewhere"
    trial.rename(moved)
    with pytest.raises(UserError, match="was moved or renamed: move it to ") as caught:
        evaluate.evaluate(moved)
    assert f"move it to {'/'.join(parts)} below a folder of runs" in str(caught.value)
    back = tmp_path.joinpath("other", *parts)
    back.parent.mkdir(parents=True)
    moved.rename(back)
    with pytest.raises(UserError, match=r"unfinished run; to finish it: lra-fnet train .*other"):
        evaluate.evaluate(back)


def test_other_data_than_the_runs_fails_with_one_line(trial):
    change(trial / "result.json", data_sha256="0" * 64)
    with pytest.raises(UserError, match=r"was trained on data 00000000, .* holds [0-9a-f]{8}: "):
        evaluate.evaluate(trial)
    assert readings(trial) == []


def test_folder_without_a_run_fails_with_one_line(tmp_path):
    with pytest.raises(UserError, match=r"is not a run folder \(it has no run.json\): name one"):
        evaluate.evaluate(tmp_path)
