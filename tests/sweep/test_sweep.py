"""Sweeps: definition, scheduling, kills and resumes, selection, display.

With the fixture `runner` the trials are `fake_train.py`, and hundreds of processes take seconds.
"""

import dataclasses
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from pathlib import Path

import made_results
import optuna
import pytest
from optuna.trial import TrialState
from paths import OUTSIDE, ROOT
from rich.console import Console

from lra_fnet import cli, config
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import evaluate, job
from lra_fnet.sweep import board, finish, ledger, plan, scheduler, studies
from lra_fnet.tasks import BUILT_IN, sets
from lra_fnet.tasks import make as make_task

PARITY = ["--task", "parity", "--preset", "cpu", "--gin-dir", str(OUTSIDE)]
FAKE = [sys.executable, str(ROOT / "tests/fake_train.py")]


@pytest.fixture
def go(command):
    """Returns a function that calls `lra-fnet sweep`; it returns exit code, stderr and stdout."""
    return functools.partial(command, "sweep")


@pytest.fixture
def runner(monkeypatch):
    """Replaces trials by fake_train.py: no gin, no data, no jax."""
    monkeypatch.setattr(scheduler, "PROGRAM", FAKE)
    monkeypatch.setattr(scheduler, "SECONDS_A_LOOK", 0.02)
    monkeypatch.setattr(plan, "built", lambda job: plan.Built("", 8, make_task("listops")))


def swept(**changes):
    fields = {"tasks": ["t"], "models": ["m"], "preset": "cpu", "axes": {"A.b": [1, 2]}}
    return plan.Sweep(**(fields | changes))


def only_sweep(runs=Path("runs")):
    (folder,) = (runs / "sweeps").iterdir()
    return folder


def trials_of(runs=Path("runs")):
    return json.loads((only_sweep(runs) / "trials.json").read_text())


def starts(runs=Path("runs"), what="start"):
    """Returns how often each run folder was started."""
    lines = [line.split() for line in (runs / "starts").read_text().splitlines()]
    return Counter(words[1] for words in lines if words[0] == what)


# Definition


def test_sweep_of_the_paper_has_four_numbers_of_layers_for_its_models_on_image(go):
    code, _, out = go("--sweep", ROOT / "gin/sweeps/image_layers.gin", "--dry-run")
    assert code == 0
    words = [shlex.split(line) for line in out.splitlines()]
    got = {(w[w.index("--model") + 1], w[w.index("--set") + 1]) for w in words}
    models = ("transformer", "linear", "fnet", "performer")
    assert got == {(m, f"Encoder.num_layers={n}") for m in models for n in (1, 2, 3, 4)}
    assert len(words) == 16
    assert all(w[:4] == ["lra-fnet", "train", "--task", "image"] for w in words)
    assert all("--no-test" in w and w[w.index("--preset") + 1] == "paper" for w in words)
    assert not Path("runs").exists()


def test_sweep_of_the_table_has_its_runs_and_options_replace_values_of_the_file(go):
    table = ROOT / "gin/sweeps/lra_table.gin"
    options = ["--preset", "cpu", "--models", "fnet,linear", "--seeds", "2", "--dry-run"]
    code, _, out = go("--sweep", table, *options)
    assert code == 0
    args = [cli._parser().parse_args(shlex.split(line)[1:]) for line in out.splitlines()]
    tasks = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
    wanted = Counter((t, m, k) for t in tasks for m in ("fnet", "linear") for k in (0, 1))
    assert Counter((a.task, a.model, a.seed) for a in args) == wanted
    assert all(a.test and not a.set for a in args)


def test_lines_of_a_dry_run_parse_as_the_commands_of_the_trials(go):
    axes = ["--grid", "Encoder.norm=['pre', 'post']", "--set", "Run.num_steps=4"]
    code, err, out = go(*PARITY, "--models", "fnet", "--seeds", "2", *axes, "--dry-run")
    assert (code, err) == (0, "")
    parser = cli._parser()
    for line, (norm, seed) in zip(
        out.splitlines(), [(n, s) for n in ("pre", "post") for s in (0, 1)], strict=True
    ):
        args = parser.parse_args(shlex.split(line)[1:])
        assert args.set == ["Run.num_steps=4", f"Encoder.norm='{norm}'"]
        assert (args.seed, args.test, args.gin_dirs) == (seed, False, [OUTSIDE])


def test_all_tasks_are_those_of_the_arena(go):
    """The others need the user's files, and no preset has all of them."""
    code, err, out = go("--task=all", "--models=fnet", "--preset=small", "--dry-run")
    assert code == 0, err
    assert [line.split()[3] for line in out.splitlines()] == list(BUILT_IN)


def test_a_dry_run_prints_each_command_once_and_knows_the_name_and_what_has_ended(go):
    axes = ["--grid", "Run.batch_size=[4, 8, 8]", "--name", "mine"]
    which = [*PARITY, "--models", "fnet", "--dry-run"]
    lines = go(*which, *axes)[2].splitlines()
    assert len(lines) == 2
    jobs = [job.Job("parity", "fnet", "cpu", 0, (f"Run.batch_size={n}",)) for n in (4, 8)]
    shared = job.Job("", "", "", gin_dirs=(OUTSIDE,))
    fields = {"tasks": ["parity"], "models": ["fnet"], "axes": {"Run.batch_size": [4, 8, 8]}}
    folder = Path("runs/sweeps/mine")
    folder.mkdir(parents=True)
    plan.Plan(swept(**fields).checked(), "mine", shared).begin()
    entries = [
        {"number": n, "task": "parity", "model": "fnet", "preset": "cpu", "seed": 0, "step": 0}
        | {"overrides": list(j.overrides), "folder": str(j.folder.relative_to("runs")), "state": s}
        for n, (j, s) in enumerate(zip(jobs, ("pruned", "failed"), strict=True))
    ]
    (folder / "trials.json").write_text(json.dumps(entries))
    assert go(*which, *axes)[2] == ""
    assert go(*which, *axes, "--retry")[2].splitlines() == lines[1:]
    code, err, _ = go(*which, "--grid", "Run.batch_size=[2]", "--name", "mine")
    assert code == 2
    assert "mine is another sweep" in err


