"""Compares two operative configs, where a setting that one lacks counts as its default."""

import contextlib
import importlib
import inspect
import re
from collections.abc import Set
from typing import NamedTuple

import gin

from lra_fnet.config.bindings import literal, values

# Settings of mixers that change time and memory but not what is computed, except for rounding.
SPEED_ONLY = (
    *("Attention.implementation", "Attention.block_size", "Fourier.method", "LRU.method"),
    "Mamba.method",
    *("RotaryAttention.implementation", "RotaryAttention.block_size", "S5.method"),
    *("Mega.block_size", "Synthesizer.block_size"),
)


class Difference(NamedTuple):
    """A binding that differs between two configurations: gin texts, "absent" where missing."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


def differing(old: str, new: str) -> list[Difference]:
    """Returns the bindings in which two operative configs differ, sorted by name.

    A setting that one of them lacks counts as its default there, since the code that wrote it did
    not know the setting. `Run.stop_on_collapse` is left out: it changes no run that trains.
    """
    bound = [values(text) for text in (old, new)]
    names = sorted((bound[0] | bound[1]).keys() - {"Run.stop_on_collapse"})
    pairs = {name: [v.get(name, "absent") for v in bound] for name in names}
    unequal = [Difference(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
    modules = set(re.findall(r"^import (lra_fnet\.[\w.]+)", f"{old}\n{new}", re.M))
    for module in sorted(modules, reverse=True):  # `experiment`, which imports all, at the end
        if any("absent" in one and not is_setting(one.name) for one in unequal):
            with contextlib.suppress(ImportError):  # another version's
                importlib.import_module(module)  # registers what has the defaults
    return [difference for difference in unequal if not _is_default(difference)]


def inert(parameters: Set[int | None]) -> set[str]:
    """Returns the settings that cannot matter if models that differ in them have equal parameters.

    What reads `Encoder.qkv_dim` has matrices of that width. `Encoder.num_heads` may matter.

    Args:
      parameters: their numbers, or None where one is not known.
    """
    return {"Encoder.qkv_dim"} if len(parameters) == 1 and None not in parameters else set()


def is_setting(name: str) -> bool:
    """Returns whether a name is that of a setting of the modules that are imported."""
    return _parameter(name) is not None


def _is_default(difference: Difference) -> bool:
    """Returns whether a setting is absent from one config and has its default in the other."""
    if "absent" not in difference:
        return False
    value = difference.old if difference.new == "absent" else difference.new
    parameter = _parameter(difference.name)
    try:
        return parameter is not None and literal(value) == parameter.default
    except ValueError:
        return False


def _parameter(name: str) -> inspect.Parameter | None:
    """Returns the parameter that a binding sets; None if the code has none of that name."""
    owner, _, name = name.rpartition(".")
    try:
        return inspect.signature(gin.get_configurable(owner.rpartition("/")[2])).parameters[name]
    except (ValueError, KeyError):
        return None
