"""The command: one run from its settings to result.json, and one line for each mistake."""

import contextlib
import dataclasses
import json
import os
import pkgutil
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from made_runs import change
from paths import OUTSIDE

from lra_fnet import cli
from lra_fnet.counts import bits
from lra_fnet.errors import RunFailed, UserError
from lra_fnet.machine import disk
from lra_fnet.models.mixers.fourier import Fourier
from lra_fnet.run import execute, provenance
from lra_fnet.run import job as jobs
from lra_fnet.run import result as results
from lra_fnet.run.job import Job
from lra_fnet.training import checkpoint

pytestmark = pytest.mark.usefixtures("compiled_once")


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_run_writes_everything_into_its_folder(train, tmp_path):
    code, _, out = train()
    assert code == 0
    assert "run folder: runs/cpu/parity/fnet/seed0" in out
    folder = tmp_path / "runs/cpu/parity/fnet/seed0"
    result = result_of(folder)
    assert result["state"] == "complete"
    assert result["test"]["best"]["count"] == 30
    last = result["validation"]["last"]
    assert last.keys() == {"step", "correct", "count", "loss", "variation"}
    assert (last["step"], last["count"]) == (6, 20)
    assert result["train"]["count"] == 20
    assert result["shallow"]["test"]["count"] == 30  # the data were prepared by this run
    assert (result["mixer_length"], result["uses_mask"], result["overrides"]) == (12, False, [])
    for name in ("parameters", "steps_per_second", "peak_bytes", "wall_seconds"):
        assert result[name] > 0
    for split, has_bits in (("test", True), ("validation", False)):
        for counts in result[split].values():
            assert (bits(counts) is not None) == has_bits
    readings = (tmp_path / "runs/test_log.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in readings] == ["intended", "last", "best"]
    assert "correct_bits" not in readings[1]
    assert (folder / "config.gin").read_text() == result["config"]


def test_step_that_exceeds_the_memory_is_a_state_and_not_a_crash(train, tmp_path, monkeypatch):
    """It ends before the state is made, so the kernel kills no process."""
    monkeypatch.setattr("lra_fnet.training.slices.free_memory", lambda: 10_000)
    code, err, _ = train(model="linear")
    assert code == 1
    assert "out of memory" in err
    result = result_of(tmp_path / "runs/cpu/parity/linear/seed0")
    assert (result["state"], result["test"], result["closed"]) == ("OOM", None, False)


def test_mixer_that_sees_padding_against_its_word_is_not_trained(train, tmp_path, monkeypatch):
    """One of a user's."""
    for name, value in (("__module__", "mine"), ("uses_mask", True)):
        monkeypatch.setattr(Fourier, name, value)
    code, err, _ = train()
    assert code == 2
    assert "Fourier declares uses_mask" in err
    assert not list((tmp_path / "runs").rglob("checkpoints"))


def test_complete_run_is_trained_again_only_with_force(train, tmp_path):
    train()
    file = tmp_path / "runs/cpu/parity/fnet/seed0/result.json"
    before = file.stat().st_mtime_ns
    code, err, _ = train()
    assert code == 0
    assert "complete already" in err
    assert file.stat().st_mtime_ns == before
    assert train("--force")[0] == 0
    assert file.stat().st_mtime_ns != before
    (aside,) = (tmp_path / "runs/cpu/parity/fnet").glob(".seed0.moved-*")
    assert result_of(aside)["parameters_sha256"] == result_of(file.parent)["parameters_sha256"]
    result = result_of(file.parent)
    result["test"]["best"] |= {"correct": 25, "correct_bits": None, "confusion": None}
    file.write_text(json.dumps(result))
    assert "sha256" in train()[1]  # it was edited


def test_a_run_stays_if_its_successor_is_not_compiled(train, tmp_path, monkeypatch):
    train()
    runs = tmp_path / "runs"
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}

    def refuse(*_, **__):
        raise RunFailed("out of memory", "OOM")

    monkeypatch.setattr("lra_fnet.training.loop.Loop.__init__", refuse)
    assert train("--force")[0] == 1
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


