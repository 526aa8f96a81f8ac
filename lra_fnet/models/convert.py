"""FNet's weights to and from the `transformers` library's FNetModel, as NumPy arrays.

Neither that library nor PyTorch is imported: read its weights with `model.state_dict()` and
`.numpy()`, its configuration with `config.to_dict()`. The ids are that library's own tokenizer's.
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

GELU = ("gelu_new", "gelu_pytorch_tanh")  # names of the tanh form there, the only one here


def fnet_from_transformers(
    state: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> tuple[Encoder, dict[str, Any]]:
    """The encoder that computes what an FNetModel does, and its variables.

    Its call gives the pooled output; with `pooled=False` the last hidden state. In evaluation they
    are the model's own; in training the dropout's bits differ.

    Args:
      state: the model's weights by name.
      config: the model's configuration.

    Returns:
      encoder, {"params": ...} in float32.

    Raises:
      UserError: another activation than the tanh form of GELU; missing, unknown or misshapen
        weights.
    """
    if config["hidden_act"] not in GELU:
        raise UserError(
            f"the FNet must have hidden_act {' or '.join(GELU)}, got {config['hidden_act']!r}: "
            "only this form of GELU is implemented"
        )
    encoder = Encoder(
        vocab_size=config["vocab_size"],
        max_len=config["max_position_embeddings"],
        inputs="tokens",
        embedding="bert",
        num_types=config["type_vocab_size"],
        mixers=functools.partial(Fourier, method="auto"),
        dim=config["hidden_size"],
        num_heads=1,
        qkv_dim=1,
        mlp_dim=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        dropout=float(config["hidden_dropout_prob"]),
        attention_dropout=0.0,
        positions="learned",
        norm="post",
        norm_epsilon=config["layer_norm_eps"],
        pooling="tanh",
        dtype="float32",
        remat=False,
    )
    names = {theirs: (ours, transposed) for theirs, ours, transposed in _names(encoder.num_layers)}
    if wrong := sorted(set(names) ^ set(state)):
        raise UserError(
            f"the FNet's weights must be those of an FNetModel with a pooler, missing or unknown: "
            f"{', '.join(wrong[:3])}{' ...' if wrong[3:] else ''}: take model.state_dict() of one"
        )
    ids = jax.ShapeDtypeStruct((1, encoder.max_len), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, encoder.max_len), bool)
    init = functools.partial(encoder.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), ids, mask)["params"]
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
    """The reverse: an encoder's variables as the weights of an FNetModel, by name, float32.

    Raises:
      UserError: if the encoder is no such model.
    """
    kinds = {encoder.mixer_class(layer) for layer in range(encoder.num_layers)}
    fields = [encoder.embedding, encoder.norm, encoder.pooling, encoder.inputs]
    if kinds != {Fourier} or fields != ["bert", "post", "tanh", "tokens"]:
        raise UserError(
            "only an encoder of Fourier mixers with embedding bert, norm post, pooling tanh and "
            "inputs tokens is an FNetModel: set them so"
        )
    state = {}
    for theirs, ours, transposed in _names(encoder.num_layers):
        value = np.asarray(functools.reduce(lambda tree, key: tree[key], ours, variables["params"]))
        state[theirs] = np.ascontiguousarray(value.T if transposed else value)
    return state


def _names(num_layers: int) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """(their name, our path, whether the matrix is transposed) of every weight."""

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
