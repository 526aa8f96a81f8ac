"""The trials of a sweep: scheduling, kills and resumes, selection.

With the fixture `runner` the trials are `fake_train.py`, and hundreds of processes take seconds.
"""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import made_results
import optuna
import pytest
from fake_sweep import BUILT, FAKE
from optuna.trial import TrialState
from paths import OUTSIDE, ROOT
from waiting import until

from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.run import evaluate, job
from lra_fnet.sweep import files, finish, ledger, plan, scheduler

WHICH = ["--task", "parity", "--models", "fnet", "--preset", "cpu", "--name", "mine"]
BOTH = [*WHICH, "--models", "fnet,linear", "--seeds", "2"]
TWO = [*WHICH, "--grid", "Fake.accuracy=[0.1, 0.2]"]
FOUR = [*WHICH, "--grid", "Fake.accuracy=[0.1, 0.2, 0.3, 0.4]", "--set", "Fake.hold=1"]


@pytest.fixture(autouse=True)
def runner(monkeypatch, request):
    """Replaces trials by fake_train.py: no gin, no data, no jax."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(scheduler, "PROGRAM", FAKE)
        monkeypatch.setattr(scheduler, "SECONDS_A_LOOK", 0.02)
        monkeypatch.setattr(plan, "built", lambda job: BUILT)


def trials_of(runs=Path("runs")):
    return json.loads((runs / "sweeps/mine/trials.json").read_text())


def states(runs=Path("runs")):
    return [trial["state"] for trial in trials_of(runs)]


def starts(runs=Path("runs"), what="start"):
    """Returns how often each run folder was started."""
    lines = [line.split() for line in (runs / "starts").read_text().splitlines()]
    return Counter(words[1] for words in lines if words[0] == what)


# Scheduling


def test_every_trial_runs_once_and_trials_json_has_its_state(go):
    code, err, out = go(*BOTH, "--grid", "Fake.accuracy=[0.2, 0.4]")
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
    assert (Path("runs") / first.pop("folder") / "result.json").exists()
    names = {"number": 0, "task": "parity", "model": "fnet", "preset": "cpu", "seed": 0}
    names |= {"overrides": ["Fake.accuracy=0.2"], "state": "complete", "error": None}
    assert first == names | {"step": 8, "validation": 0.2}
    assert "created" in json.loads(Path("runs/sweeps/mine/sweep.json").read_text())
    assert "lra-fnet finish --name mine" in err
    assert err.count("2 of 2 seeds: 0.4050") == 2  # the mean of 0.40 and 0.41 of each model
    assert "\x1b" not in err
    assert go("--name", "mine")[0] == 0
    assert sum(starts().values()) == 8


def test_failed_trials_are_listed_with_their_error_and_run_again_only_with_retry(go):
    grid = ["--grid", "Fake.fail=[None, 'once', 'crash', 'OOM', 'killed']"]
    code, err, _ = go(*WHICH, *grid)
    assert code == 1
    errors = [None, "the disk is full", "RuntimeError: it broke", "out of memory"]
    errors += ["killed by signal 9"]
    wanted = ["complete", "failed", "failed", "OOM", "failed"]
    assert [(t["state"], t["error"]) for t in trials_of()] == list(zip(wanted, errors, strict=True))
    for error in errors[1:]:
        assert f": {error}" in err
    assert go(*WHICH, *grid)[0] == 1
    assert set(starts().values()) == {1}
    assert go("--name", "mine", "--retry")[0] == 1
    assert states() == ["complete", "complete", *wanted[2:]]
    assert [starts()[trial["folder"]] for trial in trials_of()] == [1, 2, 2, 2, 2]
    shutil.rmtree(Path("runs") / trials_of()[0]["folder"])  # of a point that was told
    assert go("--name", "mine")[0] == 1
    assert states() == ["complete", "complete", *wanted[2:]]


@pytest.mark.parametrize("jobs", [1, 2])
def test_workers_run_in_parallel_on_separate_cores(go, jobs, monkeypatch):
    """Those of several share a GPU; a single one keeps JAX's own use of its memory."""
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    cores = sorted(os.sched_getaffinity(0))
    grid = ["--grid", "Fake.accuracy=[0.1, 0.2, 0.3, 0.4]", "--set", "Fake.seconds=0.05"]
    assert go(*WHICH, *grid, "--jobs", str(jobs))[0] == 0
    lines = [line.split() for line in Path("runs/starts").read_text().splitlines()]
    busy, most = 0, 0
    for event, *_ in lines:
        busy += 1 if event == "start" else -1
        most = max(most, busy)
    assert most == jobs
    parts = {",".join(map(str, part)) for part in scheduler.share(cores, jobs)}
    assert {words[3] for words in lines} == parts
    assert {words[4] for words in lines} == {"true" if jobs == 1 else "false"}


