"""Products, normalisation and dropout, written for few passes over memory and few kept arrays.

All work on one token at a time, but `BatchNorm`, whose statistics are those of the batch. Products,
`LayerNorm` and `layer_norm` compute the same as those of flax; `dropout` draws other entries.
"""

import contextlib
import contextvars
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

AVERAGES = "averages"  # the collection of BatchNorm's running averages


def flat_product(x, kernel, dimension_numbers=None, precision=None, preferred_element_type=None):
    """Computes x @ kernel with all leading axes of x as one, [..., D] x [D, M] -> [..., M].

    It is meant for `nn.Dense(dot_general=...)`, which always contracts the last axis with the
    first. The gradient of a kernel contracts all axes but the last; if there are two of them, XLA
    first copies both operands into another order. Reverse-mode derivatives only.
    """
    y = jnp.asarray(_product(precision, x.reshape(-1, x.shape[-1]), kernel))
    return y.reshape(*x.shape[:-1], kernel.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(precision, x, kernel):
    return lax.dot(x, kernel, precision=precision)


def _product_backward(precision, kept, cotangent):
    x, kernel = kept

    def contract(left, right, axis):
        return lax.dot_general(left, right, (((axis,), (axis,)), ((), ())), precision=precision)

    if kernel.shape[0] <= kernel.shape[1]:
        slope = contract(x, cotangent, 0)
    else:  # XLA's CPU product takes 1.5 times as long for [1024, 256] as for [256, 1024]
        slope = lax.optimization_barrier(contract(cotangent, x, 0)).T
    return contract(cotangent, kernel, 1), slope


_product.defvjp(lambda p, x, kernel: (_product(p, x, kernel), (x, kernel)), _product_backward)


def recompute(function, x, *rest):
    """Computes function(x, *rest) and recomputes it in the backward pass from its arguments.

    jax.checkpoint does not serve: XLA's CPU scheduler moves its recomputation to the end of the
    forward pass, and then all arrays are held at once after all. Here the recomputation waits for
    the cotangent, because a zero computed from it is added to x. Reverse-mode derivatives only.

    Args:
      function: hashable; maps floating-point x and arrays of any kind to an array.
      x: the array that the recomputation starts from.
      *rest: the other arguments.
    """
    return jnp.asarray(_recompute(function, x, rest))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recompute(function, x, rest):
    return function(x, *rest)


def _recompute_backward(function, kept, cotangent):
    x, rest = kept
    _, backward = jax.vjp(lambda x, rest: function(x, *rest), _after(cotangent, x), rest)
    return backward(cotangent)


_recompute.defvjp(lambda f, x, rest: (_recompute(f, x, rest), (x, rest)), _recompute_backward)


def _after(other, x):
    """Returns x after `other` is computed: x + 0, or NaN if the first entry of `other` is NaN."""
    first = other[(0,) * other.ndim].astype(x.dtype)
    return x + jnp.where(first == first, jnp.zeros((), x.dtype), first)


_batch: contextvars.ContextVar[tuple] = contextvars.ContextVar("batch", default=(None, None))


@contextlib.contextmanager
def part_of_batch(number, axis=None):
    """Makes all draws inside the block those of one part of a batch.

    An example then gets the same dropout and noise with any number of devices and any microbatch.
    The block must enclose the forward and the backward pass.

    Args:
      number: integer [], which of the equally large parts of the batch.
      axis: the name of the devices' axis if they hold the other parts (`batch_sum`).
    """
    token = _batch.set((jnp.asarray(number, jnp.uint32), axis))
    try:
        yield
    finally:
        _batch.reset(token)


def part():
    """Returns the number of the current part (`part_of_batch`), uint32 []; None outside one."""
    return _batch.get()[0]


def batch_sum(x):
    """Adds an array over all devices that hold a part of the batch (`part_of_batch`)."""
    axis = _batch.get()[1]
    return x if axis is None else lax.psum(x, axis)


def keys_of_rows(key, rows):
    """Returns a key for each row of the current part, [rows], from its number in the batch."""
    numbers = jnp.arange(rows, dtype=jnp.uint32)
    if (number := part()) is not None:
        numbers += number * np.uint32(rows)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def keep(key, shape, rate, part=None):
    """Draws the mask of the entries that a dropout of this rate keeps, independently: bool `shape`.

    The mask is an integer hash of three words of the key and the entry's index, computed where it
    is used: it reads no memory, and the backward pass computes it again instead of keeping it.
    jax.random.bernoulli writes and reads an array for every four rounds of Threefry. The hash is
    lowbias32 of Wellons (Hash Prospector, 2018): its two multiplications flip each output bit with
    probability 1/2, within 0.2 %, for each input bit flipped. Rows (all axes but the last) are
    hashed twice; an entry mixes its column with its row's words before each multiplication, so
    that no two rows share a shifted sequence.

    Args:
      key: a JAX random key.
      shape: of the mask, at least one axis.
      rate: probability of dropping an entry, to 2^-32.
      part: uint32 [], which part of a batch the mask is for, or None (see `part_of_batch`).
    """
    words = jax.random.bits(key, (3,), jnp.uint32)
    row = jnp.zeros((*shape[:-1], 1), jnp.uint32)
    for axis, size in enumerate(shape[:-1]):
        row = row * np.uint32(size) + lax.broadcasted_iota(jnp.uint32, row.shape, axis)
        if axis == 0 and part is not None:
            row += part * np.uint32(size)
    first = _hash(_hash(row ^ words[0], words[1]), words[2])
    second = _hash(first, words[0])
    first, second = lax.optimization_barrier((first, second))  # once per row, not per entry
    column = lax.broadcasted_iota(jnp.uint32, shape, len(shape) - 1)
    least = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    return _hash(column * np.uint32(0x9E3779B9) + first, second) >= least


def _hash(x, word):
    """Computes lowbias32 with a word added between its multiplications: uint32 -> uint32."""
    x = x ^ (x >> 16)
    x = x * np.uint32(0x7FEB352D) + word
    x = x ^ (x >> 15)
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def dropout(x, key, rate, number=None):
    """Zeros entries with probability `rate` and divides the others by 1 - rate.

    The backward pass computes the mask again.

    Args:
      x: [..., D].
      key: a JAX random key; see `keep`.
      rate: in [0, 1).
      number: which part of the batch x is; None for the current one.
    """
    return jnp.asarray(_dropout(rate, x, key, part() if number is None else number))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dropout(rate, x, key, number):
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))  # bfloat16 would round the scale
    scale = np.asarray(1 / (1 - rate), wide.dtype)
    kept = jnp.where(keep(key, x.shape, rate, number), scale, np.zeros((), wide.dtype))
    return (wide * kept).astype(x.dtype)


