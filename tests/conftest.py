"""Settings and fixtures of all tests. Warnings, NaNs and implicit broadcasts are errors."""

import ctypes
import dataclasses
import gc
import os
import signal
import tempfile
from typing import NamedTuple

from paths import OUTSIDE

from tools import hasty  # without jax

# Each worker stays on one core, with the programs that it starts: the tests took twice as long when
# the workers' threads shared all cores. It must be set before jax is imported.
if _worker := os.environ.get("PYTEST_XDIST_WORKER"):
    _cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_cores[int(_worker.removeprefix("gw")) % len(_cores)]})

# One cache of compiled programs for all workers and the processes that they start: dozens of tests
# compile the same tiny models. It must be set before jax is imported; it is deleted at the end.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="lra-fnet-jax-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

# Half of the time goes into compiling small programs, here and in the commands that tests start.
# One device, or the first command of a process would make every core one.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), hasty.FLAGS, "--xla_force_host_platform_device_count=1"]
).strip()
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # 9 % of the time of a training's tests

import gin
import jax
import made_runs
import pytest

from lra_fnet import cli
from lra_fnet.models.kernels import fastest
from lra_fnet.training import loop

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and tests send it

gc.freeze()
gc.set_threshold(20_000, 20, 50)  # tracing makes many objects that live: 3 % of all time

jax.config.update("jax_numpy_rank_promotion", "raise")  # [B] + [B, 1] is an error, not [B, B]
jax.config.update("jax_debug_nans", True)


def pytest_collection_modifyitems(items):
    """Puts the longest tests first, so that no worker waits for one at the end.

    Those that import TensorFlow come last: it keeps half a gigabyte of its worker.
    """
    heavy = {"test_store.py", "test_image.py", "test_retrieval.py", "test_text.py"}
    items.sort(key=lambda i: not (i.get_closest_marker("slow") or "test_hosts" in i.nodeid))
    items.sort(key=lambda i: i.path.name in heavy)


@pytest.fixture(autouse=True)
def clean_gin():
    """Clears gin before and after each test: its configuration is global."""
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Drops the compiled programs of a file after it: all of them together take gigabytes."""
    yield
    jax.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def clean_tree(monkeypatch):
    """Lets runs record a commit without changes: others need not be equal to the bit."""
    made_runs.without_changes(monkeypatch)


class Outcome(NamedTuple):
    """The exit code of a command and what it printed."""

    code: int
    err: str
    out: str

    @property
    def mistake(self) -> str:
        """The one line of a user's mistake; fails if the command ended in any other way."""
        assert self.code == 2, self.err
        assert not self.out
        (line,) = self.err.splitlines()
        return line


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Enters an empty folder, with the task `parity` of tests/outside importable; returns it."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(outside, capfd):
    """Calls `lra-fnet` with these words in an empty folder; returns its `Outcome`."""

    def call(*words):
        capfd.readouterr()  # what fixtures printed
        code = cli.main([str(word) for word in words])
        captured = capfd.readouterr()
        return Outcome(code, captured.err, captured.out)

    return call


@pytest.fixture(scope="module")
def compiled_once():
    """Runs of equal experiments share the compiled update: it is two fifths of their time."""
    compile, programs = loop.Program.compile, {}

    def shared(experiment, mesh, batches, seed=0, **given):
        parts = (experiment.model, experiment.optimizer, experiment.run.microbatch, mesh, batches)
        key = repr((*parts, seed, given, fastest.made()))
        if key not in programs:
            programs[key] = compile(experiment, mesh, batches, seed, **given), fastest.made()
        program, made = programs[key]
        for what, choice in made.items():  # which the run records
            fastest.decide(what.rpartition(" on ")[0], lambda choice=choice: choice)
        return dataclasses.replace(program, experiment=experiment)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop.Program, "compile", shared)
        yield
