"""Aggregates over tasks: the definitions of rliable (Agarwal et al. 2021, arXiv:2108.13264).

Only models of one preset with runs on the same tasks and data are compared. A run's score on a task
is its share of the way from a reference to 100 %, in %: 0 is the reference, 100 all rows right. In
the interquartile mean and the profile the reference is chance, the majority floor of the task.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lra_fnet import config
from lra_fnet.report.cells import MARKS, Cell
from lra_fnet.report.footnotes import PADDING
from lra_fnet.report.grid import Grid
from lra_fnet.report.tables import Row, Table
from lra_fnet.significance import SEEDS

REFERENCE = "transformer"  # the model that others are compared with
LEVELS = (10, 25, 50, 75)  # scores above chance at which the performance profile is shown
REPLICATES = 2000  # bootstrap samples
_NO_FAILURE = ("value", "-", "n/a")  # states of cells
CHUNK = 50  # samples that are in memory at once
Scores = Sequence[np.ndarray]  # for each task [..., runs]


def above(accuracies: Scores, references: Sequence[float]) -> Scores:
    """Returns scores: the share of the way from each task's reference to 100 %, in %."""
    pairs = zip(accuracies, references, strict=True)
    return [100 * (values - reference) / (100 - reference) for values, reference in pairs]


def mean(scores: Scores) -> np.ndarray:
    """Returns the mean over tasks of the mean over runs, [...]."""
    return np.mean([values.mean(-1) for values in scores], axis=0)


def interquartile_mean(scores: Scores) -> np.ndarray:
    """Returns the mean of all tasks' runs without the lowest and the highest quarter, [...].

    The quarters are rounded down to whole runs.
    """
    pooled = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    cut = pooled.shape[-1] // 4
    return pooled[..., cut : pooled.shape[-1] - cut].mean(-1)


def improvement(a: Scores, b: Scores) -> np.ndarray:
    """Returns the probability in % that a run of a is better than one of b, [...].

    It is the mean over tasks of the share of pairs of runs in which a is higher; a tie counts half.
    """
    signs = [np.sign(x[..., :, None] - y[..., None, :]) for x, y in zip(a, b, strict=True)]
    return 50 + 50 * np.mean([sign.mean((-2, -1)) for sign in signs], axis=0)


def profile(scores: Scores, levels: Sequence[float]) -> list[float]:
    """Returns the share of runs in % with a score above each level; tasks weigh the same."""
    return [float(mean([100.0 * (values > level) for values in scores])) for level in levels]


