"""The encoder that every model shares: tokens or pixels, N blocks around a mixer, pooling.

Letters used in all of models/: B batch, L sequence length (tokens), D model width, C classes,
H heads. The defaults of nothing that changes a number stand here: presets bind them.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from lra_fnet.errors import UserError
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.pointwise import (
    PRODUCT,
    Dropout,
    LayerNorm,
    dropout,
    flat_product,
    part,
    recompute,
)

CHOICES = {
    "inputs": ("tokens", "pixels"),
    "positions": ("sinusoidal", "learned"),
    "embedding": ("lra", "bert"),
    "norm": ("pre", "post"),
    "pooling": ("cls", "first", "tanh", "mean", "mean_all"),
    "dtype": ("float32", "bfloat16"),
    "remat": (False, True, "dots"),
}
ONE_HOT_MAX_VOCAB = 64  # measured on a CPU: up to here a matrix product beats adding row by row


def sinusoidal_positions(length, dim):
    """Fixed positions of Vaswani et al. (arXiv:1706.03762, Sec. 3.5), as LRA uses them.

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
    """Rows of `table` [V, D] at ids int32 [B, L] -> [B, L, D]; too large an id takes the last row.

    With `one_hot` the gradient is a matrix product of one-hot rows and the cotangent instead of a
    scatter: for a small vocabulary faster on CPU, and on GPU the same bits every time, where a
    scatter adds in no fixed order. Reverse-mode derivatives only, then.
    """
    if one_hot:
        return jnp.asarray(_lookup_one_hot(table, ids))
    return jnp.take(table, ids, axis=0, mode="clip")


@jax.custom_vjp
def _lookup_one_hot(table, ids):
    return jnp.take(table, ids, axis=0, mode="clip")


def _lookup_backward(residual, cotangent):
    ids, num_rows = residual
    ids = jnp.clip(ids.reshape(1, -1), 0, num_rows - 1)
    hot = (jnp.arange(num_rows)[:, None] == ids).astype(cotangent.dtype)
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    return jnp.matmul(hot, rows, precision="highest"), None


_lookup_one_hot.defvjp(
    lambda table, ids: (_lookup_one_hot(table, ids), (ids, table.shape[0])), _lookup_backward
)


def pool(x, mask, pooling):
    """One vector a text, in float32: [B, L, D] and bool [B, L] -> [B, D].

    "cls", "first" and "tanh" are position 0, "mean" the mean over real tokens (zeros if there are
    none), "mean_all" LRA's mean over every position, padding included.
    """
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if pooling in ("cls", "first", "tanh"):
        return x[:, 0]
    if pooling == "mean_all":
        return x.mean(axis=1)
    total = jnp.where(mask[..., None], x, 0).sum(axis=1)
    return total / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)


class MLP(nn.Module):
    """The feed-forward sublayer: Dense, GELU, dropout, Dense, dropout.

    LRA's initialisation with norm "pre"; FNet's with "post", which also has the last dropout only.
    """

    dim: int
    mlp_dim: int
    dropout: float
    norm: str

    @nn.compact
    def __call__(self, x, *, train):
        """Maps [..., D] -> [..., D]."""
        shape = x.shape
        # With one axis of tokens the loops that XLA makes count to one number: twice as fast.
        x = x.reshape(-1, shape[-1])

        pre = self.norm == "pre"
        if pre:
            kernel_init = nn.initializers.xavier_uniform()
            wide_bias = narrow_bias = nn.initializers.normal(1e-6)
        else:
            kernel_init = wide_bias = nn.initializers.normal(0.02)
            narrow_bias = nn.initializers.zeros
        dense = functools.partial(nn.Dense, dtype=x.dtype, kernel_init=kernel_init)
        hidden = dense(self.mlp_dim, bias_init=wide_bias, dot_general=flat_product, name="wide")(x)
        rate = self.dropout if train and pre else 0.0
        product = Activated(rate, self.make_rng("dropout") if rate else None)
        y = dense(self.dim, bias_init=narrow_bias, dot_general=product, name="narrow")(hidden)
        return Dropout(self.dropout)(y, train=train).reshape(shape)


class Activated:
    """For `nn.Dense(dot_general=...)`: the product of dropout(gelu(x)), kept as x alone."""

    def __init__(self, rate, key):
        self._activate = functools.partial(_activated_product, rate)
        self._key = key

    def __call__(self, x, kernel, dimension_numbers, precision=None, **_):
        """Maps x [N, M] and kernel [M, D] -> [N, D]."""
        return checkpoint_name(recompute(self._activate, x, kernel, self._key, part()), PRODUCT)


def _activated_product(rate, x, kernel, key, number):
    x = nn.gelu(x)
    return flat_product(dropout(x, key, rate, number) if rate else x, kernel)


