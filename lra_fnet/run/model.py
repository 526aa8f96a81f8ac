"""A trained model: opened from its run folder or from an export, used and exported.

An export is a folder that can be given away:

model.safetensors   parameters and constants by name: encoder/block_0/mlp/wide/kernel
config.json         what the model is, from which run, with the run's result
README.md           what it is, how good, on which data, how to use it
vocabulary.model    of a run on pieces of a corpus
"""

import codecs
import dataclasses
import functools
import hashlib
import json
import operator
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jax.sharding import NamedSharding

from lra_fnet import config, settings
from lra_fnet import experiment as experiments
from lra_fnet.data import sources, store
from lra_fnet.data.pieces import VOCABULARY
from lra_fnet.errors import UserError, one_line
from lra_fnet.experiment import Experiment
from lra_fnet.machine import device, disk, progress, typed_json
from lra_fnet.models.heads import Classifier
from lra_fnet.models.kernels import fastest
from lra_fnet.objective import Classify
from lra_fnet.run import result as results
from lra_fnet.run.job import Job, finished
from lra_fnet.run.result import CHECKPOINTS, Checkpoint, Init, Record
from lra_fnet.tasks import Arrays, PixelTask, Prepared, Task, sets
from lra_fnet.training import checkpoint as checkpoints
from lra_fnet.training import pipeline, score

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"  # of an export
_TRAINING_ONLY = ("Run.", "Optimizer.")  # bindings that do not affect a trained model's outputs

