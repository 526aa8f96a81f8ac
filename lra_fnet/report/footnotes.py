"""The lines below an accuracy table."""

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from lra_fnet import config, tasks
from lra_fnet.report import naming
from lra_fnet.report.cells import AVERAGES, meanings, published
from lra_fnet.report.tables import Row
from lra_fnet.run.result import Record

PADDING = "‡ Padding changes this model's output: its mixer does not use the mask."
_OWN_SEED = re.compile(r"\w+\.seed")  # of fixed features and the like


def methods(baselines: Mapping[str, str]) -> list[str]:
    """Returns a line that names the shallow baseline of each of these tasks, if there are any."""
    names = "; ".join(f"{tasks.title(task)}: {method}" for task, method in baselines.items())
    return [f"Shallow baseline, chosen on validation: {names}."] if names else []


def row_notes(preset: str, rows: Sequence[Row]) -> list[str]:
    """Returns the notes that these rows need: on the setting, the published numbers, the signs."""
    return setting(preset, rows) + origins(rows) + signs(rows)


def setting(preset: str, rows: Sequence[Row]) -> list[str]:
    """Returns a line if these rows have another setting than the papers'."""
    if preset in naming.UNCOMPARED:
        return [f"Preset {preset} is far from the papers' settings: their results are not shown."]
    if not any(row.published for row in rows):
        return []
    if preset == "paper":
        return [
            "Settings that neither paper gives (marked in gin/presets/paper; on Image: width, "
            "batch size, dropout, schedule) are those of LRA's code; FNet's authors searched width "
            "and batch size."
        ]
    return [f"Preset {preset} differs from the papers' settings: their numbers are a rough guide."]


def origins(rows: Sequence[Row]) -> list[str]:
    """Returns a line that says how the published numbers in these rows were obtained."""
    shown = {row.source for row in rows if row.published}
    papers = [published()["accuracy"][source] for source in naming.SOURCES]
    notes = [f"{paper['name']}: {paper['note']}" for paper in papers if paper["name"] in shown]
    return [f"Published numbers: {'; '.join(notes)}."] if notes else []


def signs(rows: Sequence[Row]) -> list[str]:
    """Returns the meaning of the signs in these rows."""
    notes = [] if all(row.uses_mask for row in rows) else [PADDING]
    return notes + meanings(cell for row in rows for cell in row.cells.values())


