"""State spaces and convolutions against loops over positions in float64."""

import functools

import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
import scipy.linalg
from arrays import applied, assert_close, float64, initial, normal, random_variables

from lra_fnet.models.gate import Gate
from lra_fnet.models.kernels import recurrence
from lra_fnet.models.kernels.convolve import window
from lra_fnet.models.mixers.convolution import Convolution
from lra_fnet.models.mixers.long_convolution import LongConvolution, squash
from lra_fnet.models.mixers.s4 import S4
from lra_fnet.models.mixers.state_space import LRU, S4D, S5
from lra_fnet.models.mixers.structured_convolution import StructuredConvolution, factors, stretched

FIELDS = {"num_heads": 1, "qkv_dim": 1, "layer": 0, "num_layers": 2, "dropout": 0.0, "max_len": 11}
STEPS = {"dt_min": 0.01, "dt_max": 0.5}
RING = {"radius_min": 0.5, "radius_max": 0.9, "max_phase": 3.0}
THIN = RING | {"radius_min": 0.9999, "radius_max": 1.0}


def complex_of(parts):
    return np.asarray(parts[0], np.float64) + 1j * np.asarray(parts[1], np.float64)


def zero_order_hold(a, b, dt):
    """The discrete A [P, P] and B [P, D] of x' = a x + b u by one exponential of both."""
    size, inputs = b.shape
    both = np.zeros((size + inputs, size + inputs), complex)
    both[:size, :size], both[:size, size:] = dt * a, dt * b
    both = scipy.linalg.expm(both)
    return both[:size, :size], both[:size, size:]


def bilinear(a, b, dt):
    """The discrete A and B of x' = a x + b u by the trapezoidal rule; a [N, N], b [N, 1]."""
    one = np.eye(len(a))
    return (np.linalg.solve(one - dt / 2 * a, m) for m in (one + dt / 2 * a, dt * b))


def both_ways(u, transition, inputs, outputs):
    """One channel [B, L, 1] through a state space ahead, and back from the next token."""
    ahead = oracle.state_space(u, transition, inputs, outputs[:1], 0)
    shifted = np.roll(u, -1, axis=1)
    shifted[:, -1] = 0
    return ahead + oracle.state_space(shifted[:, ::-1], transition, inputs, outputs[1:], 0)[:, ::-1]


# The recurrence


@pytest.mark.parametrize("length", [1, 2, 13, 16])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("method", ["scan", "associative"])
def test_recurrence_equals_a_loop_forward_and_backward(method, reverse, length):
    rng = np.random.default_rng(0)
    exponent = np.log([0.9 + 0.3j, -0.5j, 0.2])
    parts = rng.normal(size=(2, 2, 2, length, 3))
    inputs, cotangent = parts[0] + 1j * parts[1]

    def loop(exponent, inputs):
        """All powers of the decay at once: entry k of the states has exp(a)^(k - j) of input j."""
        apart = np.arange(length)[:, None] - np.arange(length)
        apart = -apart if reverse else apart
        powers = jnp.exp(exponent[None, None] * np.maximum(apart, 0)[..., None])
        return jnp.einsum("kjp,bjp->bkp", jnp.where((apart >= 0)[..., None], powers, 0), inputs)

    def ours(exponent, inputs):
        return recurrence.linear_recurrence(exponent, inputs, reverse=reverse, method=method)

    def both(function, exponent, inputs, cotangent):
        states, backward = jax.vjp(function, exponent, inputs)
        return states, backward(cotangent)

    with jax.enable_x64(True):
        (want, want_slope), (got, got_slope) = (
            jax.jit(functools.partial(both, f))(exponent, inputs, cotangent) for f in (loop, ours)
        )
        assert_close(got, want, 1e-12)
        for slope, expected in zip(got_slope, want_slope, strict=True):
            assert_close(slope, expected, 1e-12)


@pytest.mark.parametrize(("method", "tolerance"), [("scan", 2e-5), ("associative", 2e-6)])
def test_states_of_slow_modes_are_those_of_float64_in_a_long_text(method, tolerance):
    """Squares of squares of a float32 decay would be off by 1e-4 of the largest state."""
    rng = np.random.default_rng(0)
    exponent = -np.geomspace(1e-5, 1, 6) + 1j * np.array([0.1, 3, 0.5, 0.01, 1, 2])
    exponent = exponent.astype(np.complex64)
    inputs = rng.normal(size=(1, 16384, 6)).astype(np.complex64)
    got = jax.jit(functools.partial(recurrence.linear_recurrence, method=method))(exponent, inputs)
    decay = np.exp(exponent.astype(complex))
    if method == "scan":  # which multiplies by the decay as float32 rounds it
        decay = np.asarray(jax.jit(jnp.exp)(exponent)).astype(complex)
    want, state = np.empty(inputs.shape, complex), np.zeros(6, complex)
    for k in range(inputs.shape[1]):
        state = want[0, k] = decay * state + inputs[0, k]
    error = np.abs(got - want).max(axis=(0, 1))
    assert (error < tolerance * np.abs(want).max(axis=(0, 1))).all()


