"""JSON values as dataclasses, checked against the types of their fields."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from lra_fnet.errors import UserError
from lra_fnet.machine import disk

T = TypeVar("T")


def build(cls: type[T], value: Mapping[str, Any], where: str = "", **given: Any) -> T:
    """Makes a dataclass from a JSON object whose values have the types of the fields.

    Args:
      cls: the dataclass.
      value: the object; keys that are not fields are ignored.
      where: begins the text of an error: the keys that lead to the object.
      **given: fields that do not come from the object.

    Raises:
      ValueError: a field without a default is missing, or a value has another type.
    """
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        if field.name in given:
            continue
        if field.name in value:
            path = f"{where}.{field.name}".lstrip(".")
            given[field.name] = convert(value[field.name], field.type, path)
        elif field.default is field.default_factory:  # no default
            raise ValueError(f"{where}.{field.name} is missing".lstrip("."))
    try:
        return cls(**given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}".removeprefix(": ")) from None


def load(file: Path, cls: type[T]) -> T | None:
    """Returns the object of a JSON file as a dataclass, or None if there is no file.

    Raises:
      UserError: the file is damaged.
    """
    value = disk.read_json(file)
    return None if value is None else _checked(file, value, cls, "")


def entries(file: Path, cls: type[T]) -> list[T]:
    """Returns the objects of a JSON list as dataclasses; none if there is no file.

    Raises:
      UserError: the file is damaged.
    """
    return [_checked(file, value, cls, "an entry") for value in disk.read_json(file, list) or ()]


def _checked(file: Path, value: Any, cls: type[T], where: str) -> T:
    try:
        return convert(value, cls, where)
    except ValueError as error:
        raise UserError(f"{file}: {error}; move it away") from None


def convert(item: Any, hint: Any, where: str) -> Any:
    """Returns a JSON value as a type: an object as a dataclass, a list as a tuple, text as a path.

    Raises:
      ValueError: the value has another type.
    """
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        kind, arguments = typing.get_origin(option) or option, typing.get_args(option)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(item, dict):
            return build(option, item, where)
        if kind is tuple and isinstance(item, list):
            return tuple(convert(entry, arguments[0], where) for entry in item)
        if kind is Path and isinstance(item, str):
            return Path(item)
        accepted = (float, int) if kind is float else (kind,)  # JSON writes 2.0 as 2
        if item in arguments if kind is Literal else type(item) in accepted:
            return item
    expected = hint.__name__ if isinstance(hint, type) else str(hint).removeprefix("typing.")
    raise ValueError(f"{where} should be {expected}, is {json.dumps(item)[:40]}")
