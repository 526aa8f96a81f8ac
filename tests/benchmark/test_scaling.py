"""The table of several devices."""

import pytest

from lra_fnet.benchmark import scaling
from lra_fnet.benchmark.cells import Cell
from lra_fnet.benchmark.files import Scaling
from lra_fnet.errors import UserError
from lra_fnet.report import benchmarks

SIMULATED = "compare their losses, not their speed"


@pytest.mark.slow
def test_scaling_table_has_a_row_for_each_number_of_devices(monkeypatch):
    sizes = ("dim=8", "qkv_dim=8", "num_layers=1", "mlp_dim=8", "dropout=0.2")
    overrides = (*(f"Encoder.{size}" for size in sizes), "Head.mlp_dim=8", "Run.batch_size=4")
    cell = Cell("train", "ours", "text", "fnet", "cpu", 16, overrides, seconds=0.01)
    saved, measure = [], scaling.measure
    weak = {"steps_per_second": (1.0,), "loss": 1.0, "all_reduces": 1, "platform": "cpu"}
    monkeypatch.setattr(  # measures two of the three rows: each takes a process
        scaling,
        "measure",
        lambda c, n: weak if "Run.batch_size=8" in c.overrides else measure(c, n),
    )
    rows = scaling.run(cell, [1, 2], 2, lambda rows: saved.append(list(rows)))
    assert saved == [rows[:1], rows[:2], rows]
    assert [(row.scaling, row.devices, row.batch_size) for row in rows] == [
        ("strong", 1, 4),
        ("strong", 2, 4),
        ("weak", 2, 8),
    ]
    assert [len(row.steps_per_second) for row in rows] == [2, 2, 1]
    assert [row.all_reduces for row in rows] == [0, 1, 1]
    assert rows[1].loss == pytest.approx(rows[0].loss, rel=1e-5)
    table = benchmarks.scaling(rows)
    assert "| strong | 1 | 4 |" in table
    assert SIMULATED in table
    with pytest.raises(UserError, match=r"numbers that divide Run.batch_size \(4\), got 3"):
        scaling.run(cell, [1, 3], 2, saved.append)


def test_tokens_choose_the_batch_that_is_split(monkeypatch):
    built = []
    monkeypatch.setattr(
        scaling, "measure", lambda cell, rounds: built.append(cell.load().run.batch_size) or {}
    )
    cell = Cell("train", "ours", "text", "fnet", "cpu", 64, tokens=1024)
    rows = scaling.run(cell, [1, 2], 1, len)
    assert [row.batch_size for row in rows] == built == [16, 16, 32]
    assert rows[0].to_json() == {"scaling": "strong", "devices": 1, "batch_size": 16}


@pytest.mark.parametrize("kind", ["steps", "seconds"])
def test_child_that_runs_out_of_memory_after_its_start_gives_one_line(monkeypatch, kind):
    class Child:
        def __init__(self, cell):
            self.facts = {"state": "ok", "device": {"platform": "cpu"}}

        def ready(self):
            pass

        def ask(self, request):
            return {"state": "OOM"} if kind in request else {"calls": 1, "seconds": 1.0}

        close = ready

    monkeypatch.setattr(scaling, "Worker", Child)
    with pytest.raises(UserError, match=r"^fnet on 2 devices does not fit: take a smaller batch$"):
        scaling.measure(Cell("train", "ours", "text", "fnet", "cpu", 16, devices=2), 1)


def test_efficiency_is_relative_to_one_device_and_missing_devices_leave_the_row_empty():
    ok = {"loss": 0.5, "all_reduces": 1, "platform": "gpu"}
    rows = [
        Scaling("strong", 1, 8, (4.0, 9.0, 1.0), **ok),
        Scaling("strong", 2, 8, (6.0,), **ok),
        Scaling("strong", 4, 8),
        Scaling("weak", 2, 16, (3.0,), **ok),
    ]
    lines = benchmarks.scaling(rows).splitlines()
    assert lines[4:8] == [
        "| strong | 1 | 8 | 4 | 100% | 0.500000 | 1 |",
        "| strong | 2 | 8 | 6 | 75% | 0.500000 | 1 |",
        "| strong | 4 | 8 | - | - | - | - |",
        "| weak | 2 | 16 | 3 | 75% | 0.500000 | 1 |",
    ]
    assert SIMULATED not in lines[-1]
