"""A task of a user's own rows: its classes become known with the prepared set."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from lra_fnet.errors import UserError
from lra_fnet.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class OwnTask(Task):
    """A task whose classes become known with the prepared set.

    A subclass's `raw` puts the set's "labels" into its details.
    """

    finds_classes = True

    labels: tuple[str, ...] = ()  # of class 0, 1, ...

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.labels, list | tuple):
            raise UserError(
                f"{self.name}: labels must be a list such as ('no', 'yes'), got {self.labels!r}"
            )
        object.__setattr__(self, "labels", tuple(map(str, self.labels)))
        if len({*self.labels}) < len(self.labels):
            raise UserError(f"{self.name}: labels must differ, got {', '.join(self.labels)}")

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
                f"prepared set has {', '.join(details['labels'])}: give other labels a set of "
                "their own, with DATASET and --source"
            )
        return dataclasses.replace(self, labels=tuple(details["labels"]))
