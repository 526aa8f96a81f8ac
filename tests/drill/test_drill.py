"""The drill: its faults strike, its verdicts tell, and a slice of it finds nothing."""

import os
import re
import signal
import subprocess
import sys

import pytest
from paths import ROOT

from tools.drill import stage
from tools.drill.stage import Outcome, Rule, Stage, Verdict

WRITES = """
import os, sys
for name in ("a", "b"):
    with open(name + ".new", "wb", buffering=0) as file:
        file.write(b"12345678")
        os.fsync(file.fileno())
    os.rename(name + ".new", name)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return stage.build(tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize(
    ("rule", "code", "files"),
    [
        (Rule("count"), 0, {"a": b"12345678", "b": b"12345678"}),
        (Rule("kill", nth=6), -9, {"a": b"12345678", "b.new": b""}),
        (Rule("half", nth=6), -9, {"a": b"12345678", "b.new": b"1234"}),
        (Rule("fail", (5,), 7), 1, {"a": b"12345678", "b.new": b"12345678"}),
        (Rule("full", (28,), 3), 1, {"a.new": b"12345678"}),
        (Rule("short", (), 2), 0, {"a": b"1234", "b": b"12345678"}),
        (Rule("signal", (signal.SIGTERM, 0, 1), 1, "n"), -15, {"a.new": b"12345678"}),
        (Rule("kill", (), 1, part="b.new"), -9, {"a": b"12345678"}),
        (Rule("kill", (), 1, below="elsewhere"), 0, {"a": b"12345678", "b": b"12345678"}),
    ],
)
def test_a_fault_strikes_at_its_call(tmp_path, shim, rule, code, files):
    faults = {"LD_PRELOAD": str(shim), "LRA_FNET_DRILL": rule.text(tmp_path).decode()}
    done = subprocess.run([sys.executable, "-c", WRITES], cwd=tmp_path, env=os.environ | faults)
    assert done.returncode == code
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize(
    ("code", "err", "verdict"),
    [
        (0, "", Verdict.EQUAL),
        (2, "training\nlra-fnet: no space left\n", Verdict.REFUSED),
        (2, "lra-fnet: one\nlra-fnet: two\n", Verdict.TRACEBACK),
        (1, "Traceback (most recent call last):\n", Verdict.TRACEBACK),
        (-11, "", Verdict.TRACEBACK),
        (143, "saved; to resume: ...", Verdict.EQUAL),
        (None, "", Verdict.HANG),
    ],
)
def test_the_end_of_a_command_is_judged(code, err, verdict):
    assert Outcome(["train"], code, "", err).verdict(143) is verdict


def test_another_number_is_wrong_even_with_exit_code_0(tmp_path):
    place = Stage(tmp_path, 0)
    outcome = Outcome(["predict"], 0, '{"label": 1}', "")
    assert place.judge("predict", outcome, '{"label": 1}') is Verdict.EQUAL
    assert place.judge("predict", outcome, '{"label": 0}') is Verdict.WRONG


@pytest.mark.slow
def test_a_slice_of_the_drill_finds_nothing(tmp_path):
    """`python -m tools.drill --seed 1 --case N` plays a case again."""
    out = tmp_path / "drill.md"
    command = [sys.executable, "-m", "tools.drill", "--seed=1", "--sample=3", f"--out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    (counts,) = re.findall(r"^\| all \| (.*) \|$", out.read_text(), re.M)
    tried, equal, refused, *bad = map(int, counts.split(" | "))
    assert (tried, sum(bad)) == (3, 0)
    assert equal > refused
