"""Every mixer against the contract; that each check of it fails; settings; dropout of weights."""

import functools
import importlib
import inspect
import pkgutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import applied, assert_close, inputs_of, new_key, normal, random_variables, shapes_of
from jax import lax

from lra_fnet import config, experiment
from lra_fnet.errors import UserError
from lra_fnet.models import mixers
from lra_fnet.models.kernel_mixer import KernelMixer
from lra_fnet.models.kernels import blocks
from lra_fnet.models.kernels.pointwise import BatchNorm
from lra_fnet.models.mixer import FixedTransform, HeadMixer, Mixer
from lra_fnet.models.mixers import (
    attention,
    bigbird,
    linformer,
    local,
    longformer,
    mega,
    reformer,
    sinkhorn,
    sparse,
    synthesizer,
)
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.models.mixers.bigbird import BigBird
from lra_fnet.models.mixers.convolution import Convolution
from lra_fnet.models.mixers.exact_fourier import ExactFourier
from lra_fnet.models.mixers.fourier import Fourier
from lra_fnet.models.mixers.fourier_filter import FourierFilter
from lra_fnet.models.mixers.linear import LinearMixing
from lra_fnet.models.mixers.linear_attention import LinearAttention
from lra_fnet.models.mixers.linformer import Linformer
from lra_fnet.models.mixers.local import LocalAttention
from lra_fnet.models.mixers.long_convolution import LongConvolution
from lra_fnet.models.mixers.longformer import Longformer
from lra_fnet.models.mixers.mamba import Mamba
from lra_fnet.models.mixers.mega import Mega
from lra_fnet.models.mixers.none import NoMixing
from lra_fnet.models.mixers.nystrom import Nystrom
from lra_fnet.models.mixers.performer import Performer
from lra_fnet.models.mixers.random import RandomMixing
from lra_fnet.models.mixers.reformer import Reformer
from lra_fnet.models.mixers.rotary import Rotary, RotaryAttention
from lra_fnet.models.mixers.s4 import S4
from lra_fnet.models.mixers.sinkhorn import Sinkhorn
from lra_fnet.models.mixers.sparse import SparseAttention
from lra_fnet.models.mixers.state_space import LRU, S4D, S5, Recurrent
from lra_fnet.models.mixers.structured_convolution import StructuredConvolution
from lra_fnet.models.mixers.synthesizer import Synthesizer
from lra_fnet.models.mixers.transforms import DCT, Hadamard, Hartley, SequenceFourier
from lra_fnet.testing import check_mixer, check_padding

