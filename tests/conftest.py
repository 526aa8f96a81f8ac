"""Settings that every test runs under: silence is made impossible."""

import os
import tempfile

# One cache of compiled programs for all workers and the processes they start: the same tiny models
# are compiled by dozens of tests. Set before jax is imported; gone with the session.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="lra-fnet-jax-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"

# Half of the time goes into compiling small programs once; without LLVM's optimisations that takes
# two thirds of it. The commands that tests start are compiled as for a user.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"

import gin
import jax
import pytest

jax.devices()  # XLA has read its flags
os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].rpartition(" ")[0]

jax.config.update("jax_numpy_rank_promotion", "raise")  # [B] + [B, 1] is an error, not [B, B]
jax.config.update("jax_debug_nans", True)


@pytest.fixture(autouse=True)
def clean_gin():
    """Gin is global: no test may see the bindings of another."""
    gin.clear_config()
    yield
    gin.clear_config()