class Block(nn.Module):
    """A mixing and a feed-forward sublayer, each with a residual connection.

    norm "pre", LRA's block: x + mix(LN(x)), then x + MLP(LN(x)), with dropout on both. norm "post",
    FNet's (arXiv:2105.03824, Fig. 1): LN(x + mix(x)), then LN(x + MLP(x)), with dropout on the MLP
    only, as the authors' code. LayerNorm's statistics are float32 at any dtype.
    """

    make_mixer: Callable[..., Mixer]
    dim: int
    mlp_dim: int
    dropout: float
    norm: str
    norm_epsilon: float

    @nn.compact
    def __call__(self, x, mask, *, train):
        """Maps x [B, L, D] and mask bool [B, L] -> [B, L, D]."""

        def norm(name, inputs):
            return LayerNorm(self.norm_epsilon, name=name)(inputs)

        mixer = self.make_mixer(name="mixer")
        mlp = MLP(self.dim, self.mlp_dim, self.dropout, self.norm, name="mlp")
        if self.norm == "pre":
            y = mixer(norm("norm_mixer", x), mask, train=train)
            x = x + Dropout(self.dropout)(y, train=train)
            return x + mlp(norm("norm_mlp", x), train=train)
        x = norm("norm_mixer", x + mixer(x, mask, train=train))
        return norm("norm_mlp", x + mlp(x, train=train))


