"""Pre-training on a corpus: accuracy of masked pieces against speed, over models and sizes.

It is the FNet paper's own figure (arXiv:2105.03824, Figure 2). The paper's numbers are printed for
two sizes only (its Tables 3 and 5); those of its figure's other sizes are not.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from lra_fnet import config
from lra_fnet.baselines import shallow
from lra_fnet.baselines.shallow import Shallow
from lra_fnet.benchmark.files import Result
from lra_fnet.report import benchmarks
from lra_fnet.report.accuracy.published import published
from lra_fnet.report.render.grid import Grid, rounded
from lra_fnet.report.sources import Benchmark
from lra_fnet.run.result import Device, Record

PAPER = "FNet paper"
ATTENTION = "transformer"  # the paper's BERT, whose speed others are compared with
_HEAD = ("Masked pieces right (%)", "Loss", "Sentence order right (%)", "ms a batch")
_HEAD += ("Examples/s", "Speed-up", "Parameters", "On the front")


@dataclasses.dataclass(frozen=True)
class Point:
    """A model at a size: means over its seeds."""

    model: str
    label: str  # title, or the paper's name of the model
    size: str  # width x layers
    run: str  # name of the run's folder; "" for the paper's
    seeds: int
    accuracy: float  # of masked pieces in validation, %
    loss: float  # of masked pieces, nats
    order: float  # accuracy of sentence order, %
    milliseconds: float | None  # a training step; inf: out of memory, None: not measured
    parameters: int | None
    timed: Result | None = None  # the cell of the benchmark that measured the speed

    @property
    def text(self) -> str:
        """The point in words."""
        return (
            f"{self.label} {self.size}: {self.accuracy:.4g} % of masked pieces, "
            f"{rounded(self.milliseconds or 0)} ms"
        )


@dataclasses.dataclass(frozen=True)
class Front:
    """Points whose accuracies and speeds may be compared."""

    name: str  # in a few words, for the figure
    title: str
    points: Sequence[Point]
    batch_size: int
    notes: Sequence[str] = ()
    baselines: Sequence[Shallow] = ()  # of the corpus, see `baselines.shallow`

    @property
    def timed(self) -> list[Point]:
        """The points that have a speed."""
        return [p for p in self.points if p.milliseconds and math.isfinite(p.milliseconds)]

    @property
    def best(self) -> list[Point]:
        """The points that no other beats in accuracy without being slower, the fastest first."""
        kept: list[Point] = []
        for point in sorted(self.timed, key=lambda p: (p.milliseconds or 0, -p.accuracy)):
            if not kept or point.accuracy > kept[-1].accuracy:
                kept.append(point)
        return kept

    @property
    def floor(self) -> float | None:
        """The accuracy of the best shallow baseline on masked pieces of validation, %."""
        rules = [rule.validation.accuracy for rule in self.baselines if rule.of == shallow.HIDDEN]
        return max(rules, default=None)

    def grid(self) -> Grid:
        """Returns the points as a table, by size, then the best first; then the baselines."""
        rows = [
            [
                *(point.label, point.size, point.run or PAPER, str(point.seeds or "-")),
                *(f"{point.accuracy:.2f}", f"{point.loss:.2f}", f"{point.order:.2f}"),
                *self._speed(point),
                "-" if point.parameters is None else f"{point.parameters:,}",
                ("yes" if point in self.best else "no") if point in self.timed else "-",
            ]
            for point in sorted(self.points, key=lambda p: (_order(p.size), -p.accuracy))
        ]
        for rule in self.baselines:
            hidden = rule.of == shallow.HIDDEN
            right = f"{rule.validation.accuracy:.2f}"
            scores = [right, "-", "-"] if hidden else ["-", "-", right]
            rows.append([rule.method, "-", "shallow baseline", *"-", *scores, *"-----"])
        return Grid(self.title, ["Model", "Size", "Run", "Seeds", *_HEAD], rows, self.notes, 3)

    def _speed(self, point: Point) -> tuple[str, str, str]:
        """Returns a point's time, its examples per second, and its speed-up over attention."""
        if point.milliseconds is None:
            return "-", "-", "-"
        if math.isinf(point.milliseconds):
            return "OOM", "-", "-"
        own = [p for p in self.timed if (p.model, p.size) == (ATTENTION, point.size)]
        slow = min(own, key=lambda p: p.milliseconds or math.inf, default=None)
        ratio = "-"
        if slow and slow.timed and point.timed:
            ratio = f"{benchmarks.speed_up(point.timed, slow.timed):.2f}"
        elif slow and slow.milliseconds:
            ratio = f"{slow.milliseconds / point.milliseconds:.2f}"
        examples = 1000 * self.batch_size / point.milliseconds
        return rounded(point.milliseconds, 4), rounded(examples, 4), ratio


