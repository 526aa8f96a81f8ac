"""The report as one HTML file that asks nothing of a network: tables, figures, provenance."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from lra_fnet.report import accuracy as tables
from lra_fnet.report import benchmarks, charts, grids, significance, text, tradeoff
from lra_fnet.report.grid import Grid
from lra_fnet.report.sources import Benchmark, Sources, Sweep


@dataclasses.dataclass(frozen=True)
class Tip:
    """What is told of a cell: its runs, and how it compares with the best of its column."""

    id: str
    title: str
    interval: str
    against: str
    runs: list[dict[str, Any]]
    places: list[str]  # commit, device and data, once each


@dataclasses.dataclass(frozen=True)
class Part:
    """One of a preset's accuracy tables."""

    title: str
    groups: list[list[tables.Row]]  # of one model: ours, then published; or a variant
    floors: list[tables.Row]
    marks: significance.Marks
    spread: set[str]  # columns in which a cell has a spread


@dataclasses.dataclass(frozen=True)
class Preset:
    """Everything under one preset."""

    table: tables.Table
    parts: list[Part]
    notes: list[str]
    intervals: list[charts.Chart]
    generalisation: Grid | None
    tradeoffs: list[tuple[charts.Chart, Grid]]
    curves: list[charts.Chart]
    missing: Grid | None


def render(sources: Sources, found: Sequence[tables.Table]) -> str:
    """The page's text.

    Args:
      sources: everything that was read.
      found: its accuracy tables.
    """
    runs = {run["folder"]: run for run in sources.results}
    configs = _configs(sources.results)
    made = _Maker(sources, runs, found)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": _code, "slug": _slug}
    return environment.get_template("index.html").render(
        presets=[made.preset(table) for table in found],
        sweeps=[(sweep, *_sweep(sweep)) for sweep in sources.sweeps],
        benchmarks=[(b, *_benchmark(b)) for b in sources.benchmarks],
        spans=grids.spans(sources.spans, runs),
        tips=list(made.tips.values()),
        tip_of=made.tip_of,
        results=sources.results,
        readings=sources.readings,
        configs=configs,
        config_of=lambda run: _digest(run["config"]),
        device=tradeoff.device,
        legend=text.LEGEND,
        published=grids.published(sources.benchmarks),
        benchmark_legend=benchmarks.LEGEND,
        read_twice=[folder for folder, count in sources.readings.items() if count > 1],
        tasks=tables.TASKS,
        averages=tables.AVERAGES,
        name_of=tables.name_of,
    )


def _code(words: str) -> markupsafe.Markup:
    """Words in which `this` is code."""
    escaped = str(markupsafe.escape(words))
    return markupsafe.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))


