"""Several processes as one run: the numbers of one, and an end together whatever happens to one."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from paths import OUTSIDE, ROOT

from lra_fnet.errors import UserError
from lra_fnet.train import hosts

TRAIN = ["train", "--task", "parity", "--model", "fnet", "--preset", "cpu"]
TRAIN += ["--gin-dir", str(OUTSIDE), "--name", "n"]
LONG = ["num_steps=100000", "save_every=20", "save_seconds=0", "eval_every=200"]
LONG = [word for setting in LONG for word in ("--set", f"Run.{setting}")]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextlib.contextmanager
def processes(folder, count, code, devices=1):
    """`code` in so many processes with INDEX, COUNT and PORT; files out0, out1, ... hold the rest.

    Yields the processes; kills those that are left.
    """
    flags = f"--xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join(map(str, (ROOT, OUTSIDE)))
    environment = os.environ | {"PYTHONPATH": path, "XLA_FLAGS": flags}
    port, running = free_port(), []
    for index in range(count):
        names = f"INDEX, COUNT, PORT = {index}, {count}, {port}\n"
        with (folder / f"out{index}").open("w") as out:
            command = [sys.executable, "-c", names + code]
            running.append(
                subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
            )
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def codes_of(running, within=300.0):
    deadline = time.monotonic() + within
    return [process.wait(max(0.1, deadline - time.monotonic())) for process in running]


def out(folder, index):
    return (folder / f"out{index}").read_text()


def the_line(folder, index):
    """The one line with which a process ends."""
    said = out(folder, index)
    found = [line for line in said.splitlines() if line.startswith("lra-fnet: ")]
    assert len(found) == 1, said
    assert "Traceback" not in said
    return found[0]


def wait_for(condition, folder, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, [path.read_text() for path in folder.glob("out*")]
        time.sleep(0.05)


def train(*more, before=""):
    """The command, as code for `processes`."""
    return (
        "import sys, time; from pathlib import Path; from lra_fnet import cli, hosts\n"
        f"{before}\n"
        f"words = {[*TRAIN, *more]}\n"
        "if COUNT > 1:\n"
        "    words += ['--coordinator', f'127.0.0.1:{PORT}', '--processes', str(COUNT)]\n"
        "    words += ['--process', str(INDEX)]\n"
        "sys.exit(cli.main(words))"
    )


def group(inside, before="", place="PORT, COUNT, INDEX"):
    """Processes that join each other and nothing else, as code for `processes`."""
    return (
        "import os, pathlib, signal, sys, time\n"
        "from lra_fnet import hosts\n"
        "from lra_fnet.errors import Gone, UserError\n"
        "hosts.GRACE_SECONDS = 1\n"
        "hosts._start_jax, hosts._stop_jax = (lambda where, port: None), (lambda: None)\n"
        "def say(*words): print(*words, flush=True)\n"
        f"port, count, index = {place}\n"
        f"{before}\n"
        "try:\n"
        "    with hosts.join(hosts.place(f'127.0.0.1:{port}', count, index, False)):\n"
        f"        {inside}\n"
        "except (UserError, Gone) as error:\n"
        "    print(f'lra-fnet: {error}'); sys.exit(getattr(error, 'code', 2))\n"
    )


def folder_of(runs):
    return runs / "runs/cpu/parity/fnet+n/seed0"


def result_of(runs):
    return json.loads((folder_of(runs) / "result.json").read_text())


def metrics_of(runs):
    path = folder_of(runs) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def run(folder, count, *more, devices=1):
    folder.mkdir(exist_ok=True)
    with processes(folder, count, train(*more), devices) as running:
        assert codes_of(running) == [0] * count, [out(folder, i) for i in range(count)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("h:1", 2, None, False), "need --coordinator HOST:PORT, --processes N and --process I"),
        (("h", 2, 0, False), "--coordinator expects HOST:PORT, got 'h'"),
        (("h:x", 2, 0, False), "--coordinator expects HOST:PORT"),
        (("h:1", 2, 2, False), "--process expects 0 to --processes - 1, got --process 2"),
        ((None, None, None, True), "or --hosts auto on a cluster; got no cluster"),
    ],
)
def test_a_wrong_place_is_a_mistake(given, words):
    with pytest.raises(UserError) as caught:
        hosts.place(*given)
    assert words in str(caught.value)


def test_slurms_variables_are_a_place(monkeypatch):
    variables = {"JOB_ID": 7, "STEP_NODELIST": "n[3-4]", "NTASKS": 2, "PROCID": 1, "LOCALID": 0}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    assert hosts.place(None, None, None, True) == hosts.Place("n3", 65535 - 4096 + 8, 2, 1, [0])


def test_one_process_needs_no_place():
    assert hosts.place(None, None, None, False) is None
    assert hosts.place("h:1", 1, 0, False) is None
    assert hosts.first()
    assert hosts.agree(3) == 3
    assert hosts.agree_on_signal(15) == 15


def test_all_agree_on_the_values_of_process_0_in_order_and_on_a_signal_of_any(tmp_path):
    """What comes to the port and is no process of the run is not heard."""
    code = group(
        "import socket; x = socket.create_connection(('127.0.0.1', PORT)); x.sendall(b'GET /\\n')\n"
        "        say([hosts.agree([INDEX, k], about) for k in range(3) for about in 'ab'])\n"
        "        hosts.same('facts', {'seed': 0})\n"
        "        mine = 15 if INDEX == 2 else None\n"
        "        while not (found := hosts.agree_on_signal(mine)): time.sleep(0.01)\n"
        "        say(found)"
    )
    with processes(tmp_path, 3, code) as running:
        assert codes_of(running) == [0, 0, 0], [out(tmp_path, i) for i in range(3)]
    for index in range(3):
        words = [[0, k] for k in range(3) for _ in "ab"]
        assert out(tmp_path, index).splitlines()[-2:] == [str(words), "15"]


@pytest.mark.parametrize(
    ("count", "place", "inside", "code", "words"),
    [
        (2, "PORT, COUNT + INDEX, INDEX", "pass", 2, "give the same --processes to all"),
        (3, "PORT, 3, min(INDEX, 1)", "pass", 2, "was started twice"),
        (1, "PORT, 2, 0", "pass", 75, "1 of 2 processes did not come within 2 s: --process 1"),
        (1, "PORT, 2, 1", "pass", 75, "process 0 cannot be reached at 127.0.0.1:"),
        (
            3,
            "PORT, 3, INDEX",
            "hosts.same('run', {'seed': INDEX // 2, 'task': 'text'})",
            2,
            "process 2 of 3 (vm) differs from process 0: seed 1, not 0",
        ),
        (
            2,
            "PORT, 2, INDEX",
            "hosts.check_shared(pathlib.Path('/proc' if INDEX == 1 else '.'))",
            2,
            "/proc is not the folder that process 0 writes: --runs takes one that all hosts share",
        ),
    ],
    ids=["number", "twice", "missing", "unreachable", "configuration", "folder"],
)
def test_processes_that_do_not_fit_together_end_with_one_line(
    tmp_path, count, place, inside, code, words
):
    short = "hosts.SILENT_SECONDS = 5; hosts.JOIN_SECONDS = 2 if COUNT == 1 else 99"
    with processes(tmp_path, count, group(inside, short, place)) as running:
        ended = codes_of(running)
        assert ended == [code] * count, [out(tmp_path, i) for i in range(count)]
    for index in range(count):
        assert words.replace("(vm)", f"({socket.gethostname()})") in the_line(tmp_path, index)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_killed_or_stopped_process_ends_the_others_whatever_they_do(tmp_path, victim, how):
    """The others sleep, count in Python, or wait for process 0."""
    code = group(
        "say('in')\n"
        "        if INDEX == 2: hosts.agree(None)\n"
        "        while INDEX == 1: pass\n"
        "        time.sleep(99)",
        "hosts.SILENT_SECONDS = 5",
    )
    with processes(tmp_path, 3, code) as running:
        wait_for(lambda: all("in\n" in out(tmp_path, i) for i in range(3)), tmp_path)
        running[victim].send_signal(how)
        left = [index for index in range(3) if index != victim]
        assert codes_of([running[i] for i in left], 60) == [75, 75]
        end = "has ended" if how == signal.SIGKILL else "has not answered for 5 s"
        for index in left:
            line = the_line(tmp_path, index)
            assert f"process {victim} of 3 (" in line
            assert f"{end}; the same command in each process resumes" in line


def test_a_slow_process_is_not_missing_and_all_may_be_stopped_together(tmp_path):
    """Process 1 counts for longer than the silence that is allowed; then all three are stopped."""
    code = group(
        "say('in')\n"
        "        end = time.monotonic() + 6\n"
        "        while INDEX == 1 and time.monotonic() < end: pass\n"
        "        hosts.same('counted', {})\n"
        "        say('go'); time.sleep(3); hosts.same('awake', {})",
        "hosts.SILENT_SECONDS = 4",
    )
    with processes(tmp_path, 3, code) as running:
        wait_for(lambda: all("go\n" in out(tmp_path, i) for i in range(3)), tmp_path)
        for process in running:
            process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        for process in running:
            process.send_signal(signal.SIGCONT)
        assert codes_of(running) == [0, 0, 0], [out(tmp_path, i) for i in range(3)]


def test_the_last_word_waits_for_a_beat_that_is_being_sent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = hosts._Peer(socket.create_connection(server.getsockname()))
        there, _ = server.accept()
    with peer.lock:
        peer.send(["beat"], wait=False)  # dropped
        last = threading.Thread(target=peer.send, args=(["end"], False, 5.0))
        last.start()
        time.sleep(0.1)
    last.join()
    there.settimeout(5)
    with there, peer.socket:
        assert there.recv(100) == b'["end"]\n'


def test_an_error_of_one_process_is_told_to_all_with_its_exit_status(tmp_path):
    code = group(
        "say('in')\n        if INDEX == 1: raise UserError('no space left')\n        time.sleep(99)"
    )
    with processes(tmp_path, 3, code) as running:
        assert codes_of(running) == [2, 2, 2], [out(tmp_path, i) for i in range(3)]
    assert the_line(tmp_path, 1) == "lra-fnet: no space left"
    for index in (0, 2):
        assert the_line(tmp_path, index).startswith("lra-fnet: process 1 of 3 (")
        assert the_line(tmp_path, index).endswith("): no space left")


def test_a_signal_outside_of_the_loop_ends_all_with_its_status(tmp_path):
    with processes(tmp_path, 2, group("say('in'); time.sleep(99)")) as running:
        wait_for(lambda: all("in\n" in out(tmp_path, i) for i in range(2)), tmp_path)
        running[1].send_signal(signal.SIGTERM)
        assert codes_of(running) == [143, 143]
    assert "stopped by SIGTERM" in the_line(tmp_path, 0)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    run(folder, 1)
    return folder


@pytest.mark.parametrize(("count", "devices"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.slow)])
def test_several_processes_give_the_losses_and_counts_of_one(alone, tmp_path, count, devices):
    run(tmp_path, count, devices=devices)
    several, one = ([line["loss"] for line in metrics_of(path)] for path in (tmp_path, alone))
    np.testing.assert_allclose(several, one, rtol=1e-5)
    want, got = result_of(alone), result_of(tmp_path)
    for split in ("validation", "test"):
        for kind in ("best", "last"):
            assert got[split][kind] | {"loss": 0} == want[split][kind] | {"loss": 0}
    assert (got["device"]["processes"], got["device"]["count"]) == (count, count * devices)
    assert got["config"] == want["config"]
    assert len((tmp_path / "runs/test_log.jsonl").read_text().splitlines()) == 2
    assert len(list((folder_of(tmp_path) / "tensorboard").iterdir())) == 1
    assert "trained" in out(tmp_path, 0)
    assert "trained" not in out(tmp_path, 1)


def test_both_checkpoints_of_a_step_are_saved_at_once_by_all_processes(tmp_path):
    code = (
        "import jax, numpy as np, pathlib\n"
        "from lra_fnet.train import hosts, pipeline\n"
        "from lra_fnet.train.checkpoint import Checkpoints\n"
        "with hosts.join(hosts.place(f'127.0.0.1:{PORT}', COUNT, INDEX, False)):\n"
        "    kept = Checkpoints(pathlib.Path('run'))\n"
        "    everywhere = jax.NamedSharding(pipeline.make_mesh(2), jax.P())\n"
        "    x = jax.make_array_from_callback((3,), everywhere, lambda _: np.ones(3))\n"
        "    for k in range(1, 26):\n"
        "        for kind in ('last', 'best'): kept.save(kind, k, {'x': x}, {})\n"
        "        kept.wait()\n"
        "    kept.close()\n"
    )
    with processes(tmp_path, 2, code) as running:
        assert codes_of(running) == [0, 0], [out(tmp_path, i) for i in range(2)]
    found = sorted(path.parent.name + path.name for path in tmp_path.glob("run/checkpoints/*/25"))
    assert found == ["best25", "last25"]


@pytest.mark.slow
def test_a_kill_in_training_ends_the_others_and_the_same_command_resumes(tmp_path):
    """To the bits of the run of two processes that nobody killed."""
    end = [
        word
        for setting in ("num_steps=120", "save_every=20", "save_seconds=0", "eval_every=60")
        for word in ("--set", f"Run.{setting}")
    ]
    run(tmp_path / "whole", 2, *end)
    folder = tmp_path / "killed"
    folder.mkdir()
    with processes(folder, 2, train(*end)) as running:
        kept = folder_of(folder) / "checkpoints/last"
        wait_for(lambda: any(p.name.isdecimal() for p in kept.glob("*")), folder)
        running[1].kill()
        assert codes_of(running[:1], 60) == [75]
    assert "process 1 of 2 (" in the_line(folder, 0)
    run(folder, 2, *end)
    assert "resumes at step" in out(folder, 0)
    whole, killed = result_of(tmp_path / "whole"), result_of(folder)
    assert killed["parameters_sha256"] == whole["parameters_sha256"]
    assert killed["test"] == whole["test"]


@pytest.mark.slow
@pytest.mark.parametrize("victims", [[1], [0, 1]], ids=["one", "all"])
def test_a_signal_in_training_saves_one_step_in_all_and_ends_all(tmp_path, victims):
    with processes(tmp_path, 2, train(*LONG)) as running:
        wait_for(lambda: len(metrics_of(tmp_path)) > 5, tmp_path)
        for index in victims:
            running[index].send_signal(signal.SIGTERM)
        assert codes_of(running) == [143, 143]
    kept = [int(path.name) for path in (folder_of(tmp_path) / "checkpoints/last").iterdir()]
    assert len(kept) == 1
    assert kept[0] >= metrics_of(tmp_path)[-1]["step"]
    assert "saved; to resume (each process its own): " in out(tmp_path, 0)
