"""Low-rank and kernel attention against PyTorch packages; Synthesizer has none.

The packages are linformer, performer-pytorch and transformers (Nyströmformer); weights are carried
over, float64 throughout.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra_fnet.models.mixers import linear_attention, linformer, nystrom, performer

torch = pytest.importorskip("torch")
peer_linformer = pytest.importorskip("linformer.linformer")
peer_nystrom = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
peer_performer = pytest.importorskip("performer_pytorch.performer_pytorch")

FIELDS = {"dim": 6, "num_heads": 2, "layer": 0, "num_layers": 1, "dropout": 0.0}
HOLES = np.array([[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0, 0]], bool)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def qkv(scale=1.0):
    """Query, key and value [B, L, H, K] = [2, 7, 3, 4]; queries and keys times `scale`."""
    query, key, value = (normal(2, 7, 3, 4, seed=seed) for seed in range(3))
    return scale * query, scale * key, value


def to_torch(x):
    """[B, L, H, K] -> [B, H, L, K]."""
    return torch.from_numpy(np.ascontiguousarray(np.swapaxes(x, 1, 2)))


def from_torch(x):
    return np.swapaxes(x.detach().numpy(), 1, 2)


def assert_close(got, want, tolerance=1e-10):
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), want, rtol=tolerance, atol=tolerance)


# Linformer


@pytest.mark.parametrize("share_kv", [False, True])
def test_linformer_equals_lucidrains_forward_and_gradient(share_kv):
    """Its heads always share E and F ("headwise"); its share_kv shares E, and keys are values.

    It has no mask: padding is given to it as zeros, whose keys and values are zeros (no biases).
    """
    torch.manual_seed(0)
    peer = peer_linformer.LinformerSelfAttention(6, 9, k=4, heads=2, dim_head=5, share_kv=share_kv)
    peer = peer.double()
    torch.nn.init.zeros_(peer.to_out.bias)  # ours has none
    weights = {name: parameter.detach().numpy() for name, parameter in peer.named_parameters()}
    kernels = {"query": "to_q", "key": "to_k", "out": "to_out"}
    kernels["value"] = "to_k" if share_kv else "to_v"
    params = {ours: {"kernel": weights[f"{name}.weight"].T} for ours, name in kernels.items()}
    if share_kv:
        params["projection"] = weights["proj_k"].T
    else:
        params["project_key"], params["project_value"] = weights["proj_k"].T, weights["proj_v"].T
    sharing = "kv" if share_kv else "headwise"
    module = linformer.Linformer(qkv_dim=10, max_len=9, k=4, sharing=sharing, **FIELDS)
    x = np.where(HOLES[..., None], normal(2, 7, 6), 0)  # shorter than max_len
    cotangent = normal(2, 7, 6, seed=1)
    tensor = torch.from_numpy(x).requires_grad_()
    want = peer(tensor)
    (want * torch.from_numpy(cotangent)).sum().backward()
    with jax.enable_x64(True):

        def mix(x):
            return module.apply({"params": params}, x, jnp.asarray(HOLES), train=False)

        got, pull = jax.vjp(mix, jnp.asarray(x))
        (gradient,) = pull(jnp.asarray(cotangent))
    assert_close(got, want.detach().numpy())
    # The peer's padding can be moved away from zero; ours cannot be seen through keys and values.
    assert_close(gradient[HOLES], tensor.grad.numpy()[HOLES])


# Nyströmformer


def test_nystrom_equals_transformers_forward_and_gradient():
    """Without padding, which cuts other segments there, and with segments of equal length."""
    torch.manual_seed(0)
    config = peer_nystrom.NystromformerConfig(
        hidden_size=6,
        num_attention_heads=2,
        num_landmarks=4,
        segment_means_seq_len=12,
        conv_kernel_size=3,
    )
    peer = peer_nystrom.NystromformerSelfAttention(config).double()
    peer.init_option = "each"  # scales each matrix by itself; its option of the config fails
    weights = {name: parameter.detach().numpy() for name, parameter in peer.named_parameters()}
    for name in ("query", "key", "value"):
        torch.nn.init.zeros_(getattr(peer, name).bias)  # ours has none
    params = {name: {"kernel": weights[f"{name}.weight"].T} for name in ("query", "key", "value")}
    params |= {"out": {"kernel": np.eye(6)}, "taps": weights["conv.weight"][:, 0, :, 0].T}
    given = {"landmarks": 4, "iterations": 6, "width": 3}
    module = nystrom.Nystrom(qkv_dim=6, max_len=12, **given, **FIELDS)
    x, cotangent = 2 * normal(2, 12, 6), normal(2, 12, 6, seed=1)
    tensor = torch.from_numpy(x).requires_grad_()
    want = peer(tensor)[0]
    (want * torch.from_numpy(cotangent)).sum().backward()
    with jax.enable_x64(True):

        def mix(x):
            return module.apply({"params": params}, x, jnp.ones((2, 12), bool), train=False)

        got, pull = jax.vjp(mix, jnp.asarray(x))
        (gradient,) = pull(jnp.asarray(cotangent))
    assert_close(got, want.detach().numpy(), 1e-9)
    assert_close(gradient, tensor.grad.numpy(), 1e-9)


# Linear Transformer


@pytest.mark.parametrize("explicit", [True, False])
def test_elu_attention_equals_the_papers_formula_in_torch(explicit):
    """Eq. 5 with explicit weights, and performer-pytorch's product from the right.

    linear-attention-transformer's linear_attn is another mechanism: softmax of queries and of keys.
    """
    arrays = qkv()
    query, key, value = (to_torch(a).requires_grad_() for a in arrays)
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in (query, key))
    if explicit:
        weights = phi_q @ phi_k.transpose(-1, -2)
        want = weights / weights.sum(-1, keepdim=True) @ value
    else:
        want = peer_performer.linear_attention(phi_q, phi_k, value)
    (want**2).sum().backward()
    with jax.enable_x64(True):
        full = jnp.ones((2, 7), bool)

        def loss(*arrays):
            out = linear_attention.elu_attention(*arrays, full)
            return jnp.square(out).sum(), out

        inputs = map(jnp.asarray, arrays)
        gradients, got = jax.grad(loss, (0, 1, 2), has_aux=True)(*inputs)
    assert_close(got, from_torch(want))
    for gradient, tensor in zip(gradients, (query, key, value), strict=True):
        assert_close(gradient, from_torch(tensor.grad))


# Performer


def favor_of_peer(arrays, features, **options):
    query, key, value = map(to_torch, arrays)
    features = torch.from_numpy(features)
    phi_q, phi_k = (
        peer_performer.softmax_kernel(x, projection_matrix=features, is_query=is_query, **options)
        for x, is_query in ((query, True), (key, False))
    )
    return from_torch(peer_performer.linear_attention(phi_q, phi_k, value))


def favor_of_ours(arrays, features):
    with jax.enable_x64(True):
        inputs = map(jnp.asarray, arrays)
        full = jnp.ones((2, 7), bool)
        return np.asarray(performer.softmax_attention(*inputs, full, jnp.asarray(features)))


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_softmax_kernel_equals_performer_pytorch_without_its_epsilon(scale):
    arrays, features = qkv(scale), normal(9, 4, seed=7)
    assert_close(favor_of_ours(arrays, features), favor_of_peer(arrays, features, eps=0), 1e-9)


@pytest.mark.parametrize("projected", [True, False])
def test_relu_kernel_equals_performer_pytorch_without_its_scaling(projected):
    """Its normalize_data scales queries and keys by K^(-1/4); ours, as LRA's code, does not."""
    arrays = qkv()
    features = normal(9, 4, seed=7) if projected else None
    query, key, value = map(to_torch, arrays)
    phi_q, phi_k = (
        peer_performer.generalized_kernel(
            x,
            projection_matrix=None if features is None else torch.from_numpy(features),
            normalize_data=False,
        )
        for x in (query, key)
    )
    want = from_torch(peer_performer.linear_attention(phi_q, phi_k, value))
    with jax.enable_x64(True):
        inputs = map(jnp.asarray, arrays)
        full = jnp.ones((2, 7), bool)
        got = performer.relu_attention(
            *inputs, full, None if features is None else jnp.asarray(features)
        )
    assert_close(got, want)
