"""The mixing functions against float64 oracles, closed forms and each other."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.models.mixers import attention, fourier, linear, performer
from lra_fnet.models.mixers.mixer import HeadMixer, Mixer

FIELDS = {"dim": 6, "num_heads": 2, "qkv_dim": 4, "max_len": 7, "layer": 0, "num_layers": 2}
SIZES = (1, 2, 3, 5, 8, 13, 64, 96)  # of both axes of the transform: odd, even, prime, smooth
SHAPES = {"2x6x5": (2, 6, 5), "3x7x4": (3, 7, 4)}  # odd and unequal: a swapped axis cannot pass
LONG = 16384


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


def heads_and_mask(batch=3, length=7, heads=2, width=5):
    """Query, key, value, and a mask with a full row, a padded one and an empty one."""
    query, key, value = (normal(batch, length, heads, width, seed=seed) for seed in range(3))
    lengths = jnp.asarray([length, length - 3, 0])[:batch]
    return query, key, value, jnp.arange(length)[None] < lengths[:, None]


def assert_close(got, want, tolerance=2e-5):
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


def float64(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def largest_array(function, *shapes):
    """Entries of the largest array in the program of `function` at these float32 or bool inputs."""

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            for variable in (*equation.invars, *equation.outvars):
                yield int(np.prod(getattr(variable.aval, "shape", ())))
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from sizes(inner)

    return max(sizes(jax.make_jaxpr(function)(*shapes).jaxpr))


# Attention


@pytest.mark.parametrize(
    "attend",
    [
        attention.naive,
        *(functools.partial(attention.blockwise, block_size=size) for size in (1, 3, 4, 7, 100)),
        functools.partial(attention.fused, backend="xla"),
    ],
    ids=["naive", "block1", "block3", "block4", "block7", "block100", "fused"],
)
def test_attention_equals_the_oracle_with_padding_and_an_empty_row(attend):
    inputs = heads_and_mask()
    got = jax.jit(attend)(*inputs)
    assert_close(got, oracle.softmax_attention(*float64(*inputs[:3]), np.asarray(inputs[3])))
    assert not np.asarray(got[2]).any()


@pytest.mark.parametrize("block_size", [2, 5])
def test_blockwise_gradient_equals_naive_gradient(block_size):
    query, key, value, mask = heads_and_mask()
    cotangent = normal(*value.shape, seed=9)

    def gradient(attend):
        def loss(*qkv):
            return (attend(*qkv, mask) * cotangent).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(query, key, value)

    blocks = functools.partial(attention.blockwise, block_size=block_size)
    for got, want in zip(gradient(blocks), gradient(attention.naive), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize(
    "attend",
    [attention.naive, functools.partial(attention.blockwise, block_size=5)],
    ids=["naive", "blockwise"],
)
def test_attention_dropout_drops_single_weights_and_keeps_the_mean(attend):
    length, rate = 16, 0.25
    query, key, _, _ = heads_and_mask(2, length, 2, 4)
    value = jnp.broadcast_to(jnp.eye(length)[None, :, None], (2, length, 2, length))
    mask = jnp.ones((2, length), bool)
    weights = jax.jit(attend)(query, key, value, mask)  # values are unit vectors: [B, L, H, L]
    attend = jax.jit(functools.partial(attend, rate=rate))
    dropped = np.asarray(attend(query, key, value, mask, rng=jax.random.key(0)))
    kept = dropped != 0
    assert_close(dropped[kept], np.asarray(weights)[kept] / (1 - rate))
    assert abs(kept.mean() - (1 - rate)) < 0.06  # 1024 draws: four standard deviations
    rows = kept.transpose(0, 2, 1, 3).reshape(-1, length)
    assert len(np.unique(rows, axis=0)) > 0.9 * len(rows)  # no draw is shared by rows or heads


@pytest.mark.parametrize(
    "attend",
    [
        functools.partial(attention.blockwise, block_size=128),
        functools.partial(attention.blockwise, block_size=128, rate=0.1, rng=jax.random.key(0)),
        performer.relu_attention,
        lambda *inputs: performer.softmax_attention(*inputs, jnp.ones((8, 4))),
    ],
    ids=["blockwise", "blockwise with dropout", "relu", "softmax features"],
)
def test_no_array_of_length_squared_forward_or_backward(attend):
    heads = jax.ShapeDtypeStruct((1, LONG, 1, 4), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, LONG), bool)

    def gradient(attend):
        return jax.grad(lambda *inputs: attend(*inputs).sum(), (0, 1, 2))

    assert largest_array(gradient(attend), heads, heads, heads, mask) <= LONG * 128
    assert largest_array(gradient(attention.naive), heads, heads, heads, mask) >= LONG**2


def attention_module(**changes):
    fields = {"implementation": "naive", "block_size": 4, "dropout": 0.0}
    return attention.Attention(**FIELDS, **(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"implementation": "flash"},
            "Attention.implementation must be one of naive, blockwise, fused, got 'flash': "
            "set it to one of these",
        ),
        (
            {"implementation": "blockwise", "block_size": 0},
            "Attention.block_size must be at least 1 query, got 0: set it to 256, say",
        ),
    ],
)
def test_attention_names_a_wrong_setting(changes, message):
    with pytest.raises(UserError) as caught:
        attention_module(**changes).init(
            jax.random.key(0), jnp.ones((1, 7, 6)), jnp.ones((1, 7), bool), train=False
        )
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("backend", "dtype", "dropout", "reason"),
    [
        ("cpu", jnp.bfloat16, 0.0, "needs an NVIDIA GPU, this is a cpu"),
        ("gpu", jnp.float32, 0.0, "needs Encoder.dtype = 'bfloat16', got float32"),
        ("gpu", jnp.bfloat16, 0.1, "has no dropout on its weights, got"),
    ],
)
def test_fused_attention_says_why_it_cannot_run(monkeypatch, backend, dtype, dropout, reason):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    module = attention_module(implementation="fused", dropout=dropout)
    x, mask = jnp.ones((1, 7, 6), dtype), jnp.ones((1, 7), bool)
    with pytest.raises(UserError, match=reason) as caught:
        module.init(jax.random.key(0), x, mask, train=False)
    assert "set Attention.implementation = 'blockwise'" in str(caught.value)


# Linear


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_linear_mix_equals_the_oracle(shape):
    _, length, dim = shape
    inputs = normal(*shape), normal(length, length, seed=1), normal(dim, dim, seed=2)
    assert_close(linear.linear_mix(*inputs), oracle.linear_mix(*float64(*inputs)))


def test_linear_mixing_refuses_another_length():
    mixer = linear.LinearMixing(**FIELDS, dropout=0.0)
    with pytest.raises(UserError) as caught:
        mixer.init(jax.random.key(0), jnp.ones((1, 5, 6)), jnp.ones((1, 5), bool), train=False)
    assert str(caught.value) == (
        "LinearMixing has a matrix for exactly 7 positions, got 5: pad or cut every batch to 7"
    )


# Fourier


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("method", fourier.METHODS)
def test_fourier_mix_equals_the_oracle(method, shape):
    x = normal(*shape)
    assert_close(fourier.fourier_mix(x, method), oracle.fourier_mix(*float64(x)))


@pytest.mark.parametrize("length", SIZES)
def test_rfft_and_matmul_transform_every_size_to_a_millionth(length):
    inputs = [normal(2, length, dim) for dim in SIZES]
    for transform in (fourier.rfft, fourier.matmul):
        outputs = jax.jit(lambda xs, f=transform: [f(x) for x in xs])(inputs)
        for x, got in zip(inputs, outputs, strict=True):
            want = np.fft.fft2(*float64(x)).real  # NumPy transforms in float64
            assert got.shape == want.shape
            assert got.dtype == jnp.float32
            assert abs(np.asarray(got) - want).max() <= 1e-6 * abs(want).max()


@pytest.mark.parametrize("transform", [fourier.rfft, fourier.matmul], ids=["rfft", "matmul"])
def test_fourier_gradient_equals_the_definitions_autodiff(transform):
    shapes = [(2, 6, 5), (3, 7, 4), (1, 1, 8), (2, 8, 1), (2, 8, 8)]

    def gradients(f):
        def loss(xs, ys):
            return sum((f(x) * y).sum() for x, y in zip(xs, ys, strict=True))

        return jax.jit(jax.grad(loss))(
            [normal(*s) for s in shapes], [normal(*s, seed=1) for s in shapes]
        )

    for got, want in zip(gradients(transform), gradients(fourier.definition), strict=True):
        assert_close(got, want)


def test_fourier_under_vmap_scan_and_remat_with_gradient():
    x = normal(3, 2, 6, 5)

    def through(f):
        def loss(x):
            by_vmap = jax.vmap(jax.vmap(f))(x)
            _, by_scan = lax.scan(lambda carry, row: (carry, jax.checkpoint(f)(row)), 0, x)
            return (by_vmap**2).sum() + (by_scan**3).sum(), (by_vmap, by_scan)

        return jax.jit(jax.grad(loss, has_aux=True))(x)

    (want_gradient, (want, _)) = through(fourier.definition)
    (gradient, outputs) = through(fourier.rfft)
    for got in outputs:
        assert_close(got, want)
    assert_close(gradient / abs(want_gradient).max(), want_gradient / abs(want_gradient).max())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_fourier_output_is_symmetric_and_twice_gives_the_even_part(shape):
    _, length, dim = shape
    x = normal(*shape)

    def reverse(a):  # a[-n, -k]
        return np.asarray(a)[:, -np.arange(length)][:, :, -np.arange(dim)]

    y = fourier.rfft(x)
    assert_close(y, reverse(y))
    assert_close(fourier.rfft(y), length * dim * (np.asarray(x) + reverse(x)) / 2, 1e-4)


def test_fourier_takes_bfloat16_and_returns_it():
    x = normal(2, 6, 5).astype(jnp.bfloat16)
    got = fourier.fourier_mix(x, "rfft")
    want = fourier.definition(x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert got.dtype == jnp.bfloat16
    assert_close(got.astype(jnp.float32), want.astype(jnp.float32), 1e-2)


def test_auto_is_the_papers_choice_of_method(monkeypatch):
    assert fourier.choose_method(512) == "rfft"
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert [fourier.choose_method(n) for n in (4096, 4097)] == ["matmul", "rfft"]


def test_fourier_names_an_unknown_method():
    with pytest.raises(UserError) as caught:
        fourier.fourier_mix(normal(2, 6, 5), "fft")
    assert str(caught.value) == (
        "Fourier.method must be one of auto, definition, rfft, matmul, got 'fft': "
        "set it to one of these"
    )


# Performer


def test_softmax_features_equal_the_oracle_with_padding_and_an_empty_row():
    query, key, value, mask = heads_and_mask()
    features = normal(9, 5)
    got = jax.jit(performer.softmax_attention)(query, key, value, mask, features)
    arrays = float64(query, key, value)
    assert_close(got, oracle.favor_attention(*arrays, np.asarray(mask), *float64(features)))
    assert not np.asarray(got[2]).any()


@pytest.mark.parametrize("projected", [False, True])
def test_relu_kernel_equals_the_oracle_with_padding_and_an_empty_row(projected):
    query, key, value, mask = heads_and_mask()
    features = normal(9, 5) if projected else None
    got = jax.jit(performer.relu_attention)(query, key, value, mask, features)
    projections = np.asarray(features, np.float64) if projected else None
    arrays = float64(query, key, value)
    assert_close(got, oracle.relu_attention(*arrays, np.asarray(mask), projections))
    assert not np.asarray(got[2]).any()


@functools.cache
def many_draws(*, orthogonal):
    """20 draws of 1024 rows in 4 dimensions, float64 [20, 1024, 4]; rows come in blocks of 4."""
    draw = functools.partial(
        performer.draw_features, num_features=1024, width=4, orthogonal=orthogonal
    )
    draws = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), 20))
    return np.asarray(draws, np.float64)


def test_performer_error_against_exact_attention_falls_with_features():
    query, key, value, mask = heads_and_mask(2, 7, 2, 4)
    query, key = query / 2, key / 2
    exact = attention.naive(query, key, value, mask)

    @jax.jit
    def error(draws):
        attend = functools.partial(performer.softmax_attention, query, key, value, mask)
        return jnp.sqrt(jnp.square(jax.vmap(attend)(draws) - exact[None]).mean())

    draws = jnp.asarray(many_draws(orthogonal=True), jnp.float32)
    errors = [float(error(draws[:, :num_features])) for num_features in (16, 128, 1024)]
    # Eight times the features make the error about sqrt(8) = 2.8 times smaller.
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.03


@pytest.mark.parametrize("orthogonal", [True, False])
def test_features_estimate_the_softmax_kernel_without_bias(orthogonal):
    blocks = many_draws(orthogonal=orthogonal).reshape(-1, 4, 4)  # independent blocks of 4 rows
    num_blocks = len(blocks)
    # Each row of a block is distributed as N(0, I): mean 0, covariance 1.
    assert abs(blocks.mean(axis=0)).max() < 5 / np.sqrt(num_blocks)
    covariance = np.einsum("nmi,nmj->mij", blocks, blocks) / num_blocks
    assert abs(covariance - np.eye(4)[None]).max() < 5 * np.sqrt(2 / num_blocks)
    query, key = np.asarray([0.5, -0.3, 0.4, 0.1]), np.asarray([0.6, 0.2, -0.5, 0.3])
    phi = [np.exp(blocks @ x - x @ x / 2) / np.sqrt(4) for x in (query, key)]
    estimates = (phi[0] * phi[1]).sum(axis=1)
    assert abs(estimates.mean() - np.exp(query @ key)) < 4 * estimates.std() / np.sqrt(num_blocks)


def test_orthogonal_features_are_orthogonal_in_blocks_with_chi_norms():
    draws = many_draws(orthogonal=True)
    norms = np.linalg.norm(draws, axis=-1)
    directions = (draws / norms[..., None]).reshape(-1, 4, 4)
    gram = directions @ directions.transpose(0, 2, 1)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(4), gram.shape), atol=1e-5)
    across = directions[:-1] @ directions[1:].transpose(0, 2, 1)
    assert abs(across).max() > 0.9  # one block says nothing about the next
    # Chi-squared with 4 degrees of freedom: mean 4, variance 8, over 20480 rows.
    assert abs((norms**2).mean() - 4) < 0.1
    assert abs((norms**2).var() - 8) < 1
    assert performer.draw_features(jax.random.key(0), 10, 4).shape == (10, 4)  # a block cut short


def test_orthogonal_features_estimate_better_than_independent_ones():
    x = np.asarray([1.0, -0.6, 0.8, 0.2])

    def variance(orthogonal):
        return np.exp(many_draws(orthogonal=orthogonal).reshape(-1, 4, 4) @ x).mean(axis=1).var()

    assert variance(True) < 0.8 * variance(False)


def test_softmax_features_survive_huge_inputs():
    query, key, value, mask = heads_and_mask()
    features = normal(9, 5)
    got = np.asarray(performer.softmax_attention(100 * query, 100 * key, value, mask, features))
    low, high = float(value.min()), float(value.max())
    assert ((got >= low - 1e-4) & (got <= high + 1e-4)).all()  # means of values
    assert (got[:2] != 0).all()


def performer_module(**changes):
    fields = {"kernel": "softmax", "num_features": 8, "orthogonal": True, "redraw": False}
    return performer.Performer(**(FIELDS | fields | {"seed": 0, "dropout": 0.0} | changes))


def test_features_are_fixed_by_seed_and_layer_and_redrawn_only_in_training():
    def features(*, train=False, rng=0, **changes):
        module, rngs = performer_module(**changes), {"dropout": jax.random.key(rng)}
        return np.asarray(module.apply({}, 4, train=train, rngs=rngs, method="features"))

    base = features()
    assert base.shape == (8, 4)
    assert (features(train=True, rng=1) == base).all()
    assert (features(seed=1) != base).any()
    assert (features(layer=1) != base).any()
    assert (features(redraw=True) == base).all()
    first, again, other = (features(redraw=True, train=True, rng=rng) for rng in (0, 0, 1))
    assert (first == again).all()
    assert (first != base).any()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"kernel": "exp"},
            "Performer.kernel must be one of softmax, relu, got 'exp': set it to one of these",
        ),
        (
            {"num_features": 0},
            "Performer.num_features must be at least 1 (0 with kernel 'relu' only), got 0 with "
            "kernel 'softmax': set it to 256, say",
        ),
    ],
)
def test_performer_names_a_wrong_setting(changes, message):
    with pytest.raises(UserError) as caught:
        performer_module(**changes).init(
            jax.random.key(0), jnp.ones((1, 7, 6)), jnp.ones((1, 7), bool), train=False
        )
    assert str(caught.value) == message


# Modules


@pytest.mark.parametrize(
    "module", [attention_module, performer_module], ids=["attention", "performer"]
)
def test_mixers_with_heads_commute_with_permutations_of_the_positions(module):
    x, mask = normal(2, 7, 6), jnp.arange(7)[None] < jnp.asarray([[7], [4]])
    order = jnp.asarray([3, 0, 6, 2, 5, 1, 4])
    variables = module().init(jax.random.key(0), x, mask, train=False)
    mix = jax.jit(functools.partial(module().apply, variables, train=False))
    assert_close(mix(x[:, order], mask[:, order]), mix(x, mask)[:, order])


def test_a_mixer_with_heads_must_define_attend():
    class Unfinished(HeadMixer):
        uses_mask = True

    with pytest.raises(NotImplementedError, match="Unfinished must define attend"):
        Unfinished(**FIELDS, dropout=0.0).init(
            jax.random.key(0), jnp.ones((1, 7, 6)), jnp.ones((1, 7), bool), train=False
        )
    assert issubclass(Unfinished, Mixer)
