"""Sums and counts over examples. Divide once, after the last batch; never average averages."""

import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class Sums:
    """Sums over examples, each a scalar array."""

    loss: jax.Array  # float32: cross-entropy in nats
    correct: jax.Array  # int32
    count: jax.Array  # int32

    @classmethod
    def zero(cls) -> "Sums":
        """The sums over no example."""
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def __add__(self, other: "Sums") -> "Sums":
        return jax.tree.map(jnp.add, self, other)


def right(logits, labels, valid):
    """Which rows are answered right, bool [B]: False at filler rows. See `batch_sums`."""
    return (logits.argmax(-1) == labels) & valid


def batch_sums(logits, labels, valid) -> Sums:
    """Logits float [B, C], labels int32 [B], valid bool [B] (False marks filler rows)."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return Sums(
        loss=jnp.where(valid, loss, 0.0).sum(),
        correct=right(logits, labels, valid).sum(dtype=jnp.int32),
        count=valid.sum(dtype=jnp.int32),
    )
