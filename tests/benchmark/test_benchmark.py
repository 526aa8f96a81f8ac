"""Speed and memory: the arithmetic of the tables, the figures, the children and their turns."""

import dataclasses
import json

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT

from lra_fnet import cli
from lra_fnet.benchmark import cells, explain, worker
from lra_fnet.errors import UserError
from lra_fnet.models import fastest
from lra_fnet.report import benchmarks as tables
from lra_fnet.report import figures
from lra_fnet.train import step

CELL = cells.Cell("train", "ours", "text", "fnet", "cpu", 16, label="fnet", seconds=0.01)
SMALL = ("Encoder.dim=8", "Encoder.num_layers=1", "Encoder.mlp_dim=8", "Run.batch_size=2")
DEVICE = {"name": "chip", "platform": "cpu", "count": 1, "cores": 2}


def a_result(label, length, seconds, megabytes=1.0, what="train", side="ours", **fields):
    """A cell measured in rounds of these many seconds a call."""
    limits = {"floor_seconds": 0.5, "bytes": 8, "copy_bytes_per_second": 10, "flops": 1}
    facts = {"batch_size": 4, "num_layers": 2, "dim": 64, "dtype": "float32", "threads": 2}
    facts |= {"commit": "abc", "dirty": False, "device": DEVICE, "versions": {"jax": "1.2"}}
    return {
        **dataclasses.asdict(CELL),
        **facts,
        **{"label": label, "length": length, "what": what, "side": side, "state": "ok"},
        "seconds": seconds,
        "forward_seconds": [s / 4 for s in seconds],
        "peak_bytes": megabytes * 1e6,
        "flops": 1e9 * length,
        "roofline": [limits] * len(seconds),
        **fields,
    }


def rows_of(found, title):
    """The rows of one table, header first, as lists of cells."""
    text = tables.render(found).split(f"**{title}**\n\n")[1].split("\n\n")[0]
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()]
    return [lines[0], *lines[2:]]


def test_the_exponent_is_the_slope_in_the_logarithms():
    assert tables.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert tables.exponent([512, 1024], [7, 7]) == pytest.approx(0)
    assert tables.exponent([512], [7]) is None


def test_a_speed_up_is_the_median_of_the_rounds_ratios():
    found = [
        a_result("transformer", 512, [2.0, 8.0, 3.0]),
        a_result("fnet", 512, [1.0, 1.0, 2.0]),  # 2, 8, 1.5 in the rounds; 3 of the medians
    ]
    head, transformer, fnet = rows_of(found, "Training speed (steps/s)")
    assert head == ["model", "512"]
    assert transformer[1] == "0.333 ±100%"
    assert fnet[1] == "1 ±50% (2.0x)"


def test_what_was_not_measured_or_did_not_fit_is_no_number():
    found = [
        a_result("transformer", 512, [1.0]),
        a_result("transformer", 1024, [1.0]) | {"state": "OOM", "seconds": []},
        a_result("fnet", 1024, [0.25], alone=True),
        a_result("linear", 512, [0.05]),
    ]
    speed = rows_of(found, "Training speed (steps/s)")
    assert speed[0] == ["model", "512", "1,024"]
    assert speed[1:] == [
        ["transformer", "1 ±0%", "OOM"],
        ["fnet", "-", "4 ±0% †"],
        ["linear", "20 ±0% (20x)", "-"],
    ]
    memory = rows_of(found, "Peak memory of training (MB)")
    assert memory[1:] == [["transformer", "1", "OOM"], ["fnet", "-", "1 †"], ["linear", "1", "-"]]


def test_memory_is_in_gigabytes_on_an_accelerator():
    found = [a_result("fnet", 512, [1.0], megabytes=1500, device=DEVICE | {"platform": "gpu"})]
    assert rows_of(found, "Peak memory of training (GB)")[1] == ["fnet", "1.5"]


def test_operations_are_those_of_one_example_beside_the_transformers():
    found = [
        a_result("transformer", 512, [1.0], what="infer"),
        a_result("fnet", 512, [1.0], what="infer", flops=128e9),
    ]
    rows = rows_of(found, "GFLOPs of a forward pass of one example")
    assert [row[1] for row in rows[1:]] == ["128", "32 (25%)"]


