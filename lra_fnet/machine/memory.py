"""Measures the memory that is free, in use, and was in use at the peak."""

import contextlib
import ctypes
import os
import re
import resource
from collections.abc import Iterator
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


def free_memory(root: Path = Path("/")) -> int:
    """Returns the bytes this process may still take: the machine's, or its cgroups' if fewer.

    Page cache counts as free: the kernel drops it before it refuses memory.
    """
    return min([psutil.virtual_memory().available, *_left_by_cgroups(root)])


def cores(root: Path = Path("/")) -> int:
    """Returns the cores this process may use: of its affinity, or of its cgroups' time if fewer."""
    most = len(os.sched_getaffinity(0))
    for place in _cgroups(root):
        with contextlib.suppress(OSError, ValueError):  # no such file; "max" is no limit
            quota, period = map(int, (place / "cpu.max").read_text().split())
            most = min(most, max(1, quota // period))
    return most


def _cgroups(root: Path) -> Iterator[Path]:
    """Yields the folders of the cgroups (v2) around this process, some of which may be missing."""
    top = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        path = (root / "proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
        yield from (top / path, *(top / path).parents)  # a container may lack the innermost


def _left_by_cgroups(root: Path) -> Iterator[int]:
    """Yields the bytes that each cgroup around this process leaves it, if it has a limit."""
    for place in _cgroups(root):
        with contextlib.suppress(OSError, ValueError):  # no such folder; "max" is no limit
            most = int((place / "memory.max").read_text())
            stat = dict(row.split() for row in (place / "memory.stat").read_text().splitlines())
            cached = int(stat["active_file"]) + int(stat["inactive_file"])
            yield max(0, most - int((place / "memory.current").read_text()) + cached)


def peak_bytes() -> int:
    """Returns the most bytes that the first device held; on a CPU, the process."""
    import jax  # late: the command line starts without it

    stats = jax.local_devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else peak()


def forget_peak() -> int:
    """Makes Linux measure the process's peak from now on; returns the bytes in use now.

    First returns the memory that glibc has freed but kept to the kernel, so that it counts when it
    is used again.
    """
    ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak()  # then only memory above the peak so far is measured
    return psutil.Process().memory_info().rss


def peak() -> int:
    """Returns the most bytes in use since the last `forget_peak`, or 0 if Linux does not say."""
    match = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(match[1]) * 1024 if match else 0
