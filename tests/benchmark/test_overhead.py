"""The loop is measured against the bare program on a task outside the package."""

import re
import statistics

import pytest
from paths import OUTSIDE

from lra_fnet.benchmark import overhead
from lra_fnet.run.job import Job


def test_loop_and_bare_program_are_measured_in_every_round(tmp_path, monkeypatch, capfd):
    monkeypatch.syspath_prepend(str(OUTSIDE))
    sizes = ("dim=8", "qkv_dim=8", "mlp_dim=8", "num_layers=1")
    settings = ("Run.eval_every=10000", "Run.steps_per_dispatch=4", "Head.mlp_dim=8")
    settings += tuple(f"Encoder.{size}" for size in sizes)
    job = Job("parity", "fnet", "cpu", 0, settings, data=tmp_path, gin_dirs=(OUTSIDE,))
    (tmp_path / "loops").mkdir()
    ratio = overhead.loop_overhead(job, 2, 0.05, tmp_path / "loops")
    assert [*(tmp_path / "loops").iterdir()] == []
    table = capfd.readouterr().out
    rows = re.findall(r"^ (\d) +([\d.]+) +([\d.]+) +([\d.]+)", table, re.MULTILINE)
    assert [number for number, *_ in rows] == ["1", "2"]
    ratios = [float(loop) / float(bare) for _, bare, loop, _ in rows]
    assert [float(row[3]) for row in rows] == pytest.approx(ratios, rel=0.01)
    assert ratio == pytest.approx(statistics.median(ratios), rel=0.01)


def test_bare_speed_counts_every_step_of_a_call(tmp_path, monkeypatch, capfd):
    """Calls of four steps, twelve a second by the clock of the test: 48 steps/s."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    settings = ("Run.eval_every=10000", "Run.steps_per_dispatch=4", "Head.mlp_dim=8")
    settings += tuple(f"Encoder.{n}=8" for n in ("dim", "qkv_dim", "mlp_dim"))
    job = Job("parity", "fnet", "cpu", 0, settings, data=tmp_path, gin_dirs=(OUTSIDE,))
    (tmp_path / "loops").mkdir()
    timed = {0.0: {"calls": 1, "seconds": 0.1}, 0.1: {"calls": 6, "seconds": 0.5}}
    monkeypatch.setattr(overhead.timing, "time_calls", lambda _, seconds: timed[seconds])
    overhead.loop_overhead(job, 1, 0.1, tmp_path / "loops")
    assert re.search(r"^ 1 +48\.00 ", capfd.readouterr().out, re.MULTILINE)
