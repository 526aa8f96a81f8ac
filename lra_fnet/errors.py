"""Exceptions that end a command with one line and without a traceback, and texts for them."""

import difflib
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """A mistake in the user's input: arguments, configuration, files, disk.

    Its text is one line that says what was expected, what was given, and what to do. The command
    line prints that line and exits with `code`.
    """

    code = 2


def one_line(error: object, longest: int | None = None) -> str:
    """Returns an error's text as one line, without the place of the call that gin adds.

    Args:
      error: an exception or a text; one without text gives the name of its class.
      longest: characters to keep; None for all.
    """
    text = " ".join(str(error).split("\n  In call to")[0].split())
    return text[:longest] or type(error).__name__


def out_of_memory(error: BaseException) -> str:
    """Returns what XLA, PyTorch or NumPy says of too little memory, as one line; else ""."""
    signs = ("OutOfMemory", "out of memory", "allocate memory", "RESOURCE_EXHAUSTED")
    text = f"{type(error).__name__}: {error}"
    full = isinstance(error, MemoryError) or any(sign in text for sign in signs)
    return f"out of device memory ({one_line(error, 120)})" if full else ""


def unknown(what: str, name: str, names: Sequence[str]) -> str:
    """Returns the error message for an unknown name; `what` says which kind of name it is."""
    hint = did_you_mean(name, names)
    return f"unknown {what} {name!r}{hint}; known {what}s: {', '.join(names)}"


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Returns " (did you mean NAME?)" for the closest candidate; "" if none is close."""
    close = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


class RunFailed(Exception):
    """A run that cannot continue: it diverged, or needs more memory than the device has.

    Its text is one line. The command line prints it and exits with `code`.

    Attributes:
      state: "diverged" or "OOM", as in result.json and the report.
      step: the optimizer step at which it happened, or None if unknown.
    """

    code = 1

    def __init__(self, text: str, state: str, step: int | None = None):
        super().__init__(text)
        self.state = state
        self.step = step


class Interrupted(Exception):
    """A run that a signal stopped after its checkpoint was saved.

    Attributes:
      signal: the signal's number; the process exits with 128 + signal.
      step: the optimizer step of the checkpoint.
    """

    def __init__(self, signal: int, step: int):
        super().__init__(f"stopped by signal {signal} at step {step}")
        self.signal = signal
        self.step = step