def test_trials_of_pretraining_are_runs_of_pretrain(go):
    code, err, out = go(
        *PARITY, "--models", "fnet,linear", "--pretrain", "--name", "p", "--dry-run"
    )
    assert (code, err) == (0, "")
    starts = [shlex.split(line)[:6] for line in out.splitlines()]
    names = ["lra-fnet", "pretrain", "--task", "parity", "--model"]
    assert starts == [[*names, model] for model in ("fnet", "linear")]
    with pytest.raises(UserError, match=r"sweep p is of pre-training, which has no test score: "):
        finish.finish(plan.Plan(swept(pretrain=True).checked(), "p", job.Job("", "", "")))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "a sweep needs --task and --models, or --sweep"),
        (
            ["--task", "parity", "--sampler", "best"],
            "--sampler expects grid, random or tpe, got 'best'",
        ),
        (["--task", "parity", "--grid", "Run.batch_size=16"], "--grid expects Name"),
        (["--task", "parity", "--range", "Run.batch_size=[1,2,3]"], "--range expects"),
        (
            ["--task", "parity", "--grid", "Encoder.norm=[pre,post]"],
            """keep texts quoted, as in --grid 'Encoder.norm=[..., "text"]'""",
        ),
        (
            ["--task", "parity", "--range", 'A.b=[1e-2,1e-4,"log"]'],
            'the range of A.b expects LOW < HIGH, got [0.01, 0.0001, "log"]: swap them',
        ),
        (["--task", "parity", "--range", "A.b=[1,1]"], "got [1, 1]: give one value with --set"),
        (
            ["--task", "parity", "--range", 'A.b=[0,1,"log"]'],
            'the range of A.b expects LOW > 0 with "log", got [0, 1, "log"]: raise it, or leave',
        ),
        (
            ["--task", "parity", "--range", "A.b=[1e-4,1e999]"],
            "the range of A.b expects numbers from -2**53 to 2**53, got [0.0001, inf]: choose",
        ),
        (["--task", "parity", "--range", "A.b=[1,100000000000000000000]"], "from -2**53 to 2**53"),
        (["--task", "parity", "--range", "A.b=[-1e999,1]"], "from -2**53 to 2**53"),
        (["--task", "parity", "--range", "A.b=[1,2]"], "the range of A.b needs --sampler random"),
        (
            ["--task", "parity", "--sampler", "tpe"],
            "--sampler tpe needs axes (--grid, --range) and --trials",
        ),
        (["--task", "parity", "--trials", "3"], "--trials needs --sampler random or tpe"),
        (["--task", "parity", "--prune"], "--prune needs axes"),
        (
            ["--task", "parity", "--prune", "--grid", "job.Run.num_steps=[1, 2]"],
            "--prune compares points at the same step",
        ),
        (
            ["--task", "parity", "--prune", "--grid", "Run.batch_size=[1, 2]"],
            "--prune compares points at the same step",
        ),
        (
            ["--task", "parity", "--grid", "A.b=[1]", "--grid", "A.b=[2]"],
            "the axis A.b is given twice: keep one --grid or --range of it",
        ),
        (
            ["--task", "parity", "--grid", "m.A.b=[1]", "--grid", "A.b=[2]"],
            "the axis A.b is given twice: keep one --grid or --range of it",
        ),
        (
            ["--task", "parity", "--grid", "A.b=[1]", "--prune", "--dry-run"],
            "--prune stops points by the results of others",
        ),
        (
            ["--task", "parity", "--seeds", "0"],
            "--seeds expects a whole number of at least 1, got '0'",
        ),
        (
            ["--task", "parity", "--models", "fnet,linear", "--seeds", "99999999999"],
            "a sweep has at most 100,000 runs, this one 199,999,999,998: lower --seeds",
        ),
        (["--task", "parity", "--name", "a/b"], "expects letters"),
        (["--name", "none"], "no sweep 'none' in runs/sweeps (it has: none)"),
        (["--name", "none", "--seeds", "2"], "--name none alone"),
        (["--name", "none", "--data", "d"], "--name none alone"),
        (["--name", "none", "--import", "m.py"], "--name none alone"),
        (
            ["--sweep", "none.gin"],
            "--sweep expects a gin file, or one of image_layers, lra_table, rates; got",
        ),
        ([*PARITY, "--models", "fnet", "--jobs", "0"], "--jobs expects a whole number"),
        ([*PARITY, "--models", "fnett"], "unknown model 'fnett'"),
        (
            [*PARITY, "--models", "fnet", "--grid", "Encoder.num_layer=[1,2]"],
            "lra-fnet: the axis Encoder.num_layer at 1: ",
        ),
        (
            [
                *(*PARITY, "--models", "fnet", "--range", "Encoder.num_layer=[1,2]"),
                *("--sampler", "random", "--trials", "1"),
            ],
            "lra-fnet: the axis Encoder.num_layer at 1: ",
        ),
        ([*PARITY, "--models", "fnet", "--grid", "Encoder.num_heads=[2, 3]"], "num_heads"),
        (
            [*PARITY, "--models=fnet", "--grid=Encoder.dim=[2, 4]", "--gin=A.b=1 Encoder.dim=8"],
            "Encoder.dim is an axis and has a single value too: leave one of them out",
        ),
        (
            [
                *("--task", "text", "--preset", "lra-code", "--models", "fnet"),
                *("--grid", "Encoder.num_layers=[1,2]"),
            ],
            "a sweep with axes selects on validation, but text has only test rows there",
        ),
    ],
)
def test_mistake_fails_with_one_line_and_begins_nothing(go, options, words):
    code, err, out = go(*options)
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    assert words in err
    assert not out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Sweep.task = ['listops']", "task"),
        ("Sweep.tasks = 'listops'", "Sweep.tasks expects a list of strings, got 'listops'"),
        ("Sweep.tasks = ['listops']\nSweep.axes = {'A.b': 3}", "the axis A.b expects a list"),
        (
            "Sweep.tasks = ['listops']\nSweep.axes = {'A.b': {'low': 1, 'high': 10**400}}".replace(
                "10**400", "1" + "0" * 400
            ),
            f"from -2**53 to 2**53, got [1, 1{39 * '0'}]: choose smaller ones",
        ),
        ("Sweep.tasks = ['listops']\nRun.batch_size = 3", "does not read Run.batch_size"),
        ("Sweep.axes = [1]", 'Sweep.axes expects {"Name.parameter": [value, ...]}, got [1]'),
        ("Sweep.axes = {3: [1]}", "got {3: [1]}"),
        ("Sweep.preset = 3", "Sweep.preset must be a text, got 3: set it to one"),
        ("Sweep.name = 5", "Sweep.name must be a text, got 5: set it to one"),
        ("Sweep.pretrain = 3", "Sweep.pretrain must be True or False, got 3: set it to one"),
        ("Sweep.prune = 'no'", "Sweep.prune must be True or False, got 'no': set it to one"),
        ("Sweep.seeds = 0", "Sweep.seeds must be at least 1, got 0: set it to 3, say"),
        ("Sweep.trials = 1.5", "Sweep.trials must be a whole number, got 1.5: set it to one"),
    ],
)
def test_mistake_in_a_sweep_file_fails_with_one_line(go, text, words):
    Path("my.gin").write_text(text)
    code, err, _ = go("--sweep", "my.gin")
    assert code == 2
    assert len(err.splitlines()) == 1, err
    assert words in err


def test_axes_of_the_command_line_are_python_values():
    assert plan.axis("grid", 'C.d=["x", None]') == ("C.d", ["x", None])
    assert plan.axis("range", "A.b=[1, 8]") == ("A.b", {"low": 1, "high": 8, "log": False})
    assert plan.grid({"A.b": [1], "C.d": [(1, 2)]}) == [{"A.b": "1", "C.d": "(1, 2)"}]
    assert plan.bindings({"A.b": "'x'", "C.d": 0.1}) == ("A.b='x'", "C.d=0.1")


