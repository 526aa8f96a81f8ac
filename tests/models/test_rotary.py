"""Rotary positions against rotation matrices in float64."""

import naive as oracle
import numpy as np
import pytest
from arrays import applied, assert_close, float64, normal, random_variables

from lra_fnet.models.mixers.longformer import Longformer
from lra_fnet.models.mixers.reformer import Reformer
from lra_fnet.models.mixers.rotary import Rotary, rotate
from lra_fnet.models.mixers.sinkhorn import Sinkhorn
from lra_fnet.models.mixers.synthesizer import Synthesizer

FIELDS = {"dim": 6, "max_len": 9, "layer": 0, "num_layers": 1, "dropout": 0.0}
FIELDS |= {"num_heads": 2, "qkv_dim": 8}


def turned(x):
    """Turns each pair of features of x [B, L, H, K] by a matrix, in float64."""
    (out,) = float64(x)
    out = out.copy()
    for n in range(x.shape[1]):
        for pair in range(x.shape[3] // 2):
            angle = n / 10000 ** (2 * pair / x.shape[3])
            matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            out[:, n, :, 2 * pair : 2 * pair + 2] = out[:, n, :, 2 * pair : 2 * pair + 2] @ matrix.T
    return out


def test_rotation_equals_matrices():
    x = normal(2, 5, 3, 4)
    assert_close(rotate(x), turned(x))


def rotary(cls):
    return type(f"Rotary{cls.__name__}", (Rotary, cls), {})


def test_longformer_rotates_the_projections_of_its_global_positions_too():
    mixer = rotary(Longformer)(window=4, num_global=2, **FIELDS)
    x, mask = normal(2, 9, 6), np.arange(9) < np.array([[9], [7]])
    variables = random_variables(mixer, x, mask)
    weights = {name: np.float64(w["kernel"]) for name, w in variables["params"].items()}

    def heads(name):
        y = (float64(x)[0] @ weights[name]).reshape(2, 9, 2, 4)
        return y if "value" in name else turned(y)

    across = heads("query_global")[:, :2], heads("key_global"), heads("value_global")
    want = oracle.longformer(heads("query"), heads("key"), heads("value"), mask, 4, across)
    got = applied(mixer, variables, x, mask)
    assert_close(got, want.reshape(2, 9, 8) @ weights["out"], 2e-4)


SETTINGS = {
    Reformer: {"num_hashes": 2, "num_buckets": 4, "chunk_size": 3, "redraw": False, "seed": 0},
    Sinkhorn: {"block_size": 3, "iterations": 3, "temperature": 0.75, "gumbel": False},
    Synthesizer: {"kinds": ("random", "attention"), "factor": 4, "block_size": 3},
}


@pytest.mark.parametrize("cls", SETTINGS)
def test_mixers_with_projections_of_their_own_are_rotated(cls):
    plain, rotated = (make(**SETTINGS[cls], **FIELDS) for make in (cls, rotary(cls)))
    x, mask = normal(1, 9, 6), np.ones((1, 9), bool)
    variables = random_variables(plain, x, mask)
    got, without = (applied(mixer, variables, x, mask) for mixer in (rotated, plain))
    assert abs(np.asarray(got) - np.asarray(without)).max() > 1e-3
