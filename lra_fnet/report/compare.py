"""Two runs or two models side by side: the difference with its interval, and what else differs."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.intervals import Difference, bits, holm, paired, seeds, unpaired
from lra_fnet.report import accuracy as tables
from lra_fnet.report import results as record

_WELCH = "Welch's t-test over seeds"
_MCNEMAR = "McNemar's exact test, Tango's interval"
_UNPAIRED = "two-proportion z-test, Newcombe's interval"


def find(text: str, roots: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The run of a folder, or all runs of a model, by seed.

    Args:
      text: a run folder, or preset/task/model[+variant].
      roots: where runs of a model are looked for, see `results.collect`.

    Raises:
      UserError: neither is there, or a result is broken.
    """
    if (Path(text) / "result.json").is_file():
        return [record.read(Path(text))]
    found = [run for run in record.collect(roots) if _model(run) == text]
    if not found:
        raise UserError(
            f"--compare expects a run folder with a result.json, or preset/task/model[+variant] "
            f"with runs under {' or '.join(map(str, roots))}, got {text!r}"
        )
    return found


def compare(first: Sequence[dict], second: Sequence[dict]) -> dict[str, Any]:
    """Everything that two sets of runs on the same rows differ in; accuracies in %.

    The checkpoint is the best on validation. Several seeds on both sides are compared over seeds;
    one run each row by row, if both know which test rows they got right; all else as if their rows
    were independent. `pairs` holds the runs of equal seeds row by row, p adjusted by Holm.

    Args:
      first: results of one model, as `results.collect` gives them.
      second: the same of the other.

    Raises:
      UserError: they have other tasks or other rows, or a side has no complete run.
    """
    sides = [_side(runs) for runs in (first, second)]
    for key, what in (("task", "task"), ("data_sha256", "data")):
        values = [sorted({run[key] for run in runs}) for runs in sides]
        if values[0] != values[1] or len(values[0]) > 1:
            texts = [" and ".join(value[:12] for value in side) for side in values]
            raise UserError(
                f"--compare expects runs on the same {what}, got {texts[0]} ({_model(first[0])}) "
                f"and {texts[1]} ({_model(second[0])}): name two that share it"
            )
    a, b = sides
    splits = ["validation"]
    if all(run["test"] is not None for run in (*a, *b)):
        splits.append("test")
    return {
        "task": a[0]["task"],
        "data_sha256": a[0]["data_sha256"],
        "a": _facts(a),
        "b": _facts(b),
        "differences": {split: _difference(a, b, split) for split in splits},
        "pairs": _pairs(a, b),
        "steps_per_second_ratio": _ratio(a, b),
        "config": [str(d) for d in config.differing(a[0]["config"], b[0]["config"])],
        "notes": _notes(first, second),
    }


def _side(runs: Sequence[dict]) -> list[dict]:
    """The runs that ended well.

    Raises:
      UserError: there is none.
    """
    complete = [run for run in runs if run["state"] == "complete"]
    if not complete:
        states = ", ".join(sorted({run["state"] for run in runs}))
        raise UserError(
            f"--compare expects a complete run of {_model(runs[0])}, got {states}: "
            "see its command's last line"
        )
    return complete


def _model(run: dict) -> str:
    """preset/task/model[+variant]."""
    name = run["model"] + (f"+{run['variant']}" if run["variant"] else "")
    return f"{run['preset']}/{run['task']}/{name}"


def _facts(runs: Sequence[dict]) -> dict[str, Any]:
    speeds = [run["steps_per_second"] for run in runs]
    return {
        "model": _model(runs[0]),
        "seeds": [run["seed"] for run in runs],
        "folders": [run["folder"] for run in runs],
        "overrides": runs[0]["overrides"],
        "parameters": runs[0]["parameters"],
        "steps_per_second": None if None in speeds else statistics.fmean(speeds),
        "device": runs[0]["device"],
    }


def _accuracies(runs: Sequence[dict], split: str) -> list[float]:
    scores = [run[split]["best"] for run in runs]
    return [100 * counts["correct"] / counts["count"] for counts in scores]


def _difference(a: Sequence[dict], b: Sequence[dict], split: str) -> dict[str, Any]:
    """Mean accuracy of both and their difference, by the test that fits, and why it does."""
    accuracies = [_accuracies(runs, split) for runs in (a, b)]
    found, test, why = _tested(a, b, split, accuracies)
    means = {name: statistics.fmean(x) for name, x in zip("ab", accuracies, strict=True)}
    return {**means, **found._asdict(), "test": test, "why": why}


