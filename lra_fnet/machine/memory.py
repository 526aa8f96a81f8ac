"""Measures the memory that is free, in use, and was in use at the peak."""

import contextlib
import ctypes
import re
import resource
from pathlib import Path

import psutil


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
