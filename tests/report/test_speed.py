"""Tables of benchmarks, and score against speed."""

import dataclasses

import pytest
from made_results import a_result, measured, records, table_of, with_test

from lra_fnet.report.accuracy.cell import TASKS
from lra_fnet.report.sources import Benchmark
from lra_fnet.report.speed import points as speed
from lra_fnet.report.speed import tables

NAIVE = {"overrides": ("Run.batch_size=4", 'Attention.implementation="naive"')}


def rows_of(cells, quantity):
    """The texts of a quantity by model, and those of the head."""
    grid = tables.grids(cells)[0]
    rows = {row[1]: list(row[2:]) for row in grid.rows if row[0] == quantity}
    return list(grid.head[2:]), rows


def test_speed_up_is_the_median_of_the_ratios_of_the_rounds():
    cells = [
        measured("transformer", 512, [2.0, 8.0, 3.0]),
        measured("fnet", 512, [1.0, 1.0, 2.0]),  # 2, 8, 1.5 in the rounds; 3 of the medians
    ]
    head, rows = rows_of(cells, "Training, steps/s")
    assert head == ["512"]
    assert rows == {"transformer": ["0.333 ±100%"], "fnet": ["1 ±50% (2.0x)"]}


def test_ratio_of_a_cell_that_took_no_turns_is_that_of_the_medians():
    times = {"transformer": [1.0, 4.0, 9.0], "fnet": [1.0, 1.0, 9.0]}
    for alone, ratio in ((False, 1.0), (True, 4.0)):
        base, cell = (measured(m, 512, t, alone=alone) for m, t in times.items())
        assert tables.speed_up(cell, base) == ratio
    more = measured("fnet", 512, [1.0, 4.0])  # of another number of rounds
    assert tables.speed_up(more, measured("transformer", 512, [5.0, 5.0, 5.0])) == 2.0


def test_speed_up_is_against_the_faster_way_to_compute_the_transformer():
    name = 'transformer ("naive")'
    wide = dataclasses.replace(measured("transformer", 512, [0.1]), label="transformer (8)")
    cells = [
        measured("transformer", 512, [2.0]),
        dataclasses.replace(measured("transformer", 512, [1.0]), label=name, **NAIVE),
        dataclasses.replace(wide, overrides=("Encoder.dim=8",)),  # another model
        measured("fnet", 512, [0.5]),
        measured("transformer", 1024, [4.0]),
        dataclasses.replace(measured("transformer", 1024, [], state="OOM"), label=name, **NAIVE),
        measured("fnet", 1024, [1.0]),
        measured("fnet", 1024, [2.0], side="eager"),
    ]
    _, rows = rows_of(cells, "Training, steps/s")
    assert rows == {
        "transformer": ["0.5 (0.5x)", "0.25"],
        name: ["1", "OOM"],
        "transformer (8)": ["10 (10x)", "-"],
        "fnet": ["2 (2.0x)", "1 (4.0x)"],
        "fnet, PyTorch, eager": ["-", "0.5 (2.0x)"],
    }


def test_missing_and_out_of_memory_cells_show_no_number():
    cells = [
        measured("transformer", 512, [1.0]),
        measured("transformer", 1024, [], state="OOM"),
        measured("fnet", 1024, [0.25], alone=True),
        measured("linear", 512, [0.05]),
        measured("transformer", 2048, [1.0], alone=True),
        measured("fnet", 2048, [0.25]),
    ]
    head, rows = rows_of(cells, "Training, steps/s")
    assert head == ["512", "1,024", "2,048"]
    assert rows == {
        "transformer": ["1", "OOM", "1 †"],
        "fnet": ["-", "4 †", "4 (4.0x) †"],
        "linear": ["20 (20x)", "-", "-"],
    }
    assert rows_of(cells, "Training, peak MB")[1]["fnet"] == ["-", "1,024", "2,048"]


def test_operations_are_per_example_and_the_floor_is_a_share_of_the_time():
    cells = [
        measured("fnet", 512, [1.0, 2.0, 1.0], what="infer", flops=128e9, floor_seconds=[0.5] * 3),
        measured("linear", 512, [1.0], what="infer", flops=None, roofline=[{}]),
    ]
    assert rows_of(cells, "Inference, GFLOPs of an example")[1] == {"fnet": ["32"]}
    assert rows_of(cells, "Inference, floor")[1] == {"fnet": ["50%"]}


def test_each_pass_of_a_sublayer_is_compared_with_the_transformer_that_is_faster_in_it():
    cells = [
        measured(model, 512, [both], what="mixing", size="base", forward_seconds=[forward], **more)
        for model, both, forward, more in (
            ("transformer", 9.0, 6.0, {}),
            ("transformer", 10.0, 3.0, {"label": "transformer (naive)", **NAIVE}),
            ("fnet", 1.0, 1.0, {}),
            ("fnet", 2.0, 2.0, {"side": "definition"}),
        )
    ]
    cells = [dataclasses.replace(cell, overrides=tuple(cell.overrides)) for cell in cells]
    (grid,) = tables.grids(cells)
    numbers = {row[0]: list(row[3:]) for row in grid.rows}
    assert numbers["fnet (Base)"] == ["1,000 (9.0x)", "1,000 (3.0x)"]
    assert numbers["fnet, definition (Base)"] == ["2,000 (4.5x)", "2,000 (1.5x)"]
    assert numbers["transformer (naive) (Base)"] == ["10,000 (0.9x)", "3,000"]


