"""Starts the command line: the command `lra-fnet`, and `python -m lra_fnet`."""

import gc
import io
import os
import sys

from lra_fnet.machine import signals


def main() -> int:
    """Prepares the process for a command and runs it; returns the exit code."""
    signals.handle(signals.stop_at_once)  # for the imports and for Python's own end, too
    _open_standard_streams()
    gc.set_threshold(100_000, 20, 20)  # imports make many objects and no garbage
    from lra_fnet import cli

    return cli.main()


def _open_standard_streams() -> None:
    """Opens those that are closed, so that no file gets their numbers.

    A character that a terminal does not have becomes a question mark.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open to the end)
        stream = getattr(sys, name)
        if mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
