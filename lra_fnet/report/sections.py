"""Everything that a report shows, computed once; every form of the report is a function of it."""

import dataclasses
import itertools
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence

from lra_fnet import config, significance, tasks
from lra_fnet.report import pretraining
from lra_fnet.report.accuracy import literature, names
from lra_fnet.report.accuracy.build import tables as accuracies
from lra_fnet.report.accuracy.table import Row, Table
from lra_fnet.report.pretraining import Front
from lra_fnet.report.render.grid import Grid, Marked
from lra_fnet.report.sources import Benchmark, Sources, SweepFiles
from lra_fnet.report.speed import papers, points, tables
from lra_fnet.report.speed.points import Point
from lra_fnet.run.folder import Span
from lra_fnet.run.result import Record
from lra_fnet.significance import LEVEL, SEEDS, Comparison, holm, p_text


@dataclasses.dataclass(frozen=True)
class Preset:
    """The accuracies under one preset, and score against speed."""

    table: Table
    points: Sequence[Point]


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The contents of a report."""

    sources: Sources  # the files that it is made from
    runs: Sequence[Record]  # in the order of the tables
    presets: Sequence[Preset]
    fronts: Sequence[Front]  # pre-training on a corpus, ours and the paper's
    sections: Mapping[str, list[Grid]]  # every table that is not of accuracy, by heading
    literature: Grid  # results on LRA: the papers', later ones, ours and submitted ones

    @property
    def tables(self) -> list[Table]:
        """The accuracies, one table per preset."""
        return [preset.table for preset in self.presets]


def build(sources: Sources) -> Report:
    """Computes everything that is shown of these files."""
    runs, measured = names.sort(sources.runs), sources.benchmarks
    by_preset, fronts = accuracies(runs), pretraining.fronts(runs, measured)
    presets = [Preset(table, points.points(table, measured)) for table in by_preset]
    problems = [[problem] for problem in sources.problems]
    sections = {
        "What mixing buys": map(gains, by_preset),
        "Significance": map(pairs, by_preset),
        "Training and test": map(training, by_preset),
        "Score against speed": [points.grid(preset.table, preset.points) for preset in presets],
        "Speed and memory": speeds(measured),
        "Pre-training": [*map(pretrained, by_preset), *(front.grid() for front in fronts)],
        "Protocol": [protocol()] if "cpu" in [table.preset for table in by_preset] else [],
        "Sweeps": map(trials, sources.sweeps),
        "Required attention span": [spans(runs, sources.spans)],
        "Left out": [Grid("Files that are left out because they are damaged", ["File"], problems)],
    }
    present = {heading: list(filter(None, listed)) for heading, listed in sections.items()}
    submitted = {who: accuracies(theirs) for who, theirs in sources.submitted.items()}
    return Report(
        sources=sources,
        runs=runs,
        presets=presets,
        fronts=fronts,
        sections={heading: listed for heading, listed in present.items() if listed},
        literature=literature.grid(literature.standings(by_preset, submitted)),
    )


def protocol() -> Grid:
    """Returns the rules of docs/protocol.md, which an installed package has too."""
    text = (config.GIN_DIR.parent / "docs/protocol.md").read_text("utf-8")
    rules = re.findall(r"^- \*\*(.+?)\.\*\* (.+(?:\n  .+)*)", text, re.M)
    rows = [[name, " ".join(rule.split())] for name, rule in rules]
    return Grid("Protocol of preset cpu", ["About", "Rule"], rows, words=2)


def speeds(benchmarks: Sequence[Benchmark]) -> list[Grid]:
    """Returns the tables of each benchmark, and if there is one those of the papers."""
    grids = [
        dataclasses.replace(grid, title=f"{grid.title}, {benchmark.name}")
        for benchmark in benchmarks
        for grid in tables.grids(benchmark.cells)
    ]
    return grids + papers.tables() if grids else []


def gains(table: Table) -> Grid:
    """Returns the differences of all models from `ff_only`, the encoder without mixing."""
    own = list(itertools.product(table.own, table.tasks))
    seeds = {task: len(row.cells[task].runs) for row, task in own if row.model == names.NO_MIXING}
    cells = {(row.label, task): row.cells[task] for row, task in own if row.cells[task].gain}
    tested = [place for place, c in cells.items() if min(c.seeds, seeds[place[1]]) >= SEEDS]
    p_values = holm([gain.p_value for place in tested if (gain := cells[place].gain)])
    sure = {place for place, p in zip(tested, p_values, strict=True) if p <= LEVEL}
    rows = []
    for label in dict.fromkeys(label for label, _ in cells):
        row = [label]
        for task in table.tasks:
            cell = cells.get((label, task))
            text = "{} ({})".format(*_points(cell.gain)) if cell else "-"
            row.append(Marked(text, "bold" if (label, task) in sure else ""))
        rows.append(row)
    note = (
        "Test accuracy minus that of FF-only, the encoder without mixing, in points, with a 95 % "
        "interval of this pair alone; tests as below. An FF-only that collapsed counts with its "
        "one answer for all rows; of other models, the seeds that trained count. Bold: p adjusted "
        f"by Holm's method, over the cells with {SEEDS} seeds or more on both sides, is at most "
        f"{LEVEL}."
    )
    title = f"What mixing buys, preset {table.preset}"
    return Grid(title, ["Model", *(table.columns[task] for task in table.tasks)], rows, [note])


def pairs(table: Table) -> Grid:
    """Returns the differences of the main models from each other.

    Args:
      table: rows of the preset's own settings with a value on the same data are compared.
    """
    own = [row for model in names.MAIN for row in table.own if row.model == model]
    found: list[tuple[str, Row, Row, Comparison, bool]] = []
    for task, (b, a) in itertools.product(table.tasks, itertools.combinations(own, 2)):
        first, second = a.cells[task], b.cells[task]
        alike = a.model != b.model and first.data == second.data and len(first.data) == 1
        if alike and (difference := significance.compare(first.right, second.right)):
            enough = min(first.seeds, second.seeds) >= SEEDS
            found.append((task, a, b, difference, enough))
    adjusted = iter(holm([difference.p_value for *_, difference, enough in found if enough]))
    rows = []
    for task, a, b, difference, enough in found:
        p = next(adjusted) if enough else None
        verdict = "few seeds" if p is None else "yes" if p <= LEVEL else "no"
        seeds = " / ".join(str(row.cells[task].seeds) for row in (a, b))
        tests = [p_text(difference.p_value), "-" if p is None else p_text(p), seeds]
        rows.append([table.columns[task], a.label, b.label, verdict, *_points(difference), *tests])
    head = ["Task", "Model", "Against", "Significant", "Difference", "95 % interval"]
    note = (
        "Accuracy of the model minus that of the other, in points, with a 95 % interval of this "
        f"pair alone. Several seeds: {significance.SEEDS_AND_ROWS}; one run on each side: "
        f"{significance.ROWS}, which says nothing about other seeds. Significant: p adjusted by "
        f"Holm's method, over the rows with {SEEDS} seeds or more on both sides, is at most "
        f"{LEVEL}."
    )
    title = f"Main models in pairs, preset {table.preset}"
    return Grid(title, [*head, "p", "p adjusted", "Seeds"], rows, [note], words=4)


def _points(difference: Comparison | None) -> list[str]:
    """Returns a difference and its interval as texts."""
    if difference is None:
        return ["-", "-"]
    return [f"{difference.mean:+.2f}", f"{difference.low:+.2f} to {difference.high:+.2f}"]


def training(table: Table) -> Grid:
    """Returns accuracies on training and test rows at the last step, and what they cost.

    See arXiv:2011.04006, Table 3.
    """
    rows = []
    for task, row in itertools.product(table.tasks, table.ours):
        runs = [run for run in row.cells[task].runs if run.complete]
        scores = [(run.train, run.score("test", "last")) for run in runs]
        known = [(train.accuracy, test.accuracy) for train, test in scores if train and test]
        if not known:
            continue
        train, test = map(statistics.fmean, zip(*known, strict=True))
        seconds = [run.total_seconds / 60 for run in runs if run.total_seconds is not None]
        minutes = f"{statistics.median(seconds):.1f}" if seconds else "-"
        gap = [f"{train:.2f}", f"{test:.2f}", f"{train - test:+.2f}"]
        rows.append([table.columns[task], row.label, *gap, minutes])
    head = ["Task", "Model", "Training", "Test", "Gap", "Minutes"]
    note = (
        "Means over seeds at the last step, in %; training accuracy is measured on as many "
        "training rows as validation has. Minutes: the median of a run, with pre-training."
    )
    title = f"Accuracy on training and test rows, preset {table.preset}"
    return Grid(title, head, rows, [note], words=2)


def pretrained(table: Table) -> Grid:
    """Compares runs that began from an encoder trained on the task's own rows with the others.

    This is the comparison of "Never Train from Scratch" (arXiv:2310.02980), at equal total steps.
    """
    rows = []
    for task, row, other in _from_both(table):
        sides = row.cells[task], other.cells[task]
        difference = significance.compare(sides[0].right, sides[1].right)
        p = p_text(difference.p_value) if difference else "-"
        texts = [" / ".join(f"{v:.2f}" for v in cell.values) or cell.state for cell in sides]
        rows.append([table.columns[task], other.label, *texts, *_points(difference), p])
    head = ["Task", "Model", "Pre-trained", "From scratch", "Difference", "95 % interval", "p"]
    note = (
        "Test accuracy of each seed that trained; then the mean of the pre-trained runs minus that "
        "from scratch, in points. Both sides took the same number of steps in all. p and interval "
        "are of this pair alone; with one seed on a side, they do not cover its other seeds."
    )
    title = f"Self-pretraining against training from scratch, preset {table.preset}"
    return Grid(title, head, rows, [note], words=2)


def _from_both(table: Table) -> Iterator[tuple[str, Row, Row]]:
    """Yields task, row and row from scratch, where both took as many steps on the same data."""
    rows = itertools.product(table.tasks, table.ours)
    from_scratch = {(task, *row.key): row for task, row in rows if row.cells[task].runs}
    for task, row in itertools.product(table.tasks, table.variants):
        runs = row.cells[task].runs
        init = runs[0].init if runs else None
        if not (row.variant and init and init.task == task and init.rate):
            continue
        other = from_scratch.get((task, row.model, names.stages(runs[0], row.variant)[1] or None))
        others = other.cells[task].runs if other else ()
        both = [run for run in (*runs, *others) if run.complete]
        steps = {run.total_steps for run in both}
        if other and len(steps) == len({run.data_sha256 for run in both}) == 1:
            yield task, row, other


def spans(runs: Sequence[Record], by_folder: Mapping[str, Span]) -> Grid:
    """Returns the required attention span of every run that has one (arXiv:2011.04006, Sec. 2.3).

    Args:
      runs: in the order of the rows.
      by_folder: the attention_span.json of each run.
    """
    rows = []
    for run in (run for run in runs if run.folder in by_folder):
        span = by_folder[run.folder]
        numbers = [f"{span.mean:.1f}", f"{span.uniform:.1f}"]
        layers = ", ".join(f"{layer.mean:.1f}" for layer in span.layers)
        named = [tasks.title(run.task), run.preset, names.name_of(run), str(run.seed)]
        rows.append([*named, *numbers, layers, f"{span.rows:,}"])
    head = ["Task", "Preset", "Model", "Seed", "Span (tokens)", "Equal weights", "By layer", "Rows"]
    note = (
        "Mean distance between a query and the tokens that it attends to, weighted by attention, "
        "over heads, layers and validation rows. Equal weights: the same if every token had the "
        "same weight."
    )
    return Grid("Required attention span", head, rows, [note], words=3)


def trials(sweep: SweepFiles) -> Grid:
    """Returns every trial of a sweep with its state; those of selected settings are marked."""
    axes, scale = list(sweep.about.axes), 1 if sweep.about.pretrain else 100
    rows = []
    for trial in sweep.trials:
        given = dict(map(config.split, trial.overrides))
        rows.append(
            [
                str(trial.number),
                tasks.title(trial.task),
                trial.model,
                trial.state + (f": {trial.error}" if trial.error else ""),
                *(given.get(axis, "-") for axis in axes),
                str(trial.seed),
                "-" if trial.step is None else f"{trial.step:,}",
                "-" if trial.validation is None else f"{scale * trial.validation:.2f}",
                "selected" if any(choice.selects(trial) for choice in sweep.selected) else "",
            ]
        )
    head = ["Trial", "Task", "Model", "State", *axes, "Seed", "Step", "Validation", "Selected"]
    note = (
        "Validation: accuracy in %, or the loss of a pre-training. Selected: the setting of a task "
        "and model with the highest mean over its seeds when the sweep was finished. Trials never "
        "read the test split."
    )
    return Grid(f"Trials of the sweep {sweep.name}", head, rows, [note], words=4)