def resampled(sides: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Returns accuracies in %, [REPLICATES, runs] for each side, of resampled rows and runs.

    Rows are drawn with replacement, the same for all sides, then the runs of each side.

    Args:
      sides: which rows of a task each run answers correctly, bool [runs, rows].
      rng: the generator.
    """
    right = np.concatenate(sides).T.astype(float)
    rows, sums = len(right), []
    for _ in range(0, REPLICATES, CHUNK):
        drawn = rng.integers(rows, size=(CHUNK, rows))
        sums.append(np.stack([np.bincount(one, minlength=rows) for one in drawn]) @ right)
    ends = np.cumsum([len(side) for side in sides])[:-1]
    return [
        np.take_along_axis(side, rng.integers(side.shape[1], size=side.shape), axis=1)
        for side in np.split(100 * np.concatenate(sums) / rows, ends, axis=1)
    ]


def steps(scores: Scores) -> list[tuple[float, float]]:
    """Returns the whole profile: each score, and the share of runs in % above it."""
    levels = np.unique(np.concatenate(scores)).tolist()
    return list(zip(levels, profile(scores, levels), strict=True))


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """The models of a preset over the tasks that they share."""

    grid: Grid
    profiles: Mapping[str, Sequence[tuple[float, float]]]  # `steps` by title of a model


@dataclasses.dataclass(frozen=True)
class Model:
    """The runs of a model on some tasks."""

    cells: Sequence[Cell]  # one for each task
    samples: Scores = ()  # accuracies of resampled rows and runs; none without `right`

    @property
    def accuracies(self) -> Scores:
        """The accuracy of each run in %."""
        return [np.array(cell.values) for cell in self.cells]

    @property
    def floors(self) -> list[float]:
        """The majority floor of each task in %."""
        return [cell.majority for cell in self.cells if cell.majority is not None]

    @property
    def enough(self) -> bool:
        """Whether there are runs enough for what rests on single runs."""
        return all(cell.seeds >= SEEDS for cell in self.cells)

    @property
    def right(self) -> list[np.ndarray]:
        """Which test rows each run answers correctly, bool [runs, rows]; none unless all say."""
        rows = [[run.right("test") for run in cell.runs] for cell in self.cells]
        known = [[row for row in task if row is not None] for task in rows]
        complete = [*map(len, rows)] == [*map(len, known)]
        return [np.stack(task) for task in known] if complete and self.enough else []

    def text(self, quantity: Callable[[Scores], np.ndarray], references: Sequence[float]) -> str:
        """Returns a quantity of the scores and its interval; "-" if a task lacks a reference."""
        if len(references) < len(self.cells) or max(references) >= 100:
            return "-"
        samples = self.samples and quantity(above(self.samples, references))
        return _text(quantity(above(self.accuracies, references)), samples)

    def against(self, other: "Model") -> str:
        """Returns the probability that a run is better than one of another, and its interval."""
        both = self.samples and other.samples
        samples = improvement(self.samples, other.samples) if both else []
        return _text(improvement(self.accuracies, other.accuracies), samples)


def _with_samples(models: Mapping[Any, Model]) -> dict[Any, Model]:
    """Returns models with their samples, all on the same resampled rows."""
    right = {name: found for name, model in models.items() if (found := model.right)}
    rng = np.random.default_rng(0)  # equal runs give equal tables
    tasks = [resampled(sides, rng) for sides in zip(*right.values(), strict=True)]
    samples = dict(zip(right, zip(*tasks, strict=True), strict=True))
    return {n: dataclasses.replace(m, samples=samples.get(n, ())) for n, m in models.items()}


def _text(value: Any, samples: Any) -> str:
    if not len(samples):
        return f"{value:.2f}"
    low, high = (f"{end:.2f}" for end in np.percentile(samples, [2.5, 97.5]))
    return f"{value:.2f} ({f'{low} to {high}' if low != high else 'no spread'})"


def over_tasks(table: Table) -> list[Aggregate]:
    """Returns an aggregate for each set of at least two tasks that two models of a preset share.

    The sets are those that some model has; the largest come first. A model has a task if every seed
    has a value on the same data.
    """
    has = [
        {
            (task, data.pop())
            for task in table.tasks
            if (cell := row.cells[task]).mean is not None
            and not cell.unfinished
            and len(data := {run.data_sha256 for run in cell.runs}) == 1
        }
        for row in table.own
    ]
    sets = sorted({tuple(sorted(data)) for data in has}, key=lambda data: (-len(data), data))
    found = []
    for data in sets:
        names = {task for task, *_ in data}
        rows = [row for row, theirs in zip(table.own, has, strict=True) if theirs.issuperset(data)]
        if min(len(names), len(rows)) > 1:
            tasks = [task for task in table.tasks if task in names]
            aggregate = _aggregate(table, tasks, rows)
            notes = [*aggregate.grid.notes, *_failures(table, tasks, rows)]
            title = aggregate.grid.title
            if any(other.grid.title == title for other in found):  # on other data
                title += f", data {', '.join(digest[:8] for _, digest in data)}"
            grid = dataclasses.replace(aggregate.grid, title=title, notes=notes)
            found.append(dataclasses.replace(aggregate, grid=grid))
    return found


def _failures(table: Table, tasks: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Returns which models an aggregate leaves out, or shows, though they failed a task.

    Args:
      table: of the preset.
      tasks: those of the aggregate.
      rows: those of the aggregate.
    """

    def failed(row: Row, columns: Sequence[str]) -> str:
        cells = {c: row.cells[c] for c in columns}
        states = {
            c: "seeds failed" if cell.state == "value" and cell.unfinished else cell.state
            for c, cell in cells.items()
        }
        words = [f"{table.columns[c]}: {s}" for c, s in states.items() if s not in _NO_FAILURE]
        return f"{row.label} ({'; '.join(words)})" if words else ""

    others = [task for task in table.tasks if task not in tasks]
    left_out = [failed(row, tasks) for row in table.own if row not in rows]
    shown = [failed(row, others) for row in rows]
    notes = []
    if words := list(filter(None, left_out)):
        notes.append(f"Left out, because they failed one of the tasks: {', '.join(words)}.")
    if words := list(filter(None, shown)):
        notes.append(f"Shown here, but failed another task: {', '.join(words)}.")
    return notes


def _aggregate(table: Table, tasks: Sequence[str], rows: Sequence[Row]) -> Aggregate:
    models = _with_samples({r.key: Model([r.cells[task] for task in tasks]) for r in rows})
    others = [models[row.key] for row in rows if row.model == REFERENCE]
    other = others[0] if len(others) == 1 else None  # of several, none is the reference
    best = sorted(rows, key=lambda row: -mean(models[row.key].accuracies))
    body = [[row.marked, *_line(models[row.key], other)] for row in best]
    *first, last = (table.columns[task] for task in tasks)
    against = f"Better than {config.title(REFERENCE)}"
    about = {
        "Interquartile mean": "of the scores above chance of all runs, without the lowest and the "
        "highest quarter",
        against: "the probability in % that a run is better than one of that model's on a task "
        "drawn at random",
        f"Runs above {', '.join(map(str, LEVELS))}": "the share in % of runs with a higher score "
        "above chance",
    }
    head = ["Model", "Seeds", "Mean", "Above chance", "Above shallow baseline", *about]
    title = f"Over {', '.join(first)} and {last}, preset {table.preset}"
    grid = Grid(title, head, body).filled
    notes = [
        "Mean: of the tasks' accuracies. Above chance, above shallow baseline: means of scores, "
        "where 0 is the majority floor, or the shallow baseline, and 100 all rows right."
    ]
    if explained := [f"{name}: {words}." for name, words in about.items() if name in grid.head]:
        notes.append(" ".join([*explained, "Definitions: rliable, arXiv:2108.13264."]))
    if any(model.samples for model in models.values()):
        notes.append(
            f"In parentheses: the middle 95 % of {REPLICATES:,} bootstrap samples of the seeds and "
            "test rows of each task. From three seeds, such intervals of a mean hold the true "
            "value in about 80 % of cases only. No spread: all samples agree, as those of three "
            "seeds often do by chance."
        )
    if not all(model.samples for model in models.values()):
        notes.append(
            f"A model with fewer than {SEEDS} seeds on some task has means only; do not rank such "
            "models. There is no interval if a run did not record which rows it answered "
            "correctly, and no interquartile mean if the tasks differ in their number of seeds."
        )
    if not all(row.uses_mask for row in rows):
        notes.append(PADDING)
    if any(row.cells[task].validation_is_test for row, task in itertools.product(rows, tasks)):
        notes.append(MARKS["validation_is_test"])
    profiles = {
        row.label: steps(above(model.accuracies, model.floors))
        for row in best
        if (model := models[row.key]).enough and max(model.floors) < 100
    }
    return Aggregate(dataclasses.replace(grid, notes=notes), profiles)


def _line(model: Model, other: Model | None) -> list[str]:
    """Returns a model's texts, from the number of seeds on."""
    counts = {cell.seeds for cell in model.cells}
    floors = model.floors
    baselines = [cell.baseline for cell in model.cells if cell.baseline is not None]
    single = ["-"] * 3
    if model.enough:
        levels = profile(above(model.accuracies, floors), LEVELS) if max(floors) < 100 else []
        single = [
            model.text(interquartile_mean, floors) if len(counts) == 1 else "-",
            model.against(other) if other and other.enough and other is not model else "-",
            ", ".join(f"{share:.0f}" for share in levels) or "-",
        ]
    mark = MARKS["validation_is_test"][0] * any(c.validation_is_test for c in model.cells)
    return [
        " to ".join(map(str, sorted({min(counts), max(counts)}))),
        model.text(mean, [0.0] * len(floors)) + mark,
        model.text(mean, floors),
        model.text(mean, baselines),
        *single,
    ]
