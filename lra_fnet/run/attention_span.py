"""LRA's required attention span (arXiv:2011.04006, Sec. 2.3) of a trained attention model.

The span of a head is the mean distance, in positions, between a query token and the tokens that it
attends to, weighted by its attention. LRA averages it over all attention modules of its best
Transformer and over 1,000 random rows of the validation split, and so does this: over the queries
of a text first, then over texts, then over heads and layers. Padding is neither query nor key; CLS
is the position that it has.
"""

from collections.abc import Callable
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.machine.progress import Bar
from lra_fnet.models.encoder import Encoder
from lra_fnet.models.heads import Classifier
from lra_fnet.models.mixers import attention
from lra_fnet.run import folder as run_folder
from lra_fnet.run import job
from lra_fnet.tasks import Arrays
from lra_fnet.train import pipeline, step
from lra_fnet.train.checkpoint import Checkpoints

ROWS = 1000
_WEIGHTS = 2**24  # attention weights that are held at a time: 64 MiB


def span(folder: Path, rows: int = ROWS) -> dict:
    """Measures a run's span on rows of validation; writes attention_span.json into its folder.

    The weights are those of the checkpoint best on validation, computed in float32.

    Args:
      folder: a run folder.
      rows: how many, at random but the same ones each time; all if there are no more.

    Returns:
      The object of attention_span.json: {"mean", "uniform" (the span of equal weights on the same
      rows), "layers": [{"layer", "mean", "heads": [...]}], "step", "split", "rows", "data_sha256"
      and what made it}.

    Raises:
      UserError: no complete run with its checkpoint, another configuration or other data than the
        run's, or a model without softmax attention over all tokens.
    """
    if rows < 1:
        raise UserError(f"--attention-span expects at least 1 row, got {rows}")
    asked = job.of_folder(folder)
    built = asked.load()
    layers = attention_layers(built.model.encoder)
    if not layers:
        raise UserError(
            f"{folder}: the attention span is of softmax attention over all tokens, "
            f"{asked.model} has none: name a run of transformer or fnet_hybrid"
        )
    result = disk.read_json(folder / "result.json")
    kept = folder / "checkpoints" / "best"
    if result is None or result["state"] != "complete" or not kept.is_dir():
        raise UserError(f"{folder}: no complete run with its checkpoint; train it first")
    with run_folder.lock(folder):
        data = built.task.prepare(asked.data, source=asked.source)
        if differences := job.differences(result, built, data):
            raise UserError(f"{folder}: not the run's any more: {'; '.join(map(str, differences))}")
        state = restore(folder, step.initial_state(built, asked.seed))
        split = built.task.splits[1]
        arrays = data.arrays(split)
        chosen = np.sort(np.random.default_rng(0).permutation(len(arrays.labels))[:rows])
        arrays = Arrays(*(column[chosen] for column in arrays))
        variables = {"params": state.params, **state.constants}
        spans, uniform = measure(built.model, variables, arrays, built.run.eval_batch_size)
        found = {
            "mean": float(np.mean(list(spans.values()))),
            "uniform": uniform,
            "layers": [
                {"layer": layer, "mean": float(spans[layer].mean()), "heads": spans[layer].tolist()}
                for layer in layers
            ],
            "step": int(state.step),
            "split": split,
            "rows": len(chosen),
            "data_sha256": data.fingerprint,
            **run_folder.provenance(),
        }
        disk.write_json(folder / "attention_span.json", found)
    return found


def attention_layers(encoder: Encoder) -> list[int]:
    """The layers that mix by softmax attention over all tokens."""
    layers = range(encoder.num_layers)
    return [n for n in layers if issubclass(encoder.mixer_class(n), attention.Attention)]


def restore(folder: Path, like: step.TrainState) -> step.TrainState:
    """The state of the run that was best on validation."""
    checkpoints = Checkpoints(folder)
    try:
        return checkpoints.restore("best", like)
    finally:
        checkpoints.close()


