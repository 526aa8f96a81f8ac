"""The encoder that all models share: tokens or pixels, N blocks around a mixer, pooling.

Letters used in all of models/: B batch, L sequence length (tokens), D model width, C classes,
H heads. Presets bind the settings, but for a few that have a default here.
"""

import functools
from typing import Annotated, Any, Literal

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.models.kernels import fastest, pointwise
from lra_fnet.models.kernels.pointwise import Dropout, LayerNorm, flat_product
from lra_fnet.models.mixer import HeadMixer, Mixer
from lra_fnet.settings import Least, check_settings

ONE_HOT_MAX_ENTRIES = 2**24  # of a matrix that is held at once: 64 MiB in float32

OF_ENCODER = ("deviation", "padding_unread")  # fields of HeadMixer that the encoder sets
POOLED_AT_FIRST = ("cls", "first", "tanh")  # poolings that read position 0 alone


def sinusoidal_positions(length, dim):
    """Returns the fixed positions of Vaswani et al. (arXiv:1706.03762, Sec. 3.5), as LRA uses them.

    Column 2i is sin(p / 10000^(2i / D)), column 2i + 1 its cosine.

    Returns:
      float32 NumPy array [L, D].
    """
    angle = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, dim, 2) / dim)[None, :]
    table = np.empty((length, dim), np.float32)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : dim // 2])
    return table


def lookup(table, ids, *, one_hot) -> jax.Array:
    """Looks up rows of `table` [V, D] at ids int32 [B, L] -> [B, L, D].

    An id of V or more takes the last row. With `one_hot` the gradient is the product of a one-hot
    matrix [V, B L] and the cotangent instead of a scatter: faster on a CPU for a small vocabulary,
    and deterministic on a GPU, where a scatter adds in no fixed order. Large matrices are taken in
    parts. It has reverse-mode derivatives only.
    """
    return jnp.asarray((_take_one_hot if one_hot else _take)(table, ids))


def _take(table, ids):
    return jnp.take(table, ids, axis=0, mode="clip")


def _lookup_backward(residual, cotangent):
    ids, num_rows = residual
    parts = -(-ids.size * num_rows // ONE_HOT_MAX_ENTRIES)
    ids = jnp.clip(ids.reshape(-1), 0, num_rows - 1)
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    if parts <= 1:
        return _sums_by_id(ids, rows, num_rows), None
    gap = -len(ids) % parts
    ids = jnp.pad(ids, (0, gap), constant_values=num_rows).reshape(parts, -1)
    rows = jnp.pad(rows, ((0, gap), (0, 0))).reshape(parts, -1, rows.shape[1])

    def add(total, part):
        ids, rows = part
        return total + _sums_by_id(ids, rows, num_rows).astype(total.dtype), None

    start = jnp.zeros((num_rows, rows.shape[2]), jnp.promote_types(rows.dtype, jnp.float32))
    return lax.scan(add, start, (ids, rows))[0].astype(rows.dtype), None


def _sums_by_id(ids, rows, num_rows):
    """Sums rows [T, D] that have the same id [T]: [V, D]. An id of V takes no part."""
    hot = (jnp.arange(num_rows)[:, None] == ids[None]).astype(rows.dtype)
    return jnp.matmul(hot, rows, precision="highest")


_take_one_hot = jax.custom_vjp(_take)
_take_one_hot.defvjp(
    lambda table, ids: (_take(table, ids), (ids, table.shape[0])), _lookup_backward
)


def pool(x, mask, pooling):
    """Reduces each text to one vector, in float32: [B, L, D] and bool [B, L] -> [B, D].

    Those of POOLED_AT_FIRST take position 0, "mean" the mean over real tokens (zeros if there are
    none), "mean_all" LRA's mean over all positions, padding included.
    """
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if pooling in POOLED_AT_FIRST:
        return x[:, 0]
    if pooling == "mean_all":
        return x.mean(axis=1)
    total = jnp.where(mask[..., None], x, 0).sum(axis=1)
    return total / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)


