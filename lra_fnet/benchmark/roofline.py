"""The work that a cell must do, and how fast this device does that work alone.

The floor of a cell is the time of its dense products alone, each measured at its own shape. The
roofline is the larger of the floor and of the bytes that must move over the rate of a copy, as in
Williams et al., "Roofline: an insightful visual performance model" (doi:10.1145/1498765.1498785).
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.benchmark import timing
from lra_fnet.experiment import Experiment
from lra_fnet.models.encoder import parameter_count, variable_shapes
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.none import NoMixing
from lra_fnet.training import pipeline

COPY_ENTRIES = 2**26  # float32: 256 MiB, many times a cache


class Product(NamedTuple):
    """`count` times `batch` products [m, k] x [k, n] with m >= n, or their transposes."""

    m: int
    k: int
    n: int
    batch: int = 1
    count: int = 1
    dtype: str = "float32"


def needs(experiment: Experiment, what: str) -> list[Product]:
    """Returns the dense products that a call must do, from the program that JAX traces.

    In training each product C = A B also has dA = dC B^T and dB = A^T dC, if A or B depends on
    parameters. Products that the backward pass computes again do not count. Nor do those of a fixed
    transform, which an FFT replaces, except with Fourier.method = "matmul".

    Args:
      experiment: the model, and Run.batch_size.
      what: "train" or "pretrain" (gradient of the loss), "infer" (forward pass), or "mixing" (one
        mixing sublayer, forward and backward, in its parameters and its input).

    Returns:
      One entry for each shape, with the number of such products.
    """
    variables, forward, inputs = _forward(experiment, what)
    params = variables.pop("params", {})
    program = jax.make_jaxpr(forward)(params, variables, *inputs).jaxpr
    trained = [what != "infer"] * len(jax.tree.leaves(params))
    trained += [False] * len(jax.tree.leaves(variables)) + [what == "mixing"]
    trained += [False] * (len(jax.tree.leaves(inputs)) - 1)
    return products(program, trained)


def products(program, trained: Sequence[bool]) -> list[Product]:
    """Returns the dense products of a program (a jaxpr) and of its gradient.

    Args:
      program: a jaxpr.
      trained: for each input, whether its gradient is wanted; the gradient of none if it is empty.
    """
    counts: Counter = Counter()
    _collect(program, trained or [False] * len(program.invars), 1, counts)
    return _listed(counts)


def _listed(counts: Counter) -> list[Product]:
    return [product._replace(count=count) for product, count in counts.items()]


def flops(counted: Sequence[Product]) -> int:
    """Returns the multiplications and additions of all products."""
    return sum(2 * p.m * p.k * p.n * p.batch * p.count for p in counted)


def bytes_moved(experiment: Experiment, what: str) -> int:
    """Returns the bytes that a call must read and write, however well it is fused.

    With X the residual stream [B, L, D], H the MLP's hidden layer [B, L, mlp_dim] (both in the
    computation's dtype) and P the parameters in float32:
      forward: each of a layer's sublayers (one without an MLP) reads and writes X; a fixed
        transform needs all of its input before its output, so it reads and writes X once more.
      "train" and "pretrain" add: H written, and read in the backward pass; there each sublayer
        reads its input, reads and writes the gradient of X; a transform as before. P is read
        forward and backward, its gradient written and read; P and AdamW's two moments are read and
        written.
      "infer" adds P, read once.
      "mixing": X and the parameters read, X written; backward the gradient of X read and written,
        and, if the mixer has parameters, X and the parameters read, their gradient written.
    Attention weights, embedding, dropout and heads do not count, since caches may hold them. Nor
    does a last layer that computes position 0 alone (`Encoder.last_at_first`), but for parameters.
    """
    encoder = experiment.model.encoder
    tokens = experiment.run.batch_size * experiment.task.num_inputs * encoder.mixer_length
    entry = jnp.dtype(encoder.dtype).itemsize
    stream, hidden = (tokens * size * entry for size in (encoder.dim, encoder.mlp_dim))
    variables, *_ = _forward(experiment, what)
    params = 4 * parameter_count({"params": variables.get("params", {})})
    if what == "mixing":
        return 4 * stream + (stream + 3 * params if params else 0)
    layers = encoder.num_layers - (what != "pretrain" and encoder.last_at_first)
    transforms = sum(mixer.fixed_transform for mixer in encoder.mixers[:layers])
    sublayers = (1 + bool(encoder.mlp_dim)) * layers
    forward = 2 * stream * sublayers + 2 * stream * transforms
    if what == "infer":
        return forward + params
    backward = 3 * stream * sublayers + 2 * stream * transforms
    return forward + backward + 2 * hidden * layers + 10 * params


def measure(products: Sequence[Product], seconds: float) -> float:
    """Returns the seconds that the products take alone on this device; takes about `seconds`.

    Each shape runs in its own program, on random entries, as [m, k] x [k, n] and as its transpose;
    the faster of the two counts.
    """
    share = seconds / (2 * len(products)) if products else 0
    return sum(p.count * min(_fastest(p, swap, share) for swap in (False, True)) for p in products)


def copy_rate() -> float:
    """Returns the bytes a second, read and written together, of x + 1 in place on a large array."""
    x = jnp.zeros(COPY_ENTRIES, jnp.float32)

    def call(times):
        nonlocal x
        x = jax.block_until_ready(_add_one(x, times))

    return 2 * x.nbytes / timing.fastest(call, 0.0)


def _fastest(product: Product, swap: bool, seconds: float) -> float:
    m, n = (product.n, product.m) if swap else (product.m, product.n)
    entries = np.random.default_rng(0).standard_normal(2**16, np.float32)
    left, right = (
        jnp.asarray(np.resize(entries, (product.batch, *shape)), product.dtype)
        for shape in ((m, product.k), (product.k, n))
    )

    def call(times):
        nonlocal left
        left = jax.block_until_ready(_multiply(left, right, times))

    return timing.fastest(call, seconds)


@functools.partial(jax.jit, donate_argnums=0)
def _multiply(left, right, times):
    """Multiplies `times` times in turn: the first entry of each product goes into `left`."""

    def body(_, left):
        product = lax.dot_general(left, right, (((2,), (1,)), ((0,), (0,))))
        first = jnp.tanh(lax.optimization_barrier(product)[:1, :1, :1])
        return lax.dynamic_update_slice(left, first, (0, 0, 0))

    return lax.fori_loop(0, times, body, left)


@functools.partial(jax.jit, donate_argnums=0)
def _add_one(x, times):
    return lax.fori_loop(0, times, lambda _, x: x + 1, x)


def _forward(experiment: Experiment, what: str) -> tuple[dict[str, Any], Callable, tuple]:
    """Returns the variables' shapes, (params, others, *inputs) -> outputs, and the inputs."""
    batch, encoder = experiment.run.batch_size, experiment.model.encoder
    encoder = encoder.clone(mixers=tuple(map(_without_fft, encoder.mixers)))
    if what == "mixing":
        module = encoder.mixers[0]
        shape = (batch, encoder.mixer_length)
        inputs: tuple = (
            jax.ShapeDtypeStruct((*shape, encoder.dim), encoder.dtype),
            jax.ShapeDtypeStruct(shape, bool),
        )
    else:
        module = experiment.model.clone(encoder=encoder)
        inputs = experiment.blank_inputs(batch)
    variables = variable_shapes(module, *inputs)
    if what == "pretrain":  # its loss needs products at masked tokens alone
        objective = dataclasses.replace(experiment, model=module).objective
        inputs = (_batch(experiment, batch),)

    def forward(params, others, *inputs):
        key, given = jax.random.key(0), {"params": params, **others}
        if what == "pretrain":
            return objective.outputs(given, inputs[0], key)[0]
        return module.apply(given, *inputs, train=what != "infer", rngs={"dropout": key})

    return variables, forward, inputs


