"""The command: one run from names to result.json, and what every mistake gets."""

import json
import os
import pkgutil
import random
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import jax
import pytest
from paths import OUTSIDE, ROOT

from lra_fnet import cli, config, intervals, tasks
from lra_fnet.errors import UserError
from lra_fnet.run import folder as run_folder


@pytest.fixture
def go(tmp_path, monkeypatch, capfd):
    """Calls `lra-fnet train` on the tiny task; returns the exit code, standard error and output."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(tmp_path)

    def call(*more, command="train", model="fnet"):
        which = ["--task", "parity", "--model", model, "--preset", "cpu", "--gin-dir", str(OUTSIDE)]
        code = cli.main([command, *(which if command == "train" else []), *more])
        captured = capfd.readouterr()
        return code, captured.err, captured.out

    return call


def test_a_run_leaves_everything_in_its_folder(go, tmp_path):
    code, _, out = go()
    assert code == 0
    assert "run folder: runs/cpu/parity/fnet/seed0" in out
    folder = tmp_path / "runs/cpu/parity/fnet/seed0"
    result = json.loads((folder / "result.json").read_text())
    assert result["state"] == "complete"
    assert result["test"]["best"]["count"] == 30
    assert result["validation"]["last"] | {"loss": 0} == {
        "step": 6,
        "correct": result["validation"]["last"]["correct"],
        "count": 20,
        "loss": 0,
    }
    assert result["train"]["count"] == 20
    assert result["mixer_length"] == 12
    assert result["uses_mask"] is False
    assert result["overrides"] == []
    assert "Encoder.dim = 8" in result["config"]
    for name in ("parameters", "steps_per_second", "peak_bytes", "wall_seconds"):
        assert result[name] > 0
    for split, marked in (("test", True), ("validation", False)):
        for counts in result[split].values():
            right = intervals.bits(counts)
            assert (right is not None) == marked
    readings = (tmp_path / "runs/test_log.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in readings] == ["last", "best"]
    assert "correct_bits" not in readings[0]
    assert (folder / "config.gin").read_text() == result["config"]


def test_a_step_that_the_memory_cannot_hold_is_a_state_not_a_crash(go, tmp_path, monkeypatch):
    """Linear at Path-X, say: before the state is made, so the kernel kills nobody."""
    monkeypatch.setattr("lra_fnet.train.slices.free_memory", lambda: 10_000)
    code, err, _ = go(model="linear")
    assert code == 1
    line = err.strip().splitlines()[-1]
    assert line.startswith("lra-fnet: out of memory: a step needs 0.0 GB, 0.0 GB are free: set")
    result = json.loads((tmp_path / "runs/cpu/parity/linear/seed0/result.json").read_text())
    assert (result["state"], result["test"]) == ("OOM", None)


def test_a_complete_run_is_not_trained_again_unless_forced(go, tmp_path):
    go()
    result = tmp_path / "runs/cpu/parity/fnet/seed0/result.json"
    before = result.stat().st_mtime_ns
    code, err, _ = go()
    assert code == 0
    assert "complete already" in err
    assert result.stat().st_mtime_ns == before
    code, err, _ = go("--force")
    assert code == 0
    assert "the old run is now" in err
    assert result.stat().st_mtime_ns != before
    assert len(list((tmp_path / "runs/cpu/parity/fnet").glob(".seed0.moved-*"))) == 1


def test_overrides_make_a_folder_of_their_own(go, tmp_path):
    code, _, out = go("--gin", "Run.num_steps=3 Encoder.mlp_dim=4")
    assert code == 0
    folder = out.strip().splitlines()[-1].removeprefix("run folder: ")
    assert "/fnet+4_3-" in folder or "/fnet+mlp" in folder, folder
    result = json.loads((tmp_path / folder / "result.json").read_text())
    assert result["overrides"] == ["Encoder.mlp_dim=4", "Run.num_steps=3"]
    _, _, named = go("--gin", "Run.num_steps=3", "--name", "short")
    assert "run folder: runs/cpu/parity/fnet+short/seed0" in named


def test_one_name_for_two_configurations_is_refused(go):
    go("--set", "Run.num_steps=3", "--name", "a")
    code, err, _ = go("--set", "Run.num_steps=4", "--name", "a")
    assert code == 2
    assert "Run.num_steps: 3 -> 4" in err
    assert "FORCE=1" in err


def test_a_trial_leaves_the_test_split_closed_and_evaluate_opens_it_once(go, tmp_path):
    code, _, _ = go("--no-test")
    assert code == 0
    folder = tmp_path / "runs/cpu/parity/fnet/seed0"
    assert json.loads((folder / "result.json").read_text())["test"] is None
    assert not (tmp_path / "runs/test_log.jsonl").exists()
    for _ in range(2):
        code, _, out = go("--run", str(folder), command="evaluate")
        assert code == 0
        assert "parity" in out
    assert len((tmp_path / "runs/test_log.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("where", "saved"),
    [
        ("lra_fnet.tasks.store.write", False),  # preparation
        ("lra_fnet.train.loop.Program.compile", False),
        ("lra_fnet.train.loop.wait_for", True),  # the first steps
        ("lra_fnet.train.loop.Checkpoints.save", True),
        ("lra_fnet.run.evaluate.score_test", False),
        ("lra_fnet.run.evaluate.run_folder.write_json", False),
    ],
)
def test_sigterm_at_any_moment_is_code_143_and_the_same_command_goes_on(
    where, saved, go, tmp_path, monkeypatch, capfd
):
    place, _, name = where.rpartition(".")
    owner = pkgutil.resolve_name(place)
    call = getattr(owner, name)
    calls = []

    def interrupt(*given, **more):
        calls.append(given)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupt)
        patched.setattr(os, "_exit", sys.exit)
        try:
            code, err, _ = go()
        except SystemExit as error:
            code, err = error.code, capfd.readouterr().err
    assert code == 143, err
    assert ("saved; to resume: " in err) == saved
    assert ("lra-fnet: stopped; the same command goes on\n" in err) != saved
    assert go()[0] == 0
    result = json.loads((tmp_path / "runs/cpu/parity/fnet/seed0/result.json").read_text())
    assert (result["state"], result["test"]["last"]["step"]) == ("complete", 6)
    assert len((tmp_path / "runs/test_log.jsonl").read_text().splitlines()) == 2


def test_a_folder_in_use_by_another_process_is_refused(go, tmp_path):
    with run_folder.lock(tmp_path / "runs/cpu/parity/fnet/seed0"):
        code, err, _ = go()
    assert code == 2
    assert f"is in use by process {os.getpid()}: wait" in err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--model", "fnett"], "unknown model 'fnett'; known models: bigbird, "),
        (["--task", "parrity"], "unknown task 'parrity'"),
        (["--preset", "gpu"], "unknown preset 'gpu'"),
        (["--seed", "-1"], "SEED expects a whole number of at least 0, got -1"),
        (["--seed", "x"], "invalid int value: 'x'"),
        (["--name", "a/b"], "NAME expects letters"),
        (["--set", "Run.num_steps=-3"], "Run.num_steps expects a whole number of at least 1"),
        (["--set", "Attention.implementation='naive'"], "nothing reads Attention.implementation"),
        (["--import", "no_such_module"], "No module named 'no_such_module'"),
        (["--runs", "/proc/runs"], "/proc/runs"),
    ],
)
def test_a_mistake_gets_one_line_and_code_2(go, more, words):
    code, err, out = go(*more)
    lines = [line for line in err.splitlines() if "preparing" not in line]
    assert code == 2, err
    assert len(lines) == 1, err
    assert lines[0].startswith("lra-fnet: ")
    assert words in lines[0]
    assert not out


def test_divergence_is_a_result_and_code_1(go, tmp_path, monkeypatch):
    with jax.debug_nans(False):
        code, err, _ = go(
            "--set",
            "Optimizer.learning_rate=1e30",
            "--set",
            "Optimizer.clip_norm=None",
            "--name",
            "hot",
        )
    assert code == 1
    assert "not finite" in err
    result = json.loads((tmp_path / "runs/cpu/parity/fnet+hot/seed0/result.json").read_text())
    assert result["state"] == "diverged"
    assert result["test"] is None


@pytest.mark.slow
def test_three_kills_at_random_moments_change_no_number(tmp_path):
    """The command itself, killed without warning wherever it is, and started again."""
    command = [sys.executable, "-m", "lra_fnet.cli", "train", "--task", "parity", "--model", "fnet"]
    command += ["--preset", "cpu", "--gin-dir", str(OUTSIDE), "--name", "long"]
    for setting in (
        "num_steps=600",
        "steps_per_dispatch=4",
        "eval_every=50",
        "save_every=20",
        "save_seconds=0",
    ):
        command += ["--set", f"Run.{setting}"]
    environment = os.environ | {"PYTHONPATH": f"{OUTSIDE.parent.parent}{os.pathsep}{OUTSIDE}"}

    def start(runs):
        arguments = [*command, "--runs", str(runs)]
        with open(tmp_path / "log", "ab") as log:
            return subprocess.Popen(
                arguments, cwd=tmp_path, env=environment, stderr=log, stdout=log
            )

    def result(runs):
        text = (runs / "cpu/parity/fnet+long/seed0/result.json").read_text()
        changing = {"steps_per_second", "wall_seconds", "peak_bytes", "commit", "dirty"}
        return {k: v for k, v in json.loads(text).items() if k not in changing}

    whole = start(tmp_path / "whole")
    assert whole.wait() == 0
    metrics = tmp_path / "killed/cpu/parity/fnet+long/seed0/metrics.jsonl"
    rng = random.Random(0)
    for step in sorted(rng.sample(range(20, 550), 3)):
        process = start(tmp_path / "killed")
        while process.poll() is None and _newest_step(metrics) < step:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        assert process.wait() == -9
    last = start(tmp_path / "killed")
    assert last.wait() == 0
    assert result(tmp_path / "killed") == result(tmp_path / "whole")


def _newest_step(metrics):
    """Step of the last whole line; 0 while there is none."""
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    steps = [json.loads(line)["step"] for line in lines[-2:] if line.endswith("\n")]
    return max(steps, default=0)


def test_a_run_never_imports_tensorflow(tmp_path):
    code = (
        "import sys; from lra_fnet import cli\n"
        "code = cli.main(['train', '--task', 'parity', '--model', 'fnet', '--preset', 'cpu',"
        f" '--gin-dir', {str(OUTSIDE)!r}])\n"
        "assert code == 0\n"
        "found = sorted(m for m in sys.modules if m.split('.')[0] in ('tensorflow', 'keras'))\n"
        "assert not found, found\n"
    )
    environment = os.environ | {"PYTHONPATH": str(OUTSIDE)}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_preparation_and_training_work_in_an_environment_without_tensorflow(tmp_path):
    """Every installed package but TensorFlow and Keras is linked into a folder of its own."""
    packages = tmp_path / "site"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if re.fullmatch(r"(tensorflow|keras)(-.*)?", entry.name) is None:
            (packages / entry.name).symlink_to(entry)
    path = os.pathsep.join(map(str, (packages, OUTSIDE.parent.parent, OUTSIDE)))
    code = (
        "import importlib.util as u, sys; assert u.find_spec('tensorflow') is None\n"
        "from lra_fnet import cli\n"
        "sys.exit(cli.main(['train', '--task', 'parity', '--model', 'performer', '--preset', 'cpu',"
        f" '--gin-dir', {str(OUTSIDE)!r}]))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code],  # -S: no site-packages but those on the path
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


def test_the_slug_of_overrides_is_readable_and_its_digits_depend_on_all_of_them():
    one = run_folder.variant(["Run.num_steps=100", "Encoder.num_layers=2"])
    assert one == run_folder.variant(["Encoder.num_layers=2", "Run.num_steps=100"])
    assert one.startswith("num-layers-2-num-steps-100-")
    assert one != run_folder.variant(["Run.num_steps=100", "Encoder.num_layers=3"])
    assert run_folder.variant([]) is None


def test_a_json_file_is_whole_or_absent(tmp_path, monkeypatch):
    target = tmp_path / "result.json"
    run_folder.write_json(target, {"a": 1})
    with pytest.raises(TypeError):
        run_folder.write_json(target, {"a": object()})
    assert json.loads(target.read_text()) == {"a": 1}
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(UserError, match="no space left"):
        run_folder.write_json(target, {"a": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_make_passes_gin_and_prints_the_same_command(tmp_path):
    """Make alone lists the targets; GIN with a list, a string and a tuple survives the shell."""
    root = ROOT
    listed = subprocess.run(["make", "-s"], cwd=root, capture_output=True, text=True).stdout
    for target in ("lra", "data", "test", "check", "sweep", "report", "benchmark", "clean"):
        assert f"make {target}" in listed
    echo = tmp_path / "bin"
    echo.mkdir()
    (echo / "lra-fnet").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (echo / "lra-fnet").chmod(0o755)
    gin = """A.x=[1, 2] B.y="two words" C.z=(0.9, 0.98)"""
    shown = subprocess.run(
        ["make", "-s", "lra", "TASK=listops", f"GIN={gin}", f"VENV={tmp_path}", "install="],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert config.split_bindings(shown[shown.index("--gin") + 1]) == [
        "A.x=[1, 2]",
        'B.y="two words"',
        "C.z=(0.9, 0.98)",
    ]


def test_a_run_that_is_chosen_on_test_rows_says_so(go, tmp_path, monkeypatch):
    config.import_module(str(OUTSIDE / "parity.py"))
    names = property(lambda task: ("train", "validation_is_test", "test"))
    parity = tasks.REGISTRY["parity"]
    raw = parity.raw

    def renamed(task, source, jobs):
        made = raw(task, source, jobs)
        return tasks.Raw(dict(zip(task.splits, made.splits.values(), strict=True)))

    monkeypatch.setattr(parity, "splits", names)
    monkeypatch.setattr(parity, "raw", renamed)
    code, err, out = go()
    assert code == 0, err
    result = json.loads((tmp_path / "runs/cpu/parity/fnet/seed0/result.json").read_text())
    assert result["validation_is_test"] is True
    assert result["dataset"] == "full"
    assert result["data_source"] == "generator"
    assert "†" in out


@pytest.mark.usefixtures("go")
def test_two_texts_a_row_from_files_to_result(tmp_path, capfd):
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, count in {"train": 24, "eval": 8, "test": 10}.items():
        lines = [f"{i % 2}.0\ta\tb\ttext {i % 3}\tother {i % 5} text\n" for i in range(count)]
        (folder / f"my.{split}.tsv").write_text("".join(lines))
    small = "MAX_LEN=16 Encoder.dim=8 Encoder.qkv_dim=8 Encoder.mlp_dim=8 Head.mlp_dim=8 "
    small += 'Run.num_steps=4 Run.batch_size=4 Run.eval_every=2 DATASET="pairs"'
    named = ["--task", "retrieval", "--model", "transformer", "--preset", "cpu", "--name", "mine"]
    code = cli.main(["train", *named, "--source", str(folder), "--gin", small])
    assert code == 0, capfd.readouterr().err
    path = tmp_path / "runs/cpu/retrieval/transformer+mine/seed0/result.json"
    result = json.loads(path.read_text())
    assert result["test"]["best"]["count"] == 10
    assert result["data_source"] == "raw"
