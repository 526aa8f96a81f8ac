"""What the tests of numbers share: random inputs, comparisons, the size of a program."""

import functools
import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

new_key = functools.partial(jax.random.key, impl="rbg")  # compiles faster than the default

# An encoder but for its mixers.
TINY = {
    "inputs": "tokens",
    "embedding": "lra",
    "num_types": 1,
    "vocab_size": 12,
    "max_len": 8,
    "dim": 6,
    "num_heads": 2,
    "qkv_dim": 4,
    "mlp_dim": 10,
    "num_layers": 1,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "positions": "sinusoidal",
    "norm": "pre",
    "norm_epsilon": 1e-6,
    "pooling": "mean",
    "dtype": "float32",
    "remat": False,
}


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


def float64(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def assert_close(got, want, tolerance=2e-5):
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


def largest(jaxpr):
    """Entries of the largest array of a program."""
    found = [0]
    for equation in jaxpr.eqns:
        variables = (*equation.invars, *equation.outvars)
        found += [math.prod(getattr(v.aval, "shape", ())) for v in variables]
        found += map(largest, jax.extend.core.jaxprs_in_params(equation.params))
    return max(found)


def shapes_of(module, *inputs):
    """What `init` returns, as shapes: nothing is compiled."""
    return jax.eval_shape(functools.partial(module.init, train=False), new_key(0), *inputs)


def inputs_of(mixer, length=None):
    """Inputs [1, L, D] of a mixer, and a mask without padding."""
    length = length or mixer.max_len
    return jnp.ones((1, length, mixer.dim)), jnp.ones((1, length), bool)


def initial(module, *inputs, seed=0):
    """What `init` returns, by one program: called eagerly, each operation is compiled alone."""
    return jax.jit(functools.partial(module.init, train=False))(new_key(seed), *inputs)


def applied(module, variables, *inputs, train=False, **more):
    """What `apply` returns, by one program."""
    return jax.jit(functools.partial(module.apply, train=train))(variables, *inputs, **more)


def random_variables(module, *inputs):
    """Variables of `module` with every parameter random, scales and biases too (NumPy, float32)."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        scale = any(getattr(key, "key", None) == "scale" for key in path)
        return (scale + 0.4 * rng.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes_of(module, *inputs))
