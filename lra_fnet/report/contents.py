"""Everything that a report shows, computed once; every form of the report is a function of it."""

import dataclasses

from lra_fnet.report import accuracy, benchmarks, grids, significance, tradeoff
from lra_fnet.report.grid import Grid
from lra_fnet.report.sources import Sources


class Preset:
    """Everything under one preset.

    Attributes:
      table: the accuracies.
      marks: the best cells of each part of the table, by checkpoint.
      generalisation, missing: tables, see `grids`.
      tradeoffs: score against speed.
    """

    def __init__(self, table: accuracy.Table, sources: Sources):
        self.table = table
        self.marks = {
            part.checkpoint: significance.marks(part.rows, table.tasks, part.checkpoint)
            for part in table.parts
        }
        self.generalisation = grids.generalisation(table)
        self.tradeoffs = tradeoff.from_runs(table)
        self.missing = grids.missing(table, sources.started)


class Report:
    """The contents of a report.

    Attributes:
      sources: the files that it is made from.
      runs: in the order of the tables.
      tables: the accuracies, one table per preset.
      presets: the same with everything else under that preset.
      sweeps, benchmarks: each with its tables.
      published: speed and memory in the papers.
      spans: the required attention spans.
      sizes: how large the sublayers' outputs are.
      problems: damaged files.
    """

    def __init__(self, sources: Sources):
        self.sources = sources
        self.runs = accuracy.sort(sources.runs)
        self.tables = accuracy.tables(self.runs)
        self.presets = [Preset(table, sources) for table in self.tables]
        self.sweeps = [
            (s, list(filter(None, (grids.trials(s), grids.selected(s))))) for s in sources.sweeps
        ]
        self.benchmarks = [(b, benchmarks.grids(b.cells)) for b in sources.benchmarks]
        self.published = grids.published(sources.benchmarks)
        self.spans = grids.spans(self.runs, sources.spans)
        self.sizes = grids.sizes(self.runs)
        problems = [[problem] for problem in sources.problems]
        self.problems = Grid("Files that are left out because they are damaged", ["File"], problems)

    @property
    def sections(self) -> dict[str, list[Grid]]:
        """Every table that is not of accuracy, by heading."""
        measured = [
            dataclasses.replace(grid, title=f"{grid.title}, {benchmark.name}")
            for benchmark, listed in self.benchmarks
            for grid in listed
        ]
        sections = {
            "Training and test rows": [preset.generalisation for preset in self.presets],
            "Score against speed": [t.grid() for preset in self.presets for t in preset.tradeoffs],
            "Speed and memory": [*measured, *self.published],
            "Sweeps": [grid for _, listed in self.sweeps for grid in listed],
            "Required attention span": [self.spans],
            "Size of the sublayers": [self.sizes],
            "Left out": [self.problems],
            "Missing": [preset.missing for preset in self.presets],
        }
        present = {heading: list(filter(None, listed)) for heading, listed in sections.items()}
        return {heading: listed for heading, listed in present.items() if listed}