def test_command_line_adds_to_the_file_and_replaces_axes_of_the_same_name(tmp_path):
    file = tmp_path / "my.gin"
    file.write_text(
        "Sweep.name = 'mine'\nSweep.tasks = ['text']\nSweep.overrides = ['A.a=1']\n"
        "Sweep.axes = {'A.b': [1, 2], 'C.d': {'low': 1e-4, 'high': 1e-2, 'log': True}}\n"
        "Sweep.sampler = 'random'\n"
    )
    got = plan.read(file, {"mod.A.b": [3]}, ["E.f=2"], trials=5, preset=None)
    assert got.axes == {"mod.A.b": [3], "C.d": {"low": 1e-4, "high": 1e-2, "log": True}}
    assert got.overrides == ("A.a=1", "E.f=2")
    assert (got.tasks, got.preset, got.trials) == (("text",), "paper", 5)
    assert re.fullmatch(r"mine-paper-[0-9a-f]{8}", plan.folder_name(got, None))


def test_folder_name_depends_on_everything_but_the_number_of_trials():
    base = swept(sampler="random", trials=3)
    name = plan.folder_name(base.checked(), None)
    assert name == plan.folder_name(swept(sampler="random", trials=9).checked(), None)
    changes = [
        {"tasks": ["u"]},
        {"models": ["n"]},
        {"preset": "paper"},
        {"seeds": 2},
        {"axes": {"A.b": [1, 3]}},
        {"overrides": ["A.c=1"]},
        {"sampler": "tpe"},
        {"prune": True},
        {"pretrain": True},
        {"init": "auto"},
    ]
    fields = {"sampler": "random", "trials": 3}
    names = {plan.folder_name(swept(**(fields | change)).checked(), None) for change in changes}
    assert len(names | {name}) == 11
    assert name == "t-b-cpu-afb694e1"  # as before there were pretrain and init


def test_trials_begin_from_the_pretraining_of_their_seed(tmp_path, monkeypatch):
    """The axes are settings of the second stage: the first one has the others alone."""
    asked = []

    def auto(job):
        asked.append(job)
        return dataclasses.replace(job, init=Path(f"before{job.seed}"), overrides=("C.d=5",))

    monkeypatch.setattr(plan, "_begun", auto)
    swept_ = swept(init="auto", overrides=["C.d=5", "Denoising.rate=0.5"]).checked()
    begun = plan.Plan(swept_, "s", job.Job("", "", "", runs=tmp_path))
    made = begun.job(0, {"A.b": "2"}, 3)
    assert (made.init, made.overrides, made.test) == (Path("before3"), ("C.d=5", "A.b=2"), False)
    assert [(one.seed, one.overrides) for one in asked] == [(3, swept_.overrides)]


def test_a_sweep_that_begins_from_a_run_is_resumed_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = job.Job("", "", "", runs=tmp_path / "runs")
    begun = plan.Plan(swept(init="before").checked(), "s", shared)
    begun.folder.mkdir(parents=True)
    begun.begin()
    monkeypatch.chdir("/")
    again = plan.load(shared.runs, "s")
    assert (again.sweep, again.shared.init) == (begun.sweep, None)
    assert again.job(0, {"A.b": "2"}, 0).init == tmp_path / "before"
    with pytest.raises(UserError, match="--init is for trials of lra-fnet train: leave out"):
        swept(init="auto", pretrain=True).checked()


def test_random_points_depend_only_on_their_number_and_lie_in_the_ranges():
    axes = {
        "A.rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "A.layers": {"low": 1, "high": 4},
        "A.norm": ["pre", "post"],
    }
    few, many = (
        studies.points(swept(axes=axes, sampler="random", trials=n).checked()) for n in (3, 40)
    )
    assert many[:3] == few
    rates = [point["A.rate"] for point in many]
    assert 1e-4 <= min(rates) < 3e-4  # uniform in the logarithm: a quarter lies below
    assert 3e-3 < max(rates) <= 1e-2
    assert {point["A.layers"] for point in many} == {1, 2, 3, 4}
    assert {point["A.norm"] for point in many} == {"'pre'", "'post'"}


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 96])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 100])
def test_cores_are_shared_evenly_and_every_worker_gets_one(cores, workers):
    parts = scheduler.share(list(range(cores)), workers)
    assert len(parts) == workers
    dealt = Counter(core for part in parts for core in part)
    assert dealt.keys() == set(range(cores))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert max(dealt.values()) - min(dealt.values()) <= 1
    assert workers > cores or set(dealt.values()) == {1}


# Scheduling


@pytest.mark.usefixtures("runner")
def test_every_trial_runs_once_and_trials_json_has_its_state(go):
    axes = ["--grid", "Fake.accuracy=[0.2, 0.4]", "--seeds", "2"]
    code, err, out = go("--task", "parity", "--models", "fnet,linear", "--preset", "cpu", *axes)
    assert (code, out) == (0, "")
    trials = trials_of()
    assert [trial["number"] for trial in trials] == list(range(8))
    assert starts() == Counter({trial["folder"]: 1 for trial in trials})
    got = {(t["model"], t["overrides"][0], t["seed"]): t["validation"] for t in trials}
    assert got == {
        (model, f"Fake.accuracy={value}", seed): pytest.approx(value + seed / 100)
        for model in ("fnet", "linear")
        for value in (0.2, 0.4)
        for seed in (0, 1)
    }
    first = trials[0]
    assert first | {"folder": "", "command": ""} == {
        "number": 0,
        "task": "parity",
        "model": "fnet",
        "preset": "cpu",
        "seed": 0,
        "overrides": ["Fake.accuracy=0.2"],
        "folder": "",
        "state": "complete",
        "step": 8,
        "num_steps": 8,
        "validation": 0.2,
        "error": None,
        "command": "",
    }
    assert (Path("runs") / first["folder"] / "result.json").exists()
    assert first["command"].startswith("lra-fnet train --task parity --model fnet --preset cpu")
    definition = json.loads((only_sweep() / "sweep.json").read_text())
    wanted = {
        "schema": 1,
        "task": "parity",
        "models": ["fnet", "linear"],
        "preset": "cpu",
        "seeds": 2,
        "sampler": "grid",
        "axes": {"Fake.accuracy": [0.2, 0.4]},
        "overrides": [],
        "name": only_sweep().name,
    }
    assert definition.items() >= wanted.items()
    assert {"created", "commit"} <= definition.keys()
    assert f"lra-fnet finish --name {only_sweep().name}" in err
    code, err, _ = go("--name", only_sweep().name)
    assert code == 0
    assert sum(starts().values()) == 8


@pytest.mark.usefixtures("runner")
def test_failed_trials_are_listed_with_their_error_and_run_again_only_with_retry(go):
    which = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
    which += ["--grid", "Fake.fail=[None, 'once', 'crash', 'OOM', 'killed']"]
    code, err, _ = go(*which)
    assert code == 1
    errors = [None, "the disk is full", "RuntimeError: it broke", "out of memory"]
    errors += ["killed by signal 9"]
    states = ["complete", "failed", "failed", "OOM", "failed"]
    assert [(t["state"], t["error"]) for t in trials_of()] == list(zip(states, errors, strict=True))
    for error in errors[1:]:
        assert f": {error}" in err
    assert "to try them again: lra-fnet sweep --name mine --retry" in err
    assert go(*which)[0] == 1
    assert set(starts().values()) == {1}
    assert go("--name", "mine", "--retry")[0] == 1
    assert [trial["state"] for trial in trials_of()] == ["complete", "complete", *states[2:]]
    assert [starts()[trial["folder"]] for trial in trials_of()] == [1, 2, 2, 2, 2]


