"""The Long-Range Arena with the encoders of the FNet paper: data, training, tables.

`load` is the way to the data alone, without the trainer:

    import lra_fnet

    train = lra_fnet.load("listops", "train")  # NumPy: train.values, train.lengths, train.labels
"""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from lra_fnet.tasks.task import Arrays

__all__ = ["__version__", "load"]

try:
    __version__ = importlib.metadata.version("lra-fnet")
except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+unknown"


def load(
    task: str,
    split: str,
    *,
    config: str | None = None,
    max_len: int | None = None,
    data_dir: str | Path = "data",
    as_: Literal["numpy", "tf"] = "numpy",
) -> Arrays | Any:
    """One split of a task in memory; the set is prepared first if it is not there.

    Args:
        task: name of the task, e.g. "listops".
        split: "train", "validation" or "test".
        config: the task's data set, e.g. "full" or "short"; the task's first one if None.
        max_len: tokens kept of each text; the longest that the data set allows if None.
        data_dir: folder of the prepared sets.
        as_: "numpy", or "tf" for TensorFlow users (needs the `[tf]` extra).

    Returns:
        `Arrays` (values uint8 [n, L], lengths int32 [n], labels int32 [n]), or a tf.data.Dataset
        of dicts with the keys "values", "lengths" and "labels", one element a row, in file order.
        The token id at a position before `lengths` is the value plus 1; id 0 is padding.

    Raises:
        UserError: for an unknown task, config, split or `as_`, a set that cannot be written or
            read, or a missing TensorFlow.
    """
    from lra_fnet import tasks
    from lra_fnet.errors import UserError

    if as_ not in ("numpy", "tf"):
        raise UserError(f'as_ must be "numpy" or "tf", got {as_!r}')
    tensorflow = None
    if as_ == "tf":
        try:
            tensorflow = importlib.import_module("tensorflow")
        except ImportError as error:
            raise UserError(
                'as_="tf" needs TensorFlow, which is not installed: '
                "run `pip install 'lra-fnet[tf]'`, or use as_=\"numpy\""
            ) from error
    arrays = tasks.make(task, config, max_len).prepare(data_dir).arrays(split)
    return tensorflow.data.Dataset.from_tensor_slices(arrays._asdict()) if tensorflow else arrays
