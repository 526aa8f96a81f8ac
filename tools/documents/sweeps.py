"""results/sweeps.md: what was searched for each model, from the ledgers in results/sweeps."""

import json
from collections import defaultdict
from pathlib import Path

from lra_fnet import config, tasks
from lra_fnet.report.accuracy.cell import TASKS
from lra_fnet.report.render.grid import Grid, Marked
from lra_fnet.report.sources import SweepFiles
from lra_fnet.sweep import files

TARGET = Path(__file__).parents[2] / "results/sweeps.md"
PAGE = """# What was searched

Written by `python -m tools.documents sweeps` from the trials in results/sweeps, by the rules of
[docs/protocol.md](../docs/protocol.md). `lra-fnet sweep --sweep rates --task text` repeats a part.

"""
NOTE = (
    "Validation accuracy in % at each learning rate, then at each dropout and pooling with the "
    "best rate; bold: chosen; `-`: not run to its end. Minutes: wall-clock time of all trials."
)


def grid(sweeps: list[SweepFiles], seconds: dict[str, float]) -> Grid:
    """Returns a row for each task, its overrides beside the axes, and model; a column for a point.

    Args:
      sweeps: sweeps over lists of values, one seed each.
      seconds: by the folder of a trial.
    """
    rows: dict[tuple[str, str, str], dict[str, str]] = defaultdict(dict)
    spent: dict[tuple[str, str, str], float] = defaultdict(float)
    axes = {axis for sweep in sweeps for axis in sweep.about.axes}
    for sweep in sorted(sweeps, key=lambda sweep: len(sweep.about.axes)):
        best = {choice.folders for choice in chosen(sweep)}
        for trial in sweep.trials:
            bound = dict(map(config.split, trial.overrides))
            beside = "".join(f", {name}={bound[name]}" for name in bound if name not in axes)
            row = beside, trial.task, trial.model
            text = trial.state if trial.state in files.ENDED else "-"
            if trial.state == "complete":
                mark = "bold" if (trial.folder,) in best else ""
                text = Marked(f"{100 * (trial.validation or 0):.2f}", mark)
            rows[row][", ".join(bound[axis].strip("'") for axis in sweep.about.axes)] = text
            spent[row] += seconds.get(trial.folder, 0)
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    body = [
        [
            *(tasks.title(task) + beside, config.title(model)),
            *(cells.get(name, "-") for name in columns),
            f"{spent[beside, task, model] / 60:.0f}",
        ]
        for (beside, task, model), cells in sorted(
            rows.items(), key=lambda row: (row[0][0], list(TASKS).index(row[0][1]))
        )
    ]
    return Grid("The search", ["Task", "Model", *columns, "Minutes"], body, [NOTE], words=2)


def chosen(sweep: SweepFiles) -> list[files.Choice]:
    """Returns the best point of each task and model whose trials have all ended."""
    going = {(t.task, t.model) for t in sweep.trials if t.state not in files.ENDED}
    return files.best(t for t in sweep.trials if (t.task, t.model) not in going)


def write() -> None:
    """Writes the page."""
    found = sorted(TARGET.parent.glob("sweeps/*/sweep.json"))
    trials = [t for f in found for t in json.loads(f.with_name("trials.json").read_text("utf-8"))]
    seconds = {trial["folder"]: float(trial["wall_seconds"] or 0) for trial in trials}
    TARGET.write_text(PAGE + grid(list(map(SweepFiles, found)), seconds).markdown(), "utf-8")