@pytest.mark.usefixtures("runner")
def test_run_of_an_ended_point_that_was_deleted_and_now_fails_is_tried_once(go):
    """The study takes no more errors of a point that was told."""
    which = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
    which += ["--grid", "Fake.fail=[None, 'once']"]
    assert go(*which)[0] == 1
    assert go("--name", "mine", "--retry")[0] == 0
    lost = trials_of()[1]
    shutil.rmtree(Path("runs") / lost["folder"])  # so that it fails once more
    code, err, _ = go(*which)
    assert code == 1
    assert err.count(": the disk is full") == 1
    assert starts()[lost["folder"]] == 3
    assert go(*which)[0] == 0  # a new process tries again
    assert [trial["state"] for trial in trials_of()] == ["complete", "complete"]


@pytest.mark.usefixtures("runner")
def test_workers_run_in_parallel_on_separate_cores(go):
    cores = sorted(os.sched_getaffinity(0))
    axes = ["--grid", "Fake.accuracy=[0.1, 0.2, 0.3, 0.4]", "--set", "Fake.seconds=0.05"]
    assert go("--task", "parity", "--models", "fnet", *axes, "--jobs", "2")[0] == 0
    lines = [line.split() for line in Path("runs/starts").read_text().splitlines()]
    busy, most = 0, 0
    for event, *_ in lines:
        busy += 1 if event == "start" else -1
        most = max(most, busy)
    assert most == 2
    parts = {",".join(map(str, part)) for part in scheduler.share(cores, 2)}
    assert {words[3] for words in lines} == parts
    assert {words[4] for words in lines} == {"false"}


@pytest.mark.usefixtures("runner")
def test_a_single_worker_keeps_jaxs_own_use_of_the_memory_of_a_gpu(go, monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    assert go("--task", "parity", "--models", "fnet", "--set", "Fake.seconds=0.01")[0] == 0
    assert {line.split()[4] for line in Path("runs/starts").read_text().splitlines()} == {"true"}


@pytest.mark.usefixtures("runner")
def test_point_below_the_median_is_stopped_and_its_other_seeds_never_start(go):
    """Five points complete first, which is what Optuna's pruner needs for a median."""
    axes = ["--grid", "Fake.accuracy=[0.5, 0.6, 0.7, 0.65, 0.55, 0.62, 0.1, 0.9]", "--seeds", "2"]
    which = ["--task", "parity", "--models", "fnet", "--set", "Fake.hold=0.2", *axes]
    code, err, _ = go(*which, "--prune", "--jobs", "2")
    assert code == 0, err
    by_point = {}
    for trial in trials_of():
        by_point.setdefault(trial["overrides"][-1], []).append(trial)
    states = {name: [t["state"] for t in point] for name, point in by_point.items()}
    assert states.pop("Fake.accuracy=0.1") == ["pruned", "pruned"]
    assert set(map(tuple, states.values())) == {("complete", "complete")}
    first, second = by_point["Fake.accuracy=0.1"]
    assert starts(what="saved")[first["folder"]] == 1
    assert first["step"] < 8
    assert starts()[second["folder"]] == 0
    before = starts()
    assert go(*which, "--prune")[0] == 0
    assert starts() == before


def test_point_whose_first_seed_is_complete_is_not_stopped(tmp_path, monkeypatch):
    planned = plan.Plan(
        swept(seeds=2, prune=True).checked(), "s", job.Job("", "", "", runs=tmp_path)
    )
    told = ledger.Ledger(planned)
    monkeypatch.setattr(told.studies, "falls_behind", lambda *_: True)
    point = types.SimpleNamespace(number=0, state=TrialState.RUNNING)
    seeds = [ledger.Trial(seed, planned.job(0, {"A.b": "1"}, seed), 0, 0) for seed in (0, 1)]
    ends = []
    study = types.SimpleNamespace(tell=lambda *given, **named: ends.append((given, named)))
    monkeypatch.setattr(told.studies, "by_pair", [study])
    seeds[0].state, seeds[1].state = "complete", "running"
    told._tell(0, point, seeds)
    assert ends == []
    seeds[0].state = "running"
    told._tell(0, point, seeds)
    assert ends == [((0,), {"state": TrialState.PRUNED})]
    told.close()


@pytest.mark.usefixtures("runner")
def test_tpe_gets_the_mean_of_the_seeds_and_resumes(go):
    which = ["--task", "parity", "--models", "fnet,linear", "--preset", "cpu", "--seeds", "2"]
    which += ["--range", "Fake.accuracy=[0.1, 0.9]", "--sampler", "tpe", "--name", "s"]
    assert go(*which, "--trials", "1")[0] == 0
    assert len(trials_of()) == 1 * 2 * 2
    assert go("--name", "s", "--trials", "3")[0] == 0
    trials = trials_of()
    assert len(trials) == 3 * 2 * 2
    assert starts() == Counter({trial["folder"]: 1 for trial in trials})
    backend = optuna.storages.journal.JournalFileBackend("runs/sweeps/s/journal.log")
    storage = optuna.storages.JournalStorage(backend)
    for model in ("fnet", "linear"):
        study = optuna.load_study(study_name=f"parity/{model}", storage=storage)
        points = study.trials
        assert [point.state for point in points] == [TrialState.COMPLETE] * 3
        accuracies = [point.params["Fake.accuracy"] for point in points]
        assert len(set(accuracies)) == 3
        want = pytest.approx([accuracy + 0.005 for accuracy in accuracies], abs=1e-3)
        assert [point.value for point in points] == want


def test_result_counts_if_it_has_the_trials_settings_data_code_and_splits(outside):
    """What differs is named, since training the trial again would be refused."""
    rows = [f"{'no' if k % 2 else 'yes'},text {k}\n" for k in range(100)]
    Path("mine.csv").write_text("label,text\n" + "".join(rows))
    task = make_task("csv")
    fingerprint = sets.prepare(task, "data", "mine.csv").fingerprint
    Path("mine.py").write_text("import lra_fnet.optim\n")
    shared = job.Job("csv", "fnet", "cpu", imports=("mine.py",))
    config.import_modules(shared.imports)
    built = plan.Built("Run.num_steps = 1000\n", 1000, task)
    code = config.code_of(shared.imports)
    for changes, error in (
        ({}, None),
        ({"config": "Run.num_steps = 999\n"}, "num_steps: 999 -> 1000"),
        ({"data_sha256": "d" * 64}, f"data: dddddddd -> {fingerprint[:8]}"),
        ({"code": {"mine.py": "0" * 12}}, f"code of mine.py: {'0' * 12} -> {code['mine.py']}"),
        ({"code": {}}, "code of mine.py: not recorded -> "),
        ({"test": None}, None),  # of --no-test
    ):
        trial = ledger.Trial(0, shared, 0, 0, built)
        facts = {"task": "csv", "config": built.config, "data_sha256": fingerprint, "code": code}
        made_results.put(shared.runs, made_results.a_result(**(facts | changes)))
        assert (trial.record() is not None) == (not changes), changes
        assert (trial.error is None) == (error is None), changes
        assert error is None or error in trial.error
    untested = dataclasses.replace(shared, test=False)
    assert dataclasses.replace(trial, job=untested).record() is not None


def test_running_trial_has_the_best_validation_so_far(tmp_path):
    shared = job.Job("parity", "fnet", "cpu", runs=tmp_path)
    trial = ledger.Trial(0, shared, 0, 0, state="running")
    shared.folder.mkdir(parents=True)
    lines = [
        {"kind": "validation", "step": n, "accuracy": a} for n, a in ((2, 0.3), (4, 0.5), (6, 0.4))
    ]
    text = "".join(json.dumps(line | {"loss": 1.0}) + "\n" for line in lines)
    (shared.folder / "metrics.jsonl").write_text(text)
    trial.look()
    assert (trial.step, trial.validation) == (6, 0.5)


def test_trials_of_pretraining_are_compared_by_their_lowest_loss(tmp_path):
    """As checkpoints are: the loss of masked tokens and that of sentence order, not accuracy."""
    shared = job.Job("corpus", "fnet", "cpu-pretrain", runs=tmp_path, denoise=True)
    trial = ledger.Trial(0, shared, 0, 0, state="running")
    shared.folder.mkdir(parents=True)
    lines = [
        {"kind": "validation", "step": n, "loss": loss, "order_loss": order, "accuracy": n / 10}
        for n, loss, order in ((2, 1.0, 0.75), (4, 1.25, 0.25), (6, 1.5, 0.5))
    ]
    (shared.folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    trial.look()
    assert (trial.step, trial.validation) == (6, 1.5)
    assert trial.curve == {2: 1.75, 4: 1.5, 6: 2.0}


@pytest.mark.usefixtures("runner")
def test_sampler_minimises_the_loss_of_pretraining(go):
    which = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--pretrain"]
    which += ["--range", "Fake.accuracy=[0.1, 0.9]", "--sampler", "tpe", "--name", "s"]
    code, err, _ = go(*which, "--trials", "2")
    assert code == 0, err
    backend = optuna.storages.journal.JournalFileBackend("runs/sweeps/s/journal.log")
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.load_study(study_name="parity/fnet", storage=storage)
    losses = [2 - point.params["Fake.accuracy"] for point in study.trials]
    assert [point.value for point in study.trials] == pytest.approx(losses, abs=1e-3)
    assert study.best_value == min(point.value for point in study.trials)
    assert f"{losses[0]:.3f}"[:5] in err
    assert "Mean loss: mean" in err


def test_accuracy_on_training_rows_is_not_taken_for_validation(tmp_path):
    """A line about training has an accuracy too; here it is the higher one."""
    shared = job.Job("parity", "fnet", "cpu", runs=tmp_path)
    trial = ledger.Trial(0, shared, 0, 0, state="running")
    shared.folder.mkdir(parents=True)
    made_results.put_curve(shared.folder / "result.json", steps=60)
    trial.look()
    assert (trial.step, trial.curve, trial.validation) == (60, {50: 0.05}, 0.05)


@pytest.mark.usefixtures("runner")
def test_name_belongs_to_one_sweep(go):
    which = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
    common = ["--set", "A.a=1", "--grid", "A.b=[1]"]
    assert go(*which, *common, "--set", "MAX_LEN=64", "--grid", "Fake.accuracy=[0.1]")[0] == 0
    other = ["--set", "MAX_LEN=32", "--set", "A.c=2", "--grid", "Fake.accuracy=[0.2, 0.3]"]
    code, err, _ = go(*which, *common, *other, "--seeds", "2")
    assert code == 2
    assert err == (
        "lra-fnet: runs/sweeps/mine is another sweep (seeds: 1 -> 2; MAX_LEN: 64 -> 32; "
        "axis Fake.accuracy: [0.1] -> [0.2, 0.3]; A.c: absent -> 2): choose another --name\n"
    )
    moved = ["--set", "MAX_LEN=64", "--set", "A.a=1", *common[2:], "--grid", "Fake.accuracy=[0.1]"]
    err = go(*which, *moved)[1]
    assert "(overrides: A.a=1, MAX_LEN=64 -> MAX_LEN=64, A.a=1): choose another --name" in err


def test_loaded_sweep_equals_the_begun_one(tmp_path):
    """JSON alone would change tuples."""
    axes = {"A.b": [(0.9, 0.98), None, "x", True, 1e-3]}
    begun = swept(axes=axes, overrides=["C.d=1"], seeds=2, prune=True).checked()
    shared = job.Job("", "", "", runs=tmp_path, imports=("m",), gin_dirs=(Path("g"),))
    first = plan.Plan(begun, "mine", shared)
    first.folder.mkdir(parents=True)
    first.begin()
    shared = dataclasses.replace(shared, data=shared.data.absolute())
    assert plan.load(tmp_path, "mine") == dataclasses.replace(first, shared=shared)


def test_half_a_line_at_the_end_of_the_journal_is_dropped(tmp_path):
    planned = plan.Plan(swept().checked(), "s", job.Job("", "", "", runs=tmp_path))
    planned.folder.mkdir(parents=True)
    studies.Studies(planned)
    file = planned.folder / "journal.log"
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines()[-1][:7])
    assert len(studies.Studies(planned).points(0)) == 2
    assert file.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in file.read_text().splitlines())


