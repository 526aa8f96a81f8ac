"""Compiled programs are kept on disk, and a second start with them gives the same numbers."""

import os
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, ".cache/lra-fnet/jax"),
        ({"XDG_CACHE_HOME": "other"}, "other/lra-fnet/jax"),
        ({"JAX_COMPILATION_CACHE_DIR": "mine", "XDG_CACHE_HOME": "other"}, "mine"),
    ],
)
def test_cache_is_in_the_folder_of_the_user(bare, tmp_path, given, folder):
    for name, value in given.items():
        bare.setenv(name, str(tmp_path / value))
    compile_cache.use()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / folder)
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"


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
