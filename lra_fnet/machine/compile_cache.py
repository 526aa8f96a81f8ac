"""Compiled programs kept on disk, so that a second start does not compile again.

It is JAX's persistent cache. A program's key is made from its text, the versions, the flags and the
device, of a CPU the instructions that it has: machines may share a folder. What comes from the
cache is the program that was compiled, so a run's numbers are the same with and without it.
"""

import os
import tempfile
import time
from pathlib import Path


def use() -> None:
    """Turns the cache on, for this process and those that it starts; call it before jax.

    The folder is JAX_COMPILATION_CACHE_DIR, or else lra-fnet/jax in the user's cache folder.
    JAX_ENABLE_COMPILATION_CACHE=false turns it off, as for any program that uses JAX. A folder that
    cannot be written is told in one line, and nothing is kept.
    """
    if os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() in ("false", "0"):
        return
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(_user_folder())
    if "://" not in folder and (reason := _refusal(Path(folder))):
        from lra_fnet.machine import progress

        progress.say(
            f"compiled programs are not kept: {folder} cannot be written ({reason}); "
            "JAX_COMPILATION_CACHE_DIR names another folder"
        )
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    # The small programs around the update take as long together as the update itself.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lra-fnet" / "jax"


def _refusal(folder: Path) -> str | None:
    """Why no file can be made in the folder; None where one can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


class Timer:
    """A context manager around a compilation; its text is "compiled in 12.3 s", say."""

    def __enter__(self):
        import jax

        self._events: list[str] = []
        jax.monitoring.register_event_listener(self._note)
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *_):
        import jax

        self.seconds = time.perf_counter() - self._begun
        jax.monitoring.unregister_event_listener(self._note)

    def _note(self, event, **_):
        self._events.append(event)

    @property
    def from_cache(self) -> bool:
        """Whether the cache held what was compiled."""
        hits, misses = (
            f"/jax/compilation_cache/cache_{kind}" in self._events for kind in ("hits", "misses")
        )
        return hits and not misses

    def __str__(self) -> str:
        cached = " (from the cache)" if self.from_cache else ""
        return f"compiled in {self.seconds:.1f} s{cached}"