# Bindings that do not change what an encoder computes in evaluation, but for the length.
_ELSEWHERE = ("Run.", "Optimizer.", "Head.", "Denoising.", "TASK", "build.", "DATASET")
_ELSEWHERE += ("Encoder.dropout", "Encoder.attention_dropout", "Encoder.remat", "Encoder.pooling")
_ELSEWHERE += ("MAX_LEN", "Encoder.max_len", "Encoder.dtype", *config.SPEED_ONLY)

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
        data = sets.open(self.task, folder or self.job.data)
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
        task = self.task
        if isinstance(text, str | bytes):
            return self._encode(text.encode() if isinstance(text, str) else text)
        array = text if isinstance(text, np.ndarray) else np.empty(0)
        fits = (array.dtype, array.ndim) == (task.value_dtype, 1) and array.size
        length = task.side**2 if isinstance(task, PixelTask) else array.size
        if not fits or array.max() > task.vocab_size - 2 or array.size != length:
            raise ValueError(
                f"expected str, bytes or values {task.value_dtype} [length] of at most "
                f"{task.vocab_size - 2}, got {reprlib.repr(text)}"
            )
        return array

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
          UserError: an input does not fit the task, or the run is one of `lra-fnet pretrain`; see
            `device.require`.
        """
        device.require()  # again: the process may have been forked since
        if self.result.denoise:
            raise _no_classes(self.folder)
        values, lengths = self._padded(inputs)
        arrays = Arrays(values, lengths, np.zeros(len(values), np.int32))
        if not len(values):
            return np.empty((0, self.task.num_classes), np.float32)
        size = min(1 << (len(values) - 1).bit_length(), self.experiment.run.eval_batch_size)
        devices = jax.device_count()
        size = -(-size // devices) * devices
        batches = [*pipeline.eval_batches(arrays, size, devices)]
        with fastest.decisions(dict(self.result.resolved)):
            logits = [self._program(batch) for batch in batches]
        return pipeline.in_order(batches, logits)

    def predict(self, inputs: Sequence[Input]) -> np.ndarray:
        """Returns the probabilities of the classes, float64 [n, C]: the softmax of `logits`.

        Raises:
          UserError: an input does not fit the task, or the run is one of `lra-fnet pretrain`.
        """
        from scipy import special  # late: it brings numpy.f2py

        return special.softmax(self.logits(inputs).astype(np.float64), axis=1)

    @functools.cached_property
    def _program(self):
        mesh, rows = pipeline.make_mesh(jax.device_count()), pipeline.ROWS
        # A function of this run: jax would share the program with an equal model of other decisions
        program = jax.jit(score.outputs_of(Classify(self.task, self.model), mesh))
        variables = jax.device_put(self.variables, NamedSharding(mesh, pipeline.WHOLE))
        return lambda batch: program(variables, pipeline.spread(batch, mesh, rows))

    def _padded(self, inputs: Sequence[Input]) -> tuple[np.ndarray, np.ndarray]:
        """Returns values and lengths as a split in memory has them (`tasks.Arrays`)."""
        if hasattr(inputs, "to_list"):  # a column of a data frame
            inputs = inputs.to_list()  # pyright: ignore[reportAttributeAccessIssue]
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
    """An exported config.json; those of earlier versions have more."""

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

    The folder is not changed, and the run's data is not needed. The folder may be a stranger's:
    nothing that it names is run, except this package. A line on standard error says so if a file of
    `imports` has changed since the run was trained.

    Args:
      folder: a run folder, or an exported one.
      checkpoint: "best" (on validation, the default) or "last"; an export holds one of them.
      imports: your modules or .py files that the model or task needs.
      denoise: whether the run may be one of `lra-fnet pretrain`, whose model has no classes.

    Raises:
      UserError: the folder is neither, its run is unfinished or has failed, it is damaged, or it
        needs another version of the code, or outside code that `imports` does not name.
    """
    folder, job = Path(folder), None
    settings.one_of("checkpoint", checkpoint, (None, *CHECKPOINTS))
    if exported := read_export(folder):
        given, result = exported
        kind, named, step = given.checkpoint, given.imports, given.step
        if checkpoint not in (None, kind):
            raise UserError(f"{folder} holds the checkpoint {kind!r}, not {checkpoint!r}")
        read = functools.partial(_read_weights, folder, given)
    else:
        job, result = finished(folder)
        kind, named = checkpoint or "best", job.imports
        step = getattr(result.validation, kind).step
        read = functools.partial(checkpoints.read, folder, kind, step=step)
    if result.denoise and not denoise:
        raise _no_classes(folder)
    device.require()
    config.import_modules(imports)
    differences = results.code_differences(result.code, result.config, imports)
    gone = [one.name for one in differences if one.new == results.NOT_IMPORTED]
    if gone := gone or ([] if imports else named):
        raise UserError(
            f"{folder} was trained with outside code, {', '.join(gone)}: if you trust your copy, "
            "name it with --import"
        )
    try:
        experiment = experiments.restore(result.config, imports)
        changes = config.differing(result.config, experiment.config)
        if changed := [d for d in changes if not d.name.startswith(_TRAINING_ONLY)]:
            raise UserError("; ".join(map(str, changed)))
        shapes = experiment.shapes()
    except config.OutsideCode as error:
        raise UserError(f"{folder}: {error}") from None
    except Exception as error:  # a config that was damaged or made up fails anywhere in the model
        raise UserError(
            f"{folder} does not fit this version ({one_line(error, 300)}): take the code of commit "
            f"{result.commit}"
        ) from None
    for difference in differences:
        progress.say(f"{folder} was trained with other code ({difference}): results may differ")
    variables = read(shapes)
    return TrainedRun(folder, experiment, variables, kind, step, result, named, tuple(imports), job)


def _no_classes(folder: Path) -> UserError:
    return UserError(
        f"{folder} holds a run of `lra-fnet pretrain`, whose model has no classes: train one that "
        f"begins from it, with --init {folder}"
    )


class Start(NamedTuple):
    """What a run takes over from the one that it begins from."""

    facts: Init
    variables: dict  # of its best checkpoint, by collection


