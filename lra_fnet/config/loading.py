"""Loads gin files and bindings, or the operative config of a run."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gin

from lra_fnet.config.bindings import normalise, short
from lra_fnet.config.parsing import bound_in, bound_names, parse
from lra_fnet.config.schedule import apply_overrides, bound_schedule, count_steps, follow
from lra_fnet.config.user_code import import_modules
from lra_fnet.errors import UserError, did_you_mean
from lra_fnet.machine import disk

_lock = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Lets one thread at a time use gin, which has one config per process. Also a decorator."""
    with _lock:
        yield


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
    schedule, durations = bound_schedule(), {}
    for number, (where, text) in enumerate(texts):
        parse(text, where)
        declared = declared or _macros()
        if number < len(paths):
            schedule = follow(schedule, count_steps(durations, bound_in(text), rows))
    for name in sorted(_macros() - declared):
        sets = re.compile(rf"^\s*{re.escape(name)}\s*=", re.M)
        _check_macros({name}, declared, next((w for w, text in texts if sets.search(text)), "gin"))
    apply_overrides(schedule, durations, bound_in("\n".join(overrides)), rows)
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
    parse(text, "the run's config", trusted=False)


def _macros() -> set[str]:
    return {name for name in bound_names() if "." not in name}


def _check_macros(names: set[str], declared: set[str], where: str) -> None:
    for name in sorted(names - declared):
        if where.startswith("--set"):
            same = sorted(short(given) for given in bound_names() if given.endswith(f".{name}"))
            hint = f" (did you mean {' or '.join(same)}?)" if same else did_you_mean(name, declared)
            raise UserError(
                f"{where}: expected Name.parameter=value{hint}; settings without a name: "
                f"{', '.join(sorted(declared - {'TASK'}))}"  # TASK is what --task binds
            )
        raise UserError(
            f"{where}: no macro {name}; base.gin declares {', '.join(sorted(declared))}"
            + did_you_mean(name, declared)
        )