def _tested(a, b, split, accuracies) -> tuple[Difference, str, str]:
    numbers = f"{len(a)} and {len(b)} seeds"
    if found := seeds(*accuracies):
        return found, _WELCH, f"{numbers}, so that the spread over seeds is known"
    if len(a) == len(b) == 1:
        scores = [runs[0][split]["best"] for runs in (a, b)]
        hits = [bits(counts) for counts in scores]
        if hits[0] is not None and hits[1] is not None:
            why = "one run each, on the same rows; two seeds or more of each would tell of seeds"
            return paired(*hits), _MCNEMAR, why
        why = "one run each, and which rows they got right is not kept: the pairs are missing"
    elif min(len(a), len(b)) > 1:
        why = f"{numbers} without any spread: the mean on the rows of one split"
    else:
        why = f"{numbers}, two of each are needed: seeds are missing; the mean on one split's rows"
    rows = [runs[0][split]["best"]["count"] for runs in (a, b)]
    shares = [statistics.fmean(x) / 100 for x in accuracies]
    return unpaired(shares[0] * rows[0], rows[0], shares[1] * rows[1], rows[1]), _UNPAIRED, why


def _pairs(a: Sequence[dict], b: Sequence[dict]) -> list[dict[str, Any]]:
    """Runs of equal seeds compared on the test rows; none where each side is one run."""
    if len(a) == len(b) == 1:
        return []
    others = {run["seed"]: run for run in b}
    shared = [(run, others[run["seed"]]) for run in a if run["seed"] in others]
    found = []
    for pair in shared:
        hits = [bits(run["test"]["best"]) if run["test"] else None for run in pair]
        if hits[0] is not None and hits[1] is not None:
            found.append({"seed": pair[0]["seed"], **paired(*hits)._asdict(), "test": _MCNEMAR})
    adjusted = holm([pair["p_value"] for pair in found])
    return [{**pair, "p_adjusted": p_value} for pair, p_value in zip(found, adjusted, strict=True)]


def _ratio(a: Sequence[dict], b: Sequence[dict]) -> float | None:
    """Steps/s of a over those of b; None unless every run had the same device."""
    speeds = [_facts(runs)["steps_per_second"] for runs in (a, b)]
    if any(run["device"] != a[0]["device"] for run in (*a, *b)) or not all(speeds):
        return None
    return speeds[0] / speeds[1]


def _notes(first: Sequence[dict], second: Sequence[dict]) -> list[str]:
    notes = []
    for runs in (first, second):
        left = [run for run in runs if run["state"] != "complete"]
        if left:
            states = ", ".join(f"seed {run['seed']} {run['state']}" for run in left)
            notes.append(f"{_model(runs[0])}: left out {states}")
        if names := tables.bound_otherwise({run["config"] for run in runs}):
            notes.append(f"The runs of {_model(runs[0])} differ in {', '.join(names)}")
    every = (*first, *second)
    closed = [run["folder"] for run in every if run["state"] == "complete" and not run["test"]]
    if closed:
        notes.append(f"No test accuracy: {', '.join(closed)} never read the test split")
    if any(run["validation_is_test"] for run in every):
        notes += tables.marks("paper", validation_is_test=True, uses_mask=True)
    return notes


def render(found: dict[str, Any]) -> list[Table | Text]:
    """What `lra-fnet report --compare` prints of a comparison."""
    a, b = found["a"], found["b"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for head in ("A", "B", "A - B", "95 % interval", "p"):
        table.add_column(head, justify="right")
    for split, numbers in found["differences"].items():
        accuracies = (f"{numbers[side]:.2f} %" for side in "ab")
        table.add_row(split, *accuracies, *_interval(numbers), f"{numbers['p_value']:.2g}")
    for pair in found["pairs"]:
        p_value = f"{pair['p_adjusted']:.2g} (Holm)"
        table.add_row(f"test, seed {pair['seed']}", "", "", *_interval(pair), p_value)
    table.add_row("parameters", f"{a['parameters']:,}", f"{b['parameters']:,}")
    ratio = found["steps_per_second_ratio"]
    table.add_row("steps/s", *map(_speed, (a, b)), "" if ratio is None else f"x {ratio:.2f}")
    lines = [
        f"{name}  {side['model']}, seed {', '.join(map(str, side['seeds']))}"
        for name, side in (("A", a), ("B", b))
    ]
    below = [f"{s}: {d['test']} ({d['why']})" for s, d in found["differences"].items()]
    if found["pairs"]:
        below.append(f"test, each seed: {_MCNEMAR}; these tell of two runs, not of two models")
    if ratio is None:
        below.append("steps/s: no ratio, the runs were not timed on one device")
    below += found["notes"]
    below += ["Configurations (A -> B):", *(f"  {line}" for line in found["config"] or ["equal"])]
    return [Text("\n".join(lines)), table, Text("\n".join(below))]


def _interval(numbers: dict[str, Any]) -> tuple[str, str]:
    return f"{numbers['mean']:+.2f}", f"{numbers['low']:+.2f} to {numbers['high']:+.2f}"


def _speed(side: dict[str, Any]) -> str:
    return "-" if side["steps_per_second"] is None else f"{side['steps_per_second']:.3g}"


def main(first: str, second: str, roots: Sequence[str | Path], *, as_json: bool = False) -> None:
    """Prints the comparison of two run folders or models, as text or as one JSON object.

    Raises:
      UserError: see `find` and `compare`.
    """
    found = compare(find(first, roots), find(second, roots))
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file has no edge to fold at
    for part in render(found):
        console.print(part)
