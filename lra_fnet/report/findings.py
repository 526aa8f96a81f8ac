"""Says in two sentences what each section of the page shows, from its values."""

from collections.abc import Iterable, Sequence

from lra_fnet import config, tasks
from lra_fnet.machine import progress
from lra_fnet.report import benchmarks, naming, tradeoff
from lra_fnet.report.contents import Preset, Report
from lra_fnet.report.literature import Entry
from lra_fnet.report.sources import Sweep
from lra_fnet.report.tables import Table
from lra_fnet.significance import SEEDS


def of(report: Report) -> dict[str, list[str]]:
    """Returns sentences about each section by its id; none where there is nothing to say."""
    return {
        "significance": significance(report.presets),
        "efficiency": speed(report),
        "learning": learning(report),
        "sweeps": sweeps([sweep for sweep, _ in report.sweeps]),
        "literature": literature(report.entries),
        "inside": inside(report),
        "runs": runs(report),
    }


def result(preset: Preset) -> list[str]:
    """Says how many results lie above the shallow baseline, and sets FNet against Transformer."""
    table = preset.table
    scored = {
        f"{row.label} on {table.columns[task]}": row.cells[task]
        for row in table.own
        for task in table.tasks
        if row.cells[task].seeds and row.cells[task].baseline is not None
    }
    above = [name for name, cell in scored.items() if cell.mean is not None and not cell.shallow]
    sentences = []
    if scored:
        how_many = f"{count(above).lower()} of {plural(len(scored), 'result')}"
        words = (
            f"In {how_many} under preset {table.preset}, the whole 95 % interval lies above the "
        )
        words += "shallow baseline"
        sentences.append(f"{words}{f': {listed(above)}' if 0 < len(above) <= 4 else ''}.")
    gaps: dict[str, str] = {}
    for pair in preset.pairs:
        if (pair.a.model, pair.b.model) == ("fnet", "transformer"):  # a variant comes later
            mean = pair.comparison.difference.mean
            gaps.setdefault(table.columns[pair.task], f"{mean:+.2f}")
    if gaps:
        sentences.append(
            f"FNet's accuracy minus the Transformer's on {listed(gaps)} is "
            f"{listed(gaps.values())} points."
        )
    ratios = {}
    for task in table.tasks:
        here = tradeoff.comparable(preset.points, task, ("fnet", "transformer"))
        timed = {p.row.model: p.timed for p in reversed(here) if p.timed and p.in_turn}
        if "fnet" in timed and "transformer" in timed:
            pair = timed["fnet"], timed["transformer"]
            ratios[table.columns[task]] = benchmarks.speed_up(*pair)
    if ratios:
        sentences.append(
            f"In interleaved rounds on one machine, FNet takes {span([*ratios.values()])} times as "
            f"many training steps per second as the Transformer on {listed(ratios)}."
        )
    return sentences


def scores(table: Table) -> list[str]:
    """Says how many results a preset has, and which is the highest of each task above the floor."""
    scored = [
        (row.model, task) for task in table.tasks for row in table.own if row.cells[task].seeds
    ]
    if not scored:
        return []
    names, on = ({*part} for part in zip(*scored, strict=True))
    highest = []
    for task, best in table.best.items():
        mean = best.cells[task].mean
        labels = listed(row.label for row in table.own if row.cells[task].mean == mean)
        highest.append(f"{table.columns[task]}, {labels} ({mean:.2f} %)")
    counted = (
        f"{plural(len(scored), 'result')} of {plural(len(names), 'model')} on "
        f"{plural(len(on), 'task')}, variants not counted."
    )
    return [counted, f"Highest: {'; '.join(highest)}."] if highest else [counted]


