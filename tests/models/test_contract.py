"""Every model's mixer against the contract; that each check of it fails; settings; dropout.

The cases are the files in gin/models, with whole numbers of at most 2, so that a few tokens are
several blocks, chunks or windows.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import (
    applied,
    assert_close,
    initial,
    inputs_of,
    new_key,
    normal,
    random_variables,
    shapes_of,
)
from jax import lax
from refused import one_line

from lra_fnet import config, experiment
from lra_fnet.errors import UserError
from lra_fnet.models import mixers
from lra_fnet.models.kernel_mixer import KernelMixer
from lra_fnet.models.mixer import FixedTransform, HeadMixer, Mixer, draw_once
from lra_fnet.models.mixers import (
    attention,
    bigbird,
    local,
    mega,
    reformer,
    sinkhorn,
    sparse,
    synthesizer,
)
from lra_fnet.models.mixers.rotary import Rotary
from lra_fnet.models.mixers.state_space import Recurrent
from lra_fnet.testing import check_mixer, check_padding
from tools.documents import models as page

VARIANTS = [  # other ways through a mixer's code than its gin file's
    "transformer Attention.implementation=naive Attention.padding=uniform",
    "transformer Attention.implementation=naive Attention.projections=bert",
    "linear_transformer LinearAttention.padding=seen",
    "bigbird BigBird.num_global=0 BigBird.last_is_global=False",
    "sparse SparseAttention.pattern=strided SparseAttention.global_first=True",
    f"synthesizer Synthesizer.kinds={synthesizer.KINDS}".replace(", ", ","),
    "performer Performer.kernel=relu Performer.num_features=0",
    "reformer Reformer.redraw=True Reformer.num_hashes=8",
    "mega Mega.function=laplace Mega.chunk=4",
    "mamba Mamba.bidirectional=False Mamba.method=associative Mamba.width=8",
    "s5 S5.method=associative S5.gate=half2",
    "nystromformer Nystrom.width=0",
    "ff_only NoMixing.identity=True",
]
OF_ENCODER = {f.name for f in dataclasses.fields(Mixer)} | {"deviation", "padding_unread"}
FIELDS = {"dim": 8, "num_heads": 2, "qkv_dim": 8, "layer": 0, "num_layers": 2, "dropout": 0.0}


def small(number):
    return 2 if number > 4 else min(number, 1)


def cases(names):
    """The mixers' classes and their own settings, each once."""
    found = {}
    for name in names:
        model, *sets = name.split()
        for mixer in experiment.load("listops", model, "cpu", sets).model.encoder.mixers:
            names = {f.name for f in dataclasses.fields(mixer)} - OF_ENCODER
            own = {name: getattr(mixer, name) for name in sorted(names)}
            own = {name: small(v) if type(v) is int else v for name, v in own.items()}
            found.setdefault((type(mixer), str(own)), (name, type(mixer), own))
    return [pytest.param(cls, own, id=name) for name, cls, own in found.values()]


MODELS = cases(config.known("models"))
ALL = cases([*config.known("models"), *VARIANTS])


@pytest.mark.parametrize(("cls", "settings"), ALL)
def test_mixer_keeps_the_contract(cls, settings):
    check_mixer(cls, **settings)


@pytest.mark.parametrize("model", config.known("models"))
def test_short_texts_with_one_real_token_have_a_finite_gradient(model):
    """Each mixer with its own block sizes, which are longer than the text."""
    sizes = "Encoder.dim=4", "Encoder.qkv_dim=4", "Encoder.num_heads=2"
    short, points = [], []
    for length in (1, 3, 17):
        made = experiment.load("listops", model, "cpu", (*sizes, f"MAX_LEN={length}"))
        x, mask = normal(2, length, 4), np.arange(length)[None] < np.asarray([[1], [length]])
        for mixer in dict.fromkeys(m.clone(layer=0) for m in made.model.encoder.mixers):
            short.append((mixer, mask))
            points.append((random_variables(mixer, x, mask), x))

    def total(points):
        for (mixer, mask), given in zip(short, points, strict=True):
            y = mixer.apply(*given, mask, train=True, rngs={"dropout": new_key(1)})
            yield (y * mask[..., None]).sum()

    gradient = jax.jit(jax.grad(lambda points: sum(total(points))))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(points)))


