"""Several models, seeds and bindings, one after another; every trial is an ordinary run folder.

Trials of a grid are compared on validation and never open the test split; `lra-fnet evaluate` reads
it for the one that was chosen.
"""

import ast
import dataclasses
import itertools
import shlex
import subprocess
import sys

from rich.table import Table

from lra_fnet import config, progress, run_folder
from lra_fnet.errors import UserError
from lra_fnet.job import Job


def grid(axes: list[str]) -> list[tuple[str, ...]]:
    """Every combination of `Name.parameter=[...]` axes, as bindings.

    >>> grid(["Run.batch_size=[16, 32]", "Run.seed=[1]"])
    [('Run.batch_size=16', 'Run.seed=1'), ('Run.batch_size=32', 'Run.seed=1')]
    """
    choices = []
    for axis in axes:
        name, _, text = axis.partition("=")
        try:
            values = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            values = None
        if not isinstance(values, list | tuple) or not values:
            raise UserError(f"--grid expects Name.parameter=[value, ...], got {axis!r}")
        choices.append([f"{name.strip()}={value!r}" for value in values])
    return list(itertools.product(*choices))


def trials(jobs: list[Job], num_seeds: int, axes: list[str]) -> list[Job]:
    """Each job at every seed and every point of the grid."""
    if num_seeds < 1:
        raise UserError(f"SEEDS expects a whole number of at least 1, got {num_seeds}")
    return [
        dataclasses.replace(
            job, seed=seed, overrides=job.overrides + point, test=job.test and not axes
        )
        for job in jobs
        for point in grid(axes)
        for seed in range(num_seeds)
    ]


def command(job: Job) -> list[str]:
    """The arguments of `lra-fnet` that run this trial, as a person would type them."""
    words = ["train", "--task", job.task, "--model", job.model, "--preset", job.preset]
    words += ["--seed", str(job.seed), "--runs", str(job.runs), "--data", str(job.data)]
    words += [word for text in job.overrides for word in ("--set", text)]
    words += [word for name in job.imports for word in ("--import", name)]
    words += [word for folder in job.gin_dirs for word in ("--gin-dir", str(folder))]
    words += ["--source", str(job.source)] if job.source else []
    return words if job.test else [*words, "--no-test"]


def run(jobs: list[Job], num_seeds: int, axes: list[str], *, dry_run: bool = False) -> int:
    """Runs the trials that are not complete, prints their validation accuracies.

    Returns:
      0, or 1 where a trial failed; the others have run all the same.
    """
    every = trials(jobs, num_seeds, axes)
    for job in every:  # a misspelt model or binding shows before the first hour, not after
        config.files(job.task, job.model, job.preset, job.gin_dirs)
        job.load()
    if dry_run:
        for job in every:
            print(shlex.join(["lra-fnet", *command(job)]))
        return 0
    failed = []
    for number, job in enumerate(every, 1):
        progress.say(f"[{number}/{len(every)}] {job.folder}")
        ended = subprocess.run([sys.executable, "-m", "lra_fnet.cli", *command(job)])
        if ended.returncode in (130, 143):
            return ended.returncode
        if ended.returncode:
            failed.append(job)
    progress.console.print(_table(every))
    for job in failed:
        progress.say(f"failed: {shlex.join(['lra-fnet', *command(job)])}")
    return 1 if failed else 0


def _table(every: list[Job]) -> Table:
    """Validation accuracy of each trial at its best step."""
    table = Table("run", "validation", "step", "steps/s", title="chosen on validation")
    for job in every:
        result = run_folder.read_json(job.folder / "result.json")
        if result is None or result["state"] != "complete":
            table.add_row(str(job.folder), result["state"] if result else "-", "", "")
            continue
        best = result["validation"]["best"]
        table.add_row(
            str(job.folder),
            f"{100 * best['correct'] / best['count']:.2f}",
            str(best["step"]),
            f"{result['steps_per_second']:.3g}",
        )
    return table
