"""Compares two runs or two models: the difference with its interval, and everything else."""

import dataclasses
import glob
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from lra_fnet import config, significance
from lra_fnet.errors import UserError, did_you_mean
from lra_fnet.machine import progress, terminal
from lra_fnet.machine.terminal import Fitted
from lra_fnet.report.accuracy import notes
from lra_fnet.report.render.grid import Grid, rounded
from lra_fnet.report.render.text import fitted
from lra_fnet.run.result import Record, Split, collect, read
from lra_fnet.significance import Comparison, p_text


def find(text: str, roots: Sequence[str | Path]) -> list[Record]:
    """Returns the run in a folder, or all runs of a model, by seed.

    Args:
      text: a run folder, or preset/task/model[+variant].
      roots: where to look for runs of a model, see `collect`.

    Raises:
      UserError: there is neither, or the folder's result is damaged.
    """
    if run := read(Path(text), moved=True):
        return [run]
    named = text.count("/") == 2 and all(text.split("/"))
    collected, problems = collect(roots, glob.escape(text) if named else "*/*/*")
    if not collected:  # for the names that are close
        collected, problems = collect(roots)
    for problem in problems:
        progress.say(f"left out: {problem}")
    runs = sorted((run for run in collected if run.label == text), key=lambda run: run.seed)
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
    parameters: int | None  # those of the first run
    steps_per_second: float | None  # mean; None unless every run has it
    accuracies: Mapping[str, float]  # means in %


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Everything in which two sets of runs on the same rows differ; accuracies in %."""

    task: str
    data_sha256: str
    a: Side
    b: Side
    test: Comparison | None  # None unless every run recorded which test rows it got right
    config: Sequence[str]  # a line for each setting that differs
    notes: Sequence[str]


def compare(first: Sequence[Record], second: Sequence[Record]) -> RunComparison:
    """Compares two sets of runs on the same rows, at the checkpoints best on validation.

    Raises:
      UserError: the tasks or the rows differ, a side has no complete run, or a run is on
        both sides.
    """
    a, b = (_complete(runs) for runs in (first, second))
    for what, of in (("task", lambda run: run.task), ("data", lambda run: run.data_sha256[:12])):
        sides = [" and ".join(sorted({of(run) for run in runs})) for runs in (a, b)]
        if sides[0] != sides[1] or " and " in sides[0]:
            raise UserError(
                f"expected runs on the same {what}, got {sides[0]} ({a[0].label}) and {sides[1]} "
                f"({b[0].label}): name two that share it"
            )
    if shared := [run for run in a if run.raw in [other.raw for other in b]]:  # or its copy
        raise UserError(
            f"{shared[0].label}, seed {shared[0].seed}, is on both sides: name two sets of runs "
            "without a run in common"
        )
    right = [[run.right("test") for run in runs] for runs in (a, b)]
    sides = _side(a), _side(b)
    return RunComparison(
        task=a[0].task,
        data_sha256=a[0].data_sha256,
        a=sides[0],
        b=sides[1],
        test=significance.compare(*right),
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
    splits: tuple[Split, ...] = ("validation", "test")
    scores = {s: [a for run in runs if (a := run.accuracy(s)) is not None] for s in splits}
    return Side(
        model=runs[0].label,
        seeds=[run.seed for run in runs],
        parameters=runs[0].parameters,
        steps_per_second=statistics.fmean(speeds) if len(speeds) == len(runs) else None,
        accuracies={s: statistics.fmean(x) for s, x in scores.items() if len(x) == len(runs)},
    )


def _notes(first: Sequence[Record], second: Sequence[Record]) -> list[str]:
    lines = []
    for runs in (first, second):
        failed = [f"seed {run.seed} {run.state}" for run in runs if not run.complete]
        if failed:
            lines.append(f"{runs[0].label}: left out {', '.join(failed)}")
        lines += notes.about_seeds(runs[0].label, runs)
    if len({run.trained_on for run in (*first, *second)}) > 1:
        lines.append("steps/s: not all on one device")
    untested = [run.folder for run in (*first, *second) if not run.tested]
    if untested:
        lines.append(f"No test accuracy: {', '.join(untested)} never read the test split")
    if any(run.validation_is_test for run in (*first, *second)):
        lines.append("The checkpoints were selected on the test rows (validation is test)")
    return lines


def render(comparison: RunComparison) -> list[Fitted | Text]:
    """Returns what `lra-fnet compare` prints of a comparison."""
    a, b = comparison.a, comparison.b
    rows = []
    for split in (s for s in a.accuracies if s in b.accuracies):
        means = a.accuracies[split], b.accuracies[split]
        tested = ["", ""]
        if split == "test" and (test := comparison.test):
            tested = [f"{test.low:+.2f} to {test.high:+.2f}", p_text(test.p_value)]
        rows.append([split, *(f"{m:.2f} %" for m in means), f"{means[0] - means[1]:+.2f}", *tested])
    rows.append(["parameters", f"{a.parameters:,}", f"{b.parameters:,}", "", "", ""])
    speeds = ["-" if s is None else rounded(s) for s in (a.steps_per_second, b.steps_per_second)]
    rows.append(["steps/s", *speeds, "", "", ""])
    table = fitted(Grid("", ["", "A", "B", "A - B", "95 % interval", "p"], rows))
    head = [
        f"{name}  {side.model}, seed {', '.join(map(str, side.seeds))}"
        for name, side in (("A", a), ("B", b))
    ]
    lines = [f"test: {comparison.test.test}"] if comparison.test else []
    lines += [*comparison.notes, "Configurations (A -> B):"]
    lines += [f"  {line}" for line in comparison.config or ["equal"]]
    return [Text("\n".join(head)), table, Text("\n".join(lines))]


def main(first: str, second: str, roots: Sequence[str | Path], *, as_json: bool = False) -> None:
    """Prints the comparison of two run folders or models, as text or as one JSON object.

    Raises:
      UserError: see `find` and `compare`.
    """
    comparison = compare(find(first, roots), find(second, roots))
    if as_json:
        test = comparison.test and comparison.test._asdict()
        print(json.dumps(dataclasses.asdict(comparison) | {"test": test}, indent=1))
        return
    console = terminal.console()
    for part in render(comparison):
        console.print(part)
