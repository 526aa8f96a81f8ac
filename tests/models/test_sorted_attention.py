"""Reformer and Sinkhorn against float64 oracles, their exact limits and their own settings."""

import functools
import itertools

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import assert_close, float64, inputs_of, new_key, normal, random_variables

from lra_fnet.models.mixers import reformer, sinkhorn
from lra_fnet.models.mixers.reformer import Reformer
from lra_fnet.models.mixers.sinkhorn import Sinkhorn

FIELDS = {"dim": 6, "num_heads": 2, "qkv_dim": 4, "max_len": 13, "layer": 0, "num_layers": 2}
REFORMER = {"num_hashes": 2, "num_buckets": 4, "chunk_size": 3, "redraw": False, "seed": 0}
SINKHORN = {"block_size": 3, "iterations": 3, "temperature": 0.75, "gumbel": False}
LENGTH = 13


def masks(length=LENGTH):
    """Four rows: all real, padding at the end, real tokens anywhere, none."""
    scattered = np.random.default_rng(3).random(length) < 0.6
    positions = np.arange(length)
    rows = [positions >= 0, positions < length - 5, scattered, positions < 0]
    return jnp.asarray(np.stack(rows))


def heads(count, length=LENGTH, width=5, batch=4):
    return [normal(batch, length, 2, width, seed=seed) for seed in range(count)]


def random_buckets(rounds, num_buckets, length=LENGTH, batch=4):
    shape = (batch, 2, rounds, length)
    return jnp.asarray(np.random.default_rng(7).integers(0, num_buckets, shape), jnp.int32)


def reformer_module(**changes):
    return Reformer(**(FIELDS | REFORMER | {"dropout": 0.0} | changes))


def sinkhorn_module(**changes):
    return Sinkhorn(**(FIELDS | SINKHORN | {"dropout": 0.0} | changes))


# Reformer


@functools.partial(jax.jit, static_argnames="chunk_size")
def lsh(*inputs, chunk_size=3):
    return reformer.lsh_attention(*inputs, num_buckets=LENGTH, chunk_size=chunk_size)


def test_buckets_equal_the_oracle():
    x, rotations = normal(2, 9, 3, 5), normal(3, 4, 5, 3)
    got = jax.jit(reformer.hash_buckets)(x, rotations)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, oracle.angular_buckets(*float64(x, rotations)))
    assert set(np.unique(got)) == set(range(6))


@pytest.mark.parametrize(("chunk_size", "rounds"), [(1, 3), (3, 2), (100, 1)])
def test_lsh_attention_equals_the_oracle_at_any_mask(chunk_size, rounds):
    query_key, value = heads(2)
    buckets, mask = random_buckets(rounds, 4), masks()
    got = lsh(query_key, value, mask, buckets, chunk_size=chunk_size)
    arrays = float64(query_key, value)
    assert_close(got, oracle.lsh_attention(*arrays, *map(np.asarray, (mask, buckets)), chunk_size))
    assert not np.asarray(got)[~np.asarray(mask)].any()


def test_a_token_attends_to_itself_only_when_alone():
    query_key, value = heads(2)
    mask = jnp.ones((4, LENGTH), bool)
    alone = jnp.asarray(np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (4, 2, 3, LENGTH)))
    assert_close(lsh(query_key, value, mask, alone, chunk_size=LENGTH), value)
    pairs = alone // 2  # the last token is alone
    got = lsh(query_key, value, mask, pairs, chunk_size=LENGTH)
    partner = np.minimum(np.arange(LENGTH) ^ 1, LENGTH - 1)
    assert_close(got, value[:, partner])


def test_reformer_equals_the_oracle_and_takes_a_shared_projection():
    module = reformer_module(layer=1)
    variables, x, mask = random_variables(module, *inputs_of(module)), normal(4, LENGTH, 6), masks()
    assert set(variables) == {"params"}  # no other state: nothing for a checkpoint to miss
    assert set(variables["params"]) == {"query_key", "value", "out"}
    rotations = module.apply({}, 2, train=False, method="rotations")
    (x64,) = float64(x)
    kernels = {name: float64(p["kernel"])[0] for name, p in variables["params"].items()}
    query_key, value = (
        (x64 @ kernels[name]).reshape(4, LENGTH, 2, 2) for name in ("query_key", "value")
    )
    buckets = oracle.angular_buckets(query_key, *float64(rotations))
    want = oracle.lsh_attention(query_key, value, np.asarray(mask), buckets, 3)
    got = jax.jit(functools.partial(module.apply, variables, train=False))(x, mask)
    assert_close(got, want.reshape(4, LENGTH, 4) @ kernels["out"])


# Sinkhorn

balance = jax.jit(sinkhorn.balance, static_argnums=2)


