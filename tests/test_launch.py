"""launch/: what the jobs of a cluster run, and what becomes of them. No cluster is needed.

tests/slurm/ has a real SLURM; here `sbatch`, `squeue` and `scontrol` are scripts that take notes.
"""

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from paths import ROOT

from lra_fnet import cli
from lra_fnet.errors import UserError
from lra_fnet.machine import disk

OUTSIDE = ROOT / "tests/outside"
SWEEP = ["sweep", "--task", "parity", "--models", "fnet,linear", "--preset", "cpu", "--seeds", "2"]
SWEEP += ["--gin-dir", str(OUTSIDE), "--gin", 'Run.num_steps=3 DATASET="full"']


def load():
    """launch/slurm.py as a module."""
    spec = importlib.util.spec_from_file_location("launch_slurm", ROOT / "launch/slurm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


slurm = load()


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a shell script into the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name, text):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def trials(monkeypatch, capfd):
    """What `sweep --dry-run` prints, a command a line."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    assert cli.main([*SWEEP, "--dry-run"]) == 0
    return capfd.readouterr().out.splitlines()


# SLURM


def test_a_sweep_becomes_the_commands_of_its_dry_run(trials, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{OUTSIDE}")
    assert len(trials) == 4
    assert slurm.commands(["lra-fnet", *SWEEP]) == [shlex.split(line) for line in trials]
    one = ["lra-fnet", "train", "--task", "listops"]
    assert slurm.commands(one) == [one]


def test_an_array_of_jobs_is_submitted_each_with_its_command(fake, tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    fake("srun", "exit 1")
    fake("sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 12")
    paths = os.pathsep.join(map(str, (ROOT, OUTSIDE)))
    options = ["--partition", "gpu", "--time", "4:30", "--gpus", "2"]
    options += ["--cpus", "8", "--array-parallelism", "3"]
    ended = subprocess.run(
        [sys.executable, ROOT / "launch/slurm.py", *options, "--", "lra-fnet", *SWEEP],
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
        assert (job, log) == (f"12_{number}", f"runs/slurm/12_{number}_0_log.out")
        pickled = tmp_path / f"runs/slurm/12_{number}_submitted.pkl"
        (command,) = submitit.core.utils.DelayedSubmission.load(pickled).args
        assert command == [sys.executable, "-m", "lra_fnet.cli", *words[1:]]
    assert number == 3


def test_a_run_on_several_nodes_takes_all_devices_and_finds_the_others(fake, tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    fake("srun", "exit 1")
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
def test_what_becomes_of_a_job(command, state, code, requeued, fake, tmp_path):
    process = start_job(["sh", "-c", command], state, fake, tmp_path)
    assert process.wait() == code
    assert (tmp_path / "requeued").exists() == requeued


def test_near_the_time_limit_the_command_alone_is_told_to_save(fake, tmp_path):
    """SLURM signals every process; the command gets one SIGTERM, and has all the time to save."""
    code = (
        "import pathlib, signal, sys, time\n"
        "def save(*_): time.sleep(1); pathlib.Path('saved').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path('ready').touch()\n"
        "time.sleep(60)\n"
    )
    process = start_job([sys.executable, "-c", code], "RUNNING", fake, tmp_path)
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGUSR2)
    assert process.wait() == 255
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def start_job(words, state, fake, tmp_path):
    """The process that SLURM would start, in a process group of its own."""
    submitit = pytest.importorskip("submitit")
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
    ("words", "line"),
    [
        (["--time", "90", "--", "lra-fnet", "train"], "--time expects hours and minutes, 4:00 say"),
        (["--time", "0:00", "--", "lra-fnet", "train"], "got '0:00'"),
        (["--", "lra-fnet", "train"], "the following arguments are required: --time"),
        (["--time", "1:00"], "expects `-- lra-fnet train ...` or `-- lra-fnet sweep ...`"),
        (["--time", "1:00", "--", "make", "lra"], "got 'make lra'"),
        (["--time", "1:00", "--gpus", "0", "--", "lra-fnet", "train"], "at least 1, got '0'"),
        (["--time", "1:00", "--", "lra-fnet", "train"], "sbatch: error: invalid partition"),
    ],
)
def test_a_mistake_is_one_line(words, line, fake, tmp_path, monkeypatch, capfd):
    pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    fake("srun", "exit 1")
    fake("sbatch", "echo sbatch: error: invalid partition specified: gpu >&2; exit 1")
    assert slurm.main(words) == 2
    told = capfd.readouterr().err.splitlines()
    assert told[-1].startswith("launch/slurm.py: ")
    assert line in told[-1]
    assert told[:-1] == [line for line in told[:-1] if line.startswith("sbatch: ")]  # its own


def test_without_slurm_or_submitit_a_line_says_what_to_install(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert slurm.main(["--time", "1:00", "--", "lra-fnet", "train"]) == 2
    assert "python -m pip install submitit" in capfd.readouterr().err
    monkeypatch.undo()
    pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm.main(["--time", "1:00", "--", "lra-fnet", "train"]) == 2
    assert 'Could not detect "srun"' in capfd.readouterr().err


def test_a_mistyped_sweep_submits_nothing(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(SystemExit) as caught:
        slurm.main(["--time", "1:00", "--", "lra-fnet", "sweep", "--task", "listop"])
    assert caught.value.code == 2
    assert capfd.readouterr().err.startswith("lra-fnet: ")
    with pytest.raises(UserError):
        slurm.commands(["lra-fnet", "report"])


# Kubernetes


@pytest.fixture
def container():
    """Of the Job in launch/kubernetes.yaml, and the Job."""
    _, job = yaml.safe_load_all((ROOT / "launch/kubernetes.yaml").read_text())
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return found, job["spec"]


def test_a_pod_becomes_the_command_of_its_line(container, trials, fake, tmp_path):
    """Its process is the command's, so that SIGTERM reaches it."""
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
        assert cli._parser().parse_args(given).seed == number % 2


