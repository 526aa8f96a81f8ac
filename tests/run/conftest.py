"""Trained runs and calls of the command that the tests of this folder share."""

import functools
import shutil

import pytest
from made_runs import STEPS, Folders, trained
from paths import PARITY


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of trained runs by model; tests leave them unchanged."""
    root = tmp_path_factory.mktemp("trained")
    return Folders(lambda model: trained(root / "runs", model, *STEPS))


@pytest.fixture
def copy(folders, tmp_path):
    """The folder of a trained run that the test may change."""
    return shutil.copytree(folders["fnet"], tmp_path / "seed0")


@pytest.fixture
def parity(command):
    """Calls a verb of `lra-fnet` for the task `parity` in an empty folder; returns as `command`."""
    return lambda verb, *words, model="fnet": command(verb, *PARITY, "--model", model, *words)


@pytest.fixture
def train(parity):
    """Trains the task `parity` in an empty folder by `lra-fnet train`; returns as `command`."""
    return functools.partial(parity, "train")
