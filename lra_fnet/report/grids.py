"""The tables beside those of accuracy: generalisation, what is missing, sweeps, spans."""

import ast
import dataclasses
import shlex
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lra_fnet.report import accuracy as tables
from lra_fnet.report import benchmarks, tradeoff
from lra_fnet.report.grid import Grid
from lra_fnet.report.sources import Benchmark, Sources, Sweep


def sections(sources: Sources, found: Sequence[tables.Table]) -> dict[str, list[Grid]]:
    """Every table but those of accuracy, by the heading that it stands under."""
    runs = {run["folder"]: run for run in sources.results}
    trades = [trade for table in found for trade in tradeoff.from_runs(table, sources.results)]
    for benchmark in sources.benchmarks:
        trades += tradeoff.from_benchmark(benchmark, found)
    by_heading: dict[str, list[Grid | None]] = {
        "Training and test rows": [generalisation(table, runs) for table in found],
        "Score against speed": [trade.grid() for trade in trades],
        "Speed and memory": [
            *(
                dataclasses.replace(grid, title=f"{grid.title}, {benchmark.name}")
                for benchmark in sources.benchmarks
                for grid in benchmarks.grids(benchmark.cells)
            ),
            *published(sources.benchmarks),
        ],
        "Sweeps": [of(sweep) for sweep in sources.sweeps for of in (trials, selected)],
        "Required attention span": [spans(sources.spans, runs)],
        "Missing": [missing(table, sources.begun) for table in found],
    }
    whole = {h: [grid for grid in found if grid] for h, found in by_heading.items()}
    return {heading: found for heading, found in whole.items() if found}


def generalisation(table: tables.Table, runs: Mapping[str, dict[str, Any]]) -> Grid | None:
    """Accuracy on training rows beside test (arXiv:2011.04006, Table 3), at the last step."""
    ours = [row for row in table.last_rows if row.source == "ours"]
    counted = {
        (row.model, row.variant, task): _train_and_test(row.cells[task], runs)
        for row in ours
        for task in table.columns
    }
    tasks = [task for task in table.columns if any(counted[r.model, r.variant, task] for r in ours)]
    rows = []
    for row in ours:
        pairs = [counted[row.model, row.variant, task] for task in tasks]
        if any(pairs):
            cells = [_gap(pair) if pair else ["-"] * 3 for pair in pairs]
            rows.append([row.label, *(text for three in cells for text in three)])
    if not rows:
        return None
    names = [f"{table.columns[task]} {what}" for task in tasks for what in ("train", "test", "gap")]
    return Grid(
        f"Accuracy on training and test rows (%), preset {table.preset}: last step",
        ["Model", *names],
        rows,
        [
            "Means over seeds. Train: as many training rows as validation has. The gap is train "
            "minus test in percentage points: large where a model learns rows by heart.",
        ],
    )


def _train_and_test(cell: tables.Cell, runs) -> tuple[float, float] | None:
    done = [runs[f] for f in cell.folders if runs[f]["state"] == "complete" and runs[f]["train"]]
    if not done:
        return None
    sides = ([run["train"] for run in done], [run["test"]["last"] for run in done])
    train, test = (
        statistics.fmean(100 * c["correct"] / c["count"] for c in side) for side in sides
    )
    return train, test


def _gap(pair: tuple[float, float]) -> list[str]:
    train, test = pair
    return [f"{train:.2f}", f"{test:.2f}", f"{train - test:+.2f}"]


def missing(table: tables.Table, begun: Mapping[str, dict[str, Any]]) -> Grid | None:
    """Seeds of every model and task of a preset, and the command that fills each gap."""
    ours = [row for row in table.rows if row.source == "ours" and row.variant is None]
    rows = []
    for task in (task for task in table.columns if task not in tables.AVERAGES):
        absent = [row.model for row in ours if row.cells[task].state == "-"]
        if absent:
            outside = _outside(
                [r for r in begun.values() if {r["model"], r["task"]} & {*absent, task}]
            )
            words = (
                f"TASK={shlex.quote(task)} MODEL=$model PRESET={shlex.quote(table.preset)}{outside}"
            )
            models = " ".join(map(shlex.quote, absent))
            command = f"for model in {models}; do make lra {words}; done"
            if len(absent) == 1:
                command = f"make lra {words.replace('$model', models)}"
            rows.append([table.columns[task], f"{len(absent)} of {len(ours)}", command])
    if not rows:
        return None
    return Grid(
        f"Cells without a run, preset {table.preset}",
        ["Task", "Models missing", "Command"],
        rows,
        words=3,
    )


def _outside(begun: Sequence[Mapping[str, Any]]) -> str:
    """IMPORT= and GIN_DIR= of runs that read modules or gin files of a user."""
    words = ""
    for variable, field in (("IMPORT", "imports"), ("GIN_DIR", "gin_dirs")):
        values = dict.fromkeys(str(value) for run in begun for value in run.get(field, ()))
        words += f" {variable}={shlex.quote(' '.join(values))}" if values else ""
    return words


_QUANTITIES = {
    "train": ("training speed", "peak memory in training", "peak memory per device in training"),
    "infer": ("inference time",),
}


