"""Trained runs and calls of the command that the tests of this folder share."""

import shutil

import pytest
from made_runs import Trained
from paths import OUTSIDE

from lra_fnet import cli


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of trained runs by model; tests leave them unchanged."""
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def copy(folders, tmp_path):
    """The folder of a trained run that the test may change."""
    return shutil.copytree(folders["fnet"], tmp_path / "seed0")


@pytest.fixture
def command(capfd):
    """Calls `lra-fnet`; returns the exit code, standard error and standard output."""

    def call(*words):
        capfd.readouterr()
        code = cli.main(list(map(str, words)))
        captured = capfd.readouterr()
        return code, captured.err, captured.out

    return call


@pytest.fixture
def train(command, tmp_path, monkeypatch):
    """Trains the task `parity` in an empty folder by `lra-fnet train`; returns as `command`."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(tmp_path)

    def call(*options, model="fnet"):
        names = ["--task", "parity", "--model", model, "--preset", "cpu", "--gin-dir", OUTSIDE]
        return command("train", *names, *options)

    return call
