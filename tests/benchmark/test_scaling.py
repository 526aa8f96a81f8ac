"""The table of several devices."""

import json

import pytest

from lra_fnet.benchmark import scaling
from lra_fnet.benchmark.cells import Cell
from lra_fnet.errors import UserError


def test_scaling_table_has_a_row_for_each_number_of_devices(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiles faster
    sizes = ("dim=8", "qkv_dim=8", "num_layers=1", "mlp_dim=8", "dropout=0.2")
    overrides = (*(f"Encoder.{size}" for size in sizes), "Head.mlp_dim=8", "Run.batch_size=4")
    cell = Cell("train", "ours", "text", "fnet", "cpu", 16, overrides, seconds=0.01)
    rows = scaling.main(cell, [1, 2], tmp_path)
    assert [(row["scaling"], row["devices"], row["batch_size"]) for row in rows] == [
        ("strong", 1, 4),
        ("strong", 2, 4),
        ("weak", 2, 8),
    ]
    assert [row["all_reduces"] for row in rows] == [0, 1, 1]
    assert rows[1]["loss"] == pytest.approx(rows[0]["loss"], rel=1e-5)
    assert json.loads((tmp_path / "scaling.fnet.16.json").read_text()) == rows
    table = (tmp_path / "scaling.fnet.16.md").read_text()
    assert table in capfd.readouterr().out
    assert "| strong | 1 | 4 |" in table
    assert scaling.NOTICE in table
    with pytest.raises(UserError, match=r"numbers that divide Run.batch_size \(4\), got 3"):
        scaling.main(cell, [1, 3], tmp_path)


def test_efficiency_is_relative_to_one_device_and_missing_devices_leave_the_row_empty():
    ok = {"loss": 0.5, "all_reduces": 1, "platform": "gpu"}
    rows = [
        {"scaling": "strong", "devices": 1, "batch_size": 8, "steps_per_second": [4, 9, 1], **ok},
        {"scaling": "strong", "devices": 2, "batch_size": 8, "steps_per_second": [6.0], **ok},
        {"scaling": "strong", "devices": 4, "batch_size": 8},
        {"scaling": "weak", "devices": 2, "batch_size": 16, "steps_per_second": [3.0], **ok},
    ]
    lines = scaling.table(rows).splitlines()
    assert lines[2:6] == [
        "| strong | 1 | 8 | 4 | 100% | 0.500000 | 1 |",
        "| strong | 2 | 8 | 6 | 75% | 0.500000 | 1 |",
        "| strong | 4 | 8 | - | - | - | - |",
        "| weak | 2 | 16 | 3 | 75% | 0.500000 | 1 |",
    ]
    assert scaling.NOTICE not in lines
