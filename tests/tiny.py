"""A tiny experiment and its rows."""

import dataclasses

import numpy as np

from lra_fnet import experiment
from lra_fnet.tasks import Arrays

TINY = (
    "Encoder.dim=8",
    "Encoder.num_heads=2",
    "Encoder.qkv_dim=8",
    "Encoder.mlp_dim=16",
    "Encoder.num_layers=1",
    "Head.mlp_dim=8",
    "MAX_LEN=12",
    "Run.batch_size=4",
    "Run.num_steps=12",
    "Run.eval_every=5",
    "Run.save_every=4",
    "Run.save_seconds=0",
    "Run.log_every=3",
    "Run.eval_batch_size=4",
    "Optimizer.warmup=2",
    "Encoder.dropout=0.1",
    "Encoder.attention_dropout=0.1",
)


def tiny(model="fnet", *settings, denoise=False, **run):
    """Loads the experiment with more bindings; `run` replaces fields of Run."""
    built = experiment.load("listops", model, "cpu", (*TINY, *settings), denoise=denoise)
    return dataclasses.replace(built, run=dataclasses.replace(built.run, **run))


def rows(n, seed=0):
    """Returns n random rows of 3 to 12 tokens whose label is their first token."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 13, n).astype(np.int32)
    values = rng.integers(0, 15, (n, 12)).astype(np.uint8)
    values[np.arange(12) >= lengths[:, None]] = 0
    return Arrays(values, lengths, values[:, 0].astype(np.int32) % 10)
