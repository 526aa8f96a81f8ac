"""Speed and memory: the arithmetic of the tables, the figures, the child processes."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import subprocess
import threading
import time
from collections import defaultdict

import pytest
from paths import OUTSIDE, ROOT

from lra_fnet import cli
from lra_fnet.benchmark import cells, explain, files, timing
from lra_fnet.errors import UserError
from lra_fnet.machine import typed_json
from lra_fnet.models.kernels import fastest
from lra_fnet.report import benchmarks as tables
from lra_fnet.report import figures

CELL = cells.Cell("train", "ours", "text", "fnet", "cpu", 16, label="fnet", seconds=0.01)
SMALL = ("Encoder.dim=8", "Encoder.num_layers=1", "Encoder.mlp_dim=8", "Run.batch_size=2")
DEVICE = {"name": "chip", "platform": "cpu", "count": 1, "cores": 2}
FACTS = {"batch_size": 4, "num_layers": 2, "dim": 64, "dtype": "float32", "threads": 2}
FACTS |= {"commit": "abc", "dirty": False, "device": DEVICE, "versions": {"jax": "1.2"}}
FACTS |= {"parameters": 9, "peak_bytes": 1e6}


def a_result(label, length, seconds, megabytes=1.0, what="train", side="ours", **fields):
    """The result of a cell; each round took one of `seconds` a call."""
    limits = {"floor_seconds": 0.5, "bytes": 8, "copy_bytes_per_second": 10, "flops": 1}
    value = {
        **dataclasses.asdict(CELL),
        **FACTS,
        **{"label": label, "model": label.partition(" (")[0], "length": length, "what": what},
        **{"side": side, "state": "ok"},
        "seconds": seconds,
        "forward_seconds": [s / 4 for s in seconds],
        "peak_bytes": megabytes * 1e6,
        "planned_bytes": megabytes * 1e6,
        "flops": 1e9 * length,
        "roofline": [limits] * len(seconds),
        **fields,
    }
    return typed_json.build(files.Result, json.loads(json.dumps(value)))


def rows_of(results, title):
    """The rows of the table whose title begins so, header first, as lists of cells."""
    text = tables.render(results).split(f"**{title}")[1].split("\n\n")[1]
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()]
    return [lines[0], *lines[2:]]


def test_exponent_is_the_slope_of_the_logarithms():
    assert tables.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert tables.exponent([512, 1024], [7, 7]) == pytest.approx(0)
    assert tables.exponent([512], [7]) is None


def test_speedup_is_the_median_of_the_ratios_of_the_rounds():
    results = [
        a_result("transformer", 512, [2.0, 8.0, 3.0]),
        a_result("fnet", 512, [1.0, 1.0, 2.0]),  # 2, 8, 1.5 in the rounds; 3 of the medians
    ]
    head, transformer, fnet = rows_of(results, "Training speed (steps/s)")
    assert head == ["model", "512"]
    assert transformer[1] == "0.333 ±100%"
    assert fnet[1] == "1 ±50% (2.0x)"


def test_speedup_is_against_the_faster_way_to_compute_the_transformer():
    naive = {"overrides": ("Run.batch_size=4", 'Attention.implementation="naive"')}
    wide = {"overrides": ("Run.batch_size=4", "Encoder.dim=8")}
    results = [
        a_result("transformer", 512, [2.0]),
        a_result('transformer ("naive")', 512, [1.0], **naive),
        a_result("transformer (8)", 512, [0.1], **wide),  # another model
        a_result("fnet", 512, [0.5]),
        a_result("transformer", 1024, [4.0]),
        a_result('transformer ("naive")', 1024, [0.0], state="OOM", **naive),
        a_result("fnet", 1024, [1.0]),
    ]
    rows = rows_of(results, "Training speed (steps/s)")
    assert [row[1] for row in rows[1:]] == [*("0.5 (0.5x)", "1", "10 (10x)", "2 (2.0x)")]
    assert rows[-1][2] == "1 (4.0x)"
    words = '`transformer ("naive")` at 512; `transformer` at 1,024.'
    assert (
        f"- Speed-ups in training are against the faster Transformer measured: {words}"
        in tables.render(results)
    )
    inference = [dataclasses.replace(result, what="infer") for result in results]
    assert rows_of(inference, "GFLOPs of a forward pass")[1][1] == "128"  # the plain row's


def test_missing_and_out_of_memory_cells_show_no_number():
    results = [
        a_result("transformer", 512, [1.0]),
        a_result("transformer", 1024, [], state="OOM"),
        a_result("fnet", 1024, [0.25], alone=True),
        a_result("linear", 512, [0.05]),
        a_result("transformer", 2048, [1.0], alone=True),
        a_result("fnet", 2048, [0.25]),
    ]
    speed = rows_of(results, "Training speed (steps/s)")
    assert speed[0] == ["model", "512", "1,024", "2,048"]
    assert speed[1:] == [
        ["transformer", "1", "OOM", "1 †"],
        ["fnet", "-", "4 †", "4 (4.0x) †"],
        ["linear", "20 (20x)", "-", "-"],
    ]
    memory = rows_of(results, "Peak memory of training (MB)")
    assert memory[1:] == [
        ["transformer", "1", "OOM", "1"],
        ["fnet", "-", "1", "1"],
        ["linear", "1", "-", "-"],
    ]


def test_ratio_of_a_cell_that_took_no_turns_is_that_of_the_medians():
    times = {"transformer": [1.0, 4.0, 9.0], "fnet": [1.0, 1.0, 9.0]}
    for alone, ratio in ((False, 1.0), (True, 4.0)):
        base, cell = (a_result(m, 512, t, alone=alone) for m, t in times.items())
        assert tables.speed_up(cell, base) == ratio
    more = a_result("fnet", 512, [1.0, 4.0], alone=True)  # of another number of rounds
    assert tables.speed_up(more, a_result("transformer", 512, [5.0, 5.0, 5.0])) == 2.0


def test_memory_is_in_gigabytes_on_an_accelerator():
    results = [a_result("fnet", 512, [1.0], megabytes=1500, device=DEVICE | {"platform": "gpu"})]
    assert rows_of(results, "Peak memory of training (GB)")[1] == ["fnet", "1.5"]
    results += [dataclasses.replace(results[0], label="linear")]
    results += [dataclasses.replace(result, length=1024) for result in results]
    axes = figures.measured(results)["train_memory"][1].axes[0]
    assert axes.get_ylabel() == "Peak memory of training (GB)"
    assert list(axes.lines[0].get_ydata()) == [1.5, 1.5]


@pytest.mark.parametrize(("other", "alike"), [("fnet", False), ("linear", True)])
def test_only_way_to_compute_a_main_model_has_its_colour(other, alike):
    curves = {label: [(512, 1.0), (1024, 2.0)] for label in (other, "fnet (rfft)")}
    colour = figures.growth(curves, "ms").axes[0].lines[1].get_color()
    assert (colour == figures._style("fnet")["color"]) == alike


def test_operations_are_per_example_and_relative_to_the_transformer():
    results = [
        a_result("transformer", 512, [1.0], what="infer"),
        a_result("fnet", 512, [1.0], what="infer", flops=128e9),
        a_result("linear", 512, [1.0], what="infer", flops=128e9, batch_size=2),
        a_result("performer", 512, [1.0], what="infer", flops=None),
    ]
    rows = rows_of(results, "GFLOPs of a forward pass of one example")
    assert [row[1] for row in rows[1:]] == ["128", "32 (25%)", "64 (50%)", "-"]
    unknown = dataclasses.replace(results[0], flops=None)
    rows = rows_of([unknown, *results[1:]], "GFLOPs of a forward pass of one")
    assert [row[1] for row in rows[1:]] == ["-", "32", "64", "-"]


def test_mixing_table_has_both_sizes_and_both_passes():
    results = [
        a_result(label, 512, [seconds], what="mixing", size=size, side=side)
        for size in ("base", "large")
        for label, side, seconds in (
            ("transformer", "ours", 0.8),
            ("fnet", "ours", 0.1),
            ("fnet", "definition", 0.4),
            ("fnet", "torch", 0.2),
        )
    ]
    rows = rows_of(results, "Mixing sublayer alone")
    numbers = {row[0]: row[3:] for row in rows[1:]}
    assert len(numbers) == 8
    assert numbers["transformer (Base)"] == ["800", "200"]
    assert numbers["fnet (Large)"] == ["100 (8.0x)", "25 (8.0x)"]
    assert numbers["fnet, by its definition (Base)"] == ["400 (2.0x)", "100 (2.0x)"]
    assert numbers["fnet, torch (Base)"] == ["200 (4.0x)", "50 (4.0x)"]


def test_each_pass_of_a_sublayer_is_compared_with_the_transformer_that_is_faster_in_it():
    naive = {"label": "transformer (naive)", "overrides": ('Attention.implementation="naive"',)}
    results = [
        dataclasses.replace(
            a_result(model, 512, [both], what="mixing", size="base"),
            **{"forward_seconds": [forward], **changes},
        )
        for model, both, forward, changes in (
            ("transformer", 9.0, 6.0, {}),
            ("transformer", 10.0, 3.0, naive),
            ("fnet", 1.0, 1.0, {}),
        )
    ]
    numbers = {row[0]: row[3:] for row in rows_of(results, "Mixing sublayer alone")[1:]}
    assert numbers["fnet (Base)"] == ["1,000 (9.0x)", "1,000 (3.0x)"]
    assert numbers["transformer (naive) (Base)"] == ["10,000 (0.9x)", "3,000"]


def test_table_compares_with_the_faster_peer_and_shows_limits_as_fractions_of_our_time():
    results = [
        a_result("fnet", 512, [1.0, 2.0, 1.0], megabytes=30),  # floor 0.5 s, copy 0.8 s
        a_result("fnet", 512, [4.0, 4.0, 4.0], megabytes=20, side="eager"),
        a_result("fnet", 512, [3.0, 3.0, 2.0], megabytes=50, side="compiled"),
        a_result("fnet", 1024, [1.0]),
        a_result("fnet", 1024, [4.0], side="eager"),
        a_result("fnet", 1024, [0.0], side="compiled", state="FAIL"),
    ]
    _, first, second = rows_of(
        results, "Training compared with the faster of eager and compiled PyTorch"
    )
    # The ratios of the rounds are 3, 1.5 and 2; the limits are 0.5 s and 0.8 s of 1, 2 and 1 s.
    assert first[5:] == ["2.0x", "30 / 50 = 0.60", "500", "50%", "80%"]
    assert second[4:6] == ["FAIL", "4.0x"]
    assert rows_of(results, "Share of the roofline's speed: training")[1] == [
        *("fnet", "80% (floor: 50%)", "80% (floor: 50%)")
    ]


def test_growth_is_fitted_to_all_lengths_and_to_the_two_longest_without_cls():
    results = [
        a_result("fnet", length, [length**2 / 1e6], megabytes=length) for length in (512, 1024)
    ]
    results.append(a_result("fnet", 2048, [1024**2 / 1e6 * 8], megabytes=4096))
    results.append(a_result("fnet", 2049, [99.0], cls=True))
    rows = rows_of(results, "Growth exponents over all lengths / between the two longest")
    assert rows[0] == ["model", "training time", "planned training memory"]
    assert rows[1] == ["fnet", "2.50 / 3.00", "1.50 / 2.00"]


def test_exponent_of_restless_times_is_marked():
    """±31 % at the shortest of three lengths: the slope over all of them is not sure."""
    rounds = {512: [0.69, 1.0, 1.31], 1024: [1.71, 2.0, 2.29], 2048: [4.0, 4.0, 4.0]}
    results = [a_result("fnet", length, seconds) for length, seconds in rounds.items()]
    rows = rows_of(results, "Growth exponents over all lengths / between the two longest")
    assert rows[1][1] == "1.00? / 1.00"
    assert "- ? Some of these times differ by more than ±30% between rounds." in tables.render(
        results
    )


def test_caption_names_device_sizes_rounds_and_commit():
    text = tables.render([a_result("fnet", 512, [1.0, 1.0])])
    assert "faster Transformer" not in text
    for words in ("1 x chip (cpu, 2 cores)", "batch 4", "float32", "2 rounds", "commit abc."):
        assert words in text
    text = tables.render([a_result("fnet", 512, [1.0] * 5), a_result("fnet", 1024, [1.0] * 3)])
    assert "; 3 to 5 rounds; " in text


def test_figures_are_drawn_for_each_quantity_and_are_deterministic(tmp_path):
    results = [
        a_result(label, length, [length**power], what=what)
        for label, power in (("fnet", 1), ("transformer", 2))
        for length in (512, 1024)
        for what in ("train", "infer")
    ]
    paths = figures.draw([*results, a_result("linear", 512, [1.0])], tmp_path)
    names = {"train_time", "train_memory", "infer_time"}
    assert {p.name for p in paths} == {f"{n}.{kind}" for n in names for kind in ("svg", "png")}
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in figures.draw(results, tmp_path)] == before


def test_legend_shows_the_fitted_exponents(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    shown = []

    def note(figure, *_, **__):
        shown.append([line.get_label() for line in figure.axes[0].lines])

    monkeypatch.setattr(Figure, "savefig", note)
    powers = {"fnet": 1.5, "linear": 2}
    results = [a_result(m, n, [n**p]) for m, p in powers.items() for n in (512, 1024, 2048)]
    figures.draw(results[:3], tmp_path)
    assert shown == []  # a figure with one line is none
    figures.draw(results, tmp_path)
    assert ["fnet: L^1.50", "linear: L^2.00"] in shown


def plan(models, whats=("train",), lengths=(16,), **options):
    return cells.plan(CELL, models, whats, lengths, **options)


def test_cell_sent_as_json_builds_the_same_experiment():
    cell = dataclasses.replace(CELL, overrides=SMALL, gin_dirs=(str(OUTSIDE),), cls=True)
    fields = json.loads(json.dumps(dataclasses.asdict(cell)))
    assert cells.Cell(**fields).load().config == cell.load().config


def test_mixer_sees_the_length_of_the_cell():
    assert CELL.load().model.encoder.mixer_length == 16
    plain, with_cls = (c.load() for c in plan(["fnet"], cls=True))
    assert (plain.model.encoder.mixer_length, plain.model.encoder.pooling) == (16, "mean")
    assert (with_cls.model.encoder.mixer_length, with_cls.model.encoder.pooling) == (17, "cls")
    paper = dataclasses.replace(CELL, preset="paper").load()  # which puts CLS in front
    assert paper.model.encoder.mixer_length == 16


def test_row_may_add_a_binding_to_its_model():
    naive = "transformer:Attention.implementation=naive"
    first, second = plan(["transformer", naive], ["infer"])
    assert (first.label, second.label) == ("transformer", "transformer (naive)")
    mixers = [c.load().model.encoder.mixers[0] for c in (first, second)]
    assert [m.implementation for m in mixers] == ["blockwise", "naive"]


def test_rows_whose_labels_would_be_equal_show_the_whole_binding():
    words = ["fnet", "fnet:Encoder.num_layers=1", "fnet:Encoder.num_heads=1", "fnet", "fnet:"]
    planned = plan([*words, "fnet:Encoder.num_layers=2", "fnet:Encoder.num_layers=1"])
    assert [cell.label for cell in planned] == [
        "fnet",
        "fnet (Encoder.num_layers=1)",
        "fnet (Encoder.num_heads=1)",
        "fnet (2)",
    ]


def test_tokens_that_a_length_does_not_divide_are_a_mistake():
    shared = dataclasses.replace(CELL, tokens=1000)
    with pytest.raises(UserError, match="got 1000 and the length 512"):
        cells.plan(shared, ["fnet"], ["train"], [250, 512])


@pytest.mark.parametrize(
    "binding",
    ["Run.batch_size=2", "experiment.Run.batch_size = 2", "MAX_LEN=8"],
)
def test_a_row_may_not_have_its_own_batch_or_length(binding):
    words = f"--models fnet:{binding}: expected a binding of the model, got one of the batch or "
    with pytest.raises(UserError, match=re.escape(words)) as raised:
        plan(["transformer", f"fnet:{binding}"])
    assert "--set, --tokens or --lengths" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"overrides": ["MAX_LEN=8"]}, "--set changes it from 16 to 8 tokens: leave MAX_LEN and"),
        ({"overrides": ["Encoder.pooling=cls"]}, "changes it from 16 to 17 tokens"),
        (
            {"tokens": 64, "overrides": ["Run.batch_size=2"]},
            "--tokens 64 means 4 rows of 16 tokens, and --set gives 2: leave one of them out",
        ),
    ],
)
def test_bindings_may_not_change_the_length_or_the_tokens_of_a_cell(changes, words):
    with pytest.raises(UserError, match=words):
        dataclasses.replace(CELL, **changes).load()


def test_a_length_is_measured_once():
    assert [c.length for c in plan(["fnet"], ["train"], [16, 32, 16])] == [16, 32]
    places = [(c.length, c.cls) for c in plan(["fnet"], ["train"], [16, 18], cls=True)]
    assert places == [(16, False), (17, True), (18, False), (19, True)]
    with pytest.raises(UserError, match=r"--cls measures 16 with CLS in front as 17: leave 16"):
        plan(["fnet"], ["train"], [16, 17], cls=True)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--lengths 16", "--what pipeline measures and prints .* so --lengths has no effect"),
        ("--name a", "so --name has no effect"),
        ("--tokens 64", "so --tokens has no effect"),
        ("--what mixing --cls", "--cls adds a token to each of --lengths: leave it out, or give"),
        ("--what mixing --tokens 700", "expects a multiple of every length, .* 700 .* length 512"),
        ("--what train --lengths 99999999999", "below 2.*31, got '99999999999'"),
    ],
)
def test_options_without_effect_or_out_of_range_are_refused(words, line, command):
    names = ["--task=text", "--models=fnet", "--preset=cpu", "--what=pipeline"]
    code, err, _ = command("benchmark", *names, *words.split())
    assert code == 2
    assert re.search(line, err)


def test_a_folder_that_cannot_be_written_is_noticed_before_anything_is_measured(
    command, tmp_path, monkeypatch
):
    monkeypatch.setattr(cells, "run", lambda *_: pytest.fail("measured"))
    (tmp_path / "file").touch()
    names = ["--task=text", "--models=fnet", "--preset=cpu", "--lengths=16"]
    code, err, _ = command("benchmark", *names, "--runs", tmp_path / "file")
    assert code == 2
    assert "cannot be written (Not a directory): choose another folder with --runs" in err


def test_a_benchmark_that_fails_leaves_no_empty_folder(command, tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("no such thing")

    monkeypatch.setattr(cells, "run", fail)
    names = ["--task=text", "--models=fnet", "--preset=cpu", "--lengths=16", "--name=b"]
    code, err, _ = command("benchmark", *names, "--runs", tmp_path)
    assert (code, err) == (2, "lra-fnet: no such thing\n")
    assert [*(tmp_path / "benchmark").iterdir()] == []


def test_peers_are_planned_for_the_models_that_pytorch_has():
    planned = plan(["fnet", "linear", "transformer"], ["train", "mixing"], peer=True)
    sides = {
        (cell.what, cell.model): [
            c.side for c in planned if (c.what, c.model) == (cell.what, cell.model)
        ]
        for cell in planned
    }
    assert sides["train", "fnet"] == ["ours", "eager", "compiled"]
    assert sides["train", "linear"] == sides["mixing", "transformer"][:1] == ["ours"]
    assert sides["mixing", "fnet"] == ["ours", "definition", "torch"] * 2  # Base and Large
    assert {c.length for c in plan(["fnet"], ["mixing"], [])} == {512}


def test_size_sets_the_papers_width_and_heads_and_the_batch_of_an_accelerator():
    large = dataclasses.replace(
        CELL, what="mixing", size="large", overrides=("Encoder.num_layers=1",)
    )
    on_cpu, on_gpu = large.load(), large.load(accelerator=True)
    encoder = on_cpu.model.encoder
    assert (encoder.dim, encoder.qkv_dim, encoder.num_heads) == (1024, 1024, 16)
    assert (on_cpu.run.batch_size, on_gpu.run.batch_size) == (32, 64)
    given = dataclasses.replace(large, tokens=3 * CELL.length).load(accelerator=True)
    assert given.run.batch_size == 3


def fake_children(monkeypatch, script):
    """Replaces child processes by `script(cell, children alive)`; returns the list of requests."""
    requests, alive = [], []

    def start(self, cell):
        self.cell, self.facts = cell, {"state": "ok", **FACTS}
        self.rounds = defaultdict(list)
        alive.append(cell)

    def ask(self, request):
        is_cell = "what" in request
        requests.append((self.cell.model, "ready" if is_cell else "round"))
        reply = script(self.cell, len(alive))
        self.facts["state"] = reply.get("state", self.facts["state"])
        return {} if is_cell else reply

    monkeypatch.setattr(cells.Worker, "__init__", start)
    monkeypatch.setattr(cells.Worker, "ask", ask)
    monkeypatch.setattr(cells.Worker, "close", lambda self: alive.remove(self.cell))
    monkeypatch.setattr(cells, "PAUSE", 0)
    return requests


def three():
    """Three cells, of a side whose limits are not measured."""
    cell = dataclasses.replace(CELL, side="eager")
    return [dataclasses.replace(cell, model=m, label=m) for m in ("a", "b", "c")]


def test_cells_of_a_group_take_turns_and_each_round_starts_with_another(monkeypatch):
    requests = fake_children(monkeypatch, lambda *_: {"calls": 2, "seconds": 3.0})
    results = cells._measure(three(), rounds=3)
    assert sorted(model for model, kind in requests if kind == "ready") == ["a", "b", "c"]
    assert "".join(model for model, kind in requests if kind == "round") == "abcbcacab"
    assert [result.seconds for result in results] == [(1.5,) * 3] * 3


@pytest.mark.parametrize(("cores", "at_once"), [(2, 1), (16, 3)])
def test_as_many_cells_compile_at_once_as_there_are_cores_for(monkeypatch, cores, at_once):
    fake_children(monkeypatch, lambda *_: {"calls": 1, "seconds": 1.0})
    begun, most, together = [], [], threading.Barrier(at_once, timeout=30)

    def ready(self):
        begun.append(self)
        together.wait()  # fails if fewer compile at once
        time.sleep(0.05)
        most.append(len(begun))
        begun.remove(self)

    monkeypatch.setattr(cells.Worker, "ready", ready)
    monkeypatch.setattr(cells.os, "sched_getaffinity", lambda _: set(range(cores)))
    cells._measure(three(), rounds=1)
    assert max(most) == at_once


def test_restless_group_is_measured_again_and_the_calmest_counts(monkeypatch):
    rounds = {"a": [1, 2, 1, *[1, 1.7, 1], *[1, 3, 1]], "b": [5] * 3 + [6] * 3 + [7] * 3}
    seconds = {model: iter(numbers) for model, numbers in rounds.items()}

    def script(cell, alive):
        return {"calls": 1, "seconds": next(seconds[cell.model])}

    replies = fake_children(monkeypatch, lambda *_: {})
    ask = cells.Worker.ask

    def asked(self, request):
        return ask(self, request) or ({} if "what" in request else script(self.cell, 0))

    monkeypatch.setattr(cells.Worker, "ask", asked)
    a, b = cells._measure(three()[:2], rounds=3)
    assert (a.seconds, b.seconds) == ((1, 1.7, 1), (6, 6, 6))
    assert len(replies) == 2 + 3 * 6
    calm = iter([1, 1.5, 1])  # ±25 %
    monkeypatch.setitem(seconds, "a", calm)
    monkeypatch.setitem(seconds, "b", iter([5] * 3))
    assert cells._measure(three()[:2], rounds=3)[0].seconds == (1, 1.5, 1)


def test_cell_that_does_not_fit_next_to_others_is_tried_alone(monkeypatch):
    def script(cell, alive):
        if cell.model == "c" or (cell.model == "b" and alive > 1):
            return {"state": "OOM"}
        return {"calls": 1, "seconds": 1.0}

    fake_children(monkeypatch, script)
    a, b, c = cells._measure(three(), rounds=2)
    assert (a.state, a.alone) == ("ok", False)
    assert (b.state, b.alone, len(b.seconds)) == ("ok", True, 2)
    assert (c.state, c.seconds) == ("OOM", ())
    names = ("alone", "seconds", "peak_bytes")
    assert [[n for n in names if n in r.to_json()] for r in (a, b, c)] == [
        ["seconds", "peak_bytes"],
        ["alone", "seconds", "peak_bytes"],
        ["alone", "peak_bytes"],
    ]


def test_limits_that_do_not_fit_leave_the_time_of_a_cell(monkeypatch):
    fake_children(monkeypatch, lambda *_: {"calls": 4, "seconds": 2.0})
    ask = cells.Worker.ask

    def asked(self, request):
        return {"state": "OOM"} if "roofline" in request else ask(self, request)

    monkeypatch.setattr(cells.Worker, "ask", asked)
    (measured,) = cells._measure([CELL], rounds=2)
    assert (measured.state, measured.seconds) == ("ok", (0.5, 0.5))
    assert measured.to_json()["roofline"] == [{}, {}]
    result = a_result("fnet", 16, [0.5, 0.5], roofline=[{}, {}])
    other = a_result("linear", 16, [0.5, 0.5])
    assert rows_of([result, other], "Share of the roofline")[1] == ["fnet", "-"]
    assert "Share of the roofline" not in tables.render([result])
    eager = a_result("fnet", 16, [1.0, 1.0], side="eager")
    assert rows_of([result, eager], "Training compared")[1][-3:] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("script", "mistake"),
    [
        ("kill -9 $$", None),  # as the kernel does, for memory
        ("exit 3", "fnet at 16 tokens .ours. cannot be measured"),
        ("""echo '{"mistake": "so"}'""", "so"),
    ],
)
def test_end_of_a_child_is_oom_or_a_mistake(script, mistake, monkeypatch):
    popen = subprocess.Popen

    def shell(command, **options):
        return popen(["sh", "-c", f"read line; {script}"], **options)

    monkeypatch.setattr(cells.subprocess, "Popen", shell)
    with contextlib.closing(cells.Worker(CELL)) as process:
        if mistake is None:
            process.ready()
            assert process.facts["state"] == "OOM"
            assert process.result({}).to_json()["state"] == "OOM"
        else:
            with pytest.raises(UserError, match=mistake):
                process.ready()


def test_short_calls_are_repeated_and_the_fastest_counts(monkeypatch):
    clock, durations = [0.0], iter([5.0, 0.004, *[0.032] * 2, 0.016, 0.048])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    repeats = []

    def call(times):
        repeats.append(times)
        clock[0] += next(durations)

    assert timing.fastest(call, 0.04) == pytest.approx(0.016 / 16)
    assert repeats == [1, 1, 16, 16, 16, 16]


@pytest.mark.slow
def test_command_measures_pretraining(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(cells, "ATTEMPTS", 1)
    arguments = ["benchmark", "--task", "corpus", "--models", "fnet", "--preset", "cpu-pretrain"]
    sets = [word for size in (*SMALL, "DATASET=v300_16") for word in ("--set", size)]
    arguments += [*sets, "--runs", str(tmp_path), "--name", "mine"]
    assert cli.main([*arguments, "--lengths", "16"]) == 2
    assert "corpus is for pre-training, and --what is train,infer: give" in capfd.readouterr().err
    more = ["--what", "pretrain", "--lengths", "16", "--rounds", "1", "--seconds", "0.01"]
    assert cli.main([*arguments, *more]) == 0
    (cell,) = json.loads((tmp_path / "benchmark" / "mine" / "benchmark.json").read_text())
    assert (cell["what"], cell["state"], cell["length"]) == ("pretrain", "ok", 16)
    (limits,) = cell["roofline"]
    assert limits["flops"] > 0
    assert "**Pre-training (ms/batch), batches of" in capfd.readouterr().out


def test_command_measures_in_processes_writes_and_prints(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(cells, "ATTEMPTS", 1)  # two short rounds always differ
    arguments = "benchmark --task text --models fnet --preset cpu --lengths 16 --what train"
    sets = [word for size in SMALL for word in ("--set", size)]
    more = ["--rounds", "2", "--seconds", "0.01", "--runs", str(tmp_path), "--name", "mine"]
    assert cli.main([*arguments.split(), *sets, *more]) == 0
    folder = tmp_path / "benchmark" / "mine"
    results = files.read(folder / "benchmark.json")
    (cell,) = json.loads((folder / "benchmark.json").read_text())
    assert (cell["what"], cell["state"], cell["length"]) == ("train", "ok", 16)
    assert len(cell["seconds"]) == len(cell["roofline"]) == 2
    assert cell["peak_bytes"] > 0
    assert (folder / "benchmark.md").read_text() == tables.render(results)
    printed = capfd.readouterr().out
    assert tables.render(results) in printed
    assert printed.endswith(f"wrote {folder}\n")
    assert cli.main([*arguments.split(), *sets, *more]) == 2
    assert "benchmark/mine holds a benchmark already" in capfd.readouterr().err


def test_a_folder_holds_one_benchmark_and_is_named_by_what_differs(tmp_path):
    train = plan(["fnet"])
    first = cells.folder(tmp_path, train)
    assert re.fullmatch(r"text-cpu-train-[0-9a-f]{8}", first.name)
    assert first.is_dir()
    assert cells.folder(tmp_path, train).name == f"{first.name}-2"
    others = [plan(["linear"]), plan(["fnet"], ["infer"]), plan(["fnet"], lengths=(32,))]
    assert len({cells.folder(tmp_path, planned).name for planned in others} | {first.name}) == 4
    with pytest.raises(UserError, match="--name expects letters, digits"):
        cells.folder(tmp_path, train, "../elsewhere")


def test_titles_say_what_is_constant_and_exponents_are_those_of_one_example():
    """Attention in batches of 64 tokens: a batch takes L times as long, an example L^2."""
    lengths = (16, 32, 64)
    results = [
        a_result("transformer", n, [n / 1e3], tokens=64, batch_size=64 // n) for n in lengths
    ]
    text = tables.render(results)
    assert "**Training speed (steps/s), 64 tokens a batch**" in text
    assert "Time is that of one example" in text
    rows = rows_of(results, "Growth exponents over all lengths / between the two longest, 64 tok")
    assert rows[1] == ["transformer", "2.00 / 2.00"]
    results += [dataclasses.replace(r, label="fnet", model="fnet") for r in results]
    titles = [title for title, _ in figures.measured(results).values()]
    assert titles == ["Training, 64 tokens a batch", "Peak memory of training, 64 tokens a batch"]
    labels = [f.axes[0].lines[0].get_label() for _, f in figures.measured(results).values()]
    assert labels == ["transformer: L^2.00", "transformer"]  # the first line of each figure
    fixed = [a_result("fnet", n, [float(n)]) for n in lengths]
    assert "**Training speed (steps/s), batches of 4**" in tables.render(fixed)
    assert "Time is that of one example" not in tables.render(fixed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--models fnet --lengths 1024,x", "--lengths expects whole numbers like"),
        ("--models fnet --lengths 0", "--lengths expects whole numbers like"),
        ("--models fnet,fnot --lengths 16", "unknown model 'fnot'"),
        ("--models fnet --lengths 16 --what train,speed", "--what expects some of train, pretrain"),
        ("--models fnet --what infer", "--what infer needs --lengths"),
        ("--models fnet --what scaling", "--what scaling needs --lengths"),
        ("--models fnet --lengths 16 --rounds 0", "--rounds expects a whole number of at least 1"),
        ("--models fnet --lengths 16 --seconds -1", "--seconds expects a number of at least 0.001"),
        (
            "--models fnet --lengths 16 --seconds inf",
            "--seconds expects a number of at least 0.001",
        ),
        (
            "--models fnet --lengths 16 --seconds nan",
            "--seconds expects a number of at least 0.001",
        ),
        (
            "--models fnet:Run.batch_size=2 --lengths 16",
            "--models fnet:Run.batch_size=2: expected a",
        ),
        ("--models fnet:Attention.block_size=2 --lengths 16", "nothing reads Attention.block_size"),
    ],
)
def test_mistake_fails_with_one_line_before_anything_is_measured(
    arguments, message, capfd, tmp_path, monkeypatch
):
    monkeypatch.setattr(cells, "run", None)
    base = ["benchmark", "--task", "text", "--preset", "cpu", "--runs", str(tmp_path)]
    assert cli.main(base + arguments.split()) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_committed_tables_match_the_committed_measurements():
    for path in ROOT.glob("results/**/benchmark.json"):
        text = path.with_suffix(".md").read_text()
        assert text == tables.render(files.read(path)), path


def test_committed_measurements_would_be_written_as_they_are():
    for path in ROOT.glob("results/**/benchmark.json"):
        for old, result in zip(json.loads(path.read_text()), files.read(path), strict=True):
            new = json.loads(json.dumps(result.to_json()))
            for value in (old, new):
                value.setdefault("devices", 0)  # older files lack it
                (value.get("device") or {}).setdefault("processes", 1)
                if value["side"] in cells.PEERS:  # older ones of these have a floor alone
                    value.pop("roofline", None)
            assert new == old, path


@pytest.mark.parametrize(
    ("tokens", "length", "cls", "batch"),
    [(64, 16, False, 4), (64, 17, True, 4), (70, 16, False, 4), (8, 16, False, 1)],
)
def test_batch_can_hold_the_same_number_of_tokens_at_every_length(tokens, length, cls, batch):
    cell = dataclasses.replace(CELL, tokens=tokens, length=length, cls=cls)
    assert cell.load().run.batch_size == batch


def test_explain_times_what_a_program_takes_at_a_time(monkeypatch, capfd):
    """On a CPU, a step takes slices of a batch: as large as bound, or as inference does."""
    shapes = []
    monkeypatch.setattr(
        explain.fourier, "explain", lambda shape: shapes.append(shape) or fastest.Choice("rfft")
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    explain.main(dataclasses.replace(CELL, overrides=("Run.batch_size=32",)), [1024])
    assert shapes == [(2, 1024, 64)]
    assert "2 x 1024 x 64" in capfd.readouterr().out
    bound = ("Run.batch_size=32", "Run.microbatch=8")
    explain.main(dataclasses.replace(CELL, overrides=bound), [1024])
    assert shapes[1:] == [(8, 1024, 64), (2, 1024, 64)]


def test_explain_shows_the_shape_of_each_length_and_the_reason(capfd):
    explain.main(dataclasses.replace(CELL, tokens=64), [16, 32], cls=True)
    shown = capfd.readouterr().out
    shapes = ("4 x 16 x 64", "4 x 17 x 64", "2 x 32 x 64", "2 x 33 x 64")
    assert all(shape in shown for shape in shapes)
    assert shown.count("small") == 4


def test_line_of_explain_has_all_times_and_the_rule_that_decided():
    times = {"rfft": 2e-3, "four_step": 1.9e-3}
    line = explain.row((4, 2048, 256), fastest.Choice("rfft", times))
    times_shown = ["2.00", "-", "-", "-", "1.90"]
    assert line == ["4 x 2048 x 256", *times_shown, "rfft", "none is 1.2 x as fast"]
    line = explain.row((4, 2048, 256), fastest.Choice("four_step", times))
    assert line[-2:] == ["four_step", "fastest"]


def test_figures_have_the_units_of_their_labels(monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures, "growth", lambda curves, label, **_: drawn.update({label: curves}))
    whats = itertools.product(("fnet", "linear"), (512, 1024), ("train", "infer"))
    figures.measured([a_result(m, n, [n / 1000], 3.0, what=what) for m, n, what in whats])
    units = {"Training (ms a step)": 512, "Inference (ms a batch)": 512}
    units |= {"Peak memory of training (MB)": 3}
    assert {label: curves["fnet"][0] for label, curves in drawn.items()} == {
        label: pytest.approx((512, y)) for label, y in units.items()
    }