BIGBIRD = {"block_size": 2, "num_random": 1, "num_global": 1, "last_is_global": True, "seed": 0}
PERFORMER = {"kernel": "softmax", "num_features": 8, "orthogonal": True, "redraw": False, "seed": 0}
REFORMER = {"num_hashes": 2, "num_buckets": 4, "chunk_size": 3, "redraw": False, "seed": 0}
SINKHORN = {"block_size": 3, "iterations": 3, "temperature": 0.75, "gumbel": True}
SPARSE = {"pattern": "fixed", "block_size": 0, "summary": 1, "causal": False, "global_first": False}
SYNTHESIZER = {"kinds": ("random", "attention"), "factor": 4, "block_size": 3}
MEGA = {"state": 3, "expansion": 2, "block_size": 5}
STEPS = {"dt_min": 0.01, "dt_max": 0.5}
MAMBA = STEPS | {"state": 4, "expand": 2, "width": 4}
RING = {"radius_min": 0.5, "radius_max": 0.9, "max_phase": 3.0}
# Settings under which a few tokens are several blocks, chunks or windows.
CASES = {
    "naive": (Attention, {"implementation": "naive", "block_size": 4}),
    "blockwise": (Attention, {"implementation": "blockwise", "block_size": 4}),
    "bert": (Attention, {"implementation": "naive", "block_size": 4, "projections": "bert"}),
    "padding uniform": (
        Attention,
        {"implementation": "naive", "block_size": 4, "padding": "uniform"},
    ),
    "bigbird": (BigBird, BIGBIRD),
    "bigbird, nothing global": (BigBird, BIGBIRD | {"num_global": 0, "last_is_global": False}),
    "fourier": (Fourier, {"method": "auto"}),
    "ortho": (Fourier, {"method": "rfft", "scale": "ortho"}),
    "matmul": (Fourier, {"method": "matmul"}),
    "linear": (LinearMixing, {}),
    "linear attention": (LinearAttention, {}),
    "linear attention, padding seen": (LinearAttention, {"padding": "seen"}),
    "linformer, kv": (Linformer, {"k": 4, "sharing": "kv"}),
    "nystrom": (Nystrom, {"landmarks": 3, "iterations": 6, "width": 5}),
    "nystrom, no convolution": (Nystrom, {"landmarks": 4, "iterations": 6, "width": 0}),
    "linformer, none": (Linformer, {"k": 4, "sharing": "none"}),
    "local": (LocalAttention, {"block_size": 4, "neighbours": 0}),
    "longformer": (Longformer, {"window": 4, "num_global": 1}),
    "nothing": (NoMixing, {"identity": False}),
    "identity": (NoMixing, {"identity": True}),
    "performer": (Performer, PERFORMER),
    "performer, relu": (Performer, PERFORMER | {"kernel": "relu", "num_features": 0}),
    "random": (RandomMixing, {"seed": 0}),
    "reformer": (Reformer, REFORMER | {"redraw": True}),
    "sinkhorn": (Sinkhorn, SINKHORN),
    "fixed": (SparseAttention, SPARSE),
    "strided": (SparseAttention, SPARSE | {"pattern": "strided", "global_first": True}),
    "synthesizer": (Synthesizer, SYNTHESIZER | {"kinds": synthesizer.KINDS}),
    "sequence": (SequenceFourier, {}),
    "hartley": (Hartley, {}),
    "dct": (DCT, {}),
    "hadamard": (Hadamard, {}),
    "convolution": (Convolution, {"width": 5}),
    "even convolution": (Convolution, {"width": 2}),
    "exact fourier": (ExactFourier, {}),
    "fourier filter": (FourierFilter, {}),
    "long convolution": (LongConvolution, {"threshold": 0.1, "scale": 0.5, "gate": "full"}),
    "structured convolution": (StructuredConvolution, {"taps": 4, "decay": 0.5, "gate": "full"}),
    "mega": (Mega, MEGA | {"function": "softmax", "chunk": None}),
    "mega, chunks": (Mega, MEGA | {"function": "softmax", "chunk": 4}),
    "mega, laplace": (Mega, MEGA | {"function": "laplace", "chunk": None}),
    "mega, laplace and chunks": (Mega, MEGA | {"function": "laplace", "chunk": 4}),
    "rotary": (RotaryAttention, {"implementation": "naive", "block_size": 4}),
    "s4": (S4, STEPS | {"state": 8, "gate": "full"}),
    "s4d": (S4D, STEPS | {"state": 8, "initial": "legs", "gate": "full"}),
    "s4d, lin": (S4D, STEPS | {"state": 2, "initial": "lin", "gate": "none"}),
    "s5": (S5, STEPS | {"state": 8, "blocks": 2, "method": "scan", "gate": "half1"}),
    "s5, parallel": (
        S5,
        STEPS | {"state": 4, "blocks": 1, "method": "associative", "gate": "half2"},
    ),
    "lru": (LRU, RING | {"state": 4, "method": "scan", "gate": "full"}),
    "mamba": (Mamba, MAMBA | {"bidirectional": True, "method": "scan"}),
    "mamba, parallel": (Mamba, MAMBA | {"bidirectional": True, "method": "associative"}),
    "mamba, causal": (Mamba, MAMBA | {"bidirectional": False, "method": "scan"}),
}


