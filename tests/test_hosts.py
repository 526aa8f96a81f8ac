"""Several processes as one run: the numbers of one, and an end together whatever happens to one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lra_fnet import hosts, pipeline
from lra_fnet.errors import UserError

ROOT = Path(__file__).parent.parent
OUTSIDE = Path(__file__).parent / "outside"
TRAIN = ["train", "--task", "parity", "--model", "fnet", "--preset", "cpu"]
TRAIN += ["--gin-dir", str(OUTSIDE), "--name", "n"]
LONG = [f"Run.{setting}" for setting in ("num_steps=100000", "save_every=20", "save_seconds=0")]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Processes:
    """N processes of one command over loopback, their output in files."""

    def __init__(self, folder, count, *more, devices=1, before="", each=lambda index: ()):
        port = free_port()
        self.errors = [folder / f"error{index}" for index in range(count)]
        code = f"import sys; from lra_fnet import cli, hosts\n{before}\nsys.exit(cli.main())"
        flags = f"--xla_force_host_platform_device_count={devices}"
        path = os.pathsep.join(map(str, (ROOT, OUTSIDE)))
        environment = os.environ | {"PYTHONPATH": path, "XLA_FLAGS": flags}
        self.running = []
        for index, error in enumerate(self.errors):
            where = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(count)]
            where += ["--process", str(index)] if count > 1 else []
            command = [sys.executable, "-c", code, *TRAIN, *more, *each(index)]
            command += where if count > 1 else []
            with error.open("w") as file:
                self.running.append(
                    subprocess.Popen(
                        command, cwd=folder, env=environment, stderr=file, stdout=subprocess.DEVNULL
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            process.kill()
            process.wait()

    def ends(self, *without, within=60.0):
        """Exit statuses of all but some, and what they wrote."""
        left = [p for index, p in enumerate(self.running) if index not in without]
        deadline = time.monotonic() + within
        codes = [p.wait(max(0.1, deadline - time.monotonic())) for p in left]
        return codes, [self.errors[i].read_text() for i in range(len(self.running))]


def folder_of(runs):
    return runs / "runs/cpu/parity/fnet+n/seed0"


def result_of(runs):
    return json.loads((folder_of(runs) / "result.json").read_text())


def losses_of(runs):
    lines = (folder_of(runs) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def run(folder, count, *more, **options):
    folder.mkdir(exist_ok=True)
    with Processes(folder, count, *more, **options) as processes:
        codes, said = processes.ends(within=120)
        assert codes == [0] * count, said
    return said


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    run(folder, 1)
    return folder


@pytest.mark.parametrize(
    ("count", "devices"), [(2, 1), pytest.param(2, 2, marks=pytest.mark.slow),
                           pytest.param(4, 1, marks=pytest.mark.slow)]
)
def test_several_processes_give_the_losses_and_counts_of_one(alone, tmp_path, count, devices):
    said = run(tmp_path, count, devices=devices)
    np.testing.assert_allclose(losses_of(tmp_path), losses_of(alone), rtol=1e-5)
    one, many = result_of(alone), result_of(tmp_path)
    for split in ("validation", "test"):
        for kind in ("best", "last"):
            assert many[split][kind]["step"] == one[split][kind]["step"]
            assert many[split][kind]["correct"] == one[split][kind]["correct"]
            assert many[split][kind]["count"] == one[split][kind]["count"]
    assert (many["device"]["processes"], many["device"]["count"]) == (count, count * devices)
    assert many["config"] == one["config"]
    assert len((tmp_path / "runs/test_log.jsonl").read_text().splitlines()) == 2
    assert len(list((folder_of(tmp_path) / "tensorboard").iterdir())) == 1
    assert "trained" in said[0]
    assert not any(said[1:])  # process 0 alone speaks


def wait_for_step(folder, step):
    """Until metrics.jsonl has a line of at least this step."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        path = folder_of(folder) / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        if any(json.loads(line)["step"] >= step for line in lines if line.endswith("\n")):
            return
        time.sleep(0.05)
    raise AssertionError([path.read_text() for path in folder.glob("error*")])


def the_line(said):
    """The one line of ours; nothing else may be there but what a run says."""
    found = [line for line in said.splitlines() if line.startswith("lra-fnet: ")]
    assert len(found) == 1, said
    assert "Traceback" not in said
    return found[0]
