"""Each mixer's operations and largest array at 4,096 and 8,192 tokens, forward and backward.

Counted in the program that JAX traces, so exact and the same on every machine; nothing is compiled.
"""

import dataclasses
import functools
import math

import gin
import jax
import jax.extend
import jax.numpy as jnp
import pytest
from arrays import largest
from paths import ROOT

from lra_fnet.models.encoder import Encoder
from lra_fnet.models.mixer import Mixer

MODELS = sorted(path.stem for path in (ROOT / "gin/models").glob("*.gin"))
LENGTHS = (4096, 8192)
# Powers of the length in the papers: of the time, and of the memory. A logarithm counts as 0.
ORDERS = {
    "bigbird": (1, 1),
    "dct": (1, 1),
    "ff_only": (1, 1),
    "fnet": (1, 1),
    "fnet_1d": (1, 1),
    "fnet_hybrid": (2, 1),  # its attention
    "fnet_mat": (2, 2),
    "fnet_original": (1, 1),
    "hadamard": (1, 1),
    "hartley": (1, 1),
    "linear": (2, 2),
    "linear_transformer": (1, 1),
    "linformer": (1, 1),
    "local": (1, 1),
    "longformer": (1, 1),
    "performer": (1, 1),
    "random": (2, 2),
    "reformer": (1, 1),
    "sinkhorn": (1.5, 1),  # L b + L^2 / b at blocks of b: its sort weighs every pair of blocks
    "sparse": (1.5, 1.5),
    "synthesizer": (2, 2),
    "transformer": (2, 1),  # its weights are made block by block
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


def program(model, length):
    """The gradient of the last layer's mixer in the weights and in x, one text, two heads."""
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config_file(str(ROOT / f"gin/models/{model}.gin"))
        gin.parse_config("Encoder.mixers = %MIXERS")
    sizes = {"vocab_size": 12, "max_len": length, "dim": 16, "num_heads": 2, "qkv_dim": 16}
    sizes |= {"mlp_dim": 16, "num_layers": 2, "dropout": 0.0, "attention_dropout": 0.1}
    kinds = {"inputs": "tokens", "positions": "sinusoidal", "pooling": "mean", "dtype": "float32"}
    kinds |= {"embedding": "lra", "num_types": 1}
    block = {"norm": "pre", "norm_epsilon": 1e-6, "remat": False}
    mixer = Encoder(**sizes, **kinds, **block).make_mixer(1)(parent=None)
    assert {field.name for field in dataclasses.fields(Mixer)} <= set(dir(mixer))
    x = jax.ShapeDtypeStruct((1, length, 16), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), bool)
    init = functools.partial(mixer.init, jax.random.key(0), train=False)
    variables = jax.eval_shape(init, x, mask)
    params = variables.pop("params", {})

    def loss(params, x, constants, mask):
        rngs = {"dropout": jax.random.key(0)}
        y = mixer.apply({"params": params, **constants}, x, mask, train=True, rngs=rngs)
        return jnp.square(y).sum()

    return jax.make_jaxpr(jax.grad(loss, (0, 1)))(params, x, variables, mask).jaxpr


@pytest.mark.parametrize("model", MODELS)
def test_operations_and_memory_grow_as_the_paper_says(model):
    time, memory = ORDERS[model]
    short, long = (program(model, length) for length in LENGTHS)
    assert operations(long) <= 2**time * 1.15 * operations(short)  # log(8192) / log(4096) = 1.08
    assert largest(long) <= 2**memory * 1.05 * largest(short)
    if memory < 2:
        # No array of L x L entries, whatever the block sizes are: width x L times a constant.
        assert largest(long) < LENGTHS[1] ** 2 / 4


@pytest.mark.parametrize("model", ["transformer", "linear", "fnet_mat", "sparse"])
def test_the_count_sees_what_grows_faster(model):
    """Or the test above would hold for anything."""
    time, _ = ORDERS[model]
    short, long = (program(model, length) for length in LENGTHS)
    assert operations(long) > 2 ** (time - 0.2) * operations(short)
