"""Two stages of one run by the commands: pre-training, and training that begins from it."""

import re
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from made_runs import change
from made_texts import NAME, SET, prepare_both, reviews
from paths import OUTSIDE

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import folder as folders
from lra_fnet.run import model as trained
from lra_fnet.run import result as results
from lra_fnet.run import verify
from lra_fnet.training.loop import Loop

STEPS = "Run.num_steps=12 Run.save_seconds=0 Run.steps_per_dispatch=1"
NAMED = [f"runs/cpu/parity/fnet{stage}n/seed0" for stage in ("@denoise+", "+pretrained-")]
# The stages of a corpus and of Text in its pieces.
PIECES = [
    "runs/cpu-pretrain/corpus/fnet@denoise+n/seed0",
    "runs/cpu-pretrain/text/fnet+pretrained-n/seed0",
]
TINY = "Run.num_steps=6 Run.save_every=1 Run.eval_every=2 Run.log_every=1 Run.batch_size=4"
TINY += f" {STEPS.partition(' ')[2]} MAX_LEN=32 Encoder.dim=8 Encoder.qkv_dim=8"
TINY += " Encoder.mlp_dim=8 Encoder.num_heads=2 Encoder.num_layers=1 Head.mlp_dim=8"


def words_of(task, *words):
    """The command of a stage, from its verb on."""
    if task == "parity":
        words = f"--gin-dir={OUTSIDE}", "--gin", STEPS, *words
        return [f"--task={task}", "--model=fnet", "--preset=cpu", "--name=n", *words]
    words = "--gin", f"{TINY} DATASET={NAME if task == 'corpus' else SET}", *words
    return [f"--task={task}", "--model=fnet", "--preset=cpu-pretrain", "--name=n", *words]


COMMANDS = {
    "parity": [["pretrain", *words_of("parity")], ["train", *words_of("parity"), "--init=auto"]],
    "pieces": [
        ["pretrain", *words_of("corpus")],
        ["train", *words_of("text", "--init", PIECES[0])],
    ],
}