@pytest.mark.parametrize(("cls", "settings"), ALL)
def test_gradient_adds_in_a_fixed_order(cls, settings):
    """On a GPU a scatter adds in any order, so that no run could be repeated to the bit."""
    mixer = cls(**FIELDS, max_len=16, **settings)
    x, mask, rngs = normal(2, 16, 8), np.ones((2, 16), bool), {"dropout": new_key(1)}
    variables = shapes_of(mixer, x, mask)

    def total(variables, x):
        return mixer.apply(variables, x, mask, train=True, rngs=rngs).sum()

    assert "scatter-add" not in str(jax.make_jaxpr(jax.grad(total, (0, 1)))(variables, x))


@pytest.mark.parametrize(("cls", "settings"), MODELS)
def test_mixer_says_whether_equal_parameters_fit_other_lengths(cls, settings):
    """Where they do, an equal text gives the same result; padding is seen by some."""
    short, fits = cls(**FIELDS, **settings, max_len=18), []
    for length in (19, 30):
        long = cls(**FIELDS, **settings, max_len=length)
        if shapes_of(short, *inputs_of(short)) != shapes_of(long, *inputs_of(long)):
            continue
        x, mask = normal(2, 18, 8), np.ones((2, 18), bool)
        variables = random_variables(short, x, mask)
        want = applied(short, variables, x, mask)
        try:
            got = applied(long, variables, x, mask)
        except UserError:  # it takes texts of max_len only
            got = np.full_like(want, np.nan)
        fits.append(np.allclose(got, want, rtol=1e-4, atol=1e-5))
    assert not fits or cls.bound_to_max_len != all(fits)


@pytest.mark.parametrize(
    ("cls", "settings"),
    [case for case in ALL if "seed" in (own := case.values[1]) and own.get("num_features") != 0],
)
def test_what_is_drawn_once_is_a_function_of_seed_and_layer(cls, settings):
    """So a checkpoint need not hold it; with `redraw`, training alone draws anew."""
    x, mask = normal(2, 16, 8), np.ones((2, 16), bool)

    def output(train=False, key=0, **changes):
        mixer = cls(**FIELDS | {"max_len": 16} | settings | changes)
        variables = random_variables(mixer, x, mask)
        if "constants" in variables:
            variables = initial(mixer, x, mask, seed=key)
        return applied(mixer, variables, x, mask, train=train, rngs={"dropout": new_key(key)})

    first = output()
    assert (output(key=1) == first).all()
    assert (output(seed=1) != first).any()
    assert (output(layer=1) != first).any()
    redrawn = (output(train=True, key=1) != first).any()
    assert redrawn == settings.get("redraw", False)


def test_fixed_draws_are_those_of_threefry_under_any_default_generator():
    want = jax.random.fold_in(jax.random.key(3, impl="threefry2x32"), 1)
    with jax.default_prng_impl("rbg"):
        got = draw_once(functools.partial(jax.random.normal, shape=(4,)), 3, 1)
    np.testing.assert_array_equal(got, jax.random.normal(want, (4,)))


def test_every_mixer_has_a_gin_file():
    classes = set()
    for module in pkgutil.iter_modules(mixers.__path__):
        members = vars(importlib.import_module(f"{mixers.__name__}.{module.name}")).values()
        classes |= {c for c in members if inspect.isclass(c) and issubclass(c, Mixer)}
    bases = {Mixer, HeadMixer, FixedTransform, KernelMixer, Recurrent, Rotary}
    assert classes - bases == {case.values[0] for case in MODELS}


def test_the_page_of_models_is_what_the_mixers_and_gin_files_say():
    assert page.TARGET.read_text() == page.table(), "run python -m tools.documents"


# One broken mixer for each check


class Moving(Mixer):
    """A mixer that keeps the contract: the mean over real tokens is added to each."""

    uses_mask = True
    equivariant = True

    @nn.compact
    def __call__(self, x, mask, *, train):
        scale = self.param("scale", nn.initializers.ones, (self.dim,))
        total = jnp.where(mask[..., None], x, 0).sum(axis=1, keepdims=True)
        count = jnp.maximum(mask.sum(axis=1)[:, None, None], 1).astype(x.dtype)
        return self.change(x + total / count * scale.astype(x.dtype)[None, None], x, mask, train)

    def change(self, y, x, mask, train):
        return y


