"""The drill: its faults strike, its verdicts tell, and a slice of it finds nothing."""

import os
import re
import signal
import subprocess
import sys

import gin
import pytest
from paths import ROOT

from tools.drill import hostile, stage
from tools.drill.stage import Outcome, Rule, Stage, Verdict

WRITES = """
import os, sys
for name in ("a", "b"):
    with open(name + ".new", "wb", buffering=0) as file:
        count = file.write(b"12345678")
        os.fsync(file.fileno())
    os.rename(name + ".new", name)
    print(count, flush=True)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return stage.build(tmp_path_factory.mktemp("shim"))


def write(folder, shim, rule):
    """Writes two files under a rule; returns the process and what lies in the folder."""
    environment = os.environ | {
        "LD_PRELOAD": str(shim),
        "LRA_FNET_DRILL": rule.text(folder).decode(),
    }
    done = subprocess.run(
        [sys.executable, "-c", WRITES], cwd=folder, env=environment, capture_output=True, text=True
    )
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "trace"}
    return done, files


def test_calls_that_change_files_are_counted_in_order(tmp_path, shim):
    done, files = write(tmp_path, shim, Rule("count", trace="trace"))
    assert (done.returncode, files) == (0, {"a": b"12345678", "b": b"12345678"})
    lines = [line.split() for line in (tmp_path / "trace").read_text().splitlines()]
    assert [kind for _, kind, _ in lines] == ["o", "w", "s", "n"] * 2
    assert [int(number) for number, *_ in lines] == [*range(1, 9)]
    assert lines[3][2] == str(tmp_path / "a")


@pytest.mark.parametrize(
    ("rule", "code", "files"),
    [
        (Rule("kill", nth=6), -9, {"a": b"12345678", "b.new": b""}),
        (Rule("half", nth=6), -9, {"a": b"12345678", "b.new": b"1234"}),
        (Rule("half", nth=4), -9, {"a": b"12345678"}),
        (Rule("fail", (5,), 7), 1, {"a": b"12345678", "b.new": b"12345678"}),
        (Rule("full", (28,), 3), 1, {"a.new": b"12345678"}),
        (Rule("short", (), 2), 0, {"a": b"1234", "b": b"12345678"}),
        (Rule("signal", (signal.SIGTERM, 0, 1), 1, "n"), -15, {"a.new": b"12345678"}),
        (Rule("kill", (), 1, part="b.new"), -9, {"a": b"12345678"}),
        (Rule("kill", (), 1, below="elsewhere"), 0, {"a": b"12345678", "b": b"12345678"}),
    ],
)
def test_a_fault_strikes_at_its_call(tmp_path, shim, rule, code, files):
    done, left = write(tmp_path, shim, rule)
    assert (done.returncode, left) == (code, files), done.stderr


@pytest.mark.parametrize(
    ("code", "err", "verdict"),
    [
        (0, "", Verdict.EQUAL),
        (2, "training\nlra-fnet: no space left\n", Verdict.REFUSED),
        (2, "lra-fnet: one\nlra-fnet: two\n", Verdict.TRACEBACK),
        (2, "", Verdict.TRACEBACK),
        (1, "Traceback (most recent call last):\n", Verdict.TRACEBACK),
        (0, "Exception ignored in: <thread>\n", Verdict.TRACEBACK),
        (-11, "", Verdict.TRACEBACK),
        (143, "saved; to resume: ...", Verdict.EQUAL),
        (None, "", Verdict.HANG),
    ],
)
def test_the_end_of_a_command_is_judged(code, err, verdict):
    assert Outcome(["train"], code, "", err).verdict(143) is verdict


HANGS = """
import os, time
from pathlib import Path
from tools.drill.stage import Process, Stage
os.setsid = lambda: time.sleep(60)  # in the child, before it leads a group of processes
print(Process(Stage(Path(), 0), ["train"]).wait(0.1).code)
"""


def test_a_command_that_hangs_at_its_start_is_ended():
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "None\n", done.stderr


def test_another_number_is_wrong_even_with_exit_code_0(tmp_path):
    place = Stage(tmp_path, 0)
    outcome = Outcome(["predict"], 0, '{"label": 1}', "")
    assert place.judge("predict", outcome, '{"label": 1}') is Verdict.EQUAL
    assert place.judge("predict", outcome, '{"label": 0}') is Verdict.WRONG
    assert "label" in place.log[-1]


@pytest.mark.slow
def test_a_slice_of_the_drill_finds_nothing(tmp_path):
    """`python -m tools.drill --seed 1 --case N` plays a case again."""
    out = tmp_path / "drill.md"
    command = [sys.executable, "-m", "tools.drill", "--seed", "1", "--sample", "3"]
    done = subprocess.run(
        [*command, "--out", str(out)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    (counts,) = re.findall(r"^\| all \| (.*) \|$", out.read_text(), re.M)
    tried, equal, refused, *bad = map(int, counts.split(" | "))
    assert tried == 3
    assert equal > refused
    assert sum(bad[:3]) == 0


def test_config_with_a_library_of_our_own_module_would_run_code_in_gin_alone():
    """Else the case of the drill could never fail."""
    text = hostile._CONFIGS["a library of our own module"]
    gin.parse_config(text)
    assert gin.query_parameter("MAX_LEN/macro.value")
    gin.clear_config()
