"""Sweeps: which trials there are, who runs them when, what outlives a kill, what is selected.

Where `runner` is used, the trials are `fake_train.py`, so that hundreds of processes take seconds.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState
from paths import ROOT
from rich.console import Console

from lra_fnet import cli, report
from lra_fnet.run import evaluate, job
from lra_fnet.sweep import board, ledger, plan, scheduler, studies

OUTSIDE = ROOT / "tests/outside"
PARITY = ["--task", "parity", "--preset", "cpu", "--gin-dir", str(OUTSIDE)]
FAKE = [sys.executable, str(ROOT / "tests/fake_train.py")]
# `lra-fnet` with the stand-in, in a process that can be killed.
DRIVER = f"""
import sys
from lra_fnet import cli
from lra_fnet.sweep import plan, scheduler
scheduler.PROGRAM = {FAKE}
scheduler.SECONDS_A_LOOK = 0.02
plan.built = lambda job: ("", 8)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def go(tmp_path, monkeypatch, capfd):
    """Calls `lra-fnet sweep`; returns the exit code, standard error and output."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.chdir(tmp_path)

    def call(*more):
        code = cli.main(["sweep", *map(str, more)])
        captured = capfd.readouterr()
        return code, captured.err, captured.out

    return call


@pytest.fixture
def runner(monkeypatch):
    """Trials are stand-ins: no gin, no data, no jax."""
    monkeypatch.setattr(scheduler, "PROGRAM", FAKE)
    monkeypatch.setattr(scheduler, "SECONDS_A_LOOK", 0.02)
    monkeypatch.setattr(plan, "built", lambda job: ("", 8))


def swept(**changes):
    fields = {"tasks": ["t"], "models": ["m"], "preset": "cpu", "axes": {"A.b": [1, 2]}}
    return plan.Sweep(**(fields | changes))


def only_sweep(runs=Path("runs")):
    (folder,) = (runs / "sweeps").iterdir()
    return folder


def trials_of(runs=Path("runs")):
    return json.loads((only_sweep(runs) / "trials.json").read_text())


def starts(runs=Path("runs"), what="start"):
    """How often each run folder was started."""
    lines = [line.split() for line in (runs / "starts").read_text().splitlines()]
    return Counter(words[1] for words in lines if words[0] == what)


# What is asked for


def test_the_papers_sweep_is_four_numbers_of_layers_of_its_models_on_image(go):
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


def test_the_whole_table_is_the_tables_own_runs_and_options_take_the_files_place(go):
    table = ROOT / "gin/sweeps/lra_table.gin"
    options = ["--preset", "cpu", "--models", "fnet,linear", "--seeds", "2", "--dry-run"]
    code, _, out = go("--sweep", table, *options)
    assert code == 0
    words = [shlex.split(line) for line in out.splitlines()]
    names = ("--task", "--model", "--seed")
    got = Counter(tuple(w[w.index(name) + 1] for name in names) for w in words)
    tasks = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
    assert got == Counter((t, m, k) for t in tasks for m in ("fnet", "linear") for k in "01")
    assert not any("--no-test" in w or "--set" in w for w in words)


def test_a_dry_runs_lines_are_the_commands_of_the_trials_and_name_their_folders(go):
    """Each line, given to the command line, is the job whose folder trials.json would name."""
    axes = ["--grid", "Encoder.norm=['pre', 'post']", "--set", "Run.num_steps=4"]
    code, err, out = go(*PARITY, "--models", "fnet", "--seeds", "2", *axes, "--dry-run")
    assert (code, err) == (0, "")
    parser = cli._parser()
    for line, (norm, seed) in zip(
        out.splitlines(), [(n, s) for n in ("pre", "post") for s in (0, 1)], strict=True
    ):
        args = parser.parse_args(shlex.split(line)[1:])
        assert args.set == ["Run.num_steps=4", f"Encoder.norm='{norm}'"]
        assert (args.seed, args.no_test, args.gin_dir) == (seed, True, [OUTSIDE])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "a sweep expects tasks and models: --task"),
        (["--task", "parity", "--sampler", "best"], "invalid choice: 'best'"),
        (["--task", "parity", "--grid", "Run.batch_size=16"], "GRID (--grid) expects Name"),
        (["--task", "parity", "--range", "Run.batch_size=[1,2,3]"], "RANGE (--range) expects"),
        (["--task", "parity", "--range", "A.b=[2,1]", "--sampler=tpe", "--trials=1"], "low < high"),
        (["--task", "parity", "--range", "A.b=[1,2]"], "the range of A.b needs SAMPLER=random"),
        (["--task", "parity", "--sampler", "tpe"], "SAMPLER=tpe needs TRIALS="),
        (["--task", "parity", "--trials", "3"], "TRIALS (--trials) is of SAMPLER=random and tpe"),
        (["--task", "parity", "--prune"], "PRUNE=1 (--prune) needs axes"),
        (["--task", "parity", "--seeds", "0"], "SEEDS expects a whole number of at least 1, got 0"),
        (["--task", "parity", "--name", "a/b"], "NAME expects letters"),
        (["--name", "none"], "no sweep 'none' in runs/sweeps (there: none)"),
        (["--name", "none", "--seeds", "2"], "--name none alone goes on with that sweep"),
        (["--sweep", "none.gin"], "SWEEP expects a gin file (--sweep), none.gin is none"),
        ([*PARITY, "--models", "fnet", "--jobs", "0"], "JOBS (--jobs) expects a whole number"),
        ([*PARITY, "--models", "fnett"], "unknown model 'fnett'"),
        ([*PARITY, "--models", "fnet", "--grid", "Encoder.num_layer=[1]"], "num_layer"),
        ([*PARITY, "--models", "fnet", "--grid", "Encoder.num_heads=[2, 3]"], "num_heads"),
        ([*PARITY, "--models=fnet", "--finish"], "has no axes: its runs have read test"),
    ],
)
def test_a_mistake_gets_one_line_and_code_2_and_begins_nothing(go, more, words):
    code, err, out = go(*more)
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
        ("Sweep.tasks = ['listops']\nRun.batch_size = 3", "does not read Run.batch_size"),
    ],
)
def test_a_wrong_sweep_file_gets_one_line(go, text, words):
    Path("my.gin").write_text(text)
    code, err, _ = go("--sweep", "my.gin")
    assert code == 2
    assert len(err.splitlines()) == 1, err
    assert words in err


def test_axes_of_the_command_line_stand_beside_the_files_and_take_the_place_of_its_own():
    with_axes = {"A.b": [1], "C.d": [(1, 2)]}
    assert plan.grid_axis('C.d=["x", None]') == {"C.d": ["x", None]}
    assert plan.grid(with_axes) == [{"A.b": "1", "C.d": "(1, 2)"}]
    assert plan.bindings({"A.b": "'x'", "C.d": 0.1}) == ("A.b='x'", "C.d=0.1")
    assert plan.range_axis("A.b=[1, 8]") == {"A.b": {"low": 1, "high": 8, "log": False}}


def test_a_file_and_the_command_line_together(tmp_path):
    file = tmp_path / "my.gin"
    file.write_text(
        "Sweep.name = 'mine'\nSweep.tasks = ['text']\nSweep.overrides = ['A.a=1']\n"
        "Sweep.axes = {'A.b': [1, 2], 'C.d': {'low': 1e-4, 'high': 1e-2, 'log': True}}\n"
        "Sweep.sampler = 'random'\n"
    )
    got = plan.read(file, {"A.b": [3]}, ["E.f=2"], trials=5, preset=None)
    assert got.axes == {"A.b": [3], "C.d": {"low": 1e-4, "high": 1e-2, "log": True}}
    assert got.overrides == ("A.a=1", "E.f=2")
    assert (got.tasks, got.preset, got.trials) == (("text",), "paper", 5)
    assert re.fullmatch(r"mine-paper-[0-9a-f]{8}", plan.folder_name(got, None))


def test_the_folder_is_of_one_sweep_alone_but_for_the_number_of_trials():
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
    ]
    fields = {"sampler": "random", "trials": 3}
    names = {plan.folder_name(swept(**(fields | one)).checked(), None) for one in changes}
    assert len(names | {name}) == 9


def test_points_of_random_depend_on_their_number_alone_and_lie_in_the_ranges():
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
def test_cores_are_divided_evenly_and_nobody_is_left_without(cores, workers):
    parts = scheduler.share(list(range(cores)), workers)
    assert len(parts) == workers
    dealt = Counter(core for part in parts for core in part)
    assert dealt.keys() == set(range(cores))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert max(dealt.values()) - min(dealt.values()) <= 1
    assert workers > cores or set(dealt.values()) == {1}


# Who runs what


@pytest.mark.usefixtures("runner")
def test_every_trial_runs_once_and_its_state_is_in_trials_json(go):
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
    one = trials[0]
    assert one | {"folder": "", "command": ""} == {
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
    assert (Path("runs") / one["folder"] / "result.json").exists()
    assert one["command"].startswith("lra-fnet train --task parity --model fnet --preset cpu")
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
    assert f"lra-fnet sweep --name {only_sweep().name} --finish" in err
    code, err, _ = go("--name", only_sweep().name)
    assert code == 0
    assert sum(starts().values()) == 8


@pytest.mark.usefixtures("runner")
def test_failed_trials_are_listed_with_their_error_and_tried_again_on_request_alone(go):
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
def test_workers_run_side_by_side_each_on_its_cores(go, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))
    axes = ["--grid", "Fake.accuracy=[0.1, 0.2, 0.3, 0.4]", "--set", "Fake.seconds=0.05"]
    assert go("--task", "parity", "--models", "fnet", *axes, "--jobs", "2")[0] == 0
    lines = [line.split() for line in Path("runs/starts").read_text().splitlines()]
    busy, most = 0, 0
    for what, *_ in lines:
        busy += 1 if what == "start" else -1
        most = max(most, busy)
    assert most == 2
    parts = {",".join(map(str, part)) for part in scheduler.share(cores, 2)}
    assert {words[3] for words in lines} == parts


@pytest.mark.usefixtures("runner")
def test_a_point_behind_the_median_is_stopped_and_its_other_seeds_never_begin(go):
    """Five points are seen to the end; Optuna's pruner needs so many to know a median."""
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