@functools.cache
def defined():
    """All mixer classes of the package."""
    classes = set()
    for module in pkgutil.iter_modules(mixers.__path__):
        members = vars(importlib.import_module(f"{mixers.__name__}.{module.name}")).values()
        classes |= {c for c in members if inspect.isclass(c) and issubclass(c, Mixer)}
    return classes - {Mixer, HeadMixer, FixedTransform, KernelMixer, Recurrent, Rotary}


@pytest.mark.parametrize(("cls", "settings"), CASES.values(), ids=CASES)
def test_mixer_keeps_the_contract(cls, settings):
    check_mixer(cls, **settings)


@pytest.mark.parametrize(("cls", "settings"), CASES.values(), ids=CASES)
def test_gradient_adds_in_a_fixed_order(cls, settings):
    """On a GPU a scatter adds in any order, so that no run could be repeated to the bit."""
    fields = {"dim": 8, "num_heads": 2, "qkv_dim": 8, "layer": 0, "num_layers": 2, "max_len": 16}
    mixer = cls(**fields, dropout=0.0, **settings)
    x, mask, rngs = normal(2, 16, 8), np.ones((2, 16), bool), {"dropout": new_key(1)}
    variables = shapes_of(mixer, x, mask)

    def total(variables, x):
        return mixer.apply(variables, x, mask, train=True, rngs=rngs).sum()

    assert "scatter-add" not in str(jax.make_jaxpr(jax.grad(total, (0, 1)))(variables, x))


@pytest.mark.parametrize(("cls", "settings"), CASES.values(), ids=CASES)
def test_mixer_says_whether_equal_parameters_fit_other_lengths(cls, settings):
    """Where they do, an equal text gives the same result; padding is seen by some."""
    fields = {"dim": 8, "num_heads": 2, "qkv_dim": 8, "layer": 0, "num_layers": 2, "dropout": 0.0}
    short, fits = cls(**fields, **settings, max_len=18), []
    for length in (19, 30):
        long = cls(**fields, **settings, max_len=length)
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


def test_every_mixer_is_checked_and_has_a_gin_file():
    built = [experiment.load("listops", model, "cpu") for model in config.known("models")]
    used = {type(mixer) for one in built for mixer in one.model.encoder.mixers}
    assert defined() == used == {cls for cls, _ in CASES.values()}


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
    return type("Broken", (Moving,), {"change": change, **facts})


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


