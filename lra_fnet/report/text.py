"""The accuracy tables as text: terminal, Markdown, CSV.

The rules of a cell stand in `tables`. Missing is never 0.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from lra_fnet.report import accuracy as tables
from lra_fnet.report.grid import Grid
from lra_fnet.report.sources import Sweep

_IDENTITY = ("state", "preset", "task", "model", "variant", "seed")
_MEASURED = (
    "mixer_length",
    "uses_mask",
    "validation_is_test",
    "parameters",
    "steps_per_second",
    "peak_bytes",
    "wall_seconds",
)
_TRIAL = (
    *("number", "task", "model", "preset", "seed", "overrides", "state", "step", "num_steps"),
    *("validation", "folder", "error", "command"),
)
_DEVICE = ("name", "platform", "count", "cores")
LEGEND = (
    "Ours: mean over seeds ± sample standard deviation, in % of test rows, with the maximum. `-` "
    "not run; `OOM` out of memory; `FAIL` diverged, or the lower end of the 95 % Wilson interval "
    "of the mean accuracy on the rows of one test set is not above the majority floor; `n/a` the "
    "source has no such number. Mean of 5 leaves out Path-X; Mean of 6 counts a failed Path-X as "
    "50. A mean stands only where all its tasks have a value."
)


def parts(table: tables.Table) -> list[tuple[str, list[tables.Row]]]:
    """The two tables of a preset, each with its title."""
    head = f"Test accuracy (%), preset {table.preset}"
    return [
        (f"{head}: checkpoint best on validation", table.rows),
        (f"{head}: last step", table.last_rows),
    ]


def label(row: tables.Row) -> str:
    """The row's label, marked if its model sees the padding."""
    return row.label + ("" if row.uses_mask else " ‡")


def render_terminal(found: Sequence[tables.Table]) -> list[RichTable]:
    """Two rich tables a preset: at the checkpoint best on validation, and at the last step.

    A paper's row stands indented under ours. 80 columns hold the table of one task.
    """
    out = []
    for table in found:
        for title, rows in parts(table):
            text = [*table.notes, *table.provenance] if rows is table.rows else []
            rich_table = RichTable(
                title=Text(title, style="bold"),
                caption=Text("\n".join(text)) if text else None,
                caption_justify="left",
                box=box.SIMPLE_HEAD,
                padding=0,
                pad_edge=False,
            )
            rich_table.add_column("Model", overflow="fold")
            for column in table.columns.values():
                head = Text(column.replace(" of", "\nof"))
                rich_table.add_column(head, justify="right", overflow="fold")
            for row in rows:
                published = row.source not in ("ours", "")
                name = f"  {row.source}" if published else label(row)
                lines = ["\n".join(row.cells[c].lines).replace(" ± ", "±") for c in table.columns]
                style = "dim" if published else None
                rich_table.add_row(Text(name), *map(Text, lines), style=style)
            out.append(rich_table)
    return out


def render_markdown(found: Sequence[tables.Table]) -> str:
    """The tables of every preset with notes and provenance, headings from level 3 on."""
    lines = []
    for table in found:
        lines += [f"### Preset {table.preset}", ""]
        for title, rows in parts(table):
            lines += [f"**{title}**", ""]
            heads = ["Model", "Source", *table.columns.values()]
            lines += [
                f"| {' | '.join(heads)} |",
                "| --- | --- |" + " ---: |" * len(table.columns),
            ]
            for row in rows:
                cells = [", ".join(row.cells[column].lines) for column in table.columns]
                lines.append(f"| {' | '.join([label(row), row.source, *cells])} |")
            lines.append("")
        lines += [LEGEND, "", *(f"- {note}" for note in table.notes), ""]
        lines += [
            "Runs behind this preset's tables:",
            "",
            *(f"- {p}" for p in table.provenance),
            "",
        ]
    return "\n".join(lines)


