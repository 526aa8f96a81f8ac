"""Oracles: float64 NumPy loops written from the papers. They import nothing of ours."""

import cmath
import math

import numpy as np


def softmax_attention(query, key, value, mask):
    """softmax(Q K^T / sqrt(K)) V over unmasked keys (arXiv:1706.03762, Eq. 1). [B, L, H, K]."""
    return set_attention(query, key, value, mask, lambda h, i: range(value.shape[1]))


def linear_mix(x, sequence, hidden):
    """y[n, k] = sum of S[n, m] x[m, d] W[d, k] (arXiv:2105.03824, Sec. 4.1). [B, L, D]."""
    out = np.zeros(x.shape)
    _, length, dim = x.shape
    for n in range(length):
        for k in range(dim):
            for m in range(length):
                for d in range(dim):
                    out[:, n, k] += sequence[n, m] * x[:, m, d] * hidden[d, k]
    return out


def fourier_mix(x):
    """Real part of the DFT over both axes, by definition (arXiv:2105.03824, Eqs. 1 and 3)."""
    out = np.zeros(x.shape)
    _, length, dim = x.shape
    for n in range(length):
        for k in range(dim):
            total = np.zeros(x.shape[0], complex)
            for m in range(length):
                for d in range(dim):
                    twiddle = cmath.exp(-2j * math.pi * (n * m / length + k * d / dim))
                    total += x[:, m, d] * twiddle
            out[:, n, k] = total.real
    return out


def positive_features(x, features):
    """exp(w . x - |x|^2 / 2) / sqrt(M) for one vector x and rows w (arXiv:2009.14794, Lemma 1)."""
    return np.array([math.exp(w @ x - x @ x / 2) for w in features]) / math.sqrt(len(features))


def kernel_attention(query, key, value, mask, phi):
    """Each row the mean of values weighted by phi(q) . phi(k), unmasked keys only. [B, L, H, K]."""
    out = np.zeros(value.shape)
    batch, length, heads, _ = value.shape
    for b in range(batch):
        keys = [m for m in range(length) if mask[b, m]]
        for h in range(heads):
            for n in range(length):
                weights = [phi(query[b, n, h]) @ phi(key[b, m, h]) for m in keys]
                for m, weight in zip(keys, weights, strict=True):
                    out[b, n, h] += weight / sum(weights) * value[b, m, h]
    return out


def favor_attention(query, key, value, mask, features):
    """FAVOR+ with positive features and given projections; x scaled by K^(-1/4)."""
    scale = query.shape[-1] ** -0.25
    phi = lambda x: positive_features(x * scale, features)  # noqa: E731
    return kernel_attention(query, key, value, mask, phi)


def relu_attention(query, key, value, mask, features=None):
    """The generalised kernel ReLU(w x) + 1e-3, or ReLU(x) + 1e-3 without projections."""

    def phi(x):
        return np.maximum(x if features is None else features @ x, 0) + 1e-3

    return kernel_attention(query, key, value, mask, phi)


def layer_norm(x, scale, bias, epsilon):
    """Each position's vector with mean 0 and variance 1, then scaled and shifted. [B, L, D]."""
    out = np.zeros(x.shape)
    for b, n in np.ndindex(x.shape[:2]):
        row = x[b, n]
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        out[b, n] = (row - mean) / math.sqrt(variance + epsilon) * scale + bias
    return out


def batch_moments(x, mask):
    """Mean and variance of each channel over the tokens where the mask is True. [2, D]."""
    tokens = [x[b, n] for b, n in np.ndindex(mask.shape) if mask[b, n]]
    mean = sum(tokens) / len(tokens)
    return np.stack([mean, sum((token - mean) ** 2 for token in tokens) / len(tokens)])


