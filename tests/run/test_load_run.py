"""A trained run is opened from its folder alone and gives the numbers of its training."""

import os
import shutil

import jax
import numpy as np
import pytest
from made_runs import change, untrained
from paths import EXAMPLES

import lra_fnet
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import job as jobs
from lra_fnet.training import checkpoint

BEST = "checkpoints/best/state.safetensors"
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


def test_best_and_last_differ_in_these_runs(folders):
    """Otherwise the test above could not distinguish them."""
    best, last = (lra_fnet.load_run(folders["transformer"], kind) for kind in ("best", "last"))
    assert best.step < last.step
    assert checkpoint.sha256(best.variables["params"]) != last.result.parameters_sha256


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


def test_tokens_are_value_plus_one_before_the_padding(run):
    arrays = validation(run)
    real = np.arange(12) < arrays.lengths[:, None]
    ids, mask = run.tokens(rows_of(arrays))
    np.testing.assert_array_equal(mask, real)
    np.testing.assert_array_equal(ids, np.where(real, arrays.values + 1, 0))


def test_probabilities_are_the_softmax_of_the_logits(run):
    ids = np.zeros((1, 12), np.int32)
    ids[0, :3] = 2, 1, 2
    logits = jax.jit(lambda ids: run.model.apply(run.variables, ids, ids > 0, train=False))(ids)
    probabilities = run.predict([np.array([1, 0, 1], np.uint8)])
    np.testing.assert_allclose(probabilities, jax.nn.softmax(logits), rtol=1e-5)
    assert probabilities.shape == (1, 2)
    assert run.predict([]).shape == (0, 2)


@pytest.mark.parametrize("model", MODELS)
def test_prediction_is_independent_of_the_other_inputs(folders, model):
    """Of their order and number, and of the rows that fill up a batch."""
    run = lra_fnet.load_run(folders[model])
    rows = rows_of(validation(run))
    together = run.logits(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_array_equal(run.logits([rows[i] for i in order]), together[order])
    alone = np.concatenate([run.logits([row]) for row in rows])
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)  # other programs: rounding
    for count in (2, 3, 7, 9, 19):
        np.testing.assert_allclose(run.logits(rows[:count]), together[:count], 1e-5, 1e-6)


def test_one_program_is_compiled_per_power_of_two(run):
    row = np.array([1, 0, 1], np.uint8)
    for count in range(1, 21):
        run.logits([row] * count)
    assert run._program._cache_size() == 4  # 1, 2, 4 and the 8 of Run.eval_batch_size


def test_longer_inputs_are_truncated_at_the_end(run):
    long = np.resize(np.array([1, 0, 0], np.uint8), 40)
    np.testing.assert_array_equal(run.logits([long]), run.logits([long[:12]]))


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


def test_modules_that_only_a_folder_names_are_not_imported_by_evaluate(copy, monkeypatch):
    """A stranger may have put a name there; the caller's take its place."""
    change(copy / "run.json", imports=["evil"])
    run = lra_fnet.load_run(copy, imports=["json"])
    assert (run.needs, run.imports) == (("evil",), ("json",))
    given = []
    monkeypatch.setattr("lra_fnet.run.evaluate.evaluate", lambda *args: given.append(args))
    lra_fnet.evaluate(run)
    assert given == [(copy, ("json",), None)]


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
        ("Encoder.dim = 8\n", "", "Encoder needs Encoder.dim, which nothing binds"),
        ("Encoder.dim = 8\n", "Encoder.width = 8\n", "doesn't have a parameter.*width"),
        ("Encoder.remat = False\n", "Encoder.remat = 'all'\n", "Encoder.remat must be one of"),
        ("build.task = %TASK\n", "build.task = %TASK\nAttention.dropped = 1\n", "dropped"),
        ("Fourier.scale = 'none'\n", "Fourier.scale = 'unit'\n", "Fourier.scale must be one of"),
    ],
)
def test_run_of_another_version_fails_with_one_line_that_names_its_commit(copy, old, new, words):
    text = disk.read_json(copy / "result.json")["config"]
    assert old in text
    change(copy / "result.json", config=text.replace(old, new, 1), commit="abc123")
    with pytest.raises(UserError, match=words) as raised:
        lra_fnet.load_run(copy)
    line = str(raised.value)
    assert line.startswith(f"{copy} does not fit this version")
    assert line.endswith(": take the code of commit abc123")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import no_such_module", "its config imports no_such_module, which is outside code: if"),
        ("include 'mine.gin'", "its config includes the file 'mine.gin': do not use it"),
    ],
)
def test_config_that_needs_outside_code_fails_with_one_line(copy, line, words):
    text = disk.read_json(copy / "result.json")["config"]
    change(copy / "result.json", config=f"{line}\n{text}")
    with pytest.raises(UserError) as raised:
        lra_fnet.load_run(copy)
    assert str(raised.value).startswith(f"{copy}: {words}")


