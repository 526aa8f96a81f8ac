"""Tables of a report: generalisation, missing runs, published speeds, spans."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lra_fnet import tasks
from lra_fnet.report import cells, naming
from lra_fnet.report.cells import Cell
from lra_fnet.report.grid import Grid
from lra_fnet.report.sources import Benchmark
from lra_fnet.report.tables import Table
from lra_fnet.run.folder import Begun, Span
from lra_fnet.run.result import Record


def generalisation(table: Table) -> Grid:
    """Returns train and test accuracy (arXiv:2011.04006, Table 3) at the last step."""
    by_row = [
        (row.label, {task: _gap(row.cells[task]) for task in table.tasks})
        for row in (*table.last_rows, *table.last_variants)
    ]
    columns = [task for task in table.tasks if any(gaps[task] for _, gaps in by_row)]
    rows = [
        [label, *(text for task in columns for text in gaps[task] or ["-"] * 3)]
        for label, gaps in by_row
        if any(gaps.values())
    ]
    head = [
        f"{table.columns[task]} {what}" for task in columns for what in ("train", "test", "gap")
    ]
    title = f"Accuracy on training and test rows (%), preset {table.preset}: last step"
    note = (
        "Means over seeds. Training accuracy is measured on as many training rows as the "
        "validation split has. The gap is train minus test in percentage points: it is large where "
        "a model memorises rows."
    )
    return Grid(title, ["Model", *head], rows, [note])


def _gap(cell: Cell) -> list[str]:
    """Returns train, test and gap of a cell's complete runs as texts; nothing without any."""
    scores = [(run.train, run.score("test", "last")) for run in cell.runs]
    pairs = [(train.accuracy, test.accuracy) for train, test in scores if train and test]
    if not pairs:
        return []
    train, test = map(statistics.fmean, zip(*pairs, strict=True))
    return [f"{train:.2f}", f"{test:.2f}", f"{train - test:+.2f}"]


def unfinished(begun: Sequence[tuple[Begun, int]]) -> Grid:
    """Returns the runs that have begun and have no result, with the newest step of each."""
    rows = [
        [tasks.title(run.task), run.preset, naming.name_of(run), str(run.seed), f"{step:,}"]
        for run, step in begun
    ]
    head = ["Task", "Preset", "Model", "Seed", "Step"]
    return Grid("Runs that have not ended", head, rows, words=3)


_QUANTITIES = {
    "train": ("training speed", "peak memory in training", "peak memory per device in training"),
    "infer": ("inference time",),
}


def published(benchmarks: Sequence[Benchmark]) -> list[Grid]:
    """Returns the papers' tables of speed and memory, for what was measured here too."""
    whats = {cell.what for benchmark in benchmarks for cell in benchmark.cells}
    wanted = [quantity for what in _QUANTITIES if what in whats for quantity in _QUANTITIES[what]]
    grids = []
    for group in cells.published()["efficiency"].values():
        if group["quantity"] in wanted:
            ratios = group.get("speedup", {})
            rows = [
                [model, *map(_printed, numbers, ratios.get(model, [None] * len(numbers)))]
                for model, numbers in group["rows"].items()
            ]
            what = f"{group['quantity']} ({group['unit']}) on {group['hardware']}"
            source = f"arXiv:{group['arxiv']}, Table {group['table']}"
            lengths = [f"{cells.corrected(length):,}" for length in group["lengths"]]
            notes = [group["note"]] if "note" in group else []
            grids.append(Grid(f"Published: {what}, {source}", ["model", *lengths], rows, notes))
    return grids


def _printed(number: Any, ratio: float | None) -> str:
    """Returns a published number or state, followed by its printed speed-up."""
    text = str(cells.corrected(number))
    return text if ratio is None else f"{text} ({ratio:.1f}x)"


def spans(runs: Sequence[Record], by_folder: Mapping[str, Span]) -> Grid:
    """Returns the required attention span of every run that has one (arXiv:2011.04006, Sec. 2.3).

    Args:
      runs: in the order of the rows.
      by_folder: the attention_span.json of each run.
    """
    rows = []
    for run in (run for run in runs if run.folder in by_folder):
        span = by_folder[run.folder]
        rows.append(
            [
                *(tasks.title(run.task), run.preset, naming.name_of(run), str(run.seed)),
                *(f"{span.mean:.1f}", f"{span.uniform:.1f}"),
                ", ".join(f"{layer.mean:.1f}" for layer in span.layers),
                f"{span.rows:,}",
            ]
        )
    head = ["Task", "Preset", "Model", "Seed", "Span (tokens)", "Equal weights", "By layer", "Rows"]
    note = (
        "Mean distance between a query and the tokens that it attends to, weighted by attention, "
        "over heads, layers and validation rows. Equal weights: the same if every token had the "
        "same weight."
    )
    return Grid("Required attention span", head, rows, [note], words=3)
