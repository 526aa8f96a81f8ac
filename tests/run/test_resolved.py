"""What the machine decided for a run holds for the run, wherever it goes on."""

import json
import os
import signal

import pytest

from lra_fnet.models.mixers import fourier
from lra_fnet.training.loop import Loop

MORE = ("--set", "Run.steps_per_dispatch=1", "--set", "Run.save_every=1", "--name", "n")


@pytest.fixture
def machine(monkeypatch):
    """Acts as a machine on which one method of the transform is the fastest."""
    return lambda winner: monkeypatch.setattr(fourier, "fastest_method", lambda _: winner)


def folder_of(root):
    return root / "cpu/parity/fnet+n/seed0"


def numbers(root):
    result = json.loads((folder_of(root) / "result.json").read_text())
    names = ("parameters_sha256", "validation", "test", "train", "resolved")
    lines = (folder_of(root) / "metrics.jsonl").read_text().splitlines()
    curve = [json.loads(line) | {"steps_per_second": None} for line in lines]
    return {name: result[name] for name in names} | {"curve": curve}


@pytest.mark.slow
def test_run_on_another_machine_goes_on_with_the_decisions_of_the_first(
    train, command, machine, tmp_path, monkeypatch
):
    machine("four_step")
    assert train("--runs", "whole", *MORE)[0] == 0
    finish = Loop._finish

    def interrupt(loop, count, table):
        before = loop.step
        finish(loop, count, table)
        if not before:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_finish", interrupt)
        assert train("--runs", "moved", *MORE)[0] == 128 + signal.SIGTERM
    machine("matmul")
    assert train("--runs", "moved", "--no-test", *MORE)[0] == 0
    code, err, _ = command("evaluate", "--run", folder_of(tmp_path / "moved"))
    assert code == 0, err
    want = numbers(tmp_path / "whole")
    assert numbers(tmp_path / "moved") == want
    assert set(want["resolved"].values()) >= {"four_step", 8, 4}
    assert train("--runs", "other", *MORE)[0] == 0
    assert numbers(tmp_path / "other")["parameters_sha256"] != want["parameters_sha256"]
