"""LRA's required attention span (arXiv:2011.04006, Sec. 2.3) of a trained attention model.

The span of a head is the mean distance, in positions, between a query token and the tokens that it
attends to, weighted by its attention. LRA averages it over all attention modules of its best
Transformer and over 1,000 random rows of the validation split. So does this module: first over the
queries of a text, then over texts, then over heads and layers. Padding counts neither as query nor
as key; CLS counts at its position.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.machine.progress import Bar
from lra_fnet.machine.terminal import Fitted
from lra_fnet.models.heads import encode
from lra_fnet.models.mixers import attention
from lra_fnet.objective import Classify
from lra_fnet.run import provenance
from lra_fnet.run.folder import SPAN, Layer, Span
from lra_fnet.run.model import load_run
from lra_fnet.tasks import Arrays
from lra_fnet.training import pipeline

_WEIGHTS = 2**24  # attention weights that are held at a time: 64 MiB


def measure_run(
    folder: Path, rows: int, imports: Sequence[str] = (), data: Path | None = None
) -> Span:
    """Measures a run's span on validation rows and writes attention_span.json into its folder.

    The weights are those of the checkpoint best on validation, computed in float32.

    Args:
      folder: a run folder.
      rows: number of rows, a fixed random choice; all rows if there are fewer.
      imports: see `load_run`.
      data: see `TrainedRun.data`.

    Raises:
      UserError: see `load_run`; the data differs from the run's; the model has no softmax
        attention over all tokens; the file cannot be written.
    """
    run = load_run(folder, imports=imports)
    if not any(isinstance(mixer, attention.Attention) for mixer in run.model.encoder.mixers):
        raise UserError(
            f"{folder}: the attention span needs softmax attention over all tokens, and no mixer "
            f"of {run.result.model} computes it: choose a run of another model"
        )
    arrays = run.data(data).arrays(run.task.splits[1])
    chosen = np.sort(np.random.default_rng(0).permutation(len(arrays.labels))[:rows])
    given = run.variables, arrays.take(chosen), run.experiment.run.eval_batch_size
    layers, uniform = measure(Classify(run.task, run.model), *given)
    span = Span(
        mean=float(np.mean(list(layers.values()))),
        uniform=uniform,
        layers=tuple(
            Layer(layer, float(heads.mean()), tuple(heads.tolist()))
            for layer, heads in sorted(layers.items())
        ),
        rows=len(chosen),
    )
    facts = dataclasses.asdict(span) | dataclasses.asdict(provenance.of_process())
    disk.write_json(folder / SPAN, facts, "--run")
    return span


def measure(
    objective: Classify, variables: dict, arrays: Arrays, batch_size: int
) -> tuple[dict[int, np.ndarray], float]:
    """Returns the span of each attention layer's heads, float64 [H], and that of equal weights.

    Texts without a token have no span and do not count.
    """
    measure_batch = make_spans(objective)
    measured, rows = [], len(arrays.labels)
    with jax.default_matmul_precision("highest"), Bar("attention span", rows) as bar:
        for batch in pipeline.eval_batches(arrays, min(batch_size, rows)):
            *batch_spans, tokens = jax.device_get(measure_batch(variables, batch))
            counted = (tokens > 0) & np.repeat(batch.valid, len(tokens) // len(batch.valid))
            measured.append(jax.tree.map(operator.itemgetter(counted), batch_spans))
            bar.update(min(rows, len(measured) * len(batch.valid)))
    layers, uniform = jax.tree.map(
        lambda *parts: np.concatenate(parts).mean(0, dtype=np.float64), *measured
    )
    return layers, float(uniform)


def make_spans(objective: Classify) -> Callable:
    """Returns the jitted (variables, batch) -> spans, span of equal weights [T], tokens [T].

    Spans are {layer: float32 [T, H]}. T is the number of texts: twice the rows for two texts per
    row. The model computes as in training, but in float32 and with attention in blocks.
    """
    encoder = objective.model.encoder.clone(dtype="float32", remat=False, parent=None)
    model = objective.model.clone(encoder=encoder, parent=None)

    @jax.jit
    def measure_batch(variables, batch):
        layers, masks = {}, []

        def intercept(call, args, kwargs, context):
            mixer = context.module
            if not isinstance(mixer, attention.Attention) or context.method_name != "attend":
                return call(*args, **kwargs)
            query, key, value, mask = args
            layers[mixer.layer] = spans(query, key, mask)
            masks.append(mask)
            block_size = _block_size(query.shape)
            return attention.blockwise(query, key, value, mask, block_size=block_size)

        with nn.intercept_methods(intercept):
            encode(model, variables, *objective.task.tokens(batch.values, batch.lengths))
        mask = masks[0]
        equal = jnp.zeros((*mask.shape, 1, 1))
        return layers, spans(equal, equal, mask)[:, 0], mask.sum(1)

    return measure_batch


def spans(query, key, mask) -> jax.Array:
    """Returns the mean distance over which each head attends, one block of queries at a time.

    Args:
      query: [T, L, H, K].
      key: [T, L, H, K].
      mask: bool [T, L], True at real tokens.

    Returns:
      float32 [T, H]: the mean over a text's real tokens; 0 where it has none.
    """
    length = query.shape[1]
    positions = jnp.arange(length)

    def distances(numbered):
        number, row = numbered
        logits = jnp.einsum("thk,tmhk->thm", row, key)
        value = jnp.abs(number - positions).astype(logits.dtype)[None, :, None]
        return attention.weigh(logits, mask[:, None], value, rate=0.0, rng=None)[..., 0]

    queries = (positions, jnp.moveaxis(query * query.shape[-1] ** -0.5, 1, 0))
    means = jax.lax.map(distances, queries, batch_size=_block_size(query.shape))
    total = jnp.where(mask.T[..., None], means, 0).sum(0)
    return total / jnp.maximum(mask.sum(1), 1)[:, None]


def _block_size(shape) -> int:
    """Returns the queries at a time for [T, L, H, K] that need at most _WEIGHTS weights."""
    texts, length, heads, _ = shape
    return max(1, min(length, _WEIGHTS // (texts * length * heads)))


def table(result: Span) -> Fitted:
    """Returns the table that `lra-fnet span` prints."""
    rows = [
        [str(layer.layer), f"{layer.mean:.1f}", ", ".join(f"{head:.1f}" for head in layer.heads)]
        for layer in result.layers
    ]
    rows.append(["all", f"{result.mean:.1f}", f"equal weights: {result.uniform:.1f}"])
    return Fitted(["layer", "mean", "heads"], rows, title="required attention span, in tokens")