def sinusoidal_positions(length, dim):
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos of the same (arXiv:1706.03762, 3.5)."""
    out = np.zeros((length, dim))
    for p in range(length):
        for column in range(dim):
            angle = p / 10000 ** (2 * (column // 2) / dim)
            out[p, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return out


def gelu(x):
    """The tanh form of GELU (arXiv:1606.08415, Sec. 2)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def lowbias32(x, word):
    """The hash of Wellons' Hash Prospector, a word added between its multiplications."""
    x ^= x >> 16
    x = (x * 0x7FEB352D + word) % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def pixel_vectors(values, mean, sd, kernel, bias):
    """(value - mean) / sd times one row of weights, plus a bias. [B, L] -> [B, L, D]."""
    out = np.zeros((*values.shape, len(bias)))
    for index in np.ndindex(out.shape):
        x = (values[index[:2]] - mean) / sd
        out[index] = x * kernel[0, index[2]] + bias[index[2]]
    return out


def one_text_head(pooled, params):
    """Dense, ReLU, Dense (arXiv:2011.04006, App. A). [B, D] -> [B, C]."""
    x = np.maximum(_dense(pooled, params["hidden"]), 0)
    return _dense(x, params["logits"])


def two_text_head(first, second, interaction, params):
    """Dense, ReLU, Dense, ReLU, Dense on two texts' vectors (arXiv:2011.04006, Sec. 2.2)."""
    rows = []
    for e1, e2 in zip(first, second, strict=True):
        parts = [*e1, *e2]
        if interaction == "nli":
            parts += [a * b for a, b in zip(e1, e2, strict=True)]
            parts += [a - b for a, b in zip(e1, e2, strict=True)]
        rows.append(parts)
    x = np.maximum(_dense(np.array(rows), params["hidden"]), 0)
    x = np.maximum(_dense(x, params["hidden_half"]), 0)
    return _dense(x, params["logits"])


def _dense(x, params):
    return x @ params["kernel"] + params["bias"]


def attention_sublayer(x, mask, params, num_heads):
    """Projections without bias, attention in heads, projection back. [B, L, D]."""

    def heads(name):
        y = x @ params[name]["kernel"]
        return y.reshape(*x.shape[:2], num_heads, -1)

    y = softmax_attention(heads("query"), heads("key"), heads("value"), mask)
    return y.reshape(*x.shape[:2], -1) @ params["out"]["kernel"]


def pre_norm_block(x, mix, params, epsilon):
    """LRA's block without dropout: x + mix(LN(x)), then x + MLP(LN(x)). [B, L, D]."""

    def norm(name, inputs):
        return layer_norm(inputs, params[name]["scale"], params[name]["bias"], epsilon)

    x = x + mix(norm("norm_mixer", x))
    return x + _mlp(norm("norm_mlp", x), params["mlp"])


def post_norm_block(x, mix, params, epsilon):
    """FNet's block without dropout: LN(x + mix(x)), then LN(x + MLP(x)). [B, L, D]."""

    def norm(name, inputs):
        return layer_norm(inputs, params[name]["scale"], params[name]["bias"], epsilon)

    x = norm("norm_mixer", x + mix(x))
    return norm("norm_mlp", x + _mlp(x, params["mlp"]))


def _mlp(x, params):
    return _dense(gelu(_dense(x, params["wide"])), params["narrow"])


def masked_mean(x, mask):
    """Mean over the positions that the mask keeps; 0 where it keeps none. [B, L, D] -> [B, D]."""
    out = np.zeros((x.shape[0], x.shape[2]))
    for b in range(x.shape[0]):
        kept = [x[b, n] for n in range(x.shape[1]) if mask[b, n]]
        if kept:
            out[b] = sum(kept) / len(kept)
    return out


def set_attention(query, key, value, mask, keys_of):
    """Each row a softmax over the unmasked positions of the set keys_of(h, i). [B, L, H, K]."""
    out = np.zeros(value.shape)
    batch, length, heads, width = query.shape
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
    """Positions of i's block and of `neighbours` blocks on each side (arXiv:1802.05751, 3.3)."""
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


