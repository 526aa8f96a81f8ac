"""Cells, the groups that take turns, files, and the command."""

import dataclasses
import json
import os
from collections import defaultdict
from typing import ClassVar

import pytest
from paths import OUTSIDE

from lra_fnet import cli
from lra_fnet.benchmark import case, command, files, turns
from lra_fnet.errors import UserError
from lra_fnet.machine import typed_json

SMALL = ("Encoder.dim=8", "Encoder.num_layers=1", "Encoder.mlp_dim=8", "Run.batch_size=2")
CELL = case.Case("train", "ours", "text", "fnet", "cpu", 16, label="fnet", seconds=0.01)
FACTS = {"parameters": 9, "batch_size": 4, "dim": 8, "num_layers": 1, "dtype": "float32"}
FACTS |= {"threads": 2, "peak_bytes": 1e6}


def plan(models, whats=("train",), lengths=(16,), **options):
    return case.plan(CELL, models, whats, lengths, **options)


# Cells


def test_mixer_sees_the_length_of_the_cell():
    plain, with_cls = (c.load().model.encoder for c in plan(["fnet"], cls=True))
    assert (plain.mixer_length, plain.pooling) == (16, "mean")
    assert (with_cls.mixer_length, with_cls.pooling) == (17, "cls")
    paper = dataclasses.replace(CELL, preset="paper").load()  # which puts CLS in front
    assert paper.model.encoder.mixer_length == 16


def test_row_may_add_a_binding_to_its_model():
    naive = "transformer:Attention.implementation=naive"
    first, second = plan(["transformer", naive], ["infer"])
    assert (first.label, second.label) == ("transformer", f"transformer ({naive[12:]})")
    mixers = [c.load().model.encoder.mixers[0] for c in (first, second)]
    assert [m.implementation for m in mixers] == ["blockwise", "naive"]


def test_a_row_that_is_named_twice_counts_once():
    words = ["fnet", "fnet:Encoder.num_layers=1", "fnet", "fnet:"]
    assert [cell.label for cell in plan(words)] == ["fnet", "fnet (Encoder.num_layers=1)"]


def test_each_number_of_devices_is_a_row():
    planned = plan(["fnet"], devices=[1, 2])
    assert [(c.label, c.devices) for c in planned] == [
        ("fnet, 1 device", 1),
        ("fnet, 2 devices", 2),
    ]


def test_a_length_is_measured_once():
    assert [c.length for c in plan(["fnet"], ["train"], [16, 32, 16])] == [16, 32]
    places = [(c.length, c.cls) for c in plan(["fnet"], ["train"], [16, 17], cls=True)]
    assert places == [(16, False), (17, False), (18, True)]


@pytest.mark.parametrize(
    ("tokens", "length", "cls", "batch"),
    [(64, 16, False, 4), (64, 17, True, 4), (70, 16, False, 4), (8, 16, False, 1)],
)
def test_batch_can_hold_the_same_number_of_tokens_at_every_length(tokens, length, cls, batch):
    cell = dataclasses.replace(CELL, tokens=tokens, length=length, cls=cls)
    assert cell.load().run.batch_size == batch


def test_size_sets_the_papers_width_and_heads_and_the_batch_of_an_accelerator():
    sides = [(c.size, c.side, c.length) for c in plan(["fnet"], ["mixing"], [])]
    assert sides == [(z, s, 512) for z in ("base", "large") for s in ("ours", "definition")]
    one = ("Encoder.num_layers=1",)
    large = dataclasses.replace(CELL, what="mixing", size="large", overrides=one)
    encoder = large.load().model.encoder
    assert (encoder.dim, encoder.qkv_dim, encoder.num_heads) == (1024, 1024, 16)
    assert large.load(accelerator=True).run.batch_size == 64
    given = dataclasses.replace(large, tokens=3 * CELL.length).load(accelerator=True)
    assert given.run.batch_size == 3