@pytest.mark.usefixtures("runner")
def test_tpe_sees_the_mean_of_the_seeds_and_goes_on_where_it_was(go):
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


@pytest.mark.usefixtures("runner")
def test_a_name_holds_one_sweep(go):
    which = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
    assert go(*which, "--grid", "Fake.accuracy=[0.1]")[0] == 0
    code, err, _ = go(*which, "--grid", "Fake.accuracy=[0.2]")
    assert code == 2
    assert "runs/sweeps/mine is another sweep (axes: " in err
    assert "(--name) starts one beside it" in err


def test_a_sweep_that_is_read_back_is_the_one_that_was_begun(tmp_path):
    """Tuples, strings and None too, which JSON alone would change."""
    axes = {"A.b": [(0.9, 0.98), None, "x", True, 1e-3]}
    begun = swept(axes=axes, overrides=["C.d=1"], seeds=2, prune=True).checked()
    shared = job.Job("", "", "", runs=tmp_path, imports=("m",), gin_dirs=(Path("g"),))
    first = plan.Plan(begun, "mine", shared)
    first.folder.mkdir(parents=True)
    first.begin()
    assert plan.load(tmp_path, "mine") == first


def test_half_a_line_at_the_journals_end_is_dropped(tmp_path):
    of = plan.Plan(swept().checked(), "s", job.Job("", "", "", runs=tmp_path))
    of.folder.mkdir(parents=True)
    studies.Studies(of)
    file = of.folder / "journal.log"
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines()[-1][:7])
    assert len(studies.Studies(of).points(0)) == 2
    assert file.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in file.read_text().splitlines())


