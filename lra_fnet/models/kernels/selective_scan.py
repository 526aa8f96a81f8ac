"""The scan of selective state spaces: a linear recurrence whose decays differ at every token.

E is the number of channels, N that of real states per channel. The decays of a text, [B, L, E, N],
are never held at once: a scan over chunks keeps the state at the start of each, and the backward
pass computes the states of one chunk again at a time.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.models.kernels.recurrence import Method, resolved

# Tokens in a chunk. The kept states take N / chunk times the space of the inputs, [B, L, E].
CHUNK = {"scan": 32, "associative": 64}

_product = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)


def selective_scan(x, step, a, b, c, *, method: Method = "auto"):
    """Computes y[k] = C[k] h[k] with h[k] = exp(step[k] A) h[k - 1] + step[k] B[k] x[k], h[-1] = 0.

    This is Algorithm 2 of Gu and Dao (arXiv:2312.00752) with the discretisation of its code:
    zero-order hold for A and an Euler step for B, where its Eq. 4 has zero-order hold for both.
    Where the step is 0, the state passes through unchanged. Reverse-mode derivatives only.

    Args:
      x: [B, L, E].
      step: [B, L, E], not negative, in the dtype of A.
      a: [E, N], negative, float32 or wider; its dtype is that of the states.
      b: [B, L, N].
      c: [B, L, N].
      method: inside a chunk, "scan" takes one position after the other, which is faster on a CPU;
        "associative" takes the whole chunk in log2 rounds, for accelerators; "auto", by the
        backend.

    Returns:
      [B, L, E] in the dtype of A.
    """
    return jnp.asarray(_scan(resolved(method), x, step, a.T, b, c))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(method, x, step, a, b, c):
    return _forward(method, x, step, a, b, c)[0]


def _forward(method, x, step, a, b, c):
    """Works on states [B, N, E]: with E last, vectors of channels are contiguous."""
    cut = functools.partial(_cut, method, a.dtype)

    def advance(state, inputs):
        step, x, b, c = inputs
        states = _states(method, _decay(step, a), _outer(b, step * x), state)
        return _last(method, states), _product("...ne,...n->...e", states, c)

    def chunk(state, inputs):
        end, y = lax.scan(advance, state, inputs)
        return end, (state, y)

    start = jnp.zeros((len(x), *a.shape), a.dtype)
    starts, y = lax.scan(chunk, start, tuple(map(cut, (step, x, b, c))))[1]
    return _join(y, x.shape), (x, step, a, b, c, starts)


def _backward(method, kept, cotangent):
    """Carries `slope`, the derivative in a state but for its own output, from the end to the start.

    At each position, g = slope + C dy is the derivative in the state h, and exp(step A) g is the
    slope that the position before gets. Decay times previous state is h less its input.
    """
    x, step, a, b, c, starts = kept
    cut = functools.partial(_cut, method, a.dtype)

    def again(state, inputs):
        step, scaled, b = inputs
        states = _states(method, _decay(step, a), _outer(b, scaled), state)
        return _last(method, states), states

    def retreat(carry, inputs):
        slope, of_a = carry
        states, step, x, b, c, dy = inputs
        g, slope = _slopes(method, _decay(step, a), _outer(c, dy), slope)
        scaled = step * x
        of_exponent = g * (states - _outer(b, scaled))
        of_scaled = _product("...ne,...n->...e", g, b)
        of_step = (of_exponent * a[(None,) * (g.ndim - 2)]).sum(axis=-2) + of_scaled * x
        of_a += (of_exponent * step[..., None, :]).sum(axis=tuple(range(g.ndim - 2)))
        of_b = _product("...ne,...e->...n", g, scaled)
        of_c = _product("...ne,...e->...n", states, dy)
        return (slope, of_a), (of_scaled * step, of_step, of_b, of_c)

    def chunk(carry, inputs):
        start, step, x, b, c, dy = inputs
        states = lax.scan(again, start, (step, step * x, b))[1]
        return lax.scan(retreat, carry, (states, step, x, b, c, dy), reverse=True)

    carry = jnp.zeros_like(starts[0]), jnp.zeros_like(a)
    inputs = starts, *map(cut, (step, x, b, c, cotangent))
    (_, of_a), slopes = lax.scan(chunk, carry, inputs, reverse=True)
    of_x, of_step, of_b, of_c = (
        _join(slope, like.shape).astype(like.dtype)
        for slope, like in zip(slopes, (x, step, b, c), strict=True)
    )
    return of_x, of_step, of_a, of_b, of_c


_scan.defvjp(_forward, _backward)


def _decay(step, a):
    """Returns exp(step A): [..., E] and [N, E] -> [..., N, E]."""
    return jnp.exp(step[..., None, :] * a[(None,) * (step.ndim - 1)])


def _outer(rows, columns):
    """Multiplies each state's number with each channel's: [..., N], [..., E] -> [..., N, E]."""
    return rows[..., :, None] * columns[..., None, :]


def _states(method, decay, inputs, state):
    """Returns the states at one position, [B, N, E], or at all of a chunk, [S, B, N, E]."""
    if method == "scan":
        return decay * state + inputs
    decay, states = lax.associative_scan(_compose, (decay, inputs))
    return states + decay * state[None]


def _slopes(method, decay, inputs, slope):
    """Returns the derivatives in these states and the slope for the position before."""
    if method == "scan":
        g = inputs + slope
        return g, decay * g
    later = jnp.concatenate([decay[1:], jnp.ones_like(decay[:1])])
    later, g = lax.associative_scan(_compose, (later, inputs), reverse=True)
    g = g + later * slope[None]
    return g, decay[0] * g[0]


def _compose(first, second):
    """Composes two maps h -> decay h + inputs, the first one applied first."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def _last(method, states):
    return states if method == "scan" else states[-1]


def _cut(method, dtype, x):
    """Cuts [B, L, K] into chunks of S positions, padded with zeros, positions first.

    Returns:
      [L / S, S, B, K], or [L / S, 1, S, B, K] for "associative", where a chunk is one step.
    """
    size = min(CHUNK[method], x.shape[1])
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size), (0, 0))).astype(dtype)
    chunk = (size,) if method == "scan" else (1, size)
    return jnp.swapaxes(x, 0, 1).reshape(-1, *chunk, len(x), x.shape[2])


def _join(chunks, shape):
    """Undoes `_cut`, to an array of this shape."""
    positions = chunks.reshape(-1, shape[0], shape[2])
    return jnp.swapaxes(positions, 0, 1)[:, : shape[1]]
