"""Rotary positions against rotation matrices in float64."""

import jax
import numpy as np
import pytest
from arrays import assert_close, float64, normal

from lra_fnet.errors import UserError
from lra_fnet.models.mixers.longformer import Longformer
from lra_fnet.models.mixers.rotary import Rotary, RotaryAttention, rotate
from lra_fnet.testing import check_mixer


def test_rotation_equals_matrices():
    x = normal(2, 5, 3, 4)
    (want,) = float64(x)
    for n in range(5):
        for pair in range(2):
            angle = n / 10000 ** (2 * pair / 4)
            matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            want[:, n, :, 2 * pair : 2 * pair + 2] = (
                want[:, n, :, 2 * pair : 2 * pair + 2] @ matrix.T
            )
    assert_close(rotate(x), want)


def test_products_depend_on_the_distance_only():
    query, key = (np.broadcast_to(normal(1, 1, 1, 8, seed=seed), (1, 20, 1, 8)) for seed in (0, 1))
    products = np.einsum("blhk,bmhk->lm", rotate(query), rotate(key))
    for distance in range(-19, 20):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-4)
    assert products.std() > 0.1


def test_other_mixers_can_have_rotary_positions():
    class RotaryLongformer(Rotary, Longformer):
        pass

    check_mixer(RotaryLongformer, window=4, num_global=1)


def test_odd_heads_are_rejected():
    fields = {"dim": 6, "max_len": 8, "layer": 0, "num_layers": 1, "dropout": 0.0}
    with pytest.raises(UserError, match="even width, got 3"):
        RotaryAttention(
            num_heads=2, qkv_dim=6, implementation="naive", block_size=1, **fields
        ).init(jax.random.key(0), normal(1, 8, 6), np.ones((1, 8), bool), train=False)
