"""The package as a Python library: the same runs as the command line, quick to import, short."""

import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paths import OUTSIDE, PARITY

import lra_fnet
from lra_fnet import cli, config, settings
from lra_fnet.errors import UserError

WORDS = ["Run.num_steps=4", "Encoder.mlp_dim=4"]


@pytest.fixture
def parity(outside):
    """Trains a tiny run in an empty folder."""

    def train(**options):
        return lra_fnet.train(
            "parity", "ff_only", preset="cpu", gin_dirs=OUTSIDE, **{"set": WORDS, **options}
        )

    return train


def test_importing_the_package_imports_no_library():
    names = "{'jax', 'numpy', 'gin', 'rich'} & {*sys.modules}, lra_fnet.errors.UserError.code"
    code = f"import lra_fnet, sys; print({names})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() 2\n"


def test_a_program_may_have_locked_gin():
    code = "import gin, lra_fnet; gin.finalize(); lra_fnet.load('listops', 'no')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UserError: split must be one of train, validation, test, got 'no'" in done.stderr


def test_train_is_the_command_and_evaluate_scores_test(parity, command, capfd):
    run = parity(test=False)
    assert run.result.score("test") is None
    again = parity(test=False, set={"Encoder.mlp_dim": 4, "Run.num_steps": 4})
    assert again.folder == run.folder
    numbers = {"Encoder.mlp_dim": np.int64(4), "Run.num_steps": np.int64(4)}
    assert parity(test=False, seed=np.int64(0), set=numbers).folder == run.folder
    assert "complete already" in capfd.readouterr().err
    record = lra_fnet.evaluate(run)
    assert lra_fnet.evaluate(run.folder) == record
    capfd.readouterr()
    arrays = run.data().arrays("test")
    rows = [v[:n] for v, n in zip(arrays.values, arrays.lengths, strict=True)]
    correct = int((run.predict(rows).argmax(1) == arrays.labels).sum())
    assert correct == record.score("test").correct
    which = [*PARITY, "--model", "ff_only", *(f"--set={word}" for word in WORDS)]
    code, err, out = command("train", *which)
    assert (code, err) == (0, "complete already; --force (make: FORCE=1) trains it again\n")
    assert f"run folder: {run.folder}" in out
    assert callable(lra_fnet.train)  # no module took its name
    data = run.data()
    shallow = record.baseline
    for value in (run, record, run.experiment, run.task, run.job, data, arrays, shallow):
        assert len(repr(value)) < 500
        assert "\n" not in repr(value)
    assert repr(run).startswith(
        f"TrainedRun({run.folder}, best step {run.step}: Record(cpu/parity/"
    )


@pytest.mark.slow
def test_both_stages_of_pretraining_are_the_commands(parity):
    first = parity(denoise=True)
    assert "@denoise" in str(first.folder)
    assert lra_fnet.load_run(first.folder, denoise=True).result == first.result
    second = parity(init=first.folder)
    assert second.result.init.run == f"{first.result.label}/seed0"
    assert second.result.score("test")
    assert parity(init=first).folder == second.folder
    assert parity(init="auto").folder == second.folder
    opened = lra_fnet.load_run(first.folder, denoise=True)
    with pytest.raises(UserError, match="whose model has no classes: train one that begins from"):
        opened.predict([np.zeros(4, np.uint8)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "cpuu"}, "unknown preset 'cpuu'"),
        ({"set": "Run.steps=1"}, "doesn't have a parameter named 'steps'"),
        ({"set": 5}, "^set expects bindings such as 'Run.num_steps=100', got 5"),
        ({"set": [("Run.num_steps", 3)]}, "set expects bindings such as 'Run.num_steps=100', got"),
        ({"seed": -1}, "^seed expects a whole number from 0"),
        ({"seed": True}, "^seed expects a whole number from 0 to 4294967295, got True"),
        ({"set": {"MIXERS": ["@Fourier", ("@No",), None]}}, r"=\[@Fourier, \(@No,\), None\]"),
        ({"runs": None}, "^expected a path .* got None"),
        ({"imports": 3}, "^expected a path .* got 3"),
        ({"model": None}, "expect a name of letters, digits, .* got None"),
        ({"task": 3}, "expect a name of letters, digits, .* got 3"),
    ],
)
def test_a_mistake_is_a_user_error(outside, options, words):
    with pytest.raises(UserError, match=words):
        lra_fnet.train(**{"task": "listops", "model": "fnet", "preset": "cpu", **options})


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.path("~/lra") == settings.path(tmp_path / "lra") == tmp_path / "lra"
    assert settings.path("a:b/~") == Path("a:b/~")
    for wrong in ("~no_one_of_this_name/lra", "gs://bucket/lra", Path("s3://lra"), None, b"lra"):
        with pytest.raises(UserError):
            settings.path(wrong)


