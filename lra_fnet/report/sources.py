"""What the report reads beside result.json: curves, sweeps, benchmarks, spans, readings of test."""

import collections
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra_fnet.errors import UserError
from lra_fnet.report.results import collect

_TRIAL = ("number", "task", "model", "preset", "seed", "overrides", "folder", "state")
_TRIAL_MEASURED = ("step", "num_steps", "validation", "error", "command")
_SELECTED = ("task", "model", "overrides", "seeds", "validation")
_SPAN = ("mean", "uniform", "layers", "rows")
_BENCHMARK = ("what", "side", "label", "length", "state", "task", "preset", "model")


@dataclasses.dataclass(frozen=True)
class Curve:
    """The course of a run, as pairs of an optimizer step and a number."""

    loss: list[tuple[int, float]]  # nats, mean of the training rows since the last line
    validation: list[tuple[int, float]]  # accuracy, %


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep's files: sweep.json, trials.json, selected.json."""

    name: str
    about: dict[str, Any]
    trials: list[dict[str, Any]]
    selected: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark.json: its folder as <name of root>/..., and its cells."""

    name: str
    cells: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Sources:
    """Everything that a report is made of. Runs are named by `folder`, see `results.collect`."""

    results: list[dict[str, Any]]
    curves: dict[str, Curve]
    spans: dict[str, dict[str, Any]]  # attention_span.json of a run
    begun: dict[str, dict[str, Any]]  # run.json of a run
    readings: dict[str, int]  # how often the test split was read
    sweeps: list[Sweep]
    benchmarks: list[Benchmark]


def read(roots: Sequence[str | Path], out_dir: str | Path = "reports") -> Sources:
    """Reads everything under the roots, and the benchmarks in `out_dir`.

    Raises:
      UserError: a file that cannot be read, or is not what its name says.
    """
    results = collect(roots)
    paths = {run["folder"]: run["path"] for run in results}
    spans = {folder: _json(path / "attention_span.json", dict) for folder, path in paths.items()}
    for folder, span in spans.items():
        _check(paths[folder] / "attention_span.json", [span] if span else [], _SPAN)
    begun = {folder: _json(path / "run.json", dict) for folder, path in paths.items()}
    curves = {folder: _curve(path / "metrics.jsonl") for folder, path in paths.items()}
    places = [(Path(root), Path(root) / "benchmark") for root in roots]
    places.append((Path(out_dir), Path(out_dir)))
    return Sources(
        results,
        {folder: curve for folder, curve in curves.items() if curve},
        {folder: span for folder, span in spans.items() if span},
        {folder: run for folder, run in begun.items() if run},
        _readings(results, roots),
        _sweeps(roots),
        [
            _benchmark(file, root)
            for root, place in places
            for file in sorted(place.rglob("benchmark.json"))
        ],
    )


def _json(file: Path, kind: type) -> Any:
    """The file's object, None where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({error}); move it away") from error
    if not isinstance(found, kind):
        raise UserError(
            f"{file}: expected a JSON {kind.__name__}, got a {type(found).__name__}; move it away"
        )
    return found


def _check(file: Path, entries: Sequence[Any], keys: Sequence[str]) -> None:
    for entry in entries:
        for key in keys:
            if not isinstance(entry, dict) or key not in entry:
                raise UserError(f"{file}: an entry lacks {key!r}; move it away")


def _lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a file of lines; one that is still being written is left out."""
    try:
        text = file.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({error}); move it away") from error


def _curve(file: Path) -> Curve | None:
    lines = _lines(file)
    try:
        loss = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
        validation = [
            (line["step"], 100 * line["accuracy"]) for line in lines if line["kind"] == "validation"
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"{file}: a line lacks {error}; move it away") from error
    return Curve(loss, validation) if loss or validation else None


def _readings(results: Sequence[dict[str, Any]], roots: Sequence[str | Path]) -> dict[str, int]:
    """Evaluations on test of each run: those in its root's test_log.jsonl, else its result's one.

    An evaluation is a line for each checkpoint that it scored.
    """
    logged: dict[Path, collections.Counter] = {}
    for root in map(Path, roots):
        lines = [line for line in _lines(root / "test_log.jsonl") if "run" in line]
        logged[root] = collections.Counter((line["run"], line.get("kind")) for line in lines)
    found = {}
    for run in results:
        root = run["path"].parents[3]
        name = run["path"].relative_to(root).as_posix()
        counts = [count for (path, _), count in logged[root].items() if path == name]
        found[run["folder"]] = max([int(run["test"] is not None), *counts])
    return found


def _sweeps(roots: Sequence[str | Path]) -> list[Sweep]:
    """Every sweep once: of one in two roots, the first root's."""
    found: dict[tuple, Sweep] = {}
    for root in roots:
        for file in sorted(Path(root).glob("sweeps/*/sweep.json")):
            sweep = _sweep(file)
            found.setdefault((sweep.name, sweep.about.get("created")), sweep)
    return list(found.values())


def _sweep(file: Path) -> Sweep:
    about = _json(file, dict)
    trials = _json(file.with_name("trials.json"), list) or []
    _check(file.with_name("trials.json"), trials, _TRIAL)
    whole = [dict.fromkeys(_TRIAL_MEASURED) | trial for trial in trials]
    selected = _json(file.with_name("selected.json"), list) or []
    _check(file.with_name("selected.json"), selected, _SELECTED)
    return Sweep(about.get("name", file.parent.name), about, whole, selected)


def _benchmark(file: Path, root: Path) -> Benchmark:
    cells = _json(file, list)
    _check(file, cells, _BENCHMARK)
    folder = (root.resolve() / file.relative_to(root)).parent
    return Benchmark(folder.relative_to(root.resolve().parent).as_posix(), cells)
