"""Loads gin files in a fixed order and rejects every binding that would have no effect.

gin itself rejects a misspelt configurable or parameter, but accepts a misspelt macro and a binding
that nothing reads. Both are errors here: `base.gin` declares every macro, and `unread_bindings`
lists those that nothing has read once everything has been built.
"""

import ast
import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import tokenize
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gin
from gin import config_parser

from lra_fnet.errors import UserError
from lra_fnet.machine import disk

# Inside the package in an installed wheel, and next to it in a checkout. The order matters: next to
# an installed package lies gin-config's folder gin.
_PLACES = Path(__file__).parent, Path(__file__).parents[1]
GIN_DIR = next(d / "gin" for d in _PLACES if (d / "gin/base.gin").is_file())

_BOUND_NAME = re.compile(r"^([\w./]+) =", re.MULTILINE)
# Settings of mixers that change time and memory but not what is computed, except for rounding.
SPEED_ONLY = (
    *("Attention.implementation", "Attention.block_size", "Fourier.method", "LRU.method"),
    *("RotaryAttention.implementation", "RotaryAttention.block_size", "S5.method"),
    "Synthesizer.block_size",
)
_DATASET = re.compile(r"""^DATASET\s*=\s*["'](\w+)["']""", re.MULTILINE)
_MAX_LEN = re.compile(r"^MAX_LEN\s*=\s*([\d_]+)", re.MULTILINE)
_BARE_WORD = re.compile(r"[A-Za-z_][\w.-]*")
# What an unknown name may lack: the end of an error message.
YOURS = "yours needs its gin file: --gin-dir FOLDER (make: GIN_DIR=)"
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(epochs?|%)")
# Settings that count steps; a text such as "40 epochs" or "10 %" (of the run) is one way to give
# them. Run.num_steps comes first: shares refer to it.
_STEPS = ("Run.num_steps", "Run.eval_every", "Run.save_every", "Run.log_every")
_STEPS += ("Optimizer.warmup", "Optimizer.steps_per_cycle", "Optimizer.steps_per_decay")


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
    pattern = "*" if kind == "presets" else "*.gin"
    return sorted({p.stem for d in _search_path(dirs) for p in (d / kind).glob(pattern)})


def datasets(task: str, dirs: Sequence[Path] = ()) -> list[str]:
    """Returns the data sets of a task that presets name as `DATASET = "..."`, sorted."""
    return sorted({name for text in _presets(task, dirs) for name in _DATASET.findall(text)})


def lengths(task: str, dataset: str, dirs: Sequence[Path] = ()) -> list[int]:
    """Returns the lengths that presets bind as `MAX_LEN` with a data set, sorted.

    If no preset names the set, they are those of all sets of the task.
    """
    texts = _presets(task, dirs)
    texts = [text for text in texts if dataset in _DATASET.findall(text)] or texts
    return sorted({int(length) for text in texts for length in _MAX_LEN.findall(text)})


def title(model: str, dirs: Sequence[Path] = ()) -> str:
    """Returns a model's title for tables: the first line of its gin file up to the colon.

    A model without such a line, or without a file, has its name as its title.
    """
    path = _find(f"models/{model}.gin", dirs)
    match = re.match(r"# ([^:\n]+):", disk.read_text(path)) if path else None
    return match[1] if match else model


def about(kind: str, name: str, dirs: Sequence[Path] = ()) -> str:
    """Returns the first sentence of a file of `known`, without title and parentheses.

    For a preset the file is its base.gin. Without a comment at the top the sentence is empty.
    """
    path = _find(f"{kind}/{name}/base.gin" if kind == "presets" else f"{kind}/{name}.gin", dirs)
    text = disk.read_text(path) if path else ""
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


