"""The work in a program that JAX traced: its operations, and its dense products alone.

The floor of a cell is the time of the dense products of its program alone, each at its own shape.
"""

import functools
import math
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.benchmark import timing

# Each output, or each input of a reduction, is one operation.
ELEMENTWISE = {
    *("add", "add_any", "sub", "mul", "div", "neg", "max", "min", "abs", "pow", "integer_pow"),
    *("square", "sqrt", "rsqrt", "exp", "log", "log1p", "expm1", "tanh", "logistic", "erf"),
    *("sin", "cos"),
}
REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "cumsum", "cumprod", "cummax"}


class Product(NamedTuple):
    """`batch` products [m, k] x [k, n]."""

    m: int
    k: int
    n: int
    batch: int
    dtype: str

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.k * self.n * self.batch


def count(program) -> tuple[float, Counter[Product]]:
    """Counts the operations of a program (a jaxpr), and its dense products.

    A scan counts as often as it runs, another loop once, what a device of a CPU does as often as
    there are devices, which share its cores, and of two branches the one with more operations. A
    Fourier transform of N complex numbers takes 5 N log2 N operations, of real ones half of them,
    as is usual.
    """
    operations, products = 0.0, Counter()
    for equation in program.eqns:
        name, parameters = equation.primitive.name, equation.params
        out: Any = equation.outvars[0].aval if equation.outvars else None
        if name == "dot_general":
            product = _product(equation)
            operations += product.operations
            products[product] += 1
        elif name == "fft":
            operations += _transform(equation.invars[0].aval, out, parameters["fft_lengths"])
        elif name in ELEMENTWISE | REDUCTIONS and jnp.issubdtype(out.dtype, jnp.inexact):
            operations += (equation.invars[0].aval if name in REDUCTIONS else out).size
        inner = [count(each) for each in jax.extend.core.jaxprs_in_params(parameters)]
        if name == "cond":
            inner = [max(inner, key=lambda counted: counted[0])]
        times = parameters["length"] if name == "scan" else 1
        if name == "shard_map" and jax.default_backend() == "cpu":
            times = parameters["mesh"].size
        for more, their_products in inner:
            operations += times * more
            for product, number in their_products.items():
                products[product] += times * number
    return operations, products


def floor_seconds(products: Counter[Product], seconds: float) -> float:
    """Returns the seconds that the products take alone on this device; takes about `seconds`."""
    share = seconds / max(1, len(products))
    return sum(number * _seconds(product, share) for product, number in products.items())


def _product(equation) -> Product:
    left, right = (variable.aval for variable in equation.invars)
    (contracted, _), (batched, _) = equation.params["dimension_numbers"]
    batch = math.prod(left.shape[axis] for axis in batched)
    k = math.prod(left.shape[axis] for axis in contracted)
    return Product(left.size // (batch * k), k, right.size // (batch * k), batch, left.dtype.name)


def _transform(operand, result, lengths) -> float:
    real = not all(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in (operand, result))
    size = max(operand.size, result.size)
    return (2.5 if real else 5.0) * size * math.log2(max(2, math.prod(lengths)))


def _seconds(product: Product, seconds: float) -> float:
    entries = np.random.default_rng(0).standard_normal(2**16, np.float32)
    left, right = (
        jnp.asarray(np.resize(entries, (product.batch, *shape)), product.dtype)
        for shape in ((product.m, product.k), (product.k, product.n))
    )

    def call(times):
        nonlocal left
        left = jax.block_until_ready(multiply(left, right, times))

    return timing.least_seconds(call, seconds)


@functools.partial(jax.jit, donate_argnums=0)
def multiply(left, right, times):
    """Multiplies `times` times in turn: the first entry of each product goes into `left`."""

    def body(_, left):
        product = lax.dot_general(left, right, (((2,), (1,)), ((0,), (0,))))
        first = jnp.tanh(lax.optimization_barrier(product)[:1, :1, :1])
        return lax.dynamic_update_slice(left, first, (0, 0, 0))

    return lax.fori_loop(0, times, body, left)
