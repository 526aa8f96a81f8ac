"""Imports the user's modules, and knows which a run uses and the hash of each of their files."""

import ast
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gin

from lra_fnet.errors import UserError, one_line
from lra_fnet.machine import disk

# By import (see `_key`), the path of each of its files and the SHA-256 that it had, by module.
_imported: dict[str, dict[str, tuple[Path, str]]] = {}


def code_of(names: Iterable[str]) -> dict[str, str]:
    """Returns 12 digits of the SHA-256 of each file of imported modules, by name.

    These are the modules and those of the user that they import: mine.py, my_package/mine.py.
    """
    some = [_imported.get(_key(name), {}) for name in names]
    found = {module: digest for files in some for module, (_, digest) in files.items()}
    return {f"{name.replace('.', '/')}.py": digest[:12] for name, digest in found.items()}


def import_modules(names: Iterable[str]) -> None:
    """Imports dotted modules or paths to .py files, so that they register their configurables.

    They may import modules in the folder of the file or, if dotted, in the current folder.

    Raises:
      UserError: a module or file does not exist, or raises an error; a file has changed since this
        process imported it.
    """
    for name in names:
        if _key(name) not in _imported:
            files = _import(name)
            _imported[_key(name)] = {m: (path, disk.sha256(path)) for m, path in files.items()}
        for path, digest in _imported[_key(name)].values():
            if not path.is_file() or disk.sha256(path) != digest:
                raise UserError(f"{path} has changed since it was imported: restart Python")


def used_imports(names: Sequence[str], text: str) -> tuple[str, ...]:
    """Returns the imported modules that the result of a run may depend on.

    These are the modules with a configurable to which the config refers, those that they import,
    and those without a configurable class, which may change other code.

    Args:
      names: the modules, already imported.
      text: the operative config of the run.
    """
    homes = {_home(selector) for selector in re.findall(r"@(?:[\w.]+/)*([\w.]+)", text)}
    parts = [{_module(name), *_imported.get(_key(name), {})} for name in names]
    used = set().union(*(modules for modules in parts if modules & homes))
    return tuple(name for name in names if _module(name) in used or not _registers(_module(name)))


def _import(name: str) -> dict[str, Path]:
    """Imports a module; returns its file and those of the user's that it imports, by module."""
    path, module = Path(name).resolve(), _module(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise UserError(f"--import expects a module or a .py file, and {name!r} does not exist")
    folder = str(path.parent if is_file else Path.cwd())
    if folder not in sys.path:  # as Python does for a script; others come first
        sys.path.append(folder)
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise UserError(
            f"--import {name}: {one_line(f'{type(error).__name__}: {error}')}"
        ) from None
    files = _files(module)
    for other, found in files.items() if is_file else ():
        own = path.with_name(f"{other}.py")
        if own.is_file() and own != found:  # Python takes the one that it found first for both
            raise UserError(f"--import {name}: {found} is named {other} too: rename one of them")
    return files


def _files(module: str) -> dict[str, Path]:
    """Returns the files of a loaded module and of those of the user that it imports, by module."""
    files: dict[str, Path] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        path = Path(getattr(sys.modules.get(name), "__file__", None) or "").resolve()
        own = _is_own(name, path)
        if path.suffix == ".py" and name not in files and (own or name == module):
            files[name] = path
            todo += _imports(name, path) if own else ()
    return files


def _is_own(module: str, path: Path) -> bool:
    """Returns whether a file belongs neither to Python, to an installed package nor to this one."""
    if module.partition(".")[0] == "lra_fnet" or {"site-packages", "dist-packages"} & {*path.parts}:
        return False
    return not path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())


def _imports(module: str, path: Path) -> list[str]:
    """Returns the names that the file of a module imports, and its package."""
    names = [module.rpartition(".")[0]]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            name = importlib.util.resolve_name(name, sys.modules[module].__package__)
            names += [name, *(f"{name}.{alias.name}" for alias in node.names)]
    return names


def _key(name: str) -> str:
    return str(Path(name).resolve()) if name.endswith(".py") else name


def _module(name: str) -> str:
    """Returns the name under which an import is loaded."""
    return Path(name).stem if name.endswith(".py") else name


def _home(configurable: Any) -> str:
    """Returns the module of a configurable, or of its selector; "" if it is none."""
    try:
        return inspect.unwrap(gin.get_configurable(configurable)).__module__
    except (ValueError, LookupError):
        return ""


def _registers(module: str) -> bool:
    """Returns whether a module, or one below it, defines a class that is a configurable."""
    for name, loaded in list(sys.modules.items()):
        if f"{name}.".startswith(f"{module}."):
            classes = filter(inspect.isclass, vars(loaded).values())
            if any(_home(cls) == name for cls in classes):
                return True
    return False
