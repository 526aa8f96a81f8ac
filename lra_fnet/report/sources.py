"""Reads everything that a report shows: runs, curves, sweeps, benchmarks, attention spans."""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import record
from lra_fnet.run.record import Record

_TRIAL = ("number", "task", "model", "preset", "seed", "overrides", "folder", "state")
_TRIAL_MEASURED = ("step", "num_steps", "validation", "error", "command")
_SELECTED = ("task", "model", "overrides", "seeds", "validation")
_SPAN = ("mean", "uniform", "layers", "rows")
_BENCHMARK = ("what", "side", "label", "length", "state", "task", "preset", "model")


class Sweep:
    """The files of a sweep: sweep.json, trials.json, selected.json."""

    def __init__(self, file: Path):
        self.about = disk.read_json(file)
        trials = _read(file.with_name("trials.json"), _TRIAL)
        self.trials = [dict.fromkeys(_TRIAL_MEASURED) | trial for trial in trials]
        self.selected = _read(file.with_name("selected.json"), _SELECTED)
        self.name = self.about.get("name", file.parent.name)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark.json: its folder as <name of root>/..., and its cells."""

    name: str
    cells: list[dict[str, Any]]


class Sources:
    """Everything that a report is made from. Runs are named by `Record.folder`.

    Attributes:
      runs: their records.
      curves: their courses, where metrics.jsonl is there.
      spans, started: their attention_span.json and run.json.
      readings: how often the test split was read.
      sweeps, benchmarks: one for each folder.
    """

    def __init__(self, roots: Sequence[str | Path], out_dir: str | Path | None = None):
        """Reads everything under the roots, and the benchmarks in `out_dir`.

        Raises:
          UserError: a file cannot be read, or does not hold what its name says.
        """
        self.runs = runs = record.collect(roots)
        curves = {run.folder: record.curve(run.path) for run in runs}
        spans = {run.folder: _read(run.path / "attention_span.json", _SPAN, dict) for run in runs}
        started = {run.folder: disk.read_json(run.path / "run.json") for run in runs}
        self.curves = {folder: curve for folder, curve in curves.items() if curve.step}
        self.spans = {folder: span for folder, span in spans.items() if span}
        self.started = {folder: run for folder, run in started.items() if run}
        self.readings = _readings(runs, roots)
        self.sweeps = _sweeps(roots)
        places = [(Path(root), Path(root) / "benchmark") for root in roots]
        if out_dir is not None:
            places.append((Path(out_dir), Path(out_dir)))
        self.benchmarks = [
            _benchmark(file, root)
            for root, place in places
            for file in sorted(place.rglob("benchmark.json"))
        ]


def _read(file: Path, keys: Sequence[str], kind: type = list) -> Any:
    """Returns a list of objects (none if there is no file), or one object, that have these keys."""
    value = disk.read_json(file, kind) or kind()
    for entry, key in itertools.product(value if kind is list else filter(None, [value]), keys):
        if not isinstance(entry, dict) or key not in entry:
            raise UserError(f"{file}: an entry lacks {key!r}: move it away")
    return value


def _readings(runs: Sequence[Record], roots: Sequence[str | Path]) -> dict[str, int]:
    """Counts each run's evaluations on test, from its root's test_log.jsonl or else its result.

    An evaluation logs one line for each checkpoint that it scores.
    """
    logged: dict[Path, collections.Counter] = {}
    for root in map(Path, roots):
        lines = [line for line in disk.read_lines(root / "test_log.jsonl") if "run" in line]
        logged[root] = collections.Counter((line["run"], line.get("kind")) for line in lines)
    readings = {}
    for run in runs:
        root = run.path.parents[3]
        name = run.path.relative_to(root).as_posix()
        counts = [count for (path, _), count in logged[root].items() if path == name]
        readings[run.folder] = max([int(run.score("test") is not None), *counts])
    return readings


def _sweeps(roots: Sequence[str | Path]) -> list[Sweep]:
    """Reads every sweep once: the first root's if it is in two."""
    sweeps: dict[tuple, Sweep] = {}
    for root in roots:
        for file in sorted(Path(root).glob("sweeps/*/sweep.json")):
            sweep = Sweep(file)
            sweeps.setdefault((sweep.name, sweep.about.get("created")), sweep)
    return list(sweeps.values())


def _benchmark(file: Path, root: Path) -> Benchmark:
    folder = (root.resolve() / file.relative_to(root)).parent
    name = folder.relative_to(root.resolve().parent).as_posix()
    return Benchmark(name, _read(file, _BENCHMARK))
