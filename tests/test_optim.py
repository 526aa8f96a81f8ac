"""LRA's schedules and optimizer compared with their formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_fnet import experiment
from lra_fnet.errors import UserError
from lra_fnet.optim import Optimizer


def optimizer(**changes):
    settings = {
        "learning_rate": 0.05,
        "factors": "constant * linear_warmup * rsqrt_decay",
        "warmup": 1000,
        "weight_decay": 0.1,
        "decay_mask": "all",
        "clip_norm": None,
    }
    return Optimizer(**(settings | changes))


RSQRT_DECAY = [(0, 0), (50, 0.05), (100, 0.1), (400, 0.05)]


@pytest.mark.parametrize(
    ("factors", "step", "want"),
    [
        *(("constant * linear_warmup * rsqrt_decay", *case) for case in RSQRT_DECAY),
        ("constant * rsqrt_normalized_decay", 400, math.sqrt(100 / 400)),
        ("constant*decay_every", 25, 0.5**2),
        ("constant * linear_warmup * cosine_decay", 100, 1.0),
        ("constant * linear_warmup * cosine_decay", 150, 0.5),
        ("constant * linear_warmup * cosine_decay", 175, 0.5 * (1 + math.cos(0.75 * math.pi))),
        ("constant * linear_warmup * cosine_decay", 200, 1.0),  # LRA's cosine starts again
        ("constant * linear_warmup * cosine_decay", 50, 0.5),
        ("constant * linear_warmup * linear_decay", 50, 0.5),
        ("constant * linear_warmup * linear_decay", 130, 0.7),
        ("constant * linear_warmup * linear_decay", 230, 0.0),
    ],
)
def test_each_factor_is_its_formula(factors, step, want):
    made = optimizer(
        learning_rate=1.0, factors=factors, warmup=100, steps_per_cycle=100, steps_per_decay=10
    )
    assert float(made.schedule()(step)) == pytest.approx(want, abs=1e-6)


def test_adamw_equals_the_papers_recursion_in_float64():
    """Three steps by hand: Kingma and Ba, Alg. 1, with decay decoupled and scaled by the rate."""
    made = optimizer(factors="constant", learning_rate=0.1, warmup=0)
    transform = made.transform()
    w, m, v = np.array([1.0, -2.0, 3.0]), np.zeros(3), np.zeros(3)
    params = jnp.asarray(w, jnp.float32)
    state = transform.init(params)
    for t in range(1, 4):
        g = np.sin(t + np.arange(3.0))
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
        w = w - 0.1 * (step + 0.1 * w)
        updates, state = transform.update(jnp.asarray(g, jnp.float32), state, params)
        params = params + updates
    np.testing.assert_allclose(params, w, rtol=2e-5)


@pytest.mark.parametrize(
    ("mask", "shrunk"),
    [
        ("all", {"block_0", "norm", "embedding", "head"}),
        ("matrices", {"block_0 kernel", "embedding", "head kernel"}),
        ("weights", {"block_0 kernel", "block_0 skip", "embedding", "head"}),
    ],
)
def test_zero_gradient_shrinks_decayed_weights_only(mask, shrunk):
    made = optimizer(factors="constant", warmup=0, decay_mask=mask)
    matrix, vector = jnp.ones((2, 2)), jnp.ones(2)
    dense = {"kernel": matrix, "bias": vector}
    norm = {"scale": vector, "bias": vector}
    layer = {"mixer": {"skip": vector, "dense": dense}, "norm_mixer": norm}
    params = {"encoder": {"block_0": layer, "norm": norm, "embedding": matrix}, "head": dense}
    transform = made.transform()
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = transform.update(zero, transform.init(params), params)
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        names = [part.key for part in path if part.key != "encoder"]
        want = -0.05 * 0.1 if {names[0], f"{names[0]} {names[-1]}"} & shrunk else 0.0
        np.testing.assert_allclose(update, want, rtol=1e-6)


GROUPS = {"log_dt": (0.01, 0.5), "kernel": (0.1, 0.0)}


def test_groups_have_their_own_rate_and_decay():
    """Each parameter moves as under an optimizer that has its group's numbers for all."""
    gate = {"kernel": jnp.ones((2, 2))}
    mixer = {"log_dt": jnp.ones((2, 2)), "kernel": jnp.ones((2, 2)), "gate": gate}
    params = {"encoder": {"block_0": {"mixer": mixer}}, "log_dt": jnp.ones((2, 2))}

    def steps(**changes):
        made = optimizer(factors="constant * linear_warmup", warmup=2, **changes)
        transform, moved = made.transform(), params
        state = transform.init(moved)
        for _ in range(3):
            grads = jax.tree.map(lambda leaf: jnp.sin(3 * leaf), moved)
            updates, state = transform.update(grads, state, moved)
            moved = jax.tree.map(jnp.add, moved, updates)
        return moved["encoder"]["block_0"]["mixer"], moved["log_dt"]

    got, got_outside = steps(groups=GROUPS)
    rest, outside = steps()
    for name, (rate, decay) in GROUPS.items():
        alone, _ = steps(learning_rate=rate, weight_decay=decay)
        np.testing.assert_array_equal(got[name], alone[name])
        assert not np.allclose(got[name], rest[name])
    np.testing.assert_array_equal(got["gate"]["kernel"], rest["gate"]["kernel"])
    np.testing.assert_array_equal(got_outside, outside)


def test_group_that_no_mixer_declares_is_refused():
    def load(name):
        groups = f"Optimizer.groups={{'{name}': (0.5, 0.0)}}"
        return experiment.load("listops", "mamba", "cpu", [groups])

    assert load("skip").optimizer.groups == {"skip": (0.5, 0.0)}
    with pytest.raises(UserError, match=r"\(a_log, dt_bias, skip\), got log_dt: leave it"):
        load("log_dt")


def test_clipping_scales_the_whole_gradient_to_the_norm():
    made = optimizer(factors="constant", warmup=0, clip_norm=1.0)
    transform = made.transform()
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    state = transform.init(params)
    _, state = transform.update({"a": jnp.array([30.0]), "b": jnp.array([40.0])}, state, params)
    first = next(leaf.mu for leaf in state[1] if hasattr(leaf, "mu"))
    np.testing.assert_allclose([first["a"][0], first["b"][0]], [0.06, 0.08], rtol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"factors": "constant * warmup"},
        {"learning_rate": -1},
        {"weight_decay": "big"},
        {"clip_norm": 0},
        {"decay_mask": "some"},
        {"warmup": 0},
        {"factors": "cosine_decay"},
        {"decay_factor": -0.5},
        *({"beta1": 2.0}, {"beta2": 1.0}, {"epsilon": -1.0}),
        {"groups": {1: (0.001, 0.0)}},
        {"groups": ("log_dt",)},
        {"groups": {"log_dt": 0.001}},
        {"groups": {"log_dt": (0.001, -1)}},
        *({"groups": {"log_dt": (rate, 0.0)}} for rate in (math.inf, math.nan, True)),
        {"groups": {"log_dt": (0.001, 0)}, "factors": "linear_warmup"},
    ],
)
def test_wrong_setting_is_a_user_error(changes):
    with pytest.raises(UserError, match=r"Optimizer\."):
        optimizer(**changes)
