"""Imports the user's modules, and knows which a run uses and the hash of each of their files."""

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from lra_fnet.errors import UserError, one_line

# By import (see `_key`), the path of each of its files and the SHA-256 that it had, by module.
_imported: dict[str, dict[str, tuple[Path, str]]] = {}


def code_of(names: Iterable[str]) -> dict[str, str]:
    """Returns 12 digits of the SHA-256 of each file of imported modules, by `code_name`.

    These are the modules and those of the user that they import.
    """
    some = [_imported.get(_key(name), {}) for name in names]
    found = {module: digest for files in some for module, (_, digest) in files.items()}
    return {code_name(module): digest[:12] for module, digest in found.items()}


def code_name(name: str) -> str:
    """Returns the name by which `code_of` knows an import: mine.py, my_package/mine.py."""
    return f"{_module(name).replace('.', '/')}.py"


def import_modules(names: Iterable[str]) -> None:
    """Imports dotted modules or paths to .py files, so that they register their configurables.

    They may import modules in the folder of the file or, if dotted, in the current folder.

    Raises:
      UserError: a module or file does not exist, or raises an error; a file has changed since this
        process imported it.
    """
    for name in names:
        if _key(name) not in _imported:
            _import(name)
            files = _files(_module(name))
            _check_own(name, files)
            _imported[_key(name)] = {m: (path, _sha256(path)) for m, path in files.items()}
        for path, digest in _imported[_key(name)].values():
            if not path.is_file() or _sha256(path) != digest:
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


def _import(name: str) -> None:
    path, module = Path(name), _module(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise UserError(f"--import expects a module or a .py file, and {name!r} does not exist")
    folder = str(path.resolve().parent if is_file else Path.cwd())
    if folder not in sys.path:  # as Python does for a script; others come first
        sys.path.append(folder)
    try:
        file = getattr(importlib.import_module(module), "__file__", None) or ""
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise UserError(
            f"--import {name}: {one_line(f'{type(error).__name__}: {error}')}"
        ) from None
    if is_file and Path(file).resolve() != path.resolve():
        raise UserError(f"--import {name}: another module is named {module}: rename the file")


def _check_own(name: str, files: Mapping[str, Path]) -> None:
    """Refuses an import that got another folder's module in place of one in its own folder."""
    for module, path in files.items() if name.endswith(".py") else ():
        own = Path(name).resolve().with_name(f"{module}.py")
        if own.is_file() and own != path:
            raise UserError(f"--import {name}: {path} is named {module} too: rename one of them")


def _files(module: str) -> dict[str, Path]:
    """Returns the files of an imported module and of the user's that it may import, by module.

    They do not depend on what else this process has imported.
    """
    file = getattr(sys.modules[module], "__file__", None) or ""
    files: dict[str, Path] = {}
    todo: list[tuple[str, Path | None]] = [(module, Path(file).resolve())]
    while todo:
        name, path = todo.pop()
        ours = name.partition(".")[0] == "lra_fnet"
        if name not in files and not ours and path and path.suffix == ".py":
            files[name] = path
            todo += [(other, _file(other)) for other in _imports(name, path) if _is_own(path)]
    return files


def _file(module: str) -> Path | None:
    """Returns the file of a module of the user; None if there is none."""
    part, ends = module.replace(".", "/"), ("/__init__.py", ".py")
    paths = (Path(d, f"{part}{end}").resolve() for d in sys.path for end in ends)
    return next((path for path in paths if path.is_file() and _is_own(path)), None)


def _is_own(path: Path) -> bool:
    """Returns whether a file belongs neither to Python nor to an installed package."""
    installed = {"site-packages", "dist-packages"} & {*path.parts}
    return not installed and not path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())


def _imports(module: str, path: Path) -> set[str]:
    """Returns the names of the modules that a file may import, and of their packages."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    names = [module]
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # whoever imports it must handle that
        return set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # beyond the package: the file must handle it
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    parts = (name.split(".") for name in names)
    prefixes = {".".join(words[:n]) for words in parts for n in range(1, len(words) + 1)}
    return prefixes - {module}


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


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