def _batch(experiment: Experiment, rows: int) -> pipeline.Batch:
    """Returns the shapes of a batch of stored rows."""
    texts = experiment.task.row_shape
    fields: list[Any] = [
        jax.ShapeDtypeStruct((rows, *texts), experiment.task.value_dtype),
        jax.ShapeDtypeStruct((rows, *texts[:-1]), jnp.int32),
        *[jax.ShapeDtypeStruct((rows,), jnp.int32)] * 2,
        jax.ShapeDtypeStruct((rows,), bool),
    ]
    return pipeline.Batch(*fields)


def _without_fft(mixer: Mixer) -> Mixer | Callable[..., Mixer]:
    """Returns the mixer, or no mixing instead of a fixed transform that a fast algorithm does."""
    if mixer.fixed_transform and mixer.growth[0] < 2:
        return functools.partial(NoMixing, identity=True)
    return mixer


def _collect(program, trained: Sequence[bool], times: int, counts: Counter) -> list[bool]:
    """Adds the products of a program, and of its gradient, to `counts`.

    Args:
      program: a jaxpr.
      trained: for each input, whether its gradient is wanted.
      times: how often the program runs.
      counts: number of each Product, whose own count stays 1.

    Returns:
      For each output, whether it depends on a trained input.
    """
    live = {variable for variable, is_live in zip(program.invars, trained, strict=True) if is_live}

    def lives(variable):
        return not isinstance(variable, jax.extend.core.Literal) and variable in live

    for equation in program.eqns:
        name, into = equation.primitive.name, [lives(v) for v in equation.invars]
        if name == "dot_general":
            _count(equation, into, times, counts)
        if name == "scan":
            outs = _collect_scan(equation, into, times, counts)
        elif name == "cond":
            outs = _collect_cond(equation.params, into, times, counts)
        else:
            out = any(into) and name != "stop_gradient"
            outs = [out] * len(equation.outvars)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                same = len(inner.invars) == len(into)
                outs = _collect(inner, into if same else [out] * len(inner.invars), times, counts)
        for variable, is_live in zip(equation.outvars, outs, strict=True):
            if is_live and jnp.issubdtype(variable.aval.dtype, jnp.inexact):
                live.add(variable)
    return [lives(v) for v in program.outvars]


