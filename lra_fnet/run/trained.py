"""A trained run as values: read from its folder, or from one that `lra-fnet export` wrote."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from lra_fnet import config
from lra_fnet import experiment as experiments
from lra_fnet.errors import UserError
from lra_fnet.experiment import Experiment
from lra_fnet.machine import disk
from lra_fnet.models.heads import Classifier
from lra_fnet.tasks import Task
from lra_fnet.train import checkpoint, pipeline
from lra_fnet.train.step import initial_state

KINDS = ("best", "last")
CONFIG, WEIGHTS = "config.json", "model.safetensors"  # of an exported folder
EXPORT = "lra-fnet 1"  # the format of these two
_OTHER_NUMBERS = ("Run.", "Optimizer.")  # bindings that change no trained model's outputs

# What a model is asked: a text as it stands in a file, str as UTF-8, or the values of its tokens,
# uint8 [length]; of tasks with two texts a row a pair of these.
Text = str | bytes | np.ndarray
Input = Text | tuple[Text, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained model, and what it was trained as.

    `model.apply(variables, *run.tokens(inputs), train=False)` are its logits, float32 [n, C].
    """

    folder: Path
    experiment: Experiment
    variables: dict  # {"params": ..., "constants": ...}: parameters, and what is not trained
    checkpoint: str  # "best" on validation, or "last"
    step: int  # updates behind it
    result: dict  # the run's result.json
    imports: tuple[str, ...] = ()  # the user's modules that it needs

    @property
    def model(self) -> Classifier:
        """The Linen module."""
        return self.experiment.model

    @property
    def task(self) -> Task:
        """The task with the run's data set and length."""
        return self.experiment.task

    def values(self, one: Input) -> tuple[np.ndarray, ...]:
        """Values uint8 [length] of each text of one input, not cut.

        Raises:
          ValueError: the task has no such input.
        """
        texts: Any = one if isinstance(one, tuple | list) else (one,)
        if len(texts) != self.task.num_inputs:
            raise ValueError(f"expected {self.task.num_inputs} text(s), found {len(texts)}")
        return tuple(map(self._values, texts))

    def _values(self, text: Text) -> np.ndarray:
        if isinstance(text, str):
            text = text.encode()
        if isinstance(text, bytes):
            return self.task.encode(text)
        most = self.task.vocab_size - 2
        if text.dtype != np.uint8 or text.ndim != 1 or not text.size or text.max() > most:
            raise ValueError(
                f"expected values uint8 [length] of at most {most}, found {text.dtype} "
                f"{[*text.shape]}"
            )
        return text

    def tokens(self, inputs: Sequence[Input]) -> tuple[jax.Array, jax.Array]:
        """Token ids int32 and mask bool, [n, L] ([n, 2, L]), cut and padded to the run's length.

        Raises:
          UserError: an input that the task does not have.
        """
        return pipeline.tokens(*self._padded(inputs), self.task.zero_is_padding)

    def logits(self, inputs: Sequence[Input]) -> np.ndarray:
        """Logits float32 [n, C], computed in batches of at most Run.eval_batch_size.

        A batch is filled up to a power of two, so that few programs are compiled; an input's
        numbers do not depend on what stands beside it.

        Raises:
          UserError: as `tokens`.
        """
        most = self.experiment.run.eval_batch_size
        out = np.empty((len(inputs), self.task.num_classes), np.float32)
        for start in range(0, len(inputs), most):
            values, lengths = self._padded(inputs[start : start + most])
            count = len(values)
            room = min(most, 1 << (count - 1).bit_length())
            rows = np.minimum(np.arange(room), count - 1)  # the last one again
            got = self._apply(self.variables, values[rows], lengths[rows])
            out[start : start + count] = np.asarray(got)[:count]
        return out

    def predict(self, inputs: Sequence[Input]) -> np.ndarray:
        """Probabilities of the classes, float64 [n, C]: the softmax of `logits`.

        Raises:
          UserError: as `tokens`.
        """
        logits = self.logits(inputs).astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    @functools.cached_property
    def _apply(self):
        def apply(variables, values, lengths):
            ids, mask = pipeline.tokens(values, lengths, self.task.zero_is_padding)
            return self.model.apply(variables, ids, mask, train=False)

        return jax.jit(apply)

    def _padded(self, inputs: Sequence[Input]) -> tuple[np.ndarray, np.ndarray]:
        """Values and lengths as a split in memory has them (`tasks.Arrays`)."""
        shape = (len(inputs), self.task.num_inputs, self.task.max_len)
        values, lengths = np.zeros(shape, np.uint8), np.zeros(shape[:2], np.int32)
        for i, one in enumerate(inputs):
            try:
                texts = self.values(one)
            except ValueError as error:
                raise UserError(f"input {i}: {error}") from None
            for j, text in enumerate(texts):
                kept = text[: self.task.max_len]
                values[i, j, : len(kept)], lengths[i, j] = kept, len(kept)
        if self.task.num_inputs == 1:
            return values[:, 0], lengths[:, 0]
        return values, lengths