def files(
    task: str, model: str, preset: str, dirs: Sequence[Path] = (), *, denoise: bool = False
) -> list[Path]:
    """Returns the gin files of one run in load order; the last one that binds a name wins.

    Args:
      task: a task with a file.
      model: a model with a file.
      preset: a preset with a folder.
      dirs: folders with more gin files.
      denoise: whether the run is pre-training, which has files of its own.

    Raises:
      UserError: a task, model or preset has no file; the message lists those that have one.
    """
    for what, name in (("task", task), ("model", model), ("preset", preset)):
        names = known(f"{what}s", dirs)
        if name not in names:
            raise UserError(f"{unknown(what, name, names)}; {YOURS}")
    if _find(f"presets/{preset}/{task}.gin", dirs) is None:
        tasks = [t for t in known("tasks", dirs) if _find(f"presets/{preset}/{t}.gin", dirs)]
        those = [p for p in known("presets", dirs) if _find(f"presets/{p}/{task}.gin", dirs)]
        raise UserError(
            f"preset {preset!r} has no task {task!r}; it has: {', '.join(tasks)}; presets with "
            f"{task}: {', '.join(those) or 'none'}; to add it, write presets/{preset}/{task}.gin "
            "in a folder that --gin-dir names"
        )
    order = _order(task, model, preset, denoise=denoise)
    return [path for name in order if (path := _find(name, dirs)) is not None]


def changes(
    task: str, model: str, preset: str, dirs: Sequence[Path], *, denoise: bool = False
) -> dict[str, str]:
    """Returns the texts of the user's files that change what is shipped, by their relative names.

    They are those that replace a shipped file and, if task, model and preset are all shipped, those
    that come to them. Arguments are as in `files`.
    """
    shipped = all(
        (GIN_DIR / name).exists()
        for name in (f"tasks/{task}.gin", f"models/{model}.gin", f"presets/{preset}/{task}.gin")
    )
    found = {name: _find(name, dirs) for name in _order(task, model, preset, denoise=denoise)}
    return {
        name: disk.read_text(path)
        for name, path in found.items()
        if path and path != GIN_DIR / name and (shipped or (GIN_DIR / name).is_file())
    }


def _order(task: str, model: str, preset: str, *, denoise: bool) -> list[str]:
    """Returns the relative names of the files that a run may have, in load order."""
    order = [
        "base.gin",
        f"tasks/{task}.gin",
        f"models/{model}.gin",
        f"presets/{preset}/base.gin",
        f"presets/{preset}/{task}.gin",
        f"presets/{preset}/models/{model}.gin",
        f"presets/{preset}/{task}.{model}.gin",
    ]
    if denoise:
        order += ["denoise/base.gin", f"denoise/{task}.gin", f"presets/{preset}/denoise/{task}.gin"]
    return order


def load(
    paths: Sequence[Path],
    bindings: Sequence[str] = (),
    imports: Sequence[str] = (),
    rows: Callable[[], int] = lambda: 0,
) -> None:
    """Clears gin, then parses `paths` in order, then `bindings`.

    Args:
      paths: gin files; the first one declares every macro.
      bindings: texts like "Run.num_steps=100".
      imports: dotted modules or paths to .py files, imported first so that they register their
        configurables.
      rows: the training rows of the bound data set; called if a setting is given in epochs.

    Raises:
      UserError: a configurable, parameter or macro is unknown, a value is no gin value, or a module
        cannot be imported.
    """
    gin.clear_config()
    import_modules(imports)
    texts = [(str(path), disk.read_text(path)) for path in paths]
    overrides = [normalise(text) for text in bindings]
    texts += [(f"--set {text!r}", line) for text, line in zip(bindings, overrides, strict=True)]
    declared: set[str] = set()
    schedule, durations = _schedule(), {}
    for number, (where, text) in enumerate(texts):
        _parse(text, where)
        declared = declared or _macros()
        if number < len(paths):
            schedule = _follow(schedule, _count_steps(durations, _bound(text), rows))
    for name in sorted(_macros() - declared):
        sets = re.compile(rf"^\s*{re.escape(name)}\s*=", re.M)
        _check_macros({name}, declared, next((w for w, text in texts if sets.search(text)), "gin"))
    # An override of the run's length scales the whole schedule: `_follow` does so in one that ends
    # at 0, durations included.
    if _ends_at_zero():
        durations = {name: text for name, text in durations.items() if name.startswith("Run.")}
    overridden = _bound("\n".join(overrides))
    bound = _count_steps(durations, overridden, rows)
    _follow(schedule, bound)
    if schedule is None and "Optimizer.factors" in overridden:
        _end_decay(bound)
    references = set(re.findall(r"%([\w./]+)", gin.config_str())) - {"gin.REQUIRED"}
    _check_macros(references, declared, "a reference")