def test_caption_names_device_sizes_rounds_and_commit():
    text = tables.render([measured("fnet", 512, [1.0, 1.0], overrides=["Run.x=1"])])
    for words in ("Some CPU", "batch size 4", "Run.x=1", "2 rounds", "0.10.2", "0123456789ab"):
        assert words in text


# The speed of a run

CONFIG = "Encoder.dim = 64\nEncoder.num_layers = 2\nRun.batch_size = 4\nEncoder.dtype = 'float32'\n"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"overrides": ["Optimizer.warmup = 1", "Fourier.method=rfft", "MAX_LEN=9"]}, True),
        ({"device": {"name": "Other", "platform": "cpu", "count": 1, "cores": 1}}, True),
        ({"device": {"name": "Other", "platform": "gpu", "count": 1, "cores": 2}}, False),
        ({"overrides": ["Encoder.dropout=0"]}, False),
        ({"overrides": ["Run.microbatch=4"]}, False),
        *(({name: other}, False) for name, other in {
            "what": "infer", "side": "eager", "state": "OOM", "task": "text", "model": "linear",
            "preset": "paper", "length": 128, "batch_size": 16, "dim": 32, "num_layers": 4,
            "parameters": 1, "dtype": "bfloat16",
        }.items()),
    ],
)  # fmt: skip
def test_a_cell_measured_a_run_if_it_has_the_same_program(change, same):
    (run,) = records(a_result(config=CONFIG))
    cell = measured("fnet", 256, [1.0], **change)
    assert (tables.of_run([cell], run, "train") is not None) == same


def test_speeds_are_those_of_the_benchmark_that_has_most_models_of_a_task():
    table = table_of(
        *(with_test(600, model=m, config=CONFIG) for m in ("fnet", "linear", "performer")),
        with_test(600, task="image", config=CONFIG),
    )
    both = [measured(m, 256, s) for m, s in (("fnet", [0.1, 0.3, 0.2]), ("linear", [0.5]))]
    listed = [
        Benchmark("one", [measured("fnet", 256, [9.0])]),
        Benchmark("both", [both[0], dataclasses.replace(both[1], alone=True)]),
        Benchmark("other", [dataclasses.replace(cell, batch_size=8) for cell in both]),
    ]
    points = speed.points(table, listed)
    assert [(p.column, p.row.model, p.speed, p.benchmark) for p in points] == [
        ("listops", "linear", 2.0, "both"),
        ("listops", "fnet", 5.0, "both"),  # performer is not in it
        ("image", "fnet", 8.5, ""),
    ]
    rows = speed.grid(table, points).rows
    assert [(row[1], row[3], row[5]) for row in rows] == [
        ("FNet", "both", "5"),
        ("Linear", "both*", "2"),
        ("FNet", "runs", "8.5"),
    ]


def test_points_are_compared_on_one_device_only():
    other = {"name": "GPU", "platform": "gpu", "count": 1, "cores": 8}
    table = table_of(
        with_test(600, peak_bytes=10_000_000),
        with_test(600, seed=1, steps_per_second=4.0),
        with_test(640, model="linear", peak_bytes=30, steps_per_second=4.0),
        with_test(700, model="performer", device=other),
        with_test(360, model="local"),  # collapsed: no value
    )
    points = speed.points(table)
    shown = speed.comparable(points, "listops", ["fnet", "performer", "linear"])
    numbers = [(p.row.label, p.cell.mean, p.speed, p.memory) for p in shown]
    assert numbers == [("Linear", 32.0, 4.0, 30), ("FNet", 30.0, 8.5, 10_000_000)]
    shown = speed.comparable(points, "listops", ["performer"])
    assert [p.row.label for p in shown] == ["Performer"]
    rows = [(row[1], row[2], row[-1]) for row in speed.grid(table, points).rows]
    assert rows[1] == ("FNet", "1 x Some CPU (cpu, 2 cores)", "10")


def test_points_over_tasks_have_the_mean_of_five_and_the_speed_on_text():
    table = table_of(
        *(
            with_test(count, task=task, model=model, steps_per_second=rate)
            for model, count in (("fnet", 800), ("linear", 900))
            for rate, task in enumerate([t for t in TASKS if t != "pathx"], 1)
        )
    )
    shown = speed.comparable(speed.points(table), speed.MEAN, ["fnet"])
    numbers = [(p.row.label, round(p.cell.mean, 6), p.speed) for p in shown]
    assert numbers == [("Linear", 45.0, 2), ("FNet", 40.0, 2)]  # text is the second task
