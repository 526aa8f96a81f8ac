"""The contract of a mixing sublayer, [B, L, D] -> [B, L, D]: all that differs between models."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from lra_fnet.errors import UserError
from lra_fnet.models.kernels.pointwise import flat_product
from lra_fnet.settings import check_settings


class Mixer(nn.Module):
    """Base class of all mixers.

    The encoder sets the fields below; a subclass adds its own, which its gin file binds. It defines
    `__call__(x, mask, *, train)`: x is [B, L, D], mask is bool [B, L] with True at real tokens, and
    the result is [B, L, D] in x.dtype. It computes in x.dtype and keeps float32 parameters. Random
    numbers in training come from make_rng("dropout"), the only stream. Besides parameters, training
    changes the collection "averages" only (`pointwise.BatchNorm`), so Flax's BatchNorm raises.

    The class variables are facts that tests and tables rely on. `lra_fnet.testing.check_mixer`
    holds a subclass to all of them but `bound_to_max_len`, `growth` and `speed_only`.

    Attributes:
      uses_mask: whether padding is invisible: the outputs at real tokens depend neither on the
        finite content of padding nor on its amount.
      separable: names of its own parameters that may have their own learning rate and weight decay
        (Optimizer.groups), such as the state matrix of a state space.
      uses_dropout: whether `dropout` has an effect in training, as on attention weights.
      equivariant: whether permuting the positions of the input permutes the output alike.
      fixed_transform: whether the mixer is a linear transform without parameters.
      first_alone: whether the output at the first position depends on its own input alone, as with
        a causal mixer.
      uses_first_only: whether `__call__` takes first_only=True, with which it returns position 0
        alone, [B, 1, D], as the last block needs it under CLS. It is not inherited: a subclass may
        look at more of the result, and declares it anew.
      bound_to_max_len: whether it computes something else from the same text with another `max_len`
        and equal parameters, so that a run cannot begin from one at another length (`--init`).
      growth: powers of L by which time and memory grow, linear by default; a logarithm counts as 0.
        A property where settings decide.
      speed_only: whether it is only a way to compute another mixer, with the same numbers up to
        rounding; such a model has rows in tables of speed alone.

    Raises:
      UserError: on construction, if `check_settings` or `check` rejects a setting.
    """

    dim: int  # D
    num_heads: int  # divides qkv_dim; ignored by mixers without heads
    qkv_dim: int  # width of all heads together
    max_len: int  # largest L, CLS included
    layer: int  # 0 .. num_layers - 1
    num_layers: int
    dropout: float  # rate on attention weights

    uses_mask: ClassVar[bool]
    uses_first_only: ClassVar[bool] = False
    separable: ClassVar[tuple[str, ...]] = ()
    uses_dropout: ClassVar[bool] = False
    equivariant: ClassVar[bool] = False
    fixed_transform: ClassVar[bool] = False
    first_alone: ClassVar[bool] = False
    bound_to_max_len: ClassVar[bool] = False
    growth: ClassVar[tuple[float, float]] = (1, 1)
    speed_only: ClassVar[bool] = False

    def __post_init__(self):
        for field in dataclasses.fields(self):  # a model that is compiled has a hash
            object.__setattr__(self, field.name, _frozen(getattr(self, field.name)))
        check_settings(self)
        if not hasattr(type(self), "uses_mask"):
            name = type(self).__name__
            raise UserError(
                f"{name} must declare whether padding is invisible to it: write "
                "`uses_mask: ClassVar[bool] = False` into the class, or True"
            )
        self.check()
        super().__post_init__()

    def check(self):
        """Raises a UserError for a wrong setting that the field types cannot express."""

    def weight_dropout(self, train) -> dict[str, Any]:
        """Returns `rate` and `rng` for dropout on attention weights; rate 0 outside training."""
        rate = self.dropout if train else 0.0
        return {"rate": rate, "rng": self.make_rng("dropout") if rate > 0 else None}

    def __init_subclass__(cls, **kwargs):
        """A subclass takes first_only=True only if it declares `uses_first_only` itself."""
        cls.uses_first_only = vars(cls).get("uses_first_only", False)
        super().__init_subclass__(**kwargs)


def _frozen(value: Any) -> Any:
    """Returns lists as tuples and dictionaries as those of Flax, at any depth; others as given."""
    if type(value) in (list, tuple):
        return tuple(map(_frozen, value))
    if type(value) is dict:
        return FrozenDict({name: _frozen(item) for name, item in value.items()})
    return value


class FixedTransform(Mixer):
    """A linear transform without parameters: every output sees every input, padding too.

    A subclass defines `transform`, of x [B, L, D] in float32 or float64 -> [B, L, D].
    """

    transform: ClassVar[Callable[..., jax.Array]]
    uses_mask: ClassVar[bool] = False
    fixed_transform: ClassVar[bool] = True

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Mixes x [B, L, D] in float32 (or wider); mask and train have no effect."""
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return self.transform(wide).astype(x.dtype)