def deviation(initialisation, dim) -> float:
    """Returns the standard deviation of the kernels that FNet's authors draw with 0.02.

    "published" is 0.02 at any width. "width" is 0.02 sqrt(768 / D): equal at the authors' width of
    768, and a product with a kernel then has the size that it has there at any other width.
    """
    return 0.02 if initialisation == "published" else 0.02 * (768 / dim) ** 0.5


class MLP(nn.Module):
    """The feed-forward sublayer: Dense, GELU, dropout, Dense, dropout.

    With norm "pre" the initialisation is LRA's. With "post" it is FNet's, see `deviation`,
    and only the last dropout is applied.
    """

    dim: int
    mlp_dim: int
    dropout: float
    norm: str
    initialisation: str = "published"

    @nn.compact
    def __call__(self, x, *, train):
        """Maps [..., D] -> [..., D]."""
        shape = x.shape
        # One axis of tokens gives XLA single loops instead of nested ones: twice as fast.
        x = x.reshape(-1, shape[-1])

        pre = self.norm == "pre"
        if pre:
            kernel_init = nn.initializers.xavier_uniform()
            wide_bias = narrow_bias = nn.initializers.normal(1e-6)
        else:
            kernel_init = nn.initializers.normal(deviation(self.initialisation, self.dim))
            wide_bias = nn.initializers.normal(0.02)
            narrow_bias = nn.initializers.zeros
        dense = functools.partial(nn.Dense, dtype=x.dtype, kernel_init=kernel_init)
        hidden = dense(self.mlp_dim, bias_init=wide_bias, dot_general=flat_product, name="wide")(x)
        rate = self.dropout if train and pre else 0.0
        product = pointwise.activated_product(rate, self.make_rng("dropout") if rate else None)
        y = dense(self.dim, bias_init=narrow_bias, dot_general=product, name="narrow")(hidden)
        return Dropout(self.dropout)(y, train=train).reshape(shape)


def normalise(x, mask, name, epsilon, momentum, *, train) -> jax.Array:
    """Applies a submodule of this name: LayerNorm, or BatchNorm if there is a momentum."""
    if momentum is None:
        return LayerNorm(epsilon, name=name)(x)
    return pointwise.BatchNorm(epsilon, momentum, name=name)(x, mask, train=train)