def open_pretrained(folder: Path, experiment: Experiment, imports: Sequence[str] = ()) -> Start:
    """Reads the best checkpoint of a run for an experiment that begins from its encoder.

    Args:
      folder: of a complete run, pre-trained or with labels.
      experiment: the one that begins.
      imports: see `load_run`.

    Raises:
      UserError: see `load_run`; the encoders differ.
    """
    run = load_run(folder, "best", imports, denoise=True)
    how, result = run.experiment.denoising, run.result
    encoders = [one.model.encoder for one in (run.experiment, experiment)]
    old, new = (encoder.mixer_length for encoder in encoders)
    differences = config.differing(run.experiment.config, experiment.config)
    misfit = [str(one) for one in differences if not one.name.startswith(_ELSEWHERE)]
    if old != new and any(mixer.bound_to_max_len for mixer in encoders[1].mixers):
        misfit.append(f"made for {old:,} -> {new:,} tokens, see MAX_LEN")
    if misfit:
        raise UserError(
            f"--init {folder} has another encoder ({'; '.join(misfit)}): pre-train one with the "
            "settings of this run"
        )
    chosen = {f"Denoising.{name}": value for name, value in vars(how).items()} if how else {}
    chosen = chosen or {"DATASET": result.dataset}  # learned with labels
    return Start(
        Init(
            run=f"{result.label}/seed{result.seed}",
            objective=" ".join(f"{name}={value!r}" for name, value in chosen.items()),
            rate=how.rate if how else 0.0,
            step=run.step,
            steps=result.total_steps,
            wall_seconds=result.total_seconds,
            sha256=checkpoints.sha256(run.variables["params"]["encoder"]),
        ),
        run.variables,
    )


def read_export(folder: Path) -> tuple[Export, Record] | None:
    """Returns an export's config.json and its result; None if the folder is no export.

    Raises:
      UserError: config.json is damaged, or a file that the task needs is missing or another one.
    """
    value = disk.read_json(folder / CONFIG)
    if value is None:
        return None
    try:
        export = typed_json.build(Export, value)
        result = results.parse(export.result, path=folder)
    except ValueError as error:
        raise UserError(f"{folder / CONFIG} cannot be read ({error}): export it again") from None
    for name, sha256 in export.files.items():
        file = folder / Path(name).name
        if not file.is_file() or disk.sha256(file) != sha256:
            raise UserError(f"{file} is not the file that was exported: export the run again")
    return export, result


def _read_weights(folder: Path, export: Export, like: dict) -> dict:
    """Returns the variables of an export, by collection as in `like`, on the first device.

    Raises:
      UserError: they are not those of config.json, or do not fit the model.
    """
    file = folder / WEIGHTS
    try:
        arrays = safetensors.numpy.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{file} cannot be read ({error}): export it again") from None
    wanted = _flat(_merged(like))
    shapes = ({n: (a.dtype, a.shape) for n, a in leaves.items()} for leaves in (wanted, arrays))
    params = flax.traverse_util.unflatten_dict(jax.tree.map(jnp.asarray, arrays), sep="/")
    if operator.ne(*shapes) or checkpoints.sha256(params) != export.parameters_sha256:
        raise UserError(f"{file}: the parameters differ from those of {CONFIG}: export them again")
    constants = {name: params.pop(name, {}) for name in like if name != "params"}
    return {"params": params, **constants}


