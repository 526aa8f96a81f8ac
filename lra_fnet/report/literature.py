"""The literature on LRA in one table: both papers, later results, and ours under their settings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lra_fnet import config
from lra_fnet.report.accuracy import SOURCES, UNCOMPARED, Table
from lra_fnet.report.cells import (
    AVERAGES,
    TASKS,
    Cell,
    averages,
    corrected,
    meanings,
    published,
    published_cells,
)
from lra_fnet.report.grid import Grid

OWN = (("fnet", "fnet"), ("fnet", "linear"))  # models of their paper's authors
PROTOCOLS = {"paper": "lra", "lra-code": "lra", "tuned": "pixels"}  # of our presets


def grid(tables: Sequence[Table], submitted: Mapping[str, Sequence[Table]] = {}) -> Grid:
    """Returns a row for each result, the highest mean of five first, with protocol and source.

    Args:
      tables: ours; those of presets that are far from any published setting are left out.
      submitted: those of results by others, by the name of their folder.
    """
    data = published()["literature"]
    entries = [*_papers(), *_later(data["rows"]), *_runs(tables, "here")]
    for who, theirs in submitted.items():
        entries += _runs(theirs, "submitted", f"results/submitted/{who}, ")
    rows = sorted(entries, key=_height, reverse=True)
    columns = TASKS | AVERAGES
    body = [
        [model, *(cells[column].lines[0] for column in columns), protocol, seeds, tier, source]
        for model, cells, protocol, seeds, tier, source in rows
    ]
    protocols = [f"`{name}`: {words}." for name, words in data["protocols"].items()]
    notes = [
        *meanings(cells[column] for _, cells, *_ in rows for column in columns),
        "Compare rows of one protocol only. " + " ".join(protocols),
        "Tier: self, a number of the model's authors (quoted: as another paper prints it); others, "
        "by other authors, with settings of their own; submitted, a run by others that passed "
        "`lra-fnet verify` here; here, a run of this repository.",
        "Mean of 6 counts a failed Path-X as 50. Where the source prints all tasks, both means are "
        "computed here. OOM: out of memory; FAIL: not above the majority floor; -: not run, or no "
        "mean.",
        "n/a: not printed in the source that we read, or only as part of a mean. Seeds: ? where "
        "the source does not state the number.",
    ]
    head = ["Model", *columns.values(), "Protocol", "Seeds", "Tier", "Source"]
    return Grid("Results on LRA, highest mean of five first (test accuracy, %)", head, body, notes)


Entry = tuple[str, Mapping[str, Cell], str, str, str, str]


def _papers() -> Iterator[Entry]:
    """Yields the rows of the papers' accuracy tables."""
    for source in SOURCES:
        table = published()["accuracy"][source]
        for model in table["rows"]:
            cells = published_cells(model, source) or {}
            printed = f"arXiv:{table['arxiv']}, Table {table['table']}"
            tier = "self" if (source, model) in OWN else "others"
            yield config.title(model), cells, "lra", "?", tier, printed


def _later(rows: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    """Yields the rows of published.json's literature; a mean is ours, or else the printed one."""
    for row in rows:
        cells = {task: _cell(row[task]) for task in TASKS}
        means = averages(cells)
        for name, cell in means.items():
            if cell.mean is None:
                means[name] = _cell(row.get(name, "n/a"))
        seeds = "?" if row["seeds"] is None else str(row["seeds"])
        printed = f"arXiv:{row['arxiv']}, {row['printed_in']}"
        yield row["model"], cells | means, row["protocol"], seeds, row["tier"], printed


def _runs(tables: Sequence[Table], tier: str, where: str = "") -> Iterator[Entry]:
    """Yields the rows of runs that have a result, without those of presets far from the papers'."""
    for table in (table for table in tables if table.preset not in UNCOMPARED):
        shown = table.rows if tier == "here" else table.ours  # of others, variants too
        for row in (row for row in shown if row.ours):
            counts = {row.cells[task].seeds for task in TASKS if row.cells[task].seeds}
            if counts:
                seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
                protocol = PROTOCOLS.get(table.preset, f"preset {table.preset}")
                if row.variant:  # other settings than the preset's, or a pre-trained encoder
                    protocol = f"preset {table.preset}, changed"
                yield row.label, row.cells, protocol, seeds, tier, f"{where}preset {table.preset}"


def _cell(number: Any) -> Cell:
    number = corrected(number)
    return Cell(number) if isinstance(number, str) else Cell("value", float(number))


def _height(entry: Entry) -> float:
    """Returns the mean of five, or of six if only that is known; rows with neither come last."""
    cells = entry[1]
    return next((m for name in AVERAGES if (m := cells[name].mean) is not None), 0.0)
