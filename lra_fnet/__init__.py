"""Trains and compares encoders on the Long-Range Arena.

    import lra_fnet

    run = lra_fnet.train("listops", "fnet", preset="cpu")  # as `lra-fnet train`; again: resumes
    run.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"])  # probabilities [1, 10]
    run = lra_fnet.load_run("runs/cpu/listops/fnet/seed0")  # the same, later
    train = lra_fnet.load("listops", "train")  # NumPy: train.values, train.lengths, train.labels

Each function imports what it needs, so importing the package takes no time.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lra_fnet import errors, settings

if TYPE_CHECKING:
    from lra_fnet.run.model import TrainedRun
    from lra_fnet.run.result import Record

__all__ = [
    "__version__",
    "errors",
    "evaluate",
    "list_models",
    "list_presets",
    "list_tasks",
    "load",
    "load_run",
    "train",
]

try:
    __version__ = importlib.metadata.version("lra-fnet")
except importlib.metadata.PackageNotFoundError:  # a checkout that was not installed
    __version__ = "0+unknown"


def _registering(function):
    """Lets a call import modules of ours where the program around it has locked gin's config."""

    @functools.wraps(function)
    def call(*args, **keywords):
        import gin

        with gin.unlock_config():
            return function(*args, **keywords)

    return call


@_registering
def train(
    task: str,
    model: str,
    *,
    preset: str = "paper",
    seed: int = 0,
    set: Mapping[str, object] | Iterable[str] = (),
    name: str | None = None,
    source: Any = None,
    runs: str | Path = "runs",
    data_dir: str | Path = "data",
    imports: Sequence[str | Path] = (),
    gin_dirs: Sequence[str | Path] = (),
    init: TrainedRun | str | Path | None = None,
    denoise: bool = False,
    test: bool = True,
    force: bool = False,
    devices: int | None = None,
) -> TrainedRun:
    """Trains one run, or resumes it, as `lra-fnet train` does; returns the trained model.

    A run that is complete is opened without training. This changes of the whole process: memory
    that is freed stays with it, compiled programs are kept in the user's cache (environment
    variables and settings of JAX, a filter for its warnings), folders of `imports` are added to
    sys.path, tables raise csv's limit of a field, `devices` sets JAX's CPU devices and
    XLA_FLAGS, and while it trains, SIGINT, SIGTERM and SIGHUP save the run before they end the
    call; a second SIGINT raises KeyboardInterrupt at once. gin's bindings are afterwards as before.

    Args:
        task: a name of `list_tasks`.
        model: a name of `list_models`.
        preset: a name of `list_presets`.
        seed: seed of all randomness.
        set: gin bindings, {"Run.num_steps": 100}, ["Run.num_steps=100"] or "Run.num_steps=100".
        name: a name for the bindings, used in the run folder's name.
        source: the raw files of the task: a folder, a file or a URL; or a list of files, a pandas
            data frame with the columns label and text, or a dict of these by split.
        runs: folder of all runs, --runs.
        data_dir: folder of the prepared data sets, --data.
        imports: your modules or .py files that the model or task needs.
        gin_dirs: folders with your gin files.
        init: a run with `denoise`, or its folder, whose encoder this one begins from; "auto": the
            run with the same options.
        denoise: trains to predict masked tokens instead, as `lra-fnet pretrain` does.
        test: whether to score the test split; `evaluate` does it later.
        force: moves the run of this name aside and trains from the start.
        devices: of a CPU, before JAX starts: a number, or 0 for as many cores as divide the batch,
            as the command does; None for those of JAX.

    Returns:
        The run at its best step on validation; `run.result` is what result.json holds.

    Raises:
        UserError: a name or a binding is unknown, or the data or the folder cannot be used.
        RunFailed: it diverged or ran out of device memory.
        Interrupted: a signal stopped it; the same call without `force` resumes.
    """
    from lra_fnet import config
    from lra_fnet.data import sources
    from lra_fnet.machine import allocator, compile_cache

    allocator.keep_freed_memory()
    compile_cache.use()
    from lra_fnet.run import model as trained
    from lra_fnet.run.execute import run
    from lra_fnet.run.job import Job, beginning

    bindings = config.split_bindings(set) if isinstance(set, str) else set
    if isinstance(bindings, Mapping):
        bindings = [f"{parameter}={_literal(value)}" for parameter, value in bindings.items()]
    bindings = tuple(bindings or ()) if isinstance(bindings, Iterable | None) else (bindings,)
    if wrong := [binding for binding in bindings if not isinstance(binding, str)]:
        raise errors.UserError(
            f"set expects bindings such as 'Run.num_steps=100', got {wrong[0]!r}"
        )
    asked = Job(
        task=task,
        model=model,
        preset=preset,
        seed=_python(seed),
        overrides=bindings,
        name=name,
        runs=settings.path(runs),
        data=settings.path(data_dir),
        source=sources.given(source, settings.path(data_dir)),
        imports=_modules(imports),
        gin_dirs=tuple(map(settings.path, _several(gin_dirs))),
        denoise=denoise,
        force=force,
        test=test,
        devices=devices,
    )
    asked = beginning(asked, "auto" if init == "auto" else init and _folder(init))
    run(asked)
    return trained.load_run(asked.folder, imports=asked.imports, denoise=denoise)