def made_stages(root, kind):
    """Trains both stages in a folder."""
    from lra_fnet import cli

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(OUTSIDE))
        patch.chdir(root)
        for words in COMMANDS[kind]:
            assert cli.main(words) == 0
    return root


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """A folder with both stages of a run on parity."""
    return made_stages(tmp_path_factory.mktemp("stages"), "parity")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A folder with both stages of a run on a corpus and on Text in its pieces."""
    pytest.importorskip("sentencepiece")
    root = tmp_path_factory.mktemp("pieces")
    prepare_both(root / "data", root)
    return made_stages(root, "pieces")


@pytest.fixture
def copied(stages, parity, tmp_path):
    """Both stages in the current folder, which the test may change."""
    shutil.copytree(stages / "runs", "runs")
    shutil.copytree(stages / "data", "data")
    return tmp_path


def test_each_stage_has_a_run_folder_and_says_what_it_began_from(stages):
    first, second = (disk.read_json(stages / path / "result.json") for path in NAMED)
    assert (first["denoise"], first["test"], first["validation"]["last"]["step"]) == (True, None, 6)
    assert first["validation"]["best"]["count"] > 20  # masked tokens, not rows
    assert "Run.num_steps = 6" in second["config"]
    assert "Denoising" not in second["config"]
    assert second["test"]["best"]["count"] == 30
    init = second["init"]
    assert init["run"] == NAMED[0].removeprefix("runs/")
    assert (init["steps"], init["rate"]) == (6, 0.15)
    assert "Denoising.replacement='bert'" in init["objective"]
    assert init["step"] == first["validation"]["best"]["step"]
    assert init["wall_seconds"] == first["wall_seconds"]
    losses = [folders.curve(stages / path).loss for path in NAMED]
    assert [step for step, _ in losses[0]] == [2, 4, 6]


class Killed(BaseException):
    """Ends a run as SIGKILL does: nothing more is saved."""


@pytest.mark.parametrize(("stage", "ending"), [(0, "stopped"), (1, "killed")])
def test_a_run_that_was_ended_goes_on_bit_for_bit(
    stage, ending, copied, command, tmp_path, monkeypatch
):
    path, words = NAMED[stage], COMMANDS["parity"][stage]
    before = disk.read_json(tmp_path / path / "result.json")
    shutil.rmtree(path)
    finish = Loop._finish

    def end(self, count, table):
        finish(self, count, table)
        self.checkpoints.wait()
        if self.step == 5 and ending == "killed":
            raise Killed
        if self.step == 4 and ending == "stopped":
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Loop, "_finish", end)
    if ending == "killed":
        with pytest.raises(Killed):
            command(*words)
    else:
        assert command(*words)[0] == 143
    monkeypatch.setattr(Loop, "_finish", finish)
    code, err, _ = command(*words)
    assert code == 0, err
    assert re.search(r"resumes at step [1-5]:", err), err
    after = disk.read_json(tmp_path / path / "result.json")
    for name in ("parameters_sha256", "validation", "test", "init", "config"):
        assert after.get(name) == before.get(name), name


def test_texts_are_read_in_the_pieces_of_the_run_also_from_its_export(
    pieces, monkeypatch, tmp_path
):
    monkeypatch.chdir(pieces)
    run = trained.load_run(PIECES[1])
    arrays = run.data().arrays("test")
    rows = [values[:length] for values, length in zip(arrays.values, arrays.lengths, strict=True)]
    texts = [content for name, content in reviews().items() if name.startswith("test")]
    got = run.predict(texts)
    np.testing.assert_allclose(np.sort(got[:, 0]), np.sort(run.predict(rows)[:, 0]), rtol=1e-6)
    trained.export(Path(PIECES[1]), tmp_path / "out")
    again = trained.load_run(tmp_path / "out")
    np.testing.assert_array_equal(again.predict(texts[:1]), run.predict(texts[:1]))
    vocabulary = tmp_path / "out/vocabulary.model"
    vocabulary.write_bytes(vocabulary.read_bytes() + b" ")  # another one would give other answers
    with pytest.raises(UserError, match=r"vocabulary.model is not the file that was exported"):
        trained.load_run(tmp_path / "out")


def test_the_curve_of_a_corpus_has_both_metrics(pieces):
    folder = pieces / PIECES[0]
    lines = disk.read_lines(folder / "metrics.jsonl")
    last = [line for line in lines if line["kind"] == "validation"][-1]
    counts = results.read(folder).score("validation", "last")
    assert last["accuracy"] == counts.correct / counts.count
    assert last["order_accuracy"] == counts.order_correct / counts.rows
    assert last["order_loss"] == counts.order_loss / counts.rows
    assert verify.verify(folder, verify.Options(pieces / "data"))["result"].state == "ok"


def test_both_stages_are_verified_with_their_first_steps(stages, monkeypatch):
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(stages)
    config.import_modules([str(OUTSIDE / "parity.py")])
    options = verify.Options(imports=("parity",), gin_dirs=(OUTSIDE,), replay=6)
    for path in NAMED:
        found = verify.verify(stages / path, options, moved=False)
        states = {name: finding.state for name, finding in found.items()}
        assert (states["result"], states["config"], states["data"]) == ("ok", "ok", "ok"), found
        assert states["replay"] == "ok", found


def test_a_set_whose_validation_rows_are_its_test_rows_is_refused(command, tmp_path):
    words = "--task=text", "--model=fnet", "--preset=lra-code", f"--data={tmp_path}"
    assert "text/lra_code" in command("pretrain", *words).mistake


INIT = ("--init", NAMED[0], "--set", "Run.num_steps=12")
WRONG = {
    "width": (["--set", "Encoder.dim=4", *INIT], {}, "Encoder.dim: 8 -> 4"),
    "mixer": (["--set", "Fourier.scale=ortho", *INIT], {}, "'none' -> 'ortho'"),
    "model": (INIT, {"model": "linear"}, "model linear, .* is cpu.parity.fnet@denoise"),
    "steps": ([*INIT, "--set", "Run.num_steps=6"], {}, r"Run.num_steps \(6\) counts the 6"),
    "folder": (["--init", "data"], {}, "data is not a run folder"),
    "none": (["--init", "auto"], {}, "no .*fnet@denoise/seed0 yet; first: lra-fnet pretrain"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_run_that_does_not_fit_fails_with_one_line(case, copied, parity):
    words, names, line = WRONG[case]
    before = sorted(copied.rglob("*"))
    said = parity("train", *words, **names).mistake
    assert re.search(line, said), said
    assert sorted(copied.rglob("*")) == before


def test_other_texts_are_refused(pieces, command, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(pieces, tmp_path / "copy"))
    change(Path(PIECES[0]) / "result.json", data_sha256="0" * 64)
    assert "was trained on data 00000000" in command(*COMMANDS["pieces"][1]).err


def test_labels_of_other_drawn_rows_give_an_encoder_too(copied, parity):
    assert parity("train", "--name=labels").code == 0
    last = first = Path("runs/cpu/parity/fnet+labels/seed0")
    change(copied / first / "result.json", data_sha256="0" * 64)
    for name, steps in {"second": 40, "third": 60}.items():
        words = "--gin", f"Run.num_steps={steps} Optimizer.learning_rate=1e-30", "--init", last
        assert parity("train", f"--name={name}", *words).code == 0
        (last,) = Path("runs/cpu/parity").glob(f"fnet+pretrained-*{name}*/seed0")
        assert results.read(last).total_steps == steps
    assert results.read(last).init.objective == "DATASET='full'"
    begun, ended = (trained.load_run(path).variables["params"] for path in (first, last))
    jax.tree.map(np.testing.assert_array_equal, begun["encoder"], ended["encoder"])


@pytest.mark.parametrize("verb", ["evaluate", "predict", "export"])
def test_a_pretrained_run_has_no_classes(verb, copied, command):
    more = ["--out", "exported"] if verb == "export" else []
    assert "no classes" in command(verb, "--run", NAMED[0], *more).mistake