class Conditions(NamedTuple):
    """What runs must share for their accuracies to be comparable."""

    preset: str
    data: str
    device: str
    batch_size: int
    steps: int
    hidden: str  # which pieces are masked, in words

    @classmethod
    def of(cls, run: Record) -> "Conditions":
        """Returns those of a run."""
        data = f"{run.dataset} of {run.data_source} ({run.data_sha256[:8]})"
        hidden = f"{100 * (run.setting('Denoising.rate') or 0):.6g}% masked"
        if (how := run.setting("Denoising.replacement")) != "bert":
            hidden += f' ("{how}")'
        batch_size = run.setting("Run.batch_size") or 0
        return cls(run.preset, data, run.trained_on, batch_size, run.steps, hidden)


def fronts(runs: Sequence[Record], measured: Sequence[Benchmark] = ()) -> list[Front]:
    """Returns the runs on a corpus, in groups of equal data, batch, steps, device and objective.

    Speeds are those of benchmarks of pre-training that measured all models of a size in turn; a run
    with a size or settings that none of them has is without a speed. If there is no such benchmark
    for any size, they are those of the runs. The paper's own front is the last, if there is any of
    ours.
    """
    complete = [run for run in runs if run.complete and run.denoise and _score(run).rows]
    groups: dict[Conditions, list[Record]] = {}
    for run in complete:
        groups.setdefault(Conditions.of(run), []).append(run)
    ours = [_front(shared, group, measured) for shared, group in groups.items()]
    return [*ours, paper()] if ours else []


def _front(shared: Conditions, runs: Sequence[Record], measured: Sequence[Benchmark]) -> Front:
    preset, data, device, batch, steps, hidden = shared
    models: dict[tuple[str, str], list[Record]] = {}
    for run in runs:
        models.setdefault((run.model, run.name), []).append(run)
    groups = list(models.values())
    points = [_point(seeds) for seeds in groups]
    speed = "Speed: of training, without evaluations."
    times, sources = _measured(groups, measured)
    if times:
        points = [
            dataclasses.replace(point, milliseconds=1000 * statistics.median(t.seconds), timed=t)
            if (t := times.get(group[0].name))
            else dataclasses.replace(point, milliseconds=None)
            for group, point in zip(groups, points, strict=True)
        ]
        where, _ = _machine(sources[0])
        names = " and ".join(f"`{benchmark.name}`" for benchmark in sources)
        if any(cell.alone for cell in times.values()):
            speed = f"Speed: measured in {names}, {where}; "
            speed += "models that took no turns are compared by the medians of their rounds."
        else:
            speed = f"Speed: the models of a size took turns in {names}, {where}; "
            speed += "speed-ups are medians of the ratios round by round."
    length = f"{steps:,} steps of {batch} rows, {hidden}"
    title = f"Pre-training on {data}, preset {preset}: {length}, {device}"
    notes = [
        f"Validation at the best checkpoint, mean over seeds. {speed} Transformer is the paper's "
        "BERT.",
        *_agreement(points),
    ]
    words = data.split(" ")
    name = f"Ours: {words[0]} {words[-1]}, {steps:,} steps, {hidden}"
    baselines = runs[0].baselines or ([runs[0].baseline] if runs[0].baseline else [])
    return Front(name, title, points, batch, notes, baselines)


