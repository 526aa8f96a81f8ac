"""Opens a trained run, from its folder or from one that `lra-fnet export` wrote.

Evaluation, prediction, export and the attention span all start here. Nothing is written.
"""

import dataclasses
import functools
import reprlib
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
import scipy.special

from lra_fnet import config
from lra_fnet import experiment as experiments
from lra_fnet.data import store
from lra_fnet.errors import UserError, one_line, unreadable
from lra_fnet.experiment import Experiment
from lra_fnet.machine import device, disk, progress, typed_json
from lra_fnet.models.heads import Classifier
from lra_fnet.models.kernels import fastest
from lra_fnet.objective import Classify
from lra_fnet.run import record
from lra_fnet.run.job import Job, finished
from lra_fnet.run.record import Checkpoint, Record
from lra_fnet.tasks import Arrays, PixelTask, Prepared, Task
from lra_fnet.training import checkpoint as checkpoints
from lra_fnet.training import pipeline

KINDS: tuple[Checkpoint, ...] = typing.get_args(Checkpoint)
CONFIG, WEIGHTS = "config.json", "model.safetensors"  # of an exported folder
_TRAINING_ONLY = ("Run.", "Optimizer.")  # bindings that do not affect a trained model's outputs

# One text: the content of a file, str as UTF-8, or the values of its tokens, uint8 [length]. For
# tasks with two texts per row, an input is a pair of these.
Text = str | bytes | np.ndarray
Input = Text | tuple[Text, ...]


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class TrainedRun:
    """A trained model, and what it was trained on and with.

    `model.apply(variables, *run.tokens(inputs), train=False)` gives its logits, float32 [n, C].
    """

    folder: Path
    experiment: Experiment
    variables: dict  # parameters, and what is not trained, by collection
    checkpoint: Checkpoint  # "best" on validation, or "last"
    step: int  # number of updates
    result: Record  # the run's result.json
    needs: tuple[str, ...] = ()  # the user's modules that the folder names
    imports: tuple[str, ...] = ()  # those that were given instead, and imported
    job: Job | None = None  # None if the folder is an export

    def __repr__(self):
        return f"TrainedRun({self.folder}, {self.checkpoint} step {self.step:,}: {self.result!r})"

    def __getstate__(self) -> dict:
        """Leaves out what is computed on first use: compiled programs cannot be copied."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def model(self) -> Classifier:
        """The Linen module; a `models.heads.Denoiser` if the run is one of `lra-fnet pretrain`."""
        return self.experiment.model

    @property
    def task(self) -> Task:
        """The task with the run's data set and length."""
        return self.experiment.task

    def data(self, folder: Path | None = None) -> Prepared:
        """Opens the data that the run was trained on.

        Args:
          folder: of the prepared data sets; None for the one that the run names.

        Raises:
          UserError: the run is an export; the data is not prepared, or differs from the run's.
        """
        if self.job is None:
            raise UserError(f"{self.folder} is an export, without data: name the run folder")
        data = self.task.open(folder or self.job.data)
        cure = "restore the data set, or train again with --force"
        data.check_is_of(self.folder, self.result.data_sha256, cure)
        return data

    def values(self, example: Input) -> tuple[np.ndarray, ...]:
        """Returns the values uint8 or uint16 [length] of each text of an input, not truncated.

        Raises:
          ValueError: the input does not fit the task.
        """
        texts: Any = example if isinstance(example, tuple | list) else (example,)
        if len(texts) != self.task.num_inputs:
            raise ValueError(f"expected {self.task.num_inputs} text(s), got {len(texts)}")
        return tuple(map(self._values, texts))

    def _values(self, text: Any) -> np.ndarray:
        if isinstance(text, str):
            text = text.encode()
        if isinstance(text, bytes):
            return self._encode(text)
        if not isinstance(text, np.ndarray):
            raise ValueError(
                "expected a text (str or bytes) or an array of values, got " + type(text).__name__
            )
        largest = self.task.vocab_size - 2
        if (
            text.dtype != self.task.value_dtype
            or text.ndim != 1
            or not text.size
            or text.max() > largest
        ):
            raise ValueError(
                f"expected values {self.task.value_dtype} [length] of at most {largest}, "
                f"got {text.dtype} {[*text.shape]}"
            )
        if isinstance(self.task, PixelTask) and len(text) != self.task.side**2:
            raise ValueError(
                f"expected the {self.task.side**2} pixels of an image, got {len(text)}: resize it"
            )
        return text

    @functools.cached_property
    def _encode(self) -> Callable[[bytes], np.ndarray]:
        needs_data = self.job and self.task.needed
        return self.task.encoder(self.data().folder if needs_data else self.folder)

    def tokens(self, inputs: Sequence[Input]) -> tuple[jax.Array, jax.Array]:
        """Returns token ids int32 and mask bool, [n, L] or [n, 2, L], at the run's length.

        Raises:
          UserError: an input does not fit the task.
        """
        return self.task.tokens(*self._padded(inputs))

    def logits(self, inputs: Sequence[Input]) -> np.ndarray:
        """Returns logits float32 [n, C], computed in batches of at most Run.eval_batch_size.

        The size of the batches is a power of two up to that, so few programs are compiled; an
        input's logits do not depend on the other inputs.

        Raises:
          UserError: an input does not fit the task, or the run is one of `lra-fnet pretrain`.
        """
        if self.result.denoise:
            raise _no_classes(self.folder)
        values, lengths = self._padded(inputs)
        arrays = Arrays(values, lengths, np.zeros(len(values), np.int32))
        size = 1 << (len(values) - 1).bit_length()
        batches = pipeline.eval_batches(arrays, min(size, self.experiment.run.eval_batch_size))
        logits = [self._apply(self.variables, batch) for batch in batches]
        none = np.empty((0, self.task.num_classes), np.float32)
        return np.concatenate([none, *logits])[: len(values)]

    def predict(self, inputs: Sequence[Input]) -> np.ndarray:
        """Returns the probabilities of the classes, float64 [n, C]: the softmax of `logits`.

        Raises:
          UserError: an input does not fit the task, or the run is one of `lra-fnet pretrain`.
        """
        return scipy.special.softmax(self.logits(inputs).astype(np.float64), axis=1)

    def _apply(self, *given):
        with fastest.decisions(dict(self.result.resolved)):
            return self._program(*given)

    @functools.cached_property
    def _program(self):
        # Not jitted itself: jax would share the program with an equal model of other decisions.
        objective = Classify(self.task, self.model)
        return jax.jit(lambda variables, batch: objective.outputs(variables, batch)[0])

    def _padded(self, inputs: Sequence[Input]) -> tuple[np.ndarray, np.ndarray]:
        """Returns values and lengths as a split in memory has them (`tasks.Arrays`)."""
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Sequence | np.ndarray):
            got = reprlib.repr(inputs)
            raise UserError(f"expected a list of inputs, got {got}: put it into a list")
        shape = (len(inputs), self.task.num_inputs, self.task.max_len)
        values, lengths = np.zeros(shape, self.task.value_dtype), np.zeros(shape[:2], np.int32)
        for i, example in enumerate(inputs):
            try:
                texts = self.values(example)
            except ValueError as error:
                raise UserError(f"input {i}: {error}") from None
            for j, text in enumerate(texts):
                kept = text[: self.task.max_len]
                values[i, j, : len(kept)], lengths[i, j] = kept, len(kept)
        one = self.task.num_inputs == 1
        return (values[:, 0], lengths[:, 0]) if one else (values, lengths)


