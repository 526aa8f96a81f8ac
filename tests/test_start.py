"""How the process of a command begins and ends: signals, closed and narrow streams."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import OUTSIDE, PARITY, ROOT

from lra_fnet.machine import signals

STOPPED = "lra-fnet: stopped\n"
# Calls the command line with a fault: `{}` is its code.
START = "import gc, os, signal, sys\n{}\nfrom lra_fnet.__main__ import main\nsys.exit(main())"
AT_IMPORT = """
class Fault:
    def find_spec(self, name, *_):
        if name in {}:
            {}
sys.meta_path.insert(0, Fault())
"""
SEEDS = ROOT / "results/cpu/listops/fnet/seed"
INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{OUTSIDE}"}


def start(*words, fault="", **changes):
    """Runs a command in a separate process, in the folder where the test is."""
    command = [sys.executable, "-c", START.format(fault), *words]
    environment = ENVIRONMENT | changes.pop("env", {})
    return subprocess.run(command, env=environment, capture_output=True, text=True, **changes)


@pytest.mark.parametrize("module", ["lra_fnet.cli", "gin", "jax", "lra_fnet.run.execute"])
def test_ctrl_c_during_an_import_ends_with_one_line(module, outside):
    fault = AT_IMPORT.format([module], INTERRUPT)
    ended = start("train", *PARITY, "--model", "fnet", fault=fault)
    assert (ended.returncode, ended.stderr) == (130, STOPPED)


def test_ctrl_c_before_and_after_the_loop_ends_with_one_line_and_twice_too(outside):
    for call in ("run.execute.Loop.__init__", "run.evaluate.finish"):
        owner, _, name = call.rpartition(".")
        fault = f"""
import lra_fnet.run.execute
import lra_fnet
lra_fnet.{owner}.{name} = lambda *_, **__: [{INTERRUPT} for _ in range(2)]
"""
        ended = start("train", *PARITY, "--model", "fnet", fault=fault)
        assert ended.returncode == 130
        assert ended.stderr.endswith(STOPPED)
        assert ended.stderr.count("stopped") == 1
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("settings --task lstops --model fnet", 2),
        ("train --task listops --model fnet --init absent", 2),
        ("train --task listops --model fnet --set Run.num_steps", 2),
        ("pretrain --task listops --model fnt", 2),
        ("sweep --task listops --models fnt", 2),
        ("evaluate --run absent", 2),
        ("predict --run absent", 2),
        ("export --run absent --out new", 2),
        (f"compare {SEEDS}0 {SEEDS}1", 0),
        ("describe", 0),
    ],
)
def test_what_computes_nothing_imports_no_heavy_library(line, code, outside):
    """JAX takes most of a second to import."""
    heavy = ("jax", "flax", "tensorflow", "scipy.stats", "matplotlib")
    ended = start(*line.split(), fault=AT_IMPORT.format(heavy, "raise SystemError(name)"))
    assert (ended.returncode, ended.stderr.count("\n")) == (code, code // 2)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("foo", ["train", *PARITY, "--model", "fnet"]),
        ("cuda", ["benchmark", *PARITY, "--models=fnet", "--lengths=4", "--what=infer"]),
    ],
)
def test_a_platform_that_is_not_there_is_a_mistake_of_the_user(name, command, outside):
    ended = start(*command, env={"JAX_PLATFORMS": name})
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("lra-fnet: ")]
    assert "JAX_PLATFORMS" in line
    assert "Traceback" not in ended.stderr


def test_ctrl_c_ends_the_processes_of_a_benchmark_without_a_word(outside):
    words = ["benchmark", *PARITY, "--models", "fnet", "--lengths", "4", "--what", "train"]
    command = [sys.executable, "-c", START.format(""), *words, "--seconds", "60"]
    streams = {"stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, **streams)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def measures():
        assert process.poll() is None
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a child that has ended
            commands = [Path(f"/proc/{n}/cmdline") for n in children.read_text().split()]
            return any(b"multiprocessing.spawn" in command.read_bytes() for command in commands)

    while not measures():  # it starts the process of a cell
        time.sleep(0.05)
    time.sleep(2)  # it imports JAX, or measures
    os.killpg(process.pid, signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == 130


def test_nohup_keeps_the_end_of_a_terminal_ignored(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.handled(signals.stop_at_once):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is signals.stop_at_once
        assert signal.getsignal(signal.SIGTERM) is not signals.stop_at_once
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_without_utf_8_shows_question_marks(outside):
    fault = "from lra_fnet import cli\ncli.main = lambda: print('76.8 \\u00b1 1')"
    ended = start(fault=fault, env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "76.8 ? 1\n", "")


def test_a_closed_output_is_no_error(outside):
    words = [sys.executable, "-m", "lra_fnet", "--version"]
    command = ["sh", "-c", '"$@" <&- >&-', "sh", *words]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "limit", "words"),
    [
        ("RLIMIT_AS", 1_000_000 << 10, "3,221,225,472 bytes of address space, got 1,024,000,000"),
        ("RLIMIT_NOFILE", 64, "256 open files, got 64: raise it with ulimit -n"),
    ],
)
def test_a_limit_below_what_every_run_needs_fails_with_one_line(name, limit, words, outside):
    fault = f"import resource; resource.setrlimit(resource.{name}, ({limit}, {limit}))"
    ended = start("train", *PARITY, "--model", "fnet", fault=fault, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert words in line


def test_a_batch_that_no_machine_holds_fails_with_one_line(command):
    ended = command("train", *PARITY, "--model", "fnet", "--set", f"Run.batch_size={10**12}")
    assert ended.code == 2
    assert "lra-fnet: Unable to allocate" in ended.err.splitlines()[-1]