def _dropout_backward(rate, kept, cotangent):
    key, number = kept
    words, cotangent = lax.optimization_barrier((jax.random.key_data(key), cotangent))
    again = jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))
    return _dropout(rate, cotangent, again, number), None, None


_dropout.defvjp(lambda r, x, key, n: (_dropout(r, x, key, n), (key, n)), _dropout_backward)


class Dropout(nn.Module):
    """Applies `dropout` with keys of the collection "dropout"."""

    rate: float
    shared: bool = False  # x belongs to all rows of a batch, and so does its mask

    @nn.compact
    def __call__(self, x, *, train):
        """Maps [..., D] -> [..., D]; the identity outside training."""
        if not train or self.rate == 0:
            return x
        number = np.uint32(0) if self.shared else None
        return dropout(x, self.make_rng("dropout"), self.rate, number)


def activated_product(rate, key):
    """Returns the product dropout(gelu(x)) @ kernel for `nn.Dense(dot_general=...)`.

    It keeps only x for the backward pass.

    Args:
      rate: of the dropout.
      key: of the dropout; needed if rate > 0.
    """
    activate = functools.partial(_activated_product, rate)

    def product(x, kernel, *_, **__):
        return recompute(activate, x, kernel, key, part())

    return product


def _activated_product(rate, x, kernel, key, number):
    x = nn.gelu(x)
    return flat_product(dropout(x, key, rate, number) if rate else x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x, scale, bias, epsilon):
    """Computes (x - mean) / sqrt(variance + epsilon) scale + bias (arXiv:1607.06450, Eq. 4).

    Statistics are float32 (or wider), with the variance E[x^2] - E[x]^2 as in flax. The barriers
    keep XLA from fusing its reductions with their inputs, which would materialise scale in an array
    of x's shape. Reverse-mode derivatives only.

    Args:
      x: [..., D].
      scale: [D].
      bias: [D].
      epsilon: added to the variance.

    Returns:
      [..., D] in x's dtype.
    """
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(x, scale, bias, epsilon):
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean, square = lax.optimization_barrier(_means(wide, wide * wide))
    inverse = lax.rsqrt(jnp.maximum(square - mean * mean, 0) + epsilon)
    inverse = lax.optimization_barrier(inverse)
    y = (wide - mean) * inverse * _row(scale, wide) + _row(bias, wide)
    return y.astype(x.dtype), (x, mean, inverse, scale)


def _layer_norm_backward(epsilon, kept, cotangent):
    x, mean, inverse, scale = kept
    x = _after(cotangent, x)
    cotangent = cotangent.astype(mean.dtype)
    normal = (x.astype(mean.dtype) - mean) * inverse
    slope = cotangent * _row(scale, mean)
    along, across = lax.optimization_barrier(_means(slope, slope * normal))
    tokens = tuple(range(x.ndim - 1))
    return (
        (inverse * (slope - along - normal * across)).astype(x.dtype),
        (cotangent * normal).sum(tokens).astype(scale.dtype),
        cotangent.sum(tokens).astype(scale.dtype),
    )


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def _on_two_axes(x):
    """Reshapes x [..., D] to have tokens along two axes or more, unless their number is prime.

    With one axis (for batch size 1, say) XLA's CPU reductions fuse with the broadcast of their
    results: each mean would be materialised in an array of x's shape, and so would scale.
    """
    if sum(size > 1 for size in x.shape[:-1]) > 1:
        return x
    tokens = math.prod(x.shape[:-1])
    rows = next((n for n in range(2, math.isqrt(tokens) + 1) if tokens % n == 0), 1)
    return x.reshape(rows, -1, x.shape[-1])


