"""Trains the first tenth of a preset and compares its losses with the committed results.

A new machine, commit or version of JAX drifts if it trains other models from the same settings. The
same seed on the same kind of machine gives the same losses up to rounding. A different kind may
differ by more; then the spread over seeds is all there is to compare with, and some different
models lie within it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.machine import device, progress
from lra_fnet.models.kernels import fastest
from lra_fnet.run import folder as run_files
from lra_fnet.run import result as record
from lra_fnet.run.job import Job
from lra_fnet.run.result import Record
from lra_fnet.training.replay import mean_loss, replay

SHARE = 0.1  # of the steps
LEAST = 0.01  # relative half-width of the band: rounding of another kind of machine
SPREADS = 3.0  # half-width in sample standard deviations over the seeds
ALLOWED = 0.1  # share of the losses that may lie outside
ROUNDING = 1e-4  # relative difference of losses that rounding explains


class Window(NamedTuple):
    """The mean training loss of the steps since the last one that was logged, in nats."""

    step: int
    loss: float
    recorded: float
    margin: float  # half-width of the band around `recorded`

    @property
    def inside(self) -> bool:
        """Whether the loss is in the band; one that is not finite is not."""
        return abs(self.loss - self.recorded) <= self.margin


def main(job: Job) -> int:
    """Trains the first tenth of a run, prints the comparison; returns 1 if it drifts.

    Args:
      job: what to train; it is compared with the seeds below `job.runs` and writes nothing there.

    Raises:
      UserError: no complete run has a metrics.jsonl, one began pre-trained, the data are not those
        that the result was trained on, or a name is unknown.
    """
    device.require()
    experiment = job.load()
    folder = job.folder.parent
    found = [
        (run, losses)
        for seed in sorted(folder.glob("seed*"))
        if (run := record.read(seed)) and run.complete
        if (losses := dict(run_files.curve(seed).loss))
    ]
    if not found:
        raise UserError(
            f"{folder} has no complete run with a metrics.jsonl to compare with: "
            "train one there, or name another folder with --results"
        )
    if begun := [run.init.run for run, _ in found if run.init]:
        raise UserError(
            f"{folder} began from {begun[0]}, and drift trains from scratch: repeat a run's first "
            "steps with lra-fnet verify --replay"
        )
    reference, recorded = found[0]
    every = int(reference.setting("Run.log_every"))  # the steps that a logged loss is the mean of
    curves = [curve for run, curve in found if run.setting("Run.log_every") == every]
    prepared = experiment.task.prepare(job.data, job.source)
    prepared.check_is_of(reference.path, reference.data_sha256, "prepare the same source")
    steps = max(every, int(SHARE * experiment.run.num_steps) // every * every)
    progress.say(f"training {steps:,} of {experiment.run.num_steps:,} steps, seed {reference.seed}")
    with fastest.decisions(dict(reference.resolved)):
        losses, _ = replay(experiment, prepared.arrays("train"), reference.seed, steps)
    ends = range(every, steps + 1, every)
    means = {end: mean_loss(losses, end, every) for end in ends}
    windows = compare(means, recorded, curves)
    differences = config.differing(reference.config, experiment.config)
    return _print(windows, reference, differences, len(found))


def compare(
    losses: dict[int, float], recorded: dict[int, float], curves: Sequence[dict[int, float]]
) -> list[Window]:
    """Returns the losses beside those of the recorded run with the same seed.

    Args:
      losses: step -> mean loss since the last step, of today's run.
      recorded: the same of the recorded run.
      curves: the same of the runs with all seeds; their spread makes the band.

    Raises:
      UserError: they have no step in common, as the recorded run was shorter.
    """
    windows = []
    for step in sorted(losses.keys() & recorded.keys()):
        values = [curve[step] for curve in curves if step in curve]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        margin = max(LEAST * abs(recorded[step]), SPREADS * spread)
        windows.append(Window(step, losses[step], recorded[step], margin))
    if not windows:
        raise UserError(
            "the recorded run has no loss of these steps, as it was shorter: name another folder "
            "with --results"
        )
    return windows


def drifts(windows: Sequence[Window]) -> bool:
    """Returns whether too many losses lie outside their bands, or one is not a number."""
    finite = np.isfinite([w.loss for w in windows]).all()
    return not finite or sum(not w.inside for w in windows) > ALLOWED * len(windows)


def verdict(windows: Sequence[Window]) -> str:
    """Returns what the losses show, in words."""
    if drifts(windows):
        return "DRIFTS"
    if all(window.loss == window.recorded for window in windows):
        return "no drift, bit for bit"
    if all(abs(w.loss - w.recorded) <= ROUNDING * abs(w.recorded) for w in windows):
        return "no drift, the same up to rounding"
    return (
        "no drift beyond the spread over seeds, but more than rounding; expect this on a different "
        "kind of device only, and note that some different models lie within this spread"
    )


def _print(
    windows: Sequence[Window], reference: Record, differences: Sequence[object], seeds: int
) -> int:
    """Prints at most ten of the losses, and the verdict; returns the exit code."""
    print(f"{'step':>8}  {'loss':>9}  {'recorded':>9}  band")
    for window in windows[:: -(-len(windows) // 10)]:
        low, high = window.recorded - window.margin, window.recorded + window.margin
        mark = "" if window.inside else "  outside"
        print(
            f"{window.step:8,}  {window.loss:9.4f}  {window.recorded:9.4f}  "
            f"{low:.4f} to {high:.4f}{mark}"
        )
    for difference in differences:
        print(f"the preset has changed: {difference}")
    largest = np.max([abs(w.loss - w.recorded) / (abs(w.recorded) or 1) for w in windows])
    count = f"{sum(window.inside for window in windows)} of {len(windows)} losses in the band"
    of = "1 seed" if seeds == 1 else f"{seeds} seeds"
    print(
        f"{verdict(windows)}: {count}, largest difference {largest:.1e} ({of}, "
        f"{reference.provenance})"
    )
    return int(drifts(windows))
