"""The peak of a process's memory as Linux counts it; 0 where there is no /proc."""

import contextlib
import ctypes
import re
from pathlib import Path


def forget_peak() -> int:
    """Has the kernel count the peak from now on; returns the bytes that the process holds now.

    What glibc keeps of freed memory goes back to the kernel first, so that it counts when it is
    used again.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak()  # then only what lies above the peak so far is seen
    return _status("VmRSS")


def peak() -> int:
    """The most bytes that the process has held since the last `forget_peak`."""
    return _status("VmHWM")


def _status(name: str) -> int:
    """A field of /proc/self/status in bytes; 0 where there is none."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
