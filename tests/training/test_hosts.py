"""Several processes as one run: the results of one process, and one end for all of them."""

import contextlib
import os
import signal
import socket

import member
import numpy as np
import pytest
from paths import OUTSIDE
from waiting import until

from lra_fnet.machine import disk
from lra_fnet.training import checkpoint, hosts

TRAIN = ["train", "--task=parity", "--model=fnet", "--preset=cpu", "--name=n"]
TRAIN += [f"--gin-dir={OUTSIDE}", f"--import={OUTSIDE / 'parity.py'}"]
SETTINGS = {"num_steps": 60, "save_every": 10, "save_seconds": 0, "eval_every": 30}
LONG = SETTINGS | {"num_steps": 100_000, "eval_every": 200}
WITHIN = 60  # seconds in which the others end


@contextlib.contextmanager
def processes(folder, count, settings, *, devices=1, more=((), ())):
    """Starts the processes of a run; kills those that are left at the end of the block.

    Args:
      folder: their working directory.
      count: number of processes.
      settings: of gin's Run.
      devices: number of devices of each process.
      more: arguments of each process alone.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    words = [*TRAIN, *(f"--set=Run.{name}={value}" for name, value in settings.items())]
    if count > 1:
        words += [f"--coordinator=127.0.0.1:{port}", f"--processes={count}"]
    running = []
    for index in range(count):
        given = [*words, *([f"--process={index}"] if count > 1 else []), *more[index]]
        out = folder / f"out{index}"
        running.append(member.Process(given, folder, out, {"XLA_FLAGS": flags}))
    try:
        yield running
    finally:
        for process in running:
            process.kill()


def run_folder(folder):
    return folder / "runs/cpu/parity/fnet+n/seed0"


def result_of(folder):
    return disk.read_json(run_folder(folder) / "result.json")


def losses_of(folder):
    return [line["loss"] for line in disk.read_lines(run_folder(folder) / "metrics.jsonl")]


def run(folder, count, devices=1):
    with processes(folder, count, SETTINGS, devices=devices) as running:
        codes = [process.wait(300) for process in running]
        assert codes == [0] * count, [process.output for process in running]
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A run of two processes with two devices each."""
    return run(tmp_path_factory.mktemp("pair"), 2, devices=2)


def test_one_process_needs_no_other():
    assert hosts.first()
    assert hosts.agree({"a": 3}) == {"a": 3}
    assert hosts.gather([15, 0]).tolist() == [[15, 0]]


@pytest.mark.parametrize("words", [["--processes=2"], ["--hosts=auto"]])
def test_missing_place_fails_with_one_line(tmp_path, words):
    with processes(tmp_path, 1, SETTINGS, more=[words]) as (process,):
        assert process.wait(100) == 2
        assert "need --coordinator HOST:PORT, --processes N and" in process.output
        assert "Traceback" not in process.output


def test_two_processes_give_the_losses_and_counts_of_one(pair, tmp_path):
    alone = run(tmp_path, 1)
    np.testing.assert_allclose(losses_of(pair), losses_of(alone), rtol=1e-5)
    expected, result = result_of(alone), result_of(pair)
    for split in ("validation", "test"):
        for kind in ("best", "last"):
            score = expected[split][kind]
            near = {n: pytest.approx(score[n], rel=1e-5) for n in ("loss", "variation")}
            assert result[split][kind] == score | near
    assert result["device"]["count"] == 4
    assert result["config"] == expected["config"]
    assert len((pair / "runs/test_log.jsonl").read_text().splitlines()) == 3
    assert "trained" in (pair / "out0").read_text()
    assert "trained" not in (pair / "out1").read_text()


def test_process_with_another_command_ends_all(tmp_path):
    with processes(tmp_path, 2, SETTINGS, more=((), ("--seed=1",))) as running:
        assert [process.wait(100) for process in running] == [2, 2]
        assert "expected one command" in running[0].output
    assert not run_folder(tmp_path).exists()


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_killed_process_ends_the_other_and_the_same_command_resumes_to_the_same_bits(
    pair, tmp_path, victim
):
    with processes(tmp_path, 2, SETTINGS, devices=2) as running:
        until((run_folder(tmp_path) / "checkpoints/last/state.safetensors").exists)
        running[victim].kill()
        assert running[1 - victim].wait(WITHIN) != 0
    assert not (run_folder(tmp_path) / "result.json").exists()
    run(tmp_path, 2, devices=2)
    assert "resumes at step" in (tmp_path / "out0").read_text()
    expected, resumed = result_of(pair), result_of(tmp_path)
    assert resumed["parameters_sha256"] == expected["parameters_sha256"]
    assert resumed["test"] == expected["test"]


@pytest.mark.slow
def test_signal_to_one_process_saves_one_step_in_all(tmp_path):
    with processes(tmp_path, 2, LONG) as running:
        until((run_folder(tmp_path) / "checkpoints/last/state.safetensors").exists)
        running[1].kill(signal.SIGTERM)
        assert [process.wait(WITHIN) for process in running] == [143, 143]
        assert "saved; to resume (each process its own): " in running[0].output
    assert checkpoint.load(run_folder(tmp_path), "last").step > 0
