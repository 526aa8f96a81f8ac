"""The files of a sweep as values, and the best points among its trials."""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeVar

from lra_fnet import config
from lra_fnet.run.result import Record

FAILED = ("failed", "OOM", "diverged")
ENDED = ("complete", "pruned", *FAILED)
SETTLED = ("complete", "pruned", "OOM", "diverged")  # trying again would not change it

E = TypeVar("E", bound="Entry")


@dataclasses.dataclass(frozen=True)
class About:
    """What a report reads of sweep.json."""

    axes: dict[str, Any]
    name: str = ""
    created: str | None = None
    pretrain: bool = False


@dataclasses.dataclass
class Entry:
    """A trial in trials.json: one seed of one point."""

    number: int
    task: str
    model: str
    preset: str
    seed: int
    overrides: tuple[str, ...]
    folder: str
    state: str  # "waiting", "running" or one of ENDED
    step: int | None = None
    # At the best step so far: accuracy as a fraction; in pre-training the mean loss.
    validation: float | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Choice:
    """A selected point in selected.json."""

    task: str
    model: str
    preset: str
    overrides: tuple[str, ...]
    seeds: tuple[int, ...]
    validation: float | None
    folders: tuple[str, ...] = ()  # below the folder of all runs

    def selects(self, other: Entry | Record) -> bool:
        """Returns whether a trial or a run has this task, model, preset and setting."""

        def names(one: Choice | Entry | Record) -> tuple[str, str, str, list[str]]:
            return one.task, one.model, one.preset, sorted(map(config.one_form, one.overrides))

        return names(self) == names(other)


def points(entries: Iterable[E]) -> list[list[E]]:
    """Returns the trials of each point, by seed; a point that was drawn twice counts once."""
    found = defaultdict(dict)
    for entry in entries:
        found[entry.task, entry.model, entry.overrides].setdefault(entry.seed, entry)
    return [list(seeds.values()) for seeds in found.values()]


def mean(point: Iterable[Entry]) -> float:
    """Returns what points are compared by: the mean over the seeds, which are complete."""
    return statistics.fmean(entry.validation or 0.0 for entry in point)


def best(entries: Iterable[Entry]) -> list[Choice]:
    """Returns the best point of each task and model among those with all seeds complete."""
    by_pair = defaultdict(list)
    for point in points(entries):
        if all(entry.state == "complete" for entry in point):
            by_pair[point[0].task, point[0].model].append(point)
    found = []
    for complete in by_pair.values():
        top = max(complete, key=mean)
        seeds, folders = tuple(one.seed for one in top), tuple(one.folder for one in top)
        names = top[0].task, top[0].model, top[0].preset, top[0].overrides
        found.append(Choice(*names, seeds, mean(top), folders))
    return found