def _merged(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters next to the running averages and constants, if there are some."""
    others = {name: tree for name, tree in variables.items() if name != "params"}
    return {**variables["params"], **others}


def _flat(merged: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays by name: encoder/block_0/mlp/wide/kernel, constants/encoder/... ."""
    return flax.traverse_util.flatten_dict(merged, sep="/")


# Predictions for files


def predict_files(folder: Path, files: Sequence[Path], imports: Sequence[str] = ()) -> None:
    """Prints a JSON line for each input, in order and one batch at a time.

    Args:
      folder: a run folder, or an exported one.
      files: the inputs, as `lra-fnet predict --help` says; standard input if there are none.
      imports: see `load_run`.

    Raises:
      UserError: see `load_run`; a file cannot be read, or an input does not fit the task (the text
        has its place and the reason). The answers before a bad input are printed.
    """
    run = load_run(folder, imports=imports)
    batch_size = run.experiment.run.eval_batch_size
    if not files and sys.stdin.isatty():
        progress.say("reading standard input; Ctrl-D ends it")
        batch_size = 1  # a person waits for each answer
    batch: list[tuple[str, tuple[np.ndarray, ...]]] = []
    try:
        for place, contents in _inputs(run.task, files):
            try:
                batch.append((place, run.values(contents)))
            except ValueError as error:
                raise UserError(f"{place}: {error}") from None
            if len(batch) == batch_size:
                full, batch = batch, []
                _print_answers(run, full)
    finally:  # a bad input ends the command after the answers to those before it
        _print_answers(run, batch)


def _print_answers(run: TrainedRun, batch: Sequence[tuple[str, tuple[np.ndarray, ...]]]) -> None:
    rows = run.predict([texts for _, texts in batch])
    for (place, texts), row in zip(batch, rows, strict=True):
        label = int(row.argmax())
        line = {
            "label": label,
            "class": run.task.class_names[label],
            "probability": round(float(row[label]), 6),
            "probabilities": [round(share, 6) for share in row.tolist()],
            "truncated": any(len(text) > run.task.max_len for text in texts),
            "input": place,
        }
        print(json.dumps(line))
    sys.stdout.flush()


def _inputs(task: Task, files: Sequence[Path]) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Yields for each input its place (file, or file and line) and its raw texts."""
    if not files:
        yield from _lines(task, "standard input", sys.stdin.buffer)
    for file in files:
        try:
            if sources.ending(file) in task.tables:
                yield from task.inputs(file)
            elif isinstance(task, PixelTask):
                yield str(file), (file.read_bytes(),)
            else:
                with file.open("rb") as lines:
                    yield from _lines(task, str(file), lines)
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error}): name files, not folders") from None


def _lines(
    task: Task, name: str, lines: Iterable[bytes]
) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Yields the place and the texts of each line: the line itself, or those of a JSON object."""
    keys = ["text"] if task.num_inputs == 1 else ["text1", "text2"]
    for number, line in enumerate(lines, start=1):
        place, line = f"{name}, line {number}", line.rstrip(b"\r\n")
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if len(keys) == 1 and not re.match(rb'\s*\{\s*"', line):
            yield place, (line,)
            continue
        try:
            row = json.loads(line)
            yield place, tuple(row[key].encode() for key in keys)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            expected = ", ".join(f'"{key}": "..."' for key in keys)
            raise UserError(f"{place}: expected a JSON object {{{expected}}}") from None


# Exports


def export(
    folder: Path,
    out: Path,
    kind: Checkpoint = "best",
    imports: Sequence[str] = (),
    *,
    force: bool = False,
) -> None:
    """Exports a run: `out` then holds all its files, or is as it was before.

    Args:
      folder: of a complete run.
      out: a new or empty folder or, with `force`, an earlier export, which is replaced.
      kind: the checkpoint, "best" or "last".
      imports: see `load_run`.
      force: whether an earlier export may be replaced.

    Raises:
      UserError: see `load_run`; `out` holds something else, or cannot be written.
    """
    names = {path.name for path in out.glob("*")}
    if names - {CONFIG, WEIGHTS, CARD, VOCABULARY} or (names and CONFIG not in names):
        raise UserError(f"--out {out} holds other files: choose a folder that does not exist")
    if names and not force:
        raise UserError(f"{out} holds an export: --force replaces it, or choose another folder")
    run = load_run(folder, kind, imports)
    task = run.task
    merged = jax.tree.map(np.ascontiguousarray, jax.device_get(_merged(run.variables)))
    needed = {name: store.read_file(run.data(), name) for name in task.needed}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in needed.items()}
    facts = run.checkpoint, run.step, checkpoints.sha256(merged), run.needs, run.result.raw
    description = Export(*facts, format="lra-fnet 1", files=hashes)
    import jinja2  # late: only an export needs it

    template = Path(__file__).with_name("templates").joinpath("card.md").read_text("utf-8")
    card = jinja2.Template(template, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    code = [Path(name).name if name.endswith(".py") else name for name in run.needs]
    contents = {
        WEIGHTS: safetensors.numpy.save(_flat(merged)),
        CONFIG: (json.dumps(dataclasses.asdict(description), indent=1) + "\n").encode(),
        CARD: card.render(run=run, result=run.result, task=task, code=code).encode(),
        **needed,
    }
    with disk.writable(out, "--out"):
        target = out.resolve()  # of a link: it stays, and the folder that it names is filled
        target.parent.mkdir(parents=True, exist_ok=True)
        with disk.partial(target) as partial:
            partial.mkdir()
            for name, content in contents.items():
                (partial / name).write_bytes(content)
