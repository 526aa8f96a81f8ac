"""Free memory is the machine's, or what the cgroups around the process leave it."""

import os
from types import SimpleNamespace

import psutil
import pytest

from lra_fnet.machine import memory

CORES = len(os.sched_getaffinity(0))
JOB = "slurm/job_1/step_0"


def put(folder, limit):
    """Makes a cgroup with a limit that has 900 bytes in use, of which 500 are page cache."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("900\n")
    (folder / "memory.stat").write_text("anon 400\nactive_file 200\ninactive_file 300\n")


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        ({}, 10_000),
        ({JOB: "max", "slurm/job_1": 1000}, 600),
        ({"": 1500}, 1100),  # a container whose cgroup is mounted at the top
        ({JOB: 300}, 0),
    ],
)
def test_cgroups_limit_the_free_memory_and_page_cache_is_free(tmp_path, monkeypatch, limits, want):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    assert memory.free_memory(tmp_path) == 10_000
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::/{JOB}\n")
    for path, limit in limits.items():
        put(tmp_path / "sys/fs/cgroup" / path, limit)
    assert memory.free_memory(tmp_path) == want


@pytest.mark.parametrize(
    ("quota", "want"), [("max 100000", CORES), ("150000 100000", 1), ("1 2", 1)]
)
def test_cgroups_limit_the_cores(tmp_path, quota, want):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::/{JOB}\n")
    (tmp_path / "sys/fs/cgroup/slurm").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/slurm/cpu.max").write_text(f"{quota}\n")
    assert memory.cores(tmp_path) == want