@gin.configurable
class Encoder(nn.Module):
    """Token ids -> one vector a text, or an image's pixels read as one.

    Raises:
      UserError: when built with a value that is unknown or does not fit the others; when called
        with more than max_len tokens.
    """

    vocab_size: int  # ids of the task, padding included
    max_len: int  # tokens; from the task, CLS not counted
    inputs: str  # "tokens" (a table of embeddings) or "pixels" (real numbers through a Dense layer)
    mixers: Any  # a mixer class, one for each layer, or a function (layer, num_layers) -> class
    dim: int
    num_heads: int
    qkv_dim: int
    mlp_dim: int
    num_layers: int
    dropout: float
    attention_dropout: float
    positions: str  # "sinusoidal" or "learned", for embedding "lra"
    norm: str  # "pre" (LRA) or "post" (FNet)
    norm_epsilon: float
    pooling: str  # "cls" (a vector put in front), "first" (token; LRA's two texts), "tanh" (first
    # token, Dense, tanh: BERT's pooler), "mean" (over real tokens) or "mean_all" (LRA: over padding
    # too)
    dtype: str  # of the computation, "float32" or "bfloat16"; parameters are float32
    remat: bool | str  # what the backward pass computes again, for memory: False nothing (but the
    # pointwise parts), True each block, "dots" all of a block but its dense products
    embedding: str  # "lra", or "bert", FNet's: see `_bert`
    num_types: int  # kinds of tokens, for "bert"
    pixel_mean: float | None = None  # from a task of images; for "pixels"
    pixel_sd: float | None = None

    def __post_init__(self):
        self._check()
        super().__post_init__()

    def _check(self):
        for field, known in CHOICES.items():
            if (value := getattr(self, field)) not in known:
                raise UserError(
                    f"Encoder.{field} must be one of {', '.join(map(str, known))}, got {value!r}: "
                    "set it to one of these"
                )
        sizes = ("vocab_size", "max_len", "dim", "num_heads", "qkv_dim", "mlp_dim", "num_layers")
        for field in (*sizes, "num_types"):
            if (value := getattr(self, field)) < 1:
                raise UserError(f"Encoder.{field} must be at least 1, got {value}: set it higher")
        for field in ("dropout", "attention_dropout"):
            if not 0 <= (value := getattr(self, field)) < 1:
                raise UserError(
                    f"Encoder.{field} must be in [0, 1), got {value}: set it to 0.1, say"
                )
        if self.inputs == "pixels":
            if self.pixel_mean is None or self.pixel_sd is None:
                raise UserError("Encoder.inputs = pixels needs a task of images: set it to tokens")
            if not self.pixel_sd > 0:
                raise UserError(
                    f"Encoder.inputs = pixels needs a pixel_sd above 0, got {self.pixel_sd}: "
                    "set it in the task's class"
                )
        if self.qkv_dim % self.num_heads:
            raise UserError(
                f"Encoder.num_heads must divide qkv_dim = {self.qkv_dim}, got {self.num_heads}: "
                "change one of them"
            )
        for layer in range(self.num_layers):
            self.mixer_class(layer)

    @property
    def mixer_length(self) -> int:
        """The length that the mixers see: max_len, and one more with CLS."""
        return self.max_len + (self.pooling == "cls")

    @property
    def uses_mask(self) -> bool:
        """Whether every mixer respects the padding mask."""
        return all(self.mixer_class(layer).uses_mask for layer in range(self.num_layers))

    def mixer_class(self, layer) -> type[Mixer]:
        """The class that mixes in this layer.

        Raises:
          UserError: if `mixers` gives something that is no Mixer.
        """
        return _class_of(self._mixer(layer))

    def _mixer(self, layer) -> Callable[..., Mixer]:
        mixer: Any = self.mixers
        if isinstance(mixer, tuple | list):
            if len(mixer) != self.num_layers:
                raise UserError(
                    f"Encoder.mixers lists {len(mixer)} mixers for {self.num_layers} layers: "
                    "list one for each, or bind MIXERS to one for all"
                )
            mixer = mixer[layer]
        elif callable(mixer) and not isinstance(mixer, type | functools.partial):
            mixer = mixer(layer, self.num_layers)
        found = _class_of(mixer)
        if not (
            isinstance(found, type) and issubclass(found, Mixer) and hasattr(found, "uses_mask")
        ):
            raise UserError(
                "Encoder.mixers must give a subclass of Mixer that declares uses_mask, got "
                f"{mixer!r} for layer {layer}: bind MIXERS to one, as the files in gin/models do"
            )
        return mixer

    @nn.compact
    def __call__(self, ids, mask, *, train, types=None, pooled=True) -> jax.Array:
        """Encodes ids int32 [B, L] under mask bool [B, L].

        Args:
          ids: int32 [B, L].
          mask: bool [B, L], True at real tokens.
          train: whether dropout acts.
          types: int32 [B, L], the kind of each token, for embedding "bert"; None: 0 everywhere.
          pooled: False gives what would be pooled.

        Returns:
          float32 [B, D]; not pooled, [B, L, D] in the encoder's dtype (L + 1 with pooling "cls").
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
        else:
            x = x + self._positions(x.shape[1])[None]
        x = Dropout(self.dropout)(x, train=train)
        x = x.astype(self.dtype)

        def run(block, x, mask):
            return block(x, mask, train=train)

        if self.remat:
            dots = jax.checkpoint_policies.save_only_these_names(PRODUCT)
            run = nn.remat(run, policy=dots if self.remat == "dots" else None)
        for layer in range(self.num_layers):
            block = Block(
                make_mixer=self.make_mixer(layer),
                dim=self.dim,
                mlp_dim=self.mlp_dim,
                dropout=self.dropout,
                norm=self.norm,
                norm_epsilon=self.norm_epsilon,
                name=f"block_{layer}",
            )
            x = run(block, x, mask)
        if self.norm == "pre":
            x = LayerNorm(self.norm_epsilon, name="norm")(x)
        if not pooled:
            return x
        x = pool(x, mask, self.pooling)
        if self.pooling == "tanh":
            init = nn.initializers.normal(0.02)
            x = jnp.tanh(nn.Dense(self.dim, kernel_init=init, name="pooler")(x))
        return x

    def _tokens(self, ids):
        """The table, LRA's normal(1) or BERT's normal(.02): [B, L] -> [B, L, D]."""
        init = nn.initializers.normal(1.0 if self.embedding == "lra" else 0.02)
        table = self.param("embedding", init, (self.vocab_size, self.dim))
        one_hot = self.vocab_size <= ONE_HOT_MAX_VOCAB or jax.default_backend() != "cpu"
        return lookup(table, ids, one_hot=one_hot)

    def _pixels(self, ids, mask):
        """Pixel values (id - 1) with mean 0 and variance 1 through a Dense layer; padding is 0.

        A kernel of normal(1) gives entries of variance 1, as those of the table have: beside the
        positions a pixel weighs what a token does.
        """
        assert self.pixel_mean is not None
        x = (ids.astype(jnp.float32) - (1 + self.pixel_mean)) / self.pixel_sd
        x = jnp.where(mask, x, 0)[..., None]
        init = nn.initializers.normal(1.0)
        return nn.Dense(self.dim, kernel_init=init, precision="highest", name="pixel")(x)

    def _bert(self, x, types):
        """BERT's embedding with FNet's Dense layer behind it: [B, L, D] -> [B, L, D].

        Token, learned position and type, summed, then LayerNorm and Dense (arXiv:2105.03824,
        Sec. 3.2; the authors' code has the Dense layer at any width). A CLS vector has type 0.
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
        if self.positions == "learned" or self.embedding == "bert":
            init = nn.initializers.normal(0.02)
            return self.param("positions_learned", init, (self.mixer_length, self.dim))[:length]
        return jnp.asarray(sinusoidal_positions(length, self.dim))

    def make_mixer(self, layer):
        """The layer's mixer class with the encoder's fields bound; call it to get the module."""
        return functools.partial(
            self._mixer(layer),
            dim=self.dim,
            num_heads=self.num_heads,
            qkv_dim=self.qkv_dim,
            max_len=self.mixer_length,
            layer=layer,
            num_layers=self.num_layers,
            dropout=self.attention_dropout,
        )


def _class_of(mixer) -> Any:
    """The class behind a class or a functools.partial of one."""
    while isinstance(mixer, functools.partial):
        mixer = mixer.func
    return mixer


def parameter_count(variables) -> int:
    """Number of trained scalars in what `model.init` (or eval_shape of it) returns."""
    return sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
