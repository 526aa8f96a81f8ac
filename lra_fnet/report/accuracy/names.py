"""Names, selection and order of models, presets and runs in the tables of a report."""

import functools
import re
from collections.abc import Iterable, Sequence

from lra_fnet import config
from lra_fnet.report.accuracy.cell import TASKS
from lra_fnet.report.accuracy.published import published
from lra_fnet.run.result import Record

MAIN = ("transformer", "linear", "fnet", "performer")  # with a colour each
NO_MIXING = "ff_only"
CONTROLS = ("random", NO_MIXING)  # models that mix nothing, or at random
SEARCHED = {*MAIN, "fnet_scaled", "conv", *CONTROLS}  # the main rows of docs/protocol.md
PRESETS = ("paper", "lra-code", "tuned", "small", "cpu")
SOURCES = ("fnet", "lra")  # accuracy tables of published.json that are shown next to ours
# Presets so far from the papers' that their numbers are not shown.
UNCOMPARED = ("cpu", "cpu-pretrain")
SMOKE = {"cpu": ("pathx",)}  # runs that only show that a task works: no column
_DIGEST = re.compile(r"-[0-9a-f]{8}$")  # ends a name that the user did not give


@functools.cache
def speed_only(model: str) -> bool:
    """Returns whether a model is only a way to compute another (`Mixer.speed_only`)."""
    from lra_fnet import experiment  # late: with jax, half of the time of a short command

    if model not in config.known("models"):
        return False
    return all(m.speed_only for m in experiment.load("listops", model, "cpu").model.encoder.mixers)


def name_of(run: Record) -> str:
    """Returns the label of a run's row, with what differs: "FNet, Encoder.num_layers=1".

    A name of the user's stands for the overrides.
    """
    title = config.title(run.model) + ", pre-training" * run.denoise
    if run.variant is None:
        return title
    stage, own = stages(run, run.variant) if run.init else ("", run.variant)
    named = not (run.overrides and _DIGEST.search(own))
    values = [own] if named else map(config.one_form, run.overrides)
    return ", ".join(filter(None, [title, stage, *values]))


def stages(run: Record, variant: str) -> tuple[str, str]:
    """Returns what a pre-trained run's variant says of its stages; see `Job.variant`."""
    theirs, own = run.init.variant if run.init else "", variant.partition("-")[2]
    if theirs and (own.startswith(f"{theirs}-") or (own == theirs and not run.overrides)):
        return f"pre-trained ({theirs})", own[len(theirs) + 1 :]
    return "pre-trained", own


def in_order(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Returns the known names first, in their order, then the others by name."""
    names = set(names)
    return [name for name in known if name in names] + sorted(names.difference(known))


def models_in_order(names: Iterable[str]) -> list[str]:
    """Returns models in the order of the papers' accuracy tables, then the others by name."""
    printed = [model for source in SOURCES for model in published()["accuracy"][source]["rows"]]
    return in_order(names, list(dict.fromkeys(printed)))


def sort(runs: Sequence[Record]) -> list[Record]:
    """Returns runs in the order of the tables: preset, task, model, variant, seed."""
    presets = in_order({run.preset for run in runs}, PRESETS)
    names = in_order({run.task for run in runs}, list(TASKS))
    models = models_in_order(run.model for run in runs)

    def place(run: Record):
        task, model = names.index(run.task), models.index(run.model)
        return presets.index(run.preset), task, model, run.variant or "", run.seed

    return sorted(runs, key=place)


def other_model(run: Record) -> str:
    """Returns the model that a hybrid is at its depth, if all its layers are alike; else ""."""
    layers = run.setting("Encoder.num_layers")
    attention = run.setting("hybrid.attention_layers")
    if not (isinstance(layers, int) and isinstance(attention, int)) or 0 < attention < layers:
        return ""
    return "transformer" if attention else "fnet"