def test_a_run_goes_on_with_the_devices_that_it_began_with(folders, monkeypatch):
    begun, used = jobs.read(folders["fnet"]), []
    monkeypatch.setattr(execute.device, "use", lambda number, **_: used.append(number))
    monkeypatch.setattr(execute.device, "use_cores", lambda rows: used.append(f"of {rows}"))
    (process,) = begun.processes
    two = dataclasses.replace(process, device=dataclasses.replace(process.device, count=3))
    for processes in ((), (process, two)):
        one = dataclasses.replace(begun, processes=processes)
        monkeypatch.setattr(jobs, "read", lambda _, one=one: one)
        execute._use_devices(dataclasses.replace(one, devices=0), begun.load())
    for options in ({"force": True}, {"runs": Path("elsewhere")}, {"devices": 3}):
        job = dataclasses.replace(begun, **{"devices": 0, **options})
        execute._use_devices(job, begun.load())
    assert used == [1, 3, "of 4", "of 4", 3]


def test_a_folder_that_is_moved_aside_stays_locked(tmp_path):
    """Otherwise another process could begin the run while --force begins it again."""
    folder = tmp_path / "seed0"
    (folder / "checkpoints/best").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    with contextlib.closing(disk.try_lock(folder / ".lock")):
        before = (folder / ".lock").stat().st_ino
        aside = jobs.move_aside(folder)
        assert [path.name for path in folder.iterdir()] == [".lock"]
        assert (folder / ".lock").stat().st_ino == before
        assert jobs.in_use(folder)
    assert sorted(path.name for path in aside.iterdir()) == ["checkpoints", "run.json"]
    assert aside.parent == tmp_path


