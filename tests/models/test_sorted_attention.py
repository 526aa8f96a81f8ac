"""Reformer and Sinkhorn against float64 oracles, and their own settings."""

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


def masks():
    """Four rows: all real, padding at the end, real tokens anywhere, none."""
    scattered = np.random.default_rng(3).random(LENGTH) < 0.6
    positions = np.arange(LENGTH)
    rows = [positions >= 0, positions < LENGTH - 5, scattered, positions < 0]
    return jnp.asarray(np.stack(rows))


def heads(count):
    return [normal(4, LENGTH, 2, 5, seed=seed) for seed in range(count)]


def sinkhorn_module(**changes):
    return Sinkhorn(**(FIELDS | SINKHORN | {"dropout": 0.0} | changes))


# Reformer


@pytest.mark.parametrize(("chunk_size", "rounds"), [(1, 3), (3, 2), (100, 1)])
def test_lsh_attention_equals_the_oracle_at_any_mask(chunk_size, rounds):
    """A token that is alone in its buckets attends to itself, no other does."""
    query_key, value = heads(2)
    shape = (4, 2, rounds, LENGTH)
    buckets = jnp.asarray(np.random.default_rng(7).integers(0, 4, shape), jnp.int32)
    mask = masks()
    attend = functools.partial(reformer.lsh_attention, num_buckets=4, chunk_size=chunk_size)
    got = jax.jit(attend)(query_key, value, mask, buckets)
    arrays = float64(query_key, value)
    assert_close(got, oracle.lsh_attention(*arrays, *map(np.asarray, (mask, buckets)), chunk_size))
    assert not np.asarray(got)[~np.asarray(mask)].any()


def test_reformer_equals_the_oracle_and_takes_a_shared_projection():
    module = Reformer(**FIELDS | REFORMER | {"dropout": 0.0, "layer": 1})
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


@pytest.mark.parametrize("block_size", [1, 3, 4, 100])
def test_sinkhorn_attention_equals_the_oracle_at_any_mask(block_size):
    inputs, mask = heads(3), masks()
    num_blocks = -(-LENGTH // block_size)
    sorting = jnp.exp(normal(4, 2, num_blocks, num_blocks))
    attend = functools.partial(sinkhorn.sinkhorn_attention, block_size=block_size)
    got = jax.jit(attend)(*inputs, mask, sorting)
    arrays = [*float64(*inputs), np.asarray(mask), *float64(sorting)]
    assert_close(got, oracle.sorted_block_attention(*arrays, block_size))
    assert not np.asarray(got)[3].any()


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
