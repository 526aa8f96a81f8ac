"""Builds the rows of the accuracy tables from runs and published numbers; see `cells`."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from lra_fnet import config, tasks
from lra_fnet.report import footnotes, naming
from lra_fnet.report.cells import (
    AVERAGES,
    TASKS,
    Cell,
    averages,
    cell,
    published,
    published_cells,
)
from lra_fnet.report.tables import Row, Table, measured
from lra_fnet.run.result import Checkpoint, Record


def tables(runs: Sequence[Record]) -> list[Table]:
    """Returns one table per preset; a row holds the runs of one model with one set of overrides.

    Rows of runs with overrides are apart, `Table.variants`, except those on users' tasks alone,
    from scratch.

    A run that finished without reading the test split (a trial of a sweep) is in no table. Tables
    are in the order paper, lra-code, tuned, small, cpu, then others by name. A model has rows in a
    table if it has a run under the preset, or numbers in a paper that the table shows.
    """
    tested = [run for run in runs if run.tested]
    shown = naming.sort([run for run in tested if run.model not in naming.WAYS])
    models = naming.models_in_order(run.model for run in shown)
    found = []
    for preset in dict.fromkeys(run.preset for run in shown):
        table = _table(preset, models, [run for run in shown if run.preset == preset])
        ways = {run.model for run in tested if run.preset == preset and run.model in naming.WAYS}
        notes = [f"`{name}` is a way to compute a model and has no row." for name in sorted(ways)]
        found.append(dataclasses.replace(table, notes=[*table.notes, *notes]))
    return found


def _table(preset: str, models: Sequence[str], runs: Sequence[Record]) -> Table:
    own_tasks = sorted({run.task for run in runs}.difference(TASKS))  # those of users
    every = [*TASKS, *own_tasks]
    smoke = naming.SMOKE.get(preset, ())
    smoked = [task for task in smoke if any(run.task == task for run in runs)]
    columns = TASKS | AVERAGES | {task: tasks.title(task) for task in own_tasks}
    hidden = {*smoke, *(["average6"] if "pathx" in smoke else [])}
    columns = {column: title for column, title in columns.items() if column not in hidden}
    runs = [run for run in runs if run.task not in smoke]
    rows: list[Row] = []
    last_rows: list[Row] = []
    variants: list[Row] = []
    last_variants: list[Row] = []
    for model in models:
        names = {run.variant for run in runs if run.model == model and run.variant}
        for variant in (None, *sorted(names)):
            same = [run for run in runs if (run.model, run.variant) == (model, variant)]
            compared = variant is None and preset not in naming.UNCOMPARED
            printed = _published_rows(model, every) if compared else []
            if not (same or printed):
                continue
            # A task of the user has no settings of its own in a preset: overrides are the rule.
            apart = variant and any(run.task in TASKS or run.init for run in same)
            best, last = (variants, last_variants) if apart else (rows, last_rows)
            best.append(_our_row(model, variant, same, every, "best"))
            if same:
                last.append(_our_row(model, variant, same, every, "last"))
            rows += printed
    rows, last_rows, variants, last_variants = map(
        _distinct, (rows, last_rows, variants, last_variants)
    )
    # Variants count only on tasks where there are no other runs.
    measured_against = {
        task: [run for row in rows for run in row.cells[task].runs]
        or [run for run in runs if run.task == task]
        for task in every
    }
    majority = {
        task: {run.floor.accuracy for run in same} for task, same in measured_against.items()
    }
    rules = {
        task: {run.baseline.test.accuracy: run.baseline.method for run in same if run.baseline}
        for task, same in measured_against.items()
    }
    floors, floor_notes = _reference(
        "Majority floor", "use data with different majority floors", majority
    )
    shallow, others = _reference("Shallow baseline", "have different shallow baselines", rules)
    baselines = {task: found[max(found)] for task, found in rules.items() if found}
    rows += [floors, *([shallow] if baselines else [])]
    table = Table(
        preset=preset,
        columns=columns,
        rows=rows,
        last_rows=last_rows,
        variants=variants,
        last_variants=last_variants,
        floors=floors,
        shallow=shallow,
        baselines=baselines,
        notes=(),
        provenance=footnotes.provenance(runs),
    )
    shown = [row for part in table.parts for row in measured(table, part)[1].rows]
    notes = (
        footnotes.all_of(preset, runs, shown) + floor_notes + footnotes.methods(baselines) + others
    )
    notes += [
        *footnotes.other_references(variants, floors, "majority"),
        *footnotes.other_references(variants, shallow, "baseline"),
    ]
    if smoked:
        titles = ", ".join(map(tasks.title, smoked))
        notes.append(f"{titles}: smoke runs at this preset, without a column.")
    return dataclasses.replace(table, notes=notes)


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """Returns rows of ours whose labels differ: of equal ones, each gets its variant's name."""
    labels = Counter(row.label for row in rows if row.ours)
    return [
        dataclasses.replace(row, label=f"{row.label} ({row.variant})")
        if row.ours and row.variant and labels[row.label] > 1
        else row
        for row in rows
    ]


def _published_rows(model: str, columns: Sequence[str]) -> list[Row]:
    """Returns a model's rows in the papers that have one."""
    cells = {source: published_cells(model, source, columns) for source in naming.SOURCES}
    names = {source: published()["accuracy"][source]["name"] for source in naming.SOURCES}
    return [Row(config.title(model), names[s], row, model=model) for s, row in cells.items() if row]


def _our_row(
    model: str, variant: str | None, runs: Sequence[Record], columns, checkpoint: Checkpoint
) -> Row:
    cells = {}
    for column in columns:
        same = [run for run in runs if run.task == column]
        cells[column] = (
            Cell("n/a") if any(map(naming.other_model, same)) else cell(same, checkpoint)
        )
    uses_mask = not any(map(naming.sees_padding, runs))
    label = naming.name_of(runs[0]) if runs else config.title(model)
    return Row(label, "ours", cells | averages(cells), uses_mask, model, variant)


def _reference(
    label: str, words: str, numbers: Mapping[str, Collection[float]]
) -> tuple[Row, list[str]]:
    """Returns a row with the highest number of each task, and notes on tasks that have several.

    Args:
      label: of the row.
      words: what the runs of such a task do or have.
      numbers: by task, the different accuracies of a reference in %.
    """
    cells, notes = {}, []
    for task, found in numbers.items():
        cells[task] = Cell("value", max(found)) if found else Cell("-")
        if len(found) > 1:
            shares = ", ".join(f"{share:.2f}" for share in sorted(found))
            notes.append(
                f"Runs on {tasks.title(task)} {words}: {shares}; the table shows the highest."
            )
    return Row(label, "", cells | averages(cells)), notes
