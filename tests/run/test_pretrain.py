"""Two stages of one run by the commands: pre-training, and training that begins from it."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from paths import OUTSIDE

from lra_fnet import config
from lra_fnet.report import accuracy
from lra_fnet.run import record, verify
from lra_fnet.tasks import Prepared
from lra_fnet.train.loop import Loop

FIRST, SECOND = "runs/cpu/parity/fnet@denoise/seed0", "runs/cpu/parity/fnet+pretrained/seed0"
STEPS = "Run.num_steps=12 Run.save_seconds=0 Run.steps_per_dispatch=1"
NAMED = [path.replace("/seed0", "+n/seed0") for path in (FIRST, SECOND)]
NAMED[1] = NAMED[1].replace("+pretrained+n", "+pretrained-n")


@pytest.fixture
def call(command, tmp_path, monkeypatch):
    """Calls a verb for the task `parity` in an empty folder; returns as `command`."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(tmp_path)

    def call(verb, *options, model="fnet"):
        names = ["--task", "parity", "--model", model, "--preset", "cpu", "--gin-dir", OUTSIDE]
        return command(verb, *names, *options)

    return call


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """A folder with both stages of a run."""
    from lra_fnet import cli

    root = tmp_path_factory.mktemp("stages")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(OUTSIDE))
        patch.chdir(root)
        words = ["--task=parity", "--model=fnet", "--preset=cpu", f"--gin-dir={OUTSIDE}"]
        words += ["--gin", STEPS, "--name=n"]
        assert cli.main(["pretrain", *words]) == 0
        assert cli.main(["train", *words, "--init=auto"]) == 0
    return root


@pytest.fixture
def copied(stages, call, tmp_path):
    """Both stages in the current folder, which the test may change."""
    shutil.copytree(stages / "runs", "runs")
    shutil.copytree(stages / "data", "data")
    return tmp_path


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_each_stage_has_a_run_folder_and_says_what_it_began_from(stages):
    first, second = (result_of(stages / path) for path in NAMED)
    assert first["denoise"] is True
    assert (first["test"], first["validation"]["last"]["step"]) == (None, 6)
    assert first["validation"]["best"]["count"] > 20  # hidden tokens, not rows
    assert "Run.num_steps = 6" in second["config"]
    assert "Denoising" not in second["config"]
    assert second["test"]["best"]["count"] == 30
    init = second["init"]
    assert (init["run"], init["steps"], init["rate"]) == (
        "cpu/parity/fnet@denoise+n/seed0",
        6,
        0.15,
    )
    assert "Denoising.replacement='bert'" in init["objective"]
    assert init["step"] == first["validation"]["best"]["step"]
    assert init["wall_seconds"] == first["wall_seconds"]
    assert len(init["sha256"]) == 64
    losses = [record.curve(stages / path).loss for path in NAMED]
    assert [step for step, _ in losses[0]] == [2, 4, 6]


def test_pretraining_reads_neither_labels_nor_test_rows(call, monkeypatch):
    read = []
    arrays = Prepared.arrays

    def without_labels(self, split):
        read.append(split)
        found = arrays(self, split)
        return found._replace(labels=found.labels * 0 - 10**6)  # would not train

    monkeypatch.setattr(Prepared, "arrays", without_labels)
    code, err, out = call("pretrain", "--set", "Run.num_steps=2")
    assert code == 0, err
    assert sorted(set(read)) == ["train", "validation"]
    assert "hidden tokens right, at step 1" in out


class Killed(BaseException):
    """Ends a run as SIGKILL does: nothing more is saved."""


@pytest.mark.parametrize("ending", ["killed", "stopped"])
@pytest.mark.parametrize("stage", [0, 1], ids=["pretrain", "train"])
def test_a_run_that_was_ended_goes_on_bit_for_bit(stage, ending, copied, call, monkeypatch):
    before = result_of(copied / NAMED[stage])
    shutil.rmtree(NAMED[stage])
    finish = Loop._finish

    def end(self, count, table):
        finish(self, count, table)
        self.checkpoints.wait()
        if self.step == 5 and ending == "killed":
            raise Killed
        if self.step == 4 and ending == "stopped":
            signal.raise_signal(signal.SIGTERM)

    words = ["pretrain", "train"][stage], "--gin", STEPS, "--name=n", *["--init=auto"] * stage
    monkeypatch.setattr(Loop, "_finish", end)
    if ending == "killed":
        with pytest.raises(Killed):
            call(*words)
    else:
        assert call(*words)[0] == 143
    monkeypatch.setattr(Loop, "_finish", finish)
    code, err, _ = call(*words)
    assert code == 0, err
    assert re.search("resumes at step [1-5]:", err), err
    after = result_of(copied / NAMED[stage])
    for name in ("parameters_sha256", "validation", "test", "init", "config"):
        assert after.get(name) == before.get(name), name


def test_both_stages_are_verified_with_their_first_steps(stages, monkeypatch):
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(stages)
    config.import_modules([str(OUTSIDE / "parity.py")])
    options = verify.Options(imports=("parity",), gin_dirs=(OUTSIDE,), replay=6)
    for path in NAMED:
        found = verify.verify(stages / path, options, moved=False).findings
        states = {name: finding.state for name, finding in found.items()}
        assert (states["result"], states["config"], states["data"]) == ("ok", "ok", "ok"), found
        assert (states["score"], states["replay"]) == ("ok", "ok"), found
        assert "the same parameters" in found["replay"].reason


