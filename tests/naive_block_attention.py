"""Oracles of attention over sets of positions: float64 NumPy loops written from the papers."""

import math

import numpy as np


def set_attention(query, key, value, mask, keys_of):
    """Each row a softmax over the unmasked positions of the set keys_of(h, i). [B, L, H, K]."""
    out = np.zeros(value.shape)
    batch, length, heads, width = value.shape
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                keys = [j for j in sorted(keys_of(h, i)) if mask[b, j]]
                scores = [query[b, i, h] @ key[b, j, h] / math.sqrt(width) for j in keys]
                total = sum(math.exp(s - max(scores)) for s in scores)
                for j, score in zip(keys, scores, strict=True):
                    out[b, i, h] += math.exp(score - max(scores)) / total * value[b, j, h]
    return out


def local_keys(i, length, block_size, neighbours=0):
    """Positions of i's block and of so many blocks on each side (arXiv:1802.05751, Sec. 3.3)."""
    return {j for j in range(length) if abs(j // block_size - i // block_size) <= neighbours}


def sparse_keys(i, length, pattern, stride, summary, causal, global_first):
    """A1 and A2 together (arXiv:1904.10509, Sec. 4.3); mirrored unless causal."""
    if pattern == "strided":
        first = {j for j in range(length) if abs(i - j) <= stride}
        second = {j for j in range(length) if (i - j) % stride == 0}
    else:
        first = {j for j in range(length) if j // stride == i // stride}
        second = {j for j in range(length) if j % stride in range(stride - summary, stride + 1)}
    keys = first | second
    if causal:
        keys = {j for j in keys if j <= i}
    if global_first:
        keys = set(range(length)) if i == 0 else keys | {0}
    return keys


def longformer(query, key, value, mask, window, global_projections):
    """Window of w / 2 on each side and G global positions (arXiv:2004.05150, Sec. 3.1).

    global_projections: query [B, G, H, K], key and value [B, L, H, K].
    """
    length = query.shape[1]
    global_query, global_key, global_value = global_projections
    num_global = global_query.shape[1]

    def window_and_global(_, i):
        return {j for j in range(length) if abs(i - j) <= window / 2 or j < num_global}

    out = set_attention(query, key, value, mask, window_and_global)
    padded = np.concatenate([global_query, np.zeros_like(query[:, num_global:])], axis=1)
    rows = set_attention(padded, global_key, global_value, mask, lambda *_: set(range(length)))
    out[:, :num_global] = rows[:, :num_global]
    return out


def bigbird_keys(i, length, block_size, num_blocks, global_blocks, random_blocks):
    """Window of three blocks, global and random blocks (arXiv:2007.14062, Sec. 2, App. D).

    random_blocks: for each block, the set of blocks drawn for it.
    """
    here = i // block_size
    seen = {here - 1, here, here + 1} | set(global_blocks) | set(random_blocks[here])
    if here in global_blocks:
        seen = set(range(num_blocks))
    return {j for j in range(length) if j // block_size in seen}
