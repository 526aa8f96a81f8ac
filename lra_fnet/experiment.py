"""From gin to values: task, model, optimizer, run settings. No module below this one sees gin."""

# pyright: reportCallIssue=false
# gin gives the arguments that the calls below leave out.

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import gin
import jax
import jax.numpy as jnp

from lra_fnet import config
from lra_fnet.data import store
from lra_fnet.errors import UserError, one_line
from lra_fnet.models import mixers
from lra_fnet.models.encoder import Encoder
from lra_fnet.models.heads import Classifier, Denoiser, Head, Pretrainer
from lra_fnet.objective import Classify, Denoise, Denoising, Objective, Pretrain
from lra_fnet.optim import Optimizer
from lra_fnet.settings import Least, check_settings
from lra_fnet.tasks import PixelTask, Task, sets
from lra_fnet.tasks.own import OwnTask

# Imports every mixer, so that a binding for an unused one is reported as unread, not as unknown.
for _module in pkgutil.iter_modules(mixers.__path__):
    importlib.import_module(f"{mixers.__name__}.{_module.name}")


def keys(seed: int) -> tuple[jax.Array, jax.Array]:
    """Returns the keys of a run's initial parameters and of all its dropout."""
    init_key, dropout_key = jax.random.split(jax.random.key(seed, impl="threefry2x32"))
    return init_key, dropout_key


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Run:
    """Length and batches of a run, and how often it evaluates, saves and logs.

    Steps are optimizer steps; batch sizes count examples.

    Raises:
      UserError: a setting that is not a number or too small, or a microbatch that does not divide
        the batch.
    """

    num_steps: Annotated[int, Least(1, suggest=5000, below=2**31)]
    batch_size: Annotated[int, Least(1, suggest=32)]
    # Steps between evaluations on validation; the last step is always evaluated.
    eval_every: Annotated[int, Least(1, suggest=500)]
    # Fewest steps between checkpoints of the newest state.
    save_every: Annotated[int, Least(1, suggest=500)]
    # Steps that a line of metrics.jsonl averages over.
    log_every: Annotated[int, Least(1, suggest=50)]
    eval_batch_size: Annotated[int, Least(1, suggest=32)]
    # Shortest time between checkpoints of the newest state; the last state is always saved.
    save_seconds: Annotated[float, Least(0, suggest=10)] = 10.0
    # At most; the result does not depend on it.
    steps_per_dispatch: Annotated[int, Least(1, suggest=32)] = 32
    # Examples per slice of the gradient; 0: see slices.rows_at_once.
    microbatch: Annotated[int, Least(0, suggest=0)] = 0
    # Whether a run ends at the third evaluation in a row whose logits do not depend on the input.
    stop_on_collapse: bool = False

    def __post_init__(self):
        check_settings(self)
        if self.microbatch and self.batch_size % self.microbatch:
            raise UserError(
                f"Run.microbatch ({self.microbatch}) must divide Run.batch_size "
                f"({self.batch_size}): set it to 0 for the usual size"
            )


@dataclasses.dataclass(frozen=True, repr=False)
class Experiment:
    """Everything that defines a run but its seed and its data, as values."""

    task: Task
    model: Any  # a Classifier; in pre-training a Denoiser or a Pretrainer
    optimizer: Optimizer
    run: Run
    config: str = ""  # the operative gin text
    denoising: Denoising | None = None  # in pre-training

    def __repr__(self):
        mixers = {type(mixer).__name__: None for mixer in self.model.encoder.mixers}
        return f"Experiment({self.task}, {' and '.join(mixers)}, {self.run.num_steps:,} steps)"

    @property
    def objective(self) -> Objective:
        """The loss that training minimises and the counts that evaluation makes."""
        if self.denoising is None:
            return Classify(self.task, self.model)
        if isinstance(self.model, Pretrainer):
            return Pretrain(self.task, self.model, self.denoising)
        return Denoise(self.task, self.model, self.denoising)

    def init(self, seed: int) -> dict:
        """Returns the variables that a run with this seed begins with."""
        init = functools.partial(self.model.init, train=False)
        return dict(jax.jit(init)(keys(seed)[0], *self.blank_inputs(1)))

    def shapes(self) -> dict:
        """Returns the shapes of the variables that `init` returns, without computing them."""
        return jax.eval_shape(functools.partial(self.init, 0))

    def blank_inputs(self, batch_size: int) -> tuple[jax.Array, jax.Array]:
        """Returns ids (zeros) and a mask (True) with the shapes of the task's batches."""
        shape = (batch_size, *self.task.row_shape)
        return jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool)