@_registering
def evaluate(
    run: TrainedRun | str | Path,
    imports: Sequence[str | Path] = (),
    data_dir: str | Path | None = None,
) -> Record:
    """Scores a trained run on the test split, unless it was scored before; returns its record.

    Args:
        run: a run of `train` or `load_run`, or its folder.
        imports: your modules or .py files that its model or task needs.
        data_dir: folder of the prepared data sets; None for the one that the run names.

    Raises:
        UserError: the folder does not hold a finished run, or its data differs from the run's.
    """
    from lra_fnet.run import evaluate as scoring

    data = None if data_dir is None else settings.path(data_dir)
    imported = getattr(run, "imports", ())
    return scoring.evaluate(_folder(run), _modules(imports) or imported, data)


def list_models(gin_dirs: Sequence[str | Path] = ()) -> list[str]:
    """Returns the names of the models, those in your folders with gin files too."""
    return _known("models", gin_dirs)


def list_tasks(gin_dirs: Sequence[str | Path] = ()) -> list[str]:
    """Returns the names of the tasks, those in your folders with gin files too."""
    return _known("tasks", gin_dirs)


def list_presets(gin_dirs: Sequence[str | Path] = ()) -> list[str]:
    """Returns the names of the presets, those in your folders with gin files too."""
    return _known("presets", gin_dirs)


def _python(value):
    """Returns the Python number of a NumPy scalar; anything else as it is."""
    import numpy as np

    return value.item() if isinstance(value, np.generic) else value