def load_operative(text: str, imports: Sequence[str] = ()) -> None:
    """Clears gin, then parses the text that `operative` returned for a run; reads no file.

    The text may be a stranger's, so it runs only code of this package and of `imports`.

    Raises:
      UserError: the text includes a file or imports another module; this version of the code lacks
        a name in the text, or a module is missing.
    """
    gin.clear_config()
    import_modules(imports)
    _parse(text, "the run's config", trusted=False)


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


class Setting(NamedTuple):
    """A setting of a run: its name, its value as gin text, and the file and line that bind it."""

    name: str
    value: str
    source: str


def settings(paths: Sequence[Path], bindings: Sequence[str] = ()) -> list[Setting]:
    """Returns every setting that was read and what binds it; call it after everything was built.

    Args:
      paths: the gin files that `load` was given.
      bindings: the same.
    """
    texts = [(_relative(path), disk.read_text(path)) for path in paths]
    bound: dict[str, tuple[object, str]] = {}
    for where, text in texts:
        bound |= {name: (value, f"{where}:{line}") for name, (value, line) in _bound(text).items()}
    overrides = "\n".join(map(normalise, bindings))
    bound |= {name: (value, "--set") for name, (value, _) in _bound(overrides).items()}
    given = set(map(short, _given()))
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
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return f"{where}: {value}"
    counted = type(value) is int and text.isdecimal() and int(text) != value
    return f"{where}: {value:,}, scaled" if counted else where


def _relative(path: Path) -> str:
    """Returns the name of a shipped gin file from its folder, of another as it was given."""
    return f"gin/{path.relative_to(GIN_DIR)}" if path.is_relative_to(GIN_DIR) else str(path)


def normalise(text: str) -> str:
    """Returns one `--set` binding as gin text, with the quotes that the shell removed.

    A value that can be written in several ways has one form.

    >>> normalise("Optimizer.learning_rate=1e-3")
    'Optimizer.learning_rate = 0.001'
    >>> normalise("Encoder.norm=post")
    "Encoder.norm = 'post'"
    >>> normalise("Run.num_steps=40 epochs")
    "Run.num_steps = '40 epochs'"
    >>> normalise("Optimizer.warmup=10%")
    "Optimizer.warmup = '10 %'"

    Raises:
      UserError: the text is not `name=value`, or the value is neither a gin value nor one word.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not re.fullmatch(r"[\w./]+", name) or len(value.splitlines()) != 1:
        raise UserError(f"--set expects Name.parameter=value, got {text!r}")
    outside = re.sub(r"'[^']*'|\"[^\"]*\"", "", value)  # of quotation marks
    if re.search(r"[,;]\s*[A-Za-z][\w./]*\s*=|^[^\[({]*[,;]$", outside):
        raise UserError(
            f"expected one binding, got {text!r}: separate bindings by spaces in --gin (make: "
            "GIN=), or give --set for each"
        )
    if value[0] not in "@%" and value not in ("True", "False", "None"):
        try:
            parsed = literal(value)
            if "{" not in value:  # a set has no order
                literal(repr(parsed))  # an infinite number has no literal
                value = repr(parsed)
        except ValueError:
            if duration := _DURATION.fullmatch(value):
                value = repr(f"{duration[1]} {duration[2]}")
            elif _BARE_WORD.fullmatch(value):
                value = repr(value)
            elif "@" not in value and "%" not in value:
                raise UserError(
                    f"--set {name} expects a number, string, list or tuple, got {value!r}"
                ) from None
    return f"{name} = {value}"


def literal(text: str) -> Any:
    """Returns the value of a Python literal.

    Raises:
      ValueError: the text is none.
    """
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:  # [[[..., {[]: 1}
        raise ValueError(f"no literal: {error}") from None


def short(name: str) -> str:
    """Returns the name of a binding without its module.

    >>> short("optim.Optimizer.warmup")
    'Optimizer.warmup'
    """
    scope, slash, setting = name.rpartition("/")
    return scope + slash + ".".join(setting.split(".")[-2:])


def split(binding: str) -> tuple[str, str]:
    """Returns the name that a binding sets and the text of its value.

    >>> split("Run.num_steps = 7")
    ('Run.num_steps', '7')
    """
    name, _, value = binding.partition("=")
    return name.strip(), value.strip()


def split_bindings(text: str) -> list[str]:
    """Splits several bindings at the white space outside quotes and brackets; quotes stay.

    White space around = splits nothing.

    >>> split_bindings('Run.num_steps = 100 A.b="x y" C.d=[1, 2] E.f=(0.9, 0.98)')
    ['Run.num_steps = 100', 'A.b="x y"', 'C.d=[1, 2]', 'E.f=(0.9, 0.98)']

    Raises:
      UserError: a quote or bracket is not closed.
    """
    words, depth = [""], 0
    for part in re.findall(r"""\s*=\s*|\s+|"[^"]*"|'[^']*'|.""", text):
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
                raise UserError(f"--import expects a module or a .py file, {name!r} does not exist")
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
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"--import {name}: {reason}") from None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _search_path(dirs: Sequence[Path]) -> list[Path]:
    # The user's folders come first, so that their files replace ours.
    return [*map(Path, dirs), GIN_DIR]


