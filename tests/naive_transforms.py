"""Oracles of the FNet family: float64 NumPy loops written from the papers."""

import math

import numpy as np


def _transform(x, entry):
    """y[n, k] = sum over m, d of entry(n, m, k, d) x[m, d]. [B, L, D]."""
    out = np.zeros(x.shape)
    _, length, dim = x.shape
    for n in range(length):
        for k in range(dim):
            for m in range(length):
                for d in range(dim):
                    out[:, n, k] += entry(n, m, k, d) * x[:, m, d]
    return out


def sequence_fourier_mix(x):
    """Real part of the DFT over the sequence alone (arXiv:2105.03824, Eq. 1). [B, L, D]."""
    length = x.shape[1]
    return _transform(x, lambda n, m, k, d: (k == d) * math.cos(2 * math.pi * n * m / length))


def hartley_mix(x):
    """Re(F) - Im(F) of the DFT over both axes (arXiv:2105.03824, App. A.3). [B, L, D]."""
    _, length, dim = x.shape

    def entry(n, m, k, d):
        angle = 2 * math.pi * (n * m / length + k * d / dim)
        return math.cos(angle) + math.sin(angle)

    return _transform(x, entry)


def dct_mix(x):
    """DCT-II over both axes, cosines as they are (Ahmed et al. 1974). [B, L, D]."""
    _, length, dim = x.shape

    def entry(n, m, k, d):
        rows = math.cos(math.pi * n * (2 * m + 1) / (2 * length))
        return rows * math.cos(math.pi * k * (2 * d + 1) / (2 * dim))

    return _transform(x, entry)


def hadamard_mix(x):
    """Walsh-Hadamard over both axes: (-1)^(number of ones that n and m share in base 2)."""
    ones = lambda n, m: (n & m).bit_count()  # noqa: E731
    return _transform(x, lambda n, m, k, d: (-1.0) ** (ones(n, m) + ones(k, d)))


def bert_embedding(ids, types, params, norm):
    """norm(word + position + type), then a Dense layer (arXiv:2105.03824, Sec. 3.2). [B, L, D]."""
    out = np.zeros((*ids.shape, params["embedding"].shape[1]))
    for b, n in np.ndindex(ids.shape):
        word, kind = params["embedding"][ids[b, n]], params["types"][types[b, n]]
        out[b, n] = word + params["positions_learned"][n] + kind
    return norm(out) @ params["project"]["kernel"] + params["project"]["bias"]
