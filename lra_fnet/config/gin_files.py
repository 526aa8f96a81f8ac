"""Finds gin files: lists the names that have one, their headers, and the texts that a run reads."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lra_fnet.errors import UserError, unknown
from lra_fnet.machine import disk

# Inside the package in an installed wheel, and next to it in a checkout. The order matters: next to
# an installed package lies gin-config's folder gin.
_PLACES = Path(__file__).parents[1], Path(__file__).parents[2]
GIN_DIR = next(d / "gin" for d in _PLACES if (d / "gin/base.gin").is_file())

_DATASET = re.compile(r"""^DATASET\s*=\s*["'](\w+)["']""", re.MULTILINE)
_MAX_LEN = re.compile(r"^MAX_LEN\s*=\s*([\d_]+)", re.MULTILINE)
_INCLUDE = re.compile(r"""include\s+(["'])(.+)\1""")
_DEEPEST = 20  # files that include each other
_SCOPE = re.compile(r"((?:\w+/)+)\w")
# What an unknown name may lack: the end of an error message.
YOURS = "yours needs its gin file: --gin-dir FOLDER"


class GinText(NamedTuple):
    """Gin text, and the name of its file in messages."""

    where: str
    text: str


def known(kind: str, dirs: Sequence[Path] = ()) -> list[str]:
    """Returns the names that have a file, sorted.

    Args:
      kind: "tasks", "models", "sweeps" or "presets" (a preset is a folder).
      dirs: folders with more gin files.

    Raises:
      UserError: there is no such folder.
    """
    if missing := [str(folder) for folder in dirs if not Path(folder).is_dir()]:
        raise UserError(f"--gin-dir {missing[0]}: there is no such folder")
    pattern, end = ("*/", "") if kind == "presets" else ("*.gin", ".gin")
    found = (path.name for d in _search_path(dirs) for path in (d / kind).glob(pattern))
    return sorted({name.removesuffix(end) for name in found})


def lengths(task: str, dirs: Sequence[Path] = ()) -> dict[str, set[int]]:
    """Returns the lengths that presets of a task bind as `MAX_LEN`, by the `DATASET` with them.

    Those without a data set are under "".
    """
    found: dict[str, set[int]] = {}
    for preset in known("presets", dirs):
        text = _read(f"presets/{preset}/{task}.gin", dirs)
        pairs = itertools.product(_DATASET.findall(text) or [""], _MAX_LEN.findall(text))
        for name, length in pairs:
            found.setdefault(name, set()).add(int(length))
    return found


def title(model: str, dirs: Sequence[Path] = ()) -> str:
    """Returns a model's title for tables: the first line of its gin file up to the colon.

    A model without such a line, or without a file, has its name as its title.
    """
    match = re.match(r"# ([^:\n]+):", _read(f"models/{model}.gin", dirs))
    return match[1] if match else model


def about(kind: str, name: str, dirs: Sequence[Path] = ()) -> str:
    """Returns the first sentence of a file of `known`, without title and parentheses.

    For a preset the file is its base.gin. Without a comment at the top the sentence is empty.
    """
    text = _read(f"{kind}/{name}/base.gin" if kind == "presets" else f"{kind}/{name}.gin", dirs)
    comment = re.match(r"(#.*\n)*", text)
    words = " ".join(re.findall(r"^# (.*)", comment[0] if comment else "", re.MULTILINE))
    words = re.sub(r" \([^)]*\)", "", words)
    sentence = re.match(r"(?:[^:]*: )?(.*?\.)(?: |$)", words)
    return sentence[1] if sentence else words


def sweep(name: str, dirs: Sequence[Path] = ()) -> Path:
    """Returns the gin file of a sweep: the path `name`, or the file of that name in gin/sweeps/.

    Raises:
      UserError: there is neither.
    """
    path = Path(name) if Path(name).is_file() else _find(f"sweeps/{name}.gin", dirs)
    if path is None:
        names = ", ".join(known("sweeps", dirs))
        raise UserError(f"--sweep expects a gin file, or one of {names}; got {name!r}")
    return path


def texts(
    task: str, model: str, preset: str, dirs: Sequence[Path] = (), *, denoise: bool = False
) -> list[GinText]:
    """Returns the gin texts of one run in load order; the last one that binds a name wins.

    A binding in a scope of names of tasks and models, or `pretrain`, is for that task, model or
    stage alone. Such bindings follow all others, without the scope and at the same lines.

    Args:
      task: a task with a file.
      model: a model with a file.
      preset: a preset with a folder.
      dirs: folders with more gin files.
      denoise: whether the run is pre-training.

    Raises:
      UserError: a task, model or preset has no file; the message lists those that have one.
    """
    for what, name in (("task", task), ("model", model), ("preset", preset)):
        names = known(f"{what}s", dirs)
        if name not in names:
            raise UserError(f"{unknown(what, name, names)}; {YOURS}")
    if not _find(f"presets/{preset}/{task}.gin", dirs):
        tasks = [t for t in known("tasks", dirs) if _find(f"presets/{preset}/{t}.gin", dirs)]
        raise UserError(
            f"preset {preset!r} has no task {task!r}; it has: {', '.join(tasks)}; to add it, write "
            f"presets/{preset}/{task}.gin in a folder that --gin-dir names"
        )
    paths = [path for name in _order(task, model, preset) if (path := _find(name, dirs))]
    scopes = {*known("tasks", dirs), *known("models", dirs), "pretrain"}
    run = {task, model, *(["pretrain"] if denoise else [])}
    parts = [part for path in paths for part in expanded(path, dirs)]
    pairs = [_split(text, run, scopes) for _, text in parts]
    return [GinText(w, p[i]) for i in (0, 1) for (w, _), p in zip(parts, pairs, strict=True)]


def expanded(path: Path, dirs: Sequence[Path] = (), depth: int = 0) -> Iterator[GinText]:
    """Yields the text of a gin file in parts, with those of the files that it includes in between.

    A file that is included lies beside the including one, in `dirs`, or is a shipped one. Every
    line keeps its number.

    Args:
      path: the file.
      dirs: folders with more gin files.
      depth: of the files that include it.

    Raises:
      UserError: a file cannot be read, is not there, or includes itself.
    """
    where, waiting = str(path).replace(f"{GIN_DIR}/", "gin/"), []
    for number, line in enumerate(disk.read_text(path).splitlines(), start=1):
        if (match := _INCLUDE.match(line)) is None:
            waiting.append(line)
            continue
        inner = _find(match[2], (path.parent, *dirs))
        if inner is None or depth == _DEEPEST:
            problem = "a file beside it, in --gin-dir or shipped" if inner is None else "no circle"
            raise UserError(f"{path}, line {number}: {line.strip()} expects {problem}: correct it")
        yield GinText(where, "\n".join(waiting))
        yield from expanded(inner, dirs, depth + 1)
        waiting = [""] * number
    yield GinText(where, "\n".join(waiting))


def changes(task: str, model: str, preset: str, dirs: Sequence[Path]) -> dict[str, str]:
    """Returns the texts of the user's files that change what is shipped, by their relative names.

    They are those that replace a shipped file and, if task, model and preset are all shipped, those
    that come to them. Arguments are as in `texts`.
    """
    names = _order(task, model, preset)
    shipped = all((GIN_DIR / names[i]).exists() for i in (1, 2, 4))
    found = {name: path for name in names if (path := _find(name, dirs))}
    return {
        name: "\n".join(part.text for part in expanded(path, dirs))
        for name, path in found.items()
        if path != GIN_DIR / name and (shipped or (GIN_DIR / name).is_file())
    }


def _order(task: str, model: str, preset: str) -> list[str]:
    """Returns the relative names of the files that a run may have, in load order."""
    folder = f"presets/{preset}"
    parts = "base", f"tasks/{task}", f"models/{model}"
    parts += f"{folder}/base", f"{folder}/{task}", f"{folder}/models/{model}"
    return [f"{part}.gin" for part in parts]


def _split(text: str, run: set[str], scopes: set[str]) -> tuple[str, str]:
    """Splits gin text into bindings for all runs and those in scopes of this run, unscoped.

    Bindings in other known scopes are left out. Every line keeps its number.
    """
    general, scoped = [], []
    parts: set[str] = set()
    for line in text.splitlines():
        match = _SCOPE.match(line)
        if line[:1] not in (" ", "\t", ")", "]", "}"):  # else it continues a binding
            parts = set(match[1].strip("/").split("/")) if match else set()
            parts = parts if parts <= scopes else set()
        general.append("" if parts else line)
        own = line.removeprefix(match[1]) if match else line
        scoped.append(own if parts and parts <= run else "")
    return "\n".join(general), "\n".join(scoped)


def _read(relative: str, dirs: Sequence[Path]) -> str:
    path = _find(relative, dirs)
    return disk.read_text(path) if path else ""


def _find(relative: str, dirs: Sequence[Path]) -> Path | None:
    return next((d / relative for d in _search_path(dirs) if (d / relative).is_file()), None)


def _search_path(dirs: Sequence[Path]) -> list[Path]:
    # The user's folders come first, so that their files replace ours.
    return [*map(Path, dirs), GIN_DIR]