def broken(change, **facts):
    """A class whose output is change(y, x, mask, train) of the result y of `Moving`."""

    def call(self, y, x, mask, train):
        return change(y, x, mask, train)

    return type("Broken", (Moving,), {"change": call, **facts})


def at_first(positions):
    """A mixer that returns these positions with first_only."""

    class Broken(Moving):
        uses_first_only = True

        def __call__(self, x, mask, *, train, first_only=False):
            y = super().__call__(x, mask, train=train)
            return y[:, positions] if first_only else y

    return Broken


@jax.custom_vjp
def wrong_gradient(y):
    return y


wrong_gradient.defvjp(lambda y: (y, None), lambda _, cotangent: (1.01 * cotangent,))


class HalfParameters(Moving):
    @nn.compact
    def __call__(self, x, mask, *, train):
        return x + self.param("scale", nn.initializers.ones, (self.dim,), jnp.bfloat16)[None, None]


class RandomEvaluation(Moving):
    def change(self, y, x, mask, train):
        key = self.has_rng("dropout") and not train
        return y * jax.random.uniform(self.make_rng("dropout")) if key else y


class Dropping(Moving):
    def change(self, y, x, mask, train):
        return y * (1 - self.dropout * train)


NOISE = iter(range(100))


def noise(y, x, mask, train):
    return y + train * jax.pure_callback(lambda: y.dtype.type(next(NOISE)), jnp.zeros((), y.dtype))


BROKEN = [  # and words of the fault
    (HalfParameters, "has a bfloat16 parameter"),
    (broken(lambda y, x, mask, train: y[:, 1:]), "keep the shape"),
    (broken(lambda y, x, mask, train: y[:, 1:] if train else y), "in training: keep the shape"),
    (broken(lambda y, x, mask, train: y.astype(jnp.bfloat16)), "float32 to bfloat16"),
    (broken(lambda y, x, mask, train: y / mask.any(axis=1)[:, None, None]), "NaN or infinity"),
    (broken(lambda y, x, mask, train: y + y.mean(axis=0, keepdims=True)), "mixes the examples"),
    (broken(lambda y, x, mask, train: y / (1 + mask[0].sum())), "mixes the examples"),
    (broken(lambda y, x, mask, train: y - train * y[:1]), "mixes the examples of a batch in train"),
    (broken(lambda y, x, mask, train: (y, y)), "keep the shape"),
    (broken(lambda y, x, mask, train: y * x.shape[0]), "depends on the number of examples"),
    (broken(lambda y, x, mask, train: y + x[:, -1:]), "content of padding changes outputs"),
    (broken(lambda y, x, mask, train: y + train * x[:, -1:]), "padding changes outputs in train"),
    (broken(lambda y, x, mask, train: y / x.shape[1]), "the amount of padding changes outputs"),
    (broken(lambda y, *_: y, uses_mask=False), "but padding changes no output"),
    (broken(lambda y, x, mask, train: lax.stop_gradient(y) if train else y), "has the gradient"),
    (broken(lambda y, x, mask, train: wrong_gradient(y)), "has the gradient"),
    (broken(lambda y, x, mask, train: y + jnp.sqrt(x**2)), "gradient with NaN or infinity"),
    (broken(lambda y, *_: y.astype(jnp.float32).astype(y.dtype)), "has the gradient"),
    (broken(lambda y, x, *_: y * (1 + 0.2 * (x.dtype == jnp.bfloat16))), "far from float32"),
    (RandomEvaluation, "is random in evaluation"),
    (broken(noise), "is random in training beyond its dropout key"),
    (broken(lambda y, *_: y, uses_dropout=True), "dropout does not change its training"),
    (Dropping, "dropout changes its training"),
    (broken(lambda y, x, *_: y.at[:, 1].mul(2)), "does not commute with permutations"),
    (broken(lambda y, *_: y, equivariant=False), "declares equivariant = False, but commutes"),
    (broken(lambda y, x, *_: x), "declares first_alone = False"),
    (broken(lambda y, *_: y, first_alone=True), "declares first_alone = True"),
    (at_first(slice(2)), "with first_only: return position 0 alone"),
    (at_first(slice(-1, None)), "has another output at position 0 with first_only"),
]


