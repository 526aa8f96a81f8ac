"""Compiled programs are kept on disk, and a second start with them gives the same numbers."""

import json
import os
import subprocess
import sys

import pytest
from paths import OUTSIDE, ROOT

from lra_fnet.machine import compile_cache

VARIABLES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "XDG_CACHE_HOME",
)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment without settings of caches and with an empty home."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that the test's end undoes what `use` sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def test_cache_is_in_the_cache_folder_of_the_user(bare, tmp_path):
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


def test_settings_of_the_user_are_kept(bare, tmp_path):
    bare.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "mine"))
    bare.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "5")
    compile_cache.use()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "mine")
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "5"
    assert not (tmp_path / ".cache").exists()


def test_cache_that_is_turned_off_makes_no_folder(bare, tmp_path):
    bare.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    compile_cache.use()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    assert not (tmp_path / ".cache").exists()


def test_a_program_that_was_written_in_part_is_compiled_again_without_a_word(bare, tmp_path):
    code = (
        "from lra_fnet.machine import compile_cache; compile_cache.use()\n"
        "import jax; print(jax.jit(lambda x: x + 1)(1.0))"
    )
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (ended.stdout, ended.stderr) == ("2.0\n", "")
        entries = list((tmp_path / ".cache/lra-fnet/jax").glob("*-cache"))
        assert entries
        for entry in entries:
            entry.write_bytes(entry.read_bytes()[:100])


def test_folder_that_cannot_be_written_gives_one_line_and_no_cache(bare, tmp_path, capfd):
    (tmp_path / ".cache").write_text("a file, not a folder")
    compile_cache.use()
    assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(
        f"compiled programs are not kept: {tmp_path}/.cache/lra-fnet/jax cannot be written (Not a "
    )
    assert error.endswith(": choose another folder with JAX_COMPILATION_CACHE_DIR\n")


def test_turning_the_cache_on_does_not_import_jax():
    code = "import sys; from lra_fnet import cli; from lra_fnet.machine import compile_cache\n"
    code += "compile_cache.use(); assert 'jax' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def train(folder, runs):
    """Trains in a separate process; returns its messages and the hash of the parameters."""
    command = [sys.executable, "-m", "lra_fnet", "train", "--task", "parity", "--model", "fnet"]
    command += ["--preset", "cpu", "--gin-dir", str(OUTSIDE), "--runs", runs]
    command += ["--set", "Encoder.num_layers=1", "--set", "Run.num_steps=2", "--name", "n"]
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    path = f"{ROOT}{os.pathsep}{OUTSIDE}"
    environment |= {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((folder / runs / "cpu/parity/fnet+n/seed0/result.json").read_text())
    return ended.stderr, result["parameters_sha256"]


@pytest.mark.slow
def test_second_start_uses_the_cache_and_gives_the_same_bits(tmp_path):
    """So does a start after a killed process has left a truncated program there."""
    cold, first = train(tmp_path, "cold")
    assert "from the cache" not in cold
    warm, second = train(tmp_path, "warm")
    assert "s (from the cache)" in warm
    assert "Warning" not in warm
    assert "error" not in warm.lower()
    for entry in (tmp_path / "cache/lra-fnet/jax").glob("jit_update*"):
        entry.write_bytes(entry.read_bytes()[:1000])
    truncated, third = train(tmp_path, "truncated")
    assert "from the cache" not in truncated
    assert first == second == third