@dataclasses.dataclass(frozen=True)
class Export:
    """The part of an exported config.json that `load_run` reads."""

    checkpoint: Checkpoint
    step: int
    parameters_sha256: str
    imports: tuple[str, ...]
    result: dict  # the run's result.json
    format: Literal["lra-fnet 1"]
    files: dict = dataclasses.field(default_factory=dict)  # sha256 of those that the task needs


def load_run(
    folder: str | Path,
    checkpoint: Checkpoint | None = None,
    imports: Sequence[str] = (),
    *,
    denoise: bool = False,
) -> TrainedRun:
    """Returns the trained model of a run folder, or of one that `lra-fnet export` wrote.

    The folder is not changed, and the run's data is not needed. Clears gin's bindings. The folder
    may be a stranger's: nothing that it names is run, except this package. A line on standard error
    says so if a file of `imports` has changed since the run was trained.

    Args:
      folder: a run folder, or an exported one.
      checkpoint: "best" (on validation, the default) or "last"; an export holds one of them.
      imports: your modules or .py files that the model or task needs.
      denoise: whether the run may be one of `lra-fnet pretrain`, whose model has no classes.

    Raises:
      UserError: the folder is neither, its run is unfinished or has failed, it is damaged, or it
        needs another version of the code, or outside code that `imports` does not name.
    """
    if not isinstance(folder, str | Path):
        raise UserError(f"expected the path of a run folder, got {folder!r}: name one")
    folder = Path(folder)
    if checkpoint not in (None, *KINDS):
        raise UserError(f"checkpoint must be {' or '.join(KINDS)}, got {checkpoint!r}")
    exported, job = disk.read_json(folder / CONFIG), None
    if exported is None:
        job, result = finished(folder)
        kind, named = checkpoint or "best", job.imports
        score = result.score("validation", kind)
        assert score  # the run is complete
        step = score.step
        read = functools.partial(checkpoints.read, folder, kind, step=step)
    else:
        export, result = read_export(folder, exported, checkpoint)
        kind, named, step = export.checkpoint, export.imports, export.step
        read = functools.partial(_read_weights, folder, export)
    if result.denoise and not denoise:
        raise _no_classes(folder)
    config.import_modules(imports)
    differences = record.code_differences(result.code, result.config, imports, named)
    gone = {one.name for one in differences if one.new == record.NOT_IMPORTED}
    missing = [n for n in named if not imports or f"code of {config.code_name(n)}" in gone]
    if missing:
        raise UserError(
            f"{folder} was trained with outside code, {', '.join(missing)}: if you trust your "
            "copy, name it with --import"
        )
    experiment, shapes = _experiment(folder, result, imports)
    for difference in differences:
        progress.say(f"{folder} was trained with other code ({difference}): results may differ")
    variables = read(shapes)
    return TrainedRun(folder, experiment, variables, kind, step, result, named, tuple(imports), job)


