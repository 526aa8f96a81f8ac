"""The settings of the presets side by side, from gin: results/presets.md."""

import itertools
from pathlib import Path

from lra_fnet import config, experiment
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.experiment import Experiment
from lra_fnet.machine import disk
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.cell import TASKS
from lra_fnet.report.render.grid import Grid

SHARED = "fnet_mat"  # a model without files of its own in any preset
_ABOUT = """# Settings of the presets

Written by `lra_fnet.report.presets` from `gin/presets/`; a test compares it with the code. Each
preset has a table of the settings that its models share, and one of what some models have instead,
by files of their own (`gin/models/<model>.gin`, `gin/presets/<preset>/models/<model>.gin`,
`gin/presets/<preset>/<task>.<model>.gin`), which also have the settings of the mixers.
"""
_COMPARED = ("Encoder.", "Head.", "Run.", "Optimizer.")
_UNSEEN = ("Encoder.mixers", "Run.eval_every", "Run.save_every", "Optimizer.steps_per_cycle")


def shared(built: Experiment) -> dict[str, str]:
    """Returns the settings of an experiment as text, by what they are."""
    encoder, run, rates = built.model.encoder, built.run, built.optimizer
    facts = store.expected().get(built.task.name, {}).get(built.task.config)
    rows = facts["splits"]["train"]["rows"] if facts else 0
    epochs = f" ({run.num_steps * run.batch_size / rows:.3g})" if rows else ""
    return {
        "data set": f"`{built.task.config}`",
        "length, tokens": f"{built.task.max_len:,}",
        "inputs": encoder.inputs,
        "positions": encoder.positions,
        "pooling": encoder.pooling,
        "layers, width": f"{encoder.num_layers}, {encoder.dim}",
        "heads, qkv width": f"{encoder.num_heads}, {encoder.qkv_dim}",
        "MLP width": str(encoder.mlp_dim or "none"),
        "classifier's hidden width": str(built.model.head.mlp_dim or "none"),
        "dropout, of attention": f"{encoder.dropout:g}, {encoder.attention_dropout:g}",
        "batch": f"{run.batch_size}",
        "steps (epochs)": f"{run.num_steps:,}{epochs}",
        "base learning rate": f"{rates.learning_rate:g}",
        "its factors": rates.factors.replace(" * ", ", "),
        "warm-up, steps": f"{rates.warmup:,}",
        "weight decay": f"{rates.weight_decay:g}",
    }


def grids(preset: str) -> list[Grid]:
    """Returns the tables of one preset: what its models share, and what some have instead."""
    tasks = list(TASKS)
    base = {task: experiment.load(task, SHARED, preset) for task in tasks}
    columns = [shared(built) for built in base.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    settings = Grid(f"Preset {preset}", ["Setting", *TASKS.values()], rows)
    others: dict[tuple[str, str], dict[str, str]] = {}
    for model, task in itertools.product(names.models_in_order(config.known("models")), tasks):
        try:
            built = experiment.load(task, model, preset)
        except UserError:  # such as a length that a mixer refuses: results/census.md has the line
            continue
        for difference in config.differing(base[task].config, built.config):
            name = difference.name
            if name.startswith(_COMPARED) and name not in _UNSEEN:
                others.setdefault((model, name), {})[task] = difference.new
    lines = [
        [
            f"`{model}`",
            f"`{name}`",
            *(f"`{values[task]}`" if task in values else "" for task in tasks),
        ]
        for (model, name), values in others.items()
    ]
    title = f"Preset {preset}: models with settings of their own"
    return [settings, Grid(title, ["Model", "Setting", *TASKS.values()], lines, words=2)]


def markdown() -> str:
    """Returns the text of results/presets.md."""
    tables = [grid.markdown() for preset in names.PRESETS for grid in grids(preset) if grid]
    return "\n".join([_ABOUT, *tables])


def write(path: str | Path) -> None:
    """Writes the settings as Markdown.

    Raises:
      OSError: if the disk refuses.
    """
    disk.replace(Path(path), markdown())
