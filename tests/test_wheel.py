"""An installed wheel runs everything outside the checkout, without git and without make."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

import lra_fnet

LIBRARIES = Path(sysconfig.get_path("purelib"))
# A wheel is an archive of site-packages; its command is one line.
START = "import sys; from lra_fnet.__main__ import main; sys.exit(main())"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs `lra-fnet` of the wheel in a separate folder, with the libraries of these tests."""
    libraries = tmp_path_factory.mktemp("libraries")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(libraries)
    for path in LIBRARIES.iterdir():  # as in an environment: gin-config's folder gin is beside it
        if not path.name.startswith(("lra_fnet", "_editable", "__editable")):
            (libraries / path.name).symlink_to(path)
    folder = tmp_path_factory.mktemp("elsewhere")
    changes = {"PYTHONPATH": str(libraries)}

    def run(*words, ends=0):
        command = [sys.executable, "-S", "-c", START, *map(str, words)]
        done = subprocess.run(
            command, cwd=folder, env=os.environ | changes, capture_output=True, text=True
        )
        assert done.returncode == ends, done.stderr
        return done.stdout + done.stderr

    run.folder = folder
    return run


def test_the_wheel_has_all_files_of_the_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tracked = ["git", "ls-files", "gin", "data/expected.json", "docs/protocol.md", "lra_fnet"]
    files = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {f"lra_fnet/{name.removeprefix('lra_fnet/')}" for name in files.split()} <= {*names}


@pytest.mark.slow
def test_an_installed_wheel_prepares_trains_sweeps_reports_and_predicts(installed):
    lines = (f"spam,buy {i}\n" if i % 3 else f"ham,see {i}\n" for i in range(300))
    (installed.folder / "mail.csv").write_text("label,text\n" + "".join(lines))
    source = ["--task", "csv", "--source", "mail.csv"]
    assert "preparing csv/full" in installed("data", *source)
    job = [*source, "--preset", "cpu", "--set", "Run.num_steps=2", "--set", "MAX_LEN=16"]
    job += ["--set", "Encoder.num_layers=1", "--set", "Encoder.dim=16"]
    assert "run folder: " in installed("train", *job, "--model", "fnet", "--name", "small")
    run = "runs/cpu/csv/fnet+small/seed0"
    result = json.loads((installed.folder / run / "result.json").read_text())
    assert re.fullmatch("[0-9a-f]{40}", result["commit"])
    assert result["versions"]["lra_fnet"] == lra_fnet.__version__
    trials = installed("sweep", "--sweep", "lra_table", "--preset", "cpu", "--dry-run")
    assert "lra-fnet train --task listops --model fnet --preset cpu" in trials
    assert "page/index.html" in installed("report", "--out", "page")
    assert "small" in (installed.folder / "page/report.md").read_text()
    assert (installed.folder / "page/index.html").exists()
    (installed.folder / "text.txt").write_text("buy now\n")
    assert '"probabilities"' in installed("predict", "--run", run, "text.txt")


def test_messages_of_an_installed_wheel_name_what_it_has(installed):
    """No message sends its user to `make` or to files that only a checkout has."""
    message = installed("sweep", "--sweep", "none", ends=2)
    assert "or one of dropout_pooling, image_layers, lra_table, rates; got 'none'" in message
    message = installed("train", "--task", "x", "--model", "fnet", ends=2)
    assert "unknown task 'x'; known tasks: corpus, csv, image, images, listops" in message
