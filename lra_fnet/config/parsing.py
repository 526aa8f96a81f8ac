"""Parses gin text, with a one-line error for every mistake in it, and says what is bound."""

import re
import sys
import tokenize
from collections.abc import Mapping

import gin
from gin import config_parser

from lra_fnet.config.bindings import short
from lra_fnet.errors import UserError, one_line

_BOUND_NAME = re.compile(r"^([\w./]+) =", re.MULTILINE)


class OutsideCode(UserError):
    """Gin text would run code that this process has not imported."""


def parse(text: str, where: str, *, trusted: bool = True) -> None:
    """Parses gin text.

    Args:
      text: the text.
      where: what an error message calls it.
      trusted: whether it may include files and import modules from outside the package.

    Raises:
      UserError: gin rejects the text; OutsideCode if it is not trusted and runs such code.
    """
    try:
        if not trusted:
            _refuse_outside_code(text)
        gin.parse_config(text)
    except tokenize.TokenError:
        raise UserError(f"{where}: a bracket or a quotation mark is not closed") from None
    except (KeyError, ValueError, SyntaxError, NameError, AttributeError, ImportError) as error:
        reason = one_line(error).strip("\"'")  # gin adds where it was, which `where` says
        reason = re.split(r" In bindings string| In file | Failed to parse", reason)[0]
        if reason.startswith("malformed node"):
            reason = "expected a value: put texts in quotation marks, and @ before a class"
        if "No configurable matching" in reason and trusted:
            reason += " If it is in a module of yours, name that with --import"
        raise UserError(f"{where}: {reason}") from None


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


class _Names(config_parser.ParserDelegate):
    """Reads references and macros without looking them up."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        """Returns the name."""
        return scoped_configurable_name

    def macro(self, macro_name):
        """Returns the name."""
        return macro_name


def bound_in(text: str) -> dict[str, config_parser.BindingStatement]:
    """Returns the bindings of gin text, by name however it spells it: `short`."""
    return {
        short(f"{one.scope}/{one.selector}.{one.arg_name}".strip("/.")): one
        for one in config_parser.ConfigParser(text, _Names())
        if isinstance(one, config_parser.BindingStatement)
    }


def bound_names() -> set[str]:
    """Returns the names of all that is bound, as gin writes them."""
    return set(_BOUND_NAME.findall(gin.config_str()))


def bind_missing(values: Mapping[str, object]) -> None:
    """Binds the parameters that nothing binds."""
    for name in values.keys() - bound_names():
        gin.bind_parameter(name, values[name])
