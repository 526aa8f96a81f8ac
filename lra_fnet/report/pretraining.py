"""Pre-training on a corpus: accuracy of masked pieces against speed, over models and sizes.

It is the FNet paper's own figure (arXiv:2105.03824, Figure 2). The paper's numbers are printed for
two sizes only (its Tables 3 and 5); those of its figure's other sizes are not.
"""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lra_fnet import config
from lra_fnet.baselines import shallow
from lra_fnet.benchmark.files import Result
from lra_fnet.report.accuracy.published import published
from lra_fnet.report.render.grid import Grid, rounded
from lra_fnet.report.sources import Benchmark
from lra_fnet.report.speed import tables
from lra_fnet.run.result import Record

PAPER = "FNet paper"
NOTE = "Validation at the best checkpoint, mean over seeds. Transformer is the paper's BERT."


@dataclasses.dataclass(frozen=True)
class FrontPoint:
    """A model at a size: means over its seeds."""

    model: str
    size: str  # width x layers
    run: str  # name of the run's folder, or the paper's
    seeds: int
    accuracy: float  # of masked pieces in validation, %
    loss: float  # of masked pieces, nats
    order: float  # accuracy of sentence order, %
    milliseconds: float = math.inf  # a training step; inf: not measured, or out of memory
    parameters: int | None = None
    measured_in: str = ""

    @property
    def text(self) -> str:
        """The point in words."""
        name = f"{config.title(self.model)} {self.size}"
        return f"{name}: {self.accuracy:.4g} % of masked pieces, {rounded(self.milliseconds)} ms"


@dataclasses.dataclass(frozen=True)
class Front:
    """Points whose accuracies and speeds may be compared."""

    name: str  # in a few words, for the figure
    title: str
    points: Sequence[FrontPoint]
    batch_size: int
    floor: float | None  # the best shallow baseline on masked pieces of validation, %
    notes: Sequence[str]

    @property
    def timed(self) -> list[FrontPoint]:
        """The points that have a speed."""
        return [point for point in self.points if math.isfinite(point.milliseconds)]

    @property
    def best(self) -> list[FrontPoint]:
        """The points that no other beats in accuracy without being slower, the fastest first."""
        kept: list[FrontPoint] = []
        for point in sorted(self.timed, key=lambda p: (p.milliseconds, -p.accuracy)):
            if not kept or point.accuracy > kept[-1].accuracy:
                kept.append(point)
        return kept

    def grid(self) -> Grid:
        """Returns the points as a table, by size, then the best first."""
        rows = [
            [
                *(config.title(point.model), point.size, point.run, point.measured_in or "-"),
                *(str(point.seeds or "-"), f"{point.accuracy:.2f}", f"{point.loss:.2f}"),
                f"{point.order:.2f}",
                rounded(point.milliseconds, 4) if point in self.timed else "-",
                "-" if point.parameters is None else f"{point.parameters:,}",
                "yes" if point in self.best else "",
            ]
            for point in sorted(self.points, key=lambda p: (len(p.size), p.size, -p.accuracy))
        ]
        head = ["Model", "Size", "Run", "Speed measured in", "Seeds", "Masked pieces right (%)"]
        head += ["Loss", "Sentence order right (%)", "ms a batch", "Parameters", "On the front"]
        return Grid(self.title, head, rows, self.notes, words=4)


def fronts(runs: Sequence[Record], measured: Sequence[Benchmark] = ()) -> list[Front]:
    """Returns the runs on a corpus, in groups of equal data, batch, steps, device and objective.

    Speeds are those of the benchmarks that measured such steps on one machine, or else of the runs.
    The paper's own front is the last, if there is any of ours.
    """
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for run in runs:
        if run.complete and run.denoise and _score(run).rows:
            data = f"{run.dataset} of {run.data_source} ({run.data_sha256[:8]})"
            masked = run.setting("Denoising.rate"), run.setting("Denoising.replacement")
            batch = run.setting("Run.batch_size")
            groups[run.preset, data, run.trained_on, batch, run.steps, *masked].append(run)
    ours = [_front(shared, group, measured) for shared, group in groups.items()]
    return [*ours, paper()] if ours else []