# Kills, and several at once


@pytest.fixture
def start(tmp_path):
    """Starts `lra-fnet sweep` with the stand-in as a process of its own; ends what is left."""
    begun = []

    def call(*more):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(OUTSIDE)])}
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, "sweep", *more],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield call
    for process in begun:
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
    """Lets the held trials end."""
    Path("runs/go").touch()


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_has_every_trial_save_and_one_line_says_how_to_go_on(go, start, number):
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


@pytest.mark.usefixtures("runner")
def test_what_a_killed_sweep_leaves_is_taken_over_and_its_orphan_is_not_run_twice(go, start):
    process = start(*FOUR)
    wait_for(Path("runs/starts").exists)
    process.kill()
    process.communicate()
    threading.Timer(1.0, let_go).start()
    assert go(*FOUR)[0] == 0
    assert starts() == Counter({trial["folder"]: 1 for trial in trials_of()})
    assert [t["state"] for t in trials_of()] == ["complete"] * 4


@pytest.mark.usefixtures("runner")
def test_a_trial_killed_with_its_sweep_is_begun_again(go, start):
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
    """Processes that have a file open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(file):
                found.add(int(link.parts[2]))
        except OSError:
            continue
    return found


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
def test_a_trial_that_a_person_runs_is_waited_for(go):
    _, _, out = go(*FOUR, "--dry-run")
    binding = ("Fake.hold=1", "Fake.accuracy=0.2")
    folder = job.Job("parity", "fnet", "cpu", overrides=binding).folder
    folder.mkdir(parents=True)
    with (folder / "train.log").open("a") as log:
        own = subprocess.Popen([*FAKE, *shlex.split(out.splitlines()[1])[1:]], stdout=log)
    wait_for((folder / ".lock").exists)
    threading.Timer(1.0, let_go).start()
    assert (go(*FOUR)[0], own.wait()) == (0, 0)
    assert starts() == Counter({trial["folder"]: 1 for trial in trials_of()})


# What is selected


@pytest.fixture
def scored(monkeypatch):
    """The run folders that are scored on test, in order."""
    folders = []
    result = SimpleNamespace(raw={})
    monkeypatch.setattr(evaluate, "evaluate", lambda folder: folders.append(str(folder)) or result)
    monkeypatch.setattr(report, "print_run", lambda result: None)
    return folders


@pytest.mark.usefixtures("runner")
def test_the_best_mean_on_validation_is_scored_with_all_its_seeds_and_stays_selected(go, scored):
    axes = ["--grid", "Fake.accuracy=[0.3, 0.7]", "--grid", "Fake.fail=[None, 'crash']"]
    which = ["--task", "parity", "--models", "fnet,linear", "--preset", "cpu", "--seeds", "2"]
    assert go(*which, *axes)[0] == 1
    (name,) = os.listdir("runs/sweeps")
    for _ in range(2):
        scored.clear()
        code, _, out = go("--finish", "--name", name)
        assert code == 0
        assert out == f"selected: runs/sweeps/{name}/selected.json\n"
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


@pytest.mark.usefixtures("runner")
def test_nothing_is_selected_before_the_last_trial_has_ended(go, scored, tmp_path):
    which = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
    which += ["--grid", "Fake.accuracy=[0.3, 0.7]"]
    code, err, _ = go(*which, "--finish")
    assert code == 2
    assert "2 of 2 trials of sweep mine have not ended: lra-fnet sweep --name mine goes on" in err
    assert not scored
    assert not (tmp_path / "runs/sweeps/mine/selected.json").exists()


def test_a_point_without_all_its_seeds_is_never_selected_and_of_equal_ones_the_first_is(tmp_path):
    from lra_fnet.sweep import finish

    of = plan.Plan(swept(seeds=2).checked(), "s", job.Job("", "", "", runs=tmp_path))
    made = []
    table = [(0.9, "complete", 0.9, "failed"), (0.4, "complete", 0.6, "complete")]
    table += [(0.5, "complete", 0.5, "complete")]
    for point, (a, state_a, b, state_b) in enumerate(table):
        for seed, (value, state) in enumerate(((a, state_a), (b, state_b))):
            trial = ledger.Trial(2 * point + seed, of.job(0, {"A.b": str(point)}, seed), 0, point)
            trial.state, trial.validation = state, value
            made.append(trial)
    (choice,) = finish.select(of, made, [])
    assert choice["overrides"] == ["A.b=1"]
    assert choice["validation"] == pytest.approx(0.5)
    assert finish.select(of, made, [choice | {"overrides": ["A.b=7"]}])[0]["overrides"] == ["A.b=7"]


# What is shown


def made_trials(of, *states):
    made = []
    for number, state in enumerate(states):
        trial = ledger.Trial(number, of.job(0, {"A.b": str(number)}, 0), 0, number, "", 80)
        trial.state, trial.step, trial.validation = state, 40, 0.25 if state != "waiting" else None
        made.append(trial)
    return made


def shown(table):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_the_table_has_state_step_accuracy_and_time_left_of_every_trial(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    of = plan.Plan(swept().checked(), "s", job.Job("", "", ""))
    trials = made_trials(of, "complete", "running", "waiting", "diverged")
    trials[1].step, trials[2].step, trials[0].step = 10, 0, 80
    pace = board.Pace()
    pace.see(trials)
    clock[0], trials[1].step = 130.0, 20  # ten steps in 30 s: 60 more in 180 s
    pace.see(trials)
    lines = shown(board.table(of, trials, pace)).splitlines()
    (running,) = [line.split() for line in lines if "running" in line and "b=1" in line]
    assert running == ["t", "m", "b=1", "0", "running", "20/80", "25.00", "3", "min", "0", "s"]
    (waiting,) = [line.split() for line in lines if "waiting" in line and "b=2" in line]
    assert waiting == ["t", "m", "b=2", "0", "waiting", "0/80"]
    # 60 + 80 steps are left, at 3 s each
    counts = "1 running, 1 diverged, 1 waiting, 1 complete, about 7 min 0 s left"
    assert counts in lines[-1]


def test_a_small_terminal_shows_the_trials_that_matter_most():
    of = plan.Plan(swept().checked(), "s", job.Job("", "", ""))
    trials = made_trials(of, *["complete"] * 30, "running", "OOM", *["waiting"] * 30)
    text = shown(board.table(of, trials, rows=4))
    assert [line.split()[4] for line in text.splitlines() if "40/80" in line] == [
        "running",
        "OOM",
        "waiting",
        "waiting",
    ]
    assert "1 running, 1 OOM, 30 waiting, 30 complete" in text


@pytest.mark.usefixtures("runner")
def test_without_a_terminal_every_change_of_state_is_one_plain_line(go):
    axes = ["--grid", "Fake.accuracy=[0.3]", "--set", "Fake.seconds=0.05"]
    _, err, _ = go("--task", "parity", "--models", "fnet", "--preset", "cpu", *axes)
    told = [line for line in err.splitlines() if line.startswith("[1/1] ")]
    assert [line.partition("seed0: ")[2] for line in told] == [
        "running",
        "complete, validation 30.00",
    ]
    assert "\x1b" not in err


# The whole of it


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_resumed_leaves_what_an_unkilled_one_does(tmp_path):
    """Real runs: two models, two points, SIGKILL of parent and children, then the selection."""
    which = [*PARITY, "--models", "fnet,linear", "--grid", "Optimizer.learning_rate=[1e-3, 1e-1]"]
    which += ["--set", "Run.num_steps=200", "--set", "Run.eval_every=50", "--name", "mine"]
    which += ["--set", "Run.save_every=25", "--set", "Run.save_seconds=0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(OUTSIDE)])}

    def begin(runs, *more):
        command = [sys.executable, "-m", "lra_fnet.cli", "sweep", *more, "--runs", str(runs)]
        with open(tmp_path / "log", "ab") as log:
            return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert begin(whole, *which, "--jobs", "2").wait() == 0
    process = begin(killed, *which, "--jobs", "2")
    try:
        wait_for(lambda: len(list(killed.glob("*/*/*/*/checkpoints/last/*"))) >= 2)
    finally:
        process.kill()
        process.wait()
        for lock in killed.glob("cpu/*/*/*/.lock"):
            for pid in _holders(lock):
                os.kill(pid, signal.SIGKILL)
    assert len(list(killed.glob("*/*/*/*/result.json"))) < 4
    assert begin(killed, "--name", "mine", "--jobs", "2").wait() == 0

    def results(runs):
        changing = {"steps_per_second", "wall_seconds", "peak_bytes", "commit", "dirty"}
        return {
            str(file.relative_to(runs)): {
                k: v for k, v in json.loads(file.read_text()).items() if k not in changing
            }
            for file in sorted(runs.glob("*/*/*/*/result.json"))
        }

    assert len(results(whole)) == 4
    assert results(killed) == results(whole)
    assert all(result["test"] is None for result in results(whole).values())
    assert not (killed / "test_log.jsonl").exists()
    for _ in range(2):
        assert begin(killed, *which, "--finish").wait() == 0
    selected = json.loads((killed / "sweeps/mine/selected.json").read_text())
    folders = [folder for choice in selected for folder in choice["folders"]]
    readings = (killed / "test_log.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["run"] for line in readings) == dict.fromkeys(folders, 2)
    tested = [f for f, r in results(killed).items() if r["test"] is not None]
    assert sorted(folders) == sorted(str(Path(file).parent) for file in tested)
    best = {}
    for result in results(killed).values():
        sums = result["validation"]["best"]
        best[result["model"]] = max(best.get(result["model"], 0), sums["correct"] / sums["count"])
    assert {choice["model"]: choice["validation"] for choice in selected} == best
