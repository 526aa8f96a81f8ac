"""Measures the memory that is free, in use, and was in use at the peak."""

import contextlib
import ctypes
import re
import resource
from pathlib import Path

import psutil

from lra_fnet.errors import UserError

# Below these limits, libraries in C++ wait for ever or abort (measured: the smallest run has 2 GB
# of address space and 100 open files).
_LIMITS = {
    "-v": (resource.RLIMIT_AS, 3 << 30, "bytes of address space"),
    "-n": (resource.RLIMIT_NOFILE, 256, "open files"),
}


def check_limits() -> None:
    """Checks that the process may use what every run needs.

    Raises:
      UserError: `ulimit` leaves it too little.
    """
    for option, (number, least, what) in _LIMITS.items():
        limit = resource.getrlimit(number)[0]
        if limit != resource.RLIM_INFINITY and limit < least:
            raise UserError(
                f"expected a limit of at least {least:,} {what}, got {limit:,}: "
                f"raise it with ulimit {option}"
            )


def free_memory() -> int:
    """Returns the bytes this process may still take: the machine's, or its cgroup's if fewer."""
    free = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def device_bytes() -> tuple[int, int]:
    """Returns the bytes in use and at the peak on the first device; on a CPU, the process's."""
    import jax  # late: the command line starts without it

    stats = jax.local_devices()[0].memory_stats()
    if stats:
        return stats["bytes_in_use"], stats["peak_bytes_in_use"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return psutil.Process().memory_info().rss, peak


def forget_peak() -> int:
    """Makes Linux measure the process's peak from now on; returns the bytes in use now.

    First returns the memory that glibc has freed but kept to the kernel, so that it counts when it
    is used again.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak()  # then only memory above the peak so far is measured
    return psutil.Process().memory_info().rss


def peak() -> int:
    """Returns the most bytes in use since the last `forget_peak`, or 0 without /proc."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)
    return int(match[1]) * 1024 if match else 0
