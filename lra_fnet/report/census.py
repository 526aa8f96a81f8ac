"""Parameters of every model, counted exactly from shapes: no memory, no data, no compilation.

`write` makes results/census.md: the LRA tasks at two presets beside LRA's rule of 10 %, and the
FNet paper's two tables of sizes beside ours.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from lra_fnet import config, experiment
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.models.encoder import Encoder, parameter_count
from lra_fnet.models.mixer import Mixer
from lra_fnet.models.mixers.attention import Attention
from lra_fnet.models.mixers.fourier import Fourier
from lra_fnet.models.mixers.hybrid import is_attention
from lra_fnet.models.mixers.linear import LinearMixing
from lra_fnet.models.mixers.none import NoMixing
from lra_fnet.models.mixers.random import RandomMixing
from lra_fnet.report import accuracy as tables

PRESETS = ("paper", "lra-code")
BASELINE = "transformer"
TOLERANCE = 0.1  # of the baseline's parameters
FNET: dict[str, Any] = {
    "vocab_size": 32_000,
    "max_len": 512,
    "num_types": 4,
}  # the FNet paper, App. A.1
BASE, LARGE = (768, 12), (1024, 24)  # width and layers
# How a mixer computes changes no parameter; "naive" and "matmul" show all multiplications.
MIXERS: dict[str, Callable[..., Mixer]] = {
    "transformer": functools.partial(Attention, implementation="naive", block_size=1),
    "linear": LinearMixing,
    "fnet_mat": functools.partial(Fourier, method="matmul"),
    "fnet": functools.partial(Fourier, method="rfft"),
    "random": functools.partial(RandomMixing, seed=0),
    "ff_only": functools.partial(NoMixing, identity=False),
}


def count(built: experiment.Experiment) -> int:
    """Trained parameters of a model, its head included.

    Layers whose mixers differ in nothing but their number have the same parameters: one of each
    kind is traced.
    """
    encoder = built.model.encoder
    kinds: list[Callable[..., Mixer]] = []
    layers = []  # the kind of each layer
    for layer in range(encoder.num_layers):
        mixer = encoder.make_mixer(layer)
        same = [i for i, kind in enumerate(kinds) if _settings(kind) == _settings(mixer)]
        layers.append(same[0] if same else len(kinds))
        kinds += [] if same else [mixer]
    short = encoder.clone(mixers=tuple(kinds), num_layers=len(kinds), parent=None)
    model = built.model.clone(encoder=short, parent=None)
    inputs = built.abstract_inputs(1)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs, train=False))
    blocks = [shapes["params"]["encoder"][f"block_{i}"] for i in range(len(kinds))]
    sizes = [parameter_count({"params": block}) for block in blocks]
    return parameter_count(shapes) - sum(sizes) + sum(sizes[kind] for kind in layers)


def _settings(mixer) -> tuple[Any, dict[str, Any]]:
    return mixer.func, {name: value for name, value in mixer.keywords.items() if name != "layer"}


def lra(preset: str) -> tuple[dict[str, dict[str, int | None]], list[str]]:
    """Counts of each model on each task, None where a model cannot be built, and why not."""
    counts: dict[str, dict[str, int | None]] = {}
    refused = []
    for model in tables.in_order(config.known("models"), list(tables.published()["models"])):
        counts[model] = {}
        for task in tables.TASKS:
            try:
                counts[model][task] = count(experiment.load(task, model, preset))
            except UserError as error:
                counts[model][task] = None
                refused.append(f"`{model}` on {tables.TASKS[task]}: {error}")
    return counts, refused


def fnet_encoder(mixers, dim: int, num_layers: int) -> Encoder:
    """The FNet paper's encoder for pre-training: MLPs of width 4 D, D / 64 heads (App. A.1)."""
    return Encoder(
        **FNET,
        inputs="tokens",
        embedding="bert",
        mixers=mixers,
        dim=dim,
        num_heads=dim // 64,
        qkv_dim=dim,
        mlp_dim=4 * dim,
        num_layers=num_layers,
        dropout=0.0,
        attention_dropout=0.0,
        positions="learned",
        norm="post",
        norm_epsilon=1e-12,
        pooling="tanh",
        dtype="float32",
        remat=False,
        parent=None,
    )


def fnet_count(model: str, dim: int, num_layers: int) -> int:
    """Parameters of `fnet_encoder` with a mixer of MIXERS.

    "fnet_hybrid" has attention in the last two layers.
    """

    def mixers(layer, num_layers):
        if model == "fnet_hybrid":
            attends = is_attention(layer, num_layers, 2, "TOP")
            return MIXERS["transformer" if attends else "fnet"]
        return MIXERS[model]

    encoder = fnet_encoder(mixers, dim, num_layers)
    ids = jnp.zeros((1, encoder.max_len), jnp.int32)
    init = functools.partial(encoder.init, train=False)
    return parameter_count(jax.eval_shape(init, jax.random.key(0), ids, ids == 0))


def mlm_count(dim: int) -> int:
    """Parameters of the masked language model's head: Dense, LayerNorm, a bias for each id.

    Its output matrix is the embedding table (Devlin et al., arXiv:1810.04805).
    """
    return dim * dim + dim + 2 * dim + FNET["vocab_size"]