def _literal(value) -> str:
    """Returns a value as gin writes it; references such as @Attention and %DATASET stay."""
    if isinstance(value, str) and value.startswith(("@", "%")):
        return value
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_literal(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' * (len(value) == 1)})"
    return repr(_python(value))


def _folder(run: TrainedRun | str | Path) -> Path:
    return settings.path(getattr(run, "folder", run))


def _several(names) -> tuple:
    """Returns a sequence of names or paths, one alone, or None as a tuple."""
    several = isinstance(names, Iterable | None) and not isinstance(names, str)
    return tuple(names or ()) if several else (names,)


def _modules(names) -> tuple[str, ...]:
    """Returns modules and .py files, as `_several`."""
    return tuple(str(settings.path(name)) for name in _several(names))


def _known(kind: str, gin_dirs: Sequence[str | Path]) -> list[str]:
    from lra_fnet import config

    return config.known(kind, [*map(settings.path, _several(gin_dirs))])


@_registering
def load(
    task: str,
    split: str,
    *,
    config: str | None = None,
    max_len: int | None = None,
    data_dir: str | Path = "data",
    source: Any = None,
    as_: Literal["numpy", "tf", "torch"] = "numpy",
    batch_size: int | None = None,
) -> Any:
    """Returns one split of a task in memory; prepares the data set first if it is not there.

    Args:
        task: name of the task, e.g. "listops".
        split: "train", "validation" or "test".
        config: the task's data set, e.g. "full" or "short_128"; None for the task's first one.
        max_len: tokens kept of each text; None for the data set's own length (`Task.configs`).
        data_dir: folder of the prepared data sets.
        source: the raw files of the task, see `train`.
        as_: "numpy", "tf" (needs the `[tf]` extra), or "torch" (needs PyTorch).
        batch_size: rows of a batch, the last one may be smaller; None gives the whole split.

    Returns:
        `Arrays` (values uint8 [n, L], lengths int32 [n], labels int32 [n]; for two texts per row
        values [n, 2, L], lengths [n, 2]; values are uint16 for more than 256 tokens); or a
        tf.data.Dataset of dicts with the keys "values", "lengths" and "labels"; or a
        torch.utils.data.TensorDataset of the three, which shares their memory. One element per row,
        in file order. With `batch_size`, a sequence of `Arrays`, a tf.data.Dataset or a
        torch.utils.data.DataLoader of batches, in file order. The token id at a position before
        `lengths` is the value plus 1; id 0 is padding. An image is read row by row, 0 black to 255
        white.

    Raises:
        UserError: the task, config, split, `as_` or `batch_size` is unknown, the data set cannot be
            made, written or read, or a library is not installed.
    """
    from lra_fnet import tasks
    from lra_fnet.data import sources

    libraries = {
        "numpy": ("numpy", "numpy"),
        "tf": ("tensorflow", "'lra-fnet[tf]'"),
        "torch": ("torch", "torch"),
    }
    settings.one_of("as_", as_, libraries)
    if batch_size is not None:
        settings.at_least("batch_size", batch_size, 1, 32)
    module, package = libraries[as_]
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        raise errors.UserError(
            f'as_="{as_}" needs {module}, which is not installed: run `pip install {package}`, or '
            f'use as_="numpy"'
        ) from error
    made = tasks.make(task, config, max_len)
    settings.one_of("split", split, made.splits)
    folder = settings.path(data_dir)
    arrays = tasks.prepare(made, folder, sources.given(source, folder)).arrays(split)
    if as_ == "tf":
        rows = library.data.Dataset.from_tensor_slices(arrays._asdict())
        return rows if batch_size is None else rows.batch(batch_size)
    if as_ == "torch":
        rows = library.utils.data.TensorDataset(*map(library.from_numpy, arrays))
        return rows if batch_size is None else library.utils.data.DataLoader(rows, batch_size)
    return arrays if batch_size is None else tasks.Batches(arrays, batch_size)


@_registering
def load_run(
    folder: str | Path,
    checkpoint: Literal["best", "last"] | None = None,
    imports: Sequence[str | Path] = (),
    *,
    denoise: bool = False,
) -> TrainedRun:
    """Returns a trained run: model, parameters and task, for predictions and for your own code.

    Only reads the folder; the run's data is not needed. The folder may be a stranger's: code that
    it names is not run.

    Args:
        folder: a run folder, or one that `lra-fnet export` wrote.
        checkpoint: "best" on validation (the default) or "last"; an exported folder holds one.
        imports: your modules or .py files that its model or task needs.
        denoise: whether the run may be a pre-trained one, whose model has no classes.

    Raises:
        UserError: the folder is neither, its run is unfinished or has failed, it is damaged, or it
            was trained by a version of the code with different models.
    """
    from lra_fnet.run import model as trained

    return trained.load_run(_folder(folder), checkpoint, _modules(imports), denoise=denoise)
