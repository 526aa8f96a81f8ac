"""The definition of a sweep: options, files, points, and the commands of a dry run."""

import dataclasses
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from paths import OUTSIDE, ROOT

from lra_fnet import cli
from lra_fnet.errors import UserError
from lra_fnet.run import job
from lra_fnet.sweep import axes, plan, scheduler
from lra_fnet.tasks import BUILT_IN

TASK = ["--task", "parity"]
PARITY = [*TASK, "--preset", "cpu", "--gin-dir", str(OUTSIDE), "--models", "fnet"]


def swept(**changes):
    fields = {"tasks": ["t"], "models": ["m"], "preset": "cpu", "axes": {"A.b": [1, 2]}}
    return plan.Sweep(**(fields | changes)).checked()


def planned(tmp_path, name="s", **changes):
    return plan.Plan(swept(**changes), name, job.Job("", "", "", runs=tmp_path))


def parsed(out):
    return [cli.parser().parse_args(shlex.split(line)[1:]) for line in out.splitlines()]


def test_sweep_of_the_paper_has_four_numbers_of_layers_for_its_models_on_image(go):
    code, _, out = go("--sweep", ROOT / "gin/sweeps/image_layers.gin", "--dry-run")
    assert code == 0
    args = parsed(out)
    models = ("transformer", "linear", "fnet", "performer")
    wanted = Counter((m, f"Encoder.num_layers={n}") for m in models for n in (1, 2, 3, 4))
    assert Counter((a.model, *a.set) for a in args) == wanted
    assert {(a.task, a.preset, a.test) for a in args} == {("image", "paper", False)}
    assert not Path("runs").exists()


def test_sweep_of_the_table_has_its_runs_and_options_replace_values_of_the_file(go):
    options = ["--preset", "cpu", "--models", "fnet,linear", "--seeds", "2", "--dry-run"]
    code, _, out = go("--sweep", ROOT / "gin/sweeps/lra_table.gin", *options)
    assert code == 0
    args = parsed(out)
    wanted = Counter((t, m, k) for t in BUILT_IN for m in ("fnet", "linear") for k in (0, 1))
    assert Counter((a.task, a.model, a.seed) for a in args) == wanted
    assert all(a.test and not a.set for a in args)


def test_lines_of_a_dry_run_parse_as_the_commands_of_the_trials_each_once(go):
    grid = ["--grid", "Encoder.norm=['pre', 'post', 'post']", "--set", "Run.num_steps=4"]
    code, err, out = go(*PARITY, "--seeds", "2", *grid, "--dry-run")
    assert (code, err) == (0, "")
    got = [(a.set, a.seed, a.test, a.gin_dirs) for a in parsed(out)]
    assert got == [
        (["Run.num_steps=4", f"Encoder.norm='{norm}'"], seed, False, [OUTSIDE])
        for norm in ("pre", "post")
        for seed in (0, 1)
    ]


def test_all_tasks_are_those_of_the_arena_and_pretraining_has_its_own_command(go):
    """The other tasks need the user's files, and no preset has all of them."""
    code, err, out = go("--task=all", "--models=fnet", "--preset=small", "--pretrain", "--dry-run")
    assert code == 0, err
    wanted = [["lra-fnet", "pretrain", "--task", task] for task in BUILT_IN]
    assert [shlex.split(line)[:4] for line in out.splitlines()] == wanted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--task and --models, or --sweep"),
        ([*TASK, "--sampler", "best"], "--sampler: invalid choice: 'best'"),
        ([*TASK, "--grid", "Run.batch_size=16"], "--grid expects Name"),
        ([*TASK, "--range", "Run.batch_size=[1,2,3]"], "--range expects"),
        ([*TASK, "--grid", "Encoder.norm=[pre,post]"], "Encoder.norm=[pre,post]"),
        ([*TASK, "--range", 'A.b=[1e-2,1e-4,"log"]'], "the range of A.b: "),
        ([*TASK, "--range", 'A.b=[0,1,"log"]'], "the range of A.b: "),
        ([*TASK, "--range", "A.b=[1,2]"], "--sampler random"),
        ([*TASK, "--sampler", "tpe"], "--sampler tpe needs axes"),
        ([*TASK, "--trials", "3"], "--sampler random or tpe"),
        ([*TASK, "--prune"], "--prune needs axes"),
        ([*TASK, "--prune", "--grid", "job.Run.num_steps=[1, 2]"], "Run.num_steps"),
        ([*TASK, "--seeds", "0"], "--seeds: expects a whole number of at least 1, got '0'"),
        ([*TASK, "--name", "a/b"], "--name"),
        (["--name", "none"], "no sweep 'none' in runs/sweeps"),
        (["--name", "none", "--seeds", "2"], "--name none alone"),
        (["--sweep", "none.gin"], "--sweep expects a gin file, or one of dropout_pooling, image"),
        ([*PARITY[:-1], "fnett"], "unknown model 'fnett'"),
        ([*PARITY, "--grid", "Encoder.num_layer=[1,2]"], "Encoder.num_layer"),
        ([*PARITY, "--grid", "Encoder.num_heads=[2, 3]"], "num_heads"),
        (
            ["--task=text", "--preset=lra-code", "--models=fnet", "--grid=Encoder.num_layers=[1]"],
            "a sweep with axes selects on validation, but text has only test rows there",
        ),
    ],
)
def test_mistake_fails_with_one_line_and_begins_nothing(go, options, words):
    assert words in go(*options).mistake
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Sweep.task = ['listops']", "task"),
        ("Sweep.tasks = ['listops']\nSweep.axes = {'A.b': 3}", "the axis A.b expects a list"),
        ("Sweep.tasks = ['listops']\nRun.batch_size = 3", "does not read Run.batch_size"),
        ("Sweep.preset = 3", "Sweep.preset must be a text, got 3"),
        ("Sweep.prune = 'no'", "Sweep.prune must be True or False, got 'no'"),
        ("Sweep.seeds = 0", "Sweep.seeds must be at least 1, got 0"),
    ],
)
def test_mistake_in_a_sweep_file_fails_with_one_line(go, text, words):
    Path("my.gin").write_text(text)
    assert words in go("--sweep", "my.gin").mistake


