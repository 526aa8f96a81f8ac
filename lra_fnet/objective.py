"""The loss that training minimises and the counts that evaluation makes, as frozen values.

The trainer and the scorer know the methods of `Objective` only.
"""

import abc
import dataclasses
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import flax.struct
import gin
import jax
import jax.numpy as jnp
import optax

from lra_fnet.errors import UserError
from lra_fnet.models.encoder import POOLED_AT_FIRST
from lra_fnet.models.heads import Classifier, Denoiser, Pretrainer
from lra_fnet.models.kernels.pointwise import AVERAGES
from lra_fnet.models.mixers.none import NoMixing
from lra_fnet.settings import Least, check_settings
from lra_fnet.tasks import PixelTask, Task


@flax.struct.dataclass
class Sums:
    """Sums over examples, or over masked positions; each a scalar array, or [B] if of each row.

    Divide once, after the last batch; never average averages.
    """

    loss: jax.Array  # float32: cross-entropy in nats, or absolute error in standard deviations
    correct: jax.Array  # int32
    count: jax.Array  # int32

    @classmethod
    def zero(cls) -> "Sums":
        """Returns the sums over no examples."""
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def __add__(self, other: "Sums") -> "Sums":
        return jax.tree.map(jnp.add, self, other)

    def numbers(self) -> dict[str, Any]:
        """Returns the sums as JSON values."""
        return {"correct": int(self.correct), "count": int(self.count), "loss": float(self.loss)}


@flax.struct.dataclass
class PairSums(Sums):
    """The sums over masked positions, and those over rows."""

    minimised: jax.Array  # float32: each row's mean loss of masked pieces, plus its order_loss
    order_loss: jax.Array  # float32: cross-entropy of the row's label
    order_correct: jax.Array  # int32
    rows: jax.Array  # int32

    @classmethod
    def zero(cls) -> "PairSums":
        """Returns the sums over no examples."""
        sums, zero = Sums.zero(), jnp.zeros((), jnp.int32)
        return cls(sums.loss, sums.correct, sums.count, sums.loss, sums.loss, zero, zero)

    def numbers(self) -> dict[str, Any]:
        """Returns the sums as JSON values."""
        order = {"order_loss": float(self.order_loss), "order_correct": int(self.order_correct)}
        return {**super().numbers(), **order, "rows": int(self.rows)}


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
    """Defines the loss to minimise and the counts to report for a model on a task's rows."""

    task: Task
    model: Any
    counts: ClassVar[type[Sums]] = Sums  # what `sums` returns

    @abc.abstractmethod
    def outputs(self, variables, batch, key=None) -> tuple[Any, dict]:
        """Returns arrays [B, ...] of a `pipeline.Batch`; call it inside a jitted function.

        Args:
          variables: parameters and constants, by collection.
          batch: stored rows.
          key: of all draws in training; None in evaluation, where dropout does not act.

        Returns:
          The arrays, which are just one if they are the logits of the label; and the model's
          running averages by collection, {} in evaluation.
        """

    def _apply(self, variables, key, *given) -> tuple[Any, dict]:
        """Applies the model to its inputs; see `outputs`."""
        if key is None:
            return self.model.apply(variables, *given, train=False), {}
        how: dict[str, Any] = {"rngs": {"dropout": key}, "mutable": [AVERAGES]}
        return self.model.apply(variables, *given, train=True, **how)

    @abc.abstractmethod
    def sums(self, outputs: Any, batch) -> tuple[Any, jax.Array]:
        """Returns the sums of a batch's outputs and which rows are right, bool [B].

        Filler rows count nothing and are never right.
        """

    @abc.abstractmethod
    def divisor(self, sums: Sums, rows: int) -> Any:
        """Returns the divisor of the gradient of the loss summed over a batch of rows."""

    def minimised(self, sums) -> jax.Array:
        """Returns the loss summed over a batch, whose gradient is taken."""
        return sums.loss

    def counted(self, sums, rows: int) -> Any:
        """Returns the divisor of the number of correct predictions in a batch of rows."""
        return self.divisor(sums, rows)

    def metrics(self, sums) -> dict[str, float]:
        """Returns the numbers that metrics.jsonl stores for an evaluation.

        Args:
          sums: of the validation split, see `score.make_scorer`.
        """
        count = max(sums["count"], 1)  # texts that are too short hide nothing
        more = {name: sums[name] for name in ("variation",) if name in sums}
        return {"loss": sums["loss"] / count, "accuracy": sums["correct"] / count, **more}

    @abc.abstractmethod
    def rank(self, sums) -> tuple[float, ...]:
        """Returns numbers that are smaller for a better model.

        Args:
          sums: of the validation split, see `score.make_scorer`.
        """


