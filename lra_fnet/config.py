"""Loads gin files in a fixed order and rejects every binding that would have no effect.

gin itself rejects a misspelt configurable or parameter, but accepts a misspelt macro and a binding
that nothing reads. Both are errors here: `base.gin` declares every macro, and `unread_bindings`
lists those that nothing has read once everything has been built.
"""

import ast
import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import gin

from lra_fnet.errors import UserError

# Inside the package in an installed wheel, and next to it in a checkout. The order matters: next to
# an installed package lies gin-config's folder gin.
_PLACES = Path(__file__).parent, Path(__file__).parents[1]
GIN_DIR = next(d / "gin" for d in _PLACES if (d / "gin/base.gin").is_file())

_BOUND_NAME = re.compile(r"^([\w./]+) =", re.MULTILINE)
_DATASET = re.compile(r"""^DATASET\s*=\s*["'](\w+)["']""", re.MULTILINE)
_BARE_WORD = re.compile(r"[A-Za-z_][\w.-]*")


def known(kind: str, dirs: Sequence[Path] = ()) -> list[str]:
    """Returns the names that have a file, sorted.

    Args:
      kind: "tasks", "models" or "presets" (a preset is a folder).
      dirs: folders with more gin files.
    """
    pattern = "*" if kind == "presets" else "*.gin"
    return sorted({p.stem for d in _search_path(dirs) for p in (d / kind).glob(pattern)})


def datasets(task: str, dirs: Sequence[Path] = ()) -> list[str]:
    """Returns the data sets of a task that presets name as `DATASET = "..."`, sorted."""
    paths = (_find(f"presets/{preset}/{task}.gin", dirs) for preset in known("presets", dirs))
    return sorted({name for p in paths if p for name in _DATASET.findall(p.read_text("utf-8"))})


def title(model: str, dirs: Sequence[Path] = ()) -> str:
    """Returns a model's title for tables: the first line of its gin file up to the colon.

    A model without such a line, or without a file, has its name as its title.
    """
    path = _find(f"models/{model}.gin", dirs)
    match = re.match(r"# ([^:\n]+):", path.read_text("utf-8")) if path else None
    return match[1] if match else model


def files(task: str, model: str, preset: str, dirs: Sequence[Path] = ()) -> list[Path]:
    """Returns the gin files of one run in load order; the last one that binds a name wins.

    Raises:
      UserError: a task, model or preset has no file; the message lists those that have one.
    """
    for what, name in (("task", task), ("model", model), ("preset", preset)):
        names = known(f"{what}s", dirs)
        if name not in names:
            raise UserError(
                f"unknown {what} {name!r}; known {what}s: {', '.join(names)}"
                + _did_you_mean(name, names)
            )
    if _find(f"presets/{preset}/{task}.gin", dirs) is None:
        tasks = [t for t in known("tasks", dirs) if _find(f"presets/{preset}/{t}.gin", dirs)]
        raise UserError(
            f"preset {preset!r} has no task {task!r}; it has: {', '.join(tasks)}; to add it, write "
            f"presets/{preset}/{task}.gin in a folder that --gin-dir names"
        )
    order = (
        "base.gin",
        f"tasks/{task}.gin",
        f"models/{model}.gin",
        f"presets/{preset}/base.gin",
        f"presets/{preset}/{task}.gin",
        f"presets/{preset}/models/{model}.gin",
        f"presets/{preset}/{task}.{model}.gin",
    )
    return [path for name in order if (path := _find(name, dirs)) is not None]


def load(paths: Sequence[Path], bindings: Sequence[str] = (), imports: Sequence[str] = ()) -> None:
    """Clears gin, then parses `paths` in order, then `bindings`.

    Args:
      paths: gin files; the first one declares every macro.
      bindings: texts like "Run.num_steps=100".
      imports: dotted modules or paths to .py files, imported first so that they register their
        configurables.

    Raises:
      UserError: a configurable, parameter or macro is unknown, a value is no gin value, or a module
        cannot be imported.
    """
    gin.clear_config()
    import_modules(imports)
    texts = [(str(path), path.read_text()) for path in paths]
    texts += [(f"--set {text!r}", normalise(text)) for text in bindings]
    declared = None
    for where, text in texts:
        _parse(text, where)
        macros = {name for name in _given() if "." not in name}
        declared = macros if declared is None else declared
        _check_macros(macros, declared, where)
    references = set(re.findall(r"%([\w./]+)", gin.config_str())) - {"gin.REQUIRED"}
    _check_macros(references, declared or set(), "a reference")


def load_operative(text: str, imports: Sequence[str] = ()) -> None:
    """Clears gin, then parses the text that `operative` returned for a run; reads no file.

    Raises:
      UserError: this version of the code lacks a name in the text, or a module is missing.
    """
    gin.clear_config()
    import_modules(imports)
    _parse(text, "the run's config")


