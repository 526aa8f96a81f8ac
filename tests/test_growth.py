"""Speed and memory against length: the arithmetic, the table, the process of a cell."""

import dataclasses
import json
from pathlib import Path

import pytest

from lra_fnet import cli, config, growth, step

ROOT = Path(__file__).parent.parent


def a_cell(model, length, seconds, megabytes, state="ok"):
    facts = {"batch_size": 4, "num_layers": 2, "dim": 64, "dtype": "float32", "commit": "abc"}
    facts["device"] = {"name": "chip", "platform": "cpu", "count": 1, "cores": 2}
    measured = {"steps_per_second": [1 / seconds] * 3, "peak_bytes": megabytes * 1e6}
    names = {"model": model, "length": length, "state": state}
    return names | facts | (measured if state == "ok" else {})


def test_the_exponent_is_the_slope_in_the_logarithms():
    assert growth.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert growth.exponent([512, 1024], [7, 7]) == pytest.approx(0)
    assert growth.exponent([512], [7]) is None


def test_the_table_shows_medians_exponents_and_states():
    slow = a_cell("quadratic", 1024, 1.0, 10)
    slow["steps_per_second"] = [1.0, 9.0, 0.5]
    cells = [
        slow,
        a_cell("quadratic", 2048, 4.0, 40),
        a_cell("quadratic", 4096, 16.0, 160, "OOM"),
        a_cell("linear", 1024, 0.5, 5),
        a_cell("linear", 4096, 2.0, 20),
    ]
    rows = growth.table(cells).splitlines()
    assert rows[0].count("4,096") == 2
    assert rows[2] == "| quadratic | 1 | 0.25 | OOM | 2.00 | 10 | 40 | OOM | 2.00 |"
    assert rows[3] == "| linear | 2 | - | 0.5 | 1.00 | 5 | - | 20 | 1.00 |"
    assert "chip" in rows[5]


def test_a_cell_is_measured_in_a_process_of_its_own(tmp_path, capfd):
    arguments = "benchmark --task text --models fnet --preset cpu --lengths 16 --seconds 0.01"
    sizes = ["Encoder.dim=8", "Encoder.num_layers=1", "Encoder.mlp_dim=8", "Run.batch_size=2"]
    sets = [word for size in sizes for word in ("--set", size)]
    assert cli.main([*arguments.split(), *sets, "--out", str(tmp_path)]) == 0
    (cell,) = json.loads((tmp_path / "growth.json").read_text())
    assert cell["state"] == "ok"
    assert (cell["model"], cell["length"], cell["batch_size"]) == ("fnet", 16, 2)
    assert len(cell["steps_per_second"]) == growth.ROUNDS
    assert min(cell["steps_per_second"]) > 0
    assert cell["planned_bytes"] > 4 * cell["parameters"]
    table = growth.table([cell])
    assert (tmp_path / "growth.md").read_text() == table
    assert table in capfd.readouterr().out


def test_what_does_not_fit_the_machine_is_oom(monkeypatch):
    cell = growth.Cell("text", "fnet", "cpu", 16, ("Encoder.num_layers=1", "Run.batch_size=2"))
    monkeypatch.setattr(step, "free_memory", lambda: 1000)
    found = growth.measure(dataclasses.replace(cell, seconds=0.01))
    assert found["state"] == "OOM"
    assert "steps_per_second" not in found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "fnet", "--lengths", "1024,x"], "--lengths expects whole numbers like"),
        (["--models", "fnot", "--lengths", "16"], "unknown model 'fnot'"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capfd, tmp_path):
    base = ["benchmark", "--task", "text", "--preset", "cpu", "--out", str(tmp_path)]
    assert cli.main(base + arguments) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_committed_table_is_that_of_the_committed_measurements():
    folder = ROOT / "results/growth"
    cells = json.loads((folder / "growth.json").read_text())
    assert (folder / "growth.md").read_text() == growth.table(cells)
    assert {cell["model"] for cell in cells} == set(config.known("models"))