def _means(*arrays):
    return tuple(x.mean(axis=-1, keepdims=True) for x in arrays)


def _row(vector, like):
    """Returns a vector [D] in the dtype and with the number of axes of `like`."""
    return vector.astype(like.dtype).reshape((1,) * (like.ndim - 1) + (-1,))


class LayerNorm(nn.Module):
    """Applies `layer_norm` with the parameters of flax's LayerNorm, "scale" and "bias", float32."""

    epsilon: float

    @nn.compact
    def __call__(self, x) -> jax.Array:
        """Maps [..., D] -> [..., D] in x's dtype."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        y = layer_norm(_on_two_axes(x), scale, bias, self.epsilon)
        return jnp.asarray(y).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def batch_norm(x, mask, moments, scale, bias, epsilon):
    """Computes (x - mean) / sqrt(variance + epsilon) scale + bias with the batch's own moments.

    The gradient counts what x changes in the moments, and keeps no array of x's size but x.
    Reverse-mode derivatives only.

    Args:
      x: [B, L, D], the part of the batch on this device.
      mask: bool [B, L].
      moments: [2, D], the `masked_moments` of x.
      scale: [D].
      bias: [D].
      epsilon: added to the variance.

    Returns:
      [B, L, D] in x's dtype.
    """
    return _normalised(x, moments, scale, bias, epsilon)


def _normalised(x, moments, scale, bias, epsilon):
    mean, variance = (_row(row, moments[None]) for row in moments)
    slope = lax.rsqrt(variance + epsilon) * _row(scale, mean)
    return ((x.astype(mean.dtype) - mean) * slope + _row(bias, mean)).astype(x.dtype)


def _batch_norm_forward(x, mask, moments, scale, bias, epsilon):
    return _normalised(x, moments, scale, bias, epsilon), (x, mask, moments, scale)


def _batch_norm_backward(epsilon, kept, cotangent):
    x, mask, moments, scale = kept
    mean, variance = (_row(row, moments[None]) for row in moments)
    inverse = lax.rsqrt(variance + epsilon)
    normal = (_after(cotangent, x).astype(mean.dtype) - mean) * inverse
    cotangent = cotangent.astype(mean.dtype)
    sums = jnp.stack([cotangent.sum((0, 1)), (cotangent * normal).sum((0, 1))])
    shares = batch_sum(sums) / jnp.maximum(batch_sum(mask.sum(dtype=mean.dtype)), 1)
    along, across = (_row(row, mean) for row in shares)
    rest = cotangent - jnp.where(mask[..., None], along + normal * across, 0)
    slope = rest * (inverse * _row(scale, mean))
    return slope.astype(x.dtype), None, None, *sums[::-1].astype(scale.dtype)


batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


class BatchNorm(nn.Module):
    """Normalises each channel over the real tokens of the batch (arXiv:1502.03167, Alg. 1).

    Training takes the mean and the variance E[x^2] - E[x]^2 of the whole batch, on all devices, in
    float32 (or wider). Running averages of both, a <- momentum a + (1 - momentum) statistic, are
    in the collection "averages"; they are used outside training.
    """

    epsilon: float
    momentum: float

    @nn.compact
    def __call__(self, x, mask, *, train) -> jax.Array:
        """Maps x [B, L, D] under mask bool [B, L] -> [B, L, D] in x's dtype.

        Raises:
          flax.errors.ModifyScopeVariableError: it trains without `mutable=["averages"]`.
        """
        width = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (width,))
        bias = self.param("bias", nn.initializers.zeros, (width,))
        averages = self.variable(
            AVERAGES, "moments", lambda: jnp.stack([jnp.zeros(width), jnp.ones(width)])
        )
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        if not train:
            return _normalised(x, averages.value.astype(dtype), scale, bias, self.epsilon)
        moments = lax.stop_gradient(masked_moments(x.astype(dtype), mask))
        change = moments.astype(averages.value.dtype) - averages.value
        averages.value += (1 - self.momentum) * change
        return jnp.asarray(batch_norm(x, mask, moments, scale, bias, self.epsilon))


def masked_moments(x, mask):
    """Returns mean and variance of each channel over the real tokens of the batch.

    Args:
      x: [B, L, D], the part of the batch on this device.
      mask: bool [B, L].

    Returns:
      [2, D]; zeros if there are no real tokens.
    """
    real = jnp.where(mask[..., None], x, 0)
    count = mask.sum(dtype=x.dtype)
    sums = jnp.stack([real.sum(axis=(0, 1)), (real * real).sum(axis=(0, 1))])
    mean, square = batch_sum(sums) / jnp.maximum(batch_sum(count), 1)
    return jnp.stack([mean, jnp.maximum(square - mean * mean, 0)])
