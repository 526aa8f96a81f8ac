"""Loads gin files in one fixed order and refuses every binding that would do nothing.

gin itself rejects a misspelt configurable or parameter, but accepts a misspelt macro and a binding
that nobody reads. Both are errors here: `base.gin` declares every macro, and `unread_bindings`
tells after the build what was never read.
"""

import ast
import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import gin

from lra_fnet.errors import UserError

_PACKAGE = Path(__file__).parent
GIN_DIR = next((d for d in (_PACKAGE.parent / "gin", _PACKAGE / "gin") if d.is_dir()), None)

_BOUND_NAME = re.compile(r"^([\w./]+) =", re.MULTILINE)
_BARE_WORD = re.compile(r"[A-Za-z_][\w.-]*")


def known(kind: str, dirs: Sequence[Path] = ()) -> list[str]:
    """Names that have a file: kind is "tasks", "models" or "presets" (those are folders)."""
    names = set()
    for folder in _search_path(dirs):
        for path in (folder / kind).glob("*" if kind == "presets" else "*.gin"):
            names.add(path.stem)
    return sorted(names)


def datasets(task: str, dirs: Sequence[Path] = ()) -> list[str]:
    """The data sets of a task that the presets name, as `DATASET = "..."` in their files."""
    found = []
    for preset in known("presets", dirs):
        path = _find(f"presets/{preset}/{task}.gin", dirs)
        text = path.read_text("utf-8") if path else ""
        found += re.findall(r"""^DATASET\s*=\s*["'](\w+)["']""", text, flags=re.M)
    return sorted(set(found))


def title(model: str, dirs: Sequence[Path] = ()) -> str:
    """Returns a model's title for tables: the first line of its gin file up to the colon.

    A model without such a line, or without a file, has its name as its title.
    """
    path = _find(f"models/{model}.gin", dirs)
    match = re.match(r"# ([^:\n]+):", path.read_text("utf-8")) if path else None
    return match[1] if match else model


def files(task: str, model: str, preset: str, dirs: Sequence[Path] = ()) -> list[Path]:
    """The gin files of one run, in load order; the last one that binds a name wins.

    Raises:
      UserError: a task, model or preset without a file; the line lists those that have one.
    """
    for what, name, kind in (
        ("task", task, "tasks"),
        ("model", model, "models"),
        ("preset", preset, "presets"),
    ):
        if name not in known(kind, dirs):
            raise UserError(
                f"unknown {what} {name!r}; known {kind}: {', '.join(known(kind, dirs))}"
                + _did_you_mean(name, known(kind, dirs))
            )
    task_preset = _find(f"presets/{preset}/{task}.gin", dirs)
    if task_preset is None:
        having = [t for t in known("tasks", dirs) if _find(f"presets/{preset}/{t}.gin", dirs)]
        raise UserError(f"preset {preset!r} has no task {task!r}; it has: {', '.join(having)}")
    found = [
        _find("base.gin", dirs),
        _find(f"tasks/{task}.gin", dirs),
        _find(f"models/{model}.gin", dirs),
        task_preset,
        _find(f"presets/{preset}/models/{model}.gin", dirs),
        _find(f"presets/{preset}/{task}.{model}.gin", dirs),
    ]
    return [path for path in found if path is not None]


def load(paths: Sequence[Path], bindings: Sequence[str] = (), imports: Sequence[str] = ()) -> None:
    """Clears gin, then parses `paths` in order, then `bindings`.

    `imports` are dotted modules or paths to .py files, imported first for what they register.

    Raises:
      UserError: an unknown configurable, parameter or macro, a reference to an unknown macro, a
        value that is no gin value, a module that cannot be imported.
    """
    gin.clear_config()
    for module in imports:
        import_module(module)
    declared: set[str] = set()
    for path in paths:
        _parse(path.read_text(), str(path))
        macros = {name for name in _given() if "." not in name}
        if path is paths[0]:
            declared = macros  # base.gin: every macro, and nothing else may add one
        elif macros - declared:
            _refuse_macro(min(macros - declared), declared, str(path))
    for text in bindings:
        binding = normalise(text)
        name = binding.partition("=")[0].strip()
        if "." not in name and name not in declared:
            _refuse_macro(name, declared, f"--set {text!r}")
        _parse(binding, f"--set {text!r}")
    referenced = set(re.findall(r"%([\w./]+)", gin.config_str())) - declared
    if referenced - {"gin.REQUIRED"}:
        _refuse_macro(min(referenced - {"gin.REQUIRED"}), declared, "a reference")


def load_operative(text: str, imports: Sequence[str] = ()) -> None:
    """Clears gin, then parses what `operative` gave for a run; no file is read.

    Raises:
      UserError: a name that this version of the code does not have; a module that is not there.
    """
    gin.clear_config()
    for module in imports:
        import_module(module)
    _parse(text, "the run's config")


def unread_bindings(overrides: Sequence[str] = ()) -> list[str]:
    """Bindings that were given but never read; call it after everything has been built.

    A macro that only a file sets need not be read (base.gin declares them for all models); a macro
    among `overrides` must be.
    """
    read = set(_BOUND_NAME.findall(gin.operative_config_str()))
    # A macro is evaluated under the scope of its reader: `MAX_LEN/ListOps.max_len`.
    read |= {name.rsplit("/", 1)[-1] for name in read}
    overridden = {normalise(text).partition("=")[0].strip() for text in overrides}
    unread = _given() - read
    return sorted(name for name in unread if "." in name or name in overridden)


def operative() -> str:
    """The gin text of every value that was read, defaults included: what the run really is."""
    return gin.operative_config_str()


def normalise(text: str) -> str:
    """One `--set` binding as gin text: `Encoder.norm=post` gets the quotes that a shell ate.

    Raises:
      UserError: no `name=value`, or a value that is neither a gin value nor one plain word.
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
    """Splits make's GIN at the white space outside quotes and brackets; the quotes stay.

    >>> split_bindings('Run.num_steps=100 A.b="x y" C.d=[1, 2] E.f=(0.9, 0.98)')
    ['Run.num_steps=100', 'A.b="x y"', 'C.d=[1, 2]', 'E.f=(0.9, 0.98)']
    """
    words, word, quote, depth = [], "", "", 0
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character.isspace() and depth == 0:
            if word:
                words.append(word)
            word = ""
            continue
        word += character
    if quote or depth:
        raise UserError(f"GIN has an open quote or bracket: {text!r}")
    return [*words, word] if word else words


def import_module(name: str) -> None:
    """Imports a dotted module or a path to a .py file, so that what it registers exists.

    Raises:
      UserError: there is no such module or file.
    """
    try:
        if name.endswith(".py"):
            path = Path(name)
            if not path.is_file():
                raise UserError(f"--import expects a module or a .py file, {name!r} does not exist")
            if path.stem in sys.modules:
                return
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
        else:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"--import {name}: {error}") from None


def _search_path(dirs: Sequence[Path]) -> list[Path]:
    if GIN_DIR is None:
        raise UserError("the gin files are missing: expected a folder gin/ beside lra_fnet/")
    return [*dirs, GIN_DIR]  # a user's folder first, so that a file there may replace ours


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
        name = text.partition("=")[0].strip()
        hint = _did_you_mean(name, [n for n in _given() if "." in n])
        raise UserError(f"{where}: {reason}{hint}") from None


def _refuse_macro(name: str, declared: set[str], where: str) -> None:
    raise UserError(
        f"{where}: no macro {name}; base.gin declares {', '.join(sorted(declared))}"
        + _did_you_mean(name, declared)
    )


def _did_you_mean(name: str, candidates) -> str:
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
