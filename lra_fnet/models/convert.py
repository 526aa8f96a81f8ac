"""FNet's encoder for pre-training, and its weights to and from the `transformers` library.

Neither that library nor PyTorch is imported: read the weights of an FNetModel with
`model.state_dict()` and `.numpy()`, its configuration with `config.to_dict()`. The ids are those of
that library's tokenizer.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.models.encoder import Encoder
from lra_fnet.models.mixers.fourier import Fourier

GELU = ("gelu_new", "gelu_pytorch_tanh")  # that library's names of the tanh form, the only one here
ORIGINAL = {"inputs": "tokens", "embedding": "bert", "norm": "post", "pooling": "tanh"}


def fnet_encoder(mixers, *, dim: int, norm_epsilon: float = 1e-12, **settings) -> Encoder:
    """Builds the FNet paper's encoder for pre-training (arXiv:2105.03824, Sec. 3.2 and Fig. 1).

    Args:
      mixers: see `Encoder`.
      dim: D, also the width of all heads.
      norm_epsilon: of LayerNorm; the authors' by default.
      **settings: other fields of `Encoder`: its sizes, num_types and dropout.
    """
    return Encoder(
        mixers=mixers,
        dim=dim,
        qkv_dim=dim,
        attention_dropout=0.0,
        positions="learned",
        norm_epsilon=norm_epsilon,
        dtype="float32",
        remat=False,
        parent=None,
        **ORIGINAL,
        **settings,
    )


def fnet_from_transformers(
    state: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> tuple[Encoder, dict[str, Any]]:
    """Returns the encoder that computes the same as an FNetModel, and its variables.

    A call returns the pooled output; with `pooled=False` the last hidden state. In evaluation they
    equal those of the FNetModel; in training the dropout draws different bits.

    Args:
      state: the model's weights by name.
      config: the model's configuration.

    Returns:
      encoder, {"params": ...} in float32.

    Raises:
      UserError: if the activation is not the tanh form of GELU, or weights are missing, unknown or
        of the wrong shape.
    """
    if config["hidden_act"] not in GELU:
        raise UserError(
            f"the FNet must have hidden_act {' or '.join(GELU)}, got {config['hidden_act']!r}: "
            "only this form of GELU is implemented"
        )
    encoder = fnet_encoder(
        functools.partial(Fourier, method="auto"),
        dim=config["hidden_size"],
        norm_epsilon=config["layer_norm_eps"],
        vocab_size=config["vocab_size"],
        max_len=config["max_position_embeddings"],
        num_types=config["type_vocab_size"],
        num_heads=1,
        mlp_dim=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        dropout=float(config["hidden_dropout_prob"]),
    )
    names = {theirs: (ours, transposed) for theirs, ours, transposed in _names(encoder.num_layers)}
    if wrong := sorted(set(names) ^ set(state)):
        raise UserError(
            f"the FNet's weights must be those of an FNetModel with a pooler, missing or unknown: "
            f"{', '.join(wrong[:3])}{' ...' if wrong[3:] else ''}: take model.state_dict() of one"
        )
    shapes = shapes_of(encoder)["params"]
    params: dict[str, Any] = {}
    for theirs, (ours, transposed) in names.items():
        value = np.asarray(state[theirs], np.float32)
        value = value.T if transposed else value
        want = functools.reduce(lambda tree, key: tree[key], ours, shapes).shape
        if value.shape != want:
            raise UserError(
                f"the FNet's {theirs} must have shape {want[::-1] if transposed else want}, got "
                f"{np.shape(state[theirs])}: take weights and configuration of one model"
            )
        branch = params
        for key in ours[:-1]:
            branch = branch.setdefault(key, {})
        branch[ours[-1]] = value
    return encoder, {"params": params}


def fnet_to_transformers(encoder: Encoder, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns an encoder's variables as the weights of an FNetModel, by name, in float32.

    Raises:
      UserError: if the encoder is not an FNetModel.
    """
    fields = {name: getattr(encoder, name) for name in ORIGINAL}
    if {type(mixer) for mixer in encoder.mixers} != {Fourier} or fields != ORIGINAL:
        raise UserError(
            "only an encoder of Fourier mixers with embedding bert, norm post, pooling tanh and "
            "inputs tokens is an FNetModel: set these fields so"
        )
    state = {}
    for theirs, ours, transposed in _names(encoder.num_layers):
        value = np.asarray(functools.reduce(lambda tree, key: tree[key], ours, variables["params"]))
        state[theirs] = np.ascontiguousarray(value.T if transposed else value)
    return state


def shapes_of(encoder: Encoder) -> dict[str, Any]:
    """Returns the shapes of the encoder's variables; nothing is computed."""
    ids = jax.ShapeDtypeStruct((1, encoder.max_len), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, encoder.max_len), bool)
    init = functools.partial(encoder.init, train=False)
    return dict(jax.eval_shape(init, jax.random.key(0), ids, mask))


def _names(num_layers: int) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yields (their name, our path, whether the matrix is transposed) for each weight."""

    def pair(theirs: str, *ours: str, dense: bool):
        yield f"{theirs}.weight", (*ours, "kernel" if dense else "scale"), dense
        yield f"{theirs}.bias", (*ours, "bias"), False

    yield "embeddings.word_embeddings.weight", ("embedding",), False
    yield "embeddings.position_embeddings.weight", ("positions_learned",), False
    yield "embeddings.token_type_embeddings.weight", ("types",), False
    yield from pair("embeddings.LayerNorm", "norm_embedding", dense=False)
    yield from pair("embeddings.projection", "project", dense=True)
    for layer in range(num_layers):
        theirs, ours = f"encoder.layer.{layer}", f"block_{layer}"
        yield from pair(f"{theirs}.fourier.output.LayerNorm", ours, "norm_mixer", dense=False)
        yield from pair(f"{theirs}.intermediate.dense", ours, "mlp", "wide", dense=True)
        yield from pair(f"{theirs}.output.dense", ours, "mlp", "narrow", dense=True)
        yield from pair(f"{theirs}.output.LayerNorm", ours, "norm_mlp", dense=False)
    yield from pair("pooler.dense", "pooler", dense=True)
