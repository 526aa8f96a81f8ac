"""Local, Longformer and BigBird against local-attention's and transformers' modules, in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_fnet.models.mixers import bigbird, local, longformer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
local_attention = pytest.importorskip("local_attention")

from transformers.models.big_bird import modeling_big_bird  # noqa: E402
from transformers.models.longformer import modeling_longformer  # noqa: E402

DIM, HEADS, BATCH = 12, 2, 3
FIELDS = {"dim": DIM, "num_heads": HEADS, "qkv_dim": DIM, "layer": 0, "num_layers": 1}


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def kernels(*names):
    return {name: normal(DIM, DIM, seed=k) / 3 for k, name in enumerate(names)}


def prefixes(length, *lengths):
    return np.arange(length)[None] < np.asarray(lengths)[:, None]


def run_ours(module, weights, x, mask, cotangent):
    """Outputs before the last projection (its matrix is the unit one), and the inputs' gradient."""
    params = {name: {"kernel": jnp.asarray(w)} for name, w in weights.items()}
    params["out"] = {"kernel": jnp.eye(DIM)}
    mix = functools.partial(module.apply, {"params": params}, mask=jnp.asarray(mask), train=False)
    out, pull = jax.vjp(jax.jit(mix), jnp.asarray(x))
    return np.asarray(out), np.asarray(pull(jnp.asarray(cotangent))[0])


def run_theirs(call, module, weights, x, cotangent):
    with torch.no_grad():
        for name, weight in weights.items():
            linear = getattr(module, name)
            linear.weight.copy_(torch.from_numpy(weight.T))
            if linear.bias is not None:
                linear.bias.zero_()
    inputs = torch.from_numpy(x).requires_grad_()
    out = call(inputs)
    out.backward(torch.from_numpy(cotangent))
    return out.detach().numpy(), inputs.grad.numpy()


def assert_equal(ours, theirs, mask):
    """At real tokens: what stands at padding is nobody's business."""
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got[mask], want[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_global", [0, 1, 3])
@pytest.mark.parametrize("window", [4, 8])
def test_longformer_equals_that_of_transformers(window, num_global):
    length = 32
    mask = prefixes(length, length, 21, 6)
    x, cotangent = normal(BATCH, length, DIM), normal(BATCH, length, DIM, seed=9)
    cotangent[~mask] = 0
    names = ["query", "key", "value"]
    if num_global:
        names += ["query_global", "key_global", "value_global"]
    weights = kernels(*names)
    config = modeling_longformer.LongformerConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        attention_window=[window],
        attention_probs_dropout_prob=0.0,
    )
    peer = modeling_longformer.LongformerSelfAttention(config, 0)
    role = np.where(mask, 0, -10000)  # theirs: negative for padding, positive for global positions
    role[:, :num_global] = 10000
    role = torch.from_numpy(role)

    def call(inputs):
        return peer(inputs, role, role < 0, role > 0, num_global > 0)[0]

    theirs = run_theirs(call, peer, weights, x, cotangent)
    module = longformer.Longformer(
        window=window, num_global=num_global, max_len=length, dropout=0.0, **FIELDS
    )
    assert_equal(run_ours(module, weights, x, mask, cotangent), theirs, mask)


@pytest.mark.parametrize("num_random", [1, 3])
def test_bigbird_equals_that_of_transformers_given_our_random_blocks(monkeypatch, num_random):
    """Theirs draws other blocks in training, and in evaluation takes block 0 for all of them."""
    length, block_size = 40, 4
    mask = prefixes(length, length, 23, 9)
    x, cotangent = normal(BATCH, length, DIM), normal(BATCH, length, DIM, seed=9)
    cotangent[~mask] = 0
    weights = kernels("query", "key", "value")
    config = modeling_big_bird.BigBirdConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        block_size=block_size,
        num_random_blocks=num_random,
        use_bias=False,
        max_position_embeddings=length,
    )
    peer = modeling_big_bird.BigBirdBlockSparseAttention(config)
    settings = {}

    def record(*args, **kwargs):
        settings.update(kwargs)
        return bigbird_attention(*args, **kwargs)

    bigbird_attention = bigbird.bigbird_attention
    monkeypatch.setattr(bigbird, "bigbird_attention", record)
    module = bigbird.BigBird(
        block_size=block_size,
        num_random=num_random,
        num_global=1,
        last_is_global=True,
        seed=0,
        max_len=length,
        dropout=0.0,
        **FIELDS,
    )
    ours = run_ours(module, weights, x, mask, cotangent)
    assert settings["picks"].min() >= 0  # theirs cannot leave a place empty
    drawn = list(settings["picks"] + 1)  # ours count from the first block that is not global
    monkeypatch.setattr(peer, "_bigbird_block_rand_mask_with_head", lambda **_: drawn)
    blocked, band, rows, keys = modeling_big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.from_numpy(mask.astype(np.float32)), block_size
    )

    def call(inputs):
        return peer(inputs, band, rows, keys, blocked, blocked)[0]

    assert_equal(ours, run_theirs(call, peer, weights, x, cotangent), mask)


@pytest.mark.parametrize("neighbours", [0, 1, 2])
@pytest.mark.parametrize("length", [20, 23])
def test_local_attention_equals_that_of_local_attention(neighbours, length):
    mask = prefixes(length, length, 13, 6)
    shape = (BATCH, length, HEADS, 6)
    arrays, cotangent = [normal(*shape, seed=seed) for seed in range(3)], normal(*shape, seed=9)
    cotangent[~mask] = 0
    peer = local_attention.LocalAttention(
        window_size=5,
        look_backward=neighbours,
        look_forward=neighbours,
        autopad=True,
        use_rotary_pos_emb=False,
    )
    inputs = [torch.from_numpy(a).requires_grad_() for a in arrays]
    query, key, value = (a.transpose(1, 2) for a in inputs)
    out = peer(query, key, value, mask=torch.from_numpy(mask)).transpose(1, 2)
    out.backward(torch.from_numpy(cotangent))
    theirs = [out.detach().numpy(), *(a.grad.numpy() for a in inputs)]

    def attend(*arrays):
        return local.local_attention(
            *arrays, jnp.asarray(mask), block_size=5, neighbours=neighbours
        )

    got, pull = jax.vjp(jax.jit(attend), *(jnp.asarray(a) for a in arrays))
    ours = [np.asarray(a) for a in (got, *pull(jnp.asarray(cotangent)))]
    assert_equal(ours, theirs, mask)