# Damaged files


TWO = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
TWO += ["--grid", "Fake.accuracy=[0.1, 0.2]"]


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"schema": 1'])
def test_damaged_result_is_the_error_of_its_trial_and_the_others_run(go, content):
    assert go(*TWO)[0] == 0
    first, second = (Path("runs", trial["folder"], "result.json") for trial in trials_of())
    first.write_bytes(content)
    second.unlink()
    code, err, _ = go(*TWO)
    assert code == 1
    assert [trial["state"] for trial in trials_of()] == ["failed", "complete"]
    assert str(first) in trials_of()[0]["error"]
    assert "Traceback" not in err


@pytest.mark.usefixtures("runner")
def test_damaged_curve_is_reported_and_a_lost_log_of_a_trial_is_no_fault(go):
    assert go(*TWO)[0] == 0
    folder = Path("runs", trials_of()[0]["folder"])
    (folder / "metrics.jsonl").write_text('{"step": "x"}\n')
    assert go(*TWO)[0] == 0
    assert "metrics.jsonl: kind is missing in a line" in trials_of()[0]["error"]
    child = scheduler._Child(None, None, 0, folder / "gone.log", 0)
    assert child.last_words(3) == "ended with code 3"
    note = f"{'-' * 20}\nFor simplicity, JAX has removed its internal frames from the traceback."
    (folder / "gone.log").write_text(f"Traceback:\n  in mine\nValueError: my own error\n{note}\n")
    assert child.last_words(1) == "ValueError: my own error"


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("sweep.json", b"\xff", "sweep.json cannot be read"),
        ("sweep.json", b"{}", "sweep.json is damaged ('axes_python')"),
        ("journal.log", b"{}\n", "journal.log is damaged (KeyError"),
        ("journal.log", b"\xff\n", "journal.log is damaged (Unicode"),
    ],
)
def test_damaged_file_of_a_sweep_fails_with_one_line(go, name, content, words):
    assert go(*TWO)[0] == 0
    (only_sweep() / name).write_bytes(content)
    code, err, out = go("--name", "mine")
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("content", [b"{}", b"[1]", b'[{"task": "parity"}]', b"\xff"])
def test_damaged_selection_fails_with_one_line_and_scores_nothing(go, scored, content):
    assert go(*TWO)[0] == 0
    (only_sweep() / "selected.json").write_bytes(content)
    with pytest.raises(UserError, match=r"selected\.json.*move it away"):
        finish.finish(plan.load(Path("runs"), "mine"))
    assert not scored


