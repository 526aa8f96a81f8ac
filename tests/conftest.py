"""Settings that every test runs under: silence is made impossible."""

import gin
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")  # [B] + [B, 1] is an error, not [B, B]
jax.config.update("jax_debug_nans", True)


@pytest.fixture(autouse=True)
def clean_gin():
    """Gin is global: no test may see the bindings of another."""
    gin.clear_config()
    yield
    gin.clear_config()