def test_command_line_adds_to_the_file_and_replaces_axes_of_the_same_name(tmp_path):
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


def test_folder_name_depends_on_everything_but_the_number_of_trials():
    fields = {"sampler": "random", "trials": 3}
    name = plan.folder_name(swept(**fields), None)
    assert name == "t-b-cpu-afb694e1"  # as before there were pretrain and init
    assert name == plan.folder_name(swept(sampler="random", trials=9), None)
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
    names = {plan.folder_name(swept(**(fields | change)), None) for change in changes}
    assert len(names | {name}) == 11


def test_trials_begin_from_the_pretraining_of_their_seed(tmp_path, monkeypatch):
    """The axes are settings of the second stage: the first one has the others alone."""
    asked = []

    def beginning(job, init):
        asked.append(job)
        return dataclasses.replace(job, init=Path(f"before{job.seed}"), overrides=("C.d=5",))

    monkeypatch.setattr(job, "beginning", beginning)
    begun = planned(tmp_path, init="auto", overrides=["C.d=5", "Denoising.rate=0.5"])
    made = begun.job(0, {"A.b": "2"}, 3)
    assert (made.init, made.overrides, made.test) == (Path("before3"), ("C.d=5", "A.b=2"), False)
    assert [(one.seed, one.overrides) for one in asked] == [(3, begun.sweep.overrides)]
    with pytest.raises(UserError, match="--init is for trials of lra-fnet train"):
        swept(init="auto", pretrain=True)


def test_a_sweep_that_begins_from_a_run_is_resumed_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = planned(tmp_path / "runs", init="before")
    begun.folder.mkdir(parents=True)
    begun.begin()
    monkeypatch.chdir("/")
    again = plan.load(tmp_path / "runs", "s")
    assert (again.sweep, again.shared.init) == (begun.sweep, None)
    assert again.job(0, {"A.b": "2"}, 0).init == tmp_path / "before"


def test_loaded_sweep_equals_the_begun_one(tmp_path):
    """JSON alone would change tuples."""
    values = {"A.b": [(0.9, 0.98), None, "x", True, 1e-3]}
    begun = swept(axes=values, overrides=["C.d=1"], seeds=2, prune=True)
    shared = job.Job("", "", "", runs=tmp_path, imports=("m",), gin_dirs=(Path("g"),))
    first = plan.Plan(begun, "mine", shared)
    first.folder.mkdir(parents=True)
    first.begin()
    shared = dataclasses.replace(shared, data=shared.data.absolute())
    assert plan.load(tmp_path, "mine") == dataclasses.replace(first, shared=shared)
    other = plan.Plan(dataclasses.replace(begun, seeds=3, overrides=()), "mine", shared)
    with pytest.raises(UserError, match=r"mine is another sweep \(seeds, overrides differ\)"):
        other.begin()


def test_random_points_depend_only_on_their_number_and_lie_in_the_ranges():
    values = {
        "A.rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "A.layers": {"low": 1, "high": 4},
        "A.norm": ["pre", "post"],
    }
    few, many = (
        axes.random(swept(axes=values, sampler="random", trials=n).axes, n) for n in (3, 40)
    )
    assert many[:3] == few
    rates = [point["A.rate"] for point in many]
    assert 1e-4 <= min(rates) < 3e-4  # uniform in the logarithm: a quarter lies below
    assert 3e-3 < max(rates) <= 1e-2
    assert 10 < sum(rate < 1e-3 for rate in rates) < 30
    assert {point["A.layers"] for point in many} == {1, 2, 3, 4}
    assert {point["A.norm"] for point in many} == {"'pre'", "'post'"}


@pytest.mark.parametrize(("cores", "workers"), [(1, 3), (2, 1), (3, 2), (8, 3), (96, 100)])
def test_cores_are_shared_evenly_and_every_worker_gets_one(cores, workers):
    parts = scheduler.share(list(range(cores)), workers)
    assert len(parts) == workers
    dealt = Counter(core for part in parts for core in part)
    assert dealt.keys() == set(range(cores))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert max(dealt.values()) - min(dealt.values()) <= 1