def _slug(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")


def _digest(config: str) -> str:
    return hashlib.sha256(config.encode()).hexdigest()[:10]


def _configs(results: Sequence[dict[str, Any]]) -> dict[str, tuple[str, list[str]]]:
    """Each configuration once: its text, and the folders of its runs."""
    found: dict[str, tuple[str, list[str]]] = {}
    for run in results:
        found.setdefault(_digest(run["config"]), (run["config"], []))[1].append(run["folder"])
    return found


class _Maker:
    """Makes the presets' parts, and a tip for each cell that has runs."""

    def __init__(self, sources: Sources, runs: Mapping[str, dict], found: Sequence[tables.Table]):
        self.sources, self.runs = sources, runs
        self.tips: dict[tuple[str, ...], Tip] = {}
        labels = [row.label for table in found for row in table.rows if row.source == "ours"]
        self.indices = {label: number for number, label in enumerate(dict.fromkeys(labels))}

    def tip_of(self, cell: tables.Cell) -> str:
        """The id of a cell's tip; nothing where no run is behind it."""
        return self.tips[cell.folders].id if cell.folders else ""

    def preset(self, table: tables.Table) -> Preset:
        """Everything under one preset."""
        tasks = [task for task in table.columns if task not in tables.AVERAGES]
        parts = []
        for (title, rows), checkpoint in zip(text.parts(table), ("best", "last"), strict=True):
            marks = significance.best(rows, tasks, self.runs, checkpoint)
            parts.append(_part(title, rows, marks))
            if checkpoint == "best":
                self._add_tips(table, marks)
        trades = tradeoff.from_runs(table, self.sources.results)
        for benchmark in self.sources.benchmarks:
            trades += tradeoff.from_benchmark(benchmark, [table])
        return Preset(
            table,
            parts,
            [*table.notes, *([parts[0].marks.note] if parts[0].marks.note else [])],
            self._intervals(table, tasks),
            grids.generalisation(table, self.runs),
            [
                (charts.bubbles(t, self.indices, self._tips(table, t.column)), t.grid())
                for t in trades
            ],
            self._curves(table, tasks),
            grids.missing(table, self.sources.begun),
        )

    def _add_tips(self, table: tables.Table, marks: significance.Marks) -> None:
        for row in table.rows:
            for task, cell in row.cells.items():
                if not cell.folders:
                    continue
                runs = [self.runs[folder] for folder in cell.folders]
                self.tips[cell.folders] = Tip(
                    f"t{len(self.tips)}",
                    f"{row.label}, {table.columns[task]}, preset {table.preset}",
                    _interval(cell),
                    _against(marks.against.get((row.model, row.variant, task))),
                    runs,
                    list(dict.fromkeys(_place(run) for run in runs)),
                )

    def _tips(self, table: tables.Table, column: str) -> dict[str, str]:
        """Ids of a column's tips by the label of their row."""
        ours = [row for row in table.rows if row.source == "ours"]
        ids = {row.label: self.tip_of(row.cells[column]) for row in ours}
        return {label: id for label, id in ids.items() if id}

    def _intervals(self, table: tables.Table, tasks: Sequence[str]) -> list[charts.Chart]:
        out = []
        floors = table.rows[-1].cells
        for task in tasks:
            published: dict[str, list[tuple[str, float]]] = {}
            for row in table.rows:
                mean = row.cells[task].mean
                if row.source not in ("ours", "") and mean is not None:
                    published.setdefault(row.model, []).append((row.source, mean))
            bars = []
            for row in table.rows:
                cell = row.cells[task]
                if row.source != "ours" or cell.mean is None:
                    continue
                assert cell.low is not None
                assert cell.high is not None
                tests = [self.runs[f]["test"] for f in cell.folders if self.runs[f]["test"]]
                shares = [100 * t["best"]["correct"] / t["best"]["count"] for t in tests]
                bars.append(
                    charts.Bar(
                        *(row.label, self.indices[row.label], cell.mean, cell.low, cell.high),
                        shares if len(shares) > 1 else (),
                        () if row.variant else published.get(row.model, ()),
                        ", ".join(cell.lines) + f"; {_interval(cell)}",
                        self.tip_of(cell),
                    )
                )
            if bars:
                bars.sort(key=lambda bar: -bar.mean)
                out.append(charts.intervals(table.columns[task], bars, floors[task].mean))
        return out

    def _curves(self, table: tables.Table, tasks: Sequence[str]) -> list[charts.Chart]:
        out = []
        for task in tasks:
            curves = {
                row.label: [
                    self.sources.curves[folder]
                    for folder in row.cells[task].folders
                    if folder in self.sources.curves
                ]
                for row in table.rows
                if row.source == "ours"
            }
            tips = self._tips(table, task)
            for field, title in (
                ("loss", "training loss (nats)"),
                ("validation", "validation (%)"),
            ):
                own = {
                    label: [charts.thinned(getattr(c, field)) for c in group if getattr(c, field)]
                    for label, group in curves.items()
                }
                own = {label: group for label, group in own.items() if group}
                if own:
                    name = f"{table.columns[task]}, {title}"
                    out.append(
                        charts.lines(name, own, self.indices, ("Optimizer step", title), tips=tips)
                    )
        return out


def _part(title: str, rows: Sequence[tables.Row], marks: significance.Marks) -> Part:
    groups: list[list[tables.Row]] = []
    for row in rows:
        if row.source == "ours":
            groups.append([row])
        elif row.source:
            groups[-1].append(row)
    spread = {c for row in rows for c, cell in row.cells.items() if cell.sd is not None}
    return Part(title, groups, [row for row in rows if not row.source], marks, spread)


def _interval(cell: tables.Cell) -> str:
    if cell.low is None or cell.high is None:
        return ""
    return f"95 % interval for these test rows: {cell.low:.2f} to {cell.high:.2f}"


def _against(found: significance.Against | None) -> str:
    if found is None:
        return ""
    word = "Below" if found.told_apart else "Not told from"
    return (
        f"{word} the best, {found.best}: {found.mean:+.2f} points "
        f"({found.low:+.2f} to {found.high:+.2f}), p = {found.p_value:.2g} ({found.test})"
    )


def _place(run: dict[str, Any]) -> str:
    commit = (run["commit"] or "unknown")[:12] + (" (changed)" if run["dirty"] else "")
    return f"commit {commit}; {tradeoff.device(run)}; data {run['data_sha256'][:12]}"


def _sweep(sweep: Sweep) -> tuple[Grid, Grid | None, list[charts.Chart]]:
    """Its trials, what was selected, and validation against each axis."""
    models = dict.fromkeys(trial["model"] for trial in sweep.trials)
    indices = {model: number for number, model in enumerate(models)}
    out = []
    for task in dict.fromkeys(trial["task"] for trial in sweep.trials):
        for axis in sweep.about.get("axes", {}):
            groups: dict[str, list[tuple[Any, float]]] = {}
            for trial in sweep.trials:
                value = grids.value_of(trial, axis)
                if (trial["task"], trial["state"]) == (task, "complete") and value is not None:
                    key = tuple(value) if isinstance(value, list) else value
                    groups.setdefault(trial["model"], []).append((key, 100 * trial["validation"]))
            if groups:
                title = f"{tables.TASKS.get(task, task)}, {axis}"
                out.append(charts.scatter(title, groups, indices, (axis, "Validation (%)")))
    return grids.trials(sweep), grids.selected(sweep), out


_FIGURES = (
    ("train", "seconds", "Training", "ms a step", 1e-3),
    ("infer", "seconds", "Inference", "ms a batch", 1e-3),
    ("train", "peak_bytes", "Peak memory of training", "MB", 1e6),
)


def _benchmark(benchmark: Benchmark) -> tuple[list[Grid], str, list[charts.Chart]]:
    """Its tables, what it was measured on, and time and memory against the length."""
    out = []
    every = benchmarks.labels([cell for cell in benchmark.cells if cell["side"] == "ours"])
    indices = {label: number for number, label in enumerate(every)}
    for what, value, title, unit, scale in _FIGURES:
        cells = [c for c in benchmark.cells if c["what"] == what and c["side"] == "ours"]
        rows = {label: benchmarks.curve(cells, label, value) for label in benchmarks.labels(cells)}
        curves = {
            label: [[(x, y / scale) for x, y in zip(lengths, numbers, strict=True)]]
            for label, (lengths, numbers) in rows.items()
            if len(lengths) > 1
        }
        if curves:
            lengths = sorted({int(x) for (curve,) in curves.values() for x, _ in curve})
            axes = ("Length (tokens)", f"{title} ({unit})")
            out.append(
                charts.lines(
                    *(title, curves, indices, axes), log=(True, True), x_ticks=lengths, markers=True
                )
            )
    return benchmarks.grids(benchmark.cells), benchmarks.caption(benchmark.cells), out