@pytest.mark.usefixtures("runner")
def test_lock_that_the_disk_refuses_fails_with_one_line(go, monkeypatch):
    assert go(*TWO)[0] == 0
    next(Path("runs").glob("cpu/*/*/*/result.json")).unlink()

    def refuse(path, **_):
        raise OSError(5, "Input/output error")

    next(Path("runs").glob("cpu/*/*/*/.lock")).touch()
    real = disk.try_lock
    monkeypatch.setattr(
        disk, "try_lock", lambda p, **k: (real if "sweeps" in str(p) else refuse)(p, **k)
    )
    code, err, _ = go(*TWO)
    assert code == 2
    assert "cannot be written (Input/output error)" in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("runner")
def test_full_disk_under_the_journal_fails_with_one_line(go, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(optuna.storages.journal.JournalFileBackend, "append_logs", refuse)
    code, err, _ = go(*TWO)
    assert (code, err.count("\n")) == (2, 1)
    assert "runs/sweeps/mine cannot be written (No space left on device)" in err


def test_sweep_file_that_is_not_utf_8_fails_with_one_line(go):
    Path("s.gin").write_bytes(b"Sweep.tasks = ['\xff']\n")
    code, err, out = go("--sweep", "s.gin")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "s.gin cannot be read ('utf-8' codec" in err


# Kills, and several sweeps at once


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts `lra-fnet sweep` with fake trials as a process."""
    processes = []

    def call(*options, seconds_a_look=0.02):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(OUTSIDE)])}
        environment["LOOK"] = str(seconds_a_look)
        process = subprocess.Popen(
            [sys.executable, ROOT / "tests/sweep/fake_sweep.py", "sweep", *options],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield call
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


FOUR = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
FOUR += ["--grid", "Fake.accuracy=[0.1, 0.2, 0.3, 0.4]", "--set", "Fake.hold=1"]


def let_go():
    """Lets the trials that wait at step 4 continue."""
    Path("runs/go").touch()


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_makes_every_trial_save_and_prints_the_command_that_resumes(go, start, number):
    process = start(*FOUR, "--jobs", "2")
    wait_for(lambda: len(list(Path("runs").glob("cpu/*/*/*/metrics.jsonl"))) == 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "saved; to resume: lra-fnet sweep --name mine --jobs 2" in err
    assert starts(what="saved") == starts()
    assert [t["state"] for t in trials_of()] == ["waiting"] * 4
    assert 0 < trials_of()[0]["step"] < 8
    let_go()
    assert go("--name", "mine", "--jobs", "2")[0] == 0
    assert [t["state"] for t in trials_of()] == ["complete"] * 4
    for trial in trials_of():
        lines = Path("runs", trial["folder"], "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, 9))


@pytest.mark.usefixtures("runner", "go")
def test_a_second_interrupt_ends_the_sweep_at_once_and_no_trial_goes_on(start):
    process = start(*FOUR, "--jobs", "2", seconds_a_look=9)
    wait_for(lambda: len(list(Path("runs").glob("cpu/*/*/*/metrics.jsonl"))) == 2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    wait_for(lambda: starts(what="saved") == starts(), 30)


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize(("jobs", "retry"), [(1, ["--retry"]), (2, [])])  # 1: one has not begun
def test_interrupted_retry_saves_and_prints_the_command_that_resumes(go, start, jobs, retry):
    which = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
    which += ["--grid", "Fake.accuracy=[0.1, 0.2]"]
    assert go(*which, "--set", "Fake.hold=1", "--set", "Fake.fail='once'")[0] == 1
    process = start("--name", "mine", "--retry", "--jobs", str(jobs))
    wait_for(lambda: len(list(Path("runs").glob("cpu/*/*/*/metrics.jsonl"))) == jobs)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    again = ["--name", "mine", *(["--jobs", "2"] if jobs == 2 else []), *retry]
    assert f"saved; to resume: lra-fnet sweep {' '.join(again)}\n" in err
    assert [(t["state"], t["error"]) for t in trials_of()][:jobs] == [("waiting", None)] * jobs
    let_go()
    assert go(*again)[0] == 0
    assert [t["state"] for t in trials_of()] == ["complete"] * 2


@pytest.mark.usefixtures("runner")
def test_sweep_waits_for_the_running_trial_of_a_killed_one(go, start):
    process = start(*FOUR)
    wait_for(lambda: list(Path("runs").glob("cpu/*/*/*/metrics.jsonl")))  # it holds the lock
    process.kill()
    process.communicate()
    threading.Timer(1.0, let_go).start()
    assert go(*FOUR)[0] == 0
    assert starts() == Counter({trial["folder"]: 1 for trial in trials_of()})
    assert [t["state"] for t in trials_of()] == ["complete"] * 4


@pytest.mark.usefixtures("runner")
def test_trial_that_is_killed_with_its_sweep_starts_again(go, start):
    process = start(*FOUR)
    wait_for(lambda: list(Path("runs").glob("cpu/*/*/*/metrics.jsonl")))
    process.kill()
    process.communicate()
    (lock,) = Path.cwd().glob("runs/cpu/*/*/*/.lock")
    (pid,) = _holders(lock)
    os.kill(pid, signal.SIGKILL)
    let_go()
    assert go("--name", "mine")[0] == 0
    assert sorted(starts().values()) == [1, 1, 1, 2]
    assert [t["state"] for t in trials_of()] == ["complete"] * 4


def _holders(file):
    """Returns the processes that have a file open."""
    pids = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(file):
                pids.add(int(link.parts[2]))
        except OSError:
            continue
    return pids


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [[], ["--sampler", "tpe", "--trials", "4"]])
def test_two_sweeps_at_once_share_the_trials(tmp_path, start, sampler):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/go").touch()
    which = [*FOUR, "--seeds", "2", "--set", "Fake.boot=0.2", *sampler]
    processes = [start(*which) for _ in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    runs = tmp_path / "runs"
    trials = trials_of(runs)
    assert len(trials) == 8
    assert {trial["state"] for trial in trials} == {"complete"}
    assert starts(runs) == Counter({trial["folder"] for trial in trials})
    assert not list(only_sweep(runs).glob("journal.log.*"))


@pytest.mark.usefixtures("runner")
def test_sweep_waits_for_a_trial_that_was_started_by_hand(go):
    _, _, out = go(*FOUR, "--dry-run")
    binding = ("Fake.hold=1", "Fake.accuracy=0.2")
    folder = job.Job("parity", "fnet", "cpu", overrides=binding).folder
    folder.mkdir(parents=True)
    with (folder / "train.log").open("a") as log:
        by_hand = subprocess.Popen([*FAKE, *shlex.split(out.splitlines()[1])[1:]], stdout=log)
    wait_for((folder / ".lock").exists)
    threading.Timer(1.0, let_go).start()
    assert (go(*FOUR)[0], by_hand.wait()) == (0, 0)
    assert starts() == Counter({trial["folder"]: 1 for trial in trials_of()})


# Selection


@pytest.fixture
def scored(monkeypatch):
    """The run folders that are scored on test, in order."""
    folders = []
    monkeypatch.setattr(evaluate, "evaluate", lambda folder, _: folders.append(str(folder)))
    return folders


@pytest.mark.usefixtures("runner")
def test_finish_scores_the_best_mean_with_all_its_seeds_and_keeps_the_selection(go, scored, capfd):
    axes = ["--grid", "Fake.accuracy=[0.3, 0.7]", "--grid", "Fake.fail=[None, 'crash']"]
    which = ["--task", "parity", "--models", "fnet,linear", "--preset", "cpu", "--seeds", "2"]
    assert go(*which, *axes)[0] == 1
    for first in (True, False):
        scored.clear()
        planned = plan.load(Path("runs"), only_sweep().name)
        if first:
            with pytest.raises(
                UserError, match=r"^4 of the points of .* --retry runs it again, --w"
            ):
                finish.finish(planned)
            assert not scored
        capfd.readouterr()
        finish.finish(planned, without_failed=first)  # what was selected stays
        lines = [x for x in capfd.readouterr().err.splitlines() if x.startswith("left out")]
        models = ("fnet", "linear") if first else ()
        assert lines == [f"left out of parity {model}: 2 failed" for model in models]
        selected = json.loads((only_sweep() / "selected.json").read_text())
        assert [(c["task"], c["model"]) for c in selected] == [
            ("parity", "fnet"),
            ("parity", "linear"),
        ]
        for choice in selected:
            assert choice["overrides"] == ["Fake.accuracy=0.7", "Fake.fail=None"]
            assert choice["seeds"] == [0, 1]
            assert choice["validation"] == pytest.approx(0.705)
        assert scored == [f"runs/{folder}" for choice in selected for folder in choice["folders"]]
        assert len(scored) == 4


def test_finish_does_not_need_the_source_that_the_trials_have_read(outside, scored):
    """The table has changed since: the trials' data is the prepared set."""
    lines = [f"{'no' if k % 2 else 'yes'},text {k}\n" for k in range(100)]
    Path("mine.csv").write_text("label,text\n" + "".join(lines))
    fingerprint = sets.prepare(make_task("csv"), "data", "mine.csv").fingerprint
    shared = job.Job("", "", "", source="mine.csv")
    fields = {"tasks": ["csv"], "models": ["fnet"], "axes": {"Encoder.num_layers": [1, 2]}}
    planned = plan.Plan(swept(**fields).checked(), "mine", shared)
    for number, point in enumerate(plan.grid(planned.sweep.axes)):
        trial = planned.job(0, point, 0)
        facts = trial.identity() | {"config": trial.load().config, "data_sha256": fingerprint}
        result = made_results.with_test(600 + number, **facts)
        made_results.put(trial.runs, result | {"test": None})
    ledger.Ledger(planned).close()
    Path("mine.csv").write_text("label,text\n" + "".join(lines[1:]))
    finish.finish(plan.load(Path("runs"), "mine"))
    assert len(scored) == 1


@pytest.mark.usefixtures("runner", "go")
@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (
            {"Fake.accuracy": [0.3, 0.7]},
            "2 of 2 trials of sweep mine have not ended: lra-fnet sweep --name mine continues",
        ),
        ({}, "has no axes, so there is nothing to select"),
    ],
)
def test_finish_refuses_sweeps_that_have_not_ended_or_have_no_axes(axes, words, scored):
    planned = plan.Plan(swept(axes=axes).checked(), "mine", job.Job("", "", ""))
    with pytest.raises(UserError, match=words):
        finish.finish(planned)
    assert not scored
    assert not (planned.folder / "selected.json").exists()