def _csv(rows: list[dict[str, Any]]) -> str:
    """CSV text with a header; None is an empty field, true and false are lower case."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()})
    return out.getvalue()


def render_csv(found: Sequence[tables.Table]) -> str:
    """One line a cell: a number only where the cell has a value, else its state alone."""
    rows = []
    for table in found:
        for checkpoint, source in (("best", table.rows), ("last", table.last_rows)):
            for row in source:
                for column in table.columns:
                    cell = row.cells[column]
                    rows.append(
                        {
                            "preset": table.preset,
                            "checkpoint": checkpoint,
                            "model": row.label,
                            "source": row.source or "floor",
                            "column": column,
                            "state": cell.state,
                            "mean": cell.mean,
                            "sd": cell.sd,
                            "maximum": cell.maximum,
                            "seeds": cell.seeds,
                            "unfinished_seeds": cell.unfinished,
                            "uses_mask": row.uses_mask if row.source == "ours" else None,
                            "validation_is_test": cell.validation_is_test,
                        }
                    )
    return _csv(rows)


def render_runs_csv(
    results: Sequence[dict[str, Any]], readings: Mapping[str, int] | None = None
) -> str:
    """One line a run, with counts: the file to read for anything that the tables do not show.

    Args:
      results: what `results.collect` returns.
      readings: how often the test split was read, by run folder.
    """
    rows = []
    for run in results:
        row = {"folder": run["folder"], **{key: run[key] for key in _IDENTITY}}
        row["overrides"] = " ".join(run["overrides"])
        for split in ("validation", "test"):
            for checkpoint in ("best", "last"):
                counts = (run[split] or {}).get(checkpoint) or {}
                for key in ("step", "correct", "count"):
                    row[f"{split}_{checkpoint}_{key}"] = counts.get(key)
        for name in ("train", "floor"):
            for key in ("correct", "count"):
                row[f"{name}_{key}"] = (run[name] or {}).get(key)
        row |= {key: run.get(key) for key in _MEASURED}
        row["test_readings"] = (readings or {}).get(run["folder"])
        row |= {f"device_{key}": run["device"][key] for key in _DEVICE}
        row |= {key: run[key] for key in ("commit", "dirty", "data_sha256")}
        row["versions"] = json.dumps(run["versions"], sort_keys=True)
        rows.append(row)
    return _csv(rows)


def render_trials_csv(sweeps: Sequence[Sweep]) -> str:
    """One line a trial of a sweep."""
    rows = []
    for sweep in sweeps:
        for trial in sweep.trials:
            row = {"sweep": sweep.name, **{key: trial[key] for key in _TRIAL}}
            row["overrides"] = " ".join(trial["overrides"])
            rows.append(row)
    return _csv(rows)


def render_grids_csv(sections: Mapping[str, Sequence[Grid]]) -> str:
    """One line a cell of every other table, as its text: section, table, row, column, value."""
    rows = []
    for section, found in sections.items():
        for grid in found:
            for cells in grid.rows:
                place = {"section": section, "table": grid.title}
                place["row"] = " | ".join(cells[: grid.words])
                pairs = list(zip(grid.head, cells, strict=True))[grid.words :]
                rows += [place | {"column": column, "value": value} for column, value in pairs]
    return _csv(rows)


def run_table(result: dict[str, Any]) -> RichTable:
    """What `make lra` prints after a run: its test accuracy beside floor and published numbers."""
    cell = tables.cell([result] if tables.tested(result) else [])
    name = result["model"] + (f"+{result['variant']}" if result["variant"] else "")
    accuracy = Text("\n".join(cell.lines[:1]))
    if result["state"] == "diverged":
        accuracy = Text("FAIL (diverged)")
    elif result["state"] == "complete" and tables.tested(result):
        best = result["test"]["best"]
        low, high = (100 * end for end in tables.wilson(best["correct"], best["count"]))
        lines = [
            f"{100 * best['correct'] / best['count']:.2f} %" + "†" * result["validation_is_test"],
            f"{best['correct']} of {best['count']}",
            f"95 %: {low:.2f} to {high:.2f}",
        ]
        accuracy = Text("\n".join([*(["FAIL"] if cell.state == "FAIL" else []), *lines]))
    floor = result["floor"]
    columns = {
        "Model": name + ("" if result["uses_mask"] else " ‡"),
        "Task": tables.TASKS.get(result["task"], result["task"]),
        "Preset": result["preset"],
        "Test accuracy": accuracy,
        "Majority floor": f"{100 * floor['correct'] / floor['count']:.2f} %",
    }
    for source in tables.SOURCES:
        row = tables.published_cells(result["model"], source) or {}
        published = row.get(result["task"], tables.Cell("n/a"))
        columns[tables.published()["accuracy"][source]["name"]] = ", ".join(published.lines)
    notes = [f"Overrides: {' '.join(result['overrides'])}"] if result["overrides"] else []
    notes += tables.marks(result["preset"], result["validation_is_test"], result["uses_mask"])
    table = RichTable(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=Text("\n".join(notes)) if notes else None,
        caption_justify="left",
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    table.add_row(
        *(value if isinstance(value, Text) else Text(value) for value in columns.values())
    )
    return table


def print_run(result: dict[str, Any], console: Console | None = None) -> None:
    """Prints run_table to the terminal."""
    (console or Console()).print(run_table(result))