def unfinished(folder):
    (folder / "result.json").unlink()


def failed(folder):
    change(folder / "result.json", state="diverged")


def damaged(folder):
    change(folder / "result.json", floor={"correct": 2, "count": 1})


def no_run(folder):
    (folder / "run.json").unlink()


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("")


def no_checkpoints(folder):
    shutil.rmtree(folder / "checkpoints")


def half_a_header(folder):
    os.truncate(folder / BEST, 1000)


def half_a_checkpoint(folder):
    os.truncate(folder / BEST, (folder / BEST).stat().st_size - 1)


def flipped_bit(folder):
    data = bytearray((folder / BEST).read_bytes())
    data[-1] ^= 1
    (folder / BEST).write_bytes(data)


def another_step(folder):
    (folder / BEST).write_bytes((folder / BEST.replace("best", "last")).read_bytes())


def earlier_version(folder):
    shutil.rmtree(folder / "checkpoints/best")
    (folder / "checkpoints/best/12/state").mkdir(parents=True)


def other_sizes(folder):
    text = disk.read_json(folder / "result.json")["config"]
    text = text.replace("Encoder.mlp_dim = 8", "Encoder.mlp_dim = 6")
    change(folder / "result.json", config=text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (unfinished, "holds an unfinished run and was moved or renamed: move it to cpu/parity/"),
        (failed, "holds a run that ended as diverged, so it has no model; to train it again: lra-"),
        (
            damaged,
            "result.json: floor: 2 correct of 1 rows is impossible; restore it, move its folder",
        ),
        (no_run, "(it has no run.json): only its results were kept, so train it again"),
        (shutil.rmtree, "is not a run folder (there is no such folder)"),
        (a_file, "is not a run folder"),
        (no_checkpoints, "has no checkpoint 'best': put its folder checkpoints back, or"),
        (half_a_header, f"{BEST} cannot be read (it is cut short: expected at least "),
        (half_a_checkpoint, f"{BEST} cannot be read (it is cut short: expected at least "),
        (flipped_bit, f"{BEST} cannot be read (its content does not have its SHA-256): restore"),
        (earlier_version, "checkpoints/best: restore it from a copy, or train again with --force"),
        (other_sizes, f"{BEST} does not fit the run's model (expected float32 [6, 8] at params/"),
    ],
)
def test_folder_without_a_model_fails_with_one_line(copy, damage, words):
    damage(copy)
    with pytest.raises(UserError) as raised:
        lra_fnet.load_run(copy)
    assert words in str(raised.value)
    assert str(copy) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_unknown_checkpoint_fails_with_one_line(copy):
    with pytest.raises(UserError, match=r"^checkpoint must be best or last, got 'first'$"):
        lra_fnet.load_run(copy, "first")


@pytest.mark.parametrize("folder", [None, 3, b"runs"])
def test_folder_that_is_no_path_fails_with_one_line(folder):
    with pytest.raises(UserError, match=r"^expected the path of a run folder, got .*: name one$"):
        lra_fnet.load_run(folder)


@pytest.mark.parametrize("inputs", ["101", 3, None, iter(())])
def test_inputs_that_are_no_list_fail_with_one_line(run, inputs):
    with pytest.raises(UserError, match=r"^expected a list of inputs, got .*: put it into a list$"):
        run.predict(inputs)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (3, "input 1: expected a text (str or bytes) or an array of values, got int"),
        (None, "input 1: expected a text (str or bytes) or an array of values, got NoneType"),
        ("101", "task parity does not say how a raw input becomes tokens: define Parity.encode"),
        (np.array([0, 2], np.uint8), "input 1: expected values uint8 [length] of at most 1, got"),
        (np.array([], np.uint8), "input 1: expected values uint8 [length]"),
        (np.array([0, 1]), "input 1: expected values uint8 [length] of at most 1, got int64 [2]"),
        ((np.array([0], np.uint8),) * 2, "input 1: expected 1 text(s), got 2"),
    ],
)
def test_input_that_does_not_fit_the_task_fails_with_one_line(run, example, words):
    with pytest.raises(UserError) as raised:
        run.predict([np.array([1], np.uint8), example])
    assert words in str(raised.value)
