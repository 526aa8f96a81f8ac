"""Checks the values of settings: the fields of dataclasses and modules, and paths."""

import dataclasses
import math
import numbers
import os
import re
import types
import typing
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lra_fnet.errors import UserError


class Least(NamedTuple):
    """The limits in a field's type `Annotated[int, Least(...)]`; see `check_settings`."""

    limit: float
    suggest: float  # a sensible value, for the error
    below: float = math.inf
    multiple: int = 1  # the value is a multiple of this


_PLAIN = {  # types of settings without limits: the values that fit, and how an error names them
    bool: (bool, "True or False"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "a text"),
    types.NoneType: (types.NoneType, "None"),
}


def check_settings(module):
    """Checks the fields of a dataclass against their types.

    These are `Literal`, `Annotated` with `Least`, or plain ones; a field of another type takes any
    value.

    Raises:
      UserError: for the first field with a value that its type does not allow.
    """
    for field in dataclasses.fields(module):
        name, value = f"{type(module).__name__}.{field.name}", getattr(module, field.name)
        if typing.get_origin(field.type) is Literal:
            one_of(name, value, typing.get_args(field.type))
        union = typing.get_origin(field.type) in (typing.Union, types.UnionType)
        options = typing.get_args(field.type) if union else (field.type,)
        if value is None and types.NoneType in options:
            continue
        for option in options:
            for least in getattr(option, "__metadata__", ()):
                at_least(name, value, *least, kind=typing.get_args(option)[0])
        if all(option in _PLAIN for option in options):
            fit = any(isinstance(value, _PLAIN[option][0]) for option in options)
            if not fit or (isinstance(value, bool) and bool not in options):
                wanted = " or ".join(_PLAIN[option][1] for option in options)
                raise UserError(f"{name} must be {wanted}, got {value!r}: set it to one")


def at_least(name, value, limit, suggest, below=math.inf, multiple=1, *, kind=int):
    """Raises a UserError if the setting `name` is not a number of this kind in these limits."""
    wanted = "a whole number" if kind is int else "a number"
    number = numbers.Integral if kind is int else numbers.Real
    if isinstance(value, number) and not isinstance(value, bool):
        wanted = f"at least {limit}" + (f" and below {below}" if below < math.inf else "")
        wanted += f" and a multiple of {multiple}" if multiple > 1 else ""
        if limit <= value < below and (multiple == 1 or value % multiple == 0):
            return
    raise UserError(f"{name} must be {wanted}, got {value!r}: set it to {suggest}, say")


def one_of(name, value, known):
    """Raises a UserError if the value of the setting `name` is not one of the known ones."""
    if value not in known:
        raise UserError(
            f"{name} must be one of {', '.join(map(str, known))}, got {value!r}: "
            "set it to one of these"
        )


def path(given: Any) -> Path:
    """Returns a path as a user gave it, with ~ replaced by the home folder.

    All paths of the command line and of the Python interface pass here, so that every library that
    gets one sees the same.

    Raises:
      UserError: it is no path, begins with ~ where there is no home folder, or is of a store such
        as gs:, which is no file system.
    """
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"expected a path as a text or a Path, got {given!r:.80}: name a folder")
    found = os.path.expanduser(given)
    if str(found).startswith("~"):
        raise UserError(f"{given}: there is no such home folder: write the path without ~")
    if re.match(r"[A-Za-z][\w+.-]+:/", str(found)):
        raise UserError(f"expected a path on this machine, got {given}: mount it, or copy it here")
    return Path(found)
