"""The accuracy tables as values: rows and tables of cells."""

import dataclasses
from collections.abc import Mapping, Sequence

from lra_fnet.report.accuracy.cell import AVERAGES, Cell
from lra_fnet.significance import SEEDS


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: ours, a paper's, or a reference (the majority floor, the baseline)."""

    label: str  # a model's title, and for a variant what differs (`name_of`)
    source: str  # "ours", a paper's name, or "" for a reference
    cells: Mapping[str, Cell]  # by task or average
    model: str = ""  # "" for a reference
    variant: str | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """Model and variant: on a task of the user, a model may have several rows."""
        return self.model, self.variant

    @property
    def ours(self) -> bool:
        """Whether the row shows runs."""
        return self.source == "ours"

    @property
    def published(self) -> bool:
        """Whether the row shows numbers of a paper."""
        return self.source not in ("ours", "")


@dataclasses.dataclass(frozen=True)
class Table:
    """The accuracies under one preset, of the checkpoint that is best on validation.

    Attributes:
      preset: its name.
      columns: titles of the tasks and averages that have a run.
      rows: of the models that have a run, ours and each paper's; the controls, then the
        references.
      variants: rows of runs with overrides, or that began pre-trained.
      baselines: the method of each task's shallow baseline.
      notes: lines below the table.
    """

    preset: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    variants: Sequence[Row]
    baselines: Mapping[str, str]
    notes: Sequence[str] = ()

    @property
    def tasks(self) -> list[str]:
        """The columns that are not averages."""
        return [column for column in self.columns if column not in AVERAGES]

    @property
    def own(self) -> list[Row]:
        """The rows of our runs, variants left out."""
        return [row for row in self.rows if row.ours]

    @property
    def ours(self) -> list[Row]:
        """The rows of our runs, variants last."""
        return [*self.own, *self.variants]

    @property
    def references(self) -> list[Row]:
        """The majority floor and, if some run has one, the shallow baseline."""
        return [row for row in self.rows if not row.source]

    @property
    def best(self) -> dict[str, Row]:
        """The row of ours with the highest validation accuracy on each task.

        Only rows of three seeds that are above the shallow baseline on test count.
        """
        best = {}
        for task in self.tasks:
            able = [r for r in self.own if (c := r.cells[task]).seeds >= SEEDS and not c.italic]
            if able:
                best[task] = max(able, key=lambda row, t=task: row.cells[t].validation or 0.0)
        return best
