"""The encoder around the mixers: against a float64 oracle, closed formulas and its own settings."""

import dataclasses
import functools
import itertools

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
import naive as oracle
import numpy as np
import pytest
from arrays import (
    TINY,
    applied,
    assert_close,
    initial,
    new_key,
    normal,
    random_variables,
    shapes_of,
)

from lra_fnet import experiment
from lra_fnet.errors import UserError
from lra_fnet.models.encoder import (
    Block,
    Encoder,
    lookup,
    parameter_count,
    pool,
    sinusoidal_positions,
)
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.models.mixers.fourier import Fourier
from lra_fnet.models.mixers.linear import LinearMixing
from lra_fnet.models.mixers.local import LocalAttention

LENGTHS = jnp.asarray([8, 5, 3])
MASK = jnp.arange(8)[None] < LENGTHS[:, None]
IDS = jnp.where(MASK, jnp.arange(1, 25).reshape(3, 8) % 10 + 1, 0)
attention = functools.partial(Attention, implementation="naive", block_size=4)
fourier = functools.partial(Fourier, method="rfft")


def build(mixers, **changes):
    return Encoder(mixers=mixers, **(TINY | changes))


def test_mixer_that_would_be_broadcast_is_refused():
    class Broad(Mixer):
        uses_mask = False

        def __call__(self, x, mask, *, train):
            return x.mean(1, keepdims=True)

    with pytest.raises(UserError, match=r"float32 \[3, 8, 6\].*got float32 \[3, 1, 6\]"):
        jax.eval_shape(lambda: build(Broad).init(jax.random.key(0), IDS, MASK, train=False))


def test_padding_is_invisible_iff_the_mixers_say_so():
    """Its content and its amount, at one max_len; holes too, as LRA's mask on black pixels has."""
    holes = MASK.at[1, 2].set(False)
    for mixer in (attention, fourier):
        encoder = build(mixer, max_len=11)
        variables = random_variables(encoder, IDS, MASK)
        encode = jax.jit(functools.partial(encoder.apply, variables, train=False))
        long_ids, long_mask = (jnp.pad(a, ((0, 0), (0, 3))) for a in (IDS, holes))
        base = encode(long_ids, long_mask)
        for other in (encode(jnp.where(long_mask, long_ids, 11), long_mask), encode(IDS, holes)):
            assert bool(jnp.allclose(base, other, atol=1e-5)) == encoder.uses_mask
    assert build(attention).uses_mask
    assert not build((attention, fourier), num_layers=2).uses_mask


def test_dropout_acts_on_the_embedding():
    encoder = build(fourier, dropout=0.25, num_layers=1)
    variables = random_variables(encoder, IDS, MASK)
    seen = []

    def watch(call, args, kwargs, context):
        if isinstance(context.module, Block) and context.method_name == "__call__":
            seen.append(np.asarray(args[0]))
        return call(*args, **kwargs)

    with nn.intercept_methods(watch):
        for train in (False, True):
            encoder.apply(variables, IDS, MASK, train=train, rngs={"dropout": new_key(0)})
    still, dropped = seen
    kept = dropped != 0
    assert 0.6 < kept.mean() < 0.9  # 4 standard deviations of 144 entries
    assert_close(dropped[kept], still[kept] / 0.75)


