"""Files that are replaced in one step, and where a user's caches lie."""

import os
from pathlib import Path


def replace(path: Path, text: str) -> None:
    """Writes beside `path` and renames: a reader sees the old file or the whole new one.

    Raises:
      OSError: the disk refuses; the old file is as it was, and nothing else is left.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", newline="")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def user_cache() -> Path:
    """Where what can be made again is kept: $XDG_CACHE_HOME/lra-fnet, or ~/.cache/lra-fnet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lra-fnet"