def _no_classes(folder: Path) -> UserError:
    return UserError(
        f"{folder} holds a run of `lra-fnet pretrain`, whose model has no classes: train one that "
        f"begins from it, with --init {folder}"
    )


def read_export(folder: Path, value: dict, kind: Checkpoint | None) -> tuple[Export, Record]:
    """Checks an export's config.json and the files that the task needs.

    Args:
      folder: of the export.
      value: the object of its config.json.
      kind: the checkpoint that is asked for, if any.

    Raises:
      UserError: the object is damaged, a file is missing or another one, or the export holds the
        other checkpoint.
    """
    try:
        export = typed_json.build(Export, value)
        result = record.parse(export.result, path=folder)
    except ValueError as error:
        raise UserError(f"{folder / CONFIG} cannot be read ({error}): export it again") from None
    if kind not in (None, export.checkpoint):
        raise UserError(
            f"{folder} holds the checkpoint {export.checkpoint!r}, not {kind!r}: export that with "
            f"--checkpoint {kind}"
        )
    for name, sha256 in export.files.items():
        file = folder / Path(name).name
        if not file.is_file():
            raise UserError(f"{file} is missing: export the run again")
        if store.file_sha256(file) != sha256:
            raise UserError(f"{file} is not the file that was exported: export the run again")
    return export, result


def _read_weights(folder: Path, export: Export, like: dict) -> dict:
    """Returns the variables of an export, by collection as in `like`, on the first device.

    Raises:
      UserError: names, shapes or types differ, or the parameters are not those of config.json.
    """
    file = folder / WEIGHTS
    try:
        arrays = safetensors.numpy.load_file(file)
    except PermissionError as error:
        raise UserError(unreadable(error, file)) from None
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{file} is cut short or damaged ({error}): export it again") from None
    expected, actual = (
        {name: f"{leaf.dtype} {[*leaf.shape]}" for name, leaf in leaves.items()}
        for leaves in (flat(like), arrays)
    )
    for name, _ in sorted(expected.items() ^ actual.items()):
        raise UserError(
            f"{file}: expected {expected.get(name, 'none')} at {name}, got "
            f"{actual.get(name, 'none')}: export it again"
        )
    params = flax.traverse_util.unflatten_dict(jax.tree.map(jnp.asarray, arrays), sep="/")
    constants = {name: params.pop(name) for name in like if name != "params"}
    variables = {"params": params, **constants}
    if weights_sha256(variables) != export.parameters_sha256:
        raise UserError(f"{file}: the parameters differ from those of {CONFIG}: export them again")
    return variables


def weights_sha256(variables: Mapping[str, Any]) -> str:
    """Returns the hash of the parameters and, if there are some, running averages and constants."""
    others = {name: tree for name, tree in variables.items() if name != "params"}
    return checkpoints.sha256({**variables["params"], **others})


def _experiment(folder: Path, result: Record, imports: Sequence[str]) -> tuple[Experiment, dict]:
    """Returns the experiment of a run's config and its variables' shapes, by collection.

    Raises:
      UserError: a module cannot be imported, or this version of the code does not understand the
        config.
    """
    device.require()
    config.import_modules(imports)
    try:
        experiment = experiments.restore(result.config, imports)
        differences = config.differing(result.config, experiment.config)
        if changed := [d for d in differences if not d.name.startswith(_TRAINING_ONLY)]:
            raise UserError("; ".join(map(str, changed)))
        return experiment, experiment.shapes()
    except config.OutsideCode as error:
        raise UserError(f"{folder}: {error}") from None
    except Exception as error:  # a config that was damaged or made up fails anywhere in the model
        reason = one_line(error, 300)
        remedy = "take the code of " + (f"commit {result.commit}" if result.commit else "the run")
        raise UserError(f"{folder} does not fit this version ({reason}): {remedy}") from None


def flat(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays by name: encoder/block_0/mlp/wide/kernel, constants/encoder/... ."""
    constants = {name: tree for name, tree in variables.items() if name != "params"}
    return flax.traverse_util.flatten_dict({**variables["params"], **constants}, sep="/")
