"""Scores a trained run on validation rows with dropout off, at all places, and at one at a time.

python examples/dropout_gap.py runs/small/image/fnet+d0.1/seed0

Only dropout differs from evaluation (that of attention weights stays off). If it raises the
accuracy, the weights fit its noise: see docs/findings.md. The last column says how far it moves the
first layer's outputs: the rms over the width and the rows, at the median position.
"""

import functools
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import lra_fnet
from lra_fnet.models.encoder import MLP
from lra_fnet.models.kernels.pointwise import Dropout

ROWS, BATCH = 1000, 100


def outputs(run, place, found, values, lengths, key):
    """Returns the logits [B, C] and the first layer's outputs [B, L, D].

    Dropout acts in modules whose path begins with `place`, nowhere if it is None. The paths of all
    modules that have dropout are appended to `found`.
    """

    def act(call, args, kwargs, context):
        module = context.module
        if context.method_name == "__call__" and isinstance(module, Dropout | MLP):
            path = "/".join(module.path)
            found.append(path)
            kwargs |= {"train": place is not None and path.startswith(place)}
        return call(*args, **kwargs)

    def first(module, method):
        return module.name == "block_0" and method == "__call__"

    ids, mask = run.task.tokens(values, lengths)
    more = {"rngs": {"dropout": key}, "mutable": ["intermediates"], "capture_intermediates": first}
    with nn.intercept_methods(act):
        logits, kept = run.model.apply(run.variables, ids, mask, train=False, **more)
    return logits, kept["intermediates"]["encoder"]["block_0"]["__call__"][0]


def main(folder):
    """Prints one line for each place."""
    run = lra_fnet.load_run(folder)
    rows = run.data().arrays("validation")
    count = min(ROWS, len(rows.labels))
    batches = [slice(start, min(start + BATCH, count)) for start in range(0, count, BATCH)]
    modules = []
    outputs(run, None, modules, rows.values[:1], rows.lengths[:1], jax.random.key(0))
    places = {"nowhere": None, "everywhere": ""}
    places |= {path: path for path in modules if "/mlp/" not in path}
    still = {}
    print(f"rate {run.model.encoder.dropout}, {count:,} rows")
    print(f"{'acts at':28} {'accuracy':>8} {'loss':>7} {'rms':>7} {'moved':>7}")
    for name, place in places.items():
        step = jax.jit(functools.partial(outputs, run, place, []))
        correct = loss = energy = moved = 0.0
        for number, batch in enumerate(batches):
            labels = rows.labels[batch]
            logits, x = step(rows.values[batch], rows.lengths[batch], jax.random.key(number))
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            correct += float((logits.argmax(axis=-1) == labels).sum())
            loss += float(losses.sum())
            x = x.reshape(len(labels), -1, *x.shape[-2:])  # Retrieval has two texts in a row
            energy += jnp.square(x).mean(axis=-1).sum(axis=0)
            moved += jnp.square(x - still.setdefault(number, x)).mean(axis=-1).sum(axis=0)
        rms, change = (jnp.median(jnp.sqrt(total / count)) for total in (energy, moved))
        accuracy, loss = 100 * correct / count, loss / count
        print(f"{name:28} {accuracy:8.2f} {loss:7.3f} {rms:7.1f} {change:7.1f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