def test_the_mixing_sublayer_has_both_sizes_and_both_passes():
    found = [
        a_result(label, 512, [seconds], what="mixing", size=size, side=side)
        for size in ("base", "large")
        for label, side, seconds in (
            ("transformer", "ours", 0.8),
            ("fnet", "ours", 0.1),
            ("fnet", "definition", 0.4),
            ("fnet", "torch", 0.2),
        )
    ]
    rows = rows_of(found, "Mixing sublayer alone")
    numbers = {row[0]: row[3:] for row in rows[1:]}
    assert len(numbers) == 8
    assert numbers["transformer (Base)"] == ["800 ±0%", "200 ±0%"]
    assert numbers["fnet (Large)"] == ["100 ±0% (8.0x)", "25 ±0% (8.0x)"]
    assert numbers["fnet, by its definition (Base)"] == ["400 ±0% (2.0x)", "100 ±0% (2.0x)"]
    assert numbers["fnet, torch (Base)"] == ["200 ±0% (4.0x)", "50 ±0% (4.0x)"]


def test_the_faster_peer_counts_and_the_limits_are_fractions_of_our_time():
    found = [
        a_result("fnet", 512, [1.0, 2.0, 1.0], megabytes=30),  # floor 0.5 s, copy 0.8 s
        a_result("fnet", 512, [4.0, 4.0, 4.0], megabytes=20, side="eager"),
        a_result("fnet", 512, [3.0, 3.0, 2.0], megabytes=50, side="compiled"),
        a_result("fnet", 1024, [1.0]),
        a_result("fnet", 1024, [4.0], side="eager"),
        a_result("fnet", 1024, [0.0], side="compiled", state="FAIL"),
    ]
    _, first, second = rows_of(found, "Training beside PyTorch's faster one")
    # Round by round 3, 1.5 and 2 times; 0.5 s and 0.8 s of 1, 2 and 1 s.
    assert first[5:] == ["2.0x", "30 / 50 = 0.60", "500", "50%", "80%"]
    assert second[4:6] == ["FAIL", "4.0x"]
    assert rows_of(found, "Of the roofline (of the floor): training")[1] == [
        *("fnet", "80% (50%)", "80% (50%)")
    ]


def test_growth_is_fitted_over_all_lengths_and_over_the_two_longest_without_cls():
    found = [
        a_result("fnet", length, [length**2 / 1e6], megabytes=length) for length in (512, 1024)
    ]
    found.append(a_result("fnet", 2048, [1024**2 / 1e6 * 8], megabytes=4096))
    found.append(a_result("fnet", 2049, [99.0], cls=True))
    rows = rows_of(found, "Growth exponents over all lengths / between the two longest")
    assert rows[1] == ["fnet", "2.50 / 3.00", "- / -", "1.50 / 2.00"]


def test_the_caption_names_device_sizes_rounds_and_commit():
    text = tables.render([a_result("fnet", 512, [1.0, 1.0])])
    for words in ("1 x chip (cpu, 2 cores)", "batch 4", "float32", "2 rounds", "commit abc."):
        assert words in text


def test_a_figure_has_a_line_for_each_model_with_its_exponent(tmp_path):
    found = [
        a_result(label, length, [length**power], what=what)
        for label, power in (("fnet", 1), ("transformer", 2))
        for length in (512, 1024)
        for what in ("train", "infer")
    ]
    paths = figures.draw([*found, a_result("linear", 512, [1.0])], tmp_path)
    names = {"train_time", "train_memory", "infer_time"}
    assert {p.name for p in paths} == {f"{n}.{kind}" for n in names for kind in ("svg", "png")}
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in figures.draw(found, tmp_path)] == before