BROKEN = {
    "dtype of parameters": (HalfParameters, "has a bfloat16 parameter"),
    "shape": (broken(lambda self, y, x, mask, train: y[:, 1:]), "keep the shape"),
    "dtype": (
        broken(lambda self, y, x, mask, train: y.astype(jnp.bfloat16)),
        "maps float32 to bfloat16: keep the dtype",
    ),
    "finite": (
        broken(lambda self, y, x, mask, train: y / mask.any(axis=1)[:, None, None]),
        "gives NaN or infinity for some mask",
    ),
    "a number": (  # NaN differs from itself, but is not random
        broken(lambda self, y, x, mask, train: y / mask.any(axis=1)[:, None, None] * 0),
        "gives NaN or infinity for some mask",
    ),
    "examples": (
        broken(lambda self, y, x, mask, train: y + y.mean(axis=0, keepdims=True)),
        "mixes the examples of a batch",
    ),
    "examples before": (
        broken(lambda self, y, x, mask, train: y + jnp.cumsum(y, axis=0)),
        "mixes the examples of a batch",
    ),
    "first example": (
        broken(lambda self, y, x, mask, train: y / (1 + mask[0].sum())),
        "mixes the examples of a batch",
    ),
    "examples in training": (
        broken(lambda self, y, x, mask, train: y - train * y.mean(axis=0, keepdims=True)),
        "mixes the examples of a batch in training",
    ),
    "no call": (
        type("Silent", (Mixer,), {"uses_mask": False, "__module__": __name__}),
        "has no method __call__(x, mask, *, train)",
    ),
    "a tuple": (
        broken(lambda self, y, x, mask, train: (y, y)),
        "returns a tuple, not an array",
    ),
    "number of examples": (
        broken(lambda self, y, x, mask, train: y * x.shape[0]),
        "depends on the number of examples in a batch",
    ),
    "shape in training": (
        broken(lambda self, y, x, mask, train: y[:, 1:] if train else y),
        "in training: keep the shape",
    ),
    "padding's content in training": (
        broken(lambda self, y, x, mask, train: y + train * x.mean(axis=1, keepdims=True)),
        "the content of padding changes outputs in training",
    ),
    "gradient in training": (
        broken(lambda self, y, x, mask, train: lax.stop_gradient(y) if train else y),
        "has the gradient",
    ),
    "padding's content": (
        broken(lambda self, y, x, mask, train: y + x.mean(axis=1, keepdims=True)),
        "the content of padding changes outputs",
    ),
    "padding's amount": (
        broken(lambda self, y, x, mask, train: y / x.shape[1]),
        "the amount of padding changes outputs",
    ),
    "padding unseen": (
        broken(lambda self, y, x, mask, train: y, uses_mask=False),
        "declares no uses_mask, but padding changes no output",
    ),
    "gradient": (
        broken(lambda self, y, x, mask, train: wrong_gradient(y)),
        "has the gradient",
    ),
    "gradient at zero": (
        broken(lambda self, y, x, mask, train: y + jnp.sqrt(x**2)),
        "has a gradient with NaN or infinity",
    ),
    "float64": (
        broken(lambda self, y, x, mask, train: y.astype(jnp.float32).astype(y.dtype)),
        "has the gradient",
    ),
    "bfloat16": (
        broken(lambda self, y, x, mask, train: y * (1 + 0.2 * (x.dtype == jnp.bfloat16))),
        "in bfloat16 is far from float32",
    ),
    "bfloat16's dtype": (
        broken(lambda self, y, x, mask, train: y + 0 * x.astype(jnp.promote_types(x.dtype, "f4"))),
        "maps bfloat16 to float32: keep the dtype",
    ),
    "evaluation": (
        broken(
            lambda self, y, x, mask, train: (
                y * jax.random.uniform(self.make_rng("dropout"))
                if self.has_rng("dropout") and not train
                else y
            )
        ),
        "is random in evaluation",
    ),
    "dropout declared": (
        broken(lambda self, y, x, mask, train: y, uses_dropout=True),
        "declares uses_dropout = True, but dropout does not change its training",
    ),
    "dropout not declared": (
        broken(lambda self, y, x, mask, train: y * (1 - self.dropout * train)),
        "declares uses_dropout = False, but dropout changes its training",
    ),
    "order": (
        broken(
            lambda self, y, x, mask, train: y * jnp.arange(y.shape[1], dtype=y.dtype)[None, :, None]
        ),
        "does not commute with permutations of the positions",
    ),
    "no order": (
        broken(lambda self, y, x, mask, train: y, equivariant=False),
        "declares equivariant = False, but commutes",
    ),
    "a first position alone": (
        broken(lambda self, y, x, mask, train: x, equivariant=True),
        "declares first_alone = False, but its first position sees no other",
    ),
    "a first position that is not": (
        broken(lambda self, y, x, mask, train: y, first_alone=True),
        "declares first_alone = True, but its first position sees others",
    ),
    "shape of the first position": (
        at_first(slice(2)),
        "with first_only: return position 0 alone",
    ),
    "first position": (
        at_first(slice(-1, None)),
        "has another output at position 0 with first_only",
    ),
}


def test_the_unbroken_mixer_passes():
    check_mixer(Moving)


@pytest.mark.parametrize(("cls", "message"), BROKEN.values(), ids=BROKEN)
def test_each_check_fails_with_one_line(cls, message):
    with jax.debug_nans(False), pytest.raises(AssertionError) as caught:
        check_mixer(cls)
    (line,) = str(caught.value).splitlines()[:1]
    assert line.startswith(cls.__name__)
    assert message in line


