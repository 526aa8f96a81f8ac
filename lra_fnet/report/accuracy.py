"""Builds the rows of the accuracy tables from runs and published numbers.

A cell is a value (the mean over seeds, in % of test rows, with spread, maximum and number of seeds)
or a state: `-` not run, `OOM` out of memory, `FAIL` not above the majority floor or diverged, `n/a`
not reported by the source. A state is never a number: it does not count as 0 and enters no average.
"""

import dataclasses
import functools
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lra_fnet import config, tasks
from lra_fnet.intervals import wilson
from lra_fnet.run.record import Checkpoint, Record

TASKS = {name: tasks.title(name) for name in tasks.BUILT_IN}
AVERAGES = {"average5": "Mean of 5", "average6": "Mean of 6"}
PRESETS = ("paper", "lra-code", "tuned", "small", "cpu")
SOURCES = ("fnet", "lra")  # accuracy tables of published.json that are shown next to ours
FAILED_PATHX = 50.0  # %: what S4 and its successors count for a failed Path-X


@functools.cache
def published() -> dict[str, Any]:
    """Returns the numbers of published.json; each group of them names its paper and table."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def corrected(number: Any) -> Any:
    """Returns the number or state of an entry of published.json, with misprints corrected."""
    return number["corrected"] if isinstance(number, dict) else number


def name_of(run: Record) -> str:
    """Returns the label of a run's row: the model's title, or model+variant."""
    return run.name if run.variant else config.title(run.model)


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
class Cell:
    """One cell: a value in %, or a state (see the module's docstring)."""

    state: str  # "value", "-", "OOM", "FAIL" or "n/a"
    mean: float | None = None
    sd: float | None = None  # sample standard deviation over seeds; None with one seed
    maximum: float | None = None
    seeds: int = 0  # complete runs; 0 for averages and published numbers
    unfinished: int = 0  # further runs that diverged or ran out of memory
    validation_is_test: bool = False
    low: float | None = None  # ends of the 95 % interval for the rows of one test set
    high: float | None = None
    runs: tuple[Record, ...] = ()  # unfinished ones included
    shallow: bool = False  # whether the interval does not lie above the shallow baseline

    @property
    def interval(self) -> str:
        """The 95 % interval in words; empty for a state."""
        if self.low is None:
            return ""
        return f"95 % interval for these test rows: {self.low:.2f} to {self.high:.2f}"

    @property
    def lines(self) -> list[str]:
        """The text, most important part first: ["30.70 ± 0.41", "max 31.10", "3 seeds"]."""
        mark = "†" * self.validation_is_test + "§" * self.shallow
        if self.mean is None:
            return [self.state + mark]
        first = f"{self.mean:.2f}" + (f" ± {self.sd:.2f}" if self.sd is not None else "") + mark
        if not self.seeds:
            return [first]
        total = f" of {self.seeds + self.unfinished}" if self.unfinished else ""
        seeds = f"{self.seeds}{total} {'seed' if self.seeds + self.unfinished == 1 else 'seeds'}"
        return [first, *([f"max {self.maximum:.2f}"] if self.seeds > 1 else []), seeds]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: ours, a paper's, or the floors."""

    label: str  # a model's title, or model+variant
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
    def marked(self) -> str:
        """The label, with a mark if the model sees the padding."""
        return self.label + ("" if self.uses_mask else " ‡")


class Part(NamedTuple):
    """One of a preset's accuracy tables."""

    checkpoint: Checkpoint  # "best": ours, each paper's, floors; "last": only ours
    title: str
    rows: list[Row]

    @property
    def spread(self) -> set[str]:
        """The columns in which a cell has a spread over seeds."""
        return {c for row in self.rows for c, cell in row.cells.items() if cell.sd is not None}


class Table:
    """The accuracies under one preset.

    Attributes:
      preset: its name.
      columns: titles of the six tasks, the two averages, then users' tasks.
      tasks: the columns that are not averages.
      rows: those of the checkpoint with the best validation accuracy.
      last_rows: ours at the last step.
      floors: the row of majority floors.
      baselines: a line that names the shallow baselines, if there are any.
      parts: both with their titles.
      notes, provenance: lines below the table.
    """

    def __init__(self, preset: str, models: Sequence[str], runs: Sequence[Record]):
        own_tasks = sorted({run.task for run in runs}.difference(TASKS))  # those of users
        self.preset, self.tasks = preset, [*TASKS, *own_tasks]
        self.columns = TASKS | AVERAGES | {task: tasks.title(task) for task in own_tasks}
        self.rows: list[Row] = []
        self.last_rows: list[Row] = []
        for model in models:
            variants = {run.variant for run in runs if run.model == model and run.variant}
            for variant in (None, *sorted(variants)):
                same = [run for run in runs if (run.model, run.variant) == (model, variant)]
                self.rows.append(_our_row(model, variant, same, self.tasks, "best"))
                self.last_rows.append(_our_row(model, variant, same, self.tasks, "last"))
                if variant is None:
                    self.rows += _published_rows(model, self.tasks)
        self.floors, floor_notes = _floors(runs, self.tasks)
        baselines, self.baselines = _baselines(runs, self.tasks)
        self.rows += [self.floors, *([baselines] if self.baselines else [])]
        head = f"Test accuracy (%), preset {preset}"
        self.parts = [
            Part("best", f"{head}: checkpoint best on validation", self.rows),
            Part("last", f"{head}: last step", self.last_rows),
        ]
        self.notes = _notes(preset, runs, self.rows) + floor_notes + self.baselines
        self.provenance = _provenance(runs)


def cell(runs: Sequence[Record], checkpoint: Checkpoint = "best") -> Cell:
    """Returns the cell of one model, preset, variant and task, over seeds.

    FAIL compares the mean accuracy over seeds with the floor, using the interval for the rows of
    ONE test set: all seeds share these rows, so adding their counts would count each row several
    times and make the interval too narrow. If some seeds diverged or ran out of memory, the cell
    shows the others and says how many; without any value it is FAIL if one diverged, else OOM.

    Args:
      runs: each has a test accuracy, or the state OOM or diverged.
      checkpoint: "best" on validation, or "last".
    """
    if not runs:
        return Cell("-")
    scores = [score for run in runs if (score := run.score("test", checkpoint))]
    marks: dict[str, Any] = {
        "seeds": len(scores),
        "unfinished": len(runs) - len(scores),
        "validation_is_test": any(run.validation_is_test for run in runs),
        "runs": tuple(runs),
    }
    if not scores:
        diverged = any(run.state == "diverged" for run in runs)
        return Cell("FAIL" if diverged else "OOM", **marks)
    accuracies = [score.accuracy for score in scores]
    mean, rows = statistics.fmean(accuracies), min(score.count for score in scores)
    low, high = (100 * end for end in wilson(mean / 100 * rows, rows))
    if low <= max(run.floor.accuracy for run in runs):
        return Cell("FAIL", **marks)
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    baselines = [run.baseline.test.accuracy for run in runs if run.baseline]
    marks["shallow"] = any(low <= baseline for baseline in baselines)
    return Cell("value", mean, spread, max(accuracies), low=low, high=high, **marks)


def averages(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Returns LRA's mean of five tasks, and S4's of six in which a failed Path-X counts 50.

    Each is `-` unless all its tasks have a value of every seed. OOM is not a failed Path-X.
    """

    def value(task: str) -> float | None:
        if task == "pathx" and cells[task].state == "FAIL":
            return FAILED_PATHX
        return None if cells[task].unfinished else cells[task].mean

    def mean(tasks: list[str]) -> Cell:
        values = [number for task in tasks if (number := value(task)) is not None]
        if len(values) < len(tasks):
            return Cell("-")
        marked = any(cells[task].validation_is_test for task in tasks)
        return Cell("value", statistics.fmean(values), validation_is_test=marked)

    return {"average5": mean([t for t in TASKS if t != "pathx"]), "average6": mean(list(TASKS))}


def published_cells(model: str, source: str, columns: Sequence[str] = ()) -> dict[str, Cell] | None:
    """Returns a model's row of a paper's accuracy table, or None if the paper has none.

    Args:
      model: its name on the command line.
      source: an accuracy table of published.json, "fnet" or "lra".
      columns: tasks that the paper does not have; their cells are n/a.
    """
    row = published()["accuracy"][source]["rows"].get(model)
    if row is None:
        return None
    cells = {column: Cell("n/a") for column in columns}
    for task in TASKS:
        number = corrected(row[task])
        cells[task] = Cell(number) if isinstance(number, str) else Cell("value", float(number))
    return cells | averages(cells)


def _published_rows(model: str, columns: Sequence[str]) -> list[Row]:
    """Returns a model's rows in the papers that have one."""
    cells = {source: published_cells(model, source, columns) for source in SOURCES}
    names = {source: published()["accuracy"][source]["name"] for source in SOURCES}
    return [Row(config.title(model), names[s], row, model=model) for s, row in cells.items() if row]


def _our_row(
    model: str, variant: str | None, runs: Sequence[Record], columns, checkpoint: Checkpoint
) -> Row:
    cells = {c: cell([run for run in runs if run.task == c], checkpoint) for c in columns}
    uses_mask = all(run.uses_mask for run in runs)
    label = f"{model}+{variant}" if variant else config.title(model)
    return Row(label, "ours", cells | averages(cells), uses_mask, model, variant)


def _floors(runs: Sequence[Record], columns: Sequence[str]) -> tuple[Row, list[str]]:
    """Returns the floor of each task, and notes on tasks whose runs read data of several floors.

    Where floors differ, the row shows the highest.
    """
    cells, notes = {}, []
    for task in columns:
        floors = {run.floor.accuracy for run in runs if run.task == task}
        cells[task] = Cell("value", max(floors)) if floors else Cell("-")
        if len(floors) > 1:
            shares = ", ".join(f"{share:.2f}" for share in sorted(floors))
            notes.append(f"Runs on {task} read data with different floors: {shares}.")
    return Row("Majority floor", "", cells | averages(cells)), notes


def _baselines(runs: Sequence[Record], columns: Sequence[str]) -> tuple[Row, list[str]]:
    """Returns the best shallow baseline of each task, the highest of its data, and their names."""
    cells, notes = {}, []
    for task in columns:
        found = [run.baseline for run in runs if run.task == task and run.baseline]
        best = max(found, key=lambda baseline: baseline.test.accuracy, default=None)
        cells[task] = Cell("value", best.test.accuracy) if best else Cell("-")
        notes += [f"{tasks.title(task)}: {best.method}"] if best else []
    if notes:
        notes = [f"Shallow baseline, chosen on validation: {'; '.join(notes)}."]
    return Row("Shallow baseline", "", cells | averages(cells)), notes


def marks(
    preset: str, validation_is_test: bool, uses_mask: bool, shallow: bool = False
) -> list[str]:
    """Returns the notes that a table needs: another setting than the papers', and †, ‡ and §."""
    notes = []
    if preset != "paper":
        notes.append(
            f"Preset {preset} is not the papers' setting: their numbers are there for orientation."
        )
    if validation_is_test:
        notes.append("† The checkpoint was selected on the test rows (validation is test).")
    if not uses_mask:
        notes.append("‡ This model sees the padding: its mixer does not use the mask.")
    if shallow:
        notes.append("§ The 95 % interval does not lie above the shallow baseline.")
    return notes


def table_marks(preset: str, rows: Sequence[Row]) -> list[str]:
    """Returns the `marks` that these rows need."""
    cells = [cell for row in rows for cell in row.cells.values()]
    marked, shallow = (any(getattr(c, n) for c in cells) for n in ("validation_is_test", "shallow"))
    return marks(preset, marked, all(row.uses_mask for row in rows), shallow)


def _notes(preset: str, runs: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    notes = table_marks(preset, rows)
    if any(c.seeds and c.unfinished for row in rows for c in row.cells.values()):
        notes.append(
            "A cell of `n of m seeds` leaves out seeds that diverged or ran out of memory, and "
            "enters no average."
        )
    by_name: dict[str, list[Record]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    names = [f"{row.model}+{row.variant}" if row.variant else row.model for row in rows if row.ours]
    for name in (name for name in names if name in by_name):
        if by_name[name][0].variant is not None:
            settings = sorted({" ".join(run.overrides) or "no overrides" for run in by_name[name]})
            notes.append(f"`{name}`: `{'` or `'.join(settings)}`")
        for task in sorted({run.task for run in by_name[name]}):
            same = [run for run in by_name[name] if run.task == task]
            if len({run.data_sha256 for run in same}) > 1:
                notes.append(f"The runs of `{name}` on {task} differ in their data.")
            if names := bound_differently({run.config for run in same}):
                notes.append(f"The runs of `{name}` on {task} differ in {', '.join(names)}.")
    return notes


def bound_differently(texts: Iterable[str]) -> list[str]:
    """Returns the names that gin texts bind to different values.

    Skips names that are missing from some texts: they were added later, with a default that
    preserves the old behaviour.
    """
    names = set()
    for old, new in itertools.combinations(sorted(texts), 2):
        differences = config.differing(old, new)
        names |= {d.name for d in differences if "absent" not in (d.old, d.new)}
    return sorted(names)


def _provenance(runs: Sequence[Record]) -> list[str]:
    """Returns a line for the seeds of each cell that share commit, device and data."""
    seeds = defaultdict(list)
    for run in runs:
        seeds[run.folder.rpartition("/seed")[0], run.provenance].append(run.seed)
    return [
        f"`{folder}`, seed {', '.join(map(str, sorted(numbers)))}: {provenance}"
        for (folder, provenance), numbers in seeds.items()
    ]


def tables(runs: Sequence[Record]) -> list[Table]:
    """Returns one table per preset; a row holds the runs of one model with one set of overrides.

    A run that finished without reading the test split (a trial of a sweep) is in no table. Tables
    are in the order of PRESETS, then others by name. Every model that has a run under any preset
    has a row in each.
    """
    shown = sort([run for run in runs if run.tested])
    models = models_in_order(run.model for run in shown)
    return [
        Table(preset, models, [run for run in shown if run.preset == preset])
        for preset in dict.fromkeys(run.preset for run in shown)
    ]
