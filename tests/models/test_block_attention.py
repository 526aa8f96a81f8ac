"""Local, Sparse, Longformer and BigBird against float64 oracles, full attention and each other."""

import functools

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import assert_close, float64, normal

from lra_fnet.models.mixers import bigbird, local, longformer, sparse

LENGTH = 23  # divides by no block below
FIELDS = {"dim": 6, "num_heads": 2, "qkv_dim": 6, "layer": 0, "num_layers": 2, "dropout": 0.0}


def qkv(batch=3, length=LENGTH, heads=2, width=5, scale=1.0):
    query, key, value = (normal(batch, length, heads, width, seed=seed) for seed in range(3))
    return scale * query, scale * key, value


def holes(batch=3, length=LENGTH):
    """A mask with holes anywhere, a padded row with a masked first position, and an empty row."""
    mask = np.random.default_rng(0).random((batch, length)) < 0.7
    mask[1] = (np.arange(length) > 0) & (np.arange(length) < length - 8)
    mask[2] = False
    return jnp.asarray(mask)


def bigbird_layout(length, block_size, num_global, last, num_random, seed=0):
    """Arguments of `bigbird_attention`, and for each head the random blocks of each block."""
    num_blocks = -(-length // block_size)
    first, stop = num_global, num_blocks - last
    uniform = np.random.default_rng(seed).random((2, stop - first, num_random))
    picks = bigbird.draw_blocks(uniform)
    layout = {"num_blocks": num_blocks, "first": first, "stop": stop, "picks": picks}
    drawn = [[set() for _ in range(num_blocks)] for _ in range(2)]
    for h, row, slot in np.ndindex(picks.shape):
        if picks[h, row, slot] >= 0:
            drawn[h][first + row].add(int(first + picks[h, row, slot]))
    return layout | {"block_size": block_size}, drawn


# Each case: our function of (query, key, value, mask), and the oracle's set keys_of(h, i).


def local_case(block_size, neighbours):
    attend = functools.partial(local.local_attention, block_size=block_size, neighbours=neighbours)
    return attend, lambda _, i: oracle.local_keys(i, LENGTH, block_size, neighbours)


def sparse_case(*settings):
    names = ("pattern", "block_size", "summary", "causal", "global_first")
    attend = functools.partial(sparse.sparse_attention, **dict(zip(names, settings, strict=True)))
    return attend, lambda _, i: oracle.sparse_keys(i, LENGTH, *settings)


def window_case(window):
    attend = functools.partial(longformer.longformer_attention, window=window)
    return attend, lambda _, i: {j for j in range(LENGTH) if abs(i - j) <= window / 2}


def bigbird_case(block_size, num_global, last, num_random):
    layout, drawn = bigbird_layout(LENGTH, block_size, num_global, last, num_random)
    ends = {*range(num_global), *range(layout["stop"], layout["num_blocks"])}

    def keys_of(h, i):
        return oracle.bigbird_keys(i, LENGTH, block_size, layout["num_blocks"], ends, drawn[h])

    return functools.partial(bigbird.bigbird_attention, **layout), keys_of


CASES = {
    "local": local_case(4, 0),
    "local, one neighbour": local_case(5, 1),
    "local, more neighbours than blocks": local_case(5, 9),
    "fixed": sparse_case("fixed", 5, 2, False, False),
    "fixed, causal": sparse_case("fixed", 5, 2, True, False),
    "fixed, all columns": sparse_case("fixed", 4, 4, False, False),
    "fixed, causal, first unmasked": sparse_case("fixed", 5, 2, True, True),
    "fixed, first is a summary": sparse_case("fixed", 4, 4, False, True),
    "strided": sparse_case("strided", 5, 0, False, False),
    "strided, causal": sparse_case("strided", 4, 0, True, False),
    "strided, first unmasked": sparse_case("strided", 4, 0, False, True),
    "window 2": window_case(2),
    "window 10": window_case(10),
    "bigbird": bigbird_case(2, 1, True, 2),
    "bigbird, two and no last": bigbird_case(3, 2, False, 1),
    "bigbird, nothing global": bigbird_case(2, 0, False, 2),
    "bigbird, only the last": bigbird_case(3, 0, True, 1),
    "bigbird, nothing random": bigbird_case(3, 1, True, 0),
}


@pytest.mark.parametrize(("attend", "keys_of"), CASES.values(), ids=CASES)
def test_output_is_right_with_holes_in_the_mask_and_an_empty_row(attend, keys_of):
    inputs, mask = qkv(), holes()
    out = jax.jit(attend)(*inputs, mask)
    assert_close(out, oracle.set_attention(*float64(*inputs), np.asarray(mask), keys_of))
    assert not np.asarray(out[2]).any()


@pytest.mark.parametrize(("window", "num_global"), [(2, 1), (8, 3), (60, 3), (8, LENGTH)])
def test_longformer_equals_the_oracle_with_global_positions(window, num_global):
    inputs, mask = qkv(), holes()
    query, key, value = (normal(*inputs[0].shape, seed=seed) for seed in (7, 8, 9))
    across = query[:, :num_global], key, value
    attend = functools.partial(longformer.longformer_attention, window=window)
    got = jax.jit(attend)(*inputs, mask, global_projections=across)
    arrays = float64(*inputs)
    want = oracle.longformer(*arrays, np.asarray(mask), window, float64(*across))
    assert_close(got, want)
    assert not np.asarray(got[2]).any()


# BigBird's random blocks


@pytest.mark.parametrize("num_random", [1, 3, 7])
def test_random_blocks_lie_outside_the_window_and_none_comes_twice(num_random):
    num_blocks = 9
    uniform = np.random.default_rng(1).random((50, num_blocks, num_random))
    uniform[0], uniform[1] = 0, 1 - 2**-24  # the ends of the interval
    picks = bigbird.draw_blocks(uniform)
    assert picks.shape == (50, num_blocks, num_random)
    for head, i in np.ndindex(picks.shape[:2]):
        outside = {j for j in range(num_blocks) if abs(i - j) > 1}
        drawn = [int(j) for j in picks[head, i] if j >= 0]
        assert set(drawn) <= outside
        assert len(set(drawn)) == len(drawn) == min(num_random, len(outside))


def test_every_choice_of_random_blocks_is_equally_likely():
    draws = 4000
    uniform = np.random.default_rng(2).random((draws, 7, 2))
    picks = np.sort(bigbird.draw_blocks(uniform)[:, 3], axis=1)  # of 0, 1, 5, 6: 6 pairs
    pairs, counts = np.unique(picks, axis=0, return_counts=True)
    assert len(pairs) == 6
    assert (abs(counts / draws - 1 / 6) < 4 * np.sqrt(5 / 36 / draws)).all()


def test_bigbird_sees_window_first_last_and_random_blocks_of_each_head():
    layout = {"block_size": 2, "num_random": 2, "num_global": 1, "last_is_global": True}
    module = bigbird.BigBird(**FIELDS, **layout, max_len=47, seed=0)
    zero = jnp.zeros((1, 47, 2, 47))
    value = jnp.broadcast_to(jnp.eye(47)[None, :, None], zero.shape)
    attend = functools.partial(module.apply, {}, train=False, method="attend")
    out = jax.jit(attend)(zero, zero, value, jnp.ones((1, 47), bool))
    seen = np.asarray(out)[0] > 0  # [L, H, L]
    assert seen[[0, 1, 46]].all()
    assert seen[:, :, [0, 1, 46]].all()
    row = seen[20, :, :46].reshape(2, 23, 2).all(axis=2)
    assert row[:, [0, 9, 10, 11]].all()
    assert (row.sum(axis=1) == 4 + 2).all()  # the last block, one position here, is not in the row
    assert (seen[20, 0] != seen[20, 1]).any()