def all_of(preset: str, runs: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    """Returns the notes on these rows, and on the runs of a preset that they show."""
    notes = row_notes(preset, rows)
    if any(c.seeds and c.unfinished for row in rows for c in row.cells.values()):
        notes.append(
            "A cell of `n of m seeds` leaves out seeds that diverged or ran out of memory, and "
            "enters no average."
        )
    notes += _fixed_draws(rows) + _pretraining(runs)
    alike = [
        (naming.name_of(run), run.task, model) for run in runs if (model := naming.other_model(run))
    ]
    notes += [
        f"{name} on {tasks.title(task)}: n/a, all its layers are alike: {config.title(model)}."
        for name, task, model in dict.fromkeys(alike)
    ]
    by_name: dict[str, list[Record]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    names = [f"{row.model}+{row.variant}" if row.variant else row.model for row in rows if row.ours]
    for group in (by_name[name] for name in dict.fromkeys(names) if name in by_name):
        name = naming.name_of(group[0])
        given = {" ".join(map(config.one_form, run.overrides)) for run in group if run.overrides}
        if settings := sorted(given):
            notes.append(f"{name}: `{'` or `'.join(settings)}`")
        for task in sorted({run.task for run in group}):
            notes += _differences([run for run in group if run.task == task])
    return notes


def differences(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each cell whose runs differ in more than their seeds."""
    every = [cell for row in rows for name, cell in row.cells.items() if name not in AVERAGES]
    return [note for cell in every for note in _differences(cell.runs)]


def _differences(runs: Sequence[Record]) -> list[str]:
    """Returns the lines of `about_seeds` on the runs of one model on one task."""
    where = f"{naming.name_of(runs[0])} on {tasks.title(runs[0].task)}" if runs else ""
    return [f"{line}." for line in about_seeds(where, runs)]


def about_seeds(where: str, runs: Sequence[Record]) -> list[str]:
    """Returns lines about runs that differ in more than their seeds (`differing`), or in less.

    Runs that began from one pre-trained encoder have no seeds of their own in the first stage.
    """
    lines = (
        [f"The runs of {where} differ in {', '.join(found)}"] if (found := differing(runs)) else []
    )
    encoders = [run.init.sha256 for run in runs if run.init]
    if len(set(encoders)) < len(encoders):
        lines.append(
            f"Several runs of {where} began from the same pre-trained encoder, so spreads and "
            "tests over seeds do not cover its own seed"
        )
    return lines


def _fixed_draws(rows: Sequence[Row]) -> list[str]:
    """Returns a line if all seeds of a row share a draw, such as that of fixed features."""
    several = [cell.runs for row in rows for cell in row.cells.values() if cell.seeds > 1]
    names = {name for runs in several for name in filter(_OWN_SEED.fullmatch, runs[0].bound)}
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    words = (
        f"All seeds of a row have the same fixed draw ({listed}), so ± does not cover other draws."
    )
    return [words] if names else []


def _pretraining(runs: Sequence[Record]) -> list[str]:
    """Returns a line about the runs that some of these began from: task, steps, objective."""
    steps: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        if run.init:
            task, theirs = tasks.title(run.task), tasks.title(run.init.task)
            where = task if task == theirs else f"{task}, on {theirs}"
            objective = " ".join(run.init.objective.split())
            steps.setdefault((where, objective), set()).add(run.init.steps)
    listed = [
        f"{where}, {' or '.join(f'{n:,}' for n in sorted(numbers))} steps"
        + (f", `{objective}`" if objective else "")
        for (where, objective), numbers in steps.items()
    ]
    words = "Pre-trained: the run began from an encoder that was trained to predict hidden tokens"
    begun = {tasks.title(run.task) for run in runs if run.init and run.init.task == "corpus"}
    corpus = f"The corpus of pre-training may hold test rows of {', '.join(sorted(begun))}."
    return [f"{words}: {'; '.join(listed)}."] * bool(listed) + [corpus] * bool(begun)


def differing(runs: Sequence[Record]) -> list[str]:
    """Returns in what runs differ that should differ in their seeds only: settings by their names.

    Skips settings that are missing from some runs and that the code no longer has: they were
    removed with the value that all of them have.
    """
    facts = {
        "their data": {run.data_sha256 for run in runs},
        "the code of their imports": {str(sorted(run.code.items())) for run in runs},
        "their pre-training": {run.init and run.init.setup for run in runs},
    }
    names = set()
    for old, new in itertools.combinations(sorted({run.config for run in runs}), 2):
        differences = config.differing(old, new)
        absent = {d.name for d in differences if "absent" in (d.old, d.new)}
        names |= {d.name for d in differences} - {n for n in absent if not config.is_setting(n)}
    return [name for name, values in facts.items() if len(values) > 1] + sorted(names)


def other_references(variants: Sequence[Row], shown: Row, reference: str) -> list[str]:
    """Returns a line for each other floor or baseline of variants than the table shows.

    Args:
      variants: their rows.
      shown: the row of the floors or of the baselines.
      reference: "majority" or "baseline", the field of `Cell`.
    """
    labels: dict[tuple[str, str], list[str]] = {}
    for row, (task, known) in itertools.product(variants, shown.cells.items()):
        value = getattr(row.cells[task], reference)
        if task not in AVERAGES and value not in (None, known.mean):
            labels.setdefault((tasks.title(task), f"{value:.2f}"), []).append(row.label)
    name = f"{shown.label[0].lower()}{shown.label[1:]}"
    return [
        f"On {task}, the {name} is {value} % for the data of {'; '.join(rows)}."
        for (task, value), rows in labels.items()
    ]


def provenance(runs: Sequence[Record]) -> list[str]:
    """Returns a line for the seeds of each cell that share commit, device and data."""
    seeds = defaultdict(list)
    for run in runs:
        seeds[run.folder.rpartition("/seed")[0], run.provenance].append(run.seed)
    return [
        f"`{folder}`, seed {', '.join(map(str, sorted(numbers)))}: {provenance}"
        for (folder, provenance), numbers in seeds.items()
    ]
