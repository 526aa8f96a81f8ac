"""results/census.md: the parameters of every model on LRA's tasks, and the FNet paper's sizes.

Parameters are counted exactly, from shapes: without memory, data or compilation.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from lra_fnet import config, experiment
from lra_fnet.benchmark import work
from lra_fnet.errors import UserError
from lra_fnet.models.convert import fnet_encoder, shapes_of
from lra_fnet.models.encoder import parameter_count, variable_shapes
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.models.mixers.fourier import Fourier
from lra_fnet.models.mixers.hybrid import is_attention
from lra_fnet.models.mixers.linear import LinearMixing
from lra_fnet.models.mixers.none import NoMixing
from lra_fnet.models.mixers.random import RandomMixing
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.cell import TASKS
from lra_fnet.report.accuracy.published import published
from lra_fnet.report.render.grid import Grid

TARGET = Path(__file__).parents[2] / "results/census.md"
PRESETS = ("paper", "lra-code")
BASELINE = "transformer"
TOLERANCE = 0.1  # of the baseline's parameters
FNET = {"vocab_size": 32_000, "max_len": 512, "num_types": 4}  # the FNet paper, App. A.1
BASE, LARGE = (768, 12), (1024, 24)  # width and layers
# The way of computing affects no parameter; "naive" and "matmul" show all multiplications.
MIXERS: dict[str, Callable[..., Mixer]] = {
    "transformer": functools.partial(Attention, implementation="naive", block_size=1),
    "linear": LinearMixing,
    "fnet_mat": functools.partial(Fourier, method="matmul"),
    "fnet": functools.partial(Fourier, method="rfft"),
    "random": functools.partial(RandomMixing, seed=0),
    "ff_only": functools.partial(NoMixing, identity=False),
}
PAGE = """# Parameters

Written by `python -m tools.documents census`. These are the trained parameters, embedding and head
included, counted from shapes. The fixed matrices of `random` are not trained and not counted.

LRA's rule (README of google-research/long-range-arena): a new model, in the provided
configuration, "should be within at best 10% larger in terms of parameters compared to
the base Transformer model". No model is resized to meet it: at preset paper every model
has the Transformer's sizes, so `linear` adds n x n parameters per layer, for example; at
preset lra-code LRA's files give some models other sizes.

{presets}
## The FNet paper's Table {sizes_table}: pre-training model sizes

{sizes}
## The FNet paper's Table {params_table}: parameters and mixing operations

{params}
- The parameters include the head of the masked language model. The operations are those at n = 512,
  d = 768: the paper's formula, its value, and the multiplications in our program's matrix products.