def test_the_fitted_exponents_stand_in_the_legend(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    shown = []

    def note(figure, *_, **__):
        shown.append([line.get_label() for line in figure.axes[0].lines])

    monkeypatch.setattr(Figure, "savefig", note)
    figures.draw([a_result("fnet", n, [n**1.5]) for n in (512, 1024, 2048)], tmp_path)
    assert ["fnet: L^1.50"] in shown


def plan(models, whats=("train",), lengths=(16,), **options):
    return cells.plan(CELL, models, whats, lengths, **options)


def test_a_cell_survives_the_way_to_its_child():
    cell = dataclasses.replace(CELL, overrides=("A.b=1",), gin_dirs=("x",), cls=True, size="base")
    assert cells.Cell.from_json(cell.to_json()) == cell


def test_the_mixers_see_the_cells_length():
    assert CELL.load().model.encoder.mixer_length == 16
    own, with_cls = (c.load() for c in plan(["fnet"], cls=True))
    assert (own.model.encoder.mixer_length, own.model.encoder.pooling) == (16, "mean")
    assert (with_cls.model.encoder.mixer_length, with_cls.model.encoder.pooling) == (17, "cls")
    paper = dataclasses.replace(CELL, preset="paper").load()  # which puts CLS in front
    assert paper.model.encoder.mixer_length == 16


def test_a_row_may_have_one_binding_more():
    naive = "transformer:Attention.implementation=naive"
    first, second = plan(["transformer", naive], ["infer"])
    assert (first.label, second.label) == ("transformer", "transformer (naive)")
    mixers = [c.load().model.encoder.mixers[0] for c in (first, second)]
    assert [m.implementation for m in mixers] == ["blockwise", "naive"]


def test_peers_stand_beside_the_two_models_that_they_have():
    found = plan(["fnet", "linear", "transformer"], ["train", "mixing"], peer=True)
    sides = {
        (cell.what, cell.model): [
            c.side for c in found if (c.what, c.model) == (cell.what, cell.model)
        ]
        for cell in found
    }
    assert sides["train", "fnet"] == ["ours", "eager", "compiled"]
    assert sides["train", "linear"] == sides["mixing", "transformer"][:1] == ["ours"]
    assert sides["mixing", "fnet"] == ["ours", "definition", "torch"] * 2  # Base and Large
    assert {c.length for c in plan(["fnet"], ["mixing"], [])} == {512}


def test_a_size_means_the_papers_width_heads_and_on_an_accelerator_batch():
    large = dataclasses.replace(
        CELL, what="mixing", size="large", overrides=("Encoder.num_layers=1",)
    )
    on_cpu, on_gpu = large.load(), large.load(accelerator=True)
    encoder = on_cpu.model.encoder
    assert (encoder.dim, encoder.qkv_dim, encoder.num_heads) == (1024, 1024, 16)
    assert (on_cpu.run.batch_size, on_gpu.run.batch_size) == (32, 64)


def test_a_loop_counts_as_often_as_it_runs():
    weights = jnp.ones((5, 4, 4))

    def looped(x):
        return jax.lax.scan(lambda x, w: (x @ w, None), x, weights)[0]

    def unrolled(x):
        for w in np.asarray(weights):
            x = x @ w
        return x

    x = jnp.ones((3, 4))
    counts = [worker.operations(jax.make_jaxpr(f)(x)) for f in (looped, unrolled)]
    assert counts[0] == pytest.approx(counts[1], rel=0.05)
    assert counts[1] == 5 * 2 * 3 * 4 * 4


def test_attention_in_blocks_does_the_operations_of_attention_at_once():
    cell = dataclasses.replace(CELL, model="transformer", length=64, overrides=SMALL[:2])
    counts = []
    for block_size in (16, 64):
        more = (*cell.overrides, f"Attention.block_size={block_size}")
        program = worker.infer(dataclasses.replace(cell, overrides=more).load())
        counts.append(worker.operations(program.trace()))
    assert counts[0] == pytest.approx(counts[1], rel=0.02)


def test_mixing_gives_the_gradient_in_input_and_parameters():
    built = dataclasses.replace(CELL, model="linear", what="mixing", overrides=SMALL).load()
    both, forward = worker.mixing(built)
    params, x = 2 * (8 * 8 + 16 * 16), 2 * 16 * 8
    plan_of_both, plan_of_forward = (p.compiled.memory_analysis() for p in (both, forward))
    assert plan_of_forward.output_size_in_bytes == 4 * x
    assert plan_of_both.output_size_in_bytes >= 4 * (2 * x + params / 2)


def test_the_definition_is_measured_with_autodiff_on_the_same_input():
    built = dataclasses.replace(CELL, what="mixing", overrides=SMALL).load()
    x, cotangent, _ = worker._mixing_inputs(built)
    definition, ours = (f(built)[0].trace() for f in (worker.definition, worker.mixing))
    wanted = [np.fft.fft2(np.asarray(a, np.float64)).real for a in (x, cotangent)]
    for program in (definition, ours):
        got = jax.extend.core.jaxpr_as_fun(program)(x, cotangent)  # value, gradient
        for one, want in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, want, atol=1e-4)
    assert "custom_vjp" not in str(definition)


