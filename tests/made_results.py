"""Invented results, as the objects of their JSON files, for the tests of the report."""

import dataclasses
import json

import numpy as np

from lra_fnet import counts
from lra_fnet.benchmark.files import Result
from lra_fnet.machine import typed_json
from lra_fnet.report.accuracy import build as accuracy
from lra_fnet.run import result as results


def a_result(**changes):
    """Returns a complete ListOps run: of 2,000 test rows, 600 correct at best and 580 at last."""
    result = {
        "schema": 1,
        "state": "complete",
        "task": "listops",
        "model": "fnet",
        "preset": "cpu",
        "overrides": [],
        "variant": None,
        "seed": 0,
        "floor": {"correct": 360, "count": 2000},
        "mixer_length": 256,
        "uses_mask": True,
        "validation_is_test": False,
        "validation": {
            "last": {"step": 1000, "correct": 590, "count": 2000, "loss": 3400.0},
            "best": {"step": 900, "correct": 610, "count": 2000, "loss": 3300.0},
        },
        "test": {
            "last": {"step": 1000, "correct": 580, "count": 2000, "loss": 3450.0},
            "best": {"step": 900, "correct": 600, "count": 2000, "loss": 3350.0},
        },
        "train": {"correct": 700, "count": 2000},
        "parameters": 12345,
        "steps_per_second": 8.5,
        "peak_bytes": None,
        "wall_seconds": 120.5,
        "device": {"name": "Some CPU", "platform": "cpu", "count": 1, "cores": 2},
        "versions": {"jax": "0.10.2"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "dataset": "short_128",
        "data_source": "generator",
        "data_sha256": "d" * 64,
        "config": "Run.num_steps = 1000\n",
    }
    return result | changes


def part_of_a_run(**changes):
    """Returns what a run keeps of a process that trained a part of it before the last one."""
    result = a_result()
    return {name: result[name] for name in ("device", "versions", "commit", "dirty")} | changes


def with_test(best, last=None, count=2000, **changes):
    """Returns a result with these numbers of correct test rows; 360 is one answer for all."""
    last = best if last is None else last
    test = {}
    for name, step, right in (("last", 1000, last), ("best", 900, best)):
        test[name] = {"step": step, "correct": right, "count": count, "loss": 1.0}
        test[name]["constant"] = right == 360
    return a_result(test=test, **changes)


RIGHT = np.random.default_rng(0).random((2, 3, 2000)) < 0.3  # models, seeds, rows
FIVE_SEEDS = np.append(RIGHT, np.random.default_rng(1).random((2, 2, 2000)) < 0.3, axis=1)
INIT = {  # of a pre-trained run
    **{"run": "cpu/listops/fnet@denoise/seed0", "objective": "", "rate": 0.15, "step": 5},
    **{"steps": 5, "wall_seconds": 1.0, "sha256": "a" * 64},
}


def scored(model, seed, **changes):
    """Returns a run that kept which test rows are correct; at the last step, all others are."""
    right = FIVE_SEEDS[["fnet", "linear"].index(model), seed]
    result = with_test(int(right.sum()), int((~right).sum()), model=model, seed=seed, **changes)
    for checkpoint, rows in {"best": right, "last": ~right}.items():
        result["test"][checkpoint]["correct_bits"] = counts.encode(rows)
    return result


def a_failure(state, **changes):
    """Returns the result of a run that diverged or ran out of memory, so nothing was measured."""
    result = a_result(state=state, validation=None, test=None, train=None, **changes)
    for key in ("parameters", "steps_per_second", "peak_bytes", "wall_seconds"):
        del result[key]
    return result


def put(root, result):
    """Writes a result into its run folder; returns the file."""
    folder = root / folder_of(result)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
    return folder / "result.json"


def records(*made):
    """Parses results, as `results.collect` does for those in folders."""
    return [dataclasses.replace(results.parse(r), folder=f"runs/{folder_of(r)}") for r in made]


def table_of(*made):
    """Returns the accuracy table of results of one preset."""
    (table,) = accuracy.tables(records(*made))
    return table


def folder_of(result):
    """Returns a result's run folder below its root."""
    denoise = result.get("denoise", False)
    name = results.folder_name(result["model"], result["variant"], denoise=denoise)
    return f"{result['preset']}/{result['task']}/{name}/seed{result['seed']}"


def put_curve(file, steps=200, drop=2.0):
    """Writes a metrics.jsonl next to a result: loss every 10 steps, validation every 50."""
    lines = []
    for step in range(10, steps + 1, 10):
        lines.append(
            {"kind": "train", "step": step, "loss": drop * (1 + 1 / step), "accuracy": 0.1}
        )
        if step % 50 == 0:
            lines.append({"kind": "validation", "step": step, "loss": 2.0, "accuracy": step / 1000})
    target = file.with_name("metrics.jsonl")
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return target


def a_trial(number, model="fnet", layers=1, seed=0, state="complete", validation=None, **changes):
    """Returns an entry of a sweep's trials.json."""
    override = f"Encoder.num_layers={layers}"
    trial = {
        "number": number,
        "task": "listops",
        "model": model,
        "preset": "cpu",
        "seed": seed,
        "overrides": [override, "Run.num_steps=100"],
        "folder": f"cpu/listops/{model}+num_layers-{layers}/seed{seed}",
        "state": state,
        "step": 100 if state == "complete" else 40,
        "num_steps": 100,
        "validation": validation,
        "error": None,
        "command": f"lra-fnet train --task listops --model {model} --set {override}",
    }
    return trial | changes


def put_sweep(root, name, trials, selected=None, **about):
    """Writes the files of a sweep below a root of runs; returns its folder."""
    folder = root / "sweeps" / name
    folder.mkdir(parents=True)
    head = {
        "schema": 1,
        "name": name,
        "task": "listops",
        "models": ["fnet", "linear"],
        "preset": "cpu",
        "seeds": 2,
        "sampler": "grid",
        "axes": {"Encoder.num_layers": [1, 2]},
        "overrides": ["Run.num_steps=100"],
        "created": "2026-01-01T00:00:00+00:00",
        "commit": None,
    }
    (folder / "sweep.json").write_text(json.dumps(head | about))
    (folder / "trials.json").write_text(json.dumps(trials))
    if selected is not None:
        (folder / "selected.json").write_text(json.dumps(selected))
    return folder


def a_measured_cell(model, length, seconds, **changes):
    """Returns an object of a benchmark.json: training at a length, rounds of these seconds."""
    limits = {"floor_seconds": 0.01, "bytes": 8, "copy_bytes_per_second": 1000}
    cell = {
        "what": "train",
        "side": "ours",
        "task": "listops",
        "model": model,
        "label": model,
        "preset": "cpu",
        "length": length,
        "cls": False,
        "size": "",
        "state": "ok",
        "seconds": seconds,
        "forward_seconds": seconds,
        "peak_bytes": 1e6 * length,
        "flops": 1e9,
        "batch_size": 4,
        "num_layers": 2,
        "dim": 64,
        "parameters": 12345,
        "dtype": "float32",
        "threads": 2,
        "roofline": [limits] * len(seconds),
        "device": {"name": "Some CPU", "platform": "cpu", "count": 1, "cores": 2},
        "versions": {"jax": "0.10.2"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
    }
    return cell | changes


def measured(*args, **changes):
    """Returns `a_measured_cell` as a report reads it."""
    return typed_json.build(Result, a_measured_cell(*args) | changes)


def a_span(*means):
    """Returns an attention_span.json with these means of layers."""
    layers = [{"layer": n, "mean": mean, "heads": [mean]} for n, mean in enumerate(means)]
    return {"mean": sum(means) / len(means), "uniform": 80.0, "layers": layers, "rows": 1000}
