"""What every input must end in: a value or one documented line, in time, in its own folder."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from lra_fnet.errors import UserError

SECONDS = 20  # for one input; the slowest takes a fraction of a second

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {  # audit events that change the disk, and which of their arguments are paths
    "open": (0,),
    "os.chmod": (0,),
    "os.link": (0, 1),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.truncate": (0,),
}
_RUNS = ("os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen")
_allowed: Path | None = None  # while an input is read: the only folder that may change
_outside: list[str] = []


class Hang(Exception):
    """An input took too long."""


def _audit(event, arguments):
    """Notes writing outside the folder, and programs that are started."""
    if _allowed is None or (event not in _CHANGES and event not in _RUNS):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES):
        return
    for index in _CHANGES.get(event, ()):
        path = arguments[index]
        if isinstance(path, str | bytes | os.PathLike):
            place = Path(os.path.realpath(os.fsdecode(path)))
            if place.is_relative_to(_allowed) or place == Path(os.devnull):
                continue
            _outside.append(f"{event} {place}")
    if event in _RUNS:
        _outside.append(f"{event} {arguments[:2]}")


sys.addaudithook(_audit)


@contextlib.contextmanager
def folder():
    """Yields an empty folder, which is removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="lra-fnet-fuzz-")).resolve()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def watched(place: Path, *documented: type[Exception]):
    """Passes a UserError of one line and the documented exceptions; any other one fails.

    Args:
        place: the only folder in which files may be written.
        *documented: exceptions besides UserError that the docstring names.
    """
    global _allowed

    def hang(number, frame):
        raise Hang(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    _allowed = place
    try:
        yield
    except documented:
        pass
    except UserError as error:
        if len(str(error).strip().splitlines()) != 1:
            raise AssertionError(f"expected one line, got {str(error)!r}") from error
    finally:
        _allowed = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        outside, _outside[:] = list(_outside), []
        assert not outside, f"outside the folder: {outside}"