@pytest.mark.parametrize("what", cells.WHATS)
def test_a_child_tells_facts_and_rounds(what):
    request = dataclasses.replace(CELL, what=what, overrides=SMALL)
    lines = [request.to_json(), '{"seconds": 0.02}', '{"seconds": 0.0}', '{"roofline": 0.001}']
    replies = []
    worker.serve(iter(lines), replies.append)
    facts, rounds, shortest, limits = replies
    assert facts["state"] == "ok"
    assert (facts["batch_size"], facts["dim"], facts["num_layers"]) == (2, 8, 1)
    assert facts["planned_bytes"] > 0
    assert facts["flops"] > 0
    assert rounds["seconds"] >= 0.02
    assert rounds["calls"] >= 1
    assert shortest["calls"] == 1
    assert ("forward_calls" in rounds) == (what == "mixing")
    assert limits["floor_seconds"] >= 0
    assert limits["bytes"] > 0


def test_what_does_not_fit_the_machine_is_oom(monkeypatch):
    replies = []
    for what, module in (("train", step), ("infer", worker)):
        monkeypatch.setattr(module, "free_memory", lambda: 1000)
        request = dataclasses.replace(CELL, what=what, overrides=SMALL)
        worker.serve(iter([request.to_json()]), replies.append)
    assert replies == [{"state": "OOM"}] * 2


def in_place_of_children(monkeypatch, script):
    """Replaces a Worker's process; returns the turns that will be taken."""
    turns, alive = [], []

    def ask(self, line):
        ready = "what" in json.loads(line)
        turns.append((self.cell.model, "ready" if ready else "round"))
        reply = script(self.cell, len(alive))
        if "state" in reply:
            self.result["state"] = reply["state"]
        return {} if ready else reply

    def start(self, cell):
        self.cell, self.result = cell, {**dataclasses.asdict(cell), "state": "ok"}
        del self.result["seconds"]
        alive.append(cell)

    monkeypatch.setattr(cells.Worker, "__init__", start)
    monkeypatch.setattr(cells.Worker, "_ask", ask)
    monkeypatch.setattr(cells.Worker, "close", lambda self: alive.remove(self.cell))
    monkeypatch.setattr(cells, "PAUSE", 0)
    monkeypatch.setattr(cells, "LIMITED", ())
    return turns


def three():
    return [dataclasses.replace(CELL, model=m, label=m) for m in ("a", "b", "c")]


def test_a_groups_rounds_are_taken_in_turn_from_another_first(monkeypatch):
    turns = in_place_of_children(monkeypatch, lambda *_: {"calls": 2, "seconds": 3.0})
    found = cells._measure(three(), rounds=3)
    assert [model for model, request in turns if request == "ready"] == ["a", "b", "c"]
    assert "".join(model for model, request in turns if request == "round") == "abcbcacab"
    assert [result["seconds"] for result in found] == [[1.5] * 3] * 3


def test_what_did_not_fit_beside_others_is_tried_alone(monkeypatch):
    def script(cell, alive):
        if cell.model == "c" or (cell.model == "b" and alive > 1):
            return {"state": "OOM"}
        return {"calls": 1, "seconds": 1.0}

    in_place_of_children(monkeypatch, script)
    a, b, c = cells._measure(three(), rounds=2)
    assert (a["state"], "alone" in a) == ("ok", False)
    assert (b["state"], b["alone"], len(b["seconds"])) == ("ok", True, 2)
    assert (c["state"], "seconds" in c) == ("OOM", False)