def multiplications(model: str, length: int, dim: int) -> int:
    """Multiplications of a mixer's matrix products, forward, one text, read from its program."""
    mixer = MIXERS[model](
        dim=dim,
        num_heads=dim // 64,
        qkv_dim=dim,
        max_len=length,
        layer=0,
        num_layers=1,
        dropout=0.0,
        parent=None,
    )
    x = jax.ShapeDtypeStruct((1, length, dim), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), bool)
    apply = functools.partial(mixer.apply, train=False)
    shapes = jax.eval_shape(functools.partial(mixer.init, train=False), jax.random.key(0), x, mask)
    return _products(jax.make_jaxpr(apply)(shapes, x, mask).jaxpr)


def _products(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += math.prod(shape[axis] for axis in contracted) * equation.outvars[0].aval.size
        total += sum(map(_products, jax.extend.core.jaxprs_in_params(equation.params)))
    return total


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def lra_section(preset: str) -> list[str]:
    """The lines of one preset: exact counts, then relative to the Transformer."""
    counts, refused = lra(preset)
    head = ["Model", *tables.TASKS.values()]

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
            [f"`{model}`", *(cell(row[task], task) for task in tables.TASKS)]
            for model, row in counts.items()
        ]

    return [
        f"## Preset {preset}",
        "",
        *_markdown(head, rows(exact)),
        "",
        f"Against `{BASELINE}`; **more than 10 % larger**, which LRA's rule excludes, and *more",
        "than 10 % smaller*, which it does not:",
        "",
        *_markdown(head, rows(relative)),
        "",
        *([f"n/a: {line}" for line in refused] or ["No model is refused on any task."]),
        "",
    ]


def sizes_section() -> list[str]:
    """The lines of the FNet paper's table of model sizes beside ours."""
    published = tables.published()["parameters"]["fnet_model_sizes"]
    names = tables.published()["models"]
    rows = []
    for size, printed in published["rows"].items():
        dim, num_layers = map(int, size.split("x"))
        cells = [
            "-" if number is None else _beside(fnet_count(model, dim, num_layers), number)
            for model, number in zip(published["columns"], printed, strict=True)
        ]
        rows.append([f"{dim}, {num_layers} layers", *cells])
    return [
        f"## The FNet paper's Table {published['table']}: pre-training model sizes",
        "",
        "Millions, ours and (as printed): 32,000 ids, 512 positions, 4 types, the Dense layer",
        "behind the embedding, the pooler; no head.",
        "",
        *_markdown(["Size", *(names[model] for model in published["columns"])], rows),
        "",
    ]


def params_section() -> list[str]:
    """The lines of the FNet paper's table of parameters and operations beside ours."""
    published = tables.published()["parameters"]["fnet_model_params"]
    names: Mapping[str, str] = tables.published()["models"]
    length, dim = FNET["max_len"], BASE[0]
    formulas = {
        "2n^2 d + 4n d^2": 2 * length**2 * dim + 4 * length * dim**2,
        "n^2 d + n d^2": length**2 * dim + length * dim**2,
        "0": 0,
    }
    rows = []
    for model, printed in published["rows"].items():
        sizes = [
            _beside(fnet_count(model, *size) + mlm_count(size[0]), number)
            for size, number in zip((BASE, LARGE), printed, strict=True)
        ]
        formula = published["operations"][model]
        want = f"{formulas[formula]:,}" if formula in formulas else "n/a"
        rows.append(
            [names[model], *sizes, f"`{formula}`", want, f"{multiplications(model, length, dim):,}"]
        )
    biases, head = 4 * BASE[0] * BASE[1], mlm_count(BASE[0])
    return [
        f"## The FNet paper's Table {published['table']}: parameters and mixing operations",
        "",
        "Parameters in millions, ours and (as printed), with the masked language model's head;",
        f"operations of one mixing sublayer at n = {length}, d = {dim}: the paper's formula, its",
        "value, and the multiplications in the matrix products of our program.",
        "",
        *_markdown(
            ["Model", "Base", "Large", "Formula", "Its value", "Our products"],
            rows,
        ),
        "",
        f"The two tables differ (BERT 111 and 112, Linear 93 and 94) by that head: {head:,}",
        "parameters in Base (Dense, LayerNorm, a bias for each id; the output matrix is the",
        "embedding table). The authors' attention has biases, ours (LRA's) has none:",
        f"{biases:,} more in Base; they would change no printed digit of either table.",
        "",
        "FNet (DFT matrices) takes 2n (n + d) more than the formula: our matrices are real, sine",
        "and cosine, and give columns 0 to d / 2; the others follow by symmetry. The formula",
        "counts complex products, those of the authors' matrices. The FFT has no matrix products.",
        "",
    ]


def _beside(ours: int, printed: int) -> str:
    mark = "" if round(ours / 1e6) == printed else " ≠"
    return f"{ours / 1e6:.3f} ({printed}){mark}"


def markdown() -> str:
    """The text of results/census.md."""
    intro = [
        "# Parameters",
        "",
        "Written by `lra_fnet.report.census`; a test holds it to the code. Trained parameters,",
        "embedding and head included, counted from shapes. The fixed matrices of `random` are not",
        "trained and not counted.",
        "",
        "LRA's rule (README of google-research/long-range-arena): a new model, in the provided",
        'configuration, "should be within at best 10% larger in terms of parameters compared to',
        'the base Transformer model". Nothing is resized here to meet it: at preset paper every',
        "model has the Transformer's sizes, so that `linear`, say, adds n x n parameters a layer;",
        "at preset lra-code LRA's own files give some models other sizes.",
        "",
    ]
    sections = [intro, *map(lra_section, PRESETS), sizes_section(), params_section()]
    return "\n".join(line for section in sections for line in section)


def write(path: str | Path) -> None:
    """Writes the census as Markdown.

    Raises:
      OSError: the disk refuses.
    """
    disk.replace(Path(path), markdown())
