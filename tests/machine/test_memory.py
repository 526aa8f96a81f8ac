"""Free memory is the machine's, or what the cgroups around the process leave it."""

from types import SimpleNamespace

import psutil
import pytest

from lra_fnet.machine import memory

# Sizes of page cache, of the cgroup itself and (in version 1) with those in it.
STAT = (
    "anon 400\nactive_file {}\ninactive_file {}\ntotal_active_file 200\ntotal_inactive_file 300\n"
)
JOB = "slurm/job_1/step_0"


def put(folder, version, limit):
    """Makes a cgroup with a limit that has 900 bytes in use, of which 500 are page cache."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
    for name, content in zip(names, (limit, 900), strict=True):
        (folder / f"memory.{name}").write_text(f"{content}\n")
    sizes = (1, 2) if version == 1 else (200, 300)
    (folder / "memory.stat").write_text(STAT.format(*sizes))


@pytest.mark.parametrize(
    ("version", "limits", "want"),
    [
        (2, {}, 10_000),
        (2, {JOB: "max", "slurm/job_1": 1000}, 600),
        (2, {"": 1500}, 1100),  # a container whose cgroup is mounted at the top
        (2, {JOB: 2000, "slurm": 1200}, 800),
        (2, {JOB: 300}, 0),
        (1, {"": 2**63 - 4096, "slurm/job_1": 1000}, 600),
    ],
)
def test_cgroups_limit_the_free_memory_and_page_cache_is_free(
    tmp_path, monkeypatch, version, limits, want
):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    assert memory.free_memory(tmp_path) == 10_000
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = {1: f"5:cpu,cpuacct:/other\n4:memory:/{JOB}\n0::/\n", 2: f"0::/{JOB}\n"}
    (tmp_path / "proc/self/cgroup").write_text(lines[version])
    for path, limit in limits.items():
        mount = "sys/fs/cgroup/memory" if version == 1 else "sys/fs/cgroup"
        put(tmp_path / mount / path, version, limit)
    assert memory.free_memory(tmp_path) == want
