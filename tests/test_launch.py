"""launch/: the commands of a cluster's jobs, and what happens when they end. Needs no cluster.

tests/slurm/ uses a real SLURM; here `sbatch`, `squeue` and `scontrol` are shell scripts.
"""

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
import yaml
from paths import OUTSIDE, ROOT
from waiting import until

from lra_fnet import cli

SWEEP = ["sweep", "--task", "parity", "--models", "fnet,linear", "--preset", "cpu", "--seeds", "2"]
SWEEP += ["--gin-dir", str(OUTSIDE), "--gin", 'Run.num_steps=3 DATASET="full"']


# launch/ is not a package.
SLURM = ROOT / "launch/slurm.py"
spec = importlib.util.spec_from_file_location("launch_slurm", SLURM)
slurm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slurm)


@pytest.fixture
def submitit():
    """The module, imported as launch/slurm.py imports it; the test is skipped without it."""
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("needs submitit")
    return slurm.import_submitit()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Returns a function that puts a shell script into the PATH, where `srun` is one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name, text):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    make("srun", "exit 1")
    return make


@pytest.fixture
def trials(monkeypatch, capfd):
    """The lines of `sweep --dry-run`: one command each."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    assert cli.main([*SWEEP, "--dry-run"]) == 0
    return capfd.readouterr().out.splitlines()


# SLURM


def test_array_of_jobs_is_submitted_each_with_its_command(submitit, trials, fake, tmp_path):
    fake("sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 12")
    paths = os.pathsep.join(map(str, (ROOT, OUTSIDE)))
    options = ["--partition", "gpu", "--time", "4:30", "--gpus", "2"]
    options += ["--cpus", "8", "--array-parallelism", "3"]
    ended = subprocess.run(
        [sys.executable, SLURM, *options, "--", "lra-fnet", *SWEEP],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    asked = set(re.findall("^#SBATCH --(.*)", (tmp_path / "script").read_text(), re.M))
    assert asked >= {
        *("partition=gpu", "time=270", "gpus-per-node=2", "cpus-per-task=8", "array=0-3%3"),
        *("nodes=1", "requeue", "open-mode=append", "signal=USR2@120"),
    }
    for number, line in enumerate(ended.stdout.splitlines()):
        job, log, *words = shlex.split(line)
        assert words == shlex.split(trials[number])
        assert (job, log) == (f"12_{number}", f"runs/slurm/12_{number}_0_log.out")
        pickled = tmp_path / f"runs/slurm/12_{number}_submitted.pkl"
        (command,) = submitit.core.utils.DelayedSubmission.load(pickled).args
        assert command == [sys.executable, "-m", "lra_fnet", *words[1:]]
    assert number + 1 == len(trials) == 4


def test_run_on_several_nodes_uses_all_devices_and_finds_the_other_nodes(
    submitit, fake, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    fake("sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 12")
    options = ["--time", "1:00", "--nodes", "3", "--gpus", "2", "--cpus", "8"]
    assert slurm.main([*options, "--", "lra-fnet", "train", "--task", "listops"]) == 0
    script = (tmp_path / "script").read_text()
    assert "#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=2\n" in script  # one for each GPU
    assert "#SBATCH --cpus-per-task=4\n" in script
    assert "--kill-on-bad-exit=1" in script
    pickled = tmp_path / "runs/slurm/12_submitted.pkl"
    (command,) = submitit.core.utils.DelayedSubmission.load(pickled).args
    assert command[3:] == ["train", "--task", "listops", "--hosts", "auto"]


@pytest.mark.parametrize(
    ("command", "state", "code", "requeued"),
    [
        ("exit 0", "RUNNING", 0, False),
        ("exit 1", "RUNNING", 1, False),  # the run failed
        ("exit 2", "RUNNING", 2, False),  # the user's mistake
        ("kill -9 $$", "RUNNING", 137, False),  # out of memory
        ("exit 143", "RUNNING", 255, True),  # SLURM would let a preempted job end for good
        ("kill -15 $$", "RUNNING", 255, True),  # before the command caught signals
        ("exit 75", "RUNNING", 255, True),  # another host is gone
        ("exit 143", "COMPLETING", 143, False),  # cancelled, or SLURM requeues it by itself
    ],
)
def test_exit_code_decides_whether_a_job_is_requeued(
    command, state, code, requeued, submitit, fake, tmp_path
):
    process = start_job(submitit, ["sh", "-c", command], state, fake, tmp_path)
    assert process.wait() == code
    assert (tmp_path / "requeued").exists() == requeued


def test_only_the_command_is_asked_to_save_near_the_time_limit(submitit, fake, tmp_path):
    """SLURM signals every process; the command gets one SIGTERM, and has time to save."""
    save = "trap 'sleep 1; touch saved; exit 143' TERM; touch ready; while :; do sleep .1; done"
    process = start_job(submitit, ["sh", "-c", save], "RUNNING", fake, tmp_path)
    until((tmp_path / "ready").exists, lambda: process.poll() is None)
    os.killpg(process.pid, signal.SIGUSR2)
    assert process.wait() == 255
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def start_job(submitit, words, state, fake, tmp_path):
    """Starts the process that SLURM would start, in a separate process group."""
    fake("squeue", f"echo {state}")
    fake("scontrol", f'echo "$@" >>{tmp_path}/requeued')
    job = submitit.core.utils.DelayedSubmission(slurm.Attempt(), words)
    job.set_timeout(60, 3)
    job.dump(tmp_path / "7_submitted.pkl")
    given = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7"}
    command = [sys.executable, "-m", "submitit.core._submit", str(tmp_path)]
    with open(tmp_path / "log", "wb") as log:
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | given,
            start_new_session=True,
            stdout=log,
            stderr=log,
        )


@pytest.mark.parametrize(
    ("options", "command", "line"),
    [
        ("--time 90", "lra-fnet train", "hours and minutes, such as 4:00"),
        ("--time 0:00", "lra-fnet train", "got '0:00'"),
        ("", "lra-fnet train", "the following arguments are required: --time"),
        ("--time 1:00", "", "`-- lra-fnet train ...` or `-- lra-fnet sweep ...`"),
        ("--time 1:00", "make lra", "got 'make lra'"),
        ("--time 1:00", "lra-fnet train --force", "--force would start again"),
        ("--time 1:00 --gpus 0", "lra-fnet train", "at least 1, got '0'"),
        ("--time 1:00", "lra-fnet train", "sbatch: error: invalid partition"),
        ("--time 1:00 --logs file", "lra-fnet train", "--logs file cannot be written"),
    ],
)
@pytest.mark.usefixtures("submitit")
def test_mistake_fails_with_one_line(options, command, line, fake, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    fake("sbatch", "echo sbatch: error: invalid partition specified: gpu >&2; exit 1")
    assert slurm.main([*options.split(), "--", *command.split()]) == 2
    *before, last = capfd.readouterr().err.splitlines()
    assert last.startswith("launch/slurm.py: ")
    assert line in last
    assert all(text.startswith("sbatch: ") for text in before)  # sbatch prints it itself


@pytest.mark.parametrize(("missing", "words"), [("submitit", "pip install"), ("srun", '"srun"')])
@pytest.mark.usefixtures("submitit")
def test_missing_program_fails_with_one_line(missing, words, outside, monkeypatch, capfd):
    monkeypatch.setenv("PATH", "/nowhere")
    if missing == "submitit":
        monkeypatch.setitem(sys.modules, "submitit", None)
    assert slurm.main(["--time", "1:00", "--", "lra-fnet", "train"]) == 2
    assert words in capfd.readouterr().err


# Kubernetes


@pytest.fixture
def container():
    """The container of the Job in launch/kubernetes.yaml, and the specification of the Job."""
    _, job = yaml.safe_load_all((ROOT / "launch/kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container, job["spec"]


def test_pod_runs_the_command_of_its_line(container, trials, fake, tmp_path):
    """The pod's process becomes the command, so that SIGTERM reaches it."""
    (tmp_path / "trials.txt").write_text("".join(f"{line}\n" for line in trials))
    fake("lra-fnet", 'echo $$; printf "%s\n" "$@"')
    words = [*container[0]["command"], *container[0]["args"]]
    words[-1] = words[-1].replace("/trials/", f"{tmp_path}/")
    for number, line in enumerate(trials):
        index = os.environ | {"JOB_COMPLETION_INDEX": str(number)}
        pod = subprocess.Popen(words, env=index, stdout=subprocess.PIPE, text=True)
        process, *given = pod.communicate()[0].splitlines()
        assert int(process) == pod.pid
        assert ["lra-fnet", *given] == shlex.split(line)
        assert cli.parser().parse_args(given).seed == number % 2


