"""Handles the signals that ask a process to stop: Ctrl-C, SIGTERM, and the end of a terminal."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handled(handler: Callable | signal.Handlers) -> Iterator[dict[int, Any]]:
    """Gives the stopping signals to a handler in the block; yields the handlers before, by signal.

    Does nothing outside of the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    before = handle(handler)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old or signal.SIG_DFL)


def handle(handler: Callable | signal.Handlers) -> dict[int, Any]:
    """Gives the stopping signals to a handler; returns the handlers before, by signal.

    SIGHUP stays ignored under nohup.
    """
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    return {number: signal.signal(number, handler) for number in STOPPING if number not in ignored}


class Stop(contextlib.ExitStack):
    """Notes SIGINT, SIGTERM or SIGHUP for the block; a second SIGINT ends the process at once.

    In a Python session, which is not ours to end, it raises KeyboardInterrupt instead. A second
    SIGTERM does nothing: schedulers send several, and SIGKILL in the end.

    Args:
      then: called within the first signal.
    """

    signal: int | None = None

    def __init__(self, then: Callable[[], None] = lambda: None):
        super().__init__()
        self._then = then

    def __enter__(self):
        self._before = self.enter_context(handled(self._note))
        return super().__enter__()

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal was noted."""
        if self.signal is not None:
            raise KeyboardInterrupt(self.signal)

    def _note(self, number, frame):
        if self.signal is None:
            self.signal = number
            os.write(2, b"\nstopping: saving after the step in progress (Ctrl-C again: stop now)\n")
            self._then()
        elif number == signal.SIGINT:
            if self._before[number] is signal.default_int_handler:
                signal.default_int_handler(number, frame)
            end(128 + number, "")


def stop_at_once(number: int, frame=None) -> NoReturn:
    """Ends the process with one line, outside of the training loop, where nothing is to be saved.

    Raises no exception: Python drops one that is raised in a callback of its garbage collector, and
    one that is raised in a callback of XLA's compiler crashes the process. Nothing is lost that
    SIGKILL would not lose.
    """
    end(128 + number, "stopped")


def end(code: int, text: str) -> NoReturn:
    """Prints one line, shows the cursor that a progress bar hides, and ends the process."""
    restore = "\r\x1b[?25h\x1b[K" if sys.__stderr__ and sys.__stderr__.isatty() else ""
    with contextlib.suppress(OSError):
        os.write(2, (restore + (f"lra-fnet: {text}\n" if text else "")).encode())
    os._exit(code)