def significance(presets: Sequence[Preset]) -> list[str]:
    """Says how many pairs of main models differ, and which pair differs most."""
    pairs = [
        (p, preset.table) for preset in presets for p in preset.pairs if p.significant is not None
    ]
    if not pairs:
        return []
    sure = [place for place in pairs if place[0].significant]
    sentences = [
        f"{count(sure)} of the {plural(len(pairs), 'difference')} between two main models on one "
        f"task, with {SEEDS} seeds or more of each, {be(sure)} significant at the 5 % level, "
        "adjusted for the number of pairs under the preset."
    ]
    if sure:
        pair, table = max(sure, key=lambda place: abs(place[0].comparison.difference.mean))
        difference = pair.comparison.difference
        names = [pair.a.label, pair.b.label][:: 1 if difference.mean > 0 else -1]
        ends = difference.low, difference.high
        low, high = ends if difference.mean > 0 else (-ends[1], -ends[0])
        sentences.append(
            f"The largest of them: {names[0]} is {abs(difference.mean):.2f} points "
            f"({low:.2f} to {high:.2f}) above {names[1]} on {table.columns[pair.task]}, "
            f"preset {table.preset}."
        )
    return sentences


def speed(report: Report) -> list[str]:
    """Says how FNet's time and memory compare with the Transformer's in a benchmark of both."""
    for benchmark in report.sources.benchmarks:  # ratios are within one, in the same rounds
        cells = [
            cell
            for cell in benchmark.cells
            if cell.ok and (cell.what, cell.side, cell.cls) == ("train", "ours", False)
        ]
        pairs = []
        for length in sorted({cell.length for cell in cells}):
            here = [cell for cell in cells if cell.length == length]
            fnet = next((cell for cell in here if cell.label == "fnet"), None)
            if fnet and (other := benchmarks.faster(here)):
                pairs.append((fnet, other))
        if len(pairs) < 2:
            continue
        times = [benchmarks.speed_up(a, b) for a, b in pairs]
        memory = [100 * a.peak_bytes / max(1, b.peak_bytes) for a, b in pairs]
        lengths = [cell.length for cell, _ in pairs]
        others = [*dict.fromkeys(other.label for _, other in pairs)]
        whose = "" if others == [benchmarks.BASELINE] else f" ({', then '.join(others)})"
        slopes = [
            benchmarks.exponent(*benchmarks.curve(side, None, "seconds"))
            for side in zip(*pairs, strict=True)
        ]
        return [
            f"FNet's training step is {span(times)} times as fast as the Transformer's{whose} at "
            f"lengths {lengths[0]:,} to {lengths[-1]:,}{benchmarks.constant(cells)}, and its peak "
            f"memory is {span(memory)} % of the Transformer's, in {benchmark.name}.",
            f"Fitted over these lengths, FNet's time grows as L^{slopes[0]:.2f} and the "
            f"Transformer's as L^{slopes[1]:.2f}.",
        ]
    return []


def learning(report: Report) -> list[str]:
    """Says how many runs were best before their end, and where training and test differ most."""
    own = [run for run in report.runs if not run.denoise]  # pre-training has another objective
    pairs = [(run.score("validation"), run.score("validation", "last")) for run in own]
    steps = [(best.step, last.step) for best, last in pairs if best and last]
    sentences = []
    if steps:
        early = [best for best, last in steps if best < last]
        sentences.append(
            f"{count(early)} of {plural(len(steps), 'run')} had the best validation accuracy "
            "before the last step."
        )
    gaps = [
        (run.train.accuracy - test.accuracy, run)
        for run in report.runs
        if run.train and (test := run.score("test", "last"))
    ]
    if gaps:
        gap, run = max(gaps, key=lambda place: place[0])
        sentences.append(
            "Accuracy on training rows minus that on test rows, at the last step, is at most "
            f"{gap:.2f} points: {naming.name_of(run)} on {tasks.title(run.task)}, preset "
            f"{run.preset}, seed {run.seed}."
        )
    return sentences