def test_the_unbroken_mixer_passes():
    check_mixer(Moving)


@pytest.mark.parametrize(("cls", "fault"), BROKEN, ids=[fault for _, fault in BROKEN])
def test_each_check_fails_with_one_line(cls, fault):
    with jax.debug_nans(False), pytest.raises(AssertionError) as caught:
        check_mixer(cls)
    line = str(caught.value).splitlines()[0]
    assert line.startswith(cls.__name__)
    assert fault in line


def test_padding_of_a_mixer_is_checked_as_it_is():
    """A mixer that says that it sees padding may."""
    fields = FIELDS | {"max_len": 9, "dropout": 0.5}
    check_padding(Moving(**fields))
    with pytest.raises(UserError, match="declares uses_mask"):
        check_padding(broken(lambda y, x, mask, train: y + x[:, -1:])(**fields))
    unbuilt = broken(lambda y, x, mask, train: 1 / 0, uses_mask=False)
    check_padding(unbuilt(**fields))


class Undeclared(Mixer):
    def __call__(self, x, mask, *, train):
        return x


@pytest.mark.parametrize(
    ("cls", "words"),
    [(nn.Dense, "subclass of Mixer"), (Undeclared, "uses_mask")],
)
def test_what_check_mixer_cannot_check_is_refused_with_one_line(cls, words):
    with one_line(words):
        check_mixer(cls)


# Settings


@pytest.mark.parametrize(
    ("model", "binding", "fragment"),
    [
        ("transformer", "Attention.implementation='flash'", "naive, blockwise, fused"),
        ("transformer", "Attention.block_size=0", "at least 1, got 0"),
        ("local", "LocalAttention.neighbours=-1", "at least 0, got -1"),
        ("sparse", "SparseAttention.summary=0", "at least 1, got 0"),
        ("longformer", "Longformer.window=7", "multiple of 2, got 7"),
        ("bigbird", "BigBird.seed=-1", "at least 0 and below 4294967296, got -1"),
        ("bigbird", "BigBird.seed=1.5", "whole number, got 1.5"),
        ("synthesizer", "Synthesizer.kinds=('local',)", "attention, got 'local'"),
        ("performer", "Performer.num_features=0", "at least 1"),
        ("reformer", "Reformer.num_buckets=5", "multiple of 2, got 5"),
        ("mega", "Mega.chunk=0", "at least 1, got 0"),
        ("s4", "S4.state=5", "multiple of 2, got 5"),
        ("s5", "S5.state=6", "got 6"),
        ("fnet_hybrid", "hybrid.attention_layers=-1", "at least 0, got -1"),
        ("fnet_hybrid", "hybrid.layout='top'", "MIDDLE, MIXED, got 'top'"),
        ("transformer", "Attention.deviation=0.1", "the encoder's"),
        ("transformer_rotary", "Encoder.qkv_dim=12", "even width"),
        ("fnet", "Encoder.norm='rms'", "pre, post, got 'rms'"),
        ("fnet", "Encoder.inputs='pixels'", "tokens but for images, got 'pixels'"),
        ("fnet", "Encoder.num_heads=3", "a divisor of 128, got 3"),
        ("fnet", "Encoder.num_layers=0", "at least 1, got 0"),
        ("fnet", "Encoder.dropout=1.0", "below 1, got 1.0"),
        ("fnet", "Encoder.batch_norm=1.0", "below 1, got 1.0"),
        ("fnet", "Encoder.embedding='bert'", "learned with embedding bert, got 'sinusoidal'"),
        ("fnet", "Encoder.num_types=2", "1 with embedding lra, got 2"),
        ("fnet", "Encoder.initialisation='width'", "published with norm pre"),
        ("fnet", "Encoder.mixers='fourier'", "a subclass of Mixer, got 'fourier'"),
        ("fnet", "Encoder.mixers=[@Fourier]", "lists 1 mixers for 2 layers"),
        ("fnet", "Head.interaction='nli'", "num_inputs = 1, got 'nli'"),
        ("fnet", "Head.mlp_dim=-1", "at least 0, got -1"),
    ],
)
def test_a_wrong_setting_is_named(model, binding, fragment):
    with pytest.raises(UserError) as caught:
        experiment.load("listops", model, "cpu", [binding])
    line = str(caught.value).splitlines()[0]  # gin adds "In call to configurable ..."
    name = binding.partition("=")[0]
    other = {"Encoder.embedding": "Encoder.positions", "Encoder.qkv_dim": "rotary positions"}
    assert other.get(name, name) in line
    assert fragment in line


