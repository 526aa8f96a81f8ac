"""The files of a sweep as values."""

import dataclasses
from typing import Any

from lra_fnet import config
from lra_fnet.run.result import Record


@dataclasses.dataclass(frozen=True)
class About:
    """What a report reads of sweep.json."""

    preset: str
    sampler: str
    name: str = ""
    axes: dict[str, Any] = dataclasses.field(default_factory=dict)
    created: str | None = None
    pretrain: bool = False


@dataclasses.dataclass(frozen=True)
class Entry:
    """A trial in trials.json."""

    number: int
    task: str
    model: str
    preset: str
    seed: int
    overrides: tuple[str, ...]
    folder: str
    state: str
    step: int | None = None
    num_steps: int | None = None
    validation: float | None = None  # accuracy as a fraction; in pre-training the mean loss
    error: str | None = None
    command: str | None = None


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
