"""The tasks by name."""

import dataclasses
import importlib

from lra_fnet.errors import UserError, one_line
from lra_fnet.tasks.task import REGISTRY, Task

# Tasks of this package and their modules, in the order of LRA's table.
BUILT_IN = {
    "listops": "listops",
    "text": "text",
    "retrieval": "retrieval",
    "image": "image",
    "pathfinder": "pathfinder",
    "pathx": "pathfinder",
}
# The others read the user's own files.
_MODULES = BUILT_IN | {"corpus": "corpus", "csv": "csv_table", "images": "images"}


def _find(name: str) -> type[Task] | None:
    if name in _MODULES:
        importlib.import_module(f"lra_fnet.tasks.{_MODULES[name]}")
    return REGISTRY.get(name)


def title(name: str) -> str:
    """Returns the task's title in tables, or the name itself if no such task is registered."""
    task = _find(name)
    return (task.title if task else "") or name


def make(name: str, config: str | None = None, max_len: int | None = None) -> Task:
    """Returns the task of that name, by default with its first data set and full length.

    Ignores gin bindings.

    Raises:
        UserError: if no task of that name is registered, or it has no such data set.
    """
    task = _find(name)
    if task is None:
        known = ", ".join(sorted({*REGISTRY, *_MODULES}))
        raise UserError(f"unknown task {name!r}: expected one of {known}")
    config = next(iter(task.configs)) if config is None else config
    max_len = task.configs.get(config, 1) if max_len is None else max_len
    missing = dataclasses.MISSING
    defaults = {f.name: f.default for f in dataclasses.fields(task) if f.default is not missing}
    try:
        return task(**defaults | {"config": config, "max_len": max_len})
    except UserError as error:
        raise UserError(one_line(error)) from None
