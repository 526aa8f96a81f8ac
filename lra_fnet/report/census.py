"""Counts the parameters of every model exactly, from shapes: without memory, data or compilation.

`write` makes results/census.md: the LRA tasks at two presets compared with LRA's rule of 10 %, the
parameters with their own learning rate at preset tuned, and the FNet paper's two tables of sizes
next to ours.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lra_fnet import config, experiment
from lra_fnet.benchmark import work
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.models.convert import fnet_encoder, shapes_of
from lra_fnet.models.encoder import Encoder, parameter_count, variable_shapes
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.models.mixers.fourier import Fourier
from lra_fnet.models.mixers.hybrid import is_attention
from lra_fnet.models.mixers.linear import LinearMixing
from lra_fnet.models.mixers.none import NoMixing
from lra_fnet.models.mixers.random import RandomMixing
from lra_fnet.optim import group_of
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.cell import TASKS
from lra_fnet.report.accuracy.published import published as printed_numbers
from lra_fnet.report.render import template
from lra_fnet.report.render.grid import Grid

PRESETS = ("paper", "lra-code", "tuned")
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


def count(built: experiment.Experiment, size: Callable = parameter_count) -> Any:
    """Counts the trained parameters of a model, its head included, or what `size` counts of them.

    Args:
      built: the experiment that has the model.
      size: maps variables to a number, or to an array of numbers.
    """

    def shapes_of_model(encoder):
        model = built.model.clone(encoder=encoder, parent=None)
        return variable_shapes(model, *built.blank_inputs(1))

    return _count(built.model.encoder, shapes_of_model, size)


def _count(encoder: Encoder, shapes_of: Callable, size: Callable = parameter_count) -> Any:
    """Counts the parameters in shapes_of(encoder), tracing only one layer of each kind.

    Layers whose mixers differ only in their layer number have the same parameters.
    """
    alike = [mixer.clone(layer=0) for mixer in encoder.mixers]
    kinds = [mixer for i, mixer in enumerate(alike) if mixer not in alike[:i]]
    shapes = shapes_of(encoder.clone(mixers=tuple(kinds), num_layers=len(kinds), parent=None))
    blocks = shapes["params"].get("encoder", shapes["params"])
    sizes = [size({"params": blocks[f"block_{i}"]}) for i in range(len(kinds))]
    return size(shapes) - sum(sizes) + sum(sizes[kinds.index(m)] for m in alike)


def lra(preset: str) -> tuple[dict[str, dict[str, int | None]], list[str]]:
    """Counts each model on each task; None, and a line with the reason, if it cannot be built."""
    counts: dict[str, dict[str, int | None]] = {}
    refused = []
    for model in names.models_in_order(config.known("models")):
        counts[model] = {}
        for task in TASKS:
            try:
                counts[model][task] = count(experiment.load(task, model, preset))
            except UserError as error:
                counts[model][task] = None
                refused.append(f"`{model}` on {TASKS[task]}: {error}")
    return counts, refused


def fnet_count(model: str, dim: int, num_layers: int) -> int:
    """Counts the FNet paper's encoder with a mixer of MIXERS: MLPs of width 4 D, D / 64 heads.

    "fnet_hybrid" has attention in the last two layers.
    """
    attention = [is_attention(layer, num_layers, 2, "TOP") for layer in range(num_layers)]
    hybrid = [MIXERS["transformer" if is_last else "fnet"] for is_last in attention]
    mixers = hybrid if model == "fnet_hybrid" else [MIXERS[model]] * num_layers
    sizes = {"mlp_dim": 4 * dim, "num_layers": num_layers, "num_heads": dim // 64}
    encoder = fnet_encoder(mixers, dim=dim, dropout=0.0, **sizes, **FNET)
    return _count(encoder, shapes_of)


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


def lra_grids(preset: str) -> list[Grid]:
    """Returns the tables of one preset: exact counts, then relative to the Transformer."""
    counts, refused = lra(preset)
    head = ["Model", *TASKS.values()]

    def exact(number: int | None, task: str) -> str:
        return "n/a" if number is None else f"{number:,}"

    def relative(number: int | None, task: str) -> str:
        base = counts[BASELINE][task]
        if number is None or base is None:
            return "n/a"
        larger, smaller = number > (1 + TOLERANCE) * base, number < (1 - TOLERANCE) * base
        mark = "**" if larger else "*" if smaller else ""
        return f"{mark}{100 * (number / base - 1):+.1f} %{mark}"

    def rows(cell: Callable[[int | None, str], str]) -> list[list[str]]:
        return [
            [f"`{model}`", *(cell(row[task], task) for task in TASKS)]
            for model, row in counts.items()
        ]

    notes = [
        "**More than 10 % larger**, which LRA's rule excludes; *more than 10 % smaller*, which it "
        "allows.",
        *([f"n/a: {line}" for line in refused] or ["Every model can be built."]),
    ]
    title = f"Relative to `{BASELINE}`"
    return [Grid("Trained parameters", head, rows(exact)), Grid(title, head, rows(relative), notes)]


def group_counts(built: experiment.Experiment) -> dict[str, int]:
    """Counts the parameters of each of the optimizer's groups."""
    groups = built.optimizer.groups or {}

    def sizes(variables):
        labels = group_of(variables["params"], groups)
        pairs = list(zip(*map(jax.tree.leaves, (labels, variables["params"])), strict=True))
        return np.array([sum(p.size for label, p in pairs if label == name) for name in groups])

    return dict(zip(groups, count(built, sizes).tolist(), strict=True)) if groups else {}


