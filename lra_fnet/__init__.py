"""The Long-Range Arena with the encoders of the FNet paper: data, training, tables.

`load` gives the data without the trainer, and `load_run` gives a trained model:

    import lra_fnet

    train = lra_fnet.load("listops", "train")  # NumPy: train.values, train.lengths, train.labels
    run = lra_fnet.load_run("runs/cpu/listops/fnet/seed0")
    run.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"])  # probabilities [1, 10]
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from lra_fnet.run.trained import Run
    from lra_fnet.tasks import Arrays

__all__ = ["__version__", "load", "load_run"]

try:
    __version__ = importlib.metadata.version("lra-fnet")
except importlib.metadata.PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+unknown"


def load(
    task: str,
    split: str,
    *,
    config: str | None = None,
    max_len: int | None = None,
    data_dir: str | Path = "data",
    as_: Literal["numpy", "tf", "torch"] = "numpy",
) -> Arrays | Any:
    """Returns one split of a task in memory; prepares the data set first if it is not there.

    Args:
        task: name of the task, e.g. "listops".
        split: "train", "validation" or "test".
        config: the task's data set, e.g. "full" or "short"; None for the task's first one.
        max_len: tokens kept of each text; None for the longest that the data set has.
        data_dir: folder of the prepared data sets.
        as_: "numpy", "tf" (needs the `[tf]` extra), or "torch" (needs PyTorch).

    Returns:
        `Arrays` (values uint8 [n, L], lengths int32 [n], labels int32 [n]; for two texts per row
        values [n, 2, L], lengths [n, 2]); or a tf.data.Dataset of dicts with the keys "values",
        "lengths" and "labels"; or a torch.utils.data.TensorDataset of the three, which shares
        their memory. One element per row, in file order. The token id at a position before
        `lengths` is the value plus 1; id 0 is padding. An image is read row by row, 0 black to 255
        white.

    Raises:
        UserError: the task, config, split or `as_` is unknown, the data set cannot be made, written
            or read, or a library is not installed.
    """
    from lra_fnet import tasks
    from lra_fnet.errors import UserError

    libraries = {
        "numpy": ("numpy", "numpy"),
        "tf": ("tensorflow", "'lra-fnet[tf]'"),
        "torch": ("torch", "torch"),
    }
    if as_ not in libraries:
        raise UserError(f"as_ must be one of {', '.join(libraries)}, got {as_!r}")
    name, package = libraries[as_]
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f'as_="{as_}" needs {name}, which is not installed: run `pip install {package}`, or '
            f'use as_="numpy"'
        ) from error
    arrays = tasks.make(task, config, max_len).prepare(data_dir).arrays(split)
    if as_ == "tf":
        return library.data.Dataset.from_tensor_slices(arrays._asdict())
    if as_ == "torch":
        return library.utils.data.TensorDataset(*map(library.from_numpy, arrays))
    return arrays


def load_run(
    folder: str | Path,
    checkpoint: Literal["best", "last"] | None = None,
    imports: Sequence[str] = (),
) -> Run:
    """Returns a trained run: model, parameters and task, for predictions and for your own code.

    Only reads the folder; the run's data is not needed. The folder may be a stranger's: code that
    it names is not run.

    Args:
        folder: a run folder, or one that `lra-fnet export` wrote.
        checkpoint: "best" on validation (the default) or "last"; an exported folder holds one.
        imports: your modules or .py files that its model or task needs.

    Raises:
        UserError: the folder is neither, its run is unfinished or has failed, it is damaged, or it
            was trained by a version of the code with different models.
    """
    from lra_fnet.run import trained

    return trained.load_run(folder, checkpoint, imports)
