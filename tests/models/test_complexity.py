"""Each mixer's operations and largest array at 4,096 and 8,192 tokens, forward and backward.

They are counted in the program that JAX traces, so they are exact and the same on every machine;
nothing is compiled.
"""

import functools
import math

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from arrays import largest

from lra_fnet import config, experiment

LENGTHS = (4096, 8192)
SIZES = ["DATASET=full", "Encoder.dim=16", "Encoder.num_heads=2", "Encoder.qkv_dim=16"]
SIZES += ["Encoder.num_layers=2", "Encoder.attention_dropout=0.1", "Encoder.pooling=mean"]
SIZES += ["Encoder.positions=learned"]
NOT_RANDOM = "('dense', 'factorized_dense', 'factorized_random', 'attention')"
CASES = {model: (model, []) for model in config.known("models")} | {
    "naive": ("transformer", ["Attention.implementation=naive"]),
    "local, overlapping": ("local", ["LocalAttention.neighbours=1"]),
    "longformer, two global": ("longformer", ["Longformer.num_global=2"]),
    "linformer, not shared": ("linformer", ["Linformer.sharing=none"]),
    # With more landmarks the inverse, which does not grow, is a large part of the operations.
    "nystromformer": ("nystromformer", ["Nystrom.landmarks=16"]),
    "mega, chunks": ("mega", ["Mega.chunk=128"]),
    "mega, chunks of several blocks": ("mega", ["Mega.chunk=256", "Mega.block_size=64"]),
    "performer, relu": ("performer", ["Performer.kernel=relu"]),
    "sinkhorn, small blocks": ("sinkhorn", ["Sinkhorn.block_size=2"]),
    "sparse, first": ("sparse", ["SparseAttention.global_first=True"]),
    "mamba, parallel": ("mamba", ["Mamba.method=associative"]),
    "strided": ("sparse", ["SparseAttention.pattern=strided"]),
    "synthesizer, not random": ("synthesizer", [f"Synthesizer.kinds={NOT_RANDOM}"]),
}


def operations(jaxpr):
    """Floating-point operations of a program: products and FFTs exactly, one an entry elsewhere."""
    return sum(map(_operations, jaxpr.eqns))


def _operations(equation):
    name, out = equation.primitive.name, equation.outvars
    inner = [operations(j) for j in jax.extend.core.jaxprs_in_params(equation.params)]
    if name == "scan":
        return equation.params["length"] * sum(inner)
    if name == "cond":
        return max(inner)
    assert name != "while", "a loop whose length the program does not show"
    if inner:
        return sum(inner)
    size = sum(math.prod(getattr(v.aval, "shape", ())) for v in out)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2 * size * math.prod(shape[axis] for axis in contracted)
    if name == "fft":
        return 5 * size * math.log2(math.prod(equation.params["fft_lengths"]))
    if name == "sort":
        return size * math.log2(equation.outvars[0].aval.shape[equation.params["dimension"]])
    return size


def program(case, length):
    """The last layer's mixer, and the program of its gradient in the weights and in x."""
    model, sets = CASES[case]
    sets = [*SIZES, f"MAX_LEN={length}", *sets]
    mixer = experiment.load("listops", model, "paper", sets).model.encoder.mixers[-1]
    x = jax.ShapeDtypeStruct((1, length, 16), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), bool)
    init = functools.partial(mixer.init, jax.random.key(0), train=False)
    variables = jax.eval_shape(init, x, mask)
    params = variables.pop("params", {})

    def loss(params, x, constants, mask):
        rngs = {"dropout": jax.random.key(0)}
        y = mixer.apply({"params": params, **constants}, x, mask, train=True, rngs=rngs)
        return jnp.square(y).sum()

    return mixer, jax.make_jaxpr(jax.grad(loss, (0, 1)))(params, x, variables, mask).jaxpr


@pytest.mark.parametrize("case", CASES)
def test_operations_and_memory_grow_as_the_mixer_declares(case):
    (mixer, short), (_, long) = (program(case, length) for length in LENGTHS)
    time, memory = mixer.growth
    if case == "sinkhorn":  # at these lengths its sort is a small part of all operations
        time, memory = 1.5, 1
    ratio = operations(long) / operations(short)
    assert ratio <= 2**time * 1.15  # log(8192) / log(4096) = 1.08
    assert largest(long) <= 2**memory * 1.05 * largest(short)
    if memory < 2:
        # No array of L x L entries, at any block size: width x L times a constant.
        assert largest(long) < LENGTHS[1] ** 2 / 4
    if case != "sinkhorn":
        assert ratio > 2 ** (time - 0.2)  # no faster growth is declared either