def test_padding_of_a_mixer_is_checked_as_it_is():
    """A mixer that says that it sees padding may."""
    fields = {"dim": 6, "num_heads": 2, "qkv_dim": 4, "max_len": 9, "layer": 0, "num_layers": 2}
    check_padding(Moving(**fields, dropout=0.5))
    seeing = broken(lambda self, y, x, mask, train: y + x.mean(axis=1, keepdims=True))
    with pytest.raises(UserError, match="declares uses_mask, but what padding contains changes"):
        check_padding(seeing(**fields, dropout=0.5))
    unbuilt = broken(lambda self, y, x, mask, train: 1 / 0)
    check_padding(type("Honest", (unbuilt,), {"uses_mask": False})(**fields, dropout=0.5))


class Decaying(Mixer):
    """A recurrence with a norm over the batch; both are far off for other than its own values."""

    uses_mask = True

    @nn.compact
    def __call__(self, x, mask, *, train):
        decay = self.param("decay", nn.initializers.constant(0.3), (self.dim,))
        x = BatchNorm(1e-5, 0.99, name="norm")(jnp.where(mask[..., None], x, 0), mask, train=train)
        steps = jnp.swapaxes(jnp.where(mask[..., None], x, 0), 0, 1)

        def step(y, x):
            y = decay[None] * y + x
            return y, y

        return jnp.swapaxes(jax.lax.scan(step, jnp.zeros_like(steps[0]), steps)[1], 0, 1)


def test_padding_is_checked_with_a_mixers_own_initial_values():
    fields = {"dim": 64, "num_heads": 2, "qkv_dim": 4, "max_len": 2000, "layer": 0}
    check_padding(Decaying(**fields, num_layers=2, dropout=0.0))


class Undeclared(Mixer):
    def __call__(self, x, mask, *, train):
        return x


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (nn.Dense, "check_mixer expects a subclass of Mixer, got <class"),
        (Convolution, r"check_mixer expects the settings of the class: give width=\.\.\. too"),
        (
            Undeclared,
            "Undeclared must declare whether padding is invisible to it: write `uses_mask",
        ),
    ],
)
def test_what_check_mixer_cannot_check_is_refused_with_one_line(cls, message):
    with pytest.raises(UserError, match=f"^{message}") as caught:
        check_mixer(cls)
    assert "\n" not in str(caught.value)


def test_a_mixer_that_is_random_without_its_key_is_found():
    noise = iter(range(100))
    cls = broken(
        lambda self, y, x, mask, train: (
            y + train * jax.pure_callback(lambda: y.dtype.type(next(noise)), jnp.zeros((), y.dtype))
        )
    )
    with pytest.raises(AssertionError, match="is random in training beyond its dropout key"):
        check_mixer(cls)


# Settings

FIELDS = {"dim": 6, "num_heads": 2, "qkv_dim": 4, "max_len": 13, "layer": 0, "num_layers": 2}