def test_run_whose_run_json_is_lost_is_complete_or_refused(folders, tmp_path, capfd):
    """Its result may be all that was kept; nothing of it is changed."""
    job = dataclasses.replace(jobs.read(folders["fnet"]), runs=tmp_path / "runs")
    folder = shutil.copytree(folders["fnet"], job.folder)
    (folder / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run\.json"):
        execute.run(job)
    (folder / "run.json").unlink()
    before = (folder / "result.json").read_bytes()
    assert execute.run(job).score("test")
    hotter = dataclasses.replace(job, overrides=(*job.overrides, "Optimizer.learning_rate=0.5"))
    with pytest.raises(UserError, match=r"\(Optimizer.learning_rate: 0.03 -> 0.5\)"):
        execute.run(hotter)
    assert (folder / "result.json").read_bytes() == before
    change(folder / "result.json", test=None)
    for _ in range(2):
        with pytest.raises(UserError, match=r"no run\.json"):
            execute.run(job)
        (folder / "result.json").unlink(missing_ok=True)


def test_a_name_stands_for_one_configuration(train, tmp_path):
    assert train("--gin", "Run.num_steps=3 Encoder.mlp_dim=4", "--name", "short")[0] == 0
    result = result_of(tmp_path / "runs/cpu/parity/fnet+short/seed0")
    assert result["overrides"] == ["Encoder.mlp_dim=4", "Run.num_steps=3"]
    other = train("--set", "Run.num_steps=4", "--name", "short")
    assert "Run.num_steps: 3 -> 4" in other.mistake


def test_a_run_without_a_checkpoint_gives_way_to_other_settings(train, tmp_path):
    """As where a mixer was mended after its first step had failed."""
    wild = "--set", "Optimizer.learning_rate=1e38", "--name", "n"
    code, err, _ = train(*wild, "--no-test")
    assert code == 1, err
    folder = tmp_path / "runs/cpu/parity/fnet+n/seed0"
    result = result_of(folder)
    assert (result["state"], result["test"], result["closed"]) == ("diverged", None, True)
    assert not checkpoint.exists(folder)
    assert train("--name", "n")[0] == 0
    assert result_of(folder)["state"] == "complete"
    assert train(*wild)[0] == 2  # it holds a complete run now


@pytest.fixture
def stopped(train, monkeypatch, capfd):
    """Trains until a function is called, in which SIGTERM comes; returns code and stderr."""

    def call(place):
        owner, _, name = place.rpartition(".")
        original, calls = pkgutil.resolve_name(place), []

        def interrupt(*positional, **named):
            calls.append(positional)
            if len(calls) == 1:  # a second signal would end this process
                os.kill(os.getpid(), signal.SIGTERM)
            return original(*positional, **named)

        with monkeypatch.context() as patched:
            patched.setattr(pkgutil.resolve_name(owner), name, interrupt)
            patched.setattr(os, "_exit", sys.exit)
            try:
                return train()[:2]
            except SystemExit as error:
                return error.code, capfd.readouterr().err

    return call


@pytest.mark.parametrize(
    ("where", "saved"),
    [
        ("lra_fnet.training.loop.wait_for", True),  # the first steps
        ("lra_fnet.training.loop.Checkpoints.save", True),
        ("lra_fnet.run.evaluate.score_test", False),
    ],
)
def test_sigterm_at_any_moment_is_code_143_and_the_same_command_resumes(
    where, saved, train, stopped, tmp_path
):
    code, err = stopped(where)
    assert code == 143, err
    command = f"lra-fnet train --task parity --model fnet --preset cpu --gin-dir {OUTSIDE}\n"
    assert (command in err) == saved
    assert train()[0] == 0
    result = result_of(tmp_path / "runs/cpu/parity/fnet/seed0")
    assert (result["state"], result["test"]["last"]["step"]) == ("complete", 6)
    assert len((tmp_path / "runs/test_log.jsonl").read_text().splitlines()) == 3


def test_run_resumed_with_other_code_names_both_commits(train, stopped, tmp_path, monkeypatch):
    """Also twice with the same code; code that trained no step of it does not count."""
    places = ("training.loop.Loop.__call__", *["training.loop.wait_for"] * 2)
    for digit, place in zip("abb", places, strict=True):
        monkeypatch.setattr(provenance, "commit", lambda digit=digit: (digit * 40, False))
        assert stopped(f"lra_fnet.{place}")[0] == 143
    monkeypatch.setattr(provenance, "commit", lambda: ("c" * 40, False))
    assert train()[0] == 0
    done = results.read(tmp_path / "runs/cpu/parity/fnet/seed0")
    assert (done.revision, [one.revision for one in done.earlier]) == ("c" * 12, ["b" * 12])


def test_complete_run_without_checkpoints_is_not_trained_again_for_its_test_score(train, tmp_path):
    """Its result would be lost."""
    folder = tmp_path / "runs/cpu/parity/fnet/seed0"
    assert train("--no-test")[0] == 0
    before = (folder / "result.json").read_bytes()
    shutil.rmtree(folder / "checkpoints")
    code, err, _ = train()
    assert code == 2
    assert "--force" in err.splitlines()[-1]
    assert (folder / "result.json").read_bytes() == before


def test_folder_in_use_by_another_process_is_refused(train, tmp_path):
    folder = tmp_path / "runs/cpu/parity/fnet/seed0"
    assert not jobs.in_use(folder)
    with jobs.lock(folder):
        assert jobs.in_use(folder)
        code, err, _ = train()
    assert not jobs.in_use(folder)
    assert code == 2
    assert f"is in use by process {os.getpid()}: wait" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model fnett", "'fnett' (did you mean fnet?)"),
        ("--task parrity", "'parrity'"),
        ("--preset gpu", "'gpu'"),
        ("--seed -1", "'-1'"),
        ("--seed x", "'x'"),
        ("--name a/b", "'a/b'"),
        ("--set Run.num_steps=-3", "Run.num_steps must be at least 1"),
        ("--set Attention.implementation='naive'", "Attention.implementation"),
        ("--import no_such_module", "'no_such_module'"),
        ("--runs /proc/runs", "/proc/runs"),
    ],
)
def test_mistake_gets_one_line_and_code_2(train, options, words):
    code, err, out = train(*options.split())
    (line,) = [line for line in err.splitlines() if "preparing" not in line]
    assert (code, out) == (2, "")
    assert words in line


def test_of_two_bindings_of_one_name_the_last_holds():
    """Gin takes the last one, so the record must name it; both orders are two runs."""
    twice = ("Run.num_steps=3", "Encoder.mlp_dim=4", "Run.num_steps=2")
    job = Job("listops", "fnet", "cpu", overrides=twice)
    assert job.identity()["overrides"] == ["Encoder.mlp_dim=4", "Run.num_steps=2"]
    assert "num-steps-2" in str(job.folder)
    assert "Run.num_steps = 2\n" in job.load().config
    spelled = ("experiment.Run.num_steps=3", "Run.num_steps=2")
    assert Job("listops", "fnet", "cpu", overrides=spelled).overrides == spelled[1:]


