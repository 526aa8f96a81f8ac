"""How large the residual stream, the mixer's output and the MLP's output are, layer by layer."""

import re
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from lra_fnet.models.encoder import MLP, Block
from lra_fnet.models.heads import encode
from lra_fnet.models.kernels import fastest
from lra_fnet.models.mixer import Mixer
from lra_fnet.objective import Objective
from lra_fnet.tasks import Arrays
from lra_fnet.training import pipeline
from lra_fnet.training.slices import rows_at_once
from lra_fnet.training.step import wait_for

ROWS = 32  # at most, of training rows
DECISION = "rows of rms"
PLACE = re.compile(r"(?:.*/)?block_(\d+)/(?:(mixer|mlp)/)?rms")


def make_meter(
    objective: Objective, arrays: Arrays, seed: int, batch_size: int, mesh: Mesh
) -> Callable[[dict], dict[str, list[float]]]:
    """Returns the function variables -> {"residual", "mixer", "mlp"}, each a number for each layer.

    The numbers are root mean squares over all positions, padding included, of what a block gets
    and of what its sublayers return, without dropout. They are of a fixed batch of training rows,
    as many as the scorer of this batch_size takes at a time on a device, but at most ROWS: of the
    last block the scorer may compute position 0 only, and this computes all. A run that resumes on
    other devices keeps its rows.

    Args:
      objective: the model.
      arrays: the training rows.
      seed: of the run; chooses the rows.
      batch_size: Run.eval_batch_size.
      mesh: the devices; each computes the same.
    """
    share = -(-batch_size // mesh.size)
    row = arrays.values.shape[1:]

    def choose():
        return min(ROWS, rows_at_once(objective.model, share, row, train=False))

    before = [rows for what, rows in fastest.made().items() if what.startswith(DECISION)]
    rows = fastest.decide(DECISION, lambda: (before or [choose()])[-1], range(1, ROWS + 1))
    batch = pipeline.train_batches(arrays, seed, 0, 1, rows, 1)
    batch = pipeline.spread(jax.tree.map(lambda x: x[0], batch), mesh, pipeline.WHOLE)

    def forward(variables, batch):
        ids, mask = objective.task.tokens(batch.values, batch.lengths)
        with nn.intercept_methods(_sow):
            _, sown = encode(objective.model, variables, ids, mask, mutable=["intermediates"])
        return flatten_dict(sown["intermediates"], sep="/")

    measure = jax.jit(pipeline.per_device(forward, mesh, pipeline.WHOLE, pipeline.WHOLE))

    def meter(variables):
        sown = measure(variables, batch)
        wait_for(sown)
        numbers: dict[str, dict[int, float]] = {"residual": {}, "mixer": {}, "mlp": {}}
        for path, values in sown.items():
            if match := PLACE.fullmatch(path):
                value = float(np.asarray(values[-1]))
                numbers[match[2] or "residual"][int(match[1])] = float(f"{value:.6g}")
        return {
            name: [layers[layer] for layer in sorted(layers)] for name, layers in numbers.items()
        }

    return meter


def _sow(call, args, kwargs, context):
    """Sows the rms of a block's input and of a sublayer's output (`nn.intercept_methods`)."""
    y = call(*args, **kwargs)
    if context.method_name == "__call__" and isinstance(context.module, Block | Mixer | MLP):
        x = args[0] if isinstance(context.module, Block) else y
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        context.module.sow("intermediates", "rms", jnp.sqrt(jnp.square(x).mean()))
    return y