def test_point_below_the_median_is_stopped_and_its_other_seeds_never_start(go):
    """Five points complete first, which is what Optuna's pruner needs for a median."""
    grid = ["--grid", "Fake.accuracy=[0.5, 0.6, 0.7, 0.65, 0.55, 0.62, 0.1, 0.9]", "--seeds", "2"]
    which = [*WHICH, "--set", "Fake.hold=0.2", *grid, "--prune"]
    code, err, _ = go(*which, "--jobs", "2")
    assert code == 0, err
    by_point = {}
    for trial in trials_of():
        by_point.setdefault(trial["overrides"][-1], []).append(trial)
    first, second = by_point.pop("Fake.accuracy=0.1")
    assert [first["state"], second["state"]] == ["pruned", "pruned"]
    assert {t["state"] for point in by_point.values() for t in point} == {"complete"}
    assert starts(what="saved")[first["folder"]] == 1
    assert first["step"] < 8
    assert starts()[second["folder"]] == 0
    before = starts()
    assert go(*which)[0] == 0
    assert starts() == before


@pytest.mark.parametrize("pretrain", [False, True])
def test_tpe_gets_the_mean_of_the_seeds_and_resumes(go, pretrain):
    """In pre-training it minimises the loss."""
    which = [*BOTH, "--range", "Fake.accuracy=[0.1, 0.9]", "--sampler", "tpe"]
    which += ["--pretrain"] if pretrain else []
    assert go(*which, "--trials", "1")[0] == 0
    assert len(trials_of()) == 1 * 2 * 2
    assert go("--name", "mine", "--trials", "3")[0] == 0
    trials = trials_of()
    assert starts() == Counter({trial["folder"]: 1 for trial in trials})
    assert len(trials) == 3 * 2 * 2
    backend = optuna.storages.journal.JournalFileBackend("runs/sweeps/mine/journal.log")
    storage = optuna.storages.JournalStorage(backend)
    for model in ("fnet", "linear"):
        study = optuna.load_study(study_name=f"parity/{model}", storage=storage)
        points = study.trials
        assert [point.state for point in points] == [TrialState.COMPLETE] * 3
        accuracies = [point.params["Fake.accuracy"] for point in points]
        assert len(set(accuracies)) == 3
        want = [2 - a - 0.005 if pretrain else a + 0.005 for a in accuracies]
        assert [point.value for point in points] == pytest.approx(want, abs=1e-3)
        assert study.best_value == (min if pretrain else max)(point.value for point in points)


def test_half_a_line_at_the_end_of_the_journal_is_dropped(go):
    assert go(*TWO)[0] == 0
    journal = Path("runs/sweeps/mine/journal.log")
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:7])
    assert go(*TWO)[0] == 0
    assert all(json.loads(line) for line in journal.read_text().splitlines())


@pytest.mark.parametrize("name", ["sweep.json", "trials.json", "selected.json"])
@pytest.mark.parametrize("content", [b"{}", b"[1]", b"\xff"])
def test_damaged_file_of_a_sweep_fails_with_one_line(go, command, name, content):
    assert go(*TWO)[0] == 0
    Path("runs/sweeps/mine", name).write_bytes(content)
    assert name in command("finish", "--name", "mine").mistake


# States


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"config": "Run.num_steps = 999\n"}, False),
        ({"data_sha256": "d" * 64}, False),
        ({"code": {"mine.py": "0" * 12}}, False),
        ({"test": None}, False),  # of --no-test
    ],
)
def test_result_counts_if_it_has_the_trials_settings_data_code_and_splits(
    outside, monkeypatch, changes, counts
):
    monkeypatch.setattr(store, "read_fingerprint", lambda folder: {"fingerprint": "e" * 64})
    built = type(BUILT)(**vars(BUILT) | {"config": "Run.num_steps = 1000\n"})
    swept = plan.Sweep(("parity",), ("fnet",), "cpu").checked()
    planned = plan.Plan(swept, "s", job.Job("parity", "fnet", "cpu", runs=Path("runs")))
    trial = dataclasses.replace(ledger.make_trial(planned, 0, 0, {}, 0), built=built)
    facts = {"task": "parity", "config": built.config, "data_sha256": "e" * 64}
    made_results.put(trial.job.runs, made_results.a_result(**(facts | changes)))
    assert (trial.record() is not None) == counts


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


def begun(count=1):
    """Waits until so many trials hold their locks."""
    until(lambda: len(list(Path("runs").glob("cpu/*/*/*/metrics.jsonl"))) == count)