@dataclasses.dataclass(frozen=True)
class Classify(Objective):
    """Cross-entropy of a row's label, and whether the most likely class is the label."""

    model: Classifier

    def __post_init__(self):
        encoder = self.model.encoder
        # A model without any mixing is the floor on purpose, whatever the pooling.
        mixing = [mixer for mixer in encoder.mixers if not isinstance(mixer, NoMixing)]
        alone = mixing and all(mixer.first_alone for mixer in mixing)
        if encoder.pooling in POOLED_AT_FIRST and alone:
            raise UserError(
                f"Encoder.pooling = {encoder.pooling} reads the first position, and with these "
                "mixers that sees no other: set Encoder.pooling to mean"
            )

    def outputs(self, variables, batch, key=None) -> tuple[jax.Array, dict]:
        """Returns the logits, float32 [B, C]; see `Objective.outputs`."""
        return self._apply(variables, key, *self.task.tokens(batch.values, batch.lengths))

    def sums(self, outputs: jax.Array, batch) -> tuple[Sums, jax.Array]:
        """Returns the sums over rows; `outputs` are logits [B, C]."""
        loss = optax.softmax_cross_entropy_with_integer_labels(outputs, batch.labels)
        right = (outputs.argmax(-1) == batch.labels) & batch.valid
        sums = Sums(
            loss=jnp.where(batch.valid, loss, 0.0).sum(),
            correct=right.sum(dtype=jnp.int32),
            count=batch.valid.sum(dtype=jnp.int32),
        )
        return sums, right

    def divisor(self, sums: Sums, rows: int) -> int:
        """Returns the number of rows."""
        return rows

    def rank(self, sums) -> tuple[float, ...]:
        """Ranks by accuracy, then by loss."""
        return -sums["correct"], sums["loss"]


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Denoising:
    """Settings of `Denoise`: which tokens it hides, and the loss of its predictions.

    Raises:
      UserError: a setting is unknown or out of range.
    """

    # Of a text's tokens; at least one is hidden.
    rate: Annotated[float, Least(0, suggest=0.15, below=1)]
    # "mask": a masked token becomes the mask. "bert": 80 % of them become the mask, 10 % a random
    # token, and 10 % stay (BERT, arXiv:1810.04805, Sec. 3.1).
    replacement: Literal["bert", "mask"]
    # "l1": absolute error of a gray value, in standard deviations of the pixels.
    loss: Literal["cross_entropy", "l1"]
    share: Annotated[float, Least(0, suggest=0.5)]  # of Run.num_steps; fine-tuning has the others
    # "dense": one Dense layer. "bert": BERT's two, of masked pieces (through the embedding table)
    # and of sentence order, for a task of pieces; see `Pretrain`.
    head: Literal["dense", "bert"] = "dense"

    def __post_init__(self):
        check_settings(self)
        if not (self.rate > 0 and 0 < self.share <= 1):
            raise UserError(
                "Denoising.rate and Denoising.share must be above 0, and share at most 1, got "
                f"{self.rate} and {self.share}: set them to 0.15 and 0.5, say"
            )
        if self.head == "bert" and self.loss != "cross_entropy":
            raise UserError(
                f"Denoising.loss must be cross_entropy with head bert, got {self.loss!r}: set it so"
            )


class Hidden(NamedTuple):
    """A batch with masked tokens: T texts (two of them a row in Retrieval), K places in each."""

    ids: jax.Array  # int32 [T, L], after the replacement
    mask: jax.Array  # bool [T, L], True at real tokens, hidden ones too
    places: jax.Array  # int32 [T, K]
    targets: jax.Array  # int32 [T, K]: the values that were there
    chosen: jax.Array  # bool [T, K], False where a text has fewer places than K


