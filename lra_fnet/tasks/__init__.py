"""The tasks of the suite: what a model must know of each, and how its rows are prepared.

To add a task, define a subclass of `Task` in a module of your own (see `lra_fnet.tasks.task`).
Defining it registers it by its `name`.
"""

from lra_fnet.data.arrays import Arrays, Batches
from lra_fnet.data.store import SPLITS, Prepared, Raw
from lra_fnet.tasks.sets import illustrate, open, prepare, verify
from lra_fnet.tasks.task import BUILT_IN, REGISTRY, PixelTask, Task, make, title

__all__ = [
    "BUILT_IN",
    "REGISTRY",
    "SPLITS",
    "Arrays",
    "Batches",
    "PixelTask",
    "Prepared",
    "Raw",
    "Task",
    "illustrate",
    "make",
    "open",
    "prepare",
    "title",
    "verify",
]
