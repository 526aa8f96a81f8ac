"""The folder of one run: its name, its lock, its result, and what it was made from."""

import contextlib
import datetime
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.machine import disk

SCHEMA = 1


def variant(overrides: Sequence[str], name: str | None = None) -> str | None:
    """NAME, or a readable slug and 8 hex digits of the sorted overrides; None without either.

    Raises:
      UserError: a NAME that cannot be a folder's.
    """
    if name:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise UserError(f"NAME expects letters, digits, '.', '_' and '-', got {name!r}")
        return name
    if not overrides:
        return None
    bindings = sorted(config.normalise(text) for text in overrides)
    digest = hashlib.sha256("\n".join(bindings).encode()).hexdigest()[:8]
    words = "_".join(text.partition(".")[2] or text for text in bindings)
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.")[:40].rstrip("-.")
    return f"{slug}-{digest}"


def path(
    root: Path, preset: str, task: str, model: str, seed: int, variant: str | None = None
) -> Path:
    """root/preset/task/model[+variant]/seed<k>."""
    return root / preset / task / (f"{model}+{variant}" if variant else model) / f"seed{seed}"


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Holds the folder for this process; the kernel frees it however the process ends.

    Raises:
      UserError: another process holds it, or the folder cannot be written.
    """
    file = folder / ".lock"
    with disk.writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = disk.try_lock(file)
    if handle is None:
        raise UserError(
            f"{folder} is in use by process {disk.holder(file)}: wait for it, stop it, or choose "
            "another --seed or --name"
        )
    with handle:
        yield


def in_use(folder: Path) -> bool:
    """Whether a process holds the folder's lock."""
    if not (folder / ".lock").exists():
        return False
    handle = disk.try_lock(folder / ".lock")
    if handle is None:
        return True
    handle.close()
    return False


def move_aside(folder: Path) -> Path:
    """Renames a run folder to one with the time in its name; returns the new path."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    target = folder.with_name(f".{folder.name}.moved-{now}")
    with disk.writable(folder):
        folder.rename(target)
    return target


def provenance() -> dict:
    """commit, dirty, versions and device of this process, as result.json records them."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "gin-config")
    versions = {name: importlib.metadata.version(name) for name in packages}
    revision, dirty = commit()
    return {
        "device": {
            "name": _device_name(),
            "platform": jax.default_backend(),
            "count": jax.device_count(),
            "processes": jax.process_count(),
            "cores": len(os.sched_getaffinity(0)),
        },
        "versions": {"python": platform.python_version(), **versions},
        "commit": revision,
        "dirty": dirty,
    }


def commit() -> tuple[str | None, bool | None]:
    """This checkout's commit and whether tracked files differ from it; None outside a checkout."""

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parents[2]), *arguments],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "-uno"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _device_name() -> str:
    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return found[1]
    return platform.processor() or platform.machine()