@gin.configurable
def build(task: Task, *, denoise: bool) -> Experiment:
    """Builds the experiment from gin's bindings, reading each one once.

    The encoder constructs its mixers here, so that they hold all that gin binds for them. So does
    the head, which pre-training does not use: both stages read the same bindings of a preset.

    Args:
      task: the task.
      denoise: whether the run is pre-training.

    Raises:
      UserError: if settings do not fit the task or each other.
    """
    if not isinstance(task, Task):
        raise UserError(f"TASK must be a task, like @ListOps(), got {task!r}: use --task instead")
    pixels = isinstance(task, PixelTask)
    denoising = Denoising() if denoise else None
    encoder = Encoder(
        # The mask is the last id, unless the task has one.
        vocab_size=task.num_ids + (denoise and task.mask_id is None),
        max_len=task.max_len,
        pixel_mean=task.pixel_mean if pixels else None,
        pixel_sd=task.pixel_sd if pixels else None,
        parent=None,
    )
    if encoder.inputs == "pixels" and task.zero_is_padding:
        raise UserError(
            "Encoder.inputs = pixels and black_is_padding exclude each other: "
            "set inputs to tokens, or black_is_padding to False"
        )
    fused = [m for m in encoder.mixers if getattr(m, "implementation", None) == "fused"]
    if fused and task.zero_is_padding:
        raise UserError(
            f"{type(fused[0]).__name__}.implementation = fused needs padding at the end, got "
            "black_is_padding, which has it anywhere: set implementation to blockwise, or "
            "black_is_padding to False"
        )
    head = Head(num_classes=task.num_classes, num_inputs=task.num_inputs, parent=None)
    optimizer, run = Optimizer(), Run()
    if encoder.batch_norm is not None and run.microbatch not in (0, run.batch_size):
        raise UserError(
            f"Run.microbatch must be 0 with Encoder.batch_norm, got {run.microbatch}: its "
            "statistics are those of the whole batch"
        )
    if denoising is None:
        model = Classifier(encoder, head)
    elif denoising.head == "bert":
        model = Pretrainer(encoder, task.num_classes)
    else:
        model = Denoiser(encoder, 1 if denoising.loss == "l1" else task.vocab_size - 1)
    built = Experiment(task, model, optimizer, run, denoising=denoising)
    _ = built.objective  # reports settings that do not fit the task
    _check_groups(built)
    return built


def _check_groups(built: Experiment) -> None:
    """Raises a UserError for a group that no mixer declares as separable."""
    separable = {name for mixer in built.model.encoder.mixers for name in mixer.separable}
    if wrong := set(built.optimizer.groups or ()) - separable:
        raise UserError(
            f"Optimizer.groups expects parameters that the model's mixers declare as separable "
            f"({', '.join(sorted(separable)) or 'none'}), got {', '.join(sorted(wrong))}: leave it "
            "out"
        )


@config.alone()
def load(
    task: str,
    model: str,
    preset: str,
    overrides: Sequence[str] = (),
    *,
    imports: Sequence[str] = (),
    gin_dirs: Sequence[Path] = (),
    denoise: bool = False,
    done: int = 0,
    data: Path | None = None,
    source: str | Path | None = None,
) -> Experiment:
    """Builds the experiment of a task, a model, a preset and overrides.

    Run.num_steps of the preset and the overrides is the length of all stages: pre-training has
    Denoising.share of them, and a run that begins from a pre-trained one has those that are left.

    Args:
      task: the name of its file in gin/tasks.
      model: the same in gin/models.
      preset: the name of its folder in gin/presets.
      overrides: bindings like "Run.num_steps=100".
      imports: modules or .py files that register configurables.
      gin_dirs: folders with more gin files.
      denoise: whether the run is pre-training, see `objective.Denoise`.
      done: steps of the pre-trained run that this one begins from.
      data: the folder of the prepared sets, for a task whose classes are those of the user's rows:
        prepares them there.
      source: the raw files of these rows, if they are not prepared.

    Raises:
      UserError: see config.load; a binding that nothing reads; a parameter without a value; a data
        set that is not DATASET.
    """
    texts = config.texts(task, model, preset, gin_dirs, denoise=denoise)
    stage = functools.partial(_stage, denoise=denoise, done=done)
    with _one_line():
        config.load(texts, overrides, imports, lambda: _training_rows(task), stage)
        _settle(data, source)
    built = _build(denoise=denoise)
    dataset = gin.query_parameter("%DATASET")
    if isinstance(dataset, str) and dataset != built.task.config:  # else nothing binds it
        raise UserError(
            f"{type(built.task).__name__}.config is {built.task.config!r}, but DATASET, by which "
            f"epochs are counted, is {dataset!r}: bind DATASET alone"
        )
    fields = {f"Optimizer.{field}" for field in built.optimizer.unread()}
    names = (config.short(config.split(text)[0]) for text in overrides)
    unread = [*config.unread_bindings(overrides), *(name for name in names if name in fields)]
    if unread:
        raise UserError(
            f"nothing reads {', '.join(unread)} with task {task}, model {model}, preset {preset}: "
            "remove the binding, or choose the model or schedule that reads it"
        )
    return built