def nystrom_attention(query, key, value, mask, landmarks):
    """softmax(Q K~^T) softmax(Q~ K~^T)^+ softmax(Q~ K^T) V, arXiv:2102.03902 with NumPy's inverse.

    Q~ and K~ are means of consecutive real tokens: token t of n belongs to segment t m // n.
    Queries at padding attend too; a text without tokens gives zeros. [B, L, H, K].
    """

    def softmax(scores):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)

    out = np.zeros(value.shape)
    batch, _, heads, width = value.shape
    for b in range(batch):
        tokens = [i for i in range(mask.shape[1]) if mask[b, i]]
        groups = {}
        for t, token in enumerate(tokens):
            groups.setdefault(t * landmarks // len(tokens), []).append(token)
        for h in range(heads if tokens else 0):
            q, k, v = query[b, :, h] / math.sqrt(width), key[b, :, h], value[b, :, h]
            q_mean = np.array([q[group].mean(axis=0) for group in groups.values()])
            k_mean = np.array([k[group].mean(axis=0) for group in groups.values()])
            inverse = np.linalg.pinv(softmax(q_mean @ k_mean.T))
            values = softmax(q_mean @ k[tokens].T) @ v[tokens]
            out[b, :, h] = softmax(q @ k_mean.T) @ inverse @ values
    return out


def elu_features(x):
    """elu(x) + 1 for one vector: x + 1 above 0, e^x below (arXiv:2006.16236, Eq. 7)."""
    return np.array([entry + 1 if entry > 0 else math.exp(entry) for entry in x])


def elu_attention(query, key, value, mask):
    """sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j) over unmasked j (Eq. 3-4)."""
    return kernel_attention(query, key, value, mask, elu_features)


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


def bert_embedding(ids, types, params, norm):
    """norm(word + position + type), then a Dense layer (arXiv:2105.03824, Sec. 3.2). [B, L, D]."""
    out = np.zeros((*ids.shape, params["embedding"].shape[1]))
    for b, n in np.ndindex(ids.shape):
        word, kind = params["embedding"][ids[b, n]], params["types"][types[b, n]]
        out[b, n] = word + params["positions_learned"][n] + kind
    return norm(out) @ params["project"]["kernel"] + params["project"]["bias"]


def exact_fourier_mix(x, lengths):
    """`fourier_mix` of each row's first positions alone, zeros behind them. [B, L, D]."""
    out = np.zeros(x.shape)
    for b, n in enumerate(lengths):
        out[b, :n] = fourier_mix(x[b : b + 1, :n])[0]
    return out


def fourier_filter(x, weights):
    """Circular convolution with the kernel whose DFT is `weights` [L // 2 + 1, D]. [B, L, D]."""
    out = np.zeros(x.shape)
    _, length, _ = x.shape
    for n in range(length):
        for m in range(length):
            kernel = weights[0].real.copy()
            for f in range(1, length):
                half = weights[f] if f <= length // 2 else weights[length - f].conj()
                kernel += (half * cmath.exp(2j * math.pi * f * (n - m) / length)).real
            out[:, n] += kernel / length * x[:, m]
    return out


def long_convolution(x, ahead, back):
    """Each channel convolved with a kernel of both directions, zeros outside. [B, L, D]."""
    out = np.zeros(x.shape)
    batch, length, dim = x.shape
    for b in range(batch):
        for d in range(dim):
            kernel = np.concatenate([back[: length - 1, d][::-1], ahead[:, d]])
            full = np.convolve(x[b, :, d], kernel)
            out[b, :, d] = full[length - 1 : 2 * length - 1]
    return out


def structured_kernel(parts, decay, length):
    """Sub-kernels [S, T, D], stretched 1, 1, 2, 4, ... times, each tap from the two beside it.

    The first `length` taps [length, D], not divided by their norm.
    """
    scales, taps, dim = parts.shape
    out = []
    for scale in range(scales):
        factor = 1 if scale == 0 else 2 ** (scale - 1)
        for tap in range(taps * factor):
            place = (tap + 0.5) / factor - 0.5
            low = math.floor(place)
            part = place - low
            low, high = max(low, 0), min(low + 1, taps - 1)
            mean = (1 - part) * parts[scale, low] + part * parts[scale, high]
            out.append(decay**scale * mean)
    return np.asarray(out)[:length].reshape(-1, dim)


def window(x, taps):
    """y[n, d] = sum of taps[i, d] x[n + i - (K - 1) // 2, d], zeros outside. [B, L, D]."""
    out = np.zeros(x.shape)
    for n in range(x.shape[1]):
        for i in range(len(taps)):
            m = n + i - (len(taps) - 1) // 2
            if 0 <= m < x.shape[1]:
                out[:, n] += taps[i] * x[:, m]
    return out


def state_space(u, transition, inputs, outputs, skip):
    """x[k] = A x[k - 1] + B u[k], y[k] = Re(C x[k]) + D u[k], in both directions with one C each.

    u is [B, L, D], A [P, P], B [P, D], C two [D, P], D [D]; A, B and C may be complex. [B, L, D].
    """
    out = u * skip
    for b in range(len(u)):
        for direction, matrix in enumerate(outputs):
            state = np.zeros(len(transition), complex)
            for k in range(u.shape[1])[:: -1 if direction else 1]:
                state = transition @ state + inputs @ u[b, k]
                out[b, k] += (matrix @ state).real
    return out


def sigmoid(x):
    """1 / (1 + e^-x), entry by entry."""
    return 1 / (1 + np.exp(-x))


def silu(x):
    """SiLU, x / (1 + e^-x), entry by entry (arXiv:1702.03118)."""
    return x * sigmoid(x)


def selective_scan(x, step, a, b, c):
    """h[k] = exp(step[k] A) h[k - 1] + step[k] B[k] x[k], y[k] = C[k] h[k], for each channel.

    x and step are [B, L, E], A is [E, N], B and C are [B, L, N]. [B, L, E].
    """
    out = np.zeros(x.shape)
    for row in range(len(x)):
        for e in range(x.shape[2]):
            state = np.zeros(a.shape[1])
            for k in range(x.shape[1]):
                held = [math.exp(step[row, k, e] * a[e, n]) * state[n] for n in range(len(state))]
                state = np.array(held) + step[row, k, e] * b[row, k] * x[row, k, e]
                out[row, k, e] = c[row, k] @ state
    return out


def mamba(x, mask, params, directions):
    """Mamba's block: each direction reads the real tokens of the text in its order. [B, L, D].

    A parameter that is not shared has those of the second direction behind those of the first,
    along its first axis.
    """
    value, gate = np.split(x @ params["project"]["kernel"], 2, axis=-1)
    channels, total = value.shape[2], np.zeros(value.shape)
    for direction in range(directions):
        taps, bias, select, dt, dt_bias, a_log, skip = (
            np.split(params[name], directions)[direction]
            for name in ("taps", "bias", "select", "dt", "dt_bias", "a_log", "skip")
        )
        states = a_log.shape[1]
        for row in range(len(x)):
            state = np.zeros((channels, states))
            places = range(x.shape[1])[:: -1 if direction else 1]
            for k in [place for place in places if mask[row, place]]:
                u = bias.copy()
                for i in range(len(taps)):
                    past = k + (len(taps) - 1 - i) * (1 if direction else -1)
                    if 0 <= past < x.shape[1] and mask[row, past]:
                        u += taps[i] * value[row, past]
                u = silu(u)
                low, b, c = np.split(u @ select, [len(dt), len(dt) + states])
                step = np.log1p(np.exp(low @ dt + dt_bias))[:, None]
                state = np.exp(-step * np.exp(a_log)) * state + step * b * u[:, None]
                total[row, k] += state @ c + skip * u
    return (total * silu(gate)) @ params["out"]["kernel"]


def damped_average(x, alpha, delta, beta, eta):
    """The damped average h <- alpha beta x + (1 - alpha delta) h, y = eta . h. [B, L, D].

    Parameters are [2, D, P], from the start and from the end of the text; both are added
    (arXiv:2209.10655, Sec. 3.1).
    """
    out = np.zeros(x.shape)
    batch, length, dim = x.shape
    for b in range(batch):
        for d in range(dim):
            for way, order in enumerate((range(length), range(length)[::-1])):
                h = np.zeros(alpha.shape[2])
                for n in order:
                    h = (
                        alpha[way, d] * beta[way, d] * x[b, n, d]
                        + (1 - alpha[way, d] * delta[way, d]) * h
                    )
                    out[b, n, d] += eta[way, d] @ h
    return out


def mega_attention(query, key, value, mask, bias, kind, chunk):
    """Attention of one head to the real tokens of the same chunk, with bias[j - i]. [B, L, V]."""
    out = np.zeros(value.shape)
    batch, length, width = query.shape
    for b in range(batch):
        for n in range(length):
            start = n // chunk * chunk
            keys = [m for m in range(start, min(start + chunk, length)) if mask[b, m]]
            scale = 1 / math.sqrt(width) if kind == "softmax" else 1 / max(len(keys), 1)
            scores = [query[b, n] @ key[b, m] * scale + bias[m - n] for m in keys]
            if kind == "softmax":
                weights = [math.exp(s - max(scores)) for s in scores]
                weights = [w / sum(weights) for w in weights]
            else:
                mu, sigma = math.sqrt(1 / 2), math.sqrt(1 / (4 * math.pi))
                weights = [(1 + math.erf((s - mu) / (sigma * math.sqrt(2)))) / 2 for s in scores]
            for m, weight in zip(keys, weights, strict=True):
                out[b, n] += weight * value[b, m]
    return out


def mega(x, mask, params, kind, chunk):
    """Mega's sublayer and its gated residual connection (arXiv:2209.10655, Sec. 3.2). [B, L, D].

    The average has the residual and SiLU of the authors' code; the paper's has neither (Eq. 6).
    """
    real = x * mask[..., None]
    alpha, delta = sigmoid(params["alpha"]), sigmoid(params["delta"])
    eta = params["eta"] / math.sqrt(params["eta"].shape[2])
    average = damped_average(real, alpha, delta, params["beta"], eta)
    average = silu(average + params["skip"] * real)
    value = silu(x @ params["value"]["kernel"] + params["value"]["bias"])
    width, narrow = value.shape[2], params["scale"].shape[1]
    parts = average @ params["project"]["kernel"] + params["project"]["bias"]
    ends = np.cumsum([narrow, width, x.shape[2]])
    shared, reset, hidden, update = np.split(parts, ends, axis=2)
    query, key = (silu(shared) * params["scale"][i] + params["offset"][i] for i in (0, 1))
    middle = len(params["positions"]) // 2
    bias = {offset - middle: weight for offset, weight in enumerate(params["positions"])}
    y = mega_attention(query, key, value, mask, bias, kind, chunk)
    hidden = silu(hidden + (silu(reset) * y) @ params["out"]["kernel"])
    return sigmoid(update) * hidden + (1 - sigmoid(update)) * x


def crossed_variance(a, b, matched):
    """Estimates the variance of mean(a) - mean(b) over seeds and rows from pairs of answers.

    Gallas, Pennello and Myers 2007 (J Opt Soc Am A 24:B70-B80): each expected product of two
    answers, by whether they share the seed and whether they share the row, is estimated by the mean
    over all such pairs. The variance is a sum of these four, less the product of two that share
    neither.

    Args:
      a: which rows each run of the first model answers correctly, [runs, rows].
      b: the same for the second model.
      matched: whether runs of the same number share their seed.
    """
    sides = [(1, a), (-1, b)]
    total = 0.0
    for sign, x in sides:
        for other_sign, y in sides:
            share_seeds = matched or x is y
            sums, counts = {}, {}
            for s in range(len(x)):
                for t in range(len(y)):
                    for n in range(x.shape[1]):
                        for m in range(y.shape[1]):
                            kind = (share_seeds and s == t, n == m)
                            sums[kind] = sums.get(kind, 0.0) + float(x[s, n]) * float(y[t, m])
                            counts[kind] = counts.get(kind, 0) + 1
            independent = sums[False, False] / counts[False, False]
            pairs = sum(counts.values())
            product = sum(sums.values()) / pairs  # of the two means
            total += sign * other_sign * (product - independent)
    return total
