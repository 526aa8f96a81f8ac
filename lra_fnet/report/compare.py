"""Compares two runs or two models: the difference with its interval, and everything else."""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from lra_fnet import config, significance
from lra_fnet.errors import UserError, did_you_mean
from lra_fnet.machine import progress, terminal
from lra_fnet.machine.terminal import Fitted
from lra_fnet.report import footnotes, text
from lra_fnet.report.cells import MARKS
from lra_fnet.report.grid import Grid, rounded
from lra_fnet.run import result as record
from lra_fnet.run.result import Device, Record, Split
from lra_fnet.significance import PAIRED, Difference


def find(text: str, roots: Sequence[str | Path]) -> list[Record]:
    """Returns the run in a folder, or all runs of a model, by seed.

    Args:
      text: a run folder, or preset/task/model[+variant].
      roots: where to look for runs of a model, see `record.collect`.

    Raises:
      UserError: there is neither, or the folder's result is damaged.
    """
    if run := record.read(Path(text), moved=True):
        return [run]
    collected, problems = record.collect(roots)
    for problem in problems:
        progress.say(f"left out: {problem}")
    runs = [run for run in collected if run.label == text]
    if not runs:
        raise UserError(
            f"expected a run folder with a result.json, or preset/task/model[+variant] with runs "
            f"under {' or '.join(map(str, roots))}, got {text!r}"
            + did_you_mean(text, {run.label for run in collected})
            + ": name one, or its folder with --runs or --results"
        )
    return runs


@dataclasses.dataclass(frozen=True)
class Side:
    """The complete runs of one side."""

    model: str  # preset/task/model[+variant]
    seeds: Sequence[int]
    folders: Sequence[str]
    overrides: Sequence[str]  # those of the first run, as the next three
    parameters: int | None
    steps_per_second: float | None  # mean; None unless every run has it, on one kind of device
    device: Device


class Pair(NamedTuple):
    """The runs of one seed, compared row by row on test."""

    seed: int
    difference: Difference
    p_adjusted: float  # by Holm's method


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Everything in which two sets of runs on the same rows differ; accuracies in %."""

    task: str
    data_sha256: str
    a: Side
    b: Side
    differences: Mapping[Split, significance.Comparison]
    pairs: Sequence[Pair]  # none if each side is one run
    steps_per_second_ratio: float | None  # a over b; None unless all runs had the same device
    config: Sequence[str]  # a line for each setting that differs
    notes: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `lra-fnet compare --json` prints."""
        differences = {
            split: {"a": c.a, "b": c.b, **c.difference._asdict(), "test": c.test, "why": c.why}
            for split, c in self.differences.items()
        }
        pairs = [
            {"seed": seed, **difference._asdict(), "test": PAIRED, "p_adjusted": p_adjusted}
            for seed, difference, p_adjusted in self.pairs
        ]
        return dataclasses.asdict(self) | {"differences": differences, "pairs": pairs}


def compare(first: Sequence[Record], second: Sequence[Record]) -> RunComparison:
    """Compares two sets of runs on the same rows.

    The checkpoint is the best on validation; `significance.compare` chooses the test.

    Raises:
      UserError: the tasks or the rows differ, a side has no complete run or one of pre-training, or
        a run is on both sides.
    """
    a, b = (_complete(runs) for runs in (first, second))
    if pretrained := [run.label for run in (*a, *b) if run.denoise]:
        raise UserError(
            f"{pretrained[0]} is a run of `lra-fnet pretrain`: masked tokens of one row depend on "
            "each other, so no test applies; name runs that began from it (`lra-fnet train --init`)"
        )
    for field, what in (("task", "task"), ("data_sha256", "data")):
        values = [sorted({getattr(run, field) for run in runs}) for runs in (a, b)]
        if values[0] != values[1] or len(values[0]) > 1:
            sets = [sorted({f"{run.task}/{run.dataset or '?'}" for run in s}) for s in (a, b)]
            if what == "task" or (sets[0] == sets[1] and len(sets[0]) == 1):
                sets = [[value[:12] for value in side] for side in values]
            texts = [" and ".join(side) for side in sets]
            raise UserError(
                f"expected runs on the same {what}, got {texts[0]} ({a[0].label}) and {texts[1]} "
                f"({b[0].label}): name two that share it"
            )
    if shared := [run for run in a if run.raw in [other.raw for other in b]]:  # or its copy
        raise UserError(
            f"{shared[0].label}, seed {shared[0].seed}, is on both sides: name two sets of runs "
            "without a run in common"
        )
    splits: list[Split] = ["validation"]
    if all(run.tested for run in (*a, *b)):
        splits.append("test")
    sides = _side(a), _side(b)
    return RunComparison(
        task=a[0].task,
        data_sha256=a[0].data_sha256,
        a=sides[0],
        b=sides[1],
        differences={split: significance.compare(a, b, split) for split in splits},
        pairs=_pairs(a, b),
        steps_per_second_ratio=_ratio(*sides) if _one_device([*a, *b]) else None,
        config=[str(change) for change in _changes(a[0], b[0])],
        notes=_notes(first, second),
    )


def _changes(a: Record, b: Record) -> list[config.Difference]:
    """Returns the settings in which two runs differ, and the user's code and the pre-training."""
    code = a.code.keys() | b.code.keys()
    facts = {
        f"code of {name}": [run.code.get(name, "absent") for run in (a, b)] for name in sorted(code)
    }
    facts["pre-training"] = [run.init.setup if run.init else "none" for run in (a, b)]
    different = [config.Difference(name, *pair) for name, pair in facts.items() if len({*pair}) > 1]
    return config.differing(a.config, b.config) + different


