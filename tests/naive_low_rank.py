"""Oracles of Linformer, Synthesizer and the linear Transformer: float64 loops from the papers."""

import math

import numpy as np


def linformer_attention(query, key, value, mask, project_key, project_value):
    """softmax(Q (E K)^T / sqrt(K)) (F V) (arXiv:2006.04768, Eq. 7), E and F [H, k, L].

    Masked keys and values count as zeros; a text without any gives zeros. [B, L, H, K].
    """
    out = np.zeros(value.shape)
    batch, length, heads, width = value.shape
    for b in range(batch):
        keys = [m for m in range(length) if mask[b, m]]
        if not keys:
            continue
        for h in range(heads):
            short_keys, short_values = [], []
            for row in range(project_key.shape[1]):
                short_keys.append(sum(project_key[h, row, m] * key[b, m, h] for m in keys))
                short_values.append(sum(project_value[h, row, m] * value[b, m, h] for m in keys))
            for n in range(length):
                scores = [math.exp(query[b, n, h] @ k / math.sqrt(width)) for k in short_keys]
                for score, short in zip(scores, short_values, strict=True):
                    out[b, n, h] += score / sum(scores) * short
    return out


def elu_features(x):
    """elu(x) + 1 for one vector: x + 1 above 0, e^x below (arXiv:2006.16236, Eq. 7)."""
    return np.array([entry + 1 if entry > 0 else math.exp(entry) for entry in x])


def elu_attention(query, key, value, mask):
    """sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j) over unmasked j (Eq. 3-4)."""
    out = np.zeros(value.shape)
    batch, length, heads, _ = value.shape
    for b in range(batch):
        keys = [m for m in range(length) if mask[b, m]]
        for h in range(heads):
            for n in range(length):
                phi = elu_features(query[b, n, h])
                weights = [phi @ elu_features(key[b, m, h]) for m in keys]
                for m, weight in zip(keys, weights, strict=True):
                    out[b, n, h] += weight / sum(weights) * value[b, m, h]
    return out


def dense_logits(x, first, second):
    """W_2 relu(W_1 x_i) of one head (arXiv:2005.00743, Sec. 3.1): [L, D] -> [L, columns]."""
    out = np.zeros((len(x), second.shape[1]))
    for n, row in enumerate(x):
        hidden = [max(0.0, row @ first[:, unit]) for unit in range(first.shape[1])]
        for j in range(second.shape[1]):
            out[n, j] = sum(h * second[unit, j] for unit, h in enumerate(hidden))
    return out


def factorized_dense_logits(x, first, to_a, to_b, length):
    """H_A(A) * H_B(B) of one head (Sec. 3.3): column j is A[j // b] B[j mod b], j < length."""
    a, b = dense_logits(x, first, to_a), dense_logits(x, first, to_b)
    out = np.zeros((len(x), length))
    for n, j in np.ndindex(out.shape):
        out[n, j] = a[n, j // b.shape[1]] * b[n, j % b.shape[1]]
    return out


def weighted_values(logits, value, mask):
    """Softmax of logits [L, L] over unmasked columns times values [L, K]; zeros without any."""
    out = np.zeros(value.shape)
    columns = [j for j in range(len(mask)) if mask[j]]
    for n in range(len(logits)):
        total = sum(math.exp(logits[n, j]) for j in columns)
        for j in columns:
            out[n] += math.exp(logits[n, j]) / total * value[j]
    return out