def _presets(task: str, dirs: Sequence[Path]) -> list[str]:
    """Returns the texts of the presets' files for a task."""
    paths = (_find(f"presets/{preset}/{task}.gin", dirs) for preset in known("presets", dirs))
    return [disk.read_text(path) for path in paths if path]


def _find(relative: str, dirs: Sequence[Path]) -> Path | None:
    return next((d / relative for d in _search_path(dirs) if (d / relative).is_file()), None)


def set_length(num_steps: int) -> None:
    """Binds the length of the run that is loaded; the learning rate follows (`_follow`)."""
    schedule = _schedule()
    gin.bind_parameter("Run.num_steps", num_steps)
    _follow(schedule, ())


def bind_missing(values: Mapping[str, object]) -> None:
    """Binds the parameters that nothing binds."""
    for name in values.keys() - _given():
        gin.bind_parameter(name, values[name])


def binds(configurable: str) -> bool:
    """Returns whether a parameter of a configurable is bound."""
    return any(name.startswith(f"{configurable}.") for name in _given())


def _schedule() -> tuple[int, int, int] | None:
    """Returns the bound steps of a run that ends at rate 0: all, warm-up, cycle; else None."""
    names = "Run.num_steps", "Optimizer.warmup", "Optimizer.steps_per_cycle"
    try:
        values = tuple(gin.query_parameter(name) for name in names)
    except ValueError:  # one is not bound
        return None
    fits = all(type(value) is int and value >= 0 for value in values)
    return values if fits and _ends_at_zero() else None


def _ends_at_zero() -> bool:
    """Returns whether the bound learning rate has a factor that ends at 0."""
    try:
        factors = str(gin.query_parameter("Optimizer.factors"))
    except ValueError:  # it is not bound
        return False
    return "cosine_decay" in factors or "linear_decay" in factors


def _end_decay(bound: Collection[str]):
    """Lets a decay that an override has turned on end with the run, unless `bound` has its end."""
    bind_missing({"Optimizer.steps_per_cycle": 0})
    if "Optimizer.steps_per_cycle" not in bound and (now := _schedule()):
        num_steps, warmup, _ = now
        gin.bind_parameter("Optimizer.steps_per_cycle", max(1, num_steps - warmup))