def let_go():
    """Lets the trials that wait at step 4 continue."""
    Path("runs/go").touch()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_makes_every_trial_save_and_prints_the_command_that_resumes(go, start, number):
    process = start(*FOUR, "--jobs", "2")
    begun(2)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "saved; to resume: lra-fnet sweep --name mine --jobs 2" in err
    assert starts(what="saved") == starts()
    assert states() == ["waiting"] * 4
    assert 0 < trials_of()[0]["step"] < 8
    let_go()
    assert go("--name", "mine", "--jobs", "2")[0] == 0
    assert states() == ["complete"] * 4
    for trial in trials_of():
        lines = Path("runs", trial["folder"], "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, 9))


def test_a_second_interrupt_ends_the_sweep_at_once_and_no_trial_goes_on(outside, start):
    process = start(*FOUR, "--jobs", "2", seconds_a_look=9)
    begun(2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    until(lambda: starts(what="saved") == starts(), 30)


@pytest.mark.parametrize("with_its_trial", [False, True])
def test_trial_of_a_killed_sweep_goes_on_or_starts_again(go, start, with_its_trial):
    process = start(*FOUR)
    begun()
    process.kill()
    process.communicate()
    if with_its_trial:
        (lock,) = Path.cwd().glob("runs/cpu/*/*/*/.lock")
        (pid,) = _holders(lock)
        os.kill(pid, signal.SIGKILL)
        let_go()
    else:
        threading.Timer(1.0, let_go).start()
    assert go(*FOUR)[0] == 0
    assert sorted(starts().values()) == [1, 1, 1, 2 if with_its_trial else 1]
    assert states() == ["complete"] * 4


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


@pytest.mark.parametrize("sampler", [[], ["--sampler", "tpe", "--trials", "4"]])
def test_two_sweeps_at_once_share_the_trials(outside, start, sampler):
    Path("runs").mkdir()
    let_go()
    which = [*FOUR, "--seeds", "2", "--set", "Fake.boot=0.2", *sampler]
    processes = [start(*which) for _ in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert states() == ["complete"] * 8
    assert starts() == Counter({trial["folder"] for trial in trials_of()})


def test_sweep_waits_for_a_trial_that_was_started_by_hand(go):
    by = job.Job("parity", "fnet", "cpu", overrides=("Fake.hold=1", "Fake.accuracy=0.2"))
    by.folder.mkdir(parents=True)
    with (by.folder / "train.log").open("a") as log:
        by_hand = subprocess.Popen([*FAKE, *by.command(), "--no-test"], stdout=log)
    until((by.folder / ".lock").exists)
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


def test_finish_scores_the_best_mean_with_all_its_seeds_and_keeps_the_selection(go, scored):
    grid = ["--grid", "Fake.accuracy=[0.3, 0.7]", "--grid", "Fake.fail=[None, 'crash']"]
    assert go(*BOTH, *grid)[0] == 1
    planned = plan.load(Path("runs"), "mine")
    with pytest.raises(UserError, match=r"^8 trials of sweep mine .* --without-failed"):
        finish.finish(planned)
    assert not scored
    for first in (True, False):
        scored.clear()
        finish.finish(planned, without_failed=first)  # what was selected stays
        selected = json.loads(Path("runs/sweeps/mine/selected.json").read_text())
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "2 trials of sweep mine have not ended"),
        ({"axes": {}}, "has nothing to select"),
        ({"pretrain": True}, "has nothing to select"),
    ],
)
def test_finish_refuses_sweeps_that_have_not_ended_or_have_no_axes(changes, words, scored, outside):
    fields = {"tasks": ["t"], "models": ["m"], "axes": {"Fake.accuracy": [0.3, 0.7]}}
    planned = plan.Plan(plan.Sweep(**fields | changes).checked(), "mine", job.Job("", "", ""))
    with pytest.raises(UserError, match=words):
        finish.finish(planned)
    assert not scored
    assert not (planned.folder / "selected.json").exists()


def test_first_of_the_best_complete_points_is_selected():
    table = [(0.9, "complete", 0.9, "failed"), (0.4, "complete", 0.6, "complete")]
    table += [(0.5, "complete", 0.5, "complete")]
    entries = [
        files.Entry(2 * point + seed, "t", "m", "cpu", seed, (f"A.b={point}",), f"f{seed}", state)
        for point, row in enumerate(table)
        for seed, state in enumerate(row[1::2])
    ]
    for entry, value in zip(entries, (v for row in table for v in row[::2]), strict=True):
        entry.validation = value
    (choice,) = files.best(entries)
    assert (choice.overrides, choice.seeds, choice.folders) == (("A.b=1",), (0, 1), ("f0", "f1"))
    assert choice.validation == pytest.approx(0.5)


# Real runs


@pytest.mark.slow
def test_trials_of_real_runs_never_read_test_and_finish_reads_it_once(command, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(OUTSIDE)]))
    which = [*WHICH, "--gin-dir", str(OUTSIDE), "--grid", "Optimizer.learning_rate=[1e-3, 1e-1]"]
    assert command("sweep", *which, "--set", "Run.num_steps=40", "--jobs", "2").code == 0
    results = {t["folder"]: Path("runs", t["folder"], "result.json") for t in trials_of()}
    assert all(json.loads(file.read_text())["test"] is None for file in results.values())
    assert not Path("runs/test_log.jsonl").exists()
    for _ in range(2):
        assert command("finish", "--name", "mine").code == 0
    (choice,) = json.loads(Path("runs/sweeps/mine/selected.json").read_text())
    assert choice["validation"] == max(trial["validation"] for trial in trials_of())
    readings = Path("runs/test_log.jsonl").read_text().splitlines()
    folders = [json.loads(line)["run"] for line in readings]
    assert folders == list(choice["folders"]) * 3  # intended, best, last
    tested = [f for f, file in results.items() if json.loads(file.read_text())["test"]]
    assert tested == list(choice["folders"])
