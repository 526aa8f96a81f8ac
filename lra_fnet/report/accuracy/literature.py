"""The literature on LRA in one table: both papers, later results, and ours under their settings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lra_fnet import config
from lra_fnet.report.accuracy.cell import AVERAGES, TASKS, Cell, averages
from lra_fnet.report.accuracy.names import SOURCES, UNCOMPARED
from lra_fnet.report.accuracy.published import printed_cell, published, published_cells
from lra_fnet.report.accuracy.table import Table
from lra_fnet.report.render.grid import Grid

OWN = (("fnet", "fnet"), ("fnet", "linear"))  # models of their paper's authors
PROTOCOLS = {"paper": "lra", "lra-code": "lra", "tuned": "pixels"}  # of our presets


class Standing(NamedTuple):
    """A result on LRA: a row of the table."""

    model: str  # title, or the label of a row of ours
    cells: Mapping[str, Cell]  # by task or average
    protocol: str  # see published.json
    seeds: str  # their number; "?" if the source does not state it
    tier: str  # "self", "self, quoted", "others", "here" or "submitted"
    source: str


def standings(tables: Sequence[Table], submitted: Mapping[str, Sequence[Table]]) -> list[Standing]:
    """Returns all results, the highest mean of five first.

    Args:
      tables: ours; those of presets that are far from any published setting are left out.
      submitted: those of results by others, by the name of their folder.
    """
    later = published()["literature"]["rows"]
    found = [*_papers(), *_later(later), *_runs(tables, "here")]
    for who, theirs in submitted.items():
        found += _runs(theirs, "submitted", f"results/submitted/{who}, ")

    def height(one: Standing) -> float:
        return next((m for name in AVERAGES if (m := one.cells[name].mean) is not None), 0.0)

    return sorted(found, key=height, reverse=True)


def grid(listed: Sequence[Standing]) -> Grid:
    """Returns the table of the results in this order."""
    columns = TASKS | AVERAGES
    body = [
        [e.model, *(e.cells[c].text for c in columns), e.protocol, e.seeds, e.tier, e.source]
        for e in listed
    ]
    described = published()["literature"]["protocols"]
    protocols = [f"`{name}`: {words}." for name, words in described.items()]
    notes = [
        "Compare rows of one protocol only. " + " ".join(protocols),
        "Tier: self, a number of the model's authors (quoted: as another paper prints it); others, "
        "by other authors, with settings of their own; submitted, a run by others that passed "
        "`lra-fnet verify` here; here, a run of this repository.",
        "Mean of 6 counts a failed Path-X as 50. Where the source prints all tasks, both means are "
        "computed here.",
        "n/a: not printed in the source that we read, or only as part of a mean. Seeds: ? where "
        "the source does not state the number.",
    ]
    head = ["Model", *columns.values(), "Protocol", "Seeds", "Tier", "Source"]
    order = "sorted by mean of five, or of six where only that is known"
    return Grid(f"Results on LRA (test accuracy, %), {order}", head, body, notes)


def _papers() -> Iterator[Standing]:
    """Yields the rows of the papers' accuracy tables."""
    for source in SOURCES:
        table = published()["accuracy"][source]
        for model in table["rows"]:
            cells = published_cells(model, source) or {}
            printed = f"arXiv:{table['arxiv']}, Table {table['table']}"
            tier = "self" if (source, model) in OWN else "others"
            yield Standing(config.title(model), cells, "lra", "?", tier, printed)


def _later(rows: Sequence[Mapping[str, Any]]) -> Iterator[Standing]:
    """Yields the rows of published.json's literature; a mean is ours, or else the printed one."""
    for row in rows:
        cells = {task: printed_cell(row[task]) for task in TASKS}
        means = averages(cells)
        for name, cell in means.items():
            if cell.mean is None:
                means[name] = printed_cell(row.get(name, "n/a"))
        seeds = "?" if row["seeds"] is None else str(row["seeds"])
        printed = f"arXiv:{row['arxiv']}, {row['printed_in']}"
        yield Standing(row["model"], cells | means, row["protocol"], seeds, row["tier"], printed)


def _runs(tables: Sequence[Table], tier: str, where: str = "") -> Iterator[Standing]:
    """Yields the rows of runs that have a result, without those of presets far from the papers'."""
    for table in (table for table in tables if table.preset not in UNCOMPARED):
        for row in table.own if tier == "here" else table.ours:  # of others, variants too
            counts = {row.cells[task].seeds for task in TASKS if row.cells[task].seeds}
            if counts:
                seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
                protocol = PROTOCOLS.get(table.preset, f"preset {table.preset}")
                if row.variant:  # other settings than the preset's, or a pre-trained encoder
                    protocol = f"preset {table.preset}, changed"
                source = f"{where}preset {table.preset}"
                yield Standing(row.label, row.cells, protocol, seeds, tier, source)
