"""FNet's encoder for pre-training, and its weights to and from the `transformers` library.

Neither that library nor PyTorch is imported: read the weights of an FNet of any class with
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
from lra_fnet.machine import progress
from lra_fnet.models.encoder import Encoder, variable_shapes
from lra_fnet.models.heads import Pretrainer
from lra_fnet.models.mixers.fourier import Fourier

GELU = ("gelu_new", "gelu_pytorch_tanh")  # that library's names of the tanh form, the only one here
BUFFERS = (".position_ids", ".token_type_ids")  # end the names of arrays that are no weights
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
HEADS = {  # those of a Pretrainer, except for its encoder
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "order": "cls.seq_relationship",
}
PRETRAINING = ("cls.predictions.", "cls.seq_relationship.")  # begin the names of its heads' weights
FNET = "fnet."  # begins those of the encoder, except in an FNetModel
BIAS, TABLE = "cls.predictions.bias", "fnet.embeddings.word_embeddings.weight"
TIED = {"cls.predictions.decoder.weight": TABLE, "cls.predictions.decoder.bias": BIAS}
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
    fields: dict[str, Any] = {**ORIGINAL, **fixed, **sizes, **settings}
    return Encoder(mixers=mixers, parent=None, **fields)


def fnet_from_transformers(
    state: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Returns the model that computes the same as FNet in that library, and its variables.

    An FNetForPreTraining becomes a `Pretrainer`: a call returns its two kinds of logits. Any other
    class becomes an `Encoder`: a call returns the pooled output, or the first hidden state if there
    is no pooler; with `pooled=False` all hidden states. The weights of its head are left out, which
    a line on standard error says. In evaluation the results are equal; in training the dropout
    draws different bits.

    Args:
      state: the model's weights by name.
      config: the model's configuration.

    Returns:
      model, {"params": ...} in float32.

    Raises:
      UserError: if the activation is not the tanh form of GELU; if weights are missing, unknown
        or of the wrong shape, or those that must be equal differ.
    """
    if config["hidden_act"] not in GELU:
        raise UserError(
            f"the FNet must have hidden_act {' or '.join(GELU)}, got {config['hidden_act']!r}: "
            "only this form of GELU is implemented"
        )
    pretraining = all(any(name.startswith(head) for name in state) for head in PRETRAINING)
    within = {name: value for name, value in state.items() if name.startswith(FNET)}
    if within and not pretraining:
        if heads := sorted(state.keys() - within.keys()):
            progress.say(f"the encoder alone, without the weights of the head: {', '.join(heads)}")
        state = {name.removeprefix(FNET): value for name, value in within.items()}
    model: Any = fnet_encoder(
        functools.partial(Fourier, method="auto"),
        dim=config["hidden_size"],
        norm_epsilon=config["layer_norm_eps"],
        vocab_size=config["vocab_size"],
        max_len=config["max_position_embeddings"],
        num_types=config["type_vocab_size"],
        num_heads=1,
        mlp_dim=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        dropout=config["hidden_dropout_prob"],
        pooling="tanh" if pretraining or f"{NAMES['pooler']}.weight" in state else "first",
    )
    if pretraining:
        model = Pretrainer(model, 2)
        for name in TIED.keys() & state.keys():
            if not np.array_equal(state[name], state.get(TIED[name], ())):
                raise UserError(
                    f"the FNet's {name} must be equal to {TIED[name]}, got other numbers: train it "
                    "with tied embeddings"
                )
        state = {name: value for name, value in state.items() if name not in TIED}
    state = {name: value for name, value in state.items() if not name.endswith(BUFFERS)}
    shapes: dict[str, Any] = flatten_dict(shapes_of(model)["params"], sep="/")
    paths = {_name(path): path for path in shapes}
    if wrong := sorted(set(paths) ^ set(state)):
        raise UserError(
            "the weights must be those of an FNet of this configuration, missing or unknown: "
            f"{', '.join(wrong[:3])}{' ...' if wrong[3:] else ''}: take model.state_dict() of one"
        )
    params = {}
    for name, path in sorted(paths.items()):
        value = np.asarray(state[name], np.float32)
        params[path] = value.T if path.endswith("kernel") else value
        if params[path].shape != shapes[path].shape:
            want = shapes[path].shape
            raise UserError(f"the FNet's {name} must have shape {want}, got {params[path].shape}")
    return model, {"params": unflatten_dict(params, sep="/")}


def fnet_to_transformers(
    model: Encoder | Pretrainer, variables: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Returns a model's variables as weights by name, in float32.

    Those of an `Encoder` are an FNetModel's, those of a `Pretrainer` an FNetForPreTraining's.

    Raises:
      UserError: if the encoder is not an FNetModel.
    """
    encoder = model.encoder if isinstance(model, Pretrainer) else model
    fields = {name: getattr(encoder, name) for name in ORIGINAL}
    mixers = {(type(mixer), getattr(mixer, "scale", "none")) for mixer in encoder.mixers}
    if mixers != {(Fourier, "none")} or fields != ORIGINAL or not encoder.mlp_dim:
        raise UserError(
            "only an encoder of unscaled Fourier mixers with embedding bert, norm post, pooling "
            "tanh, inputs tokens and an mlp_dim above 0 is an FNetModel: set these fields so"
        )
    state = {}
    for path, value in flatten_dict(variables["params"], sep="/").items():
        value = np.asarray(value)
        state[_name(path)] = np.ascontiguousarray(value.T if path.endswith("kernel") else value)
    if isinstance(model, Pretrainer):
        state |= {name: state[other] for name, other in TIED.items()}
    return state


def shapes_of(model: Encoder | Pretrainer) -> dict[str, Any]:
    """Returns the shapes of the model's variables; nothing is computed."""
    length = (model.encoder if isinstance(model, Pretrainer) else model).max_len
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, length), bool)
    return variable_shapes(model, ids, mask)


def _name(path: str) -> str:
    """Returns that library's name of the weight at our path, as in "block_0/mlp/wide/kernel"."""
    if path == "bias":
        return BIAS
    within = path.removeprefix("encoder/")
    match = re.fullmatch(r"(?:block_(\d+)/)?(.+?)(?:/(?:kernel|scale|(bias)))?", within)
    assert match
    layer, module, bias = match.groups()
    prefix = f"encoder.layer.{layer}." if layer else ""
    if within != path:
        prefix = f"fnet.{prefix}"
    names = HEADS if within == path and module in HEADS else NAMES
    return f"{prefix}{names[module]}.{bias or 'weight'}"