def sweeps(listed_: Sequence[Sweep]) -> list[str]:
    """Says how many trials there are, and which is the best of each task and preset."""
    trials = [trial for sweep in listed_ for trial in sweep.trials]
    if not trials:
        return []
    complete = [trial for trial in trials if trial.state == "complete"]
    words = f"{plural(len(listed_), 'sweep')} with {plural(len(trials), 'trial')}, "
    unread = all(sweep.about.axes or sweep.about.pretrain for sweep in listed_)
    never = "; trials never read the test split" if unread else ""
    sentences = [f"{words}{len(complete)} of them complete{never}."]
    scored = [
        trial
        for sweep in listed_
        for trial in sweep.trials
        if trial.state == "complete" and trial.validation is not None and not sweep.about.pretrain
    ]
    for preset, task in dict.fromkeys((trial.preset, trial.task) for trial in scored):
        same = [trial for trial in scored if (trial.preset, trial.task) == (preset, task)]
        best = max(same, key=lambda trial: trial.validation or 0)
        setting = " ".join(best.overrides) or "no overrides"
        sentences.append(
            f"Highest validation accuracy on {tasks.title(task)}, preset {preset}: "
            f"{100 * (best.validation or 0):.2f} %, {config.title(best.model)} with {setting}."
        )
    return sentences


def literature(entries: Sequence[Entry]) -> list[str]:
    """Says how many rows there are, and which has the highest mean of five."""
    here, sent = (sum(e.tier == name for e in entries) for name in ("here", "submitted"))
    sentences = [
        f"{plural(len(entries), 'row')}: {len(entries) - here - sent} as printed in papers, "
        f"{here} run here, {sent} submitted; only rows of one protocol compare."
    ]
    means = [(mean, e) for e in entries if (mean := e.cells["average5"].mean) is not None]
    if means:
        mean, highest = max(means, key=lambda place: place[0])
        words = f"Highest mean of five: {highest.model}, {mean:.2f} % (protocol {highest.protocol})"
        same = [place for place in means if place[1].protocol == "lra"]
        if same and highest.protocol != "lra":
            mean, highest = max(same, key=lambda place: place[0])
            words += f"; under LRA's own protocol: {highest.model}, {mean:.2f} %"
        sentences.append(f"{words}.")
    return sentences


def inside(report: Report) -> list[str]:
    """Says how far the models attend."""
    spans = [s for run in report.runs if (s := report.sources.spans.get(run.folder))]
    if not spans:
        return []
    return [
        f"{plural(len(spans), 'run')} with a measured attention span: "
        f"{span([s.mean for s in spans])} tokens, where equal weights would give "
        f"{span([s.uniform for s in spans])}."
    ]


def runs(report: Report) -> list[str]:
    """Says how long the runs took on which machines, and how often test was read."""
    if not report.runs:
        return []
    timed = [run.wall_seconds for run in report.runs if run.wall_seconds]
    devices = len({device for run in report.runs for device in run.devices})
    twice = [folder for folder, times in report.sources.readings.items() if times > 1]
    spent = f" trained for {progress.duration(sum(timed))} together" if timed else ""
    logged = len(report.sources.readings)
    of = "them" if logged == len(report.runs) else f"{plural(logged, 'run')} with a log"
    words = f"{count(twice)} of {of} read the test split more than once"
    words += f": {listed(twice)}." if 0 < len(twice) <= 4 else "."
    return [
        f"{plural(len(report.runs), 'run')} on {plural(devices, 'kind')} of machine{spent}.",
        *([words] if logged else []),
    ]


def count(things: Sequence[object]) -> str:
    """Returns "None", "1", "2,000"."""
    return f"{len(things):,}" if things else "None"


def plural(number: int, noun: str) -> str:
    """Returns "1 run", "2,000 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def be(things: Sequence[object]) -> str:
    """Returns the verb for "None of them", "1 of them", "2 of them"."""
    return "is" if len(things) < 2 else "are"


def listed(words: Iterable[str]) -> str:
    """Returns "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def span(values: Sequence[float]) -> str:
    """Returns the least and the greatest value: "2.1 to 7.3", or one if they are printed alike."""
    ends = (f"{x:,.0f}" if x >= 10 else f"{x:.1f}" for x in (min(values), max(values)))
    return " to ".join(dict.fromkeys(ends))
