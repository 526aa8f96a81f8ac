"""launch/slurm.py on a real SLURM of one node; only `make slurm-test` runs this file."""

import json
import os
import re
import subprocess
import sys
import time

import one_node
import pytest
from paths import OUTSIDE, ROOT

pytest.importorskip("submitit", reason="needs submitit: `make slurm-test` installs it")
if reason := one_node.missing():
    pytest.skip(reason, allow_module_level=True)

PARITY = ["--task", "parity", "--preset", "cpu", "--gin-dir", str(OUTSIDE)]
LONG = "Run.num_steps=20000 Run.steps_per_dispatch=50 Run.eval_every=1000 Run.log_every=50"
SWEEP = ["sweep", *PARITY, "--models", "fnet", "--seeds", "2", "--gin", LONG]
ENDLESS = ["train", *PARITY, "--model", "fnet", "--gin", LONG.replace("20000", "1000000")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The environment of SLURM's commands and of the jobs."""
    with one_node.start(tmp_path_factory.mktemp("slurm")) as made:
        yield made | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, OUTSIDE)))}


@pytest.fixture(scope="module")
def whole(environment, tmp_path_factory):
    """parameters_sha256 of both seeds, trained without SLURM and without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run(
        [sys.executable, "-m", "lra_fnet", *SWEEP], cwd=folder, env=environment, check=True
    )
    return [json.loads(path.read_text())["parameters_sha256"] for path in results(folder)]


@pytest.fixture
def run(environment, tmp_path):
    """Returns a function that runs a command in a temporary folder and returns its output."""

    def call(*words):
        return subprocess.run(
            words, cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    return call


@pytest.fixture
def submit(run, tmp_path):
    """Returns a function that submits a command and returns the id and the log of each job."""

    def call(*words, partition="low", limit="0:30"):
        printed = run(
            *(sys.executable, str(ROOT / "launch/slurm.py"), "--partition", partition),
            *("--time", limit, "--cpus", "1", "--", "lra-fnet", *words),
        )
        lines = [line.split() for line in printed.splitlines()]
        return [(job, tmp_path / log) for job, log, *_ in lines]

    return call


@pytest.fixture
def shown(run):
    """Returns a function that reads the fields of a job: JobState, ExitCode, Restarts ..."""
    return lambda job: dict(re.findall(r"(\w+)=(\S*)", run("scontrol", "show", "job", job)))


def results(folder):
    return sorted(folder.glob("runs/cpu/parity/fnet+*/seed*/result.json"))


def step(folder, seed=0):
    """Returns the step of the newest complete line of the run's metrics, or 0."""
    for path in folder.glob(f"runs/cpu/parity/fnet+*/seed{seed}/metrics.jsonl"):
        lines = [line for line in path.read_text().splitlines(True) if line.endswith("\n")]
        return json.loads(lines[-1])["step"] if lines else 0
    return 0


def until(true, seconds=600):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def hashes(folder):
    return [json.loads(path.read_text())["parameters_sha256"] for path in results(folder)]


def test_requeued_trial_resumes_to_the_same_bits(submit, run, shown, whole, tmp_path):
    (first, log), (second, _) = submit(*SWEEP)
    until(lambda: step(tmp_path) > 500)
    run("scontrol", "requeue", first)
    until(lambda: len(results(tmp_path)) == 2)
    assert hashes(tmp_path) == whole
    assert "saved; to resume: lra-fnet train" in log.read_text()
    assert "resumes at step" in log.read_text()
    until(lambda: shown(first)["JobState"] == "COMPLETED")
    assert (shown(first)["Restarts"], shown(second)["Restarts"]) == ("1", "0")


def test_run_near_its_time_limit_saves_and_resumes(submit, run, shown, tmp_path):
    """SLURM checks limits twice a minute; then at most the two minutes of SAVE_SECONDS are left."""
    ((job, log),) = submit(*ENDLESS)
    until(lambda: step(tmp_path) > 500)
    hours, minutes, _ = map(int, shown(job)["RunTime"].split(":"))
    run("scontrol", "update", f"JobId={job}", f"TimeLimit={60 * hours + minutes + 2}")
    until(lambda: "saved; to resume: lra-fnet train" in log.read_text())
    until(lambda: shown(job)["JobState"] == "PENDING")
    run("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    until(lambda: "resumes at step" in log.read_text())
    assert shown(job)["Restarts"] == "1"
    run("scancel", job)


@pytest.mark.parametrize("partition", ["low", "graced"])
def test_preempted_run_makes_room_and_resumes(partition, submit, run, shown, tmp_path):
    ((job, log),) = submit(*ENDLESS, partition=partition)
    until(lambda: step(tmp_path) > 500)
    run("sbatch", "--partition=high", "--cpus-per-task=2", "--output=high.log", "--wrap=date")
    until((tmp_path / "high.log").exists)
    assert "saved; to resume: lra-fnet train" in log.read_text()
    until(lambda: "resumes at step" in log.read_text())
    assert shown(job)["Restarts"] == "1"
    run("scancel", job)


def test_cancelled_run_saves_and_stays_cancelled(submit, run, shown, tmp_path):
    ((job, log),) = submit(*ENDLESS)
    until(lambda: step(tmp_path) > 500)
    run("scancel", job)
    until(lambda: "saved; to resume: lra-fnet train" in log.read_text())
    time.sleep(10)
    assert (shown(job)["JobState"], shown(job)["Restarts"]) == ("CANCELLED", "0")


@pytest.mark.parametrize(
    ("settings", "code"),
    [(["--set", "Run.num_steps=-3"], 2), (["--set", "Optimizer.learning_rate=1e30"], 1)],
)
def test_run_that_would_fail_again_is_not_requeued(settings, code, submit, shown):
    ((job, _),) = submit("train", *PARITY, "--model", "fnet", *settings)
    until(lambda: shown(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
    end = shown(job)
    assert (end["JobState"], end["ExitCode"], end["Restarts"]) == ("FAILED", f"{code}:0", "0")