@pytest.mark.parametrize(
    ("code", "action"),
    [(1, "FailIndex"), (2, "FailIndex"), (75, "Ignore"), (143, "Ignore"), (137, None)],
)
def test_exit_code_decides_whether_a_pod_is_replaced(code, action, container):
    """The first matching rule decides; without one, backoffLimitPerIndex counts the failure."""
    name, job = container[0]["name"], container[1]
    decided = None
    for rule in reversed(job["podFailurePolicy"]["rules"]):
        codes = rule.get("onExitCodes", {"values": []})
        assert codes.get("containerName", name) == name
        decided = rule["action"] if code in codes["values"] else decided
    assert decided == action
    assert job["backoffLimitPerIndex"] > 0  # without it FailIndex is refused
    assert job["completionMode"] == "Indexed"
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # podFailurePolicy requires it


def test_pods_of_one_run_find_process_0_by_its_service():
    """launch/kubernetes-hosts.yaml repeats addresses and arguments, which must agree."""
    service, job = yaml.safe_load_all((ROOT / "launch/kubernetes-hosts.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name, hosts = job["metadata"]["name"], job["spec"]["completions"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["metadata"]["name"] == pod["subdomain"]
    assert job["spec"]["parallelism"] == hosts
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["args"]]
    assert f"--coordinator={name}-0.{pod['subdomain']}:29500" in words
    assert f"--processes={hosts}" in words
    assert container["command"] == ["lra-fnet", "train"]
    assert cli.parser().parse_args(["train", *words]).process == 1


def hosts_sh(folder, *words):
    environment = os.environ | {"PORT": "1234"}
    command = [ROOT / "launch/hosts.sh", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_hosts_sh_gives_each_process_its_place_and_ends_with_the_first_failure(tmp_path):
    shown = "$LRA_FNET_COORDINATOR $LRA_FNET_PROCESSES $LRA_FNET_PROCESS"
    script = f'echo {shown} > "of$LRA_FNET_PROCESS"; exit $((LRA_FNET_PROCESS * 3))'
    assert hosts_sh(tmp_path, "3", "sh", "-c", script).returncode == 3
    for place in range(3):
        assert (tmp_path / f"of{place}").read_text() == f"127.0.0.1:1234 3 {place}\n"
    for words in ((), ("x", "true"), ("0", "true"), ("2",)):
        assert hosts_sh(tmp_path, *words).returncode == 2
