"""Writes files completely or not at all, by one process at a time.

Everything that the package writes goes through this module: one way to replace a file, one lock,
one translation of disk errors into a line for the user.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from lra_fnet import settings
from lra_fnet.errors import UserError
from lra_fnet.machine.progress import say

_NAMES = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "EMFILE")
_REFUSALS = tuple(os.strerror(getattr(errno, name)) for name in _NAMES)


def replace(path: Path, content: str | bytes) -> None:
    """Writes a file in one step: a reader sees the old content or all of the new content.

    Raises:
      OSError: the disk refuses; the old file is unchanged and no other file remains.
    """
    data = content.encode() if isinstance(content, str) else content
    with partial(path) as beside, open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def partial(path: Path) -> Iterator[Path]:
    """Yields a hidden path next to `path` to write a file or a folder to.

    It replaces `path` if the block ends without an exception, and is removed otherwise. Removes
    what processes of this machine left that were killed while they wrote to the same path.
    """
    ours = f".{path.name}.{platform.node()}-"
    for left in path.parent.glob(f"{glob.escape(ours)}*"):
        process = left.name.removeprefix(ours)
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            remove(left)
    beside = path.with_name(f"{ours}{os.getpid()}")
    try:
        yield beside
        if path.is_dir():  # the system replaces files and empty folders only
            remove(path)
        os.replace(beside, path)
    finally:
        remove(beside)


def remove(path: Path) -> None:
    """Removes a file, a link (not what it names) or a folder with its contents, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any, option: str = "--runs") -> None:
    """Writes a JSON file in one step.

    Raises:
      UserError: the file cannot be written; see `writable`.
    """
    with writable(path.parent, option):
        replace(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path, kind: type = dict, *, cure: str = "move it away") -> Any:
    """Returns the content of a JSON file, or None if there is no such file.

    Args:
      path: the file.
      kind: the type of its value.
      cure: what to do about a damaged file, for the message.

    Raises:
      UserError: the file cannot be read, is not JSON, or holds something other than a `kind`.
    """

    def parse(text):
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError(f"expected a JSON {kind.__name__}, got a {type(value).__name__}")
        return value

    return _read(path, parse, cure)


def read_lines(path: Path, *, skip: bool = False) -> list[dict[str, Any]]:
    """Returns the objects of a JSON Lines file; a line that is still being written is skipped.

    Args:
      path: the file.
      skip: leaves out other lines that are not JSON objects: half a line of a killed process,
        which `append_line` has ended.

    Raises:
      UserError: the file cannot be read; a complete line is not JSON, unless it may be left out.
    """
    objects = []
    for line in (_read(path, str) or "").split("\n")[:-1]:
        try:
            objects.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            if not skip:
                raise UserError(f"{path} is damaged at {line[:40]!r}: move it away") from None
    return objects


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Appends a line to a JSON Lines file, after ending one that a kill left half written.

    Raises:
      UserError: the file cannot be written.
    """
    with writable(path.parent), open(path, "a+b", opener=_no_links) as file:
        half = file.tell() and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
        file.write(b"\n" * half + json.dumps(value).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_text(path: Path) -> str:
    """Returns the content of a text file, which must be there.

    Raises:
      UserError: the file is missing, cannot be read, or is not UTF-8.
    """
    text = _read(path, str, cure="save it as UTF-8, or name another")
    if text is None:
        raise UserError(f"{path} is missing: put it back, or name another")
    return text


def _read(path: Path, parse: Callable[[str], Any], cure: str = "move it away") -> Any:
    try:
        return parse(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): {cure}") from None


def sha256(path: Path) -> str:
    """Returns the sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def writable(target: Path, option: str = "--runs") -> Iterator[None]:
    """Turns disk errors (full, read-only, no permission) into a one-line UserError.

    Libraries wrap the system's error in their own, so the whole chain of exceptions is searched.

    Args:
      target: the file or folder that is written, for the message.
      option: the command-line option that chooses another folder.

    Raises:
      UserError: the block raised an exception that a disk error caused; other exceptions pass.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = _refusal(error)
        if reason is None:
            raise
        raise UserError(
            f"{target} cannot be written ({reason}): free space there, make it writable or choose "
            f"another folder with {option}"
        ) from None


def _refusal(error: BaseException | None) -> str | None:
    """Returns the operating system's error text from anywhere in a chain of exceptions."""
    while error is not None:
        if isinstance(error, OSError):
            return error.strerror or str(error)
        for reason in _REFUSALS:
            if reason in str(error):
                return reason
        error = error.__cause__ or error.__context__
    return None


def _no_links(name: str, flags: int) -> int:
    """Opens a file, but no link: in a stranger's folder it could name a file of the user."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def try_lock(path: Path, *, seconds: float = 0) -> IO[str] | None:
    """Locks a file for this process; returns None if another process (or this one) holds it.

    The lock is freed when the returned handle is closed or the process ends in any way.

    Args:
      path: the lock file.
      seconds: how long to try again before returning None: a process that only asks whether the
        lock is held has it for a moment.
    """
    handle = open(path, "a+", opener=_no_links)  # noqa: SIM115 (held open by the caller)
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= end:
                handle.close()
                return None
            time.sleep(0.05)
    handle.truncate(0)
    handle.write(f"{os.getpid()}\n")
    handle.flush()
    return handle


@contextlib.contextmanager
def lock(path: Path, waiting: str = "") -> Iterator[None]:
    """Holds the lock of a file for the block, after waiting for any other holder.

    Args:
      path: the lock file; its folder is made if need be.
      waiting: a line for the user, printed before waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = try_lock(path)
    if handle is None:
        if waiting:
            say(waiting)
        handle = try_lock(path, seconds=float("inf"))
    assert handle is not None
    with handle:
        yield


def user_cache() -> Path:
    """Returns the folder of our caches: $XDG_CACHE_HOME/lra-fnet, or ~/.cache/lra-fnet.

    For a user without a home folder it is one that nobody can write.
    """
    with contextlib.suppress(UserError):
        return settings.path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "lra-fnet"
    return Path(os.devnull, "lra-fnet")
