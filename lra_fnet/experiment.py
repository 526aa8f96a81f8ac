"""gin -> task, model, optimizer, run settings. No code below this module sees gin."""

# pyright: reportCallIssue=false
# gin gives the arguments that the calls below leave out.

import dataclasses
import importlib
import pkgutil

import gin
import jax
import jax.numpy as jnp

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.models import mixers
from lra_fnet.models.encoder import Encoder
from lra_fnet.models.heads import Classifier, Head
from lra_fnet.optim import Optimizer
from lra_fnet.tasks import PixelTask, Task

# Imports every mixer, so that a binding for an unused one is reported as unread, not as unknown.
for _module in pkgutil.iter_modules(mixers.__path__):
    importlib.import_module(f"{mixers.__name__}.{_module.name}")


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Run:
    """Length, batch and rhythm of a run. Steps are optimizer steps, batches count examples."""

    num_steps: int
    batch_size: int
    eval_every: int  # steps between evaluations on validation; the last step is always evaluated
    save_every: int  # least steps between checkpoints of the newest state
    log_every: int  # steps that one line of metrics.jsonl sums over
    eval_batch_size: int
    save_seconds: float = 10.0  # least time between two of them; the last one is always saved
    steps_per_dispatch: int = 32  # most steps in one dispatch; the result does not depend on it
    microbatch: int = 0  # examples whose gradient is held at a time; 0: see step.rows_at_once

    def __post_init__(self):
        """Checks the numbers.

        Raises:
          UserError: a setting that is no number or too small, or a microbatch that does not
            divide the batch.
        """
        for field in dataclasses.fields(self):
            value, least = (
                getattr(self, field.name),
                int(field.name not in ("microbatch", "save_seconds")),
            )
            kind = int | float if field.type is float else int
            if isinstance(value, bool) or not isinstance(value, kind) or value < least:
                what = "number" if field.type is float else "whole number"
                raise UserError(
                    f"Run.{field.name} expects a {what} of at least {least}, got {value!r}"
                )
        if self.microbatch and self.batch_size % self.microbatch:
            raise UserError(
                f"Run.microbatch ({self.microbatch}) must divide Run.batch_size ({self.batch_size})"
            )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that a run is, as values."""

    task: Task
    model: Classifier
    optimizer: Optimizer
    run: Run
    config: str = ""  # the operative gin text

    def init(self, seed: int):
        """Parameters and constants of the model: {"params": ..., and other collections}."""
        return self.model.init(jax.random.key(seed), *self.abstract_inputs(1), train=False)

    def abstract_inputs(self, batch_size: int):
        """Ids and mask of one batch of padding, shaped as the task's."""
        shape = (batch_size, self.task.max_len)
        if self.task.num_inputs > 1:
            shape = (batch_size, self.task.num_inputs, self.task.max_len)
        return jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool)

    def uses_mask(self) -> bool:
        """Whether every layer's mixer honours the padding mask."""
        return self.model.encoder.uses_mask


@gin.configurable
def build(task: Task) -> Experiment:
    """Builds the experiment from gin's bindings, reading each one once.

    The encoder constructs its mixers here, so that they hold all that gin binds for them.

    Raises:
      UserError: if settings do not fit the task or each other.
    """
    pixels = isinstance(task, PixelTask)
    encoder = Encoder(
        vocab_size=task.num_ids,
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
    head = Head(num_classes=task.num_classes, num_inputs=task.num_inputs, parent=None)
    model = Classifier(encoder, head, zero_is_padding=task.zero_is_padding)
    return Experiment(task, model, Optimizer(), Run())


def load(
    task: str,
    model: str,
    preset: str,
    overrides=(),
    imports=(),
    dirs=(),
) -> Experiment:
    """Parses the files of a run and its overrides, builds, and refuses what nobody read.

    Raises:
      UserError: see config.load; a binding that nothing read; a parameter that nothing gave.
    """
    config.load(config.files(task, model, preset, dirs), overrides, imports)
    built = _build()
    unread = config.unread_bindings(overrides)
    if unread:
        raise UserError(
            f"nothing reads {', '.join(unread)} with task {task}, model {model}, preset {preset}: "
            "remove the binding, or choose the model that has it"
        )
    return dataclasses.replace(built, config=config.operative())


def restore(text: str, imports=()) -> Experiment:
    """The experiment whose operative config is `text`; no gin file is read.

    Its own config differs from the text where the code has other parameters than it had.

    Raises:
      UserError: see config.load_operative; a parameter that the text does not have.
    """
    config.load_operative(text, imports)
    return dataclasses.replace(_build(), config=config.operative())


def _build() -> Experiment:
    """As `build`, what gin lacks told in one line."""
    try:
        return build()
    except (UserError, RuntimeError, TypeError) as error:
        reason = str(error).split("\n  In call to")[0]  # gin adds where it was called from
        lacking = "Required bindings" in reason or "required positional argument" in reason
        if not isinstance(error, UserError) and not lacking:
            raise
        raise UserError(" ".join(reason.split())) from None
