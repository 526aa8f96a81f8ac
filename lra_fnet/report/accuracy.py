"""From results and published numbers to the rows of the accuracy tables.

A cell is a value (the mean over seeds, in % of test rows, with spread, maximum and number of seeds)
or a state: `-` not run, `OOM` out of memory, `FAIL` not above the majority floor or diverged, `n/a`
the source has no such number. A state is never a number: it is not 0 and enters no average.
"""

import dataclasses
import functools
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra_fnet import config
from lra_fnet.intervals import wilson

TASKS = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "pathx": "Path-X",
}
AVERAGES = {"average5": "Mean of 5", "average6": "Mean of 6"}
PRESETS = ("paper", "lra-code", "tuned", "cpu")
SOURCES = ("fnet", "lra")  # accuracy tables of published.json that stand beside ours
FAILED_PATHX = 50.0  # %: what S4 and its successors count for a failed Path-X


@functools.cache
def published() -> dict[str, Any]:
    """The numbers of published.json; each group of them names its paper and table."""
    return json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def corrected(number: Any) -> Any:
    """The number or state of an entry of published.json, its misprint mended where it has one."""
    return number["corrected"] if isinstance(number, dict) else number


def _floor(floor: Mapping[str, int]) -> float:
    """The accuracy, in %, of always answering the most frequent label."""
    return 100 * floor["correct"] / floor["count"]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell: a value in %, or a state (see the module's text)."""

    state: str  # "value", "-", "OOM", "FAIL" or "n/a"
    mean: float | None = None
    sd: float | None = None  # sample standard deviation over seeds; None with one seed
    maximum: float | None = None
    seeds: int = 0  # runs behind it; 0 for averages and published numbers
    unfinished: int = 0  # runs beyond `seeds` that diverged or ran out of memory
    validation_is_test: bool = False
    low: float | None = None  # ends of the 95 % interval for the rows of one test set
    high: float | None = None
    folders: tuple[str, ...] = ()  # of the runs, those that are not done included

    @property
    def lines(self) -> list[str]:
        """The text, most important part first: ["30.70 ± 0.41", "max 31.10", "3 seeds"]."""
        mark = "†" if self.validation_is_test else ""
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
    """A line of a table: ours, a paper's, or the floors."""

    label: str  # a model's name, or model+variant
    source: str  # "ours", a paper's name, or "" for the floors
    cells: Mapping[str, Cell]  # a task or average to its cell
    uses_mask: bool = True  # False: some run of this row mixed padding in
    model: str = ""  # a name of `make lra MODEL=`; "" for the floors
    variant: str | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """Everything about one preset."""

    preset: str
    columns: Mapping[str, str]  # the six tasks, the two averages, then tasks of users: key to title
    rows: list[Row]  # checkpoint with the best validation accuracy; ours, each paper's, floors
    last_rows: list[Row]  # ours at the last step
    notes: list[str]
    provenance: list[str]


def cell(runs: Sequence[dict], checkpoint: str = "best") -> Cell:
    """The cell of the runs of one model, preset, variant and task, over their seeds.

    FAIL compares the mean accuracy over seeds with the floor, in an interval for the rows of ONE
    test set: seeds share these rows, so adding their counts would count each row several times and
    make the interval too narrow. A cell in which some seeds diverged or ran out of memory shows the
    others and says how many; without any value it is FAIL if one diverged, else OOM.

    Args:
      runs: results with a test accuracy, or with the state OOM or diverged.
      checkpoint: "best" on validation, or "last".
    """
    if not runs:
        return Cell("-")
    done = [run["test"][checkpoint] for run in runs if run["state"] == "complete"]
    marks: dict[str, Any] = {
        "seeds": len(done),
        "unfinished": len(runs) - len(done),
        "validation_is_test": any(run["validation_is_test"] for run in runs),
        "folders": tuple(run.get("folder", "") for run in runs),
    }
    if not done:
        diverged = any(run["state"] == "diverged" for run in runs)
        return Cell("FAIL" if diverged else "OOM", **marks)
    shares = [counts["correct"] / counts["count"] for counts in done]
    rows = min(counts["count"] for counts in done)
    low, high = (100 * end for end in wilson(statistics.fmean(shares) * rows, rows))
    if low <= max(_floor(run["floor"]) for run in runs):
        return Cell("FAIL", **marks)
    marks |= {"low": low, "high": high}
    accuracies = [100 * share for share in shares]
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    return Cell("value", statistics.fmean(accuracies), spread, max(accuracies), **marks)


def averages(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """LRA's mean of five tasks, and S4's of six in which a failed Path-X counts 50.

    Each is `-` unless all its tasks have a value of every seed. An OOM is no failed Path-X.
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
    """The row of a model in a paper's accuracy table; None where the paper has none.

    Args:
      model: a name of `make lra MODEL=`.
      source: an accuracy table of published.json, "fnet" or "lra".
      columns: further tasks, which the paper does not have: n/a.
    """
    row = published()["accuracy"][source]["rows"].get(model)
    if row is None:
        return None
    cells = {column: Cell("n/a") for column in columns}
    for task in TASKS:
        number = corrected(row[task])
        cells[task] = Cell(number) if isinstance(number, str) else Cell("value", float(number))
    return cells | averages(cells)


def _papers(model: str, name: str, columns: Sequence[str]) -> list[Row]:
    """A model's rows in the papers' tables, of those that have one of their own for it."""
    rows = {source: published_cells(model, source, columns) for source in SOURCES}
    return [
        Row(name, published()["accuracy"][source]["name"], cells, model=model)
        for source, cells in rows.items()
        if cells
    ]


def _ours(
    label: str, identity: tuple[str, str | None], runs: list[dict], columns, checkpoint: str
) -> Row:
    by_task = {task: [run for run in runs if run["task"] == task] for task in columns}
    cells = {task: cell(found, checkpoint) for task, found in by_task.items()}
    uses_mask = all(run["uses_mask"] for run in runs)
    return Row(label, "ours", cells | averages(cells), uses_mask, *identity)


def _floors(runs: list[dict], columns: Sequence[str]) -> tuple[Row, list[str]]:
    """The floor of each task, the highest where runs read different data, and notes that say so."""
    cells, notes = {}, []
    for task in columns:
        floors = {_floor(run["floor"]) for run in runs if run["task"] == task}
        cells[task] = Cell("value", max(floors)) if floors else Cell("-")
        if len(floors) > 1:
            shares = ", ".join(f"{share:.2f}" for share in sorted(floors))
            notes.append(f"Runs on {task} read data with different floors: {shares}.")
    return Row("Majority floor", "", cells | averages(cells)), notes


def marks(preset: str, validation_is_test: bool, uses_mask: bool) -> list[str]:
    """What a reader must know of a table: foreign setting, and the meaning of † and ‡ in it."""
    notes = []
    if preset != "paper":
        notes.append(
            f"Preset {preset} is not the papers' setting: their numbers are there for orientation."
        )
    if validation_is_test:
        notes.append("† The checkpoint was selected on the test rows (validation is test).")
    if not uses_mask:
        notes.append("‡ This model sees the padding: its mixer does not use the mask.")
    return notes


def _notes(preset: str, groups: Mapping[tuple, list[dict]], rows: list[Row]) -> list[str]:
    cells = [c for row in rows for c in row.cells.values()]
    marked = any(c.validation_is_test for c in cells)
    notes = marks(preset, marked, all(row.uses_mask for row in rows))
    if any(c.seeds and c.unfinished for c in cells):
        notes.append(
            "A cell of `n of m seeds` leaves out seeds that diverged or ran out of memory, and "
            "enters no average."
        )
    for (model, variant), runs in groups.items():
        if variant is not None:
            settings = sorted({" ".join(run["overrides"]) or "no overrides" for run in runs})
            notes.append(f"`{model}+{variant}`: `{'` or `'.join(settings)}`")
        name = model if variant is None else f"{model}+{variant}"
        for task in sorted({run["task"] for run in runs}):
            same = [run for run in runs if run["task"] == task]
            if len({run["data_sha256"] for run in same}) > 1:
                notes.append(f"The runs of `{name}` on {task} differ in their data.")
            if names := bound_otherwise({run["config"] for run in same}):
                notes.append(f"The runs of `{name}` on {task} differ in {', '.join(names)}.")
    return notes


def bound_otherwise(texts: Iterable[str]) -> list[str]:
    """Names that gin texts bind to different values.

    Skips names that are missing from some texts: they were added later, with a default that
    preserves the old behaviour.
    """
    names = set()
    for old, new in itertools.combinations(sorted(texts), 2):
        differences = config.differing(old, new)
        names |= {d.name for d in differences if "absent" not in (d.old, d.new)}
    return sorted(names)


def _provenance(runs: list[dict]) -> list[str]:
    """A line for the seeds of one cell that share commit, device and data."""
    seeds = defaultdict(list)
    for run in runs:
        device = run["device"]
        commit = (run["commit"] or "unknown")[:12] + (" (dirty)" if run["dirty"] else "")
        machine = (
            f"{device['count']} x {device['name']} ({device['platform']}, {device['cores']} cores)"
        )
        data = run["data_sha256"][:12]
        if "dataset" in run:
            data = f"{run['dataset']} from {run['data_source']}, {data}"
        line = f"commit {commit}; {machine}; data {data}"
        seeds[run["folder"].rpartition("/seed")[0], line].append(run["seed"])
    return [
        f"`{folder}`, seed {', '.join(map(str, sorted(found)))}: {line}"
        for (folder, line), found in seeds.items()
    ]


def name_of(run: Mapping[str, Any]) -> str:
    """The row's label of a run: the model's name, or model+variant."""
    if run["variant"]:
        return f"{run['model']}+{run['variant']}"
    return published()["models"].get(run["model"], run["model"])


def tested(run: dict) -> bool:
    """Whether a run has something to show: a test accuracy, or a state instead of one."""
    return run["state"] != "complete" or run["test"] is not None


def in_order(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Known names first, in their order, then the others by name."""
    names = set(names)
    return [name for name in known if name in names] + sorted(names.difference(known))


def accuracy_tables(results: Sequence[dict]) -> list[Table]:
    """One table a preset. A row holds the runs of one model with one set of overrides.

    A run that finished without reading the test split (a trial of a sweep) is in no table.

    Args:
      results: what `report.collect` returns.

    Returns:
      Tables in the order paper, lra-code, tuned, cpu, then others by name. Models that have a run
      under any preset have a row in each, in the order of published.json.
    """
    shown = [run for run in results if tested(run)]
    models = in_order({run["model"] for run in shown}, list(published()["models"]))
    presets = in_order({run["preset"] for run in shown}, PRESETS)
    tables = []
    for preset in presets:
        runs = [run for run in shown if run["preset"] == preset]
        extra = sorted({run["task"] for run in runs}.difference(TASKS))  # users' own tasks
        tasks = [*TASKS, *extra]
        groups: dict[tuple[str, str | None], list[dict]] = {}
        rows, last_rows = [], []
        for model in models:
            name = published()["models"].get(model, model)
            variants = {run["variant"] for run in runs if run["model"] == model and run["variant"]}
            for variant in [None, *sorted(variants)]:
                own = [r for r in runs if r["model"] == model and r["variant"] == variant]
                groups[model, variant] = own
                label = f"{model}+{variant}" if variant else name
                rows.append(_ours(label, (model, variant), own, tasks, "best"))
                last_rows.append(_ours(label, (model, variant), own, tasks, "last"))
                if not variant:
                    rows += _papers(model, name, tasks)
        floors, floor_notes = _floors(runs, tasks)
        rows.append(floors)
        columns = TASKS | AVERAGES | {task: task for task in extra}
        notes = _notes(preset, groups, rows) + floor_notes
        tables.append(Table(preset, columns, rows, last_rows, notes, _provenance(runs)))
    return tables
