"""Everything that a report shows, computed once; every form of the report is a function of it."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from lra_fnet.report import (
    accuracy,
    benchmarks,
    grids,
    literature,
    marks,
    naming,
    pairs,
    pretraining,
    self_pretraining,
    sweeps,
    tradeoff,
)
from lra_fnet.report.grid import Grid
from lra_fnet.report.literature import Entry
from lra_fnet.report.marks import Marks
from lra_fnet.report.pairs import Pair
from lra_fnet.report.pretraining import Front
from lra_fnet.report.sources import Benchmark, Sources, Sweep
from lra_fnet.report.tables import Table
from lra_fnet.report.tradeoff import Point
from lra_fnet.run.result import Checkpoint, Record


@dataclasses.dataclass(frozen=True)
class Preset:
    """Everything under one preset."""

    table: Table  # the accuracies
    marks: Mapping[Checkpoint, Marks]  # the best cells among the preset's own models
    generalisation: Grid
    pairs: Sequence[Pair]  # comparisons of the main models
    self_pretraining: Grid  # rows that began pre-trained against rows from scratch
    points: Sequence[Point]  # score against speed


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The contents of a report."""

    sources: Sources  # the files that it is made from
    runs: Sequence[Record]  # in the order of the tables
    presets: Sequence[Preset]
    fronts: Sequence[Front]  # pre-training on a corpus, ours and the paper's
    sweeps: Sequence[tuple[Sweep, Sequence[Grid]]]
    benchmarks: Sequence[tuple[Benchmark, Sequence[Grid]]]
    published: Sequence[Grid]  # speed and memory in the papers
    entries: Sequence[Entry]  # results on LRA: the papers', later ones, ours and submitted ones
    literature: Grid  # their table
    spans: Grid  # the required attention spans
    unfinished: Grid  # runs without a result
    problems: Grid  # damaged files

    def __repr__(self):
        presets = ", ".join(preset.table.preset for preset in self.presets)
        return f"Report({len(self.runs)} runs; presets: {presets or 'none'})"

    @property
    def tables(self) -> list[Table]:
        """The accuracies, one table per preset."""
        return [preset.table for preset in self.presets]

    @property
    def sections(self) -> dict[str, list[Grid]]:
        """Every table that is not of accuracy, by heading."""
        measured = []
        for benchmark, listed in self.benchmarks:
            about = [
                benchmarks.caption(benchmark.cells),
                *([] if measured else [benchmarks.LEGEND]),
            ]
            for grid in listed:
                notes, about = [*grid.notes, *filter(None, about)], []
                title = f"{grid.title}, {benchmark.name}"
                measured.append(dataclasses.replace(grid, title=title, notes=notes))
        sections = {
            "Significance": [pairs.grid(p.table, p.pairs) for p in self.presets],
            "Training and test rows": [preset.generalisation for preset in self.presets],
            "Score against speed": [tradeoff.grid(p.table, p.points) for p in self.presets],
            "Speed and memory": [*measured, *self.published],
            "Pre-training": [
                *(preset.self_pretraining for preset in self.presets),
                *(front.grid() for front in self.fronts),
            ],
            "Sweeps": [grid for _, listed in self.sweeps for grid in listed],
            "Required attention span": [self.spans],
            "Unfinished": [self.unfinished],
            "Left out": [self.problems],
        }
        present = {heading: list(filter(None, listed)) for heading, listed in sections.items()}
        return {heading: listed for heading, listed in present.items() if listed}


def build(sources: Sources) -> Report:
    """Computes everything that is shown of these files."""
    runs = naming.sort(sources.runs)
    presets = [_preset(table, sources) for table in accuracy.tables(runs)]
    problems = [[problem] for problem in sources.problems]
    entries = literature.entries(
        [preset.table for preset in presets],
        {who: accuracy.tables(theirs) for who, theirs in sources.submitted.items()},
    )
    return Report(
        sources=sources,
        runs=runs,
        presets=presets,
        fronts=pretraining.fronts(runs, sources.benchmarks),
        sweeps=[
            (s, list(filter(None, (sweeps.trials(s), sweeps.selected(s))))) for s in sources.sweeps
        ],
        benchmarks=_benchmarks(sources.benchmarks),
        published=grids.published(sources.benchmarks),
        entries=entries,
        literature=literature.grid(entries),
        spans=grids.spans(runs, sources.spans),
        unfinished=grids.unfinished(sources.unfinished),
        problems=Grid("Files that are left out because they are damaged", ["File"], problems),
    )


def _benchmarks(sources: Sequence[Benchmark]) -> list[tuple[Benchmark, Sequence[Grid]]]:
    """Returns benchmarks with their tables; those under the same conditions are one."""
    groups: dict[tuple, list[Benchmark]] = {}
    for benchmark in sources:
        groups.setdefault(benchmarks.conditions(benchmark.cells), []).append(benchmark)
    merged = []
    for group in groups.values():
        cells, listed = benchmarks.together([benchmark.cells for benchmark in group])
        folder = PurePosixPath(group[0].name).parent
        names = [os.path.relpath(benchmark.name, folder) for benchmark in group]
        name = group[0].name if len(group) == 1 else f"{folder} ({', '.join(names)})"
        merged.append((Benchmark(name, cells), listed))
    return merged


def _preset(table: Table, sources: Sources) -> Preset:
    best: dict[Checkpoint, Marks] = {
        part.checkpoint: marks.marks(part.rows, table.tasks, part.checkpoint)
        for part in table.parts[:2]
    }
    return Preset(
        table=table,
        marks=best,
        generalisation=grids.generalisation(table),
        pairs=pairs.pairs(table, naming.MAIN),
        self_pretraining=self_pretraining.grid(table),
        points=tradeoff.points(table, sources.benchmarks),
    )