# HiPPO


def test_hippo_is_the_matrix_of_its_paper():
    want = [[-1, 0, 0], [-(3**0.5), -2, 0], [-(5**0.5), -(15**0.5), -3]]
    np.testing.assert_allclose(recurrence.hippo(3), want)


@pytest.mark.parametrize("size", [2, 8, 64])
def test_normal_hippo_diagonalises_the_dense_matrix(size):
    root = np.sqrt(np.arange(size) + 0.5)
    dense = recurrence.hippo(size) + np.outer(root, root)
    values, vectors = recurrence.normal_hippo(size)
    np.testing.assert_allclose(dense @ vectors, vectors * values, atol=1e-9 * size)
    want = np.linalg.eigvals(dense)
    np.testing.assert_allclose(
        np.sort(values.imag), np.sort(want.imag)[size // 2 :], rtol=1e-6, atol=1e-6
    )
    rebuilt = 2 * ((vectors * values) @ vectors.conj().T).real  # with the conjugate half
    np.testing.assert_allclose(rebuilt, dense, atol=1e-9 * size)


# Layers


def mixed(mixer, u, mask=None):
    mask = np.ones(u.shape[:2], bool) if mask is None else mask
    variables = random_variables(mixer, u, mask)
    return variables["params"], applied(mixer, variables, u, mask)


@pytest.mark.parametrize("initial", ["legs", "lin"])
def test_s4d_equals_its_recurrence_after_a_matrix_exponential(initial):
    mixer = S4D(dim=2, state=6, initial=initial, gate="none", **STEPS, **FIELDS)
    u = normal(2, 11, 2)
    params, got = mixed(mixer, u)
    (u64,) = float64(u)
    want = np.zeros(u.shape)
    a = -np.exp(params["a"][0].astype(float)) + 1j * params["a"][1]
    c = complex_of(params["c"])
    for d in range(2):
        dt = np.exp(float(params["log_dt"][d]))
        transition, inputs = zero_order_hold(np.diag(a[d]), np.ones((3, 1)), dt)
        outputs = [2 * c[0, d][None], 2 * c[1, d][None]]
        want[..., d] = both_ways(u64[..., [d]], transition, inputs, outputs)[..., 0]
        want[..., d] += params["skip"][d] * u64[..., d]
    assert_close(got, oracle.gelu(want), 1e-4)


@pytest.mark.parametrize("length", [11, 9])
def test_s4_equals_its_recurrence_with_the_dense_matrix(length):
    """Random parameters, with the conjugates of all modes; a text of max_len and a shorter one."""
    mixer = S4(dim=2, state=6, gate="none", **STEPS, **FIELDS)
    u, mask = normal(2, length, 2), np.ones((2, length), bool)
    params = random_variables(mixer, u, mask)["params"]
    params |= {"log_dt": np.log(np.float32([0.02, 0.3]))}  # some modes outlive the text
    got = applied(mixer, {"params": params}, u, mask)
    (u64,) = float64(u)
    want = np.zeros(u.shape)
    a = -np.exp(params["a"][0].astype(float)) + 1j * params["a"][1]
    p, b, c = (complex_of(params[name]) for name in "pbc")
    for d in range(2):
        full = [np.concatenate([x[..., d, :], x[..., d, :].conj()], -1) for x in (a, p, b, c)]
        dense = np.diag(full[0]) - np.outer(full[1], full[1].conj())
        discrete, inputs = bilinear(dense, full[2][:, None], np.exp(float(params["log_dt"][d])))
        cut = np.eye(6) - np.linalg.matrix_power(discrete, FIELDS["max_len"])
        outputs = np.linalg.solve(cut.T, full[3].T).T[:, None]
        want[..., d] = both_ways(u64[..., [d]], discrete, inputs, outputs)[..., 0]
        want[..., d] += params["skip"][d] * u64[..., d]
    assert_close(got, oracle.gelu(want), 1e-4)


def test_s4_begins_as_hippo_with_outputs_of_unit_variance():
    """The real system in HiPPO's own basis, whose matrix is the whole lower triangle.

    Some of its modes have an input above 2, which begins as 2.
    """
    steps = {"dt_min": 0.02, "dt_max": 0.02}
    mixer = S4(**FIELDS | {"dim": 64}, state=8, gate="none", **steps)
    u = normal(1, 11, 64)
    variables = initial(mixer, u, np.ones((1, 11), bool), seed=1)
    params = jax.tree.map(np.asarray, variables["params"])
    vectors = recurrence.normal_hippo(8)[1]
    b = vectors.conj().T @ np.sqrt(2 * np.arange(8)[:, None] + 1)
    assert 0 < (abs(b) > 2).sum() < 4
    b = 2 * (vectors @ np.where(abs(b) > 2, 2 * b / abs(b), b)).real
    discrete, inputs = bilinear(recurrence.hippo(8), b, 0.02)
    cut = 2 * (complex_of(params["c"]) @ vectors.conj().T).real
    c = cut @ np.linalg.inv(np.eye(8) - np.linalg.matrix_power(discrete, FIELDS["max_len"]))
    assert abs(np.sqrt((abs(c @ vectors) ** 2).mean()) - 1) < 0.05
    (u64,) = float64(u)
    rows = [both_ways(u64[..., [d]], discrete, inputs, c[:, None, d]) for d in range(64)]
    want = np.concatenate(rows, -1) + params["skip"] * u64
    assert_close(applied(mixer, variables, u, np.ones((1, 11), bool)), oracle.gelu(want), 1e-4)


def test_s4_begins_without_solvers_of_lapack():
    """On a CPU of two cores, those of two layers wait for each other's threads, for ever."""
    mixer = S4(dim=2, state=6, gate="none", **STEPS, **FIELDS)
    arrays = normal(1, 11, 2), np.ones((1, 11), bool)
    begin = jax.jit(functools.partial(mixer.init, train=False))
    assert "lapack" not in begin.lower(jax.random.key(0), *arrays).as_text()


def test_s5_equals_its_recurrence_after_a_matrix_exponential():
    mixer = S5(dim=3, state=8, blocks=2, method="scan", gate="none", **STEPS, **FIELDS)
    u = normal(2, 11, 3)
    variables = jax.tree.map(np.asarray, initial(mixer, u, u[..., 0] < 9, seed=1))
    params = variables["params"]
    got = applied(mixer, variables, u, u[..., 0] < 9)
    eigen, b, c = (complex_of(params[name]) for name in ("lambda", "b", "c"))
    rows = [
        zero_order_hold(np.array([[eigen[p]]]), b[[p]], np.exp(float(params["log_dt"][p])))
        for p in range(4)
    ]
    transition = np.diag([row[0][0, 0] for row in rows])
    inputs = np.concatenate([row[1] for row in rows])
    want = oracle.state_space(*float64(u), transition, inputs, 2 * c, params["skip"])
    assert_close(got, oracle.gelu(want), 1e-4)


def test_no_state_of_s5_grows():
    """Eigenvalues with a positive real part act as those with -1e-4."""
    mixer = S5(dim=3, state=8, blocks=2, method="scan", gate="none", **STEPS, **FIELDS)
    u = normal(1, 11, 3)
    params = initial(mixer, u, u[..., 0] < 9, seed=1)["params"]

    apply = jax.jit(functools.partial(mixer.apply, train=False))

    def output(real):
        eigen = params["lambda"].at[0].set(real)
        changed = {"params": params | {"lambda": eigen}}
        return apply(changed, u, u[..., 0] < 9)

    assert_close(output(1.0), output(-1e-4))
    assert not np.allclose(output(-1.0), output(-1e-4))


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("lecun_normal", (2 / (64 * 32)) ** 0.5),
        ("trunc_standard_normal", (2 / 32) ** 0.5),
        ("complex_normal", 1.0),
    ],
)
def test_s5_begins_as_the_authors_code_does(kind, size):
    """Root mean squares after the unitary change of basis, by lindermanlab/S5's ssm_init.py."""
    fields = {"state": 32, "blocks": 2, "method": "scan", "gate": "none", "initial": kind}
    mixer = S5(**FIELDS | {"dim": 64}, **STEPS, **fields)
    u = normal(1, 11, 64)
    params = initial(mixer, u, np.ones((1, 11), bool), seed=1)["params"]
    eigen, b, c = (np.asarray(complex_of(params[name])) for name in ("lambda", "b", "c"))
    np.testing.assert_allclose(eigen, np.tile(recurrence.normal_hippo(16)[0], 2), rtol=1e-6)
    assert abs(np.sqrt((abs(b) ** 2).mean()) * 32**0.5 - 1) < 0.05
    assert abs(np.sqrt((abs(c) ** 2).mean()) / size - 1) < 0.05
    assert abs(c.real.std() / c.imag.std() - 1) < 0.1


