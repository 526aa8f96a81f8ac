"""Settings of JAX that a run does not take."""

import jax
import pytest

from lra_fnet.errors import UserError
from lra_fnet.machine import device
from lra_fnet.run import provenance


def test_settings_of_jax_that_change_types_or_random_numbers_are_refused(monkeypatch):
    for name, value in (("jax_enable_x64", True), ("jax_threefry_partitionable", False)):
        before = jax.config.values[name]
        jax.config.update(name, value)
        try:
            with pytest.raises(UserError, match=name.upper()):
                device.require()
        finally:
            jax.config.update(name, before)
    device.require()
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    assert provenance.of_process().versions["JAX_DEFAULT_MATMUL_PRECISION"] == "highest"