def _stage(steps: int, *, denoise: bool, done: int) -> int:
    """Returns the steps of pre-training, or those after it, from the steps of both."""
    if denoise:
        return max(1, round(Denoising().share * steps))
    if done >= steps:
        raise UserError(
            f"Run.num_steps ({steps}) counts the {done} steps of its --init run too: "
            f"set it above {done}"
        )
    return steps - done


def _settle(data: Path | None, source: str | Path | None) -> None:
    """Binds what only the rows of the task say, such as the classes of a user's table.

    Raises:
      UserError: they are not known, as there is no folder of the rows.
    """
    task = gin.get_configurable("TASK/gin.macro")()  # as gin evaluates %TASK
    if not isinstance(task, OwnTask):
        return
    if task.settled and (data is None or not (source or task.folder(data).exists())):
        return
    name = type(task).__name__
    if data is None:
        texts = f" --set {name}.texts=1" if hasattr(task, "texts") else ""
        raise UserError(
            f"the classes of task {task.name} are those of its rows, which are not read here: give "
            f'them, such as --set \'{name}.labels=("no", "yes")\'{texts}'
        )
    settled = sets.prepare(task, data, source).task
    fields = dataclasses.fields(task)
    found = {field.name: getattr(settled, field.name) for field in fields}
    # An empty default means that the rows decide, even if the user binds the empty value.
    for field in fields:
        if not field.default and getattr(task, field.name) == field.default:
            gin.bind_parameter(f"{name}.{field.name}", found[field.name])
    config.bind_missing(
        {f"{name}.{field}": value for field, value in found.items()}
        | ({"Head.interaction": "nli"} if settled.num_inputs == 2 else {})
    )


def _training_rows(task: str) -> int:
    """Returns the training rows of a task's data set as data/expected.json has them.

    Raises:
      UserError: it does not have them.
    """
    dataset = gin.query_parameter("%DATASET")
    splits = store.expected().get(task, {}).get(dataset, {}).get("splits", {})
    if "train" not in splits:
        raise UserError(
            f"epochs need the number of training rows, which data/expected.json does not have for "
            f"{task}/{dataset}: give Run.num_steps and the others as numbers of steps"
        )
    return splits["train"]["rows"]


@config.alone()
def restore(text: str, imports=()) -> Experiment:
    """Builds the experiment of an operative config, without reading gin files.

    Its `config` differs from the text if parameters of the code have changed since. The text may be
    a stranger's: it runs only code of this package and of `imports`.

    Raises:
      UserError: see config.load_operative; a parameter that the text does not have.
    """
    config.load_operative(text, imports)
    return _build(denoise="Denoising.rate" in text)


def _build(*, denoise: bool) -> Experiment:
    """Like `build`, but adds the config, and reports unusable bindings as a one-line UserError."""
    with _one_line():
        return dataclasses.replace(build(denoise=denoise), config=config.operative())


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Reports settings that are wrong or missing as a one-line UserError, without gin's notes."""
    try:
        yield
    except (UserError, RuntimeError, TypeError) as error:
        reason = one_line(error)
        if missing := re.match(
            r"(\w+)(?:\.__init__)?\(\) missing \d+ required (.*?) No val", reason
        ):
            settings = " and ".join(f"{missing[1]}.{n}" for n in re.findall(r"'(\w+)'", missing[2]))
            reason = f"nothing binds {settings}: bind it, as the files in gin/models do"
        elif not isinstance(error, UserError) and "Required bindings" not in reason:
            raise
        raise UserError(reason) from None