def test_slug_of_overrides_is_readable_and_depends_on_all_of_them():
    slug = jobs.variant(["Run.num_steps=100", "Encoder.num_layers=2"])
    assert slug == jobs.variant(["Encoder.num_layers=2", "Run.num_steps=100"])
    assert slug.startswith("num-layers-2-num-steps-100-")
    assert slug != jobs.variant(["Run.num_steps=100", "Encoder.num_layers=3"])
    assert jobs.variant(["Optimizer.learning_rate=1e-3"]) == jobs.variant(
        ["Optimizer.learning_rate = 0.0010"]
    )
    assert slug == jobs.variant(["job.Run.num_steps=100", "lra_fnet.models.Encoder.num_layers=2"])
    assert jobs.variant([]) is None


def test_gin_files_of_the_user_that_change_a_preset_give_a_folder_of_its_own(tmp_path):
    """Not those of a model or task of the user's, which change nothing that is shipped."""
    settings = tmp_path / "presets" / "cpu"
    settings.mkdir(parents=True)
    job = dataclasses.replace(BARE, gin_dirs=(tmp_path,))
    assert job.folder == BARE.folder
    (settings / "listops.gin").write_text("MAX_LEN = 64")  # replaces ours
    changed = dataclasses.replace(job).variant
    assert re.fullmatch(r"presets-cpu-listops.gin-[0-9a-f]{8}", changed)
    (settings / "listops.gin").write_text("MAX_LEN = 32")
    assert dataclasses.replace(job).variant not in (None, changed)
    assert dataclasses.replace(job, name="mine").variant == "mine"
    mixed = dataclasses.replace(job, overrides=("Run.num_steps=5",)).variant
    assert mixed.startswith("num-steps-5-presets-cpu-listops.gin-")
    assert dataclasses.replace(job, task="text").variant is None


BARE = Job("listops", "fnet", "cpu")
FULL = dataclasses.replace(
    BARE,
    seed=3,
    overrides=("Run.num_steps=5", "A.b=[1, 2]"),
    name="mine",
    runs=Path("my runs"),
    data=Path("elsewhere"),
    source="https://example.org/raw.tar",
    imports=("/a.py", "b"),
    gin_dirs=(Path("gins"),),
    test=False,
)


@pytest.mark.parametrize("job", [BARE, FULL])
def test_command_of_a_job_makes_that_job(monkeypatch, job):
    """And with the defaults left out it is short."""
    jobs = []
    monkeypatch.setattr("lra_fnet.run.execute.run", jobs.append)
    monkeypatch.setattr("lra_fnet.config.texts", lambda *_: [])  # no file is there
    monkeypatch.setattr("lra_fnet.training.hosts.first", lambda: False)
    assert cli.main(job.command()) == 0
    assert jobs == [dataclasses.replace(job, devices=0)]
    assert BARE.command() == shlex.split("train --task listops --model fnet --preset cpu")


LOCAL = dataclasses.replace(FULL, name=None, source="mine.csv")


def job_of(folder):
    begun = jobs.read(folder)
    return Job(**{field.name: getattr(begun, field.name) for field in dataclasses.fields(Job)})


@pytest.mark.parametrize("job", [BARE, FULL, LOCAL])
def test_job_of_a_run_folder_is_the_one_that_made_it(tmp_path, monkeypatch, job):
    monkeypatch.chdir(tmp_path)
    job.folder.mkdir(parents=True)
    assert jobs.read(job.folder) is None
    (job.folder / "run.json").write_text(json.dumps(job.to_json()))
    overrides, data = tuple(sorted(job.overrides)), job.data.absolute()
    wanted = dataclasses.replace(job, overrides=overrides, data=data)
    if job is LOCAL:
        wanted = dataclasses.replace(wanted, source=str(tmp_path / "mine.csv"))
    assert job_of(job.folder) == wanted
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    here = job_of(tmp_path / job.folder)
    assert here == dataclasses.replace(wanted, runs=".." / job.runs)
