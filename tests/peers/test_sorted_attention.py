"""Reformer and Sinkhorn against transformers, reformer-pytorch and sinkhorn-transformer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_fnet.models.mixers import reformer, sinkhorn

torch = pytest.importorskip("torch")

WIDTH = 6  # of a head


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def assert_close(got, want, tolerance=1e-5):
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


@functools.partial(jax.jit, static_argnames=("num_buckets", "chunk_size"))
def lsh(query_key, value, mask, buckets, *, num_buckets, chunk_size):
    return reformer.lsh_attention(
        query_key, value, mask, buckets, num_buckets=num_buckets, chunk_size=chunk_size
    )


def test_lsh_attention_and_its_gradient_equal_those_of_reformer_pytorch(monkeypatch):
    """Four rounds, within buckets, duplicates counted: settings of theirs, not the defaults.

    Their first chunk sees the last one, but no token there of its bucket and round. Their padding
    is sorted among the tokens, so only full texts are compared.
    """
    peer = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    length, chunk_size, rounds = 48, 4, 4
    num_buckets = length // chunk_size  # theirs
    rotations = normal(1, rounds, WIDTH, num_buckets // 2)
    query_key, value, cotangent = (normal(2, length, 1, WIDTH, seed=seed) for seed in range(3))

    theirs = torch.from_numpy(rotations.transpose(0, 2, 1, 3).copy())
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: theirs)
    attend = peer.LSHAttention(
        bucket_size=chunk_size,
        n_hashes=rounds,
        attend_across_buckets=False,
        allow_duplicate_attention=False,
    )
    inputs = [torch.from_numpy(a[:, :, 0]).requires_grad_() for a in (query_key, value)]
    want, _, buckets = attend(*inputs)
    want.backward(torch.from_numpy(cotangent[:, :, 0]))

    found = jax.jit(reformer.hash_buckets)(query_key, rotations)
    offsets = num_buckets * np.arange(rounds).reshape(1, rounds, 1)
    np.testing.assert_array_equal(
        np.asarray(found)[:, 0] + offsets, buckets.numpy().reshape(2, rounds, length)
    )
    mask = jnp.ones((2, length), bool)
    run = functools.partial(lsh, num_buckets=num_buckets, chunk_size=chunk_size)
    got, pullback = jax.vjp(lambda q, v: run(q, v, mask, found), query_key, value)
    assert_close(got[:, :, 0], want.detach().numpy())
    for gradient, tensor in zip(pullback(jnp.asarray(cotangent)), inputs, strict=True):
        assert_close(gradient[:, :, 0], tensor.grad.numpy(), 1e-4)


def reformer_layer(peer, *, chunk_size, num_buckets=4, num_hashes=1):
    config = peer.ReformerConfig(
        hidden_size=2 * WIDTH,
        num_attention_heads=2,
        attention_head_size=WIDTH,
        lsh_attn_chunk_length=chunk_size,
        num_buckets=num_buckets,
        num_hashes=num_hashes,
        is_decoder=False,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
    )
    return peer.LSHSelfAttention(config, 0).eval()


def heads_of(layer, x):
    """Their projections of x [B, L, D] -> query_key, value [B, L, H, K].

    Their keys have length 1 and their logits are not divided by sqrt(K), which here scales q.
    """
    weights = (part.weight.detach().numpy() for part in (layer.query_key, layer.value))
    query_key, value = ((x @ weight.T).reshape(*x.shape[:2], 2, WIDTH) for weight in weights)
    return query_key * WIDTH**0.5, value


def test_buckets_equal_those_of_transformers(monkeypatch):
    peer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    layer = reformer_layer(peer, chunk_size=4, num_buckets=8, num_hashes=3)
    rotations, x = normal(2, 3, WIDTH, 4), normal(2, 11, 2, WIDTH)
    theirs = torch.from_numpy(rotations.transpose(0, 2, 1, 3).copy())
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: theirs)
    want = layer._hash_vectors(torch.from_numpy(x.transpose(0, 2, 1, 3).copy()), 3, None)
    got = np.asarray(reformer.hash_buckets(x, rotations)) + 8 * np.arange(3).reshape(1, 1, 3, 1)
    np.testing.assert_array_equal(got.reshape(2, 2, 33), want.numpy())


@pytest.mark.parametrize("chunk_size", [20, 4], ids=["one chunk", "chunks"])
def test_one_bucket_equals_the_chunked_attention_of_transformers(chunk_size):
    """Their tokens attend across buckets, and their rounds' duplicates count twice.

    With one round and one bucket for all the two agree, except in the first of several chunks,
    which there sees the last one.
    """
    peer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    layer = reformer_layer(peer, chunk_size=chunk_size)
    x = normal(2, 16, 2 * WIDTH)
    mask = np.arange(16)[None] < np.asarray([[16], [13]])
    # Their padding has a bucket of its own after all others, as ours has.
    buckets = torch.from_numpy(np.broadcast_to(~mask[:, None], (2, 2, 16)).astype(np.int64))
    with torch.no_grad():
        want = layer(torch.from_numpy(x), torch.from_numpy(mask), buckets=buckets).hidden_states
    inputs = *heads_of(layer, x), mask, np.zeros((2, 2, 1, 16), np.int32)
    got = lsh(*inputs, num_buckets=1, chunk_size=chunk_size)
    first = chunk_size if chunk_size < 16 else 0
    compared = mask & (np.arange(16)[None] >= first)
    assert_close(got.reshape(want.shape)[compared], want.numpy()[compared])


def test_balancing_equals_the_sorting_operator_of_sinkhorn_transformer():
    peer = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    logits = 3 * normal(4, 1, 7, 7)
    want = peer.sinkhorn_sorting_operator(torch.from_numpy(logits[:, 0]), 7)
    got = sinkhorn.balance(jnp.asarray(logits), jnp.ones((4, 7), bool), 7)
    assert_close(got[:, 0], want.numpy())


def test_attention_and_its_gradients_equal_those_of_sinkhorn_transformer():
    """With keys as values: their sorted values are the sorted keys (b_v_r is made of b_k_r)."""
    peer = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    logits = normal(2, 2, 4, 4)
    query, key, cotangent = (normal(2, 12, 2, WIDTH, seed=seed) for seed in range(3))
    layer = peer.SinkhornAttention(
        3, 2 * WIDTH, WIDTH, 2, max_seq_len=12, non_permutative=False, dropout=0.0
    )

    class Sorting(torch.nn.Module):
        def forward(self, q, k, topk):
            return peer.sinkhorn_sorting_operator(tensors[2].reshape(4, 4, 4), 5)

    layer.sort_net = Sorting()
    tensors = [
        torch.from_numpy(a.copy()).requires_grad_()
        for a in (query.transpose(0, 2, 1, 3), key.transpose(0, 2, 1, 3), logits)
    ]
    want = layer(tensors[0], tensors[1], tensors[1])
    want.backward(torch.from_numpy(cotangent.transpose(0, 2, 1, 3).copy()))

    @jax.jit
    def attend(query, key, logits):
        sorting = sinkhorn.balance(logits, jnp.ones((2, 4), bool), 5)
        mask = jnp.ones((2, 12), bool)
        return sinkhorn.sinkhorn_attention(query, key, key, mask, sorting, block_size=3)

    got, pullback = jax.vjp(attend, query, key, logits)
    assert_close(got.transpose(0, 2, 1, 3), want.detach().numpy())
    gradients = pullback(jnp.asarray(cotangent))
    for gradient, tensor in zip(gradients, tensors, strict=True):
        gradient = gradient if gradient.shape == tensor.shape else gradient.transpose(0, 2, 1, 3)
        assert_close(gradient, tensor.grad.numpy())