@pytest.mark.parametrize("kind", ["legs", "lin", "s5"])
def test_gradients_of_slow_modes_are_those_of_float64(kind):
    """exp(z) - 1 would lose all digits of a step as small as these."""
    steps = {"dt_min": 1e-6, "dt_max": 1e-6, "gate": "none", **FIELDS}
    mixer = S4D(dim=2, state=6, initial=kind, **steps) if kind != "s5" else None
    mixer = mixer or S5(dim=2, state=8, blocks=2, method="scan", **steps)
    u, mask = normal(1, 40, 2), np.ones((1, 40), bool)
    params = initial(mixer, u, mask, seed=1)["params"]
    name = "a" if kind != "s5" else "lambda"

    def loss(value, others, u):
        changed = {"params": others | {name: value}}
        return mixer.apply(changed, u, mask, train=False).sum()

    got = jax.jit(jax.grad(loss))(params[name], params, u)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), params)
        want = jax.jit(jax.grad(loss))(wide[name], wide, jnp.asarray(np.asarray(u), jnp.float64))
    error = np.linalg.norm(np.asarray(got) - np.asarray(want)) / np.linalg.norm(want)
    assert error < 0.05  # with exp(z) - 1: above 1


def test_lru_equals_its_recurrence():
    mixer = LRU(dim=3, state=4, method="scan", gate="none", **RING, **FIELDS)
    u = normal(2, 11, 3)
    params, got = mixed(mixer, u)
    nu, theta = params["decay"].astype(float)
    transition = np.diag(np.exp(-np.exp(nu) + 1j * np.exp(theta)))
    inputs = np.exp(params["gamma"])[:, None] * complex_of(params["b"])
    want = oracle.state_space(
        *float64(u), transition, inputs, complex_of(params["c"]), params["skip"]
    )
    assert_close(got, oracle.gelu(want), 1e-4)


