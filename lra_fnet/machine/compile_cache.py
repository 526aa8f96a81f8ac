"""Keeps compiled programs on disk, so that a second start does not compile again.

The cache is JAX's persistent cache. The key of a program contains its text, the versions, the
flags and the device (for a CPU its instruction set), so machines may share a folder. The cache
returns the program that was compiled, so a run's numbers are the same with and without it.
"""

import os
import sys
import warnings

from lra_fnet.machine import disk


def use() -> None:
    """Turns the cache on, for this process and those that it starts.

    The folder is JAX_COMPILATION_CACHE_DIR, or else lra-fnet/jax in the user's cache folder.
    If it cannot be written, JAX keeps nothing. JAX_ENABLE_COMPILATION_CACHE=false turns the cache
    off, as for any program that uses JAX.
    """
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(disk.user_cache() / "jax")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder = os.path.expanduser(folder)
    # JAX compiles again what another process is writing, or was killed while it wrote.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    # Together, the small programs around the update take as long to compile as the update itself.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if "jax" in sys.modules:  # which has read the environment
        import jax

        seconds = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