class Frame:
    """What is used of a pandas data frame."""

    columns = ("label", "text")

    def to_csv(self, index):
        return "label,text\n" + "".join(f"{i % 2},row {i}\n" for i in range(40)) * (not index)


def test_a_source_may_be_files_or_tables_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "test.csv").write_text("label,text\n1,a\n0,b\n")
    for source in (
        {"train": Frame(), "test": "~/test.csv"},
        {"train": [Frame()], "test": ["test.csv"]},
    ):
        for split, rows in (("test", 2), ("train", 36)):
            arrays = lra_fnet.load("csv", split, source=source, data_dir="~/lra")
            assert len(arrays.labels) == rows
    assert (tmp_path / "lra/lra_csv").is_dir()
    (tmp_path / "train.csv").write_text(Frame().to_csv(index=False))
    files = ["train.csv", Path("test.csv")]
    assert len(lra_fnet.load("csv", "test", source=files, data_dir="other").labels) == 2
    for source in (5, [5], {"train": None}, ["absent.csv"]):
        with pytest.raises(UserError):
            lra_fnet.load("csv", "test", source=source, data_dir="other")


def test_what_is_no_run_is_refused_with_one_line():
    for call in (lra_fnet.evaluate, lambda run: lra_fnet.train("listops", "fnet", init=run)):
        with pytest.raises(UserError, match=r"got 5: name"):
            call(5)


def test_modules_may_be_paths_and_none(outside):
    words = {"preset": "cpu", "gin_dirs": OUTSIDE, "set": WORDS, "test": False}
    run = lra_fnet.train("parity", "ff_only", imports=[OUTSIDE / "parity.py"], **words)
    assert run.imports == (str(OUTSIDE / "parity.py"),)
    assert lra_fnet.load_run(run.folder, imports=OUTSIDE / "parity.py").imports == run.imports


def test_copies_of_a_run_predict_the_same(parity):
    run = parity(test=False)
    rows = [np.zeros(4, np.uint8)]
    expected = run.predict(rows)
    for copied in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
        np.testing.assert_array_equal(copied.predict(rows), expected)


def test_preset_is_that_of_the_command():
    given = inspect.signature(lra_fnet.train).parameters["preset"].default
    words = ["train", "--task", "listops", "--model", "fnet"]
    assert given == cli.parser().parse_args(words).preset


def test_tasks_of_a_folder_of_gin_files_are_listed():
    assert {*lra_fnet.list_tasks([OUTSIDE])} == {*lra_fnet.list_tasks(), "parity"}


def test_batches_hold_every_row_once_in_file_order(outside):
    config.import_modules([str(OUTSIDE / "parity.py")])
    rows = lra_fnet.load("parity", "train")
    batches = lra_fnet.load("parity", "train", batch_size=32)
    assert [len(batch.labels) for batch in batches] == [32, 32, 16]
    for whole, *parts in zip(rows, *batches, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert len(batches[-1].labels) == len(batches[1:][1].labels) == 16
    with pytest.raises(IndexError):
        batches[3]
    with pytest.raises(UserError, match="batch_size must be at least 1, got 0: set it to 32"):
        lra_fnet.load("parity", "train", batch_size=0)
