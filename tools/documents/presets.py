"""results/presets.md: the settings of the presets side by side, as `lra-fnet settings` has them."""

from pathlib import Path

from lra_fnet import config, experiment
from lra_fnet.errors import UserError
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.cell import TASKS
from lra_fnet.report.render.grid import Grid

TARGET = Path(__file__).parents[2] / "results/presets.md"
SHARED = "fnet_mat"  # a model without settings of its own in any preset
PAGE = """# Settings of the presets

Written by `python -m tools.documents presets` from `gin/presets/`. Each preset has a table of the
settings that its models share, and one of what some models have instead. The settings of the mixers
are in `gin/models/<model>.gin` and `gin/presets/<preset>/models/<model>.gin`.

"""
_COMPARED = ("Encoder.", "Head.", "Run.", "Optimizer.")
_UNSEEN = ("Encoder.mixers", "Run.eval_every", "Run.save_every", "Run.log_every")
_UNSEEN += ("Optimizer.steps_per_cycle", "Run.eval_batch_size", "Encoder.remat")


def grids(preset: str, models: list[str]) -> list[Grid]:
    """Returns the tables of one preset: what its models share, and what `models` have instead."""
    base = {task: experiment.load(task, SHARED, preset).config for task in TASKS}
    values = {task: config.values(text) for task, text in base.items()}
    own = {name for shown in values.values() for name in shown if _is_shown(name)}
    rows = [[name, *(values[task].get(name, "") for task in TASKS)] for name in sorted(own)]
    others: dict[tuple[str, str], dict[str, str]] = {}
    for model in models:
        for task in TASKS:
            try:
                text = experiment.load(task, model, preset).config
            except (
                UserError
            ):  # such as a length that a mixer refuses: results/census.md has the line
                continue
            for name, _, new in filter(
                lambda d: _is_shown(d.name), config.differing(base[task], text)
            ):
                others.setdefault((model, name), {})[task] = f"`{new}`"
    lines = [
        [f"`{model}`", f"`{name}`", *(of.get(task, "") for task in TASKS)]
        for (model, name), of in others.items()
    ]
    title = f"Preset {preset}: models with settings of their own"
    return [
        Grid(f"Preset {preset}", ["Setting", *TASKS.values()], rows),
        Grid(title, ["Model", "Setting", *TASKS.values()], lines, words=2),
    ]


def _is_shown(name: str) -> bool:
    return name.startswith(_COMPARED) and name not in _UNSEEN and not name.endswith(".name")


def write() -> None:
    """Writes the page."""
    models = names.models_in_order(config.known("models"))
    tables = [grid.markdown() for preset in names.PRESETS for grid in grids(preset, models)]
    TARGET.write_text(PAGE + "\n".join(tables), "utf-8")
