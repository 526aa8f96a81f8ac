"""Prints how much of the pooled vector differs between texts before training.

python examples/pooled_share.py pathfinder cpu conv s4d fnet transformer

The share is the standard deviation over 256 validation rows, averaged over the width, divided by
the rms of all entries; mean of three initialisations, with LayerNorm and with BatchNorm. A small
share means that the classifier first sees nearly the same vector for every row: see
docs/findings.md. The data must be prepared.
"""

import sys

import jax
import jax.numpy as jnp

from lra_fnet import experiment, tasks

ROWS, SEEDS = 256, 3


def share(task, model, preset, overrides=(), data="data"):
    """Returns the share of one model."""
    built = experiment.load(task, model, preset, overrides)
    rows = tasks.open(built.task, data).arrays("validation").take(slice(ROWS))
    ids, mask = built.task.tokens(rows.values, rows.lengths)
    encoder, shares = built.model.encoder.clone(dropout=0.0), []
    for seed in range(SEEDS):
        variables = encoder.init(jax.random.key(seed), ids[:2], mask[:2], train=False)
        # With train=True, BatchNorm takes the statistics of these rows.
        pooled, _ = encoder.apply(variables, ids, mask, train=True, mutable=["averages"])
        shares.append(pooled.std(axis=0).mean() / jnp.sqrt(jnp.square(pooled).mean()))
    return float(jnp.mean(jnp.stack(shares)))


def main(task, preset, *models, data="data"):
    """Prints one line for each model."""
    print(f"{'model':20} {'LayerNorm':>9} {'BatchNorm':>9}")
    for model in models:
        norms = [], ["Encoder.batch_norm=0.9"]
        values = [share(task, model, preset, overrides, data) for overrides in norms]
        print(f"{model:20} {values[0]:9.3f} {values[1]:9.3f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