def make(cls, settings, **changes):
    return cls(**(FIELDS | settings | {"dropout": 0.0} | changes))


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        (
            "naive",
            {"implementation": "flash"},
            "implementation must be one of naive, blockwise, fused, got 'flash': set it to one of "
            "these",
        ),
        ("naive", {"block_size": 0}, "block_size must be at least 1, got 0: set it to 256, say"),
        ("local", {"block_size": 0}, "block_size must be at least 1, got 0: set it to 50, say"),
        ("local", {"neighbours": -1}, "neighbours must be at least 0, got -1: set it to 0, say"),
        (
            "fixed",
            {"pattern": "random"},
            "pattern must be one of fixed, strided, got 'random': set it to one of these",
        ),
        ("fixed", {"block_size": -1}, "block_size must be at least 0, got -1: set it to 0, say"),
        ("fixed", {"summary": 0}, "summary must be at least 1, got 0: set it to 8, say"),
        ("longformer", {"window": 7}, "window must be even, got 7: set it to 512, say"),
        ("longformer", {"window": 0}, "window must be at least 2, got 0: set it to 512, say"),
        (
            "longformer",
            {"num_global": -1},
            "num_global must be at least 0, got -1: set it to 1, say",
        ),
        ("bigbird", {"block_size": 0}, "block_size must be at least 1, got 0: set it to 64, say"),
        (
            "bigbird",
            {"seed": 10**20},
            "seed must be at least 0 and below 4294967296, got 100000000000000000000: "
            "set it to 0, say",
        ),
        ("bigbird", {"num_random": -1}, "num_random must be at least 0, got -1: set it to 3, say"),
        ("bigbird", {"num_global": -1}, "num_global must be at least 0, got -1: set it to 1, say"),
        (
            "linformer, kv",
            {"sharing": "layerwise"},
            "sharing must be one of none, headwise, kv, got 'layerwise': set it to one of these",
        ),
        ("linformer, kv", {"k": 0}, "k must be at least 1, got 0: set it to 256, say"),
        ("nystrom", {"landmarks": 0}, "landmarks must be at least 1, got 0: set it to 64, say"),
        ("nystrom", {"width": -1}, "width must be at least 0, got -1: set it to 35, say"),
        *(
            (
                "synthesizer",
                {"kinds": kinds},
                "kinds must list one or more of dense, random, factorized_dense, "
                f"factorized_random, attention, each once, got {kinds!r}: set it to "
                "('random', 'attention'), say",
            )
            for kinds in ((), "dense", ("dense", "dense"), ("dense", "local"), ((1,),), None)
        ),
        ("synthesizer", {"factor": 0}, "factor must be at least 1, got 0: set it to 8, say"),
        (
            "synthesizer",
            {"block_size": 0},
            "block_size must be at least 1, got 0: set it to 256, say",
        ),
        (
            "performer",
            {"kernel": "exp"},
            "kernel must be one of softmax, relu, got 'exp': set it to one of these",
        ),
        (
            "performer",
            {"num_features": 0},
            "num_features must be at least 1 (0 with kernel 'relu' only), got 0 with kernel "
            "'softmax': set it to 256, say",
        ),
        ("reformer", {"num_hashes": 0}, "num_hashes must be at least 1, got 0: set it to 4, say"),
        ("reformer", {"chunk_size": 0}, "chunk_size must be at least 1, got 0: set it to 64, say"),
        (
            "reformer",
            {"num_buckets": 5},
            "num_buckets must be even and at least 2 (a direction and its opposite), got 5: set it "
            "to 64, say",
        ),
        (
            "reformer",
            {"num_buckets": 2**28},
            "num_buckets must be at most 134217727 for 13 tokens, got 268435456: set it to 64, say",
        ),
        ("sinkhorn", {"block_size": 0}, "block_size must be at least 1, got 0: set it to 64, say"),
        ("sinkhorn", {"iterations": 0}, "iterations must be at least 1, got 0: set it to 8, say"),
        (
            "sinkhorn",
            {"temperature": 0.0},
            "temperature must be above 0, got 0.0: set it to 0.75, say",
        ),
        (
            "fourier",
            {"method": "fft"},
            "method must be one of auto, definition, rfft, packed, matmul, matmul_fft, four_step, "
            "got 'fft': set it to one of these",
        ),
    ],
)
def test_a_wrong_setting_is_named_at_construction(case, changes, message):
    cls, settings = CASES[case]
    with pytest.raises(UserError) as caught:
        make(cls, settings, **changes)
    # gin adds "In call to configurable ..."
    assert str(caught.value).splitlines()[0] == f"{cls.__name__}.{message}"


def test_strided_attention_ignores_summary():
    make(SparseAttention, SPARSE, pattern="strided", summary=0)


@pytest.mark.parametrize(
    ("base", "method", "settings"),
    [
        (HeadMixer, "attend", {}),
        (FixedTransform, "transform", {}),
        (KernelMixer, "kernels", {"gate": "none"}),
    ],
)
def test_a_base_class_names_the_method_that_is_missing(base, method, settings):
    cls = type("Unfinished", (base,), {"uses_mask": True})
    x, mask = jnp.ones((1, 13, 6)), jnp.ones((1, 13), bool)
    with pytest.raises(NotImplementedError, match=f"Unfinished must define {method}"):
        jax.eval_shape(
            functools.partial(make(cls, settings).init, train=False), new_key(0), x, mask
        )


