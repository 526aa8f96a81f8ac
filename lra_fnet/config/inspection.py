"""Says what was read of the loaded configuration, what was not, and what binds each setting."""

from collections.abc import Sequence

import gin

from lra_fnet.config.bindings import normalise, short, values
from lra_fnet.config.gin_files import GinText
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


def settings(texts: Sequence[GinText], bindings: Sequence[str] = ()) -> list[list[str]]:
    """Returns every setting that was read, its value as gin text, and the place that binds it.

    Call it after everything was built. Where the run's length or the rows make steps of what is
    bound, the place has the bound value too.

    Args:
      texts: the gin texts that `load` was given.
      bindings: the same.
    """
    bound: dict[str, tuple[object, str]] = {}
    for where, text in (*texts, GinText("--set", "\n".join(map(normalise, bindings)))):
        for name, one in bound_in(text).items():
            place = where if where == "--set" else f"{where}:{one.location.line_num}"
            bound[name] = one.value, place
    found = []
    for name, text in sorted((short(name), text) for name, text in values(operative()).items()):
        unscoped = name.rpartition("/")[2]  # gin reads Text.max_len as TASK/Text.max_len
        value, source = bound.get(name) or bound.get(unscoped) or (text, "default")
        if text.isdecimal() and str(value) != text:
            source += f": {value}"
        if not name.endswith(".name"):  # Flax's name of a module, which none binds
            found.append([unscoped, text, source])
    return found
