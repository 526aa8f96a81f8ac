"""Says what was read of the loaded configuration, what was not, and what binds each setting."""

from collections.abc import Sequence
from typing import NamedTuple

import gin

from lra_fnet.config.bindings import DURATION, normalise, short, values
from lra_fnet.config.gin_files import Text
from lra_fnet.config.parsing import bound_in, bound_names


def operative() -> str:
    """Returns the gin text of every value that was read, defaults included."""
    return gin.operative_config_str()


def unread_bindings(overrides: Sequence[str] = ()) -> list[str]:
    """Returns the bindings that were given but never read; call it after everything was built.

    A macro that only a file sets need not be read, since base.gin declares macros for all models; a
    macro among `overrides` must be.
    """
    read = set(values(operative()))
    # gin evaluates a macro under the scope of its reader: `MAX_LEN/ListOps.max_len`.
    read |= {name.rsplit("/", 1)[-1] for name in read}
    overridden = {normalise(text).partition(" =")[0] for text in overrides}
    return sorted(name for name in bound_names() - read if "." in name or name in overridden)


class Setting(NamedTuple):
    """A setting of a run: its name, its value as gin text, and the file and line that bind it."""

    name: str
    value: str
    source: str


def settings(texts: Sequence[Text], bindings: Sequence[str] = ()) -> list[Setting]:
    """Returns every setting that was read and what binds it; call it after everything was built.

    Args:
      texts: the gin texts that `load` was given.
      bindings: the same.
    """
    bound: dict[str, tuple[object, str]] = {}
    for where, text in (*texts, Text("--set", "\n".join(map(normalise, bindings)))):
        for name, (value, line) in bound_in(text).items():
            bound[name] = value, where if where == "--set" else f"{where}:{line}"
    given = set(map(short, bound_names()))
    found = []
    for name, text in sorted((short(name), text) for name, text in values(operative()).items()):
        unscoped = name.rpartition("/")[2]  # gin reads Text.max_len as TASK/Text.max_len
        binding = bound.get(name) or bound.get(unscoped)
        if not name.endswith(".name"):  # Flax's name of a module, which none binds
            derived = not given.isdisjoint((name, unscoped))
            found.append(Setting(unscoped, text, _source(text, binding, derived=derived)))
    return found


def _source(text: str, bound: tuple[object, str] | None, *, derived: bool) -> str:
    """Returns what gave a setting the value in the text.

    Args:
      text: the value as gin writes it.
      bound: the value that a file or override bound at last, and its place.
      derived: whether code bound the setting.
    """
    if bound is None:
        return "derived" if derived else "default"
    value, where = bound
    if isinstance(value, str) and DURATION.fullmatch(value):
        return f"{where}: {value}"
    counted = type(value) is int and text.isdecimal() and int(text) != value
    return f"{where}: {value:,}, scaled" if counted else where