def published(found_here: Sequence[Benchmark]) -> list[Grid]:
    """The papers' tables of speed and memory, of what was measured here too: train, infer."""
    whats = {cell["what"] for benchmark in found_here for cell in benchmark.cells}
    wanted = [quantity for what in _QUANTITIES if what in whats for quantity in _QUANTITIES[what]]
    found = []
    for group in tables.published()["efficiency"].values():
        if group["quantity"] in wanted:
            ratios = group.get("speedup", {})
            rows = [
                [model, *map(_printed, numbers, ratios.get(model, [None] * len(numbers)))]
                for model, numbers in group["rows"].items()
            ]
            what = f"{group['quantity']} ({group['unit']}) on {group['hardware']}"
            source = f"arXiv:{group['arxiv']}, Table {group['table']}"
            lengths = [f"{tables.corrected(length):,}" for length in group["lengths"]]
            title = f"Published: {what}, {source}"
            notes = [group["note"]] if "note" in group else []
            found.append(Grid(title, ["model", *lengths], rows, notes))
    return found


def _printed(number: Any, ratio: float | None) -> str:
    """A published number or state, its printed speed-up behind it."""
    text = str(tables.corrected(number))
    return text if ratio is None else f"{text} ({ratio:.1f}x)"


def value_of(trial: Mapping[str, Any], axis: str) -> Any:
    """What a trial binds an axis to: a Python value, its text where it is none, None if unbound."""
    for binding in trial["overrides"]:
        name, _, text = binding.partition("=")
        if name.strip() == axis:
            try:
                return ast.literal_eval(text.strip())
            except (ValueError, SyntaxError):
                return text.strip()
    return None


def best_trials(sweep: Sweep) -> set[int]:
    """Numbers of the trials of each task and model's best setting that is whole; ties: the first.

    A setting is as good as the mean of its seeds.
    """
    settings: dict[tuple, dict[tuple, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for trial in sweep.trials:
        setting = tuple(sorted(trial["overrides"]))
        settings[trial["task"], trial["model"]][setting].append(trial)
    found = set()
    for own in settings.values():
        whole = [t for t in own.values() if all(trial["state"] == "complete" for trial in t)]
        if whole:
            best = max(whole, key=lambda t: statistics.fmean(x["validation"] for x in t))
            found |= {trial["number"] for trial in best}
    return found


def trials(sweep: Sweep) -> Grid:
    """Every trial of a sweep with its state; the best setting of each model is marked."""
    axes = list(sweep.about.get("axes", {}))
    best = best_trials(sweep)
    shared = (
        set.intersection(*(set(t["overrides"]) for t in sweep.trials)) if sweep.trials else set()
    )
    rows = []
    for trial in sweep.trials:
        values = [value_of(trial, axis) for axis in axes]
        validation = trial["validation"]
        rows.append(
            [
                *(str(trial["number"]), tables.TASKS.get(trial["task"], trial["task"])),
                trial["model"],
                trial["state"] + (f": {trial['error']}" if trial["error"] else ""),
                *map(_value, values),
                str(trial["seed"]),
                _of(trial["step"], trial["num_steps"]),
                "-" if validation is None else f"{100 * validation:.2f}",
                "best" if trial["number"] in best else "",
            ]
        )
    fixed = sorted(binding for binding in shared if binding.partition("=")[0].strip() not in axes)
    notes = [f"Bound in every trial: `{' '.join(fixed)}`."] if fixed else []
    notes.append(
        "Validation: accuracy in %. Best: the setting of a task and model with the highest mean "
        "over its seeds, all of them complete."
        + " Its trials never read the test split."
        * bool(axes)
    )
    head = ["Trial", "Task", "Model", "State", *axes, "Seed", "Step", "Validation", "Chosen"]
    return Grid(f"Trials of the sweep {sweep.name}", head, rows, notes, words=4)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def _of(step: int | None, num_steps: int | None) -> str:
    if step is None:
        return "-"
    return f"{step:,}" + (f" of {num_steps:,}" if num_steps and step != num_steps else "")


def selected(sweep: Sweep) -> Grid | None:
    """What `lra-fnet sweep --finish` chose on validation and scored on test."""
    if not sweep.selected:
        return None
    rows = [
        [
            *(tables.TASKS.get(choice["task"], choice["task"]), choice["model"]),
            " ".join(choice["overrides"]),
            ", ".join(map(str, choice["seeds"])),
            "-" if choice["validation"] is None else f"{100 * choice['validation']:.2f}",
        ]
        for choice in sweep.selected
    ]
    head = ["Task", "Model", "Setting", "Seeds", "Validation (%)"]
    return Grid(f"Selected in the sweep {sweep.name}", head, rows, words=3)


def spans(found: Mapping[str, dict[str, Any]], runs: Mapping[str, dict[str, Any]]) -> Grid | None:
    """The required attention span of every run that has one (arXiv:2011.04006, Sec. 2.3)."""
    rows = []
    for folder, span in found.items():
        run = runs[folder]
        layers = ", ".join(f"{layer['mean']:.1f}" for layer in span["layers"])
        rows.append(
            [
                *(tables.TASKS.get(run["task"], run["task"]), run["preset"], tables.name_of(run)),
                *(str(run["seed"]), f"{span['mean']:.1f}", f"{span['uniform']:.1f}", layers),
                f"{span['rows']:,}",
            ]
        )
    if not rows:
        return None
    head = ["Task", "Preset", "Model", "Seed", "Span (tokens)", "Equal weights", "By layer", "Rows"]
    note = (
        "Mean distance between a query and what it attends to, weighted by attention, over heads, "
        "layers and rows of validation. Equal weights: the same if every token got the same weight."
    )
    return Grid("Required attention span", head, rows, [note], words=3)