def test_a_child_that_the_kernel_kills_is_oom_and_one_that_fails_a_mistake(monkeypatch):
    scripts = {"kill": "kill -9 $$", "fail": "exit 3", "say": 'echo \'{"mistake": "so"}\''}
    start = cells.subprocess.Popen

    def shell(name):
        def popen(command, **options):
            return start(["sh", "-c", f"read line; {scripts[name]}"], **options)

        monkeypatch.setattr(cells.subprocess, "Popen", popen)
        return cells.Worker(CELL)

    killed = shell("kill")
    killed.ready()
    killed.close()
    assert killed.result["state"] == "OOM"
    for name, message in (("fail", "fnet at 16 tokens .ours. cannot be measured"), ("say", "so")):
        child = shell(name)
        with pytest.raises(UserError, match=message):
            child.ready()
        child.close()


def test_the_command_measures_in_processes_writes_and_prints(tmp_path, capfd):
    arguments = "benchmark --task text --models fnet --preset cpu --lengths 16 --what memory"
    sets = [word for size in SMALL for word in ("--set", size)]
    more = ["--rounds", "2", "--seconds", "0.01", "--out", str(tmp_path)]
    assert cli.main([*arguments.split(), *sets, *more]) == 0
    found = json.loads((tmp_path / "benchmark.json").read_text())
    (cell,) = found
    assert (cell["what"], cell["state"], cell["length"]) == ("train", "ok", 16)
    assert len(cell["seconds"]) == len(cell["roofline"]) == 2
    assert cell["peak_bytes"] > 0
    assert (tmp_path / "benchmark.md").read_text() == tables.render(found)
    assert tables.render(found) in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--models fnet --lengths 1024,x", "--lengths expects whole numbers like"),
        ("--models fnet --lengths 0", "--lengths expects whole numbers like"),
        ("--models fnet,fnot --lengths 16", "unknown model 'fnot'"),
        ("--models fnet --lengths 16 --what train,speed", "--what expects some of train, infer"),
        ("--models fnet --what infer", "--what infer needs --lengths"),
        ("--models fnet --lengths 16 --rounds 0", "--rounds expects 1 or more"),
        ("--models fnet --lengths 16 --seconds -1", "--seconds more than 0"),
        ("--models fnet:Attention.block_size=2 --lengths 16", "nothing reads Attention.block_size"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_measured(
    arguments, message, capfd, tmp_path, monkeypatch
):
    monkeypatch.setattr(cells, "run", None)
    base = ["benchmark", "--task", "text", "--preset", "cpu", "--out", str(tmp_path)]
    assert cli.main(base + arguments.split()) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_committed_tables_are_those_of_the_committed_measurements():
    for path in ROOT.glob("results/**/benchmark.json"):
        text = path.with_suffix(".md").read_text()
        assert text == tables.render(json.loads(path.read_text())), path


@pytest.mark.parametrize(
    ("tokens", "length", "cls", "batch"),
    [(64, 16, False, 4), (64, 17, True, 4), (70, 16, False, 4), (8, 16, False, 1)],
)
def test_a_batch_can_hold_so_many_tokens_at_every_length(tokens, length, cls, batch):
    cell = dataclasses.replace(CELL, tokens=tokens, length=length, cls=cls)
    assert cell.load().run.batch_size == batch


def test_explain_tells_the_shape_of_each_length_and_why(capfd):
    words = "benchmark --task text --preset cpu --explain --lengths 16,32 --cls --tokens 64"
    assert cli.main(words.split()) == 0
    shown = capfd.readouterr().err
    shapes = ("4 x 16 x 64", "4 x 17 x 64", "2 x 32 x 64", "2 x 33 x 64")
    assert all(shape in shown for shape in shapes)
    assert shown.count("small") == 4
    assert cli.main(words.replace("--lengths 16,32", "").split()) == 2
    assert "--explain needs --lengths" in capfd.readouterr().err


def test_a_line_of_explain_has_every_time_and_the_rule_that_decided():
    times = {"rfft": 2e-3, "four_step": 1.9e-3}
    found = explain.row((4, 2048, 256), fastest.Choice("rfft", times))
    assert found == ["4 x 2048 x 256", "2.00", "-", "-", "1.90", "rfft", "none is 1.2 x as fast"]
    found = explain.row((4, 2048, 256), fastest.Choice("four_step", times))
    assert found[-2:] == ["four_step", "fastest"]