# Dropout of weights

LENGTH, COPIES = 16, 32


def bigbird_attention(*inputs, **drop):
    picks = bigbird.draw_blocks(np.random.default_rng(0).random((2, 6, 1)))
    layout = {"block_size": 2, "num_blocks": 8, "first": 1, "stop": 7, "picks": picks}
    return bigbird.bigbird_attention(*inputs, **layout, **drop)


def longformer_attention(query, key, value, mask, **drop):
    across = query[:, :1], key, value
    return longformer.longformer_attention(
        query, key, value, mask, window=10, global_projections=across, **drop
    )


def lsh_attention(query, key, value, mask, **drop):
    query = jnp.broadcast_to(normal(1, *query.shape[1:]), query.shape)
    buckets = jnp.zeros((COPIES, 2, 1, LENGTH), jnp.int32)
    return reformer.lsh_attention(
        query, value, mask, buckets, num_buckets=2, chunk_size=LENGTH, **drop
    )


def sinkhorn_attention(*inputs, **drop):
    sorting = jnp.broadcast_to(jnp.eye(2)[::-1], (COPIES, 2, 2, 2))
    return sinkhorn.sinkhorn_attention(*inputs, sorting, block_size=8, **drop)


def linformer_attention(*inputs, **drop):
    matrices = jnp.ones((LENGTH, LENGTH)), jnp.eye(LENGTH)
    return linformer.projected_attention(*inputs, *matrices, **drop)


def synthesize(query, key, value, mask, **drop):
    rows = jnp.zeros((1, 2, LENGTH, LENGTH))
    logits = lambda block, _: block  # noqa: E731
    return attention.by_rows(rows, logits, None, value, mask, block_size=5, **drop)


sparse_attention = functools.partial(sparse.sparse_attention, summary=1, global_first=True)
WEIGHTED = {
    "naive": attention.naive,
    "blockwise": functools.partial(attention.blockwise, block_size=5),
    "local": functools.partial(local.local_attention, block_size=4),
    "fixed": functools.partial(sparse_attention, pattern="fixed", block_size=4),
    "strided": functools.partial(sparse_attention, pattern="strided", block_size=4),
    "longformer": longformer_attention,
    "bigbird": bigbird_attention,
    "reformer": lsh_attention,
    "sinkhorn": sinkhorn_attention,
    "linformer": linformer_attention,
    "synthesizer": synthesize,
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


@pytest.mark.parametrize("name", ["blockwise", "mega", "synthesizer"])
def test_gradients_in_bfloat16_are_summed_over_blocks_in_float32(name):
    """With 128 blocks, sums in bfloat16 are wrong by 1 % or more."""
    length, mask = 512, jnp.ones((1, 512), bool)
    bias = jnp.zeros(2 * length - 1)
    arrays = [normal(1, length, 1, 8, seed=seed).astype(jnp.bfloat16) for seed in range(3)]
    towards = normal(1, 1, 1, 8) + 0.3 * normal(1, length, 1, 8, seed=3)  # as of a mean

    def attend(query, key, value):
        if name == "mega":
            two = (a[:, :, 0] for a in (query, key, value))
            out = mega.chunked_attention(*two, mask, bias, kind="softmax", block_size=4)
            return out[:, :, None]
        if name == "synthesizer":  # dense: hidden values and columns
            rows = jnp.swapaxes(query, 1, 2)
            columns = jnp.swapaxes(key, 1, 2)[0]
            return attention.by_rows(rows, blocks.products, columns, value, mask, block_size=4)
        return attention.blockwise(query, key, value, mask, block_size=4)

    def gradients(*arrays):
        loss = lambda *a: (attend(*a).astype(jnp.float32) * towards).sum()  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)

    wide = gradients(*(a.astype(jnp.float32) for a in arrays))
    for got, want in zip(gradients(*arrays), wide, strict=True):
        error = jnp.linalg.norm(got.astype(jnp.float32) - want) / jnp.linalg.norm(want)
        assert error < 0.008, error
