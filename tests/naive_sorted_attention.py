"""Oracles of Reformer and Sinkhorn: float64 NumPy loops from the papers, nothing of ours."""

import math

import numpy as np


def angular_buckets(x, rotations):
    """h(x) = argmax([x R; -x R]) (arXiv:2001.04451, Sec. 2). [B, L, H, K] -> [B, H, R, L]."""
    batch, length, heads, _ = x.shape
    out = np.zeros((batch, heads, rotations.shape[1], length), np.int32)
    for b, h, r, n in np.ndindex(out.shape):
        rotated = x[b, n, h] @ rotations[h, r]
        out[b, h, r, n] = int(np.argmax([*rotated, *-rotated]))
    return out


def lsh_sets(buckets, mask, chunk_size):
    """P_i as sets, for one head: buckets [R, L] and mask [L] (arXiv:2001.04451, Eqs. 4 to 6).

    Real tokens sorted by (bucket, position); of i's bucket, in i's chunk or the one before.
    """
    real = [n for n in range(len(mask)) if mask[n]]
    sets = {i: set() for i in real}
    for hashes in buckets:
        order = sorted(real, key=lambda n: (hashes[n], n))
        chunk = {n: place // chunk_size for place, n in enumerate(order)}
        for i in real:
            for j in real:
                if hashes[i] == hashes[j] and chunk[i] - 1 <= chunk[j] <= chunk[i]:
                    sets[i].add(j)
    return sets


def lsh_attention(query_key, value, mask, buckets, chunk_size):
    """Softmax over the union of all rounds' P_i, itself at -1e5 (arXiv:2001.04451, Eqs. 2, 6, A).

    Logits q_i . k_j / sqrt(K), k_j = q_j / |q_j|. [B, L, H, K], buckets [B, H, R, L].
    """
    out = np.zeros(value.shape)
    batch, _, heads, width = query_key.shape
    for b in range(batch):
        for h in range(heads):
            q = query_key[b, :, h]
            for i, keys in lsh_sets(buckets[b, h], mask[b], chunk_size).items():
                scores = {
                    j: q[i] @ q[j] / np.linalg.norm(q[j]) / math.sqrt(width) - 1e5 * (i == j)
                    for j in keys
                }
                top = max(scores.values())
                total = sum(math.exp(s - top) for s in scores.values())
                for j, score in scores.items():
                    out[b, i, h] += math.exp(score - top) / total * value[b, j, h]
    return out


def sinkhorn_balance(logits, valid, iterations):
    """exp, then rows and columns divided by their sums in turn (arXiv:2002.11296, Sec. 3.1.2).

    logits [B, H, N, N], valid [B, N]: only blocks with a token take part.
    """
    out = np.zeros(logits.shape)
    for b, h in np.ndindex(logits.shape[:2]):
        blocks = [i for i in range(logits.shape[2]) if valid[b, i]]
        matrix = {(i, j): math.exp(logits[b, h, i, j]) for i in blocks for j in blocks}
        for _ in range(iterations):
            for i in blocks:
                total = sum(matrix[i, j] for j in blocks)
                for j in blocks:
                    matrix[i, j] /= total
            for j in blocks:
                total = sum(matrix[i, j] for i in blocks)
                for i in blocks:
                    matrix[i, j] /= total
        for (i, j), entry in matrix.items():
            out[b, h, i, j] = entry
    return out


def sorted_block_attention(query, key, value, mask, sorting, block_size):
    """Own block and sorted block in one softmax (arXiv:2002.11296, Sec. 3.2). [B, L, H, K].

    Sorted block i: sum of sorting[i, j] times block j. At place t, tokens that are masked or past
    the end are left out: the rest is scaled to the row's sum, and its weight by what it was.
    """
    out = np.zeros(value.shape)
    batch, length, heads, width = query.shape
    num_blocks = sorting.shape[2]
    for b, h in np.ndindex(batch, heads):
        for n in range(length):
            i = n // block_size
            keys = []  # (key, value, factor of the weight)
            for m in range(i * block_size, min((i + 1) * block_size, length)):
                if mask[b, m]:
                    keys.append((key[b, m, h], value[b, m, h], 1.0))
            row = sorting[b, h, i]
            for t in range(block_size):
                places = [(j, j * block_size + t) for j in range(num_blocks)]
                found = [(row[j], m) for j, m in places if m < length and mask[b, m]]
                part = sum(r for r, _ in found)
                if part > 0:
                    scale = sum(row) / part
                    sorted_key = scale * sum(r * key[b, m, h] for r, m in found)
                    sorted_value = scale * sum(r * value[b, m, h] for r, m in found)
                    keys.append((sorted_key, sorted_value, part / sum(row)))
            scores = [query[b, n, h] @ k / math.sqrt(width) for k, _, _ in keys]
            weights = [f * math.exp(s) for s, (_, _, f) in zip(scores, keys, strict=True)]
            for weight, (_, v, _) in zip(weights, keys, strict=True):
                out[b, n, h] += weight / sum(weights) * v
    return out


def sort_logits(x, mask, params, heads, block_size):
    """W_B ReLU(W_P s + b_P) + b_B, s the sum of a block's real tokens (arXiv:2002.11296, 3.1.1).

    x [B, L, D] -> [B, H, N, N], columns beyond the N blocks of x cut off.
    """
    batch, length, dim = x.shape
    num_blocks = math.ceil(length / block_size)
    out = np.zeros((batch, heads, num_blocks, num_blocks))
    for b in range(batch):
        for i in range(num_blocks):
            total = np.zeros(dim)
            for n in range(i * block_size, min((i + 1) * block_size, length)):
                total += mask[b, n] * x[b, n]
            hidden = total @ params["sort_hidden"]["kernel"] + params["sort_hidden"]["bias"]
            logits = np.maximum(hidden, 0) @ params["sort_logits"]["kernel"]
            logits = (logits + params["sort_logits"]["bias"]).reshape(heads, -1)
            out[b, :, i] = logits[:, :num_blocks]
    return out
