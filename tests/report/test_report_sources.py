"""What the report reads: runs, curves, sweeps, benchmarks, readings of test."""

import csv
import io
import json
import math

import pytest
from made_results import a_measured_cell, a_result, a_trial, put, put_sweep

from lra_fnet import report
from lra_fnet.report.render.csv import runs as runs_csv

LOG = "test_log.jsonl"


def logged(root, *lines):
    text = "".join(json.dumps({"run": run, "kind": kind}) + "\n" for run, kind in lines)
    (root / LOG).write_text(text)


def test_evaluation_on_test_counts_once_although_it_logs_two_checkpoints(tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    put(runs, a_result())
    put(runs, a_result(seed=1))
    put(runs, a_result(seed=2, test=None))
    put(results, a_result(seed=3))  # no log
    put(results, a_result(seed=4, test=None))
    name = "cpu/listops/fnet/seed"
    both = ("last", "best")
    logged(runs, *[(f"{name}0", k) for k in both * 3], *[(f"{name}1", k) for k in both])
    read = report.Sources([runs, results])
    assert read.readings == {f"runs/{name}0": 3, f"runs/{name}1": 1, f"runs/{name}2": 0}
    rows = list(csv.DictReader(io.StringIO(runs_csv(read.runs, read.readings))))
    counts = {row["folder"]: row["test_readings"] for row in rows}
    unknown = {f"results/{name}{seed}": "" for seed in (3, 4)}
    assert counts == {run: str(n) for run, n in read.readings.items()} | unknown


def put_benchmark(root, name, content):
    folder = root / "benchmark" / name
    folder.mkdir(parents=True)
    (folder / "benchmark.json").write_text(content)
    return folder / "benchmark.json"


def lacking(name, **changes):
    """Returns a measured cell without a field."""
    cell = a_measured_cell("fnet", 512, [1.0], **changes)
    del cell[name]
    return cell


DAMAGED = {
    "metrics.jsonl": (
        *("{\n", b"\xff\n", "1\n", '{"kind": "train", "step": 1}\n'),
        *('{"kind": "train", "loss": 1}\n', '{"kind": "train", "step": "x", "loss": 1}\n'),
        '{"kind": "train", "step": null, "loss": 1}\n',
        *(f'{{"kind": "train", "step": 1, "loss": {loss}}}\n' for loss in ("NaN", "1e300")),
        '{"kind": "validation", "step": 3, "accuracy": null}\n',
    ),
    "attention_span.json": ("[]", '{"mean": 1}', '{"mean": 1, "uniform": 1, "layers": [1]}'),
    "result.json": ("{}", "[" * 100_000),  # others: tests/run/test_result.py
    "trials.json": ("{}", '[{"number": 1}]', json.dumps([a_trial(0) | {"step": "x"}])),
    "selected.json": ("{", "[1]"),
    "sweep.json": ("[]", "{}", '{"preset": "cpu", "sampler": "grid", "axes": []}'),
    "benchmark.json": (
        *("[1]", "{}", '[{"what": "train", "side": "ours"}]'),
        json.dumps([a_measured_cell("fnet", 512, [0.0])]),
        *(json.dumps([lacking(name)]) for name in ("cls", "model", "size", "seconds")),
        json.dumps([a_measured_cell("fnet", 512, [1.0]) | {"length": "512"}]),
        json.dumps([a_measured_cell("fnet", 512, [math.inf])]),
        json.dumps([a_measured_cell("fnet", 512, [1.0], peak_bytes=math.nan)]),
        json.dumps([a_measured_cell("fnet", 512, [1.0], batch_size=0)]),
        json.dumps([lacking("forward_seconds", what="mixing")]),
    ),
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, text) for name, texts in DAMAGED.items() for text in texts]
)
def test_damaged_file_is_left_out_with_one_line_that_names_it(tmp_path, name, content):
    kept, run = put(tmp_path, a_result(seed=1)), put(tmp_path, a_result())
    sweep = put_sweep(tmp_path, "s", [a_trial(0)], [])
    put_benchmark(tmp_path, "b", json.dumps([a_measured_cell("fnet", 512, [1.0])]))
    places = {"benchmark.json": tmp_path / "benchmark" / "b"}
    places |= dict.fromkeys(("trials.json", "selected.json", "sweep.json"), sweep)
    file = places.get(name, run.parent) / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    read = report.Sources([tmp_path])
    (line,) = read.problems
    assert line.startswith(str(file))
    assert "\n" not in line
    assert kept.parent in {run.path for run in read.runs}
    assert len(read.runs) == 2 - (name == "result.json")
    assert len(read.sweeps) == 1 - (places.get(name) == sweep)
    assert len(read.benchmarks) == 1 - (name == "benchmark.json")


def test_report_lists_every_damaged_file_and_shows_the_rest(tmp_path, capfd):
    put(tmp_path, a_result())
    bad = [put(tmp_path, a_result(seed=seed)) for seed in (1, 2)]
    for file in bad:
        file.write_text("{")
    (tmp_path / LOG).write_text('{"run": "x"}\n{"run": \n')
    report.main([tmp_path], tmp_path / "reports")
    lines = capfd.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines[:2]] == list(map(str, bad))
    assert all(line.startswith("left out: ") for line in lines)
    assert len(lines) == 3
    for name in ("index.html", "report.md"):
        text = (tmp_path / "reports" / name).read_text()
        assert all(text.count(str(file)) == 1 for file in (*bad, tmp_path / LOG))
        assert "30.00" in text  # the run that is not damaged


def test_benchmarks_below_runs_and_results_are_named_by_their_folder(tmp_path):
    texts = [json.dumps([a_measured_cell("fnet", 512, [time])]) for time in (1.0, 1.1)]
    put_benchmark(tmp_path / "results", "h200/text", texts[0])
    put_benchmark(tmp_path / "results", "mine", texts[1])  # a copy
    put_benchmark(tmp_path / "runs", "mine", texts[1])
    read = report.Sources([tmp_path / "runs", tmp_path / "results"])
    assert [b.name for b in read.benchmarks] == [
        "runs/benchmark/mine",
        "results/benchmark/h200/text",
    ]


def test_cells_without_numbers_need_no_fields_of_a_measurement(tmp_path):
    out = lacking("seconds", state="OOM")
    for name in ("peak_bytes", "roofline", "parameters", "device"):
        del out[name]
    put_benchmark(tmp_path, "b", json.dumps([a_measured_cell("fnet", 256, [1.0]), out]))
    read = report.Sources([tmp_path])
    assert read.problems == []
    assert len(read.benchmarks) == 1


def test_sweep_in_two_roots_counts_once_and_the_first_root_wins(tmp_path):
    put_sweep(tmp_path / "runs", "s", [a_trial(n) for n in range(3)])
    put_sweep(tmp_path / "results", "s", [a_trial(0)])
    put_sweep(tmp_path / "results", "t", [a_trial(0)])
    read = report.Sources([tmp_path / "runs", tmp_path / "results"]).sweeps
    assert [(s.name, len(s.trials)) for s in read] == [("s", 3), ("t", 1)]