def _measured(
    groups: Sequence[Sequence[Record]], measured: Sequence[Benchmark]
) -> tuple[dict[str, Result], list[Benchmark]]:
    """Returns the cells that measured a training step by name of a run, and their benchmarks.

    Those of a size come from the first benchmark that has a run of every model of that size, on the
    machine of the first size that has one.
    """
    times: dict[str, Result] = {}
    sources = []
    for size in dict.fromkeys(_size_of(group[0]) for group in groups):
        runs = [group[0] for group in groups if _size_of(group[0]) == size]
        for benchmark in measured:
            if sources and _machine(benchmark) != _machine(sources[0]):
                continue  # a front compares the speeds of all its sizes
            pairs = [(run, benchmarks.of_run(benchmark.cells, run, "pretrain")) for run in runs]
            if {run.model for run, cell in pairs if cell} == {run.model for run in runs}:
                times |= {run.name: cell for run, cell in pairs if cell}
                sources += [benchmark] if benchmark not in sources else []
                break
    return times, sources


def _machine(benchmark: Benchmark) -> tuple[Device | None, int]:
    """Returns the device and threads of a benchmark; None and 0 if no cell of ours was measured."""
    ours = (cell for cell in benchmark.cells if cell.ok and cell.side == "ours")
    return next(((cell.device, cell.threads) for cell in ours), (None, 0))


def _point(runs: Sequence[Record]) -> Point:
    scores, run = [_score(run) for run in runs], runs[0]
    speeds = [run.steps_per_second for run in runs if run.steps_per_second]
    return Point(
        model=run.model,
        label=config.title(run.model),
        size=_size_of(run),
        run=run.name,
        seeds=len(runs),
        accuracy=statistics.fmean(score.accuracy for score in scores),
        loss=statistics.fmean(score.loss / max(score.count, 1) for score in scores),
        order=statistics.fmean(100 * score.order_correct / score.rows for score in scores),
        milliseconds=1000 / max(speeds) if speeds else None,
        parameters=run.parameters,
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
            time = speed["rows"][size][model][0]
            points.append(
                Point(
                    model=model,
                    label=config.title(model),
                    size=metrics["sizes"][size],
                    run="",
                    seeds=0,
                    accuracy=100 * accuracy,
                    loss=loss,
                    order=100 * order,
                    milliseconds=math.inf if isinstance(time, str) else float(time),
                    parameters=None,
                )
            )
    tables = " and ".join(f"Table {group['table']}" for group in (metrics, speed))
    title = (
        f"Published: pre-training on C4, {speed['hardware']}, arXiv:{metrics['arxiv']}, {tables}"
    )
    name = f"{PAPER}: C4, {speed['hardware']}"
    return Front(name, title, points, speed["batch_size"], [metrics["note"]])


def _agreement(points: Sequence[Point]) -> list[str]:
    """Returns for each size how the order of its models compares with the paper's.

    Of several runs of a model at a size, the best counts.
    """
    printed = {p.model: p.accuracy for p in paper().points[::-1]}  # "Base", which has all six
    notes = []
    for size in sorted({point.size for point in points}, key=_order):
        rising = sorted((p.accuracy, p.model) for p in points if p.size == size)
        ranked = {model: accuracy for accuracy, model in rising if model in printed}
        pairs = list(itertools.combinations(ranked, 2))
        same = [(ranked[a] - ranked[b]) * (printed[a] - printed[b]) > 0 for a, b in pairs]
        if pairs:
            order = ", ".join(config.title(m) for m in sorted(ranked, key=lambda m: -ranked[m]))
            count = f"{sum(same)} of {len(pairs)} pairs are in the paper's order"
            notes.append(f"Size {size}, the best first: {order}; {count}.")
    return notes


def _size_of(run: Record) -> str:
    return f"{run.setting('Encoder.dim')} x {run.setting('Encoder.num_layers')}"


def _order(size: str) -> tuple[int, ...]:
    return tuple(int(number) if number.isdigit() else 0 for number in size.split(" x "))
