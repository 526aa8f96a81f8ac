"""Everything that a report shows, computed once; every form of the report is a function of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lra_fnet.report import accuracy, benchmarks, grids, significance, tradeoff
from lra_fnet.report.accuracy import Table
from lra_fnet.report.grid import Grid
from lra_fnet.report.significance import Marks
from lra_fnet.report.sources import Benchmark, Sources, Sweep
from lra_fnet.report.tradeoff import Tradeoff
from lra_fnet.run.record import Curve, Record


@dataclasses.dataclass(frozen=True)
class Preset:
    """Everything under one preset."""

    table: Table
    best: Marks  # of table.rows
    last: Marks  # of table.last_rows
    generalisation: Grid | None
    tradeoffs: list[Tradeoff]
    missing: Grid | None


class SweepTables(NamedTuple):
    """A sweep and its tables: trials, and what was selected."""

    sweep: Sweep
    grids: list[Grid]


class BenchmarkTables(NamedTuple):
    """A benchmark, its tables, and where it was measured."""

    benchmark: Benchmark
    grids: list[Grid]
    caption: str


@dataclasses.dataclass(frozen=True)
class Report:
    """The contents of a report."""

    presets: list[Preset]
    runs: list[Record]
    curves: Mapping[str, Curve]  # by run folder
    readings: Mapping[str, int]  # how often the test split of each run folder was read
    sweeps: list[SweepTables]
    benchmarks: list[BenchmarkTables]
    published: list[Grid]  # speed and memory
    spans: Grid | None

    @property
    def tables(self) -> list[Table]:
        """The accuracy tables."""
        return [preset.table for preset in self.presets]

    @property
    def sections(self) -> dict[str, list[Grid]]:
        """Every table that is not of accuracy, by heading."""
        measured = [
            dataclasses.replace(grid, title=f"{grid.title}, {tables.benchmark.name}")
            for tables in self.benchmarks
            for grid in tables.grids
        ]
        sections: dict[str, Sequence[Grid | None]] = {
            "Training and test rows": [preset.generalisation for preset in self.presets],
            "Score against speed": [t.grid() for preset in self.presets for t in preset.tradeoffs],
            "Speed and memory": [*measured, *self.published],
            "Sweeps": [grid for tables in self.sweeps for grid in tables.grids],
            "Required attention span": [self.spans],
            "Missing": [preset.missing for preset in self.presets],
        }
        present = {
            heading: [grid for grid in listed if grid] for heading, listed in sections.items()
        }
        return {heading: listed for heading, listed in present.items() if listed}


def build(sources: Sources) -> Report:
    """Computes everything that a report shows."""
    runs = accuracy.sort(sources.runs)
    return Report(
        presets=[_preset(table, sources) for table in accuracy.tables(runs)],
        runs=runs,
        curves=sources.curves,
        readings=sources.readings,
        sweeps=[SweepTables(sweep, grids.swept(sweep)) for sweep in sources.sweeps],
        benchmarks=[
            BenchmarkTables(b, benchmarks.grids(b.cells), benchmarks.caption(b.cells))
            for b in sources.benchmarks
        ],
        published=grids.published(sources.benchmarks),
        spans=grids.spans(runs, sources.spans),
    )


def _preset(table: Table, sources: Sources) -> Preset:
    measured = [t for b in sources.benchmarks for t in tradeoff.from_benchmark(b, table)]
    return Preset(
        table,
        significance.marks(table.rows, table.tasks, "best"),
        significance.marks(table.last_rows, table.tasks, "last"),
        grids.generalisation(table),
        tradeoff.from_runs(table) + measured,
        grids.missing(table, sources.started),
    )
