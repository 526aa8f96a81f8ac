"""The child process that measures PyTorch: FNet and BERT of `transformers`.

They have the sizes of the experiment: width, layers, heads, dropout, vocabulary, length, batch and
classes. They train with its AdamW, its clipping and cross-entropy. They keep their own embedding,
LayerNorm after the sublayers, pooler, and attention as wide as the model. A row of two texts counts
as two rows. See `child` for the protocol.
"""

# pyright: reportMissingImports=false
# PyTorch is in a separate environment, so it is imported inside functions only.

import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from lra_fnet.benchmark import child, timing
from lra_fnet.errors import UserError
from lra_fnet.machine import allocator, memory

LEARNING_RATE = 5e-4  # constant, about as large as the peaks of the presets
QUERIES = 256  # at a time, in the floor of attention: it need not hold all weights


class Side:
    """A cell that is ready to be timed.

    Attributes:
      facts: "state", sizes, memory, versions; in the state "FAIL", which means that the model does
        not compile, "reason".
    """

    def __init__(self, cell):
        import torch
        import transformers.models.bert.modeling_bert
        import transformers.models.fnet.modeling_fnet

        from lra_fnet.benchmark import cells

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
            **cells.sizes(self.built),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        }
        begun = time.perf_counter()
        try:
            self.round(0.0)
        except Exception as error:
            if not compiled or child.is_out_of_memory(error):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.facts |= {"state": "FAIL", "reason": reason[:300]}
            return
        self.facts["compile_seconds"] = time.perf_counter() - begun if compiled else 0.0
        self._forget_peak()  # the compiler's
        self.round(0.0)
        self.facts["peak_bytes"] = self._peak() - held
        allocator.keep_freed_memory()  # as ours: this makes a peer faster, but it holds more

    def round(self, seconds: float) -> dict[str, float]:
        """Times each call for `seconds`; mixing has a second one, its forward pass."""
        return timing.time_calls(self.calls, seconds)

    def limits(self, seconds: float) -> dict[str, float]:
        """Measures the dense products of a call by themselves; takes about `seconds`."""
        counts = products(self.model, self.built, self.what)
        share = seconds / (2 * max(len(counts), 1))
        floor = sum(
            count * min(self._fastest(m, k, n, batch, share), self._fastest(n, k, m, batch, share))
            for (m, k, n, batch), count in counts.items()
        )
        flops = sum(2 * math.prod(shape) * count for shape, count in counts.items())
        return {"floor_seconds": floor, "flops": flops}

    def _fastest(self, m: int, k: int, n: int, batch: int, seconds: float) -> float:
        """Returns the least seconds of one random product [m, k] x [k, n]."""
        import torch

        dtype = getattr(torch, self.facts["dtype"])
        left, right, out = (
            torch.randn((batch, *shape) if batch > 1 else shape, dtype=dtype, device=self.device)
            for shape in ((m, k), (k, n), (m, n))
        )

        def call(times):
            for _ in range(times):
                torch.matmul(left, right, out=out)
            self._wait()

        return timing.fastest(call, seconds)

    def _wait(self) -> None:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()

    def _forget_peak(self) -> int:
        """Restarts the measurement of the peak; returns the bytes held now."""
        import torch

        if self.device == "cpu":
            return memory.forget_peak()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def _peak(self) -> int:
        import torch

        return memory.peak() if self.device == "cpu" else torch.cuda.max_memory_allocated()


def products(model, built, what: str) -> Counter[tuple[int, int, int, int]]:
    """Returns the dense products of a call: how often [m, k] x [k, n], `batch` at a time.

    They are those of Dense layers and softmax attention; each has two more in the backward pass. A
    product and its transpose count as one, with m >= n.

    Args:
      model: a model of `transformers`, or one of its sublayers.
      built: the experiment with the same sizes.
      what: "train", "infer" or "mixing", as in a Cell.

    Returns:
      Counts of (m, k, n, batch).
    """
    import torch

    encoder, texts = built.model.encoder, built.run.batch_size * built.task.num_inputs
    length, attentions = encoder.mixer_length, 0
    forward: Counter = Counter()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            pooled = "pooler" in name or "classifier" in name
            rows = texts if pooled else texts * length
            forward[rows, module.in_features, module.out_features, 1] += 1
        attentions += type(module).__name__ == "BertSelfAttention"
    width, heads = encoder.dim // encoder.num_heads, texts * encoder.num_heads
    for first in range(0, length, QUERIES) if attentions else ():
        queries = min(QUERIES, length - first)
        forward[queries, width, length, heads] += attentions
        forward[queries, length, width, heads] += attentions
    counts: Counter = Counter()
    for (m, k, n, batch), count in forward.items():
        gradients = [(m, n, k), (k, m, n)] if what != "infer" else []  # dC B^T, A^T dC
        for rows, inner, columns in [(m, k, n), *gradients]:
            counts[max(rows, columns), inner, min(rows, columns), batch] += count
    return counts


def _config(cell, built):
    """Returns the configuration of `transformers` with the experiment's sizes.

    Raises:
      UserError: `transformers` does not have the model.
    """
    import transformers

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
    if cell.model == "fnet":
        return transformers.FNetConfig(**sizes)
    if cell.model == "transformer":
        return transformers.BertConfig(
            **sizes,
            num_attention_heads=encoder.num_heads,
            attention_probs_dropout_prob=encoder.attention_dropout,
            attn_implementation="sdpa",
        )
    raise UserError(f"--peer has the models fnet and transformer, got {cell.model}: leave it out")


def _classifier(cell, built, device: str) -> tuple[Any, Callable]:
    """Returns the model and a call: a training step, or the logits of a batch."""
    import torch
    import transformers

    name = {"fnet": "FNet", "transformer": "Bert"}
    config = _config(cell, built)
    model = getattr(transformers, f"{name[cell.model]}ForSequenceClassification")(config)
    model.to(device)
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
    """Returns one mixing sublayer and two calls: forward and backward, forward alone."""
    import torch
    from transformers.models.bert import modeling_bert

    encoder, config = built.model.encoder, _config(cell, built)
    sublayer: Any = torch.nn.Module()
    if cell.model == "transformer":
        sublayer.attention = modeling_bert.BertSelfAttention(config)
        sublayer.dense = torch.nn.Linear(encoder.dim, encoder.dim)
        sublayer.to(device)

    def mix(x):
        if cell.model == "fnet":
            return torch.fft.fftn(x, dim=(1, 2)).real
        return sublayer.dense(sublayer.attention(x)[0])

    shape = (built.run.batch_size, encoder.mixer_length, encoder.dim)
    x, cotangent = (torch.randn(shape, device=device) for _ in range(2))
    x.requires_grad_()
    autocast = _autocast(built, device)

    def both():
        sublayer.train()
        with autocast:
            y = mix(x)
        y.backward(cotangent.to(y.dtype))
        sublayer.zero_grad()
        x.grad = None

    def forward():
        sublayer.eval()
        with torch.inference_mode(), autocast:
            mix(x)

    return sublayer, both, forward


def _autocast(built, device: str):
    """Returns a context that computes in bfloat16 if Encoder.dtype says so."""
    import torch

    return torch.autocast(device, torch.bfloat16, enabled=built.model.encoder.dtype == "bfloat16")


if __name__ == "__main__":
    child.main(Side)
