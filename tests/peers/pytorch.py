"""PyTorch's side of a benchmark: FNet and BERT of `transformers`.

    python tests/peers/pytorch.py TASK MODEL PRESET LENGTH FILE [NAME=VALUE ...]

measures training and inference of ours, eager and compiled PyTorch in turn, and writes a
benchmark.json for the report. On a CPU ours has as many devices as cores, and one in a second row.

They have the sizes of the experiment: width, layers, heads, dropout, vocabulary, length, batch and
classes. They train with its AdamW, its clipping and cross-entropy. They keep their own embedding,
LayerNorm after the sublayers, pooler, and attention as wide as the model. A row of two texts counts
as two rows.
"""

import dataclasses
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from lra_fnet.benchmark import case, timing, turns
from lra_fnet.machine import allocator, disk, memory

LEARNING_RATE = 5e-4  # constant, about as large as the peaks of the presets
MODELS = {  # configuration and model, imported here so that no cell's memory contains the import
    "fnet": (transformers.FNetConfig, transformers.FNetForSequenceClassification),
    "transformer": (transformers.BertConfig, transformers.BertForSequenceClassification),
}


class Side:
    """A cell that is ready to be timed.

    Attributes:
      facts: "state", sizes, memory, versions.
    """

    def __init__(self, cell):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.what, self.built = cell.what, cell.load(self.device == "cuda")
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.manual_seed(0)
        if self.device == "cuda":  # products of float32 in TF32, as in XLA
            torch.set_float32_matmul_precision("high")
        compiled = cell.side == "compiled"
        if compiled:
            torch.compile(torch.nn.Linear(1, 1))(torch.ones(1, 1))  # imports the compiler
        held = self._forget_peak()
        make = _mixing if cell.what == "mixing" else _classifier
        self.model, *calls = make(cell, self.built, self.device)
        self.calls = [lambda call=call: (call(), self._wait()) for call in calls]
        self.facts: dict[str, Any] = {
            "state": "ok",
            "parameters": sum(p.numel() for p in self.model.parameters()),
            **case.sizes(self.built),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        }
        self.round(0.0)
        self._forget_peak()  # the compiler's
        self.round(0.0)
        self.facts["peak_bytes"] = self._peak() - held
        allocator.keep_freed_memory()  # as ours: this makes a peer faster, but it holds more

    def round(self, seconds: float) -> dict[str, float]:
        """Times each call for `seconds`; mixing has a second one, its forward pass."""
        kinds = ("seconds", "forward_seconds")
        return {
            kind: timing.mean_seconds(call, seconds)
            for kind, call in zip(kinds, self.calls, strict=False)
        }

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _forget_peak(self) -> int:
        """Restarts the measurement of the peak; returns the bytes held now."""
        if self.device == "cpu":
            return memory.forget_peak()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def _peak(self) -> int:
        return memory.peak() if self.device == "cpu" else torch.cuda.max_memory_allocated()


def _model(cell, built) -> Any:
    """Returns the model of `transformers` with the experiment's sizes."""
    encoder = built.model.encoder
    sizes = {
        "vocab_size": built.task.num_ids,
        "hidden_size": encoder.dim,
        "num_hidden_layers": encoder.num_layers,
        "intermediate_size": encoder.mlp_dim,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": encoder.dropout,
        "max_position_embeddings": encoder.mixer_length,
        "type_vocab_size": encoder.num_types,
        "num_labels": built.task.num_classes,
        "pad_token_id": 0,
    }
    if cell.model == "transformer":
        sizes |= {
            "num_attention_heads": encoder.num_heads,
            "attention_probs_dropout_prob": encoder.attention_dropout,
            "attn_implementation": "sdpa",
        }
    config, model = MODELS[cell.model]
    return model(config(**sizes))


def _classifier(cell, built, device: str) -> tuple[Any, Callable]:
    """Returns the model and a call: a training step, or the logits of a batch."""
    model = _model(cell, built).to(device)
    run = torch.compile(model) if cell.side == "compiled" else model
    rng = np.random.default_rng(0)
    rows = built.run.batch_size * built.task.num_inputs
    ids = rng.integers(1, built.task.num_ids, (rows, built.model.encoder.mixer_length))
    labels = rng.integers(0, built.task.num_classes, rows)
    ids, labels = (torch.from_numpy(a).to(device) for a in (ids, labels))
    settings, autocast = built.optimizer, _autocast(built, device)
    if cell.what == "infer":
        model.eval()

        def infer():
            with torch.inference_mode(), autocast:
                run(ids)

        return model, infer

    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,  # on two cores 3 ms where foreach takes 35 (4 million parameters)
    )

    def train():
        with autocast:
            loss = run(ids, labels=labels).loss
        loss.backward()
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return model.train(), train


def _mixing(cell, built, device: str) -> tuple[Any, Callable, Callable]:
    """Returns a module without parameters and two calls of PyTorch's FFT: both passes, forward."""
    encoder = built.model.encoder
    shape = (built.run.batch_size, encoder.mixer_length, encoder.dim)
    x, cotangent = (torch.randn(shape, device=device) for _ in range(2))
    x.requires_grad_()
    autocast = _autocast(built, device)

    def mix():
        with autocast:
            return torch.fft.fftn(x, dim=(1, 2)).real

    def both():
        y = mix()
        y.backward(cotangent.to(y.dtype))
        x.grad = None

    def forward():
        with torch.inference_mode():
            mix()

    return torch.nn.Module(), both, forward


def _autocast(built, device: str):
    """Returns a context that computes in bfloat16 if Encoder.dtype says so."""
    return torch.autocast(device, torch.bfloat16, enabled=built.model.encoder.dtype == "bfloat16")


def main(task: str, model: str, preset: str, length: str, file: str, *bindings: str) -> None:
    """Measures both in turn and writes the results."""
    names = (task, model, preset, int(length))
    group = []
    for what in ("train", "infer"):
        ours = case.Case(what, "ours", *names, label=model, overrides=bindings, seconds=1.0)
        group += [dataclasses.replace(ours, side=side) for side in ("ours", "eager", "compiled")]
        group += [dataclasses.replace(ours, label=f"{model}, 1 device", devices=1)]

    def start(cell):
        return turns.Child(cell, None if cell.side == "ours" else Side)

    def save(results):
        disk.write_json(Path(file), [result.to_json() for result in results])

    turns.run(group, rounds=5, save=save, start=start)


if __name__ == "__main__":
    main(*sys.argv[1:])