def test_parameter_counts_are_the_closed_formulas():
    # The LRA paper's ListOps: 512 / 8 / 6 / 512 / 2048, length 2000 and CLS.
    vocab, length, dim, qkv, mlp, layers, classes = 16, 2001, 512, 512, 2048, 2, 10
    heads, blocks = 8, 32  # Sinkhorn's, of 64 tokens
    projections = 4 * dim * qkv
    gate = {"full": dim * 2 * dim + 2 * dim, "half1": dim * dim + dim}
    width = 2 * dim  # of the values of Mega
    modes = 32  # of the state spaces: complex numbers are two; input, output in both directions
    mixing = {
        "conv": (dim * 2 * dim + 2 * dim) + 5 * 2 * dim + (dim * dim + dim),
        "fnet_filter": 2 * (length // 2 + 1) * dim,
        "long_conv": 2 * length * dim + dim + gate["full"],
        "lru": 2 * 64 + 64 + 2 * 64 * dim + 2 * 2 * 64 * dim + dim + gate["full"],
        # Of both directions: taps and bias, select (of rank 32 and two times 16), dt, A, skip.
        "mamba": 6 * dim**2 + 2 * 2 * dim * (4 + 1 + (32 + 2 * 16) + (32 + 1) + 16 + 1),
        "mega": 4 * 2 * dim * 16
        + dim
        + 2 * qkv
        + 2 * qkv
        + (2 * length - 1)
        + (dim + 1) * (width + qkv + width + 2 * dim)
        + width * dim,
        "s4": 3 * 2 * dim * modes + 2 * 2 * dim * modes + dim + dim + gate["full"],
        "s4d": 2 * dim * modes + 2 * 2 * dim * modes + dim + dim + gate["full"],
        "s5": 2 * modes + 2 * modes * dim + 2 * 2 * modes * dim + modes + dim + gate["half1"],
        "sgconv": 2 * 6 * 64 * dim + dim + gate["full"],  # 64, 64, 128, ..., 1,024 of 2,048 taps
        "fnet_hybrid": projections,  # in both layers
        "linear": length**2 + dim**2,
        "linformer": projections + 256 * length,  # one matrix for keys, values and heads
        "nystromformer": projections + 35 * heads,  # the taps of the convolution
        "longformer": projections + 3 * dim * qkv,  # query, key and value of the global token
        "reformer": 3 * dim * qkv,  # queries are keys
        "sinkhorn": projections + (dim * dim + dim) + (dim + 1) * heads * blocks,
        "synthesizer": projections + heads * length**2 + 2 * heads,  # two kinds, weighed per head
    }
    mixing |= dict.fromkeys(("transformer", "performer", "bigbird", "local", "sparse"), projections)
    mixing |= dict.fromkeys(("fnet", "ff_only", "random", "fnet_original"), 0)
    sets = ["DATASET=full", "MAX_LEN=2000", "Encoder.num_layers=2"]
    inputs = jnp.zeros((1, 2000), jnp.int32), jnp.ones((1, 2000), bool)
    for model, block in mixing.items():
        built = experiment.load("listops", model, "paper", sets)
        gin.clear_config()  # nothing reads it when a model is traced
        block += (dim * mlp + mlp) + (mlp * dim + dim) + 2 * (2 * dim)
        want = vocab * dim + dim + layers * block + 2 * dim
        want += (dim * mlp + mlp) + (mlp * classes + classes)
        if model == "fnet_original":
            want += (length + 4) * dim + dim * dim + dim  # positions, types, Dense; its norm
        assert parameter_count(shapes_of(built.model, *inputs)) == want, model


@pytest.mark.parametrize(
    ("pooling", "norm", "num_layers"),
    [
        ("cls", "pre", 2),
        ("first", "pre", 1),
        ("mean", "pre", 1),
        ("mean_all", "pre", 1),
        ("mean", "post", 1),
    ],
)
def test_whole_encoder_equals_the_oracle(pooling, norm, num_layers):
    encoder = build(attention, pooling=pooling, norm=norm, num_layers=num_layers)
    mask = np.asarray(MASK) & (np.arange(3) < 2)[:, None]  # the last text is empty
    variables = random_variables(encoder, IDS, mask)
    params = jax.tree.map(np.float64, variables["params"])
    got = jax.jit(functools.partial(encoder.apply, train=False))(variables, IDS, mask)

    x = params["embedding"][np.asarray(IDS)]
    if pooling == "cls":
        cls = np.broadcast_to(params["cls"], (3, 1, 6))
        x = np.concatenate([cls, x], axis=1)
        mask = np.concatenate([np.ones((3, 1), bool), mask], axis=1)
    x = x + oracle.sinusoidal_positions(x.shape[1], 6)[None]
    run_block = oracle.pre_norm_block if norm == "pre" else oracle.post_norm_block
    for layer in range(num_layers):
        block = params[f"block_{layer}"]
        mix = functools.partial(
            oracle.attention_sublayer, mask=mask, params=block["mixer"], num_heads=2
        )
        x = run_block(x, mix, block, 1e-6)
    if norm == "pre":
        x = oracle.layer_norm(x, params["norm"]["scale"], params["norm"]["bias"], 1e-6)
    else:
        assert "norm" not in params
    want = {
        "cls": x[:, 0],
        "first": x[:, 0],
        "mean": oracle.masked_mean(x, mask),
        "mean_all": x.mean(axis=1),
    }
    assert ("cls" in params) == (pooling == "cls")
    assert_close(got, want[pooling], 1e-4)


@pytest.mark.parametrize(
    ("mixer", "pooling", "norm"),
    [
        (attention, "cls", "pre"),
        (fourier, "cls", "pre"),
        (functools.partial(fourier, scale="ortho"), "tanh", "post"),
        (LinearMixing, "cls", "pre"),
        (functools.partial(LocalAttention, block_size=3, neighbours=1), "first", "pre"),
    ],
)
def test_the_last_block_at_the_pooled_position_changes_no_value_and_no_gradient(
    mixer, pooling, norm
):
    mask = MASK.at[2].set(False)
    encoder = build(mixer, pooling=pooling, norm=norm, num_layers=2)
    variables = random_variables(encoder, IDS, mask)

    def loss(variables, pooled):
        y = encoder.apply(variables, IDS, mask, train=True, pooled=pooled)
        y = y[1] if pooled == "too" else y
        return jnp.square(y).sum(), y

    gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    got, want = gradient(variables, True), gradient(variables, "too")
    jax.tree.map(functools.partial(assert_close, tolerance=1e-4), got, want)


class Neighbours(Attention):
    """Looks at the token to the left, so that one query is not enough to make."""

    def heads(self, x, name):
        y = super().heads(x, name)
        return y + jnp.roll(y, 1, axis=1)


def test_a_subclass_that_does_not_know_first_only_computes_all_positions():
    mixer = functools.partial(Neighbours, implementation="naive", block_size=4)
    encoder = build(mixer, pooling="cls")
    variables = random_variables(encoder, IDS, MASK)
    whole = functools.partial(encoder.apply, train=False, pooled="too")
    _, want = jax.jit(whole)(variables, IDS, MASK)
    assert_close(applied(encoder, variables, IDS, MASK), want)


@pytest.mark.parametrize("changes", [{}, {"pooling": "mean"}, {"batch_norm": 0.9}])
def test_the_last_block_computes_the_pooled_position_alone_where_it_can(changes):
    encoder = build(attention, **({"pooling": "cls", "num_layers": 2} | changes))
    apply = functools.partial(
        encoder.apply, train=False, capture_intermediates=True, mutable=["intermediates"]
    )
    variables = shapes_of(encoder, IDS, MASK)
    captured = jax.eval_shape(apply, variables, IDS, MASK)[1]["intermediates"]
    length = encoder.mixer_length
    for layer, sublayer in itertools.product(range(2), ("mixer", "mlp")):
        (output,) = captured[f"block_{layer}"][sublayer]["__call__"]
        assert output.shape[1] == (1 if layer == 1 and not changes else length)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_batch_norm_takes_the_place_of_each_layer_norm(norm):
    """With the moments of each place as averages, evaluation gives what training gave."""
    changes = {"norm": norm, "num_layers": 2, "batch_norm": 0.0}
    encoder = build(attention, **changes)
    variables = random_variables(encoder, IDS, MASK)
    plain = random_variables(build(attention, norm=norm, num_layers=2), IDS, MASK)
    assert jax.tree.structure({"params": variables["params"]}) == jax.tree.structure(plain)
    train = functools.partial(encoder.apply, mutable=["averages"], train=True)
    trained, averages = jax.jit(train)(variables, IDS, MASK)
    places = {place for place, _ in jax.tree_util.tree_leaves_with_path(averages)}
    assert len(places) == 4 + (norm == "pre")
    evaluated = applied(encoder, variables | averages, IDS, MASK)
    assert_close(evaluated, trained, 1e-4)


PIXELS = {"inputs": "pixels", "pixel_mean": 4.5, "pixel_sd": 2.5}


def test_pixels_are_a_table_that_is_linear_in_the_value():
    """A Dense layer on one number gives what a table with its rows on a line gives."""
    encoder = build(attention, **PIXELS, pooling="mean_all")
    variables = random_variables(encoder, IDS, MASK)
    params = variables["params"]
    pixel = jax.tree.map(np.float64, params["pixel"])
    assert pixel["kernel"].shape == (1, 6)
    assert "embedding" not in params
    table = oracle.pixel_vectors(np.arange(-1, 11)[None], 4.5, 2.5, **pixel)[0]  # ids 0 to 11
    table[0] = pixel["bias"]  # padding counts as a pixel of mean brightness
    rest = {name: leaf for name, leaf in params.items() if name != "pixel"}
    by_table = {"params": rest | {"embedding": np.float32(table)}}
    want = applied(build(attention, pooling="mean_all"), by_table, IDS, MASK)
    assert_close(applied(encoder, variables, IDS, MASK), want)


def test_initial_parameters_are_lras():
    encoder = build(attention, pooling="cls", positions="learned", dim=64, qkv_dim=64, mlp_dim=128)
    variables = initial(encoder, IDS, MASK)
    assert set(variables) == {"params"}
    params = jax.tree.map(np.asarray, variables["params"])
    assert not params["cls"].any()
    assert params["positions_learned"].shape == (9, 64)  # CLS has a position of its own
    assert abs(params["positions_learned"].std() - 0.02) < 0.003
    assert abs(params["embedding"].std() - 1) < 0.1
    block = params["block_0"]
    assert 0 < abs(block["mlp"]["wide"]["bias"]).max() < 1e-5
    for kernel in (block["mlp"]["wide"]["kernel"], block["mixer"]["query"]["kernel"]):
        bound = np.sqrt(6 / sum(kernel.shape))  # xavier_uniform
        assert 0.98 * bound < abs(kernel).max() <= bound
    assert set(block["mixer"]["query"]) == {"kernel"}


@pytest.mark.parametrize(("length", "dim"), [(7, 6), (5, 3), (1, 1)])
def test_sinusoidal_positions_equal_the_oracle(length, dim):
    assert_close(sinusoidal_positions(length, dim), oracle.sinusoidal_positions(length, dim))


@pytest.mark.parametrize("pooling", ["mean", "mean_all"])
def test_a_mean_of_bfloat16_is_summed_in_float32(pooling):
    half, mask = normal(3, 8, 6).astype(jnp.bfloat16), MASK.at[2].set(False)
    assert_close(pool(half, mask, pooling), pool(half.astype(jnp.float32), mask, pooling), 1e-6)


@pytest.mark.parametrize(("one_hot", "entries"), [(True, 90), (True, 89), (True, 20), (False, 0)])
def test_lookup_and_its_gradient_are_a_gather_and_a_scatter(monkeypatch, one_hot, entries):
    """The one-hot matrix of 90 entries is taken whole, in two parts and in five."""
    monkeypatch.setattr("lra_fnet.models.encoder.ONE_HOT_MAX_ENTRIES", entries)
    rng = np.random.default_rng(0)
    table, cotangent = rng.normal(size=(5, 4)), rng.normal(size=(2, 9, 4))
    ids = rng.integers(0, 4, (2, 9))  # the last row is never read
    want = np.zeros_like(table)
    np.add.at(want, ids, cotangent)

    @jax.jit
    def run(table, ids, cotangent):
        rows, pull = jax.vjp(lambda table: lookup(table, ids, one_hot=one_hot), table)
        return rows, pull(cotangent)[0]

    rows, gradient = run(jnp.float32(table), ids, jnp.float32(cotangent))
    assert (rows == jnp.float32(table)[ids]).all()
    assert_close(gradient, want, 1e-5)
    assert not gradient[4].any()


def test_remat_changes_neither_outputs_nor_gradients_but_what_is_kept():
    variables = random_variables(build(attention), IDS, MASK)

    def run(remat):
        encoder = build(attention, attention_dropout=0.2, remat=remat)

        def loss(variables):
            rngs = {"dropout": new_key(1)}
            return jnp.square(encoder.apply(variables, IDS, MASK, train=True, rngs=rngs)).sum()

        _, backward = jax.eval_shape(functools.partial(jax.vjp, loss), variables)
        kept = sum(leaf.size for leaf in jax.tree.leaves(backward))
        return jax.jit(jax.value_and_grad(loss))(variables), kept

    (want, most), (values, kept) = run(False), run(True)
    for one, other in zip(jax.tree.leaves(values), jax.tree.leaves(want), strict=True):
        assert_close(one, other, 1e-4)
    assert kept < most


def test_a_layout_gives_each_layer_its_mixer():
    def layout(*, layer, num_layers, **fields):
        make = fourier if layer < num_layers - 1 else attention
        return make(layer=layer, num_layers=num_layers, **fields)

    for mixers in (layout, (fourier, attention), [fourier, attention]):
        encoder = build(mixers, num_layers=2)
        assert [type(mixer) for mixer in encoder.mixers] == [Fourier, Attention]
        shapes = shapes_of(encoder, IDS, MASK)
        assert "mixer" not in shapes["params"]["block_0"]
        assert set(shapes["params"]["block_1"]["mixer"]) == {"query", "key", "value", "out"}


def test_mixers_receive_the_encoders_sizes_and_the_length_with_cls():
    assert build(attention).mixer_length == build(attention, pooling="first").mixer_length == 8
    encoder = build(attention, pooling="cls", attention_dropout=0.25, num_layers=2)
    assert encoder.mixer_length == 9
    names = [field.name for field in dataclasses.fields(Mixer)][:7]

    def received(encoder):
        return [getattr(encoder.mixers[1], name) for name in names]

    assert received(encoder) == [6, 2, 4, 9, 1, 2, 0.25]
    changed = encoder.clone(dim=12, pooling="mean", attention_dropout=0.0)  # as its mixers change
    assert received(changed) == [12, 2, 4, 8, 1, 2, 0.0]


def test_encoder_refuses_inputs_longer_than_the_task():
    with pytest.raises(UserError, match="takes at most max_len = 7 tokens, got 8"):
        shapes_of(build(attention, max_len=7), IDS, MASK)


@pytest.mark.parametrize("silent", ["mixer", "mlp"])
def test_a_pre_norm_block_drops_entries_of_each_sublayer_and_of_the_mlps_hidden_ones(silent):
    (mixer,) = Encoder(mixers=attention, **TINY).mixers
    block = Block(mixer, 6, 10, 0.5, "pre", 1e-6, None)
    x, mask = normal(3, 8, 6), np.ones((3, 8), bool)
    variables = random_variables(block, x, mask)
    sublayer, layer = {"mixer": ("mixer", "out"), "mlp": ("mlp", "narrow")}[silent]
    part = variables["params"][sublayer]
    part[layer] = jax.tree.map(np.zeros_like, part[layer])
    still = applied(block, variables, x, mask) - x
    rngs = {"dropout": new_key(0)}
    dropped = applied(block, variables, x, mask, train=True, rngs=rngs) - x
    kept = np.asarray(dropped != 0)
    assert 0.3 < kept.mean() < 0.7
    whole = np.where(kept, 2 * still, 0)
    if silent == "mlp":
        assert_close(dropped, whole)
    else:  # whose hidden entries are dropped too
        assert abs(dropped - whole)[kept].max() > 0.1


@pytest.mark.parametrize("pooling", ["mean", "mean_all"])
@pytest.mark.parametrize("second", [attention, fourier], ids=["attention", "fourier"])
def test_encoder_computes_the_same_with_attention_in_tiles(second, pooling):
    """Tiles skip padding, which Fourier or a mean over all positions would read."""
    first = {"naive": attention, "tiles": functools.partial(attention, implementation="blockwise")}
    models = [build([one, second], num_layers=2, pooling=pooling) for one in first.values()]
    variables = random_variables(models[0], IDS, MASK)
    results = [applied(model, variables, IDS, MASK) for model in models]
    assert_close(*results)