def test_lru_begins_on_its_ring_with_unit_variance():
    mixer = LRU(dim=2, state=4000, method="scan", gate="none", **RING, **FIELDS)
    u = normal(1, 11, 2)
    params = initial(mixer, u, np.ones((1, 11), bool))["params"]
    nu, theta = np.asarray(params["decay"], np.float64)
    radius, phase = np.exp(-np.exp(nu)), np.exp(theta)
    assert 0.5 <= radius.min() < 0.51 < 0.89 < radius.max() <= 0.9
    # Uniform on the ring: the squared radius and the phase are uniform.
    assert abs((radius**2).mean() - (0.5**2 + 0.9**2) / 2) < 0.01
    assert phase.max() <= 3
    assert abs(phase.mean() - 1.5) < 0.05
    np.testing.assert_allclose(np.exp(params["gamma"]), np.sqrt(1 - radius**2), rtol=1e-4)
    thin = LRU(dim=2, state=40_000, method="scan", gate="none", **FIELDS, **THIN)
    began = initial(thin, u, np.ones((1, 11), bool))["params"]
    assert np.isfinite(began["decay"]).all()  # also of a radius that rounds to 1
    assert np.isfinite(began["gamma"]).all()
    # App. A: each part of B has the variance 1 / 2H, of C 1 / N.
    assert np.std(params["b"]) == pytest.approx(4**-0.5, rel=0.05)
    assert np.std(params["c"]) == pytest.approx(4000**-0.5, rel=0.05)


# Convolutions


def test_long_convolution_layer_equals_numpy():
    mixer = LongConvolution(dim=3, threshold=0.2, scale=1.0, gate="none", **FIELDS)
    u = normal(2, 7, 3)  # shorter than max_len
    params, got = mixed(mixer, u)
    kernel = np.asarray(squash(params["kernel"], 0.2), np.float64)[:, :7]
    want = oracle.long_convolution(*float64(u), *kernel) + params["skip"] * float64(u)[0]
    assert_close(got, oracle.gelu(want), 1e-4)


def test_squash_moves_entries_to_zero():
    np.testing.assert_allclose(
        squash(np.array([-2.0, -0.5, 0, 0.25, 3]), 0.5), [-1.5, 0, 0, 0, 2.5]
    )