class HeadMixer(Mixer, kw_only=True):
    """Projects to heads, mixes them, and projects back.

    A subclass defines `attend`, or `mix` if it needs other projections, and respects the mask.
    """

    # "lra": matrices without bias, xavier_uniform. "bert": as FNet's authors project in their BERT,
    # with biases; kernels N(0, deviation^2), biases N(0, 0.02^2).
    projections: Literal["lra", "bert"] = "lra"
    deviation: float = 0.02  # set by the encoder, see `encoder.deviation`

    # "hidden": no position attends to padding. The others are what LRA's code does, preset
    # lra-code: "uniform" also gives each padded position the mean of all values, as a softmax of
    # equal weights does; "zero" gives it zeros; with "seen" padding takes part like any token.
    padding: Literal["hidden", "uniform", "zero", "seen"] = "hidden"
    # Whether nobody reads what padding gets, so that it may be anything; set by the encoder.
    padding_unread: bool = False

    uses_dropout: ClassVar[bool] = True

    @property
    def uses_mask(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether real tokens do not see padding; what padding itself gets does not count."""
        return self.padding != "seen"

    @nn.compact
    def __call__(self, x, mask, *, train, first_only=False):
        """Mixes x [B, L, D] under mask bool [B, L] -> [B, L, D], or [B, 1, D] with first_only."""
        keys = jnp.ones_like(mask) if self.padding == "seen" else mask
        y, value = self.mix(x, keys, train=train, **({"first_only": True} if first_only else {}))
        mask = mask[:, : y.shape[1]]
        if self.padding in ("uniform", "zero"):
            there = value.mean(axis=1, keepdims=True) if self.padding == "uniform" else 0
            y = jnp.where(mask[:, :, None, None], y, there)
        return self.merge(y)

    def mix(self, x, mask, *, train, first_only=False) -> tuple[jax.Array, jax.Array]:
        """Mixes x [B, L, D] under mask bool [B, L]; returns heads and values, [B, L, H, K] each.

        With first_only the heads are those of position 0, [B, 1, H, K].
        """
        queries = x[:, :1] if first_only else x
        query = self.heads(queries, "query")
        key, value = self.heads(x, "key"), self.heads(x, "value")
        return self.attend(query, key, value, mask, train=train), value

    def heads(self, x, name) -> jax.Array:
        """Projects x [B, L, D] with the matrix of this name -> [B, L, H, K]."""
        y = self._project(x, self.qkv_dim, name)
        return y.reshape(*x.shape[:2], self.num_heads, self.qkv_dim // self.num_heads)

    def merge(self, y) -> jax.Array:
        """Joins the heads and projects back, [B, L, H, K] -> [B, L, D]."""
        return self._project(y.reshape(*y.shape[:2], self.qkv_dim), self.dim, "out")

    def _project(self, x, features, name):
        dense = functools.partial(nn.Dense, dtype=x.dtype, dot_general=flat_product, name=name)
        if self.projections == "lra":
            return dense(features, False, kernel_init=nn.initializers.xavier_uniform())(x)
        inits = [nn.initializers.normal(width) for width in (self.deviation, 0.02)]
        return dense(features, kernel_init=inits[0], bias_init=inits[1])(x)

    def attend(self, query, key, value, mask, *, train) -> jax.Array:
        """Mixes values over positions: three [B, L, H, K] and bool [B, L] -> [B, L, H, K]."""
        raise NotImplementedError(f"{type(self).__name__} must define attend")


def fixed_key(seed: int, layer: int) -> jax.Array:
    """Returns the random key of (seed, layer), independent of JAX's default generator.

    Those of layers 0 and 1 equal the two of `experiment.keys` for the same seed, which Flax folds
    with a module's path before anything is drawn.
    """
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), layer)


def draw_once(function: Callable[[jax.Array], jax.Array], seed: int, layer: int) -> np.ndarray:
    """Returns function(key) for the key of (seed, layer).

    It is evaluated during tracing, so that the compiled program only reads the numbers.
    """
    with jax.ensure_compile_time_eval():
        return np.asarray(function(fixed_key(seed, layer)))


def drawn(mixer, function: Callable[[jax.Array], jax.Array], *, train) -> jax.Array:
    """Returns function(key): a new draw at each training step if `mixer.redraw`, else a fixed one.

    The new ones are from the "dropout" stream, the fixed one is that of `draw_once`.
    """
    if mixer.redraw and train:
        return function(mixer.make_rng("dropout"))
    return jnp.asarray(draw_once(function, mixer.seed, mixer.layer))