def test_user_code_reaches_a_cell():
    cell = dataclasses.replace(CELL, overrides=SMALL, gin_dirs=(str(OUTSIDE),), cls=True)
    assert cell.load().model.encoder.dim == 8


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("--models fnet --lengths 1024,x", "--lengths"),
        ("--models fnet --lengths 0", "--lengths"),
        ("--models fnet,fnot --lengths 16", "fnot"),
        ("--models fnet:Run.batch_size=2 --lengths 16", "Run.batch_size=2"),
        ("--models fnet:MAX_LEN=8 --lengths 16", "MAX_LEN=8"),
        ("--models fnet --lengths 16 --what train,speed", "speed"),
        ("--models fnet --what infer", "--lengths"),
        ("--models fnet --lengths 16 --name ../elsewhere", "--name"),
        ("--models fnet --lengths 250,512 --tokens 1000", "1000 and the length 512"),
        ("--models fnet --lengths 16 --set MAX_LEN=8", "0 x 16, got 0 x "),
        ("--models fnet --lengths 16 --set Encoder.pooling='cls'", "0 x 16, got 0 x 17"),
        ("--models fnet --lengths 16 --tokens 64 --set Run.batch_size=2", "4 x 16, got 2 x 16"),
        ("--models fnet --lengths 16 --runs file", "--runs"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(words, fragment, command, tmp_path):
    (tmp_path / "file").touch()
    names = ["--task=text", "--preset=cpu"]
    assert fragment in command("benchmark", *names, *words.split()).mistake
    assert not (tmp_path / "runs").exists()


# Groups that take turns


class Fake(turns.Child):
    """A child whose answers are `script(cell, messages)`, without a process."""

    alive: ClassVar = []
    order: ClassVar = []

    def __init__(self, cell, script):
        self.cell, self.facts, self.rounds = cell, {"state": "ok"}, defaultdict(list)
        self.script = script
        self.alive.append(cell)

    def ask(self, message):
        self.order.append((self.cell.model, message))
        ready = message is self.cell
        return self.script(self.cell, len(self.alive)) | (FACTS if ready else {})

    def close(self):
        self.alive.remove(self.cell)


@pytest.fixture
def measure(monkeypatch):
    """Measures cells with a script instead of processes."""
    monkeypatch.setattr(turns, "PAUSE", 0)
    monkeypatch.setattr(Fake, "order", [])

    def measured(script, models="abc", rounds=2):
        group = [dataclasses.replace(CELL, model=m, label=m, side="eager") for m in models]
        return turns.run(group, rounds, lambda _: None, lambda cell: Fake(cell, script))

    return measured


def timed(seconds):
    return {"state": "ok", "seconds": seconds}


def test_cells_of_a_group_take_turns_and_each_round_starts_with_another(measure):
    results = measure(lambda *_: timed(1.5), rounds=3)
    turns = "".join(model for model, message in Fake.order if isinstance(message, float))
    assert turns == "abcbcacab"
    assert [result.seconds for result in results] == [(1.5,) * 3] * 3


def test_restless_group_is_measured_again_and_the_calmest_counts(measure):
    seconds = {
        "a": iter([0, 1, 2, 1, *[1, 1.7, 1], *[1, 3, 1]]),
        "b": iter([0, *[5] * 3, *[6] * 6]),
    }
    a, b = measure(lambda cell, _: timed(next(seconds[cell.model])), "ab", 3)
    assert (a.seconds, b.seconds) == ((1, 1.7, 1), (6, 6, 6))
    calm = {"a": iter([0, 1, 1.5, 1]), "b": iter([0, 5, 5, 5])}  # ±25 %
    assert measure(lambda cell, _: timed(next(calm[cell.model])), "ab", 3)[0].seconds[1] == 1.5


def test_cell_that_does_not_fit_next_to_others_is_tried_alone(measure):
    def script(cell, alive):
        if cell.model == "c" or (cell.model == "b" and alive > 1):
            return {"state": "OOM"}
        return timed(1.0)

    a, b, c = measure(script)
    assert (a.state, a.alone) == ("ok", False)
    assert (b.state, b.alone, len(b.seconds)) == ("ok", True, 2)
    assert (c.state, c.seconds) == ("OOM", ())
    assert [result.to_json().get("alone") for result in (a, b, c)] == [None, True, True]


def kill(cell):
    os.kill(os.getpid(), 9)


def fail(cell):
    raise SystemExit(3)


def refuse(cell):
    raise UserError("no such thing")


def test_end_of_a_child_is_oom_or_a_mistake():
    for make, outcome in ((kill, "OOM"), (fail, "cannot be measured"), (refuse, "no such thing")):
        child = turns.Child(CELL, make)
        if outcome == "OOM":
            child.ready()
            assert child.result({}).state == "OOM"
        else:
            with pytest.raises(UserError, match=outcome):
                child.ready()
        child.close()


# Files and the command


def a_result(**changes):
    value = dataclasses.asdict(CELL) | FACTS | {"state": "ok", "seconds": [1.0, 2.0]} | changes
    return typed_json.build(files.Result, json.loads(json.dumps(value)))


def test_floor_is_read_from_both_forms_of_the_file():
    old = {"floor_seconds": 0.5, "copy_bytes_per_second": 1, "bytes": 2, "flops": 3}
    assert a_result(roofline=[old, old]).floors == (0.5, 0.5)
    assert a_result(roofline=[old, {}]).floors == ()  # one did not fit
    assert a_result(floor_seconds=[0.5, 0.25]).floors == (0.5, 0.25)
    assert a_result().floors == ()


def test_what_is_written_is_read_again(tmp_path):
    results = [a_result(), a_result(state="OOM", seconds=[], peak_bytes=float("inf"))]
    (tmp_path / "b.json").write_text(json.dumps([result.to_json() for result in results]))
    assert files.read(tmp_path / "b.json") == results
    assert files.read(tmp_path / "none.json") == []


@pytest.mark.parametrize(
    "changes",
    [{"seconds": []}, {"seconds": [0.0]}, {"what": "mixing"}, {"dim": 0}, {"peak_bytes": -1.0}],
)
def test_a_number_that_cannot_have_been_measured_is_refused(changes):
    with pytest.raises(ValueError, match="measured"):
        a_result(**changes)


def test_command_measures_in_processes_writes_and_prints(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(turns, "ATTEMPTS", 1)  # two short rounds always differ
    words = "benchmark --task text --models fnet --preset cpu --lengths 16 --what infer --rounds 2"
    sets = [word for size in SMALL for word in ("--set", size)]
    more = ["--seconds", "0.01", "--runs", str(tmp_path)]
    assert cli.main([*words.split(), *sets, *more]) == 0
    folder = tmp_path / "benchmark" / "text-cpu-infer"
    (result,) = files.read(folder / "benchmark.json")
    assert (result.what, result.state, result.length) == ("infer", "ok", 16)
    assert len(result.seconds) == len(result.floors) == 2
    assert result.peak_bytes > 0
    printed = capfd.readouterr().out
    assert printed == f"{(folder / 'benchmark.md').read_text()}wrote {folder}\n"


def test_a_folder_holds_one_benchmark(tmp_path, monkeypatch):
    def measure(name):
        command.main([CELL], 1, tmp_path, name, lambda _: "")

    monkeypatch.setattr(turns, "run", lambda cells, rounds, save: save([]) or [])
    for name in (None, None, "mine"):
        measure(name)
    names = sorted(path.name for path in (tmp_path / "benchmark").iterdir())
    assert names == ["mine", "text-cpu-train", "text-cpu-train-2"]
    with pytest.raises(UserError, match="--name"):
        measure("mine")
