"""The loss that training minimises and the counts that evaluation makes, as frozen values.

The trainer and the scorer know two methods of an objective: `logits`, and `sums` of a batch's
logits.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from lra_fnet.models.heads import Classifier
from lra_fnet.tasks import Task


@flax.struct.dataclass
class Sums:
    """Sums over examples, each a scalar array.

    Divide once, after the last batch; never average averages.
    """

    loss: jax.Array  # float32: cross-entropy in nats
    correct: jax.Array  # int32
    count: jax.Array  # int32

    @classmethod
    def zero(cls) -> "Sums":
        """Returns the sums over no examples."""
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def __add__(self, other: "Sums") -> "Sums":
        return jax.tree.map(jnp.add, self, other)


@dataclasses.dataclass(frozen=True)
class Classify:
    """Cross-entropy of a row's label, and whether the most likely class is the label."""

    task: Task
    model: Classifier

    def logits(
        self, variables, values, lengths, *, train: bool = False, rngs=None, mutable: Any = False
    ) -> Any:
        """Returns the logits of stored rows, float32 [B, C]; call it inside a jitted function.

        Args:
          variables: parameters and constants, by collection.
          values: uint8 [B, L], or [B, 2, L] for two texts a row.
          lengths: int32 [B] or [B, 2].
          train: whether dropout acts.
          rngs: {"dropout": key}, needed in training.
          mutable: names of collections that the model may change, which are then returned too, as
            by flax: (logits, {name: collection}).
        """
        ids, mask = self.task.tokens(values, lengths)
        return self.model.apply(variables, ids, mask, train=train, rngs=rngs, mutable=mutable)

    def sums(self, logits, batch) -> tuple[Sums, jax.Array]:
        """Returns the sums of a `pipeline.Batch` and which rows are right, bool [B].

        Filler rows count nothing and are never right.
        """
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        right = (logits.argmax(-1) == batch.labels) & batch.valid
        sums = Sums(
            loss=jnp.where(batch.valid, loss, 0.0).sum(),
            correct=right.sum(dtype=jnp.int32),
            count=batch.valid.sum(dtype=jnp.int32),
        )
        return sums, right