def load_run(folder: str | Path, checkpoint: str | None = None) -> Run:
    """The trained model of a run folder, or of one that `lra-fnet export` wrote.

    The folder is not changed, and the run's data need not be there. gin's bindings are cleared.

    Args:
      folder: a run folder, or an exported one.
      checkpoint: "best" (on validation, the default) or "last"; an export holds one of them.

    Raises:
      UserError: the folder is neither, its run is not complete, it is damaged, or it needs another
        version of the code.
    """
    folder = Path(folder)
    if checkpoint not in (None, *KINDS):
        raise UserError(f"checkpoint must be {' or '.join(KINDS)}, got {checkpoint!r}")
    if folder.is_dir():
        if (begun := disk.read_json(folder / "run.json")) is not None:
            return _of_run(folder, begun, checkpoint or "best")
        if (exported := disk.read_json(folder / CONFIG)) is not None:
            return _of_export(folder, exported, checkpoint)
    raise UserError(
        f"{folder} is no run folder (it has no run.json) and no exported one (no {CONFIG})"
    )


def _of_run(folder: Path, begun: dict, kind: str) -> Run:
    result = disk.read_json(folder / "result.json")
    if result is None:
        raise UserError(f"{folder} holds a run that is not finished: run its command again")
    if result["state"] != "complete":
        raise UserError(f"{folder} holds a run that ended as {result['state']}: it has no model")
    imports = tuple(begun["imports"])
    experiment = _experiment(folder, begun["config"], imports, result["commit"])
    like = abstract_variables(experiment)
    state = {"params": like.pop("params"), "constants": like}
    step, state = checkpoint.read(folder, kind, state)
    variables = {"params": state["params"], **state["constants"]}
    return Run(folder, experiment, variables, kind, step, result, imports)


def _of_export(folder: Path, exported: dict, kind: str | None) -> Run:
    if exported.get("format") != EXPORT:
        raise UserError(
            f"{folder / CONFIG}: expected the format {EXPORT!r}, got {exported.get('format')!r}: "
            "export the run again"
        )
    held = exported["checkpoint"]
    if kind not in (None, held):
        raise UserError(
            f"{folder} holds the checkpoint {held!r}, not {kind!r}: export that with "
            f"--checkpoint {kind}"
        )
    imports = tuple(exported["imports"])
    experiment = _experiment(folder, exported["config"], imports, exported["commit"])
    try:
        arrays = safetensors.numpy.load_file(folder / WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder / WEIGHTS} cannot be read ({error}): export it again") from None
    variables = unflat(arrays, abstract_variables(experiment), folder / WEIGHTS)
    if checkpoint.sha256(variables["params"]) != exported["parameters_sha256"]:
        raise UserError(
            f"{folder / WEIGHTS}: the parameters are not those of {CONFIG}: export them again"
        )
    return Run(folder, experiment, variables, held, exported["step"], exported["result"], imports)


def _experiment(folder: Path, text: str, imports: tuple[str, ...], commit: str | None):
    """The experiment of a run's config, as this version of the code understands it."""
    remedy = f"take the code of commit {commit}" if commit else "take the code that trained it"
    try:
        built = experiments.restore(text, imports)
    except UserError as error:
        raise UserError(f"{folder} does not fit this version ({error}): {remedy}") from None
    differences = [
        difference
        for difference in config.differing(text, built.config)
        if not difference.name.startswith(_OTHER_NUMBERS)
    ]
    if differences:
        listed = "; ".join(map(str, differences))
        raise UserError(f"{folder} does not fit this version ({listed}): {remedy}")
    return built


def abstract_variables(experiment: Experiment) -> dict:
    """Shapes of parameters and constants, by collection."""
    state = jax.eval_shape(lambda: initial_state(experiment, 0))
    return {"params": state.params, **state.constants}


def flat(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by name: encoder/block_0/mlp/wide/kernel; constants as constants/encoder/..."""
    found = {}
    for collection, tree in variables.items():
        for path, leaf in flax.traverse_util.flatten_dict(tree, sep="/").items():
            found[_prefix(collection) + path] = leaf
    return found


def unflat(arrays: Mapping[str, np.ndarray], like: dict, file: Path) -> dict:
    """Variables shaped as `like` from arrays by name, on the first device.

    Raises:
      UserError: names, shapes or types differ.
    """
    want = flat(like)
    for name in sorted({*want, *arrays}):
        kinds = [
            f"{held[name].dtype} {[*held[name].shape]}" if name in held else "none"
            for held in (want, arrays)
        ]
        if kinds[0] != kinds[1]:
            raise UserError(
                f"{file}: expected {kinds[0]} at {name}, found {kinds[1]}: export it again"
            )
    variables = {}
    for collection, tree in like.items():
        paths = flax.traverse_util.flatten_dict(tree, sep="/")
        found = {path: jnp.asarray(arrays[_prefix(collection) + path]) for path in paths}
        variables[collection] = flax.traverse_util.unflatten_dict(found, sep="/")
    return variables


def _prefix(collection: str) -> str:
    return "" if collection == "params" else f"{collection}/"