def _collect_scan(equation, trained: Sequence[bool], times: int, counts: Counter) -> list[bool]:
    """Adds the products of a scan; a carry that a step makes trained is so in all steps.

    The inputs are constants, carries and stacked inputs of the steps, the outputs carries and
    stacked outputs. Only what is stacked has an axis more than in the body.
    """

    def same(outside, inside):
        return [a.aval.ndim == b.aval.ndim for a, b in zip(outside, inside, strict=True)]

    body, length = equation.params["jaxpr"].jaxpr, equation.params["length"]
    carries = sum(same(equation.outvars, body.outvars))
    first = sum(same(equation.invars, body.invars)) - carries
    carry = slice(first, first + carries)
    into = list(trained)
    while True:
        steps: Counter = Counter()
        outs = _collect(body, into, times * length, steps)
        later = [a or b for a, b in zip(into[carry], outs[:carries], strict=True)]
        if later == into[carry]:
            counts.update(steps)
            return outs
        into[carry] = later


def _collect_cond(params, trained: Sequence[bool], times: int, counts: Counter) -> list[bool]:
    """Adds the products of the branch that has the most operations."""
    outs, found = [], []
    for branch in params["branches"]:
        found.append(Counter())
        outs.append(_collect(branch.jaxpr, trained[1:], times, found[-1]))  # the first says which
    counts.update(max(found, key=lambda branch: flops(_listed(branch))))
    return [any(column) for column in zip(*outs, strict=True)]


def _count(equation, trained: Sequence[bool], times: int, counts: Counter) -> None:
    """Adds a dot_general and the products of its gradient."""
    left, right = (v.aval for v in equation.invars)
    (contracted, _), (batched, _) = equation.params["dimension_numbers"]
    batch = math.prod(left.shape[axis] for axis in batched)
    k = math.prod(left.shape[axis] for axis in contracted)
    m = left.size // (batch * k)
    n = right.size // (batch * k)
    sizes = [(m, k, n)]
    sizes += [(m, n, k)] if trained[0] else []  # dC B^T
    sizes += [(k, m, n)] if trained[1] else []  # A^T dC
    for m, k, n in sizes:
        counts[Product(max(m, n), k, min(m, n), batch, 1, left.dtype.name)] += times
