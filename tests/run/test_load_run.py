"""A trained run is opened from its folder alone and gives the numbers of its training."""

import os
import shutil

import jax
import numpy as np
import pytest
from made_runs import change, flip_bit, untrained
from paths import EXAMPLES
from refused import one_line

import lra_fnet
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import job as jobs
from lra_fnet.training import checkpoint

BEST = "checkpoints/best/state.safetensors"
ROW = np.array([1], np.uint8)
MODELS = ("fnet", "random", "transformer")  # random has constants; transformer ignores padding


@pytest.fixture
def run(folders):
    return lra_fnet.load_run(folders["fnet"])


def rows_of(arrays):
    """Returns the rows of a split as inputs, without their padding."""
    return [v[:n] for v, n in zip(arrays.values, arrays.lengths, strict=True)]


def validation(run):
    return run.data().arrays("validation")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["best", "last"])
def test_loaded_run_has_the_accuracy_of_its_result(folders, model, kind):
    run = lra_fnet.load_run(folders[model], kind)
    arrays = validation(run)
    correct = run.predict(rows_of(arrays)).argmax(axis=1) == arrays.labels
    score = run.result.score("validation", kind)
    assert (int(correct.sum()), len(correct), run.step) == (score.correct, score.count, score.step)


@pytest.mark.parametrize("model", MODELS)
def test_last_parameters_have_the_hash_of_the_result(folders, model):
    run = lra_fnet.load_run(folders[model], "last")
    assert checkpoint.sha256(run.variables["params"]) == run.result.parameters_sha256
    assert set(run.variables) == ({"params", "constants"} if model == "random" else {"params"})


def test_loading_needs_no_data_and_changes_no_file(copy):
    def times():
        return {path: path.lstat().st_mtime_ns for path in [copy, *copy.rglob("*")]}

    (copy / "checkpoints/best/.state.safetensors.1").touch()  # of a killed process
    change(copy / "run.json", data="nowhere")
    with jobs.lock(copy):  # another process trains on
        before = times()
        run = lra_fnet.load_run(copy)
        run.predict([np.array([0, 1, 1], np.uint8)])
    assert times() == before
    assert run.folder == copy


@pytest.mark.parametrize("model", MODELS[1:])
def test_prediction_is_independent_of_the_other_inputs(folders, model):
    """Of their order and number, and of the rows that fill up a batch."""
    run = lra_fnet.load_run(folders[model])
    rows = rows_of(validation(run))
    together = run.logits(rows)
    np.testing.assert_allclose(run.predict(rows), jax.nn.softmax(together), rtol=1e-5)
    assert run.predict([]).shape == (0, 2)
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_array_equal(run.logits([rows[i] for i in order]), together[order])
    alone = np.concatenate([run.logits([row]) for row in rows])
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)  # other programs: rounding
    for count in (3, 19):
        np.testing.assert_allclose(run.logits(rows[:count]), together[:count], 1e-5, 1e-6)


def test_two_loaded_runs_are_independent(folders):
    """Gin is global; loaded runs are not."""
    first = lra_fnet.load_run(folders["fnet"])
    row = [np.array([1, 0, 1], np.uint8)]
    before = first.logits(row)
    second = lra_fnet.load_run(folders["transformer"])
    second.logits(row)
    again = lra_fnet.load_run(folders["fnet"])
    np.testing.assert_array_equal(again.logits(row), before)
    np.testing.assert_allclose(first.logits(row * 2)[:1], before, rtol=1e-5)  # compiles anew
    assert first.model.encoder.mixers == again.model.encoder.mixers


def test_run_of_a_user_mixer_is_loaded_by_its_imports(tmp_path):
    folder = untrained(
        tmp_path / "runs",
        "listops",
        "my_mixer",
        imports=(str(EXAMPLES / "my_mixer.py"),),
        dirs=(EXAMPLES / "gin",),
    )
    with pytest.raises(UserError, match=r"trained with outside code, .*my_mixer.py: if you trust"):
        lra_fnet.load_run(folder)
    run = lra_fnet.load_run(folder, imports=[str(EXAMPLES / "my_mixer.py")])
    assert run.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]", b"7"]).shape == (2, 10)
    assert run.imports == (str(EXAMPLES / "my_mixer.py"),)


def test_settings_that_came_with_later_versions_have_their_defaults(copy):
    text = disk.read_json(copy / "result.json")["config"]
    for line in (
        "Run.save_seconds = 10.0\n",
        "Encoder.batch_norm = None\n",
        "Fourier.scale = 'none'\n",
    ):
        assert line in text
        text = text.replace(line, "")
    change(copy / "result.json", config=text)
    assert lra_fnet.load_run(copy).step > 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Encoder.dim = 8\n", "", "Encoder.dim"),
        ("Encoder.dim = 8\n", "Encoder.width = 8\n", "width"),
        ("Fourier.scale = 'none'\n", "Fourier.scale = 'unit'\n", "Fourier.scale"),
    ],
)
def test_run_of_another_version_fails_with_one_line_that_names_its_commit(copy, old, new, words):
    text = disk.read_json(copy / "result.json")["config"]
    assert old in text
    change(copy / "result.json", config=text.replace(old, new, 1), commit="abc123")
    with pytest.raises(UserError, match=rf"{words}.*commit abc123$") as raised:
        lra_fnet.load_run(copy)
    assert "\n" not in str(raised.value)


def other_sizes(folder):
    text = disk.read_json(folder / "result.json")["config"]
    text = text.replace("Encoder.mlp_dim = 8", "Encoder.mlp_dim = 6")
    change(folder / "result.json", config=text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "result.json").unlink(), "is unfinished"),
        (lambda folder: change(folder / "result.json", state="diverged"), "ended as diverged"),
        (lambda folder: change(folder / "result.json", seed="0"), "result.json: seed"),
        (lambda folder: (folder / "run.json").unlink(), "no run.json"),
        (shutil.rmtree, "is not a run folder"),
        (lambda folder: shutil.rmtree(folder / "checkpoints"), "no checkpoint 'best'"),
        (lambda folder: os.truncate(folder / BEST, 1000), f"{BEST} cannot be read"),
        (lambda folder: flip_bit(folder / BEST), f"{BEST} cannot be read (its content does not"),
        (other_sizes, f"{BEST} does not fit the run's model at params/"),
    ],
)
def test_folder_without_a_model_fails_with_one_line(copy, damage, words):
    damage(copy)
    with one_line(words, str(copy)):
        lra_fnet.load_run(copy)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("checkpoint", lambda run: lra_fnet.load_run(run.folder, "first")),
        ("list", lambda run: run.predict("101")),
        ("input 1: expected str", lambda run: run.predict([ROW, 3])),
        ("parity .*encode", lambda run: run.predict(["101"])),
        ("at most 1, got array", lambda run: run.predict([ROW, np.array([0, 2], np.uint8)])),
        ("got array", lambda run: run.predict([np.array([], np.uint8)])),
        ("got array", lambda run: run.predict([np.array([0, 1])])),
        ("1 text", lambda run: run.predict([(ROW, ROW)])),
    ],
)
def test_mistake_of_the_caller_is_named(run, words, call):
    with pytest.raises(UserError, match=words):
        call(run)
