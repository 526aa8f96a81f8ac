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


def test_turning_the_cache_on_does_not_import_jax():
    code = "import sys; from lra_fnet import cli; from lra_fnet.machine import compile_cache\n"
    code += "compile_cache.use(); assert 'jax' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_second_start_uses_the_cache_and_gives_the_same_bits(bare, tmp_path):
    bare.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{OUTSIDE}")
    words = ["train", "--task=parity", "--model=fnet", "--preset=cpu", f"--gin-dir={OUTSIDE}"]
    words += ["--name=n", "--set=Encoder.num_layers=1", "--set=Run.num_steps=2"]
    said, hashes = [], []
    for runs in ("cold", "warm"):
        command = [sys.executable, "-m", "lra_fnet", *words, "--runs", runs]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        said.append("(from the cache)" in ended.stderr)
        result = tmp_path / runs / "cpu/parity/fnet+n/seed0/result.json"
        hashes.append(json.loads(result.read_text())["parameters_sha256"])
    assert said == [False, True]
    assert hashes[0] == hashes[1]