@functools.partial(jax.jit, static_argnames="block_size")
def attend(*inputs, block_size=3):
    return sinkhorn.sinkhorn_attention(*inputs, block_size=block_size)


def sort_matrix(*, num_blocks=5, iterations=3, seed=0):
    """A balanced R [4, 2, N, N] of random logits, and which blocks have a token under `masks`."""
    logits = normal(4, 2, num_blocks, num_blocks, seed=seed)
    real = np.zeros((4, num_blocks * 3), bool)
    real[:, :LENGTH] = masks()
    valid = jnp.asarray(real.reshape(4, num_blocks, 3).any(axis=2))
    return logits, valid, balance(logits, valid, iterations)


@pytest.mark.parametrize("iterations", [1, 4])
def test_balancing_equals_the_oracle(iterations):
    logits, valid, got = sort_matrix(iterations=iterations)
    assert not np.asarray(valid).all()
    assert_close(got, oracle.sinkhorn_balance(*float64(logits), np.asarray(valid), iterations))


@pytest.mark.parametrize("block_size", [1, 3, 4, 100])
def test_sinkhorn_attention_equals_the_oracle_at_any_mask(block_size):
    inputs, mask = heads(3), masks()
    num_blocks = -(-LENGTH // block_size)
    sorting = jnp.exp(normal(4, 2, num_blocks, num_blocks))
    got = attend(*inputs, mask, sorting, block_size=block_size)
    arrays = [*float64(*inputs), np.asarray(mask), *float64(sorting)]
    assert_close(got, oracle.sorted_block_attention(*arrays, block_size))
    assert not np.asarray(got)[3].any()


def test_a_permutation_sends_each_block_to_its_own_and_one_other():
    order = np.asarray([2, 0, 3, 1])  # block i is joined by block order[i]
    query, key = heads(2, length=12, width=12, batch=1)
    value = jnp.eye(12)[None, :, None].repeat(2, 2)  # outputs are the weights
    sorting = jnp.broadcast_to(jnp.eye(4)[order], (1, 2, 4, 4))
    got = np.asarray(attend(query, key, value, jnp.ones((1, 12), bool), sorting))
    seen = (got[0] > 0).any(axis=1).reshape(4, 3, 4, 3).any(axis=(1, 3))  # by either head
    want = np.eye(4, dtype=bool) | np.eye(4, dtype=bool)[order]
    np.testing.assert_array_equal(seen, want)


def test_sinkhorn_equals_the_oracle_for_texts_shorter_than_max_len():
    module = sinkhorn_module(max_len=20, temperature=0.5)
    variables, x, mask = random_variables(module, *inputs_of(module)), normal(4, LENGTH, 6), masks()
    assert set(variables) == {"params"}
    params = jax.tree.map(lambda leaf: float64(leaf)[0], variables["params"])
    assert params["sort_logits"]["kernel"].shape == (6, 2 * 7)  # heads, blocks of max_len
    (x64,), mask64 = float64(x), np.asarray(mask)
    logits = oracle.sort_logits(x64, mask64, params, 2, 3) / 0.5
    valid = np.pad(mask64, ((0, 0), (0, 2))).reshape(4, 5, 3).any(axis=2)
    sorting = oracle.sinkhorn_balance(logits, valid, 3)
    kernels = [params[name]["kernel"] for name in ("query", "key", "value")]
    arrays = [(x64 @ kernel).reshape(4, LENGTH, 2, 2) for kernel in kernels]
    want = oracle.sorted_block_attention(*arrays, mask64, sorting, 3)
    got = jax.jit(functools.partial(module.apply, variables, train=False))(x, mask)
    assert_close(got, want.reshape(4, LENGTH, 4) @ params["out"]["kernel"])


def test_gumbel_noise_is_drawn_in_training_only_and_for_each_row():
    """Equal rows differ by their noise alone."""
    x, mask = jnp.tile(normal(1, LENGTH, 6), (3, 1, 1)), jnp.ones((3, LENGTH), bool)
    variables = random_variables(sinkhorn_module(), *inputs_of(sinkhorn_module()))

    @functools.partial(jax.jit, static_argnames=("train", "gumbel"))
    def mix(seed, *, train, gumbel):
        rngs = {"dropout": new_key(seed)}
        return sinkhorn_module(gumbel=gumbel).apply(variables, x, mask, train=train, rngs=rngs)

    noisy = np.asarray(mix(0, train=True, gumbel=True))
    assert (mix(0, train=True, gumbel=False) == mix(0, train=False, gumbel=True)).all()
    assert (mix(1, train=True, gumbel=True) != noisy).any()
    for a, b in itertools.combinations(noisy, 2):
        assert (a != b).any()