@pytest.mark.usefixtures("runner")
def test_sweep_whose_gin_files_have_changed_says_so(go, scored):
    """The files are part of the names of the run folders, so its trials would be other runs."""
    changed = Path("mine/presets/cpu/listops.fnet.gin")
    changed.parent.mkdir(parents=True)
    for length in (8, 9):
        changed.write_text(f"MAX_LEN = {length}\n")
        which = ["--task", "listops", "--preset", "cpu", "--models", "fnet", "--name", "s"]
        which += ["--gin-dir", "mine"]
        code, err, _ = go(*which, "--grid", "Fake.accuracy=[0.3, 0.7]")
        assert code == (0 if length == 8 else 2), err
    line = "your gin files of sweep s have changed since it began, so its trials would be other"
    assert line in err
    with pytest.raises(UserError, match=line):
        finish.finish(plan.load(Path("runs"), "s"))
    assert not scored


def test_first_of_the_best_complete_points_is_selected(tmp_path):
    planned = plan.Plan(swept(seeds=2).checked(), "s", job.Job("", "", "", runs=tmp_path))
    made = []
    table = [(0.9, "complete", 0.9, "failed"), (0.4, "complete", 0.6, "complete")]
    table += [(0.5, "complete", 0.5, "complete")]
    for point, (a, state_a, b, state_b) in enumerate(table):
        for seed, (value, state) in enumerate(((a, state_a), (b, state_b))):
            trial = ledger.Trial(
                2 * point + seed, planned.job(0, {"A.b": str(point)}, seed), 0, point
            )
            trial.state, trial.validation = state, value
            made.append(trial)
    (choice,) = finish.select(planned, made, [])
    assert choice.overrides == ("A.b=1",)
    assert choice.validation == pytest.approx(0.5)
    earlier = dataclasses.replace(choice, overrides=("A.b=7",))
    assert finish.select(planned, made, [earlier]) == [earlier]


@pytest.mark.parametrize("models", [["m"], ["m", "n"]])
@pytest.mark.parametrize(
    ("made_of", "how"),
    [
        (lambda kind: {"data_sha256": kind * 64}, "on different data"),
        (lambda kind: {"code": {"m.py": kind * 12}}, "with different code of imports"),
    ],
)
def test_trials_of_a_task_that_differ_are_not_compared(tmp_path, monkeypatch, models, made_of, how):
    """Nor are those of different models, which share a table."""
    swept_models = swept(models=models, seeds=1).checked()
    planned = plan.Plan(swept_models, "s", job.Job("", "", "", runs=tmp_path))
    made = []
    for point, kind in enumerate("aab"):
        pair = len(models) - 1 if kind == "b" else 0
        trial = ledger.Trial(point, planned.job(pair, {"A.b": str(point)}, 0), pair, point)
        trial.state, trial.validation = "complete", 0.1 * point
        made.append(trial)
        (result,) = made_results.records(made_results.a_result(**made_of(kind)))
        monkeypatch.setattr(trial, "record", lambda result=result: result)
    with pytest.raises(UserError, match=rf"{how}; move .*/seed0\), then .* --name s"):
        finish.select(planned, made, [])
    assert finish.select(planned, made[:2], [])[0].overrides == ("A.b=1",)


# Display