- The two tables differ (BERT 111 and 112, Linear 93 and 94) by that head (Dense, LayerNorm, a bias
  for each id; the output matrix is the embedding table). The authors' attention has biases, ours
  (LRA's) has none, which changes no printed digit.
- FNet (DFT matrices) takes 2n (n + d) more than the formula: our matrices are real, sine and
  cosine, and give columns 0 to d / 2; the others follow by symmetry. The FFT has none.
"""


def fnet_count(model: str, dim: int, num_layers: int) -> int:
    """Counts the FNet paper's encoder with a mixer of MIXERS: MLPs of width 4 D, D / 64 heads.

    "fnet_hybrid" has attention in the last two layers.
    """
    attention = [is_attention(layer, num_layers, 2, "TOP") for layer in range(num_layers)]
    hybrid = [MIXERS["transformer" if is_last else "fnet"] for is_last in attention]
    mixers = hybrid if model == "fnet_hybrid" else [MIXERS[model]] * num_layers
    sizes = {"mlp_dim": 4 * dim, "num_layers": num_layers, "num_heads": dim // 64}
    return parameter_count(shapes_of(fnet_encoder(mixers, dim=dim, dropout=0.0, **sizes, **FNET)))


def mlm_count(dim: int) -> int:
    """Counts the masked language model's head: Dense, LayerNorm, a bias for each id.

    Its output matrix is the embedding table (Devlin et al., arXiv:1810.04805).
    """
    return dim * dim + dim + 2 * dim + FNET["vocab_size"]


def multiplications(model: str, length: int, dim: int) -> int:
    """Counts the multiplications in a mixer's program: matrix products, forward, one text."""
    sizes = {"dim": dim, "num_heads": dim // 64, "qkv_dim": dim, "max_len": length}
    mixer = MIXERS[model](**sizes, layer=0, num_layers=1, dropout=0.0, parent=None)
    x = jax.ShapeDtypeStruct((1, length, dim), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), bool)
    apply = functools.partial(mixer.apply, train=False)
    program = jax.make_jaxpr(apply)(variable_shapes(mixer, x, mask), x, mask).jaxpr
    _, products = work.count(program)
    return sum(product.operations * number for product, number in products.items()) // 2


def lra_grid(preset: str, models: list[str]) -> Grid:
    """Returns the counts of models on LRA's tasks at a preset, marked against LRA's rule."""
    rows, refused, base = [], [], {}
    for model in models:
        row = [f"`{model}`"]
        for task, title in TASKS.items():
            try:
                size = parameter_count(experiment.load(task, model, preset).shapes())
            except UserError as error:
                refused.append(f"n/a: `{model}` on {title}: {error}")
                row.append("n/a")
                continue
            share = size / base.setdefault(task, size) - 1
            mark = "**" if share > TOLERANCE else "*" if share < -TOLERANCE else ""
            row.append(f"{mark}{size:,}{mark}")
        rows.append(row)
    note = (
        f"Relative to `{BASELINE}`: **more than 10 % larger**, which LRA's rule excludes; *more "
        "than 10 % smaller*, which it allows."
    )
    return Grid(f"Preset {preset}", ["Model", *TASKS.values()], rows, [note, *refused])


def sizes_grid() -> Grid:
    """Returns the FNet paper's table of model sizes next to ours."""
    table = published()["parameters"]["fnet_model_sizes"]
    rows = []
    for size, printed in table["rows"].items():
        dim, num_layers = map(int, size.split("x"))
        numbers = [
            "-" if number is None else _both(fnet_count(model, dim, num_layers), number)
            for model, number in zip(table["columns"], printed, strict=True)
        ]
        rows.append([f"{dim}, {num_layers} layers", *numbers])
    note = "32,000 ids, 512 positions, 4 types, a Dense layer after the embedding, the pooler."
    head = ["Size", *map(config.title, table["columns"])]
    return Grid("Millions of parameters, ours and (as printed)", head, rows, [note])


def params_grid() -> Grid:
    """Returns the FNet paper's table of parameters and operations next to ours."""
    table = published()["parameters"]["fnet_model_params"]
    length, dim = FNET["max_len"], BASE[0]
    formulas = {
        "2n^2 d + 4n d^2": 2 * length**2 * dim + 4 * length * dim**2,
        "n^2 d + n d^2": length**2 * dim + length * dim**2,
        "0": 0,
    }
    rows = []
    for model, printed in table["rows"].items():
        sizes = [
            _both(fnet_count(model, *size) + mlm_count(size[0]), number)
            for size, number in zip((BASE, LARGE), printed, strict=True)
        ]
        formula = table["operations"][model]
        value = f"{formulas[formula]:,}" if formula in formulas else "n/a"
        products = f"{multiplications(model, length, dim):,}"
        rows.append([config.title(model), *sizes, f"`{formula}`", value, products])
    head = ["Model", "Base", "Large", "Formula", "Its value", "Our products"]
    title = "Millions of parameters, ours and (as printed); operations of one mixing sublayer"
    return Grid(title, head, rows)


def _both(ours: int, printed: int) -> str:
    mark = "" if round(ours / 1e6) == printed else " ≠"
    return f"{ours / 1e6:.3f} ({printed}){mark}"


def write() -> None:
    """Writes the page."""
    models = names.models_in_order(config.known("models"))
    tables = published()["parameters"]
    text = PAGE.format(
        presets="\n".join(lra_grid(preset, models).markdown() for preset in PRESETS),
        sizes_table=tables["fnet_model_sizes"]["table"],
        sizes=sizes_grid().markdown(),
        params_table=tables["fnet_model_params"]["table"],
        params=params_grid().markdown(),
    )
    TARGET.write_text(text, "utf-8")