@dataclasses.dataclass(frozen=True)
class Denoise(Objective):
    """Hides some tokens of a row and predicts them: masked language modelling, or of pixels.

    Which tokens are hidden depends on the key and the row's number in its split alone: not on the
    batch, the slice or the device that the row is in. In training the key is that of the step. In
    an evaluation it is always the same, so models are compared on the same masked tokens.

    Pre-training on a task's own rows follows "Never Train from Scratch" (arXiv:2310.02980, Sec. 3).
    """

    model: Denoiser
    how: Denoising

    def __post_init__(self):
        if self.how.loss == "l1" and not isinstance(self.task, PixelTask):
            raise UserError(
                f"Denoising.loss = l1 needs a task of images, got {self.task.name}: "
                "set it to cross_entropy"
            )

    def hide(self, key, values, lengths, numbers) -> Hidden:
        """Hides tokens of stored rows; call it inside a jitted function.

        Args:
          key: of all draws.
          values: uint8 or uint16 [B, L], or [B, 2, L] for two texts per row.
          lengths: int32 [B] or [B, 2].
          numbers: int32 [B], the rows' numbers in their split.
        """
        task, length = self.task, values.shape[-1]
        shift = 0 if task.zero_is_padding else 1  # from a value to its id
        texts = jnp.arange(task.num_inputs)[None]
        keys = jax.vmap(lambda number: jax.random.split(jax.random.fold_in(key, number), 3))(
            (numbers[:, None] * task.num_inputs + texts).reshape(-1)
        )
        values = values.reshape(-1, length)
        ids, mask = task.tokens(values, lengths.reshape(-1))

        rows, most = len(ids), max(1, round(self.how.rate * length))
        bits = jax.vmap(lambda key: jax.random.bits(key, (length,)))(keys[:, 0])
        places = jax.lax.broadcasted_iota(jnp.int32, ids.shape, 1)
        # Tokens that may be hidden come first, in random order.
        free = mask & (ids >= task.first_id)
        places = jax.lax.sort((~free, bits, places), num_keys=2)[2][:, :most]
        real = free.sum(axis=1, keepdims=True, dtype=jnp.int32)
        wanted = jnp.maximum(jnp.round(self.how.rate * real).astype(jnp.int32), 1)
        ranks = jax.lax.broadcasted_iota(jnp.int32, places.shape, 1)
        chosen = ranks < jnp.minimum(wanted, real)

        before = jnp.take_along_axis(ids, places, axis=1)
        after = jnp.full_like(before, self.mask_id)
        if self.how.replacement == "bert":
            draw = jax.vmap(lambda key: jax.random.uniform(key, (most,)))(keys[:, 1])
            other = jax.vmap(
                lambda key: jax.random.randint(key, (most,), task.first_id, task.num_ids)
            )(keys[:, 2])
            after = jnp.where(draw < 0.8, after, jnp.where(draw < 0.9, other, before))
        after = jnp.where(chosen, after, before)
        hidden = ids.at[jnp.arange(rows)[:, None], places].set(after, unique_indices=True)
        return Hidden(hidden, mask, places, before - shift, chosen)

    @property
    def mask_id(self) -> int:
        """The id of a masked token: one more than the task has, or that of a pixel of mean gray.

        The gray is neither black nor white, which most pixels of a drawing have. A task may have
        its own id.
        """
        if self.task.mask_id is not None:
            return self.task.mask_id
        if self.model.encoder.inputs == "tokens":
            return self.task.num_ids
        assert isinstance(self.task, PixelTask)
        return min(max(round(self.task.pixel_mean), 1), 254) + 1

    def hidden(self, batch, key) -> Hidden:
        """Hides tokens of a batch; the key is that of `outputs`."""
        # The number is arbitrary: Flax folds other ones into the keys of dropout.
        key = _evaluation_key() if key is None else jax.random.fold_in(key, 1)
        return self.hide(key, batch.values, batch.lengths, batch.numbers)

    def outputs(self, variables, batch, key=None) -> tuple[Any, dict]:
        """Returns the sums over the masked tokens of each row; see `Objective.outputs`."""
        hidden = self.hidden(batch, key)
        predicted, averages = self._apply(variables, key, hidden.ids, hidden.mask, hidden.places)
        if self.how.loss == "l1":
            assert isinstance(self.task, PixelTask)
            gray = predicted[..., 0] * self.task.pixel_sd + self.task.pixel_mean
            loss = jnp.abs(gray - hidden.targets) / self.task.pixel_sd
            right = jnp.round(gray) == hidden.targets
        else:
            loss = optax.softmax_cross_entropy_with_integer_labels(predicted, hidden.targets)
            right = predicted.argmax(-1) == hidden.targets
        return _by_row(hidden, loss, right, len(batch.labels)), averages

    def sums(self, outputs: Sums, batch) -> tuple[Sums, jax.Array]:
        """Returns the sums over masked tokens; a row is right if all that is hidden is."""
        valid = batch.valid
        sums = jax.tree.map(lambda x: jnp.where(valid, x, 0).sum(dtype=x.dtype), outputs)
        return sums, (outputs.correct == outputs.count) & (outputs.count > 0) & valid

    def divisor(self, sums: Sums, rows: int) -> jax.Array:
        """Returns the number of masked tokens."""
        return jnp.maximum(sums.count, 1).astype(jnp.float32)

    def rank(self, sums) -> tuple[float, ...]:
        """Ranks by loss."""
        return (sums["loss"] / max(sums["count"], 1),)


