"""Linear recurrences with a diagonal state matrix, and the HiPPO matrices that begin them."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Method = Literal["auto", "scan", "associative"]


def linear_recurrence(exponent, inputs, *, reverse=False, method: Method = "auto"):
    """Computes x[k] = exp(exponent) x[k - 1] + inputs[k] along the text, from x[-1] = 0.

    The map is linear in the inputs, and its transpose is the same recurrence in the other
    direction, so the backward pass keeps the states and nothing else. Reverse-mode only.

    Args:
      exponent: [P], complex; its real part is not positive if no state may grow.
      inputs: [B, L, P], complex.
      reverse: from the end of the text to its start, x[k] = exp(exponent) x[k + 1] + inputs[k].
      method: "scan", one position after the other, which is faster on a CPU; "associative", the
        parallel scan in log2(L) rounds (Blelloch 1990), for accelerators; "auto", by the backend.

    Returns:
      The states, [B, L, P].
    """
    return jnp.asarray(_recurrence(reverse, resolved(method), exponent, inputs))


def resolved(method: Method) -> Method:
    """Returns the method itself or, for "auto", the one that suits the backend."""
    if method != "auto":
        return method
    return "scan" if jax.default_backend() == "cpu" else "associative"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _recurrence(reverse, method, exponent, inputs):
    if method == "associative":
        turn = slice(None, None, -1 if reverse else 1)
        return _parallel_scan(exponent, inputs[:, turn])[:, turn]
    decay = jnp.exp(exponent)[None]

    def step(state, arrived):
        state = decay * state + arrived
        return state, state

    by_position = jnp.swapaxes(inputs, 0, 1)
    start = jnp.zeros_like(by_position[0])
    states = lax.scan(step, start, by_position, reverse=reverse)[1]
    return jnp.swapaxes(states, 0, 1)


def _parallel_scan(exponent, inputs):
    """Computes the states at odd positions from sums of pairs, then those at even positions.

    Every round knows the decay over its distance from the exponent, which is doubled, not from the
    square of the last decay: squares of squares lose digits, and arrays of decays take space.
    """
    if inputs.shape[1] == 1:
        return inputs
    decay = jnp.exp(exponent)[None, None]
    even, odd = inputs[:, ::2], inputs[:, 1::2]
    pairs = odd.shape[1]
    odd = _parallel_scan(2 * exponent, decay * even[:, :pairs] + odd)
    even = even + jnp.pad(decay * odd, ((0, 0), (1, 0), (0, 0)))[:, : even.shape[1]]
    odd = jnp.pad(odd, ((0, 0), (0, even.shape[1] - pairs), (0, 0)))
    both = jnp.stack([even, odd], axis=2).reshape(len(inputs), -1, inputs.shape[2])
    return both[:, : inputs.shape[1]]


def _forward(reverse, method, exponent, inputs):
    states = _recurrence(reverse, method, exponent, inputs)
    return states, (exponent, states)


def _backward(reverse, method, kept, cotangent):
    exponent, states = kept
    slope = linear_recurrence(exponent, cotangent, reverse=not reverse, method=method)
    # At each position, the state that the decay multiplied.
    later, earlier = (slope[:, :-1], states[:, 1:]) if reverse else (slope[:, 1:], states[:, :-1])
    return jnp.exp(exponent) * (later * earlier).sum(axis=(0, 1)), slope


_recurrence.defvjp(_forward, _backward)


def hippo(size) -> np.ndarray:
    """Returns the HiPPO-LegS matrix, float64 [size, size] (Gu et al., arXiv:2008.07669, Eq. 6)."""
    roots = np.sqrt(2 * np.arange(size) + 1.0)
    return -np.tril(np.outer(roots, roots), -1) - np.diag(np.arange(size) + 1.0)


def normal_hippo(size) -> tuple[np.ndarray, np.ndarray]:
    """Returns half of the eigenvalues and eigenvectors of the normal part of HiPPO-LegS.

    The matrix plus p p^T with p[n] = sqrt(n + 1/2) is -1/2 plus a skew-symmetric matrix (Gu et al.,
    arXiv:2111.00396, Theorem 1), so its eigenvalues come in conjugate pairs with real part -1/2.
    Those with a positive imaginary part are returned, in ascending order.

    Args:
      size: N, even.

    Returns:
      complex128 [N / 2] and the columns [N, N / 2], of length 1.
    """
    root = np.sqrt(np.arange(size) + 0.5)
    skew = hippo(size) + np.outer(root, root) + 0.5 * np.eye(size)
    frequencies, vectors = np.linalg.eigh(-1j * skew)
    return -0.5 + 1j * frequencies[size // 2 :], vectors[:, size // 2 :]