def _follow(
    before: tuple[int, int, int] | None, bound: Collection[str]
) -> tuple[int, int, int] | None:
    """Lets the learning rate follow the length of the run, unless the parsed text binds both.

    The warm-up keeps its share of the steps, and the cosine's cycle ends at the same share of them:
    otherwise a shorter run would end at a high rate, and a longer one would start the cosine again.

    Args:
      before: the schedule before the text was parsed.
      bound: the settings in steps that keep their values.

    Returns:
      The schedule from now on.
    """
    after = _schedule()
    if before is None or after is None or not before[0]:
        return after
    (steps, warmup, cycle), (new_steps, new_warmup, _) = before, after
    if "Optimizer.warmup" not in bound:
        new_warmup = max(min(warmup, 1), round(warmup * new_steps / steps))
        gin.bind_parameter("Optimizer.warmup", new_warmup)
    if "Optimizer.steps_per_cycle" not in bound:
        end = -(-(warmup + cycle) * new_steps // steps)
        gin.bind_parameter("Optimizer.steps_per_cycle", max(1, end - new_warmup))
    return _schedule()


def _count_steps(
    durations: dict[str, str], bound: Collection[str], rows: Callable[[], int]
) -> set[str]:
    """Binds durations in epochs or per cent of the run as steps, anew after each text.

    A later text may bind another data set, batch size or length of the run.

    Args:
      durations: those that earlier texts gave, by setting; updated.
      bound: the names that were just bound, by a file or by all overrides.
      rows: see `load`.

    Returns:
      The settings in steps among `bound`, and those of all durations.

    Raises:
      UserError: a text is no duration.
    """
    given = set(_STEPS).intersection(bound)
    durations |= {name: str(gin.query_parameter(name)) for name in given}
    for name in _STEPS:
        match = _DURATION.fullmatch(durations.get(name, ""))
        if not match or (match[2] == "%" and name == "Run.num_steps"):
            text = durations.pop(name, None)
            if text is not None and type(gin.query_parameter(name)) is str:
                share = " or '10 %'" if name != "Run.num_steps" else ""
                raise UserError(
                    f"{name} must be a whole number of steps, or a duration such as '40 epochs'"
                    f"{share}, got {text!r}"
                )
            continue
        percent = match[2] == "%"
        whole = _count("Run.num_steps" if percent else "Run.batch_size")
        if whole:  # otherwise a later text may bind it
            steps = float(match[1]) * (whole / 100 if percent else rows() / whole)
            least = 0 if name == "Run.num_steps" else 1  # a run of 0 steps is refused
            gin.bind_parameter(name, max(least, round(steps)))
    return given | set(durations)


def _count(name: str) -> int | None:
    """Returns the positive whole number that a parameter is bound to; None without one."""
    try:
        value = gin.query_parameter(name)
    except ValueError:
        return None
    return value if type(value) is int and value > 0 else None


def _given() -> set[str]:
    return set(_BOUND_NAME.findall(gin.config_str()))


def _macros() -> set[str]:
    return {name for name in _given() if "." not in name}


class OutsideCode(UserError):
    """Gin text would run code that this process has not imported."""


class _Names(config_parser.ParserDelegate):
    """Reads references and macros without looking them up."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        """Returns the name."""
        return scoped_configurable_name

    def macro(self, macro_name):
        """Returns the name."""
        return macro_name


def _bound(text: str) -> dict[str, tuple[object, int]]:
    """Returns value and line of all that gin text binds, by name however it spells it: `short`."""
    return {
        short(f"{one.scope}/{one.selector}.{one.arg_name}".strip("/.")): (
            one.value,
            one.location.line_num,
        )
        for one in config_parser.ConfigParser(text, _Names())
        if isinstance(one, config_parser.BindingStatement)
    }


def _refuse_outside_code(text: str) -> None:
    """Raises OutsideCode if gin text reads a file or imports a module that is not ours."""
    for statement in config_parser.ConfigParser(text, _Names()):
        if isinstance(statement, config_parser.IncludeStatement):
            raise OutsideCode(f"its config includes the file {statement.filename!r}: do not use it")
        if isinstance(statement, config_parser.ImportStatement):
            module = statement.module
            if module.partition(".")[0] != "lra_fnet" and module not in sys.modules:
                raise OutsideCode(
                    f"its config imports {module}, which is outside code: if you trust your copy, "
                    "name it with --import"
                )


def _parse(text: str, where: str, *, trusted: bool = True) -> None:
    try:
        if not trusted:
            _refuse_outside_code(text)
        gin.parse_config(text)
    except tokenize.TokenError:
        raise UserError(f"{where}: a bracket or a quotation mark is not closed") from None
    except KeyError as error:  # two classes have one name
        reason = " ".join(str(error.args[0]).split())
        raise UserError(
            f"{where}: {reason}: give your class another name, or @gin.configurable(module=...)"
        ) from None
    except (ValueError, SyntaxError, NameError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())
        reason = re.split(r" In bindings string| In file | Failed to parse", reason)[0]
        hint = _did_you_mean(reason)
        if "No configurable matching" in reason and trusted:
            hint += " If it is in a module of yours, name that with --import (make: IMPORT=)"
        raise UserError(f"{where}: {reason}{hint}") from None


def _did_you_mean(reason: str) -> str:
    """Returns a hint on the name that gin's message says is unknown."""
    names = [name for name in _given() if "." in name]
    if parameter := re.match(r"Configurable '(.+)' doesn't have a parameter named '(.+)'", reason):
        return did_you_mean(".".join(parameter.groups()), names)
    if owner := re.match(r"No configurable matching (?:reference )?'@?([\w.]+)", reason):
        return did_you_mean(owner[1], {name.rpartition(".")[0] for name in names})
    return ""


def _check_macros(names: set[str], declared: set[str], where: str) -> None:
    for name in sorted(names - declared):
        if where.startswith("--set"):
            same = sorted(short(given) for given in _given() if given.endswith(f".{name}"))
            hint = f" (did you mean {' or '.join(same)}?)" if same else did_you_mean(name, declared)
            raise UserError(
                f"{where}: expected Name.parameter=value{hint}; settings without a name: "
                f"{', '.join(sorted(declared - {'TASK'}))}"  # TASK is what --task binds
            )
        raise UserError(
            f"{where}: no macro {name}; base.gin declares {', '.join(sorted(declared))}"
            + did_you_mean(name, declared)
        )


def unknown(what: str, name: str, names: Sequence[str]) -> str:
    """Returns the error message for an unknown name; `what` says which kind of name it is."""
    hint = did_you_mean(name, names)
    return f"unknown {what} {name!r}{hint}; known {what}s: {', '.join(names)}"


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Returns " (did you mean NAME?)" for the closest candidate; "" if none is close."""
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
    """Returns the bindings in which two operative configs differ, sorted by name.

    A setting that one of them lacks has its default there, as the code that wrote it did not know
    the setting.
    """
    bound = [values(text) for text in (old, new)]
    pairs = {n: [v.get(n, "absent") for v in bound] for n in sorted(bound[0] | bound[1])}
    unequal = [Difference(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
    if any("absent" in difference for difference in unequal):
        for module in set(re.findall(r"^import (lra_fnet\.[\w.]+)", f"{old}\n{new}", re.M)):
            with contextlib.suppress(ImportError):  # another version's
                importlib.import_module(module)  # registers what has the defaults
    return [difference for difference in unequal if not _is_default(difference)]


def values(operative_text: str) -> dict[str, str]:
    """Returns the values in an operative config as gin text in one line, by name."""
    found = re.findall(r"^([\w./]+) = (?:\\\n)?(.*(?:\n    .*)*)", operative_text, re.M)
    return {name: re.sub(r"\n +", " ", text.strip()) for name, text in found}


def _is_default(difference: Difference) -> bool:
    """Returns whether a setting is absent from one config and has its default in the other."""
    if "absent" not in difference:
        return False
    owner, _, name = difference.name.rpartition(".")
    value = difference.old if difference.new == "absent" else difference.new
    try:
        parameters = inspect.signature(gin.get_configurable(owner.rpartition("/")[2])).parameters
        return literal(value) == parameters[name].default
    except (ValueError, KeyError):
        return False