@pytest.mark.parametrize(
    ("taps", "length", "scales"), [(2, 11, 4), (3, 24, 4), (5, 5, 1), (8, 3, 1)]
)
def test_structured_kernel_equals_a_loop_and_has_the_expected_norm(taps, length, scales):
    assert len(factors(taps, length)) == scales
    parts = normal(scales, taps, 3)
    got = jax.jit(functools.partial(stretched, decay=0.7, length=length))(parts)
    # The kernel is linear in the parameters, so each one's kernel adds to the expected square.
    each = np.eye(scales * taps).reshape(scales, taps, -1)
    norm = np.sqrt((oracle.structured_kernel(each, 0.7, length) ** 2).sum())
    assert_close(got, oracle.structured_kernel(*float64(parts), 0.7, length) / norm)


def test_structured_convolution_layer_equals_numpy():
    mixer = StructuredConvolution(dim=3, taps=2, decay=0.5, gate="none", **FIELDS)
    u = normal(2, 7, 3)  # shorter than max_len
    params, got = mixed(mixer, u)
    assert params["kernel"].shape == (2, 4, 2, 3)
    each = np.eye(8).reshape(4, 2, 8)
    norm = np.sqrt((oracle.structured_kernel(each, 0.5, FIELDS["max_len"]) ** 2).sum())
    kernels = [
        oracle.structured_kernel(part, 0.5, 7) / norm for (part,) in map(float64, params["kernel"])
    ]
    want = oracle.long_convolution(*float64(u), *kernels) + params["skip"] * float64(u)[0]
    assert_close(got, oracle.gelu(want), 1e-4)


@pytest.mark.parametrize("width", [1, 2, 5, 30])
def test_window_equals_a_loop(width):
    x, taps = normal(2, 9, 3), normal(width, 3, seed=1)
    assert_close(jax.jit(window)(x, taps), oracle.window(*float64(x, taps)))


def test_convolution_layer_equals_numpy():
    mixer = Convolution(dim=3, width=4, **FIELDS)
    u = normal(2, 7, 3)
    mask = np.arange(7) < np.array([[7], [5]])
    params, got = mixed(mixer, u, mask)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    project, out = params["project"], params["out"]
    both = (float64(u)[0] @ project["kernel"] + project["bias"]) * mask[..., None]
    value, gate = np.split(oracle.window(both, params["taps"]), 2, axis=-1)
    want = value / (1 + np.exp(-gate)) @ out["kernel"] + out["bias"]
    assert_close(np.asarray(got)[mask], want[mask])


# The gate


def test_gates_are_their_formulas():
    y = normal(2, 3, 4)
    (y64,) = float64(y)
    g = oracle.gelu(y64)
    for kind in ("none", "full", "half1", "half2"):
        gate = Gate(4, kind)
        variables = jax.jit(gate.init)(jax.random.key(0), y)
        got = jax.jit(gate.apply)(variables, y)
        if kind == "none":
            want = g
        else:
            dense = variables["params"]["dense"]
            product = g @ float64(dense["kernel"])[0] + float64(dense["bias"])[0]
            value = {"full": product[..., :4], "half1": g, "half2": y64}[kind]
            want = value / (1 + np.exp(-(product[..., 4:] if kind == "full" else product)))
        assert_close(got, want)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(S4, state=2, **STEPS),
        functools.partial(S4D, state=2, initial="lin", **STEPS),
        functools.partial(S5, state=2000, blocks=500, method="scan", **STEPS),
        functools.partial(LRU, state=8, method="scan", **RING),
        functools.partial(LongConvolution, threshold=0.0, scale=1.0),
        functools.partial(StructuredConvolution, taps=4, decay=0.5),
    ],
    ids=lambda make: make.func.__name__,
)
def test_skips_begin_with_variance_1_and_steps_log_uniform(make):
    mixer = make(dim=2000, gate="none", **FIELDS)
    params = initial(mixer, normal(1, 11, 2000), np.ones((1, 11), bool))["params"]
    assert np.std(params["skip"]) == pytest.approx(1, rel=0.07)
    if "log_dt" in params:
        log_dt, (low, high) = np.asarray(params["log_dt"]), np.log([0.01, 0.5])
        assert low <= log_dt.min() < low + 0.1 < high - 0.1 < log_dt.max() <= high
        assert log_dt.mean() == pytest.approx((low + high) / 2, abs=0.15)
        assert log_dt.std() == pytest.approx((high - low) / 12**0.5, rel=0.07)
