"""Everything that a report shows, computed once; every form of the report is a function of it."""

import dataclasses
from collections.abc import Mapping, Sequence

from lra_fnet.report import accuracy, benchmarks, grids, significance, tradeoff
from lra_fnet.report.accuracy import Table
from lra_fnet.report.grid import Grid
from lra_fnet.report.significance import Marks
from lra_fnet.report.sources import Benchmark, Sources, Sweep
from lra_fnet.report.tradeoff import Tradeoff
from lra_fnet.run.record import Checkpoint, Record


@dataclasses.dataclass(frozen=True)
class Preset:
    """Everything under one preset."""

    table: Table
    marks: Mapping[Checkpoint, Marks]  # of each part of the table
    generalisation: Grid
    tradeoffs: list[Tradeoff]
    missing: Grid


@dataclasses.dataclass(frozen=True)
class Report:
    """The contents of a report."""

    sources: Sources
    presets: list[Preset]
    runs: list[Record]  # in the order of the tables
    sweeps: list[tuple[Sweep, list[Grid]]]
    benchmarks: list[tuple[Benchmark, list[Grid]]]
    published: list[Grid]  # speed and memory
    spans: Grid

    @property
    def tables(self) -> list[Table]:
        """The accuracy tables."""
        return [preset.table for preset in self.presets]

    @property
    def sections(self) -> dict[str, list[Grid]]:
        """Every table that is not of accuracy, by heading."""
        measured = [
            dataclasses.replace(grid, title=f"{grid.title}, {benchmark.name}")
            for benchmark, listed in self.benchmarks
            for grid in listed
        ]
        sections: dict[str, Sequence[Grid]] = {
            "Training and test rows": [preset.generalisation for preset in self.presets],
            "Score against speed": [t.grid() for preset in self.presets for t in preset.tradeoffs],
            "Speed and memory": [*measured, *self.published],
            "Sweeps": [grid for _, listed in self.sweeps for grid in listed],
            "Required attention span": [self.spans],
            "Missing": [preset.missing for preset in self.presets],
        }
        present = {heading: list(filter(None, listed)) for heading, listed in sections.items()}
        return {heading: listed for heading, listed in present.items() if listed}


def build(sources: Sources) -> Report:
    """Computes everything that a report shows."""
    runs = accuracy.sort(sources.runs)
    return Report(
        sources,
        presets=[_preset(table, sources) for table in accuracy.tables(runs)],
        runs=runs,
        sweeps=[
            (s, list(filter(None, (grids.trials(s), grids.selected(s))))) for s in sources.sweeps
        ],
        benchmarks=[(b, benchmarks.grids(b.cells)) for b in sources.benchmarks],
        published=grids.published(sources.benchmarks),
        spans=grids.spans(runs, sources.spans),
    )


def _preset(table: Table, sources: Sources) -> Preset:
    measured = [t for b in sources.benchmarks for t in tradeoff.from_benchmark(b, table)]
    return Preset(
        table,
        {p.checkpoint: significance.marks(p.rows, table.tasks, p.checkpoint) for p in table.parts},
        grids.generalisation(table),
        tradeoff.from_runs(table) + measured,
        grids.missing(table, sources.started),
    )