def group_grid(preset: str) -> Grid:
    """Returns the table of the parameters with their own learning rate and weight decay."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for model in names.models_in_order(config.known("models")):
        for task in TASKS:
            built = experiment.load(task, model, preset)
            for name, number in group_counts(built).items():
                rate, decay = (built.optimizer.groups or {})[name]
                decayed = f", decay {decay:g}" if decay else ""
                rows.setdefault((model, name), {})[task] = f"{number:,} at {rate:g}{decayed}"
    lines = [
        [f"`{model}`", f"`{name}`", *(row.get(task, "-") for task in TASKS)]
        for (model, name), row in rows.items()
    ]
    note = (
        "Rates are peaks; the weight decay is 0 unless it is given. Where a cell has a -, the "
        "parameter is with all others."
    )
    title = "Parameters with their own learning rate (Optimizer.groups)"
    return Grid(title, ["Model", "Parameter", *TASKS.values()], lines, [note])


def grids(preset: str) -> list[Grid]:
    """Returns the tables of one preset: of LRA's two the counts, of others the groups."""
    return lra_grids(preset) if preset in ("paper", "lra-code") else [group_grid(preset)]


def sizes_grid() -> Grid:
    """Returns the FNet paper's table of model sizes next to ours."""
    published = printed_numbers()["parameters"]["fnet_model_sizes"]
    rows = []
    for size, printed in published["rows"].items():
        dim, num_layers = map(int, size.split("x"))
        numbers = [
            "-" if number is None else _both(fnet_count(model, dim, num_layers), number)
            for model, number in zip(published["columns"], printed, strict=True)
        ]
        rows.append([f"{dim}, {num_layers} layers", *numbers])
    note = "32,000 ids, 512 positions, 4 types, a Dense layer after the embedding, the pooler."
    head = ["Size", *map(config.title, published["columns"])]
    return Grid("Millions of parameters, ours and (as printed)", head, rows, [note])


def params_grid() -> Grid:
    """Returns the FNet paper's table of parameters and operations next to ours."""
    published = printed_numbers()["parameters"]["fnet_model_params"]
    length, dim = FNET["max_len"], BASE[0]
    formulas = {
        "2n^2 d + 4n d^2": 2 * length**2 * dim + 4 * length * dim**2,
        "n^2 d + n d^2": length**2 * dim + length * dim**2,
        "0": 0,
    }
    rows = []
    for model, printed in published["rows"].items():
        sizes = [
            _both(fnet_count(model, *size) + mlm_count(size[0]), number)
            for size, number in zip((BASE, LARGE), printed, strict=True)
        ]
        formula = published["operations"][model]
        value = f"{formulas[formula]:,}" if formula in formulas else "n/a"
        products = f"{multiplications(model, length, dim):,}"
        rows.append([config.title(model), *sizes, f"`{formula}`", value, products])
    head = ["Model", "Base", "Large", "Formula", "Its value", "Our products"]
    title = "Millions of parameters, ours and (as printed); operations of one mixing sublayer"
    return Grid(title, head, rows)


def _both(ours: int, printed: int) -> str:
    mark = "" if round(ours / 1e6) == printed else " ≠"
    return f"{ours / 1e6:.3f} ({printed}){mark}"


def markdown() -> str:
    """Returns the text of results/census.md."""
    return template.render(
        "census.md",
        presets={preset: grids(preset) for preset in PRESETS},
        published=printed_numbers()["parameters"],
        sizes=sizes_grid(),
        params=params_grid(),
        length=FNET["max_len"],
        dim=BASE[0],
        head=mlm_count(BASE[0]),
        biases=4 * BASE[0] * BASE[1],
    )


def write(path: str | Path) -> None:
    """Writes the census as Markdown.

    Raises:
      OSError: if the disk refuses.
    """
    disk.replace(Path(path), markdown())
