"""A task of a user's own rows: its classes become known with the prepared set."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from lra_fnet.data import division
from lra_fnet.data.store import Raw, Row
from lra_fnet.errors import UserError
from lra_fnet.tasks.task import Task


class OwnRow(NamedTuple):
    """A row of a user's own."""

    label: str
    split: str | None  # that its file or a folder names
    values: Callable[[], Sequence[np.ndarray]]  # reads its texts


@dataclasses.dataclass(frozen=True)
class OwnTask(Task):
    """A task whose classes become known with the prepared set.

    A subclass's `raw` calls `divided`.
    """

    labels: tuple[str, ...] = ()  # of class 0, 1, ...

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "labels", tuple(map(str, self.labels)))

    @property
    def num_classes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of labels."""
        return len(self.labels)

    @property
    def label_names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The labels."""
        return self.labels

    @property
    def settled(self) -> bool:
        """Whether the labels are known."""
        return bool(self.labels)

    def settle(self, details: Mapping[str, Any]) -> Self:
        """Returns the task with the labels of its prepared set; see `Task.settle`.

        Raises:
            UserError: it has others.
        """
        if self.labels and [*self.labels] != details["labels"]:
            raise UserError(
                f"{self.name}/{self.config}: expected the labels {', '.join(self.labels)}, the "
                f"prepared set has {', '.join(details['labels'])}: name another with DATASET"
            )
        return dataclasses.replace(self, labels=tuple(details["labels"]))

    def divided(self, source: Path, read: Callable[[], Iterator[OwnRow]]) -> Raw:
        """Returns the rows of a source, whose details are complete when all rows have been read.

        `read` yields the rows; it is called twice, and values are read the second time.
        """
        labels, splits, count = set(), set(), 0
        for row in read():
            labels.add(row.label)
            splits.add(row.split)
            count += 1
        names = division.classes(source, labels, self.labels)
        parts = division.Division(source, names, splits)
        details: dict[str, Any] = {"labels": list(names)}

        def stream() -> Iterator[tuple[str, Row]]:
            for row in read():
                texts, label = [*row.values()], names.index(row.label)
                split = parts.split(texts, label, row.split)
                yield split, (tuple(texts) if len(texts) > 1 else texts[0], label)
            details.update(parts.finish())

        return Raw(stream=stream(), source=source.name, details=details, total=count)
