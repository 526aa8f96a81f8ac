"""Compiled programs on disk: where, when not, and that a second start is warm and the same."""

import json
import os
import subprocess
import sys

import pytest
from paths import OUTSIDE

from lra_fnet.machine import compile_cache

VARIABLES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "XDG_CACHE_HOME",
)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment that says nothing of caches, with a home of its own."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what `use` sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def test_the_folder_is_below_the_users_cache_folder(bare, tmp_path):
    compile_cache.use()
    folder = tmp_path / ".cache/lra-fnet/jax"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert folder.is_dir()
    assert not list(folder.iterdir())
    bare.delenv("JAX_COMPILATION_CACHE_DIR")
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    compile_cache.use()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "other/lra-fnet/jax")


def test_what_the_user_sets_is_kept(bare, tmp_path):
    bare.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "mine"))
    bare.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "5")
    compile_cache.use()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "mine")
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "5"
    assert not (tmp_path / ".cache").exists()


def test_turned_off_it_makes_no_folder(bare, tmp_path):
    bare.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    compile_cache.use()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    assert not (tmp_path / ".cache").exists()


def test_a_folder_that_cannot_be_written_is_one_line_and_no_cache(bare, tmp_path, capfd):
    (tmp_path / ".cache").write_text("a file, no folder")
    compile_cache.use()
    assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(
        f"compiled programs are not kept: {tmp_path}/.cache/lra-fnet/jax cannot"
    )


def test_turning_it_on_does_not_import_jax():
    code = "import sys; from lra_fnet import cli, compile_cache; compile_cache.use()\n"
    code += "assert 'jax' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def train(folder, runs, **variables):
    """What a run in a process of its own says, and its result."""
    command = [sys.executable, "-m", "lra_fnet.cli", "train", "--task", "parity", "--model", "fnet"]
    command += ["--preset", "cpu", "--gin-dir", str(OUTSIDE), "--runs", runs]
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    path = f"{OUTSIDE.parent.parent}{os.pathsep}{OUTSIDE}"
    environment |= {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((folder / runs / "cpu/parity/fnet/seed0/result.json").read_text())
    return ended.stderr, result["parameters_sha256"]


def test_a_second_start_is_warm_and_gives_the_same_bits(tmp_path):
    """And without the cache, and when a killed process has left half a program there."""
    cold, first = train(tmp_path, "cold")
    assert "from the cache" not in cold
    warm, second = train(tmp_path, "warm")
    assert "s (from the cache)" in warm
    assert "Warning" not in warm
    assert "error" not in warm.lower()
    off, third = train(tmp_path, "off", JAX_ENABLE_COMPILATION_CACHE="false")
    assert "compiled in " in off
    assert "from the cache" not in off
    for entry in (tmp_path / "cache/lra-fnet/jax").glob("jit_update*"):
        entry.write_bytes(entry.read_bytes()[:1000])
    torn, fourth = train(tmp_path, "torn")
    assert "from the cache" not in torn
    assert first == second == third == fourth
