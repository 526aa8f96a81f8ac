"""Builds the accuracy tables from runs and published numbers."""

import dataclasses
from collections.abc import Iterator, Sequence

from lra_fnet import config, significance, tasks
from lra_fnet.report.accuracy import names, notes
from lra_fnet.report.accuracy.cell import AVERAGES, TASKS, Cell, averages, cell
from lra_fnet.report.accuracy.published import published, published_cells
from lra_fnet.report.accuracy.table import Row, Table
from lra_fnet.run.result import Record
from lra_fnet.significance import LEVEL, SEEDS


def tables(runs: Sequence[Record]) -> list[Table]:
    """Returns one table per preset; a row holds the runs of one model with one set of overrides.

    If a variant's name stands for several sets, the labels of their rows list them.

    Runs with overrides are variants, except those on users' tasks alone, from scratch. A run that
    finished without reading the test split (a trial of a sweep) is in no table, as is one of a way
    to compute another model. Tables are in the order paper, lra-code, tuned, small, cpu, then
    others by name.
    """
    tested = [run for run in names.sort(runs) if run.tested and not names.speed_only(run.model)]
    presets = dict.fromkeys(run.preset for run in tested)
    return [_table(preset, [run for run in tested if run.preset == preset]) for preset in presets]


def _table(preset: str, runs: Sequence[Record]) -> Table:
    runs = [run for run in runs if run.task not in names.SMOKE.get(preset, ())]
    own_tasks = sorted({run.task for run in runs}.difference(TASKS))  # those of users
    every = [*TASKS, *own_tasks]
    rows: list[Row] = []
    variants: list[Row] = []
    for model in names.models_in_order(run.model for run in runs):
        here = [run for run in runs if run.model == model]
        recipes = sorted({_recipe(run) for run in here})
        for variant, overrides in recipes:
            same = [run for run in here if _recipe(run) == (variant, overrides)]
            is_shared = [name for name, _ in recipes].count(variant) > 1
            # A task of the user has no settings of its own in a preset: overrides are the rule.
            apart = variant and any(run.task in TASKS or run.init for run in same)
            (variants if apart else rows).append(_our_row(same, every, overrides * is_shared))
        rows += [] if preset in names.UNCOMPARED else _published_rows(model, every)
    rows, variants = _finished(rows, every, rows), _finished(variants, every, rows)
    for column in every:
        _embolden(rows, column)
    baselines: dict[str, str] = {}
    rows += _references(rows, variants, every, baselines)
    ours = [row for row in [*rows, *variants] if row.ours]
    columns = {
        column: title
        for column, title in (TASKS | AVERAGES | {t: tasks.title(t) for t in own_tasks}).items()
        if any(row.cells[column].runs or row.cells[column].mean for row in ours)
    }
    rows = [row for row in rows if row.ours or any(row.cells[c].state != "n/a" for c in columns)]
    table = Table(preset, columns, rows, variants, baselines)
    return dataclasses.replace(table, notes=notes.below(table, runs))


def _recipe(run: Record) -> tuple[str, tuple[str, ...]]:
    """Returns what the runs of a row share: the name of the variant, and its overrides."""
    return run.variant or "", tuple(sorted(map(config.one_form, run.overrides)))


def _our_row(runs: Sequence[Record], columns: Sequence[str], more: Sequence[str]) -> Row:
    """Returns the row of runs; `more` is added to its label."""
    cells = {}
    for column in columns:
        same = [run for run in runs if run.task == column]
        cells[column] = Cell("n/a") if any(map(names.other_model, same)) else cell(same)
    first, means = runs[0], averages(cells)
    label = ", ".join([names.name_of(first), *more])
    return Row(label, "ours", cells | means, first.model, first.variant)


def _published_rows(model: str, columns: Sequence[str]) -> Iterator[Row]:
    """Yields a model's rows in the papers that have one."""
    for source in names.SOURCES:
        if cells := published_cells(model, source):
            cells = dict.fromkeys(columns, Cell("n/a")) | cells
            paper = published()["accuracy"][source]["name"]
            yield Row(config.title(model), paper, cells, model=model)


def _finished(rows: Sequence[Row], columns: Sequence[str], of: Sequence[Row]) -> list[Row]:
    """Returns rows, controls last, with what their cells say of others.

    Args:
      rows: ours and published.
      columns: tasks.
      of: the rows of the table, with its controls.
    """
    found = []
    for row in sorted(rows, key=lambda row: row.model in names.CONTROLS):
        cells = {name: _gained(row, name, of) for name in columns} if row.ours else {}
        found.append(dataclasses.replace(row, cells={**row.cells, **cells}))
    return found


def _gained(row: Row, column: str, rows: Sequence[Row]) -> Cell:
    """Returns a cell with its difference from no mixing on the same data, collapsed or not."""
    cell = row.cells[column]
    controls = (other.cells[column] for other in rows if other.key == (names.NO_MIXING, None))
    other = next(controls, Cell("-"))
    if row.model == names.NO_MIXING or cell.data != other.data or len(cell.data) != 1:
        return cell
    right = [run.right("test") for run in other.runs]
    return dataclasses.replace(cell, gain=significance.compare(cell.right, right))


def _embolden(rows: list[Row], column: str) -> None:
    """Marks the best cell of a column, and those that are not significantly below it (Holm).

    Only cells of at least three seeds, all trained, on the data of the best are compared. Where
    the best has fewer, nothing is bold.
    """
    cells = [row.cells[column] for row in rows if row.ours and row.cells[column].mean is not None]
    best = max(cells, key=lambda cell: cell.mean or 0.0, default=Cell("-"))
    able = [c for c in cells if c.seeds >= SEEDS and c.whole and c.data == best.data]
    if len(able) < 2 or not any(c is best for c in able):
        return
    pairs = [(c, significance.compare(best.right, c.right)) for c in able if c is not best]
    known = [(c, difference) for c, difference in pairs if difference]
    adjusted = significance.holm([difference.p_value for _, difference in known])
    alike = [c for (c, _), p in zip(known, adjusted, strict=True) if p > LEVEL]
    for number, row in enumerate(rows):
        if any(row.cells[column] is c for c in [best, *alike]):
            bold = dataclasses.replace(row.cells[column], bold=True)
            rows[number] = dataclasses.replace(row, cells={**row.cells, column: bold})


def _references(
    rows: Sequence[Row], variants: Sequence[Row], columns: Sequence[str], methods: dict[str, str]
) -> list[Row]:
    """Returns the majority floors and the shallow baselines of each task, the highest of several.

    Variants count only on tasks where there are no other runs. Adds the baselines' `methods`.
    """
    floors, rules = {}, {}
    for column in columns:
        runs = [run for row in rows for run in row.cells[column].runs]
        runs = runs or [run for row in variants for run in row.cells[column].runs]
        floors[column] = max((run.floor.accuracy for run in runs), default=None)
        known = [rule for run in runs if (rule := run.baseline)]
        rule = max(known, key=lambda rule: rule.test.accuracy, default=None)
        rules[column] = rule and rule.test.accuracy
        if rule:
            methods[column] = rule.method
    listed = {"Majority floor": floors} | ({"Shallow baseline": rules} if methods else {})
    made = []
    for label, numbers in listed.items():
        cells = {c: Cell("-") if x is None else Cell("value", x) for c, x in numbers.items()}
        made.append(Row(label, "", cells | averages(cells)))
    return made