def _complete(runs: Sequence[Record]) -> list[Record]:
    complete = [run for run in runs if run.complete]
    if not complete:
        states = ", ".join(sorted({run.state for run in runs}))
        raise UserError(
            f"expected a complete run of {runs[0].label}, got {states}: see the last line that its "
            "command printed"
        )
    return complete


def _side(runs: Sequence[Record]) -> Side:
    speeds = [run.steps_per_second for run in runs if run.steps_per_second is not None]
    comparable = len(speeds) == len(runs) and _one_device(runs)
    return Side(
        model=runs[0].label,
        seeds=[run.seed for run in runs],
        folders=[run.folder for run in runs],
        overrides=runs[0].overrides,
        parameters=runs[0].parameters,
        steps_per_second=statistics.fmean(speeds) if comparable else None,
        device=runs[0].device,
    )


def _one_device(runs: Sequence[Record]) -> bool:
    return len({device for run in runs for device in run.devices}) == 1


def _pairs(a: Sequence[Record], b: Sequence[Record]) -> list[Pair]:
    """Compares runs of equal seeds on the test rows; nothing if each side is one run."""
    if len(a) == len(b) == 1:
        return []
    right = [{run.seed: run.right("test") for run in runs} for runs in (a, b)]
    pairs = {
        seed: significance.paired(rows, right[1][seed])
        for seed, rows in right[0].items()
        if rows is not None and right[1].get(seed) is not None
    }
    adjusted = significance.holm([difference.p_value for difference in pairs.values()])
    return [
        Pair(seed, difference, p_value)
        for (seed, difference), p_value in zip(pairs.items(), adjusted, strict=True)
    ]


def _ratio(a: Side, b: Side) -> float | None:
    """Returns steps/s of a over those of b, or None if one is not known."""
    if not (a.steps_per_second and b.steps_per_second):
        return None
    return a.steps_per_second / b.steps_per_second


def _notes(first: Sequence[Record], second: Sequence[Record]) -> list[str]:
    notes = []
    for runs in (first, second):
        failed = [f"seed {run.seed} {run.state}" for run in runs if not run.complete]
        if failed:
            notes.append(f"{runs[0].label}: left out {', '.join(failed)}")
        notes += footnotes.about_seeds(runs[0].label, runs)
    untested = [run.folder for run in (*first, *second) if not run.tested]
    if untested:
        notes.append(f"No test accuracy: {', '.join(untested)} never read the test split")
    if any(run.validation_is_test for run in (*first, *second)):
        notes.append(MARKS["validation_is_test"])
    return notes


def render(comparison: RunComparison) -> list[Fitted | Text]:
    """Returns what `lra-fnet compare` prints of a comparison."""
    a, b, ratio = comparison.a, comparison.b, comparison.steps_per_second_ratio
    rows = []
    for split, compared in comparison.differences.items():
        accuracies = (f"{mean:.2f} %" for mean in (compared.a, compared.b))
        p_value = significance.p_text(compared.difference.p_value)
        rows.append([split, *accuracies, *_interval(compared.difference), p_value])
    for pair in comparison.pairs:
        p_value = f"{significance.p_text(pair.p_adjusted)} (Holm)"
        rows.append([f"test, seed {pair.seed}", "", "", *_interval(pair.difference), p_value])
    rows.append(["parameters", f"{a.parameters:,}", f"{b.parameters:,}"])
    rows.append(["steps/s", *map(_speed, (a, b)), "" if ratio is None else f"x {ratio:.2f}"])
    head = ["", "A", "B", "A - B", "95 % interval", "p"]
    whole = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    table = text.fitted(Grid("", head, whole))
    head = [
        f"{name}  {side.model}, seed {', '.join(map(str, side.seeds))}"
        for name, side in (("A", a), ("B", b))
    ]
    notes = [f"{split}: {c.test} ({c.why})" for split, c in comparison.differences.items()]
    if "validation" in comparison.differences:
        notes[0] += "; these rows selected the checkpoints"
    if comparison.pairs:
        notes.append(f"test, each seed: {PAIRED}; these compare two runs, not two models")
    if ratio is None:
        notes.append("steps/s: no ratio, because the runs were not all timed on one device")
    else:
        notes.append(
            "steps/s: runs may have shared their machine; lra-fnet benchmark measures speed"
        )
    notes += [*comparison.notes, "Configurations (A -> B):"]
    notes += [f"  {line}" for line in comparison.config or ["equal"]]
    return [Text("\n".join(head)), table, Text("\n".join(notes))]


def _interval(difference: Difference) -> tuple[str, str]:
    return f"{difference.mean:+.2f}", f"{difference.low:+.2f} to {difference.high:+.2f}"


def _speed(side: Side) -> str:
    return "-" if side.steps_per_second is None else rounded(side.steps_per_second)


def main(first: str, second: str, roots: Sequence[str | Path], *, as_json: bool = False) -> None:
    """Prints the comparison of two run folders or models, as text or as one JSON object.

    Raises:
      UserError: see `find` and `compare`.
    """
    comparison = compare(find(first, roots), find(second, roots))
    if as_json:
        print(json.dumps(comparison.to_json(), indent=1))
        return
    console = terminal.console()
    for part in render(comparison):
        console.print(part)
