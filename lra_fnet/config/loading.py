"""Loads gin texts and bindings, or the operative config of a run."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence

import gin
from gin import config as gin_config

from lra_fnet.config import schedule
from lra_fnet.config.bindings import normalise
from lra_fnet.config.gin_files import GinText
from lra_fnet.config.parsing import bound_in, bound_names, parse
from lra_fnet.config.user_code import import_modules
from lra_fnet.errors import UserError, unknown

_lock = threading.RLock()
# What `gin.clear_config` clears and parsing fills; gin has no function that gives it back.
_STATE = ("_CONFIG", "_CONFIG_PROVENANCE", "_OPERATIVE_CONFIG", "_SINGLETONS", "_IMPORTS")
_inside = False  # the block of an outer `alone`


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Lets one thread at a time use gin, which has one config per process. Also a decorator.

    In the end gin has the config again that the program around this package gave it.
    """
    global _inside
    with _lock:
        if _inside:
            yield
            return
        parts = [vars(gin_config)[name] for name in _STATE if name in vars(gin_config)]
        held, locked, _inside = [part.copy() for part in parts], gin.config_is_locked(), True
        try:
            yield
        finally:
            _inside = False
            for part, content in zip(parts, held, strict=True):
                part.clear()
                part.update(content)
            gin_config._set_config_is_locked(locked)


def load(
    texts: Sequence[GinText],
    bindings: Sequence[str] = (),
    imports: Sequence[str] = (),
    rows: Callable[[], int] = lambda: 0,
    stage: Callable[[int], int] = lambda steps: steps,
) -> None:
    """Clears gin, then parses `texts` in order, then `bindings`, and counts durations in steps.

    Args:
      texts: gin texts; the first one declares every macro.
      bindings: texts like "Run.num_steps=100".
      imports: dotted modules or paths to .py files, imported first so that they register their
        configurables.
      rows: returns the training rows of the bound data set; called for a setting in epochs.
      stage: returns the steps of this stage of training from the bound ones, which are of all.

    Raises:
      UserError: a configurable, parameter or macro is unknown, a value is no gin value, or a module
        cannot be imported.
    """
    gin.clear_config()
    import_modules(imports)
    overrides = [GinText(f"--set {text!r}", normalise(text)) for text in bindings]
    declared: set[str] = set()
    for where, text in (*texts, *overrides):
        parse(text, where)
        macros = {name for name in bound_names() if "." not in name}
        declared = declared or macros
        _check_macros(macros, declared, where)
    references = set(re.findall(r"%([\w./]+)", gin.config_str())) - {"gin.REQUIRED"}
    _check_macros(references, declared, "a reference")
    parts = [*(text for _, text in texts), "\n".join(text for _, text in overrides)]
    *bound, last = [{name: one.value for name, one in bound_in(p).items()} for p in parts]
    for name, value in schedule.steps(bound, last, rows, stage).items():
        gin.bind_parameter(name, value)


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


def _check_macros(names: set[str], declared: set[str], where: str) -> None:
    for name in sorted(names - declared):
        raise UserError(
            f"{where}: {unknown('macro', name, sorted(declared))}; a parameter needs its class, as "
            "in Run.num_steps"
        )
