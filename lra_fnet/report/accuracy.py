"""Builds the rows of the accuracy tables from runs and published numbers; see `cells`."""

import contextlib
import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lra_fnet import config, tasks
from lra_fnet.errors import UserError
from lra_fnet.report.cells import (
    AVERAGES,
    TASKS,
    Cell,
    averages,
    cell,
    meanings,
    published,
    published_cells,
)
from lra_fnet.run.record import Checkpoint, Record
from lra_fnet.run.run_files import Begun

MAIN = ("transformer", "linear", "fnet", "performer")  # with a colour each; in the README's table
PRESETS = ("paper", "lra-code", "tuned", "small", "cpu")
SOURCES = ("fnet", "lra")  # accuracy tables of published.json that are shown next to ours
# Presets so far from the papers' that their numbers are not shown.
UNCOMPARED = ("cpu", "cpu-pretrain")
SMOKE = {"cpu": ("pathx",)}  # runs that only show that a task works: no column
PADDING = "‡ This model sees the padding: its mixer does not use the mask."
WAYS = ("fnet_mat",)  # not models but ways to compute one: in speed tables only
_OWN_SEED = re.compile(r"\w+\.seed")  # of fixed features and the like
_DIGEST = re.compile(r"-[0-9a-f]{8}$")  # ends a name that the user did not give


def name_of(run: Record | Begun) -> str:
    """Returns the label of a run's row: the model's title, and what differs: "FNet, 1 layer".

    Overrides without a name of the user's are named by their values. A name of the user's stays.
    """
    title = config.title(run.model) + ", pre-training" * run.denoise
    if run.variant is None:
        return title
    stage, own = _stages(run, run.variant) if run.init else ("", run.variant)
    values = [own] if not (run.overrides and _DIGEST.search(own)) else map(_value, run.overrides)
    return ", ".join(filter(None, [title, stage, *values]))


def _stages(run: Record | Begun, variant: str) -> tuple[str, str]:
    """Returns what a pre-trained run's variant says of its two stages; see `Job.variant`."""
    origin, own = run.origin if isinstance(run, Begun) else run.init, variant.partition("-")[2]
    theirs = origin.variant if origin else ""
    if theirs and (own.startswith(f"{theirs}-") or (own == theirs and not run.overrides)):
        return f"pre-trained ({theirs})", own[len(theirs) + 1 :]
    return "pre-trained", own


def _value(binding: str) -> str:
    """Returns an override in words: "1 layer", "learning rate 0.000316", "Head.pooling mean"."""
    name, text = config.split(binding)
    scope, _, short = name.rpartition(".")
    value: Any = text
    with contextlib.suppress(ValueError):
        value = config.literal(text)
    if isinstance(value, float):
        value = f"{value:.3g}"
    if scope not in ("", "Encoder", "Run", "Optimizer"):
        return f"{name} {value}"
    if short.startswith("num_"):
        words = short.removeprefix("num_").replace("_", " ")
        return f"{value} {words.removesuffix('s') if value == 1 else words}"
    return f"{short.replace('_', ' ').lower()} {value}"


