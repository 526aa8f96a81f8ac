"""Reads result.json files and refuses broken ones, each with one line that names the file."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra_fnet import intervals as statistics
from lra_fnet.errors import UserError
from lra_fnet.report import accuracy as tables

SCHEMA = 1
STATES = ("complete", "OOM", "diverged")

_NUMBER, _NONE = (int, float), type(None)
_FIELDS: dict[str, tuple[type, ...]] = {
    "state": (str,),
    "task": (str,),
    "model": (str,),
    "preset": (str,),
    "overrides": (list,),
    "variant": (str, _NONE),
    "seed": (int,),
    "floor": (dict,),
    "mixer_length": (int, _NONE),
    "uses_mask": (bool,),
    "validation_is_test": (bool,),
    "validation": (dict, _NONE),
    "test": (dict, _NONE),
    "train": (dict, _NONE),
    "device": (dict,),
    "versions": (dict,),
    "commit": (str, _NONE),
    "dirty": (bool, _NONE),
    "data_sha256": (str,),
    "config": (str,),
}
_COMPLETE: dict[str, tuple[type, ...]] = {  # further demands on complete runs
    "validation": (dict,),
    "train": (dict,),
    "parameters": (int,),
    "steps_per_second": (*_NUMBER, _NONE),
    "peak_bytes": (int, _NONE),
    "wall_seconds": (*_NUMBER, _NONE),
}
_DEVICE: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "platform": (str,),
    "count": (int,),
    "cores": (int,),
}


def _type_problem(value: Any, fields: dict[str, tuple[type, ...]], where: str) -> str | None:
    """The first key of a mapping that is missing or of another type; None if all is well."""
    for key, types in fields.items():
        if key not in value:
            return f"{where}{key!r} is missing"
        wrong_bool = isinstance(value[key], bool) and bool not in types  # Python's bool is an int
        if wrong_bool or not isinstance(value[key], types):
            names = " or ".join("null" if t is _NONE else t.__name__ for t in types)
            return f"{where}{key!r} should be {names}, is {json.dumps(value[key])[:40]}"
    return None


def _counts_problem(counts: Any, where: str) -> str | None:
    if not isinstance(counts, dict):
        return f"{where} should hold correct and count, is {json.dumps(counts)[:40]}"
    if problem := _type_problem(counts, {"correct": (int,), "count": (int,)}, f"{where}: "):
        return problem
    if not 0 <= counts["correct"] <= counts["count"] or counts["count"] == 0:
        return f"{where}: {counts['correct']} correct of {counts['count']} rows is impossible"
    return None


def _sums_problem(result: dict[str, Any]) -> str | None:
    """What is wrong with the counts of a complete run. Its test may be null: split left closed."""
    if problem := _type_problem(result, _COMPLETE, ""):
        return problem
    if problem := _counts_problem(result["train"], "train"):
        return problem
    for split in ("validation", "test") if result["test"] is not None else ("validation",):
        for checkpoint in ("best", "last"):
            where, counts = f"{split} {checkpoint}", result[split].get(checkpoint)
            if problem := _counts_problem(counts, where):
                return problem
            if problem := _type_problem(counts, {"step": (int,)}, f"{where}: "):
                return problem
            if split == "test" and counts["count"] != result["floor"]["count"]:
                return f"{where}: {counts['count']} rows, the floor has {result['floor']['count']}"
            try:
                statistics.bits(counts)
            except ValueError as error:
                return f"{where}: 'correct_bits' does not fit: {error}"
    return None


def _problem(result: Any, parts: tuple[str, ...]) -> str | None:
    """What is wrong with a result that was read under <root>/parts; None if nothing is."""
    if not isinstance(result, dict):
        return f"expected a JSON object, got a {type(result).__name__}"
    if result.get("schema") != SCHEMA:
        return f"expected schema {SCHEMA}, got {json.dumps(result.get('schema'))[:40]}"
    if problem := _type_problem(result, _FIELDS, ""):
        return problem
    if problem := _type_problem(result["device"], _DEVICE, "device: "):
        return problem
    if result["state"] not in STATES:
        return f"expected a state of {', '.join(STATES)}, got {json.dumps(result['state'])[:40]}"
    if problem := _counts_problem(result["floor"], "floor"):
        return problem
    if result["state"] == "complete" and (problem := _sums_problem(result)):
        return problem
    if not all(isinstance(binding, str) for binding in result["overrides"]):
        return f"'overrides' should be strings, are {json.dumps(result['overrides'])[:40]}"
    if result["overrides"] and result["variant"] is None:
        return "a run with overrides needs a variant"
    name = result["model"] + (f"+{result['variant']}" if result["variant"] else "")
    said = (result["preset"], result["task"], name, f"seed{result['seed']}")
    if said != parts:
        return f"it says {'/'.join(said)}, its folder is {'/'.join(parts)}"
    return None


def _read(file: Path, parts: tuple[str, ...]) -> dict[str, Any]:
    remedy = "move its folder away, or run that run again with FORCE=1"
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{file}: not a readable result ({reason}); {remedy}") from error
    if problem := _problem(result, parts):
        raise UserError(f"{file}: {problem}; {remedy}")
    return result


def read(folder: Path) -> dict[str, Any]:
    """The result in a run folder, as `collect` gives it.

    Raises:
      UserError: there is none, or it is broken.
    """
    parts = folder.resolve().parts
    result = _read(folder / "result.json", parts[-4:])
    return {**result, "folder": "/".join(parts[-5:])}


def collect(roots: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Every result.json at <root>/<preset>/<task>/<model>[+<variant>]/seed<k>/.

    A run that stands under the same path in two roots counts once: that of the earlier root, so
    with the default roots the one under runs/ wins over the one under results/. Folders of other
    names (hidden ones, runs moved aside) are not read; a root that is not there holds no runs.

    Args:
      roots: folders, in the order of precedence.

    Returns:
      The results by preset, task, model, variant and seed, each with two more keys. `folder`: the
      run's folder as <name of root>/<preset>/..., the same wherever the root lies; `path`: where it
      lies.

    Raises:
      UserError: a file that is no result of this schema, holds impossible counts, or lies in the
        folder of another run.
    """
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for root in map(Path, roots):
        for file in sorted(root.glob("*/*/*/*/result.json")):
            parts = file.relative_to(root).parts[:-1]
            regular = re.fullmatch(r"seed\d+", parts[-1]) and not any(p[0] == "." for p in parts)
            if regular and parts not in found:
                folder = "/".join((root.resolve().name, *parts))
                found[parts] = {**_read(file, parts), "folder": folder, "path": file.parent}
    runs = list(found.values())
    order = {
        key: tables.in_order({run[key] for run in runs}, known)
        for key, known in (
            ("preset", tables.PRESETS),
            ("task", list(tables.TASKS)),
            ("model", list(tables.published()["models"])),
        )
    }

    def place(run):
        return (
            *(names.index(run[key]) for key, names in order.items()),
            run["variant"] or "",
            run["seed"],
        )

    return sorted(runs, key=place)