def unread_bindings(overrides: Sequence[str] = ()) -> list[str]:
    """Returns the bindings that were given but never read; call it after everything was built.

    A macro that only a file sets need not be read, since base.gin declares macros for all models; a
    macro among `overrides` must be.
    """
    read = set(_BOUND_NAME.findall(gin.operative_config_str()))
    # gin evaluates a macro under the scope of its reader: `MAX_LEN/ListOps.max_len`.
    read |= {name.rsplit("/", 1)[-1] for name in read}
    overridden = {normalise(text).partition(" =")[0] for text in overrides}
    return sorted(name for name in _given() - read if "." in name or name in overridden)


def operative() -> str:
    """Returns the gin text of every value that was read, defaults included."""
    return gin.operative_config_str()


def normalise(text: str) -> str:
    """Returns one `--set` binding as gin text, with the quotes that the shell removed.

    >>> normalise("Encoder.norm=post")
    "Encoder.norm = 'post'"

    Raises:
      UserError: the text is not `name=value`, or the value is neither a gin value nor one word.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not re.fullmatch(r"[\w./]+", name) or not value:
        raise UserError(f"--set expects Name.parameter=value, got {text!r}")
    if value[0] not in "@%" and value not in ("True", "False", "None"):
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError):
            if _BARE_WORD.fullmatch(value):
                value = repr(value)
            elif "@" not in value and "%" not in value:
                raise UserError(
                    f"--set {name} expects a number, string, list or tuple, got {value!r}"
                ) from None
    return f"{name} = {value}"


def split_bindings(text: str) -> list[str]:
    """Splits several bindings at the white space outside quotes and brackets; quotes stay.

    >>> split_bindings('Run.num_steps=100 A.b="x y" C.d=[1, 2] E.f=(0.9, 0.98)')
    ['Run.num_steps=100', 'A.b="x y"', 'C.d=[1, 2]', 'E.f=(0.9, 0.98)']

    Raises:
      UserError: a quote or bracket is not closed.
    """
    words, depth = [""], 0
    for part in re.findall(r"""\s+|"[^"]*"|'[^']*'|.""", text):
        depth += (part in "([{") - (part in ")]}")
        if part in ("'", '"'):
            depth = 1
            break
        if part.isspace() and depth == 0:
            words.append("")
        else:
            words[-1] += part
    if depth:
        raise UserError(f"expected bindings with closed quotes and brackets, got {text!r}")
    return [word for word in words if word]


def import_modules(names: Iterable[str]) -> None:
    """Imports dotted modules or paths to .py files, so that they register their configurables.

    Raises:
      UserError: a module or file does not exist.
    """
    for name in names:
        path = Path(name)
        try:
            if path.suffix != ".py":
                importlib.import_module(name)
            elif not path.is_file():
                raise UserError(f"--import expects a module or a .py file, {name!r} does not exist")
            elif path.stem not in sys.modules:
                spec = importlib.util.spec_from_file_location(path.stem, path)
                assert spec is not None
                assert spec.loader is not None
                sys.modules[path.stem] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[path.stem])
        except ModuleNotFoundError as error:
            raise UserError(f"--import {name}: {error}") from None


def _search_path(dirs: Sequence[Path]) -> list[Path]:
    return [*dirs, GIN_DIR]  # the user's folders come first, so that their files replace ours


def _find(relative: str, dirs: Sequence[Path]) -> Path | None:
    return next((d / relative for d in _search_path(dirs) if (d / relative).is_file()), None)


def _given() -> set[str]:
    return set(_BOUND_NAME.findall(gin.config_str()))


def _parse(text: str, where: str) -> None:
    try:
        gin.parse_config(text)
    except (ValueError, SyntaxError, NameError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())
        reason = re.split(r" In bindings string| In file | Failed to parse", reason)[0]
        hint = _did_you_mean(text.partition("=")[0].strip(), [n for n in _given() if "." in n])
        raise UserError(f"{where}: {reason}{hint}") from None


def _check_macros(names: set[str], declared: set[str], where: str) -> None:
    for name in sorted(names - declared):
        raise UserError(
            f"{where}: no macro {name}; base.gin declares {', '.join(sorted(declared))}"
            + _did_you_mean(name, declared)
        )


def _did_you_mean(name: str, candidates: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


class Difference(NamedTuple):
    """A binding that differs between two configurations: gin texts, "absent" where missing."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


def differing(old: str, new: str) -> list[Difference]:
    """Returns the bindings in which two operative configs differ, sorted by name."""
    values = [
        dict(re.findall(r"^([\w./]+) = (.*(?:\n    .*)*)", text, re.M)) for text in (old, new)
    ]
    pairs = {n: [v.get(n, "absent") for v in values] for n in sorted(values[0] | values[1])}
    return [Difference(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
