"""The lines below an accuracy table."""

import itertools
from collections import defaultdict
from collections.abc import Sequence

from lra_fnet import config, tasks
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.cell import Cell
from lra_fnet.report.accuracy.published import published
from lra_fnet.report.accuracy.table import Row, Table
from lra_fnet.run.result import Record

_STATES = {
    "-": "`-`: not run",
    "collapsed": "`collapsed`: no seed's answer depends on the input",
    "OOM": "`OOM`: out of memory",
    "FAIL": "`FAIL`: diverged, or Path-X at the majority floor",
    "n/a": "`n/a`: not reported by the source, or the same model as another row",
}


def legend(cells: Sequence[Cell]) -> str:
    """Returns what the texts of these cells mean."""
    words = (
        "Mean test accuracy (%) over seeds, ± the sample standard deviation for three or more; in "
        "parentheses the number of seeds"
    )
    states = {cell.state for cell in cells}
    listed = [words, *(meaning for state, meaning in _STATES.items() if state in states)]
    text = "; ".join(listed) + "."
    if any(cell.italic for cell in cells):
        text += " *Italics*: a seed is not significantly above the shallow baseline (5 % level)."
    return text


def below(table: Table, runs: Sequence[Record]) -> list[str]:
    """Returns the lines below a table.

    Args:
      table: without notes.
      runs: those of the preset.
    """
    rows = [*table.rows, *table.variants]
    notes = [*_setting(table.preset, rows), *methods(table), *_selected_on_test(table)]
    notes += _corpus(runs)
    by_cell: dict[str, list[Record]] = defaultdict(list)
    for run in runs:
        by_cell[run.label].append(run)
    for same in by_cell.values():
        where = f"{names.name_of(same[0])} on {tasks.title(same[0].task)}"
        notes += [f"{line}." for line in about_seeds(where, same)]
    return notes


def methods(table: Table) -> list[str]:
    """Returns a line that names the shallow baseline of each task, if there are any."""
    listed = [(task, table.baselines[task]) for task in table.tasks if task in table.baselines]
    words = "; ".join(f"{tasks.title(task)}: {method}" for task, method in listed)
    return [f"Shallow baseline, chosen on validation: {words}."] if words else []


def _setting(preset: str, rows: Sequence[Row]) -> list[str]:
    """Returns how a preset differs from the papers, and where the published numbers are from."""
    if preset in names.UNCOMPARED:
        return [f"Preset {preset} is far from the papers' settings: their results are not shown."]
    shown = {row.source for row in rows if row.published}
    papers = [published()["accuracy"][source] for source in names.SOURCES]
    words = [f"{paper['name']}: {paper['note']}" for paper in papers if paper["name"] in shown]
    lines = [f"Published numbers: {'; '.join(words)}."] if words else []
    if words and preset != "paper":
        lines.append("They are a rough guide: this preset differs from the papers' settings.")
    return lines


def _selected_on_test(table: Table) -> list[str]:
    """Returns a line that names the tasks whose checkpoints were selected on the test rows."""
    named = [
        table.columns[task]
        for task in table.tasks
        if any(run.validation_is_test for row in table.ours for run in row.cells[task].runs)
    ]
    words = "the checkpoints were selected on the test rows (validation is test)"
    return [f"On {' and '.join(named)}, {words}."] if named else []


def _corpus(runs: Sequence[Record]) -> list[str]:
    """Returns a line about runs that began from an encoder that may have seen the test texts."""
    begun = {tasks.title(run.task) for run in runs if run.init and run.init.task == "corpus"}
    words = "The corpus of pre-training may hold test rows of"
    return [f"{words} {', '.join(sorted(begun))}."] * bool(begun)


def about_seeds(where: str, runs: Sequence[Record]) -> list[str]:
    """Returns lines about runs that differ in more than their seeds (`differing`), or in less.

    Runs that began from one pre-trained encoder have no seeds of their own in the first stage.
    """
    found = differing(runs)
    lines = [f"The runs of {where} differ in {', '.join(found)}"] if found else []
    encoders = [run.init.sha256 for run in runs if run.init]
    if len(set(encoders)) < len(encoders):
        lines.append(
            f"Several runs of {where} began from the same pre-trained encoder, so spreads and "
            "tests over seeds do not cover its own seed"
        )
    return lines


def differing(runs: Sequence[Record]) -> list[str]:
    """Returns in what runs differ that should differ in their seeds only: settings by their names.

    Skips settings that are missing from some runs and that the code no longer has: they were
    removed with the value that all of them have. Skips those that the model does not read
    (`config.inert`).
    """
    facts = {
        "their data": {run.data_sha256 for run in runs},
        "the code of their imports": {str(sorted(run.code.items())) for run in runs},
        "their pre-training": {run.init and run.init.setup for run in runs},
    }
    changed: set[str] = set()
    for old, new in itertools.combinations(sorted({run.config for run in runs}), 2):
        differences = config.differing(old, new)
        absent = {d.name for d in differences if "absent" in (d.old, d.new)}
        changed |= {d.name for d in differences} - {n for n in absent if not config.is_setting(n)}
    changed -= config.inert({run.parameters for run in runs})
    return [name for name, values in facts.items() if len(values) > 1] + sorted(changed)