def made_trials(planned, *states):
    made = []
    for number, state in enumerate(states):
        built = plan.Built("", 80, make_task("listops"))
        trial = ledger.Trial(number, planned.job(0, {"A.b": str(number)}, 0), 0, number, built)
        trial.state, trial.step, trial.validation = state, 40, 0.25 if state != "waiting" else None
        made.append(trial)
    return made


def shown(table):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_table_shows_state_step_accuracy_and_time_left_of_every_trial(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    planned = plan.Plan(swept().checked(), "s", job.Job("", "", ""))
    trials = made_trials(planned, "complete", "running", "waiting", "diverged")
    trials[1].step, trials[2].step, trials[0].step = 10, 0, 80
    trials[1].first = (100.0, 10)
    clock[0], trials[1].step = 130.0, 20  # ten steps in 30 s: 60 more in 180 s
    lines = shown(board.table(planned, trials)).splitlines()
    (running,) = [line.split() for line in lines if "running" in line and "b=1" in line]
    assert running == ["t", "m", "b=1", "0", "running", "20/80", "25.00", "3", "min", "0", "s"]
    (waiting,) = [line.split() for line in lines if "waiting" in line and "b=2" in line]
    assert waiting == ["t", "m", "b=2", "0", "waiting", "0/80"]
    # 60 + 80 steps are left, at 3 s each
    counts = "1 running, 1 diverged, 1 waiting, 1 complete, about 7 min 0 s left"
    assert counts in lines[-1]


def test_sweep_ends_with_mean_and_spread_of_each_point(monkeypatch):
    value = {"Optimizer.learning_rate": "0.00031622776601683794"}
    axes = {name: [float(text)] for name, text in value.items()}
    planned = plan.Plan(swept(seeds=3, axes=axes).checked(), "s", job.Job("", "", ""))
    trials = []
    for seed, share in enumerate((0.3, 0.31, 0.35)):
        trials.append(ledger.Trial(seed, planned.job(0, value, seed), 0, 0))
        trials[-1].state, trials[-1].validation = "complete", share
    (row,) = board.points(planned, trials).rows
    spread = ((4 + 1 + 9) / 2) ** 0.5
    assert row == ["t", "m", "learning_rate=0.000316", "3", f"32.00 ± {spread:.2f}"]  # no test
    (test,) = made_results.records(made_results.with_test(600))
    reading = [dataclasses.replace(t, job=dataclasses.replace(t.job, test=True)) for t in trials]
    monkeypatch.setattr(ledger.Trial, "record", lambda trial: test if trial.job.test else None)
    assert board.points(planned, reading).rows[0][5] == "30.00 ± 0.00"
    trials[2].state, trials[2].validation = "OOM", None
    (row,) = board.points(planned, trials).rows
    assert row[3:] == ["2, 1 OOM", "30.50 (30.00 / 31.00)"]


def test_point_is_shown_where_a_binding_is_given_twice_or_is_an_axis_too():
    overrides = ["Run.a=1", "Run.a=2", "lra_fnet.X.b=3"]
    planned = plan.Plan(
        swept(axes={"X.b": [1], "Y.c": [4]}, overrides=overrides).checked(),
        "s",
        job.Job("", "", ""),
    )
    trial = ledger.Trial(0, planned.job(0, {"X.b": "1", "Y.c": "4"}, 0), 0, 0, state="waiting")
    (row,) = board.points(planned, [trial]).rows
    assert row[2] == "b=1 c=4"


def test_small_terminal_shows_the_trials_that_matter_most():
    planned = plan.Plan(swept().checked(), "s", job.Job("", "", ""))
    trials = made_trials(planned, *["complete"] * 30, "running", "OOM", *["waiting"] * 30)
    text = shown(board.table(planned, trials, rows=4))
    assert [line.split()[4] for line in text.splitlines() if "40/80" in line] == [
        "running",
        "OOM",
        "waiting",
        "waiting",
    ]
    assert "1 running, 1 OOM, 30 waiting, 30 complete" in text


@pytest.mark.usefixtures("runner")
def test_every_change_of_state_is_one_plain_line_without_a_terminal(go):
    axes = ["--grid", "Fake.accuracy=[0.3]", "--set", "Fake.seconds=0.05"]
    _, err, _ = go("--task", "parity", "--models", "fnet", "--preset", "cpu", *axes)
    lines = [line for line in err.splitlines() if line.startswith("[1/1] ")]
    assert [line.partition("seed0: ")[2] for line in lines] == [
        "running, step 0/8",
        "complete, step 8/8, validation 30.00 %",
    ]
    assert "\x1b" not in err


# Real runs


@pytest.mark.slow
def test_sweep_that_is_killed_and_resumed_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    """Kills parent and children with SIGKILL, resumes, and scores the selected run on test."""
    settings = ["num_steps=500", "eval_every=125", "save_every=50", "save_seconds=0"]
    which = [*PARITY, "--models", "fnet", "--grid", "Optimizer.learning_rate=[1e-3, 1e-1]"]
    which += [word for setting in settings for word in ("--set", f"Run.{setting}")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(OUTSIDE)]))
    monkeypatch.syspath_prepend(str(OUTSIDE))

    def begin(runs, *options):
        command = [sys.executable, "-m", "lra_fnet", "sweep", *options, "--runs", str(runs)]
        with open(tmp_path / "log", "ab") as log:
            return subprocess.Popen(
                [*command, "--name", "mine", "--jobs", "2"], cwd=tmp_path, stdout=log, stderr=log
            )

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert begin(whole, *which).wait() == 0
    process = begin(killed, *which)
    try:
        wait_for(lambda: len(list(killed.glob("*/*/*/*/checkpoints/last/*"))) >= 1)
    finally:
        process.kill()
        process.wait()
        for lock in killed.glob("cpu/*/*/*/.lock"):
            for pid in _holders(lock):
                os.kill(pid, signal.SIGKILL)
    assert len(list(killed.glob("*/*/*/*/result.json"))) < 2
    assert begin(killed).wait() == 0

    def results(runs):
        changing = {"steps_per_second", "wall_seconds", "peak_bytes", "commit", "dirty", "sha256"}
        return {
            str(file.parent.relative_to(runs)): {
                k: v for k, v in json.loads(file.read_text()).items() if k not in changing
            }
            for file in sorted(runs.glob("*/*/*/*/result.json"))
        }

    assert len(results(whole)) == 2
    assert results(killed) == results(whole)
    assert all(result["test"] is None for result in results(whole).values())
    assert not (killed / "test_log.jsonl").exists()
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        finish.finish(plan.load(killed, "mine"))
    (choice,) = json.loads((killed / "sweeps/mine/selected.json").read_text())
    (folder,) = choice["folders"]
    readings = (killed / "test_log.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"] for line in readings] == [folder] * 3  # intended, best, last
    assert [f for f, r in results(killed).items() if r["test"] is not None] == [folder]
    scores = [result["validation"]["best"] for result in results(killed).values()]
    assert choice["validation"] == max(score["correct"] / score["count"] for score in scores)


def test_half_of_the_points_of_a_logarithmic_range_lie_below_its_geometric_mean():
    axes = {"A.rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    points = studies.points(swept(axes=axes, sampler="random", trials=40).checked())
    assert 10 < sum(point["A.rate"] < 1e-3 for point in points) < 30