@pytest.mark.parametrize(
    ("code", "action"),
    [(1, "FailIndex"), (2, "FailIndex"), (75, "Ignore"), (143, "Ignore"), (137, None)],
)
def test_what_becomes_of_a_pod(code, action, container):
    """The first rule that matches decides; without one, backoffLimitPerIndex counts it."""
    name, job = container[0]["name"], container[1]
    found = None
    for rule in reversed(job["podFailurePolicy"]["rules"]):
        codes = rule.get("onExitCodes", {"values": []})
        assert codes.get("containerName", name) == name
        found = rule["action"] if code in codes["values"] else found
    assert found == action
    assert job["backoffLimitPerIndex"] > 0  # without it FailIndex is refused
    assert job["completionMode"] == "Indexed"
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # what podFailurePolicy asks for


def test_all_pods_share_one_volume_with_data_runs_and_compiled_programs(container, monkeypatch):
    found, job = container
    claim, _ = yaml.safe_load_all((ROOT / "launch/kubernetes.yaml").read_text())
    volumes = {volume["name"]: volume for volume in job["template"]["spec"]["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in found["volumeMounts"]}
    assert mounted["/lra"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    for variable in found["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    assert disk.user_cache() == Path("/lra/cache/lra-fnet")


def test_the_pods_of_one_run_name_process_0_by_its_service():
    """The addresses and arguments that launch/kubernetes-hosts.yaml repeats are the same."""
    service, job = yaml.safe_load_all((ROOT / "launch/kubernetes-hosts.yaml").read_text())
    pod, (container,) = (
        job["spec"]["template"]["spec"],
        job["spec"]["template"]["spec"]["containers"],
    )
    name, hosts = job["metadata"]["name"], job["spec"]["completions"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["metadata"]["name"] == pod["subdomain"]
    assert job["spec"]["parallelism"] == hosts
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["args"]]
    assert f"--coordinator={name}-0.{pod['subdomain']}:29500" in words
    assert f"--processes={hosts}" in words
    pytest.importorskip("lra_fnet.train.hosts", reason="this checkout has no several hosts")
    assert container["command"] == ["lra-fnet", "train"]
    assert cli._parser().parse_args(["train", *words]).process == 1


# The documents


def test_every_command_of_the_documents_is_one():
    text = (ROOT / "docs/clusters.md").read_text() + (ROOT / "launch/slurm.py").read_text()
    text += re.sub("^# ?", "", (ROOT / "launch/kubernetes.yaml").read_text(), flags=re.M)
    found = re.findall(
        r"^ *(?:\.venv/bin/)?((?:python launch/slurm.py|lra-fnet) (?:.*\\\n)*.*)$", text, re.M
    )
    assert len(found) >= 4
    for command in found:
        words = shlex.split(command.partition(" >")[0].replace("\\\n", " "))
        if "--" in words:
            split = words.index("--")
            slurm._parser().parse_args(words[2:split])
            words = words[split + 1 :]
        assert words[0] == "lra-fnet", command
        cli._parser().parse_args(words[1:])
