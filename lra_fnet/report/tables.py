"""The accuracy tables as values; `accuracy` builds them, other modules print and draw them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lra_fnet.report.cells import AVERAGES, Cell
from lra_fnet.run.result import Checkpoint


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
    def key(self) -> tuple[str, str | None]:
        """Model and variant: on a task of the user, a model may have several rows."""
        return self.model, self.variant

    @property
    def ours(self) -> bool:
        """Whether the row shows runs rather than published numbers or floors."""
        return self.source == "ours"

    @property
    def published(self) -> bool:
        """Whether the row shows numbers of a paper."""
        return self.source not in ("ours", "")

    @property
    def measured(self) -> bool:
        """Whether some cell has a run."""
        return any(cell.runs for cell in self.cells.values())

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
        """Our row with the highest accuracy on each task that has one above the majority floor."""
        above = {
            task: [
                row
                for row in self.own
                if (cell := row.cells[task]).mean is not None and not cell.floor
            ]
            for task in self.tasks
        }
        return {
            task: max(rows, key=lambda row, task=task: row.cells[task].mean or 0)
            for task, rows in above.items()
            if rows
        }

    @property
    def own(self) -> list[Row]:
        """The rows of our runs, variants left out."""
        return [row for row in self.rows if row.ours]

    @property
    def ours(self) -> list[Row]:
        """The rows of our runs, variants last."""
        return [*self.own, *self.variants]


def scored(rows: Sequence[Row]) -> set[str]:
    """Returns the tasks on which some row has a run."""
    return {task for row in rows for task, cell in row.cells.items() if cell.runs}


def measured(table: Table, part: Part) -> tuple[Table, Part]:
    """Returns a part with the rows of models that have a run, and the columns with a value of ours.

    Rows of papers stay with their models if one of these columns has a value of theirs; the floors
    stay too.
    """
    models = {row.model for row in part.rows if row.measured}
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