def measure(
    model: Classifier, variables: dict, arrays: Arrays, batch_size: int
) -> tuple[dict[int, np.ndarray], float]:
    """The span of each attention layer's heads, float64 [H], and that of equal weights.

    Texts without a token have no span and do not count.
    """
    spans_of = make_spans(model)
    totals: dict[int, np.ndarray] = {}
    uniform, texts, done = 0.0, 0, 0
    with jax.default_matmul_precision("highest"), Bar("attention span", len(arrays.labels)) as bar:
        for batch in pipeline.eval_batches(arrays, min(batch_size, len(arrays.labels))):
            found, equal, tokens = jax.device_get(spans_of(variables, batch))
            counted = (tokens > 0) & np.repeat(batch.valid, len(tokens) // len(batch.valid))
            for layer, spans in found.items():
                totals[layer] = totals.get(layer, 0) + spans[counted].sum(0, dtype=np.float64)
            uniform += equal[counted].sum(dtype=np.float64)
            texts += int(counted.sum())
            done += int(batch.valid.sum())
            bar.update(done)
    return {layer: total / texts for layer, total in totals.items()}, float(uniform / texts)


def make_spans(model: Classifier) -> Callable:
    """The jitted (variables, batch) -> spans, span of equal weights [T], tokens [T].

    Spans are {layer: float32 [T, H]}; T counts texts: twice the rows where a row has two. The model
    computes as it was trained to, but in float32, and attends in blocks.
    """
    encoder = model.encoder.clone(dtype="float32", remat=False, parent=None)
    model = model.clone(encoder=encoder, parent=None)

    @jax.jit
    def spans_of(variables, batch):
        found, masks = {}, []

        def intercept(call, args, kwargs, context):
            mixer = context.module
            if not isinstance(mixer, attention.Attention) or context.method_name != "attend":
                return call(*args, **kwargs)
            query, key, value, mask = args
            found[mixer.layer] = spans(query, key, mask)
            masks.append(mask)
            block_size = _block_size(query.shape)
            return attention.blockwise(query, key, value, mask, block_size=block_size)

        ids, mask = pipeline.tokens(batch.values, batch.lengths, model.zero_is_padding)
        with nn.intercept_methods(intercept):
            model.apply(variables, ids, mask, train=False)
        mask = masks[0]
        equal = jnp.zeros((*mask.shape, 1, 1))
        return found, spans(equal, equal, mask)[:, 0], mask.sum(1)

    return spans_of


def spans(query, key, mask) -> jax.Array:
    """Mean distance that each head attends over, for a block of queries at a time.

    Args:
      query: [T, L, H, K].
      key: [T, L, H, K].
      mask: bool [T, L], True at real tokens.

    Returns:
      float32 [T, H]: the mean over a text's real tokens; 0 where it has none.
    """
    texts, length, heads, width = query.shape
    size = _block_size(query.shape)
    num_blocks = -(-length // size)
    scaled = jnp.pad(query * width**-0.5, ((0, 0), (0, num_blocks * size - length), (0, 0), (0, 0)))
    blocks = jnp.moveaxis(scaled.reshape(texts, num_blocks, size, heads, width), 1, 0)
    keys = jnp.arange(length)

    def of_query(logits, position):
        """[T, H, L] and [] -> [T, H]."""
        distance = jnp.abs(position - keys).astype(logits.dtype)[:, None]
        return attention.weigh(logits, mask[:, None], distance, rate=0.0, rng=None)[..., 0]

    def of_block(numbered):
        number, block = numbered
        logits = jnp.einsum("tqhk,tmhk->qthm", block, key)
        return jax.vmap(of_query)(logits, number * size + jnp.arange(size))

    found = jax.lax.map(of_block, (jnp.arange(num_blocks), blocks))
    found = found.reshape(num_blocks * size, texts, heads)[:length]
    total = jnp.where(mask.T[:, :, None], found, 0).sum(0)
    return total / jnp.maximum(mask.sum(1), 1)[:, None]


def _block_size(shape) -> int:
    """Queries at a time for [T, L, H, K], so that at most _WEIGHTS weights are held."""
    texts, length, heads, _ = shape
    return max(1, min(length, _WEIGHTS // (texts * length * heads)))


def table(found: dict) -> Table:
    """What `lra-fnet evaluate --attention-span` prints."""
    table = Table("layer", "mean", "heads", title="required attention span, in tokens")
    for layer in found["layers"]:
        heads = ", ".join(f"{head:.1f}" for head in layer["heads"])
        table.add_row(str(layer["layer"]), f"{layer['mean']:.1f}", heads)
    table.add_row("all", f"{found['mean']:.1f}", f"equal weights: {found['uniform']:.1f}")
    return table