# Dropout of weights

LENGTH, COPIES = 16, 32


def bigbird_attention(*inputs, **drop):
    picks = bigbird.draw_blocks(np.random.default_rng(0).random((2, 6, 1)))
    layout = {"block_size": 2, "num_blocks": 8, "first": 1, "stop": 7, "picks": picks}
    return bigbird.bigbird_attention(*inputs, **layout, **drop)


def lsh_attention(query, key, value, mask, **drop):
    query = jnp.broadcast_to(normal(1, *query.shape[1:]), query.shape)
    buckets = jnp.zeros((COPIES, 2, 1, LENGTH), jnp.int32)
    return reformer.lsh_attention(
        query, value, mask, buckets, num_buckets=2, chunk_size=LENGTH, **drop
    )


def sinkhorn_attention(*inputs, **drop):
    sorting = jnp.broadcast_to(jnp.eye(2)[::-1], (COPIES, 2, 2, 2))
    return sinkhorn.sinkhorn_attention(*inputs, sorting, block_size=8, **drop)


sparse_attention = functools.partial(
    sparse.sparse_attention, summary=1, causal=False, global_first=True
)
WEIGHTED = {
    "naive": attention.naive,
    "blockwise": functools.partial(attention.blockwise, block_size=5),
    "local": functools.partial(local.local_attention, block_size=4),
    "fixed": functools.partial(sparse_attention, pattern="fixed", block_size=4),
    "strided": functools.partial(sparse_attention, pattern="strided", block_size=4),
    "bigbird": bigbird_attention,
    "reformer": lsh_attention,
    "sinkhorn": sinkhorn_attention,
}


@pytest.mark.parametrize("attend", WEIGHTED.values(), ids=WEIGHTED)
def test_dropout_drops_single_weights_and_keeps_the_mean(attend):
    """The examples are equal and values are unit vectors, so outputs are the weights."""
    rate, shape = 0.25, (COPIES, LENGTH, 2, LENGTH)
    zero, value = jnp.zeros(shape), jnp.broadcast_to(jnp.eye(LENGTH)[None, :, None], shape)
    inputs = zero, zero, value, jnp.ones((COPIES, LENGTH), bool)
    weights, dropped = jax.jit(
        lambda *inputs: (attend(*inputs), attend(*inputs, rate=rate, rng=new_key(0)))
    )(*inputs)
    used = np.asarray(weights)[0] > 0
    weights, dropped = np.asarray(weights)[:, used], np.asarray(dropped)
    assert not dropped[:, ~used].any()
    kept = dropped[:, used] > 0
    assert_close(dropped[:, used], np.where(kept, weights / (1 - rate), 0))
    assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / kept.size)
    assert len(np.unique(kept, axis=0)) == COPIES  # no two examples share their draws,
    assert len(np.unique(kept.T, axis=0)) == kept.shape[1]  # nor do rows, heads or parts


def test_gradients_in_bfloat16_are_summed_over_blocks_in_float32():
    """With 128 blocks, sums in bfloat16 are wrong by 1 % or more."""
    length, mask = 512, jnp.ones((1, 512), bool)
    bias = jnp.zeros(2 * length - 1)
    arrays = [normal(1, length, 8, seed=seed).astype(jnp.bfloat16) for seed in range(3)]
    towards = normal(1, 1, 8) + 0.3 * normal(1, length, 8, seed=3)  # as of a mean

    def gradients(*arrays):
        def loss(*qkv):
            out = mega.chunked_attention(*qkv, mask, bias, kind="softmax", block_size=4)
            return (out.astype(jnp.float32) * towards).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)

    wide = gradients(*(a.astype(jnp.float32) for a in arrays))
    for got, want in zip(gradients(*arrays), wide, strict=True):
        error = jnp.linalg.norm(got.astype(jnp.float32) - want) / jnp.linalg.norm(want)
        assert error < 0.008, error
