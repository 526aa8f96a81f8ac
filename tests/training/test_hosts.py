"""Several processes as one run: the results of one process, and one end for all of them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import made_texts
import member
import numpy as np
import pytest
from paths import OUTSIDE, ROOT

from lra_fnet.errors import UserError
from lra_fnet.training import checkpoint, hosts

TRAIN = ["--task", "parity", "--model", "fnet", "--preset", "cpu"]
TRAIN += ["--gin-dir", str(OUTSIDE), "--name", "n"]
SHORT = {"num_steps": 60, "save_every": 10, "save_seconds": 0, "eval_every": 30}
LONG = SHORT | {"num_steps": 100_000, "eval_every": 200}
HOST = socket.gethostname()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def train(settings):
    """Returns the arguments of `processes` for a training run."""
    words = [word for name, value in settings.items() for word in ("--set", f"Run.{name}={value}")]
    return ["train", *TRAIN, *words]


@contextlib.contextmanager
def processes(folder, count, scenario, *words, claims=(), devices=1, **limits):
    """Starts the processes of a group (member.py), which write to files out0, out1, ...

    Args:
      folder: their working directory.
      count: number of processes.
      scenario: a function of member.py, or "train".
      *words: further arguments.
      claims: the index and count that each process claims to have, where they are wrong.
      devices: number of devices of each process.
      **limits: SILENT and JOIN, in seconds.

    Yields:
      The processes. Those that are left at the end are killed.
    """
    environment = os.environ | {name: str(value) for name, value in limits.items()}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, OUTSIDE)))
    environment["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={devices}"
    port, running = free_port(), []
    for index in range(count):
        command = [scenario, index, count, port, *words]
        command += claims[index] if claims else ()
        command = [str(word) for word in command]
        running.append(member.Process(command, folder, environment, folder / f"out{index}"))
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def child_of(process):
    """Returns the process that runs, whose parent supervises it."""
    path = f"/proc/{process.pid}/task/{process.pid}/children"
    return int(Path(path).read_text().split()[0])


def exit_codes(running, within=300.0):
    deadline = time.monotonic() + within
    return [process.wait(max(0.1, deadline - time.monotonic())) for process in running]


def output(folder, index):
    return (folder / f"out{index}").read_text()


def outputs(folder):
    return [path.read_text() for path in sorted(folder.glob("out*"))]


def last_line(folder, index):
    """Returns the line with which a process ends, which must be the only one of its kind."""
    text = output(folder, index)
    lines = [line for line in text.splitlines() if line.startswith("lra-fnet: ")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    assert "stack trace" not in text
    return lines[0]


def wait_for(condition, folder, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, outputs(folder)
        time.sleep(0.05)


def wait_until_printed(text, folder, count):
    wait_for(lambda: all(text in output(folder, index) for index in range(count)), folder)


def run_folder(folder):
    return folder / "runs/cpu/parity/fnet+n/seed0"


def result_of(folder):
    return json.loads((run_folder(folder) / "result.json").read_text())


def metrics_of(folder):
    path = run_folder(folder) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def run(folder, count, devices=1):
    folder.mkdir(exist_ok=True)
    with processes(folder, count, *train(SHORT), devices=devices) as running:
        assert exit_codes(running) == [0] * count, outputs(folder)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of one process."""
    return run(tmp_path_factory.mktemp("alone"), 1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A run of two processes with two devices each."""
    return run(tmp_path_factory.mktemp("pair"), 2, devices=2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("h:1", 2, None, False), "need --coordinator HOST:PORT, --processes N and --process I"),
        (("h", 2, 0, False), "--coordinator expects HOST:PORT, got 'h'"),
        (("h:x", 2, 0, False), "--coordinator expects HOST:PORT"),
        (("h:1", 2, 2, False), "--process expects 0 to --processes - 1, got 2 of 2"),
        ((None, None, None, True), "or --hosts auto on a cluster; got no cluster"),
        (("h:1", 2, 0, True), "leave them out, or --hosts auto (LRA_FNET_HOSTS)"),
    ],
)
def test_wrong_place_fails(given, words):
    with pytest.raises(UserError) as caught:
        hosts.place(*given)
    assert words in str(caught.value)


def test_slurm_variables_give_the_place(monkeypatch):
    variables = {"JOB_ID": 7, "STEP_NODELIST": "n[3-4]", "NTASKS": 2, "PROCID": 1, "LOCALID": 0}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    want = hosts.Place(f"n3:{65535 - 4096 + 8}", 2, 1, 90, [0])
    assert hosts.place(None, None, None, True, 90) == want


def test_cluster_with_half_of_its_variables_fails_with_one_line(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://10.0.0.1:34911")
    with pytest.raises(UserError, match="--hosts auto: "):
        hosts.place(None, None, None, True)


def test_one_process_needs_no_other():
    assert hosts.place(None, None, None, False) is None
    assert hosts.place("h:1", 1, 0, False) is None
    assert hosts.first()
    assert hosts.agree(3) == 3
    assert hosts.agree_on_signal(15) == 15


def test_processes_agree_on_values_in_order_and_on_a_signal(tmp_path):
    with processes(tmp_path, 3, "agree") as running:
        assert exit_codes(running) == [0, 0, 0], outputs(tmp_path)
    assert all("agreed on 15" in text for text in outputs(tmp_path))


@pytest.mark.parametrize(
    ("count", "scenario", "claims", "codes", "text"),
    [
        (2, "nothing", [(0, 2), (1, 3)], [2, 2], "--processes expects 2, as in process 0, got 3"),
        (1, "nothing", [(0, 2)], [75], "process 1 did not join within 2 s"),
        (1, "nothing", [(1, 2)], [75], "process 1 of 2 cannot join process 0 at 127.0.0.1:"),
        (3, "differ", (), [2, 2, 2], "seed expects 0, as in process 0, got 1"),
        (2, "separate", (), [2, 2], "--runs expects a folder that all hosts share, got /proc"),
    ],
    ids=["count", "missing", "unreachable", "configuration", "folder"],
)
def test_processes_that_do_not_fit_together_end_with_one_line(
    tmp_path, count, scenario, claims, codes, text
):
    limits = {"SILENT": 5, "JOIN": 2 if count == 1 else 99}
    with processes(tmp_path, count, scenario, claims=claims, **limits) as running:
        assert exit_codes(running) == codes, outputs(tmp_path)
    for index in range(count):
        assert text in last_line(tmp_path, index)


def test_process_that_is_started_twice_ends_with_one_line(tmp_path):
    claims = [(0, 3), (1, 3), (1, 3)]
    with processes(tmp_path, 3, "nothing", claims=claims, JOIN=6) as running:
        codes = exit_codes(running)
    assert sorted(codes) == [2, 75, 75], outputs(tmp_path)
    assert "check --coordinator, --processes and --process" in last_line(tmp_path, codes.index(2))
    assert "process 2 did not join within 6 s" in last_line(tmp_path, 0)


def test_port_in_use_ends_with_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, member.__file__, "nothing", "0", "2", str(port)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"expects a free port, got 127.0.0.1:{port}" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_killed_or_stopped_process_ends_the_others(tmp_path, victim, number):
    """The others sleep, count in Python, or wait for process 0."""
    with processes(tmp_path, 3, "wait", SILENT=5) as running:
        wait_until_printed("in\n", tmp_path, 3)
        os.kill(child_of(running[victim]), number)
        others = [index for index in range(3) if index != victim]
        assert exit_codes([running[index] for index in others], 60) == [75, 75]
        for index in others:
            line = last_line(tmp_path, index)
            assert f"process {victim} of 3 ({HOST}) " in line
            assert line.endswith("; the same command in each process resumes")
        if number == signal.SIGKILL:
            assert running[victim].wait(60) == 137
            assert "has ended with SIGKILL" in last_line(tmp_path, victim)


def test_killed_supervisor_ends_all(tmp_path):
    with processes(tmp_path, 2, "wait", SILENT=5) as running:
        wait_until_printed("in\n", tmp_path, 2)
        child = child_of(running[1])
        running[1].kill()
        assert exit_codes(running, 60) == [75, -9]
        wait_for(lambda: not Path(f"/proc/{child}").exists(), tmp_path, 10)


def test_slow_process_is_not_lost_and_all_may_be_stopped_briefly(tmp_path):
    """Process 1 counts for longer than the silence that is allowed; then all three are stopped."""
    with processes(tmp_path, 3, "slow", SILENT=4) as running:
        wait_until_printed("go\n", tmp_path, 3)
        children = [child_of(process) for process in running]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for child in children:
                os.kill(child, number)
            time.sleep(1)
        assert exit_codes(running) == [0, 0, 0], outputs(tmp_path)


def test_error_of_one_process_ends_all_with_its_exit_status(tmp_path):
    with processes(tmp_path, 3, "err") as running:
        assert exit_codes(running) == [2, 2, 2], outputs(tmp_path)
    assert last_line(tmp_path, 1) == "lra-fnet: no space left"
    for index in (0, 2):
        line = last_line(tmp_path, index)
        assert line == f"lra-fnet: process 1 of 3 ({HOST}): no space left"


def test_unexpected_error_ends_all_and_shows_its_traceback_once(tmp_path):
    with processes(tmp_path, 2, "crash") as running:
        assert exit_codes(running) == [1, 1], outputs(tmp_path)
    assert last_line(tmp_path, 0).endswith(f"1 of 2 ({HOST}): ZeroDivisionError: a bug")
    assert output(tmp_path, 1).count("Traceback") == 1


def test_signal_outside_the_loop_ends_all_with_its_status(tmp_path):
    with processes(tmp_path, 2, "wait") as running:
        wait_until_printed("in\n", tmp_path, 2)
        running[1].terminate()
        assert exit_codes(running) == [143, 143]
    assert "stopped by SIGTERM" in last_line(tmp_path, 0)


def assert_same_run(several, alone, count, devices):
    losses = [
        [line["loss"] for line in metrics_of(folder) if "loss" in line]
        for folder in (several, alone)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    expected, result = result_of(alone), result_of(several)
    for split in ("validation", "test"):
        for kind in ("best", "last"):
            assert result[split][kind] | {"loss": 0} == expected[split][kind] | {"loss": 0}
    assert (result["device"]["processes"], result["device"]["count"]) == (count, count * devices)
    assert result["config"] == expected["config"]
    assert len((several / "runs/test_log.jsonl").read_text().splitlines()) == 3
    assert len(list((run_folder(several) / "tensorboard").iterdir())) == 1
    assert "trained" in output(several, 0)
    assert "trained" not in output(several, 1)


def test_two_processes_give_the_losses_and_counts_of_one(alone, pair):
    assert_same_run(pair, alone, 2, 2)


@pytest.mark.slow
def test_two_processes_pretrain_as_one(tmp_path):
    """Masked language modelling and sentence order on a corpus, a ragged batch in validation."""
    pytest.importorskip("sentencepiece")
    made_texts.prepare_both(tmp_path / "data", tmp_path)
    words = ["--task=corpus", "--model=fnet", "--preset=cpu-pretrain", f"--data={tmp_path}/data"]
    settings = f"DATASET={made_texts.NAME} MAX_LEN=32 Encoder.num_layers=1 Encoder.dim=8"
    settings += " Encoder.qkv_dim=8 Run.num_steps=6 Run.eval_every=3 Run.log_every=1"
    results = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        given = *words, "--gin", settings, "--name=n"
        with processes(folder, count, "pretrain", *given) as running:
            assert exit_codes(running) == [0] * count, outputs(folder)
        path = folder / "runs/cpu-pretrain/corpus/fnet@denoise+n/seed0"
        lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
        last = json.loads((path / "result.json").read_text())["validation"]["last"]
        results.append(([line["loss"] for line in lines if "loss" in line], last))
    (losses, alone), (losses_of_two, two) = results
    np.testing.assert_allclose(losses_of_two, losses, rtol=1e-5)
    assert two == pytest.approx(alone, rel=1e-5)
    assert alone["count"] > alone["rows"] > 2


def test_processes_save_both_checkpoints_of_a_step_together(tmp_path):
    with processes(tmp_path, 2, "save") as running:
        assert exit_codes(running) == [0, 0], outputs(tmp_path)
    assert [checkpoint.load(tmp_path / "run", kind).step for kind in ("last", "best")] == [10, 10]


@pytest.mark.slow
def test_killed_run_resumes_bit_for_bit(pair, tmp_path):
    with processes(tmp_path, 2, *train(SHORT), devices=2, SILENT=5) as running:
        wait_for((run_folder(tmp_path) / "checkpoints/last/state.safetensors").exists, tmp_path)
        os.kill(child_of(running[1]), signal.SIGKILL)
        assert exit_codes(running, 60) == [75, 137]
    assert f"process 1 of 2 ({HOST})" in last_line(tmp_path, 0)
    run(tmp_path, 2, devices=2)
    assert "resumes at step" in output(tmp_path, 0)
    expected, resumed = result_of(pair), result_of(tmp_path)
    assert resumed["parameters_sha256"] == expected["parameters_sha256"]
    assert resumed["test"] == expected["test"]


@pytest.mark.slow
def test_signal_in_training_saves_one_step_in_all_and_ends_all(tmp_path):
    with processes(tmp_path, 2, *train(LONG)) as running:
        wait_for(lambda: len(metrics_of(tmp_path)) > 5, tmp_path)
        running[1].terminate()
        assert exit_codes(running) == [143, 143]
    saved = checkpoint.load(run_folder(tmp_path), "last")
    assert saved.step >= metrics_of(tmp_path)[-1]["step"]
    assert "saved; to resume (each process its own): " in output(tmp_path, 0)
