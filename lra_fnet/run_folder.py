"""The folder of one run: its name, its lock, its result, and what it was made from."""

import contextlib
import datetime
import errno
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from lra_fnet import config, disk
from lra_fnet.errors import UserError

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
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / ".lock", "a+")  # noqa: SIM115 (held until the run ends)
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise UserError(
                f"{folder} is in use by process {handle.read().strip() or 'unknown'}: "
                "wait for it, stop it, or choose another SEED or NAME"
            ) from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


def in_use(folder: Path) -> bool:
    """Whether a process holds the folder's lock."""
    try:
        handle = open(folder / ".lock", "r+")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turns a full or read-only disk into one line.

    Raises:
      UserError: the disk is full, read-only, or not ours to write.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error  # a library's own has no number
        text = _DISK.get(error.errno or 0, _OTHER).format(folder=folder, reason=reason)
        raise UserError(text) from None
    except Exception as error:  # a checkpoint library may wrap the system's error in its own
        text = str(error)
        for code in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
            if os.strerror(code) in text:
                raise UserError(_DISK[code].format(folder=folder)) from None
        raise


_DISK = {
    errno.ENOSPC: "no space left for {folder}: free some, then run the same command to resume",
    errno.EDQUOT: "the disk quota is used up for {folder}: free some, then run the same command",
    errno.EROFS: "{folder} is on a read-only file system: choose another folder with RUNS=",
    errno.EACCES: "{folder} is not writable by this user: choose another folder with RUNS=",
    errno.EPERM: "{folder} is not writable by this user: choose another folder with RUNS=",
}
_OTHER = "{folder} cannot be written ({reason}): choose another folder with RUNS="


def write_json(target: Path, value) -> None:
    """As `disk.replace`; what the disk refuses is one line."""
    with writable(target.parent):
        disk.replace(target, json.dumps(value, indent=1) + "\n")


def read_json(source: Path) -> dict | None:
    """The file's object, or None where there is no such file.

    Raises:
      UserError: it is no JSON.
    """
    try:
        return json.loads(source.read_text())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise UserError(f"{source} is not valid JSON ({error}): move it away") from None


def move_aside(folder: Path) -> Path:
    """Renames a run folder to one with the time in its name; returns the new path."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    target = folder.with_name(f".{folder.name}.moved-{now}")
    with writable(folder):
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
            ["git", "-C", str(Path(__file__).parent.parent), *arguments],
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
