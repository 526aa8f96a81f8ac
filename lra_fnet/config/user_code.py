"""Imports the user's modules, and knows which a run uses and the hash of each imported file."""

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gin

from lra_fnet.errors import UserError, one_line

_imported: dict[Path, str] = {}  # SHA-256 of each .py file when it was imported


def code_of(names: Iterable[str]) -> dict[str, str]:
    """Returns 12 digits of the SHA-256 of each imported .py file, by its name."""
    paths = (Path(name).resolve() for name in names)
    return {path.name: _imported[path][:12] for path in paths if path in _imported}


def import_modules(names: Iterable[str]) -> None:
    """Imports dotted modules or paths to .py files, so that they register their configurables.

    Raises:
      UserError: a module or file does not exist, or raises an error; a file has changed since this
        process imported it.
    """
    for name in names:
        path = Path(name)
        try:
            if path.suffix != ".py":
                importlib.import_module(name)
            elif not path.is_file():
                raise UserError(
                    f"--import expects a module or a .py file, and {name!r} does not exist: "
                    "correct the path"
                )
            elif path.stem in sys.modules:
                file = getattr(sys.modules[path.stem], "__file__", None) or ""
                if Path(file).resolve() != path.resolve():
                    raise UserError(
                        f"--import {name}: another module is named {path.stem}: rename the file"
                    )
                now = _sha256(path)
                if now != _imported.setdefault(path.resolve(), now):
                    raise UserError(f"{name} has changed since it was imported: restart Python")
            else:
                _imported[path.resolve()] = _sha256(path)
                spec = importlib.util.spec_from_file_location(path.stem, path)
                assert spec is not None
                assert spec.loader is not None
                sys.modules[path.stem] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[path.stem])
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            if path.suffix == ".py":
                sys.modules.pop(path.stem, None)
            reason = one_line(f"{type(error).__name__}: {error}")
            raise UserError(f"--import {name}: {reason}") from None


def used_imports(names: Sequence[str], text: str) -> tuple[str, ...]:
    """Returns the imported modules that the result of a run may depend on.

    These are all of them if the config refers to a configurable of one, since they may import each
    other. Otherwise they are those without a configurable class, which may change other code.

    Args:
      names: the modules, already imported.
      text: the operative config of the run.
    """
    selectors = re.findall(r"@(?:[\w.]+/)*([\w.]+)", text)
    homes = {_home(selector) for selector in selectors}
    modules = {name: Path(name).stem if name.endswith(".py") else name for name in names}
    if any(_within(home, module) for home in homes for module in modules.values()):
        return tuple(names)
    return tuple(name for name, module in modules.items() if not _registers(module))


def _home(configurable: Any) -> str:
    """Returns the module of a configurable, or of its selector; "" if it is none."""
    try:
        return inspect.unwrap(gin.get_configurable(configurable)).__module__
    except (ValueError, LookupError):
        return ""


def _registers(module: str) -> bool:
    """Returns whether a module, or one below it, defines a class that is a configurable."""
    for name, loaded in list(sys.modules.items()):
        if _within(name, module):
            classes = filter(inspect.isclass, vars(loaded).values())
            if any(_within(_home(cls), module) for cls in classes):
                return True
    return False


def _within(name: str, module: str) -> bool:
    return f"{name}.".startswith(f"{module}.")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