def _front(shared: tuple, runs: Sequence[Record], measured: Sequence[Benchmark]) -> Front:
    preset, data, device, batch, steps, rate, how = shared
    models: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for run in runs:
        models[run.model, run.name].append(run)
    timed = {key: _timed(seeds[0], measured) for key, seeds in models.items()}
    machines = [(cell.device, cell.threads) for cell, _ in filter(None, timed.values())]
    points = []
    for key, seeds in models.items():
        found, speeds = timed[key], [run.steps_per_second for run in seeds if run.steps_per_second]
        milliseconds, where = math.inf, ""
        if found and (found[0].device, found[0].threads) == machines[0]:
            milliseconds, where = 1000 * statistics.median(found[0].seconds), found[1]
        elif not machines and speeds:
            milliseconds, where = 1000 / max(speeds), "runs"
        points.append(_point(seeds, milliseconds, where))
    replaced = f' ("{how}")' if how != "bert" else ""
    length = f"{steps:,} steps of {batch} rows, {100 * (rate or 0):.6g}% masked{replaced}"
    rules = runs[0].baselines or [rule for rule in [runs[0].baseline] if rule]
    hidden = [rule.validation.accuracy for rule in rules if rule.of == shallow.HIDDEN]
    floor = max(hidden, default=None)
    notes = [NOTE]
    if floor is not None:
        notes.append(f"Masked pieces right of the best shallow baseline: {floor:.2f} %.")
    title = f"Pre-training on {data}, preset {preset}: {length}, {device}"
    name = f"{steps:,} steps{replaced}, {runs[0].device.name.partition(' ')[0]}"
    return Front(name, title, points, batch, floor, notes)


def _timed(run: Record, measured: Sequence[Benchmark]) -> tuple[Result, str] | None:
    """Returns the cell of the first benchmark that measured a run's step, and its name."""
    for benchmark in measured:
        if cell := tables.of_run(benchmark.cells, run, "pretrain"):
            return cell, benchmark.name
    return None


def _point(runs: Sequence[Record], milliseconds: float, where: str) -> FrontPoint:
    scores, run = [_score(run) for run in runs], runs[0]
    return FrontPoint(
        model=run.model,
        size=f"{run.setting('Encoder.dim')} x {run.setting('Encoder.num_layers')}",
        run=run.name,
        seeds=len(runs),
        accuracy=statistics.fmean(score.accuracy for score in scores),
        loss=statistics.fmean(score.loss / max(score.count, 1) for score in scores),
        order=statistics.fmean(100 * score.order_correct / score.rows for score in scores),
        milliseconds=milliseconds,
        parameters=run.parameters,
        measured_in=where,
    )


def _score(run: Record) -> Any:
    """Returns the sums of validation at the best checkpoint."""
    return run.score("validation")


def paper() -> Front:
    """Returns the numbers that the FNet paper prints: "Base" and "Large"."""
    groups = published()["pretraining"]
    metrics, speed = groups["fnet_pretraining_metrics"], groups["fnet_pretraining_speed"]
    points = []
    for size, rows in metrics["rows"].items():
        for model, (_, loss, _, accuracy, order) in rows.items():
            time = speed["rows"][size][model][0]  # "OOM" where it does not fit
            given = math.inf if isinstance(time, str) else float(time)
            where = metrics["sizes"][size], PAPER, 0
            points.append(FrontPoint(model, *where, 100 * accuracy, loss, 100 * order, given))
    title = (
        f"Published: pre-training on C4, {speed['hardware']}, arXiv:{metrics['arxiv']}, "
        f"Tables {metrics['table']} and {speed['table']}"
    )
    name = f"{PAPER}: C4, {speed['hardware']}"
    return Front(name, title, points, speed["batch_size"], None, [metrics["note"]])
