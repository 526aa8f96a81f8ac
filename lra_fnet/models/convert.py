"""FNet's encoder for pre-training, and its weights to and from the `transformers` library.

Neither that library nor PyTorch is imported: read the weights of an FNetModel with
`model.state_dict()` and `.numpy()`, its configuration with `config.to_dict()`. The ids are those of
that library's tokenizer.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from lra_fnet.errors import UserError
from lra_fnet.models.encoder import Encoder
from lra_fnet.models.mixers.fourier import Fourier

GELU = ("gelu_new", "gelu_pytorch_tanh")  # that library's names of the tanh form, the only one here
NAMES = {  # that library's names of our modules; those of a block within its layer
    "embedding": "embeddings.word_embeddings",
    "positions_learned": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm_embedding": "embeddings.LayerNorm",
    "project": "embeddings.projection",
    "norm_mixer": "fourier.output.LayerNorm",
    "mlp/wide": "intermediate.dense",
    "mlp/narrow": "output.dense",
    "norm_mlp": "output.LayerNorm",
    "pooler": "pooler.dense",
}
ORIGINAL = {"inputs": "tokens", "embedding": "bert", "norm": "post", "pooling": "tanh"}


def fnet_encoder(mixers, *, dim: int, norm_epsilon: float = 1e-12, **settings) -> Encoder:
    """Builds the FNet paper's encoder for pre-training (arXiv:2105.03824, Sec. 3.2 and Fig. 1).

    Args:
      mixers: see `Encoder`.
      dim: D, also the width of all heads.
      norm_epsilon: of LayerNorm; the authors' by default.
      **settings: other fields of `Encoder`: its sizes, num_types and dropout.
    """
    sizes = {"dim": dim, "qkv_dim": dim, "norm_epsilon": norm_epsilon}
    fixed = {"attention_dropout": 0.0, "positions": "learned", "dtype": "float32", "remat": False}
    return Encoder(mixers=mixers, parent=None, **ORIGINAL, **fixed, **sizes, **settings)


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
    shapes: dict[str, Any] = flatten_dict(shapes_of(encoder)["params"], sep="/")
    paths = {_name(path): path for path in shapes}
    if wrong := sorted(set(paths) ^ set(state)):
        raise UserError(
            f"the FNet's weights must be those of an FNetModel with a pooler, missing or unknown: "
            f"{', '.join(wrong[:3])}{' ...' if wrong[3:] else ''}: take model.state_dict() of one"
        )
    params = {}
    for name, path in sorted(paths.items()):
        value = np.asarray(state[name], np.float32)
        want = shapes[path].shape[::-1] if path.endswith("kernel") else shapes[path].shape
        if value.shape != want:
            raise UserError(
                f"the FNet's {name} must have shape {want}, got {value.shape}: take weights and "
                "configuration of one model"
            )
        params[path] = value.T if path.endswith("kernel") else value
    return encoder, {"params": unflatten_dict(params, sep="/")}


def fnet_to_transformers(encoder: Encoder, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns an encoder's variables as the weights of an FNetModel, by name, in float32.

    Raises:
      UserError: if the encoder is not an FNetModel.
    """
    fields = {name: getattr(encoder, name) for name in ORIGINAL}
    mixers = {(type(mixer), getattr(mixer, "scale", "none")) for mixer in encoder.mixers}
    if mixers != {(Fourier, "none")} or fields != ORIGINAL:
        raise UserError(
            "only an encoder of unscaled Fourier mixers with embedding bert, norm post, pooling "
            "tanh and inputs tokens is an FNetModel: set these fields so"
        )
    state = {}
    for path, value in flatten_dict(variables["params"], sep="/").items():
        value = np.asarray(value)
        state[_name(path)] = np.ascontiguousarray(value.T if path.endswith("kernel") else value)
    return state


def shapes_of(encoder: Encoder) -> dict[str, Any]:
    """Returns the shapes of the encoder's variables; nothing is computed."""
    ids = jax.ShapeDtypeStruct((1, encoder.max_len), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, encoder.max_len), bool)
    init = functools.partial(encoder.init, train=False)
    return dict(jax.eval_shape(init, jax.random.key(0), ids, mask))


def _name(path: str) -> str:
    """Returns that library's name of the weight at our path, as in "block_0/mlp/wide/kernel"."""
    match = re.fullmatch(r"(?:block_(\d+)/)?(.+?)(?:/(?:kernel|scale|(bias)))?", path)
    assert match
    layer, module, bias = match.groups()
    prefix = f"encoder.layer.{layer}." if layer else ""
    return f"{prefix}{NAMES[module]}.{bias or 'weight'}"
