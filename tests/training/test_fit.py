"""`--fit`: the largest microbatch that fits the device, and nothing else changes."""

import dataclasses
import json
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from made_runs import change
from paths import OUTSIDE
from tiny import tiny

from lra_fnet import cli, experiment
from lra_fnet.errors import RunFailed, UserError
from lra_fnet.machine import progress
from lra_fnet.models.kernels import fastest
from lra_fnet.run.job import Job
from lra_fnet.tasks import Arrays
from lra_fnet.training import hosts, pipeline, slices, step
from lra_fnet.training.loop import Loop

STATE_BYTES = 5000


@pytest.fixture
def fit(monkeypatch):
    """Fits an experiment by a compiler that needs 100 bytes per example; notes what it compiled."""
    monkeypatch.setattr(slices, "planned_bytes", lambda program: program.bytes)

    def compiled(microbatch):
        fit.tried.append(microbatch)
        return SimpleNamespace(bytes=100 * microbatch)

    def fit(built, free, devices=1):
        monkeypatch.setattr(slices, "free_memory", lambda: STATE_BYTES + free)
        fit.tried = []
        mesh = SimpleNamespace(
            size=devices, local_devices=[SimpleNamespace(memory_stats=lambda: None)] * devices
        )
        return slices.fit(built, mesh, compiled, STATE_BYTES)

    return fit


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
def test_largest_divisor_that_fits_is_chosen(fit, free, batch_size, devices, want):
    assert fit(tiny(batch_size=batch_size), free, devices) == want
    assert len(fit.tried) <= 1 + max(1, (batch_size // devices - 1).bit_length() - 1)
    assert fit.tried[0] == batch_size


def test_given_microbatch_is_the_largest_candidate(fit):
    assert fit(tiny(batch_size=32, microbatch=8), 10**6) == 8
    assert fit.tried == [8]


@pytest.mark.parametrize(
    ("free", "line"),
    [(3200, "the batch of 32 fits whole: "), (800, "the batch of 32 fits in 4 slices of 8: ")],
)
def test_fit_prints_one_line(fit, monkeypatch, free, line):
    lines = []
    monkeypatch.setattr(progress, "say", lines.append)
    fit(tiny(batch_size=32), free)
    assert len(lines) == 1
    assert lines[0].startswith(line)
    assert " GB of " in lines[0]


def test_no_slice_that_fits_is_oom(fit):
    with pytest.raises(RunFailed, match=r"slices of 1 needs .* GB, .* GB are free: set") as caught:
        fit(tiny(batch_size=32), 99)
    assert caught.value.state == "OOM"


def test_microbatch_below_the_number_of_devices_is_a_mistake(fit):
    with pytest.raises(UserError, match=r"Run.microbatch \(2\) .* number of devices \(4\)"):
        fit(tiny(batch_size=32, microbatch=2), 10**6, devices=4)


def test_free_memory_of_a_device_is_its_limit_less_the_bytes_in_use():
    stats = {"bytes_limit": 1000, "bytes_in_use": 300}
    device = SimpleNamespace(memory_stats=lambda: stats)
    assert slices.free_bytes(SimpleNamespace(local_devices=[device])) == 700


@pytest.mark.parametrize(("free", "where"), [(1, ""), (3, " here, less in another process")])
def test_only_a_cpu_refuses_a_step_and_says_whose_memory_is_short(monkeypatch, free, where):
    monkeypatch.setattr(slices, "needed_bytes", lambda program, mesh: 2)
    monkeypatch.setattr(slices, "free_memory", lambda: free)
    monkeypatch.setattr(hosts, "every", lambda mine: False)
    with pytest.raises(RunFailed, match=rf"GB are free{where}: set --fit") as caught:
        slices.check(None, None)
    assert caught.value.state == "OOM"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    slices.check(None, None)  # an accelerator's allocator refuses by itself


def test_size_that_another_process_or_the_compiler_has_no_memory_for_does_not_fit(fit, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(hosts, "every", lambda mine: mine and fit.tried[-1] <= 16)
        assert fit(tiny(batch_size=32), 10**6) == 16

    def planned_bytes(program):
        if program.bytes > 800:
            raise jax.errors.JaxRuntimeError(message)
        return program.bytes

    monkeypatch.setattr(slices, "planned_bytes", planned_bytes)
    message = "RESOURCE_EXHAUSTED: Out of memory"
    assert fit(tiny(batch_size=32), 10**6) == 8
    message = "INTERNAL: a defect"
    with pytest.raises(jax.errors.JaxRuntimeError, match="a defect"):
        fit(tiny(batch_size=32), 10**6)


def test_batch_norm_fits_whole_or_not_at_all(fit):
    built = tiny("conv", "Encoder.batch_norm=0.9", batch_size=32)
    assert fit(built, 3200) == 32
    with pytest.raises(RunFailed, match=r"a step in slices of 32 needs .* GB"):
        fit(built, 3199)


def test_batch_that_fits_whole_is_a_decision_that_holds_again():
    built, mesh = tiny(batch_size=32), SimpleNamespace(size=1)
    with fastest.decisions({}) as made:
        assert slices.fitted_before() is None
        fastest.decide("something else", lambda: 1, [1])
        assert slices.fitted(built, mesh, lambda: 32).run.microbatch == 32
        assert slices.fitted_before() == 32
    with fastest.decisions(made):
        assert slices.fitted(built, mesh, lambda: 8).run.microbatch == 32


def test_plan_counts_outputs_in_donated_arguments_once_and_none_without_an_account():
    sizes = {"argument": 1000, "output": 800, "alias": 700, "temp": 50}
    plan = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})
    assert slices.planned_bytes(SimpleNamespace(memory_analysis=lambda: plan)) == 1150
    assert slices.planned_bytes(SimpleNamespace(memory_analysis=lambda: None)) == 0


def test_compiler_plans_less_memory_for_smaller_slices():
    """The bisection relies on this."""
    sizes = []
    rows = Arrays(np.zeros((40, 128), np.uint8), np.full(40, 128, np.int32), np.zeros(40, np.int32))
    for microbatch in (0, 2):
        built = experiment.load(
            "listops", "transformer", "cpu", ("MAX_LEN=128", "Encoder.num_layers=1")
        )
        run = dataclasses.replace(built.run, batch_size=32, microbatch=microbatch)
        built = dataclasses.replace(built, run=run)
        batches = pipeline.train_batches(rows, 0, 0, 1, 32, 2)
        program = step.Program.compile(built, pipeline.make_mesh(32), batches)
        sizes.append(slices.planned_bytes(program.update))
    assert sizes[1] < sizes[0] / 2


@pytest.mark.slow
def test_run_with_fit_has_the_numbers_of_the_run_without_and_resumes(tmp_path, monkeypatch, capfd):
    """The folder and the config are the same too; result.json records the microbatch."""
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
    planned_bytes, plans = slices.planned_bytes, []

    def first_is_too_large(program):
        plans.append(program)
        return 10**18 if program is plans[0] else planned_bytes(program)

    monkeypatch.setattr(slices, "planned_bytes", first_is_too_large)
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
    assert "the batch of 4 fits in 2 slices of 2: " in err
    monkeypatch.setattr(slices, "planned_bytes", planned_bytes)  # now the whole batch would fit
    code, err = train("fitted", "--set", "Run.steps_per_dispatch=1", "--name", "a")
    assert code == 0, err
    assert "--fit holds from the first step on" in err
    assert "the batch of 4 fits" not in err
    assert "resumes at step " in err
    fitted = result("fitted", "+a")
    assert fitted["microbatch"] == 2
    assert fitted["resolved"]["microbatch that fits 1 device(s) on cpu"] == 2
    assert "Run.microbatch = 0" in fitted["config"]
    assert fitted["validation"]["last"]["loss"] == pytest.approx(
        plain["validation"]["last"]["loss"], rel=1e-5
    )
    folder = tmp_path / "fitted/cpu/parity/fnet+a/seed0"
    (folder / "result.json").unlink()  # as if it was killed here, on two devices
    resolved = {w.replace(" 1 device", " 2 device"): n for w, n in fitted["resolved"].items()}
    change(folder / "run.json", resolved=resolved)
    code, err = train("fitted", "--fit", "--set", "Run.steps_per_dispatch=1", "--name", "a")
    assert code == 0, err
    assert result("fitted", "+a")["microbatch"] == 2
    code, err = train("plain", "--fit")
    assert code == 0
    assert "complete already" in err

    for name in ("result.json", "metrics.jsonl"):  # as if it was killed before its first checkpoint
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    code, err = train("fitted", "--set", "Run.steps_per_dispatch=1", "--name", "a")
    assert (code, "--fit holds" in err) == (0, False), err
    assert result("fitted", "+a")["microbatch"] == 4
    assert not any("fits" in what for what in result("fitted", "+a")["resolved"])


def test_command_to_resume_has_fit():
    assert Job("listops", "fnet", "cpu", fit=True).command()[-1] == "--fit"
    assert "--fit" not in Job("listops", "fnet", "cpu").command()
