"""A trained run as values: the numbers that its training had, from its folder alone."""

import shutil

import jax
import numpy as np
import pytest
import scipy.special
from made_runs import change, trained, untrained
from paths import EXAMPLES

import lra_fnet
from lra_fnet import tasks
from lra_fnet.errors import UserError
from lra_fnet.run import folder as run_folder
from lra_fnet.train import checkpoint, pipeline

MODELS = ("fnet", "random", "transformer")  # random has constants, transformer sees no padding
STEPS = ("Run.num_steps=12", "Run.eval_every=2", "Optimizer.learning_rate=0.03")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A trained run of each model."""
    root = tmp_path_factory.mktemp("trained")
    return {model: trained(root / "runs", model, *STEPS) for model in MODELS}


@pytest.fixture
def run(folders):
    return lra_fnet.load_run(folders["fnet"])


@pytest.fixture
def copy(folders, tmp_path):
    """A run folder to damage."""
    return shutil.copytree(folders["fnet"], tmp_path / "seed0")


def rows_of(arrays):
    """The rows of a split as inputs, without their padding."""
    return [v[:n] for v, n in zip(arrays.values, arrays.lengths, strict=True)]


def validation(folder):
    return tasks.make("parity").open(folder.parents[4] / "data").arrays("validation")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["best", "last"])
def test_a_loaded_run_is_right_on_as_many_rows_as_its_result_says(folders, model, kind):
    run = lra_fnet.load_run(folders[model], kind)
    arrays = validation(folders[model])
    correct = run.predict(rows_of(arrays)).argmax(axis=1) == arrays.labels
    said = run.result["validation"][kind]
    assert (int(correct.sum()), len(correct), run.step) == tuple(
        said[key] for key in ("correct", "count", "step")
    )


def test_best_and_last_are_different_states_here(folders):
    """Or the test above would not tell them apart."""
    best, last = (lra_fnet.load_run(folders["transformer"], kind) for kind in ("best", "last"))
    assert best.step < last.step
    assert checkpoint.sha256(best.variables["params"]) != last.result["parameters_sha256"]


@pytest.mark.parametrize("model", MODELS)
def test_the_last_parameters_are_those_that_the_result_names(folders, model):
    run = lra_fnet.load_run(folders[model], "last")
    assert checkpoint.sha256(run.variables["params"]) == run.result["parameters_sha256"]
    assert set(run.variables) == ({"params", "constants"} if model == "random" else {"params"})


def test_a_run_is_read_without_its_data_and_left_as_it_is(copy):
    def seen():
        return {path: path.lstat().st_mtime_ns for path in [copy, *copy.rglob("*")]}

    (copy / "checkpoints/best/7.orbax-checkpoint-tmp-1").mkdir()  # of a killed process
    before = seen()
    with run_folder.lock(copy):  # another process trains on
        before = seen()
        run = lra_fnet.load_run(copy)
        run.predict([np.array([0, 1, 1], np.uint8)])
    assert seen() == before
    assert run.folder == copy


def test_tokens_are_those_of_the_trainer(run, folders):
    arrays = validation(folders["fnet"])
    want = pipeline.tokens(arrays.values, arrays.lengths, False)
    for got, wanted in zip(run.tokens(rows_of(arrays)), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_probabilities_are_the_softmax_of_the_model(run):
    ids = np.zeros((1, 12), np.int32)
    ids[0, :3] = 2, 1, 2
    logits = jax.jit(lambda ids: run.model.apply(run.variables, ids, ids > 0, train=False))(ids)
    got = run.predict([np.array([1, 0, 1], np.uint8)])
    np.testing.assert_allclose(got, scipy.special.softmax(logits, axis=1), rtol=1e-5)
    assert got.shape == (1, 2)
    assert run.predict([]).shape == (0, 2)


@pytest.mark.parametrize("model", MODELS)
def test_a_prediction_depends_on_no_other_input(folders, model):
    """Neither on the order, nor on how many there are, nor on the filler of a batch."""
    run = lra_fnet.load_run(folders[model])
    rows = rows_of(validation(folders[model]))
    together = run.logits(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    np.testing.assert_array_equal(run.logits([rows[i] for i in order]), together[order])
    alone = np.concatenate([run.logits([row]) for row in rows])
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)  # other programs: rounding
    for count in (2, 3, 7, 9, 19):
        np.testing.assert_allclose(run.logits(rows[:count]), together[:count], 1e-5, 1e-6)


def test_batches_are_compiled_for_powers_of_two_only(run):
    row = np.array([1, 0, 1], np.uint8)
    for count in range(1, 21):
        run.logits([row] * count)
    assert run._apply._cache_size() == 4  # 1, 2, 4 and the 8 of Run.eval_batch_size


def test_inputs_longer_than_the_run_are_cut_at_the_end(run):
    long = np.resize(np.array([1, 0, 0], np.uint8), 40)
    np.testing.assert_array_equal(run.logits([long]), run.logits([long[:12]]))


def test_two_runs_do_not_disturb_each_other(folders):
    """Gin is global; what was loaded is not."""
    first = lra_fnet.load_run(folders["fnet"])
    row = [np.array([1, 0, 1], np.uint8)]
    before = first.logits(row)
    second = lra_fnet.load_run(folders["transformer"])
    second.logits(row)
    again = lra_fnet.load_run(folders["fnet"])
    np.testing.assert_array_equal(again.logits(row), before)
    first.logits(row * 2)  # compiles anew
    assert first.model.encoder.mixers == again.model.encoder.mixers


def test_a_run_of_a_users_own_mixer_is_loaded_by_its_imports(tmp_path):
    folder = untrained(
        tmp_path / "runs",
        "listops",
        "my_mixer",
        imports=(str(EXAMPLES / "my_mixer.py"),),
        dirs=(EXAMPLES / "gin",),
    )
    run = lra_fnet.load_run(folder)
    assert run.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]", b"7"]).shape == (2, 10)


def test_settings_of_training_alone_may_differ_between_versions(copy):
    """Run and Optimizer gain settings; what the model gives does not depend on them."""
    text = run_folder.read_json(copy / "run.json")["config"]
    change(copy / "run.json", config=text.replace("Run.save_seconds = 10.0\n", ""))
    assert lra_fnet.load_run(copy).step > 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Encoder.dim = 8\n", "", "Required bindings|required positional argument.*dim"),
        ("Encoder.dim = 8\n", "Encoder.width = 8\n", "doesn't have a parameter.*width"),
        ("Encoder.remat = False\n", "Encoder.remat = 'all'\n", "Encoder.remat must be one of"),
        ("# Macros:", "import no_such_module\n", "No module named 'no_such_module'"),
        ("build.task = %TASK\n", "build.task = %TASK\nAttention.dropped = 1\n", "dropped"),
        ("Fourier.name = None\n", "", "Fourier.name: absent -> None"),
    ],
)
def test_a_run_of_another_version_is_one_line_that_names_its_commit(copy, old, new, words):
    text = run_folder.read_json(copy / "run.json")["config"]
    assert old in text
    change(copy / "run.json", config=text.replace(old, new, 1))
    change(copy / "result.json", commit="abc123")
    with pytest.raises(UserError, match=words) as told:
        lra_fnet.load_run(copy)
    line = str(told.value)
    assert line.startswith(f"{copy} does not fit this version")
    assert line.endswith(": take the code of commit abc123")
    assert "\n" not in line


def unfinished(folder):
    (folder / "result.json").unlink()


def failed(folder):
    change(folder / "result.json", state="diverged")


def no_run(folder):
    (folder / "run.json").unlink()


def nothing(folder):
    shutil.rmtree(folder)


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("")


def no_checkpoints(folder):
    shutil.rmtree(folder / "checkpoints")


def half_a_checkpoint(folder):
    for part in (folder / "checkpoints/best").glob("*/state/manifest.ocdbt"):
        part.unlink()


def empty_checkpoint(folder):
    shutil.rmtree(folder / "checkpoints/best")
    (folder / "checkpoints/best").mkdir()


def other_sizes(folder):
    text = run_folder.read_json(folder / "run.json")["config"]
    change(folder / "run.json", config=text.replace("Encoder.mlp_dim = 8", "Encoder.mlp_dim = 6"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (unfinished, "holds a run that is not finished: run its command again"),
        (failed, "holds a run that ended as diverged: it has no model"),
        (no_run, "is no run folder (it has no run.json) and no exported one (no config.json)"),
        (nothing, "is no run folder"),
        (a_file, "is no run folder"),
        (no_checkpoints, "has no checkpoint 'best': copy the whole run folder"),
        (empty_checkpoint, "checkpoints/best has no complete checkpoint: copy"),
        (half_a_checkpoint, "cannot be read ("),
        (other_sizes, "checkpoints/best/12 holds arrays of other shapes than the run's model"),
    ],
)
def test_a_folder_without_a_model_is_one_line(copy, damage, words):
    damage(copy)
    with pytest.raises(UserError) as told:
        lra_fnet.load_run(copy)
    assert words in str(told.value)
    assert str(copy) in str(told.value)
    assert "\n" not in str(told.value)


def test_a_checkpoint_of_another_name_is_refused(copy):
    with pytest.raises(UserError, match=r"^checkpoint must be best or last, got 'first'$"):
        lra_fnet.load_run(copy, "first")


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ("101", "task parity does not say how a raw input becomes tokens: define Parity.encode"),
        (np.array([0, 2], np.uint8), "input 1: expected values uint8 [length] of at most 1, found"),
        (np.array([], np.uint8), "input 1: expected values uint8 [length]"),
        (np.array([0, 1]), "input 1: expected values uint8 [length] of at most 1, found int64 [2]"),
        ((np.array([0], np.uint8),) * 2, "input 1: expected 1 text(s), found 2"),
    ],
)
def test_an_input_that_the_task_has_not_is_one_line(run, one, words):
    with pytest.raises(UserError) as told:
        run.predict([np.array([1], np.uint8), one])
    assert words in str(told.value)