class Block(nn.Module):
    """A mixing and a feed-forward sublayer, each with a residual connection.

    With norm "pre", LRA's block: x + mix(LN(x)), then x + MLP(LN(x)), with dropout on both. With
    "post", FNet's (arXiv:2105.03824, Fig. 1): LN(x + mix(x)), then LN(x + MLP(x)), with dropout on
    the last sublayer only, as in the authors' code. Without mlp_dim there is no second sublayer.
    With batch_norm, LN is BatchNorm. Statistics are float32 at any dtype. With `first_only` the
    result is that of position 0, [B, 1, D]; there must be no batch_norm.
    """

    mixer: Mixer
    dim: int
    mlp_dim: int
    dropout: float
    norm: str
    norm_epsilon: float
    batch_norm: float | None = None
    initialisation: str = "published"
    first_only: bool = False

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Maps x [B, L, D] and mask bool [B, L] -> [B, L, D]."""

        def norm(name, inputs):
            settings = self.norm_epsilon, self.batch_norm
            return normalise(inputs, mask, name, *settings, train=train)

        sizes = self.dim, self.mlp_dim, self.dropout
        mlp = MLP(*sizes, self.norm, self.initialisation, name="mlp")
        if self.norm == "pre":
            x, y = self._mixed(x, norm("norm_mixer", x), mask, train=train)
            x = x + Dropout(self.dropout)(y, train=train)
            return x + mlp(norm("norm_mlp", x), train=train) if self.mlp_dim else x
        x, y = self._mixed(x, x, mask, train=train)
        if not self.mlp_dim:
            y = Dropout(self.dropout)(y, train=train)
        x = norm("norm_mixer", x + y)
        return norm("norm_mlp", x + mlp(x, train=train)) if self.mlp_dim else x

    def _mixed(self, x, inputs, mask, *, train):
        """Mixes `inputs`; returns x and the result at the positions that the block returns."""
        if self.first_only and self.mixer.uses_first_only:
            return x[:, :1], self.mixer(inputs, mask, train=train, first_only=True)[:, :1]
        y = self.mixer(inputs, mask, train=train)
        if (y.shape, y.dtype) != (inputs.shape, inputs.dtype):  # which a sum would broadcast
            raise UserError(
                f"{type(self.mixer).__name__} must return {inputs.dtype} {[*inputs.shape]}, got "
                f"{y.dtype} {[*y.shape]}: lra_fnet.testing.check_mixer checks this and more"
            )
        return (x[:, :1], y[:, :1]) if self.first_only else (x, y)


@gin.configurable
class Encoder(nn.Module):
    """Maps token ids, or an image's pixels in reading order, to one vector per text.

    Raises:
      UserError: on construction, if a setting is unknown or does not fit the others; on a call with
        more than max_len tokens.
    """

    vocab_size: Annotated[int, Least(1, suggest=256)]  # ids of the task, padding included
    max_len: Annotated[int, Least(1, suggest=1000)]  # tokens; from the task, CLS not counted
    # "tokens": an embedding table; "pixels": real numbers through a Dense layer.
    inputs: Literal["tokens", "pixels"]
    # Given: a mixer class, or a function of the fields of `Mixer` that returns a mixer, for all
    # layers; or a list with one of these for each layer. After construction: a tuple of modules.
    mixers: Any
    dim: Annotated[int, Least(1, suggest=128)]
    num_heads: Annotated[int, Least(1, suggest=4)]
    qkv_dim: Annotated[int, Least(1, suggest=128)]
    mlp_dim: Annotated[int, Least(0, suggest=256)]  # 0: no feed-forward sublayer
    num_layers: Annotated[int, Least(1, suggest=2)]
    dropout: Annotated[float, Least(0, suggest=0.1, below=1)]
    attention_dropout: Annotated[float, Least(0, suggest=0.1, below=1)]
    # "learned" with embedding "bert"; "none" for mixers that know positions by themselves.
    positions: Literal["sinusoidal", "learned", "none"]
    norm: Literal["pre", "post"]  # "pre": LRA; "post": FNet
    norm_epsilon: Annotated[float, Least(0, suggest=1e-6)]
    # "cls": a vector put in front; "first": the first token (LRA's two texts); "tanh": the first
    # token, Dense, tanh (BERT's pooler); "mean": over real tokens; "mean_all": over padding too
    # (LRA).
    pooling: Literal["cls", "first", "tanh", "mean", "mean_all"]
    dtype: Literal["float32", "bfloat16"]  # of the computation; parameters are float32
    # Whether the backward pass computes each block again, to save memory.
    remat: Literal[False, True]
    embedding: Literal["lra", "bert"]  # "bert" is FNet's: see `_bert`
    # Kinds of tokens with embedding "bert"; 1 with "lra".
    num_types: Annotated[int, Least(1, suggest=1)]
    # Of the kernels of MLP, pooler and BERT's projections; "width" with norm "post" only: see
    # `deviation`.
    initialisation: Literal["published", "width"] = "published"
    pixel_mean: float | None = None  # from a task of images; for "pixels"
    pixel_sd: float | None = None
    # A number: BatchNorm in the place of LayerNorm, with this momentum of the running averages.
    batch_norm: Annotated[float, Least(0, suggest=0.9, below=1)] | None = None

    def __post_init__(self):
        check_settings(self)
        bert = self.embedding == "bert"
        rules = {
            "inputs": (self.inputs == "tokens" or bool(self.pixel_sd), "tokens but for images"),
            "num_heads": (self.qkv_dim % self.num_heads == 0, f"a divisor of {self.qkv_dim}"),
            "batch_norm": (self.batch_norm is None or not bert, "None with embedding bert"),
            "positions": (self.positions == "learned" or not bert, "learned with embedding bert"),
            "num_types": (self.num_types == 1 or bert, "1 with embedding lra"),
            "initialisation": (
                self.initialisation == "published" or self.norm == "post",
                "published with norm pre, whose kernels suit any width",
            ),
        }
        for name, (holds, wanted) in rules.items():
            if not holds:
                raise UserError(
                    f"Encoder.{name} must be {wanted}, got {getattr(self, name)!r}: set it so"
                )
        self.mixers = self._build_mixers()
        super().__post_init__()

    def _build_mixers(self) -> tuple[Mixer, ...]:
        makers = self.mixers
        if not isinstance(makers, tuple | list):
            makers = (makers,) * self.num_layers
        if len(makers) != self.num_layers:
            raise UserError(
                f"Encoder.mixers lists {len(makers)} mixers for {self.num_layers} layers: "
                "list one for each, or bind MIXERS to one for all"
            )
        mixers = [self._build_mixer(make, layer) for layer, make in enumerate(makers)]
        of_heads = {
            "deviation": deviation(self.initialisation, self.dim),
            "padding_unread": self.pooling != "mean_all" and all(m.uses_mask for m in mixers),
        }
        return tuple(
            mixer.clone(parent=None, **of_heads) if isinstance(mixer, HeadMixer) else mixer
            for mixer in mixers
        )

    def _build_mixer(self, make, layer) -> Mixer:
        """Returns the mixer of one layer, with the encoder's sizes."""
        build, mixer = (make.clone if isinstance(make, Mixer) else make), None
        if callable(build) and (not isinstance(make, type) or issubclass(make, Mixer)):
            names = "dim", "num_heads", "qkv_dim", "num_layers"
            sizes: dict[str, Any] = {name: getattr(self, name) for name in names}
            sizes["max_len"] = self.mixer_length
            mixer = build(**sizes, layer=layer, dropout=self.attention_dropout, parent=None)
        if not isinstance(mixer, Mixer):
            raise UserError(
                f"Encoder.mixers must give a subclass of Mixer, got {make!r} for layer {layer}: "
                "bind MIXERS to one, as the files in gin/models do"
            )
        for name in OF_ENCODER if isinstance(mixer, HeadMixer) else ():
            if not isinstance(make, Mixer) and getattr(mixer, name) != getattr(HeadMixer, name):
                raise UserError(f"{type(mixer).__name__}.{name} is the encoder's: leave it out")
        return mixer

    @property
    def mixer_length(self) -> int:
        """The length that the mixers see: max_len, plus 1 with CLS."""
        return self.max_len + (self.pooling == "cls")

    @property
    def uses_mask(self) -> bool:
        """Whether every mixer respects the padding mask."""
        return all(mixer.uses_mask for mixer in self.mixers)

    @nn.compact
    def __call__(
        self, ids, mask, *, train, types=None, pooled: bool | Literal["too"] = True
    ) -> Any:
        """Encodes ids int32 [B, L] under mask bool [B, L].

        If pooling reads position 0 alone, the last block computes that position only, unless
        BatchNorm needs the others. This changes results by rounding, and dropout's draws.

        Args:
          ids: int32 [B, L].
          mask: bool [B, L], True at real tokens.
          train: whether dropout acts.
          types: int32 [B, L], the kind of each token, for embedding "bert"; None: 0 everywhere.
          pooled: whether to pool; "too": to return both.

        Returns:
          float32 [B, D]; without pooling [B, L, D] in the encoder's dtype (L + 1 for "cls"); with
          "too" the latter and the former.
        """
        batch, length = ids.shape
        if length > self.max_len:
            raise UserError(
                f"Encoder takes at most max_len = {self.max_len} tokens, got {length}: "
                "cut the inputs or raise the task's max_len"
            )
        x = self._pixels(ids, mask) if self.inputs == "pixels" else self._tokens(ids)
        if self.pooling == "cls":
            cls = self.param("cls", nn.initializers.zeros, (self.dim,))
            x = jnp.concatenate([jnp.broadcast_to(cls, (batch, 1, self.dim)), x], axis=1)
            mask = jnp.concatenate([jnp.ones((batch, 1), bool), mask], axis=1)
        if self.embedding == "bert":
            x = self._bert(x, types)
        elif self.positions != "none":
            x = x + self._positions(x.shape[1])[None]
        x = Dropout(self.dropout)(x, train=train)
        x = x.astype(self.dtype)

        def run(block, x, mask):
            return block(x, mask, train=train)

        if self.remat:
            run = nn.remat(run)
        names = "dim", "mlp_dim", "dropout", "norm", "norm_epsilon", "batch_norm", "initialisation"
        settings = {name: getattr(self, name) for name in names}
        first = pooled is True and self.pooling in POOLED_AT_FIRST and self.batch_norm is None
        for layer, mixer in enumerate(self.mixers):
            block = Block(
                mixer=mixer.clone(name=None),  # named after Block's attribute
                **settings,
                first_only=first and layer == self.num_layers - 1,
                name=f"block_{layer}",
            )
            x = run(block, x, mask)
        if self.norm == "pre":
            x = normalise(x, mask, "norm", self.norm_epsilon, self.batch_norm, train=train)
        if not pooled:
            return x
        y = pool(x, mask, self.pooling)
        if self.pooling == "tanh":
            init = nn.initializers.normal(deviation(self.initialisation, self.dim))
            y = jnp.tanh(nn.Dense(self.dim, kernel_init=init, name="pooler")(y))
        return (x, y) if pooled == "too" else y

    @property
    def _embedding_deviation(self) -> float:
        """Standard deviation of an embedding's entries at first: LRA's or BERT's."""
        return 1.0 if self.embedding == "lra" else 0.02

    def _tokens(self, ids):
        """Embeds ids by a table: [B, L] -> [B, L, D]."""
        init = nn.initializers.normal(self._embedding_deviation)
        table = self.param("embedding", init, (self.vocab_size, self.dim))

        def one_hot():
            # Measured on a CPU: up to here a matrix product beats a scatter. Elsewhere bytes and
            # pixels have products too; those of 32,000 pieces would be gigabytes.
            return self.vocab_size <= (64 if jax.default_backend() == "cpu" else 1024)

        what = f"one-hot gradient of {self.vocab_size} embeddings"
        return lookup(table, ids, one_hot=fastest.decide(what, one_hot))

    def _pixels(self, ids, mask):
        """Embeds pixel values (id - 1), standardised, by a Dense layer; padding counts as 0.

        The kernel is drawn like the table, so that a pixel has the same weight relative to its
        position as a token has.
        """
        assert self.pixel_mean is not None
        x = (ids.astype(jnp.float32) - (1 + self.pixel_mean)) / self.pixel_sd
        x = jnp.where(mask, x, 0)[..., None]
        init = nn.initializers.normal(self._embedding_deviation)
        return nn.Dense(self.dim, kernel_init=init, precision="highest", name="pixel")(x)

    def _bert(self, x, types):
        """Completes BERT's embedding, followed by FNet's Dense layer: [B, L, D] -> [B, L, D].

        Adds learned positions and types to the tokens, then applies LayerNorm and Dense
        (arXiv:2105.03824, Sec. 3.2; the authors' code has the Dense layer at any width). A CLS
        vector has type 0.
        """
        init = nn.initializers.normal(0.02)
        table = self.param("types", init, (self.num_types, self.dim))
        if types is None:
            x = x + table[:1][None]
        else:
            types = jnp.pad(types, ((0, 0), (x.shape[1] - types.shape[1], 0)))
            x = x + lookup(table, types, one_hot=True)
        x = x + self._positions(x.shape[1])[None]
        x = LayerNorm(self.norm_epsilon, name="norm_embedding")(x)
        return nn.Dense(self.dim, dot_general=flat_product, name="project")(x)

    def _positions(self, length):
        if self.positions == "learned":
            init = nn.initializers.normal(0.02)
            return self.param("positions_learned", init, (self.mixer_length, self.dim))[:length]
        return jnp.asarray(sinusoidal_positions(length, self.dim))


def variable_shapes(model: nn.Module, *inputs) -> dict[str, Any]:
    """Returns the shapes of the variables of a model or mixer, by collection; computes nothing.

    Args:
      model: the module.
      *inputs: of its call, arrays or their shapes.
    """
    init = functools.partial(model.init, train=False)
    return dict(jax.eval_shape(init, jax.random.key(0), *inputs))


def parameter_count(variables) -> int:
    """Counts the trained scalars in the result of `model.init`, or of its eval_shape."""
    return sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
