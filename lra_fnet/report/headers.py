"""Writes the measured accuracy and cost of each preset into the headers of its gin files."""

import itertools
import math
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from lra_fnet.report import cells, naming
from lra_fnet.report.sources import Sources
from lra_fnet.run.folder import Curve
from lra_fnet.run.result import Record

MARK = "#| "  # begins every line that this module writes
PARTS = (0.1, 0.5)  # of the steps, at which accuracy part-way is shown
_ABOUT = """\
Measured: test accuracy in % (each seed's; from three on, mean and standard deviation), minutes of
each device's fastest run, and validation accuracy after a tenth and after half of the steps."""


def files(sources: Sources, presets: Path) -> dict[Path, str]:
    """Returns the new text of every preset's task file whose header is not up to date.

    Args:
      sources: the results.
      presets: the folder gin/presets; a task is a file there, <preset>/<task>.gin.
    """
    texts = {}
    for path in sorted(presets.glob("*/*.gin")):
        if path.stem == "base" or "." in path.stem:
            continue
        runs = [r for r in sources.runs if (r.preset, r.task) == (path.parent.name, path.stem)]
        old = path.read_text("utf-8")
        lines = [line for line in old.splitlines(True) if not line.startswith(MARK.strip())]
        prose = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
        added = [f"{MARK}{line}\n" for line in header(runs, sources.curves)]
        new = "".join([*prose, *added, *lines[len(prose) :]])
        if new != old:
            texts[path] = new
    return texts


def header(runs: Sequence[Record], curves: dict[str, Curve]) -> list[str]:
    """Returns the lines about the runs of one preset and task.

    Args:
      runs: of all models and seeds; those that did not read test, that bind more than another data
        set, or that began pre-trained are left out.
      curves: the courses of runs, by `Record.folder`.
    """
    scored = [run for run in runs if run.tested and not run.init]
    own = [run for run in scored if all(o.startswith("DATASET") for o in run.overrides)]
    groups: dict[tuple[str, str], list[Record]] = {}  # seeds on other data are another row
    for run in naming.sort(own):
        groups.setdefault((run.name, run.data_sha256), []).append(run)
    values = [cells.cell(group) for group in groups.values()]
    rows = [_row(g, cell, curves) for g, cell in zip(groups.values(), values, strict=True)]
    if not rows:
        return ["Not measured."]
    titles = ["model", "seeds", "test", "minutes", *(f"{part:.0%}" for part in PARTS), "device"]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (titles, *rows)
    ]
    first = own[0]
    command = f"lra-fnet train --task {first.task} --preset {first.preset} --model ..."
    on_test = any(cell.validation_is_test for cell in values)
    selected = textwrap.wrap(cells.MARKS["validation_is_test"], 97) if on_test else []
    return [*_ABOUT.splitlines(), f"  {command}", *table, *selected]


def _row(runs: Sequence[Record], cell: cells.Cell, curves: dict[str, Curve]) -> list[str]:
    """Returns the texts of one model's runs."""
    shown = ", ".join(f"{value:.2f}" for value in cell.values)
    if cell.mean is None:
        shown = cell.state
    elif cell.sd is not None:
        shown = f"{cell.mean:.2f} ± {cell.sd:.2f}"
    mark = "†" if cell.validation_is_test else ""
    minutes = {run.trained_on: math.inf for run in runs}
    for run in runs:
        if run.wall_seconds:
            minutes[run.trained_on] = min(minutes[run.trained_on], run.wall_seconds / 60)
    devices = sorted(minutes)
    fastest = [f"{minutes[d]:.1f}" if math.isfinite(minutes[d]) else "-" for d in devices]
    return [
        runs[0].name,
        cell.ratio,
        f"{shown}{mark}",
        "; ".join(fastest),
        *(_part_way(runs, curves, part) for part in PARTS),
        "; ".join(devices),
    ]


def _part_way(runs: Sequence[Record], curves: dict[str, Curve], part: float) -> str:
    """Returns the mean validation accuracy of the runs that were scored after part of the steps."""
    values = []
    for run in runs:
        last = run.score("validation", "last")
        points = dict(curves[run.folder].validation) if run.folder in curves else {}
        if last and (step := math.ceil(part * last.step)) in points:
            values.append(points[step])
    return f"{statistics.mean(values):.2f}" if values else "-"
