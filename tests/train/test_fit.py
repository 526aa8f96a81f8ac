"""`--fit`: the microbatch at which the preset's batch fits the device, and only that."""

import dataclasses
import json
import os
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from paths import OUTSIDE
from tiny import tiny

from lra_fnet import cli, experiment
from lra_fnet.errors import RunFailed
from lra_fnet.machine import progress
from lra_fnet.run.job import Job
from lra_fnet.tasks import Arrays
from lra_fnet.train import pipeline, step
from lra_fnet.train.loop import Loop


@pytest.fixture
def planned(monkeypatch):
    """A compiler that needs 100 bytes an example of a slice; notes the slices that it is given."""
    tried = []

    def compiled(built, mesh, batches):
        tried.append(built.run.microbatch)
        return SimpleNamespace(bytes=100 * built.run.microbatch)

    monkeypatch.setattr(step, "_compile", compiled)
    monkeypatch.setattr(step, "planned_bytes", lambda program: program.bytes)
    return tried


def fit(monkeypatch, free, batch_size=32, devices=1, **run):
    built = tiny(batch_size=batch_size, **run)
    shapes = jax.tree.leaves(jax.eval_shape(lambda: step.initial_state(built, 0)))
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in shapes)
    monkeypatch.setattr(step, "free_memory", lambda: state + free)
    mesh = SimpleNamespace(
        size=devices, local_devices=[SimpleNamespace(memory_stats=lambda: None)] * devices
    )
    return step.fit(built, mesh, None)


@pytest.mark.parametrize(
    ("free", "batch_size", "devices", "want"),
    [
        (3200, 32, 1, 32),
        (3199, 32, 1, 16),
        (800, 32, 1, 8),
        (199, 32, 1, 1),
        (1100, 12, 1, 6),
        (399, 7, 1, 1),
        (3200, 32, 4, 8),  # simulated devices share the memory
        (1600, 32, 4, 4),
    ],
)
def test_it_is_the_largest_divisor_that_fits(planned, monkeypatch, free, batch_size, devices, want):
    built, compiled = fit(monkeypatch, free, batch_size, devices)
    assert built.run.microbatch == want
    assert compiled.bytes == 100 * want
    assert len(planned) <= 1 + max(1, (batch_size // devices - 1).bit_length() - 1)
    assert planned[0] == batch_size


def test_a_microbatch_that_is_set_is_the_most(planned, monkeypatch):
    assert fit(monkeypatch, 10**6, microbatch=8)[0].run.microbatch == 8
    assert planned == [8]


def test_nothing_else_of_the_experiment_changes(planned, monkeypatch):
    before = tiny(batch_size=32)
    monkeypatch.setitem(fit.__globals__, "tiny", lambda **_: before)
    after, _ = fit(monkeypatch, 800)
    run = dataclasses.replace(before.run, microbatch=8)
    assert after == dataclasses.replace(before, run=run)


@pytest.mark.parametrize(
    ("free", "line"),
    [(3200, "the batch of 32 fits whole: "), (800, "the batch of 32 fits in 4 slices of 8: ")],
)
def test_it_says_one_line(planned, monkeypatch, free, line):
    told = []
    monkeypatch.setattr(progress, "say", told.append)
    fit(monkeypatch, free)
    assert len(told) == 1
    assert told[0].startswith(line)
    assert " GB of " in told[0]


def test_what_fits_in_no_slice_is_oom(planned, monkeypatch):
    with pytest.raises(RunFailed, match=r"slices of 1 needs .* GB, .* GB are free: set") as caught:
        fit(monkeypatch, 99)
    assert caught.value.state == "OOM"


def test_memory_of_a_device_is_its_limit_less_what_is_used():
    stats = {"bytes_limit": 1000, "bytes_in_use": 300}
    device = SimpleNamespace(memory_stats=lambda: stats)
    assert step._free_bytes(SimpleNamespace(local_devices=[device])) == 700


def test_smaller_slices_take_less_memory_by_the_compilers_account():
    """What the bisection rests on."""
    sizes = []
    rows = Arrays(np.zeros((40, 128), np.uint8), np.full(40, 128, np.int32), np.zeros(40, np.int32))
    for microbatch in (0, 2):
        built = experiment.load(
            "listops", "transformer", "cpu", ("MAX_LEN=128", "Encoder.num_layers=1")
        )
        run = dataclasses.replace(built.run, batch_size=32, microbatch=microbatch)
        built = dataclasses.replace(built, run=run)
        batches = pipeline.train_batches(rows, 0, 0, 1, 32, 2)
        sizes.append(step.planned_bytes(step.compile_update(built, step.make_mesh(32), batches)))
    assert sizes[1] < sizes[0] / 2


def test_a_run_that_fits_is_the_presets_run_and_resumes(tmp_path, monkeypatch, capfd):
    """Its folder, config and numbers are those of the run without; result.json has the slices."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(tmp_path)
    which = ["train", "--task", "parity", "--model", "fnet", "--preset", "cpu"]
    which += ["--gin-dir", str(OUTSIDE)]

    def train(runs, *more):
        code = cli.main([*which, "--runs", runs, *more])
        return code, capfd.readouterr().err

    def result(runs, variant=""):
        folder = tmp_path / runs / f"cpu/parity/fnet{variant}/seed0"
        return json.loads((folder / "result.json").read_text())

    assert train("plain")[0] == 0
    plain = result("plain")
    assert plain["microbatch"] == 4
    compiled, bytes_of, whole = step._compile, step._needed_bytes, []

    def noted(built, mesh, batches):
        program = compiled(built, mesh, batches)
        if built.run.microbatch == 4:
            whole.append(program)
        return program

    monkeypatch.setattr(step, "_compile", noted)
    monkeypatch.setattr(
        step, "_needed_bytes", lambda *which: 10**18 if which[0] in whole else bytes_of(*which)
    )
    finish = Loop._finish

    def interrupt(loop, count, table):
        before = loop.step
        finish(loop, count, table)
        if not before:  # once: a second signal ends the process at once
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_finish", interrupt)
        code, err = train("fitted", "--fit", "--set", "Run.steps_per_dispatch=1", "--name", "a")
    assert code == 128 + signal.SIGTERM, err
    code, err = train("fitted", "--fit", "--set", "Run.steps_per_dispatch=1", "--name", "a")
    assert code == 0, err
    assert "the batch of 4 fits in 2 slices of 2: " in err
    assert "resumes at step " in err
    fitted = result("fitted", "+a")
    assert fitted["microbatch"] == 2
    assert "Run.microbatch = 0" in fitted["config"]
    assert fitted["validation"]["last"]["loss"] == pytest.approx(
        plain["validation"]["last"]["loss"], rel=1e-5
    )
    code, err = train("plain", "--fit")
    assert code == 0
    assert "complete already" in err


def test_command_to_resume_has_fit():
    assert Job("listops", "fnet", "cpu", fit=True).command()[-1] == "--fit"
    assert "--fit" not in Job("listops", "fnet", "cpu").command()
