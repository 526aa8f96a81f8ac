"""The tasks of the suite: what a model must know of each, and how its rows reach the disk.

A task of your own is a subclass of `Task` in a module of your own (see `lra_fnet.tasks.task`);
defining it registers it by its `name`.
"""

import importlib

from lra_fnet.errors import UserError
from lra_fnet.tasks.task import REGISTRY, SPLITS, Arrays, PixelTask, Prepared, Raw, Task

__all__ = [
    "BUILT_IN",
    "REGISTRY",
    "SPLITS",
    "Arrays",
    "PixelTask",
    "Prepared",
    "Raw",
    "Task",
    "make",
    "title",
]

# Tasks of this package and the module of each, in the order of LRA's table.
BUILT_IN = {
    "listops": "listops",
    "text": "text",
    "retrieval": "retrieval",
    "image": "image",
    "pathfinder": "pathfinder",
    "pathx": "pathfinder",
}


def title(name: str) -> str:
    """Returns the task's title in tables; the name itself where no such task is registered."""
    if name in BUILT_IN:
        importlib.import_module(f"{__name__}.{BUILT_IN[name]}")
    return (REGISTRY[name].title if name in REGISTRY else "") or name


def make(name: str, config: str | None = None, max_len: int | None = None) -> Task:
    """The task of that name, with the first of its data sets and its full length by default.

    Raises:
        UserError: if no task of that name is registered, or it has no such data set.
    """
    if name in BUILT_IN:
        importlib.import_module(f"{__name__}.{BUILT_IN[name]}")
    if name not in REGISTRY:
        known = ", ".join(sorted({*REGISTRY, *BUILT_IN}))
        raise UserError(f"unknown task {name!r}: one of {known}")
    task = REGISTRY[name]
    config = next(iter(task.configs)) if config is None else config
    return task(config=config, max_len=task.configs.get(config, 1) if max_len is None else max_len)