def in_order(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Returns the known names first, in their order, then the others by name."""
    names = set(names)
    return [name for name in known if name in names] + sorted(names.difference(known))


def models_in_order(names: Iterable[str]) -> list[str]:
    """Returns models in the order of the papers' accuracy tables, then the others by name."""
    printed = [model for source in SOURCES for model in published()["accuracy"][source]["rows"]]
    return in_order(names, list(dict.fromkeys(printed)))


def sort(runs: Sequence[Record]) -> list[Record]:
    """Returns runs in the order of the tables: preset, task, model, variant, seed."""
    presets = in_order({run.preset for run in runs}, PRESETS)
    names = in_order({run.task for run in runs}, list(TASKS))
    models = models_in_order(run.model for run in runs)

    def place(run: Record):
        task, model = names.index(run.task), models.index(run.model)
        return presets.index(run.preset), task, model, run.variant or "", run.seed

    return sorted(runs, key=place)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: ours, a paper's, or the floors."""

    label: str  # a model's title, and for a variant what differs (`name_of`)
    source: str  # "ours", a paper's name, or "" for the floors
    cells: Mapping[str, Cell]  # by task or average
    uses_mask: bool = True  # False: some run of this row mixes padding into its outputs
    model: str = ""  # "" for the floors
    variant: str | None = None

    @property
    def ours(self) -> bool:
        """Whether the row shows runs rather than published numbers or floors."""
        return self.source == "ours"

    @property
    def published(self) -> bool:
        """Whether the row shows numbers of a paper."""
        return self.source not in ("ours", "")

    @property
    def num_measured(self) -> int:
        """The number of cells with a run."""
        return sum(bool(cell.runs) for cell in self.cells.values())

    @property
    def marked(self) -> str:
        """The label, with a mark if the model sees the padding."""
        return self.label + ("" if self.uses_mask else " ‡")


class Part(NamedTuple):
    """One of a preset's accuracy tables."""

    checkpoint: Checkpoint  # "best": ours, each paper's, floors; "last": only ours
    title: str
    rows: Sequence[Row]
    name: str = ""  # "variants" in the tables of these

    @property
    def spread(self) -> set[str]:
        """The columns in which a cell has a spread over seeds."""
        return {c for row in self.rows for c, cell in row.cells.items() if cell.sd is not None}


@dataclasses.dataclass(frozen=True)
class Table:
    """The accuracies under one preset.

    Attributes:
      preset: its name.
      columns: titles of the six tasks, the two averages, then users' tasks.
      rows: those of the checkpoint with the best validation accuracy: of the preset's own models,
        of papers, and the floors.
      last_rows: ours at the last step.
      variants, last_variants: the same of runs with overrides, or that began pre-trained.
      floors: the row of majority floors.
      shallow: the row of shallow baselines.
      baselines: the method of each task's shallow baseline.
      notes, provenance: lines below the table.
    """

    preset: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    last_rows: Sequence[Row]
    variants: Sequence[Row]
    last_variants: Sequence[Row]
    floors: Row
    shallow: Row
    baselines: Mapping[str, str]
    notes: Sequence[str]
    provenance: Sequence[str]

    @property
    def tasks(self) -> list[str]:
        """The columns that are not averages."""
        return [column for column in self.columns if column not in AVERAGES]

    @property
    def parts(self) -> list[Part]:
        """Both checkpoints' rows with their titles; those of variants, if any, come last.

        The floors stand below the variants too if these have a task that no other run has.
        """

        def scored(rows: Sequence[Row]) -> set[str]:
            return {task for task in self.tasks for row in rows if row.cells[task].runs}

        head = f"Test accuracy (%), preset {self.preset}"
        steps = {"best": "checkpoint best on validation", "last": "last step"}
        own = [
            Part("best", f"{head}: {steps['best']}", self.rows),
            Part("last", f"{head}: {steps['last']}", self.last_rows),
        ]
        if not self.variants:
            return own
        covered = scored(self.variants) <= scored(self.rows)
        floors = [] if covered else [row for row in self.rows if not row.source]
        variants = [*self.variants, *floors]
        return [
            *own,
            Part("best", f"{head}, variants: {steps['best']}", variants, "variants"),
            Part("last", f"{head}, variants: {steps['last']}", self.last_variants, "variants"),
        ]

    @property
    def best(self) -> dict[str, Row]:
        """Our row with the highest accuracy on each task that has one, variants left out."""
        own = [row for row in self.rows if row.ours]
        scored = {t: [row for row in own if row.cells[t].mean is not None] for t in self.tasks}
        return {
            task: max(rows, key=lambda row, task=task: row.cells[task].mean or 0)
            for task, rows in scored.items()
            if rows
        }

    @property
    def ours(self) -> list[Row]:
        """The rows of our runs, variants last."""
        return [row for row in (*self.rows, *self.variants) if row.ours]


def measured(table: Table, part: Part) -> tuple[Table, Part]:
    """Returns a part with the rows of models that have a run, and the columns with a value of ours.

    Rows of papers stay with their models if one of these columns has a value of theirs; the floors
    stay too.
    """
    models = {row.model for row in part.rows if row.num_measured}
    rows = [row for row in part.rows if row.model in models or not row.source]
    columns = {
        column: title
        for column, title in table.columns.items()
        if any(r.ours and (r.cells[column].runs or r.cells[column].mean) for r in rows)
    }
    rows = [
        row
        for row in rows
        if not row.published or any(row.cells[column].state != "n/a" for column in columns)
    ]
    return dataclasses.replace(table, columns=columns), part._replace(rows=rows)


def tables(runs: Sequence[Record]) -> list[Table]:
    """Returns one table per preset; a row holds the runs of one model with one set of overrides.

    Rows of runs with overrides are apart, `Table.variants`, except those on users' tasks alone,
    from scratch.

    A run that finished without reading the test split (a trial of a sweep) is in no table. Tables
    are in the order paper, lra-code, tuned, small, cpu, then others by name. A model has rows in a
    table if it has a run under the preset, or numbers in a paper that the table shows.
    """
    tested = [run for run in runs if run.tested]
    shown = sort([run for run in tested if run.model not in WAYS])
    models = models_in_order(run.model for run in shown)
    found = []
    for preset in dict.fromkeys(run.preset for run in shown):
        table = _table(preset, models, [run for run in shown if run.preset == preset])
        ways = {run.model for run in tested if run.preset == preset and run.model in WAYS}
        notes = [f"`{name}` is a way to compute a model and has no row." for name in sorted(ways)]
        found.append(dataclasses.replace(table, notes=[*table.notes, *notes]))
    return found


def _table(preset: str, models: Sequence[str], runs: Sequence[Record]) -> Table:
    own_tasks = sorted({run.task for run in runs}.difference(TASKS))  # those of users
    every = [*TASKS, *own_tasks]
    smoke = SMOKE.get(preset, ())
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
            compared = variant is None and preset not in UNCOMPARED
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
    measured_against = {
        task: [run for row in rows for run in row.cells[task].runs]
        or [run for run in runs if run.task == task]
        for task in every
    }
    floors, floor_notes = _floors(measured_against)
    shallow, baselines, differing = _baselines(measured_against)
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
        provenance=_provenance(runs),
    )
    shown = [row for part in table.parts for row in measured(table, part)[1].rows]
    notes = _notes(preset, runs, shown) + floor_notes + methods(baselines) + differing
    notes += [
        *_other_references(variants, floors, "majority"),
        *_other_references(variants, shallow, "baseline"),
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


def other_model(run: Record) -> str:
    """Returns the model that a hybrid is at its depth, if all its layers are alike; else ""."""
    layers = run.setting("Encoder.num_layers")
    attention = run.setting("hybrid.attention_layers")
    if not (isinstance(layers, int) and isinstance(attention, int)) or 0 < attention < layers:
        return ""
    return "transformer" if attention else "fnet"


def _published_rows(model: str, columns: Sequence[str]) -> list[Row]:
    """Returns a model's rows in the papers that have one."""
    cells = {source: published_cells(model, source, columns) for source in SOURCES}
    names = {source: published()["accuracy"][source]["name"] for source in SOURCES}
    return [Row(config.title(model), names[s], row, model=model) for s, row in cells.items() if row]


def sees_padding(run: Record) -> bool:
    """Returns whether a run's model mixes padding into its outputs.

    The rows of image tasks have none, unless black counts as padding.
    """
    # A setting of tasks of images of one size, and of no other.
    black = [text for name, text in run.bound.items() if name.endswith(".black_is_padding")]
    return not run.uses_mask and black != ["False"]


def _our_row(
    model: str, variant: str | None, runs: Sequence[Record], columns, checkpoint: Checkpoint
) -> Row:
    cells = {}
    for column in columns:
        same = [run for run in runs if run.task == column]
        cells[column] = Cell("n/a") if any(map(other_model, same)) else cell(same, checkpoint)
    uses_mask = not any(map(sees_padding, runs))
    label = name_of(runs[0]) if runs else config.title(model)
    return Row(label, "ours", cells | averages(cells), uses_mask, model, variant)


def _floors(runs: Mapping[str, Sequence[Record]]) -> tuple[Row, list[str]]:
    """Returns the floor of each task, and notes on tasks whose runs read data of several floors.

    Where floors differ, the row shows the highest.

    Args:
      runs: by task, those of the rows above it: variants count only where there are no others.
    """
    cells, notes = {}, []
    for task, same in runs.items():
        floors = {run.floor.accuracy for run in same}
        cells[task] = Cell("value", max(floors)) if floors else Cell("-")
        if len(floors) > 1:
            shares = ", ".join(f"{share:.2f}" for share in sorted(floors))
            notes.append(
                f"Runs on {tasks.title(task)} use data with different majority floors: {shares}; "
                "the table shows the highest."
            )
    return Row("Majority floor", "", cells | averages(cells)), notes


def _baselines(
    runs: Mapping[str, Sequence[Record]],
) -> tuple[Row, dict[str, str], list[str]]:
    """Returns the best shallow baseline of each task, their methods, and notes; see `_floors`.

    Where the data or the length differ, the row shows the highest, and a note the others.
    """
    cells, used, others = {}, {}, []
    for task, same in runs.items():
        found = {run.baseline.test.accuracy: run.baseline.method for run in same if run.baseline}
        highest = max(found, default=None)
        cells[task] = Cell("-") if highest is None else Cell("value", highest)
        used |= {} if highest is None else {task: found[highest]}
        if len(found) > 1:
            shares = ", ".join(f"{share:.2f}" for share in sorted(found))
            others.append(
                f"Runs on {tasks.title(task)} have different shallow baselines: {shares}; the "
                "table shows the highest."
            )
    return Row("Shallow baseline", "", cells | averages(cells)), used, others


def _other_references(variants: Sequence[Row], shown: Row, reference: str) -> list[str]:
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


def methods(baselines: Mapping[str, str]) -> list[str]:
    """Returns a line that names the shallow baseline of each of these tasks, if there are any."""
    names = "; ".join(f"{tasks.title(task)}: {method}" for task, method in baselines.items())
    return [f"Shallow baseline, chosen on validation: {names}."] if names else []


def row_notes(preset: str, rows: Sequence[Row]) -> list[str]:
    """Returns the notes that these rows need: on the setting, the published numbers, the signs."""
    return setting(preset, rows) + origins(rows) + signs(rows)


def setting(preset: str, rows: Sequence[Row]) -> list[str]:
    """Returns a line if these rows have another setting than the papers'."""
    if preset in UNCOMPARED:
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
    papers = [published()["accuracy"][source] for source in SOURCES]
    notes = [f"{paper['name']}: {paper['note']}" for paper in papers if paper["name"] in shown]
    return [f"Published numbers: {'; '.join(notes)}."] if notes else []


def signs(rows: Sequence[Row]) -> list[str]:
    """Returns the meaning of the signs in these rows."""
    notes = [] if all(row.uses_mask for row in rows) else [PADDING]
    return notes + meanings(cell for row in rows for cell in row.cells.values())


def _notes(preset: str, runs: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    notes = row_notes(preset, rows)
    if any(c.seeds and c.unfinished for row in rows for c in row.cells.values()):
        notes.append(
            "A cell of `n of m seeds` leaves out seeds that diverged or ran out of memory, and "
            "enters no average."
        )
    notes += _fixed_draws(rows) + _pretraining(runs)
    alike = [(name_of(run), run.task, model) for run in runs if (model := other_model(run))]
    notes += [
        f"{name} on {tasks.title(task)}: n/a, all its layers are alike: {config.title(model)}."
        for name, task, model in dict.fromkeys(alike)
    ]
    by_name: dict[str, list[Record]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    names = [f"{row.model}+{row.variant}" if row.variant else row.model for row in rows if row.ours]
    for group in (by_name[name] for name in dict.fromkeys(names) if name in by_name):
        name = name_of(group[0])
        given = {" ".join(map(_binding, run.overrides)) for run in group if run.overrides}
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
    """Returns a line about the runs of one model on one task if they differ; see `differing`."""
    if not (found := differing(runs)):
        return []
    where = f"{name_of(runs[0])} on {tasks.title(runs[0].task)}"
    return [f"The runs of {where} differ in {', '.join(found)}."]


def _binding(override: str) -> str:
    """Returns an override in its one form, or as it is if it has none."""
    with contextlib.suppress(UserError):
        return config.normalise(override).replace(" = ", "=", 1)
    return override


def _fixed_draws(rows: Sequence[Row]) -> list[str]:
    """Returns a line if all seeds of a row share a draw, such as that of fixed features."""
    several = [cell.runs for row in rows for cell in row.cells.values() if cell.seeds > 1]
    names = {name for runs in several for name in filter(_OWN_SEED.fullmatch, runs[0].bound)}
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    words = f"All seeds of a row share the draw of {listed}: ± does not cover other draws."
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
    return [f"{words}: {'; '.join(listed)}."] if listed else []


def differing(runs: Sequence[Record]) -> list[str]:
    """Returns in what runs differ that should differ in their seeds only: settings by their names.

    Skips settings that are missing from some runs: they were added later, with a default that
    preserves the old behaviour.
    """
    facts = {
        "their data": {run.data_sha256 for run in runs},
        "the code of their imports": {str(sorted(run.code.items())) for run in runs},
        "their pre-training": {run.init and run.init.setup for run in runs},
    }
    names = set()
    for old, new in itertools.combinations(sorted({run.config for run in runs}), 2):
        differences = config.differing(old, new)
        names |= {d.name for d in differences if "absent" not in (d.old, d.new)}
    return [name for name, values in facts.items() if len(values) > 1] + sorted(names)


def _provenance(runs: Sequence[Record]) -> list[str]:
    """Returns a line for the seeds of each cell that share commit, device and data."""
    seeds = defaultdict(list)
    for run in runs:
        seeds[run.folder.rpartition("/seed")[0], run.provenance].append(run.seed)
    return [
        f"`{folder}`, seed {', '.join(map(str, sorted(numbers)))}: {provenance}"
        for (folder, provenance), numbers in seeds.items()
    ]