def test_tables_have_the_run_apart_with_the_cost_of_both_stages(stages):
    runs, problems = record.collect([stages / "runs"])
    assert [run.label for run in runs] == [
        f"cpu/parity/{path.split('/')[3]}" for path in NAMED[::-1]
    ]
    assert not problems
    (table,) = accuracy.tables(runs)
    (scratch,) = (row for row in table.rows if row.ours)
    (pretrained,) = table.variants
    assert (scratch.label, pretrained.variant) == ("FNet", "pretrained-n")
    assert scratch.cells["parity"].state == "-"
    minutes = sum(result_of(stages / path)["wall_seconds"] for path in NAMED) / 60
    (note,) = (note for note in table.notes if "began from" in note)
    assert note == (
        "FNet, pretrained, n on parity, seed 0: began from cpu/parity/fnet@denoise+n, trained for "
        f"6 of 12 steps and {minutes:.1f} minutes of both stages."
    )


def test_settings_of_pretraining_name_both_runs(call):
    """--init auto finds the run with the same options, and leaves its settings to it."""
    words = "--gin", "Run.num_steps=2 Denoising.rate=0.5"
    assert call("pretrain", *words)[0] == 0
    code, err, out = call("train", *words, "--init=auto")
    assert code == 0, err
    folder = Path(out.strip().splitlines()[-1].removeprefix("run folder: "))
    name = r"fnet\+pretrained-rate-0.5-num-steps-2-[0-9a-f]{8}-num-steps-2-[0-9a-f]{8}"
    assert re.fullmatch(name, folder.parent.name)
    assert result_of(folder)["overrides"] == ["Run.num_steps=2"]


INIT = ("--init", NAMED[0])
LONG = ("--set", "Run.num_steps=12")
WRONG = {
    "width": (
        ["--set", "Encoder.dim=4", *LONG, *INIT],
        {},
        r"another encoder \(Encoder.dim: 8 -> 4\): pre-",
    ),
    "positions": (
        ["--set", "Encoder.positions=learned", *LONG, *INIT],
        {},
        r"another encoder \(Encoder.positions: 'sinusoidal' -> 'learned'\)",
    ),
    "model": (INIT, {"model": "linear"}, "--init expects a run of model linear, .* is one of fnet"),
    "steps": (
        ["--set", "Run.num_steps=6", *INIT],
        {},
        r"Run.num_steps \(6\) counts the 6 steps of",
    ),
    "stage": (
        ["--init", NAMED[1]],
        {},
        "expects a run of `lra-fnet pretrain`, .* `lra-fnet train`",
    ),
    "folder": (["--init", "data"], {}, r"data is not a run folder \(it has no run.json\)"),
    "none": (["--init", "auto"], {}, r"fnet@denoise/seed0 is not a run folder"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_run_that_does_not_fit_is_one_line(case, copied, call):
    words, names, line = WRONG[case]
    code, err, out = call("train", *words, **names)
    assert (code, out) == (2, "")
    (said,) = err.splitlines()
    assert re.search(line, said), said
    assert [path.name for path in (copied / "runs/cpu/parity").glob("*")] != []


def test_an_unfinished_run_says_how_to_finish_it(copied, call):
    (copied / NAMED[0] / "result.json").unlink()
    code, err, _ = call("train", "--gin", STEPS, "--name=n", "--init=auto")
    assert code == 2
    assert err.startswith(
        f"lra-fnet: {NAMED[0]} holds an unfinished run; to finish it: lra-fnet pre"
    )


def test_other_tasks_and_other_data_are_refused(copied, call, command):
    names = "--task", "listops", "--model", "fnet", "--preset", "cpu"
    code, err, _ = command("train", *names, *INIT)
    assert code == 2
    assert "--init expects a run of task listops, " in err
    file = copied / NAMED[0] / "result.json"
    changed = result_of(file.parent) | {"data_sha256": "0" * 64}
    file.write_text(json.dumps(record.seal(changed)))
    code, err, _ = call("train", *LONG, *INIT)
    assert code == 2
    assert "was trained on data 00000000, data/lra_parity/full/1.0.0 holds " in err


def test_another_pretrained_run_is_another_configuration(copied, call):
    assert call("pretrain", "--gin", STEPS, "--name=n", "--seed=1")[0] == 0
    other = NAMED[0].replace("seed0", "seed1")
    code, err, _ = call("train", "--gin", STEPS, "--name=n", "--init", other)
    assert code == 2
    assert "holds a run of another configuration (encoder of --init: " in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["evaluate", "predict", "export", "span"])
def test_a_pretrained_run_has_no_classes(verb, copied, command):
    more = ["--out", "exported"] if verb == "export" else []
    code, err, _ = command(verb, "--run", NAMED[0], *more)
    assert code == 2
    assert "holds a run of `lra-fnet pretrain`, whose model has no classes: train one" in err