@dataclasses.dataclass(frozen=True)
class Pretrain(Denoise):
    """Masked language modelling and sentence order: the FNet paper's objective, which is BERT's.

    The loss is the sum of both mean losses over the rows (arXiv:2105.03824, App. A.1). Each row
    counts the mean over its own masked pieces. The authors' code takes the mean over all masked
    pieces of the batch, so that pieces of short rows count less than here.
    """

    model: Pretrainer
    counts: ClassVar[type[Sums]] = PairSums

    def __post_init__(self):
        super().__post_init__()
        if self.task.mask_id is None:
            raise UserError(
                f"Denoising.head = bert needs a task of pieces with sentence order, got "
                f"{self.task.name}: set it to dense"
            )

    def outputs(self, variables, batch, key=None) -> tuple[Any, dict]:
        """Returns the sums over masked pieces, and loss and success of the label, of each row."""
        hidden, labels = self.hidden(batch, key), batch.labels
        types = self.task.types(hidden.ids, hidden.mask)
        given = hidden.ids, hidden.mask, hidden.places, types
        (predicted, order), averages = self._apply(variables, key, *given)
        targets = hidden.targets + 1  # the table has a row for padding
        loss = optax.softmax_cross_entropy_with_integer_labels(predicted, targets)
        right = predicted.argmax(-1) == targets
        paired = (
            _by_row(hidden, loss, right, len(labels)),
            optax.softmax_cross_entropy_with_integer_labels(order, labels),
            order.argmax(-1) == labels,
        )
        return paired, averages

    def sums(self, outputs: tuple, batch) -> tuple[PairSums, jax.Array]:
        """Returns the sums over masked pieces and over rows; see `Denoise.sums`."""
        restored, order_loss, order_right = outputs
        sums, right = super().sums(restored, batch)
        both = restored.loss / jnp.maximum(restored.count, 1) + order_loss
        valid = batch.valid
        return PairSums(
            loss=sums.loss,
            correct=sums.correct,
            count=sums.count,
            minimised=jnp.where(valid, both, 0.0).sum(),
            order_loss=jnp.where(valid, order_loss, 0.0).sum(),
            order_correct=(order_right & valid).sum(dtype=jnp.int32),
            rows=valid.sum(dtype=jnp.int32),
        ), right

    def minimised(self, sums: PairSums) -> jax.Array:
        """Returns the sum over rows of both losses."""
        return sums.minimised

    def divisor(self, sums: Sums, rows: int) -> Any:
        """Returns the number of rows."""
        return rows

    def counted(self, sums: Sums, rows: int) -> jax.Array:
        """Returns the number of masked pieces."""
        return super().divisor(sums, rows)

    def metrics(self, sums) -> dict[str, float]:
        """Adds loss and accuracy of sentence order to those of masked pieces."""
        order = {name: sums[f"order_{name}"] / sums["rows"] for name in ("loss", "correct")}
        names = {"order_loss": order["loss"], "order_accuracy": order["correct"]}
        return {**super().metrics(sums), **names}

    def rank(self, sums) -> tuple[float, ...]:
        """Ranks by the sum of both mean losses."""
        metrics = self.metrics(sums)
        return (metrics["loss"] + metrics["order_loss"],)


def _by_row(hidden: Hidden, loss, right, rows: int) -> Sums:
    """Returns the sums over the masked tokens of each row, of arrays [T, K]."""

    def summed(numbers, dtype):
        chosen = jnp.where(hidden.chosen, numbers, 0)
        return chosen.reshape(rows, -1).sum(axis=1, dtype=dtype)

    ones = jnp.ones_like(hidden.places)
    return Sums(summed(loss, jnp.float32), summed(right, jnp.int32), summed(ones, jnp.int32))


def _evaluation_key() -> jax.Array:
    """Returns the key of what is hidden in every evaluation, of every run."""
    return jax.random.key(0, impl="threefry2x32")
