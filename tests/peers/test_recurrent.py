"""State spaces and rotary positions against s5-pytorch, LRU-pytorch and rotary-embedding-torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import applied, initial

from lra_fnet.models.kernels import recurrence
from lra_fnet.models.mixers import rotary
from lra_fnet.models.mixers.state_space import LRU, S5

torch = pytest.importorskip("torch")

DIM, LENGTH = 3, 12
FIELDS = {"num_heads": 1, "qkv_dim": 1, "layer": 0, "num_layers": 2, "dropout": 0.0}
FIELDS |= {"max_len": LENGTH, "dim": DIM, "gate": "none"}
FULL = np.ones((2, LENGTH), bool)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def assert_close(got, want, tolerance=1e-10):
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), want, rtol=tolerance, atol=tolerance)


def complex_of(parts):
    """A stored parameter [2, ...] as a complex tensor."""
    return torch.complex(*torch.from_numpy(np.array(parts)))


def gelu(y):
    return torch.nn.functional.gelu(y, approximate="tanh")


def wide(variables):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables)


@pytest.mark.parametrize("method", ["scan", "associative"])
def test_s5_and_its_gradients_equal_those_of_s5_pytorch(method):
    """Its functions are called, since its class computes in complex64."""
    peer = pytest.importorskip("s5.s5_model")
    mixer = S5(state=8, blocks=2, method=method, dt_min=0.01, dt_max=0.5, **FIELDS)
    u, cotangent = normal(2, LENGTH, DIM), normal(2, LENGTH, DIM, seed=1)
    with jax.enable_x64(True):
        variables = wide(initial(mixer, jnp.asarray(u), FULL, seed=1))
        got, backward = jax.vjp(lambda v, u: applied(mixer, v, u, FULL), variables, jnp.asarray(u))
        slopes, slope = backward(jnp.asarray(cotangent))
    params = {
        name: torch.from_numpy(np.array(leaf)).requires_grad_()
        for name, leaf in variables["params"].items()
    }
    eigen, b, c = (torch.complex(*params[name]) for name in ("lambda", "b", "c"))
    signal = torch.from_numpy(u).requires_grad_()
    decay, inputs = peer.discretize_zoh(eigen, b, torch.exp(params["log_dt"]))
    both = 2 * torch.cat([c[0], c[1]], dim=-1)  # one of each pair of conjugate modes is computed
    rows = [peer.apply_ssm(decay, inputs, both, params["skip"], x, bidir=True)[0] for x in signal]
    want = gelu(torch.stack(rows))
    want.backward(torch.from_numpy(cotangent))
    assert_close(got, want.detach().numpy())
    assert_close(slope, signal.grad.numpy())
    for name, parameter in params.items():
        assert_close(slopes["params"][name], parameter.grad.numpy())


@pytest.mark.parametrize("size", [2, 8, 64])
def test_the_first_eigenvalues_are_those_of_s5_pytorch(size):
    peer = pytest.importorskip("s5.init")
    theirs = np.sort_complex(peer.make_DPLR_HiPPO(size)[0])
    ours = recurrence.normal_hippo(size)[0]
    assert_close(np.sort_complex(np.concatenate([ours, ours.conj()])), theirs)


def test_lru_equals_lru_pytorch_in_both_directions():
    """It has one direction, in float32, and a full matrix where ours is a diagonal."""
    peer = pytest.importorskip("LRU_pytorch")
    ring = {"radius_min": 0.5, "radius_max": 0.9, "max_phase": 3.0}
    mixer = LRU(state=5, method="scan", **ring, **FIELDS)
    u = normal(2, LENGTH, DIM).astype(np.float32)
    variables = jax.tree.map(np.asarray, initial(mixer, u, FULL, seed=1))
    params = variables["params"]
    torch.manual_seed(0)
    model = peer.LRU(DIM, DIM, 5)
    with torch.no_grad():
        model.nu_log.copy_(torch.from_numpy(params["decay"][0].copy()))
        model.theta_log.copy_(torch.from_numpy(params["decay"][1].copy()))
        model.gamma_log.copy_(torch.from_numpy(params["gamma"].copy()))
        model.B.copy_(complex_of(params["b"]))
        ahead, back = complex_of(params["c"])
        model.D.copy_(torch.diag(torch.from_numpy(params["skip"].copy())))
        model.C.copy_(ahead)
        want = model(torch.from_numpy(u))
        model.D.zero_()
        model.C.copy_(back)
        want += model(torch.from_numpy(u[:, ::-1].copy())).flip(1)
    assert_close(applied(mixer, variables, u, FULL), gelu(want).numpy(), 1e-5)


def test_the_ring_of_lru_begins_as_that_of_lru_pytorch():
    """Radii and phases of 20,000 modes: the same quantiles, and gamma for the same radii."""
    peer = pytest.importorskip("LRU_pytorch")
    ring = {"radius_min": 0.5, "radius_max": 0.9, "max_phase": 3.0}
    mixer = LRU(state=20_000, method="scan", **ring, **FIELDS)
    ours = initial(mixer, normal(1, 2, DIM).astype(np.float32), FULL[:1, :2])["params"]
    torch.manual_seed(0)
    theirs = peer.LRU(DIM, DIM, 20_000, rmin=0.5, rmax=0.9, max_phase=3.0)
    levels = np.linspace(0.05, 0.95, 19)
    names = theirs.nu_log, theirs.theta_log, theirs.gamma_log
    for mine, parameter in zip((*ours["decay"], ours["gamma"]), names, strict=True):
        found, want = (np.quantile(x, levels) for x in (mine, parameter.detach().numpy()))
        assert_close(found, want, 0.05)


def test_rotated_features_are_those_of_rotary_embedding_torch():
    peer = pytest.importorskip("rotary_embedding_torch")
    x = normal(2, LENGTH, 3, 6).astype(np.float32)
    turn = peer.RotaryEmbedding(dim=6).rotate_queries_or_keys
    want = turn(torch.from_numpy(x.swapaxes(1, 2).copy())).detach().numpy().swapaxes(1, 2)
    assert_close(jax.jit(rotary.rotate)(x), want, 1e-5)
