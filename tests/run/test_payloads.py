"""No hostile run folder or export runs code, changes a file of the user or ends in a traceback."""

import shutil
import sys

import payloads
import pytest
from paths import OUTSIDE
from payloads import EVIL, EXPORT, RUN, Plant

import lra_fnet
from lra_fnet.errors import UserError
from lra_fnet.run import evaluate, model, verify

PARITY = str(OUTSIDE / "parity.py")


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Copies a folder for a payload, and lets Python find modules in the copy."""

    def call(folder):
        copy = shutil.copytree(folder, tmp_path / "runs/cpu/parity/fnet+tiny/seed0")
        (tmp_path / "victim").write_text("mine")
        monkeypatch.syspath_prepend(str(copy))
        monkeypatch.chdir(copy)
        monkeypatch.delitem(sys.modules, EVIL, raising=False)
        return Plant(copy, tmp_path / "marker", tmp_path / "victim")

    return call


@pytest.fixture(scope="session")
def exported(folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "out"
    model.export(folders["fnet"], out, imports=[PARITY])
    return out


def is_harmless(plant, *uses):
    """Opens a folder in several ways; each gives something or one line."""
    for use in uses:
        line = ""
        try:
            use(plant.folder)
        except UserError as error:
            line = str(error)
        assert "\n" not in line
        assert not plant.marker.exists()
        assert plant.victim.read_text() == "mine"
    assert EVIL not in sys.modules


def checked(folder):
    verify.verify(folder, verify.Options(folder / "no data", (PARITY,), (OUTSIDE,)))


@pytest.mark.parametrize("name", RUN)
def test_hostile_run_folder_is_harmless(folders, plant, name):
    planted = plant(folders["fnet"])
    RUN[name](planted)
    is_harmless(planted, lra_fnet.load_run, evaluate.evaluate, checked)


@pytest.mark.parametrize("name", EXPORT)
def test_hostile_export_is_harmless(exported, plant, name):
    planted = plant(exported)
    EXPORT[name](planted)
    is_harmless(planted, lra_fnet.load_run, checked)


def test_a_payload_runs_where_the_user_asks_for_it(folders, plant):
    """The payloads are live: with --import the marker appears."""
    planted = plant(folders["fnet"])
    payloads.RUN["imports a module"](planted)
    lra_fnet.load_run(planted.folder, imports=[EVIL])
    assert planted.marker.exists()
