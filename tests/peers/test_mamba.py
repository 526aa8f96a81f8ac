"""Mamba against the slow path of Hugging Face's MambaMixer, which computes in float32."""

import jax
import numpy as np
import pytest
from arrays import applied, random_variables

from lra_fnet.models.mixers.mamba import Mamba

torch = pytest.importorskip("torch")
peer = pytest.importorskip("transformers.models.mamba.modeling_mamba")
configuration = pytest.importorskip("transformers.models.mamba.configuration_mamba")

DIM, STATE, WIDTH, LENGTH = 20, 4, 3, 37
FIELDS = {"num_heads": 1, "qkv_dim": 1, "layer": 0, "num_layers": 2, "dropout": 0.0}
FIELDS |= {"dim": DIM, "max_len": LENGTH, "state": STATE, "width": WIDTH, "expand": 2}
FIELDS |= {"dt_min": 0.01, "dt_max": 0.5}
FULL = np.ones((2, LENGTH), bool)
NAMES = {  # ours, theirs, and how ours becomes theirs
    "taps": ("conv1d.weight", lambda p: p.T[:, None]),
    "bias": ("conv1d.bias", lambda p: p),
    "select": ("x_proj.weight", lambda p: p.T),
    "dt": ("dt_proj.weight", lambda p: p.T),
    "dt_bias": ("dt_proj.bias", lambda p: p),
    "a_log": ("A_log", lambda p: p),
    "skip": ("D", lambda p: p),
}
THEIR_DENSE = {"in": "project", "out": "out"}


def peers(params, directions):
    """One of their mixers for each direction, with our parameters."""
    config = configuration.MambaConfig(
        hidden_size=DIM, state_size=STATE, conv_kernel=WIDTH, expand=2, num_hidden_layers=1
    )
    mixers = [peer.MambaMixer(config, layer_idx=0).eval() for _ in range(directions)]
    for turn, mixer in enumerate(mixers):
        leaves = {
            name: change(np.split(params[ours], directions)[turn])
            for ours, (name, change) in NAMES.items()
        }
        for theirs, ours in THEIR_DENSE.items():
            leaves[f"{theirs}_proj.weight"] = params[ours]["kernel"].T
        state = {name: torch.from_numpy(np.array(leaf)) for name, leaf in leaves.items()}
        mixer.load_state_dict(state, strict=True)
    return mixers


@pytest.mark.parametrize("method", ["scan", "associative"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_mamba_and_its_gradients_equal_those_of_hugging_face(bidirectional, method):
    """A second mixer on the reversed text, with the same dense layers, is the other direction."""
    mixer = Mamba(method=method, bidirectional=bidirectional, **FIELDS)
    rng = np.random.default_rng(0)
    x, cotangent = rng.normal(size=(2, 2, LENGTH, DIM)).astype(np.float32)
    variables = random_variables(mixer, x, FULL)
    got, backward = jax.vjp(lambda v, x: applied(mixer, v, x, FULL), variables, x)
    slopes, slope = backward(cotangent)

    mixers = peers(variables["params"], 1 + bidirectional)
    inputs = torch.from_numpy(x).requires_grad_()
    want = mixers[0](inputs)
    if bidirectional:
        want = want + mixers[1](inputs.flip(1)).flip(1)
    want.backward(torch.from_numpy(cotangent))
    assert_close(got, want)
    assert_close(slope, inputs.grad)
    for ours, (name, change) in NAMES.items():
        parts = np.split(np.asarray(slopes["params"][ours]), len(mixers))
        for part, other in zip(parts, mixers, strict=True):
            assert_close(change(part), other.get_parameter(name).grad)
    for theirs, ours in THEIR_DENSE.items():
        total = sum(other.get_parameter(f"{theirs}_proj.weight").grad for other in mixers)
        assert_close(slopes["params"][ours]["kernel"].T, total)


def assert_close(got, want):
    want = want.detach().numpy()
    assert got.shape == want.shape
    assert np.abs(np.asarray(got) - want).max() < 2e-5 * np.abs(want).max()
