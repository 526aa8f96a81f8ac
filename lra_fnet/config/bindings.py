"""Reads and writes bindings as text: one, several, or those of an operative config."""

import ast
import contextlib
import re
from collections.abc import Callable
from typing import Any

from lra_fnet.errors import UserError

_BARE_WORD = re.compile(r"[A-Za-z_][\w.-]*")
DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(epochs?|%)")


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
    if value[0] not in "@%" and value not in ("True", "False", "None"):
        try:
            parsed = literal(value)
            if "{" not in value:  # a set has no order
                value = repr(parsed)
        except ValueError:
            if duration := DURATION.fullmatch(value):
                value = repr(f"{duration[1]} {duration[2]}")
            elif _BARE_WORD.fullmatch(value):
                value = repr(value)
            elif "@" not in value and "%" not in value:
                raise UserError(
                    f"--set {name} expects a number, string, list or tuple, got {value!r}: a text "
                    f"""of several words needs two kinds of quotes, '{name}="..."'; --gin takes """
                    "several bindings"
                ) from None
    return f"{name} = {value}"


def one_form(override: str) -> str:
    """Returns a binding in the form in which equal ones are equal, or as it is if it has none.

    >>> one_form('Encoder.pooling = "cls"')
    "Encoder.pooling='cls'"
    """
    with contextlib.suppress(UserError):
        return normalise(override).replace(" = ", "=", 1)
    return override


def literal(text: str) -> Any:
    """Returns the value of a Python literal.

    Raises:
      ValueError: the text is not a literal.
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
    return _split(text, str.isspace)


def split_names(text: str) -> list[str]:
    """Splits names at the commas outside quotes and brackets, which a name's binding may have.

    >>> split_names("fnet,fnet:MIXERS=(@Fourier,@Attention)")
    ['fnet', 'fnet:MIXERS=(@Fourier,@Attention)']

    Raises:
      UserError: a quote or bracket is not closed.
    """
    return _split(text, ",".__eq__)


def _split(text: str, splits: Callable[[str], bool]) -> list[str]:
    words, depth = [""], 0
    for part in re.findall(r"""\s*=\s*|\s+|"[^"]*"|'[^']*'|.""", text):
        depth += (part in "([{") - (part in ")]}")
        if part in ("'", '"'):
            depth = 1
            break
        if splits(part) and depth == 0:
            words.append("")
        else:
            words[-1] += part
    if depth:
        raise UserError(f"expected bindings with closed quotes and brackets, got {text!r}")
    return [word for word in words if word]


def values(operative_text: str) -> dict[str, str]:
    """Returns the values in an operative config as gin text in one line, by name."""
    found = re.findall(r"^([\w./]+) = (?:\\\n)?(.*(?:\n    .*)*)", operative_text, re.M)
    return {name: re.sub(r"\n +", " ", text.strip()) for name, text in found}
