"""Settings of JAX that a run does not take, or records."""

import jax
import pytest

from lra_fnet.errors import UserError
from lra_fnet.machine import device
from lra_fnet.run import provenance


def test_settings_of_jax_that_a_run_does_not_take_are_refused():
    settings = {"enable_x64": True, "threefry_partitionable": False, "disable_jit": True}
    settings |= {"random_seed_offset": 5, "high_dynamic_range_gumbel": True}
    settings |= {"numpy_dtype_promotion": "strict"}
    for name, value in settings.items():
        name = f"jax_{name}"
        before = jax.config.values[name]
        jax.config.update(name, value)
        try:
            with pytest.raises(UserError, match=name.upper()):
                device.require()
        finally:
            jax.config.update(name, before)
    device.require()
    with jax.transfer_guard("disallow"), pytest.raises(UserError, match="JAX_TRANSFER_GUARD"):
        device.require()


def test_a_process_forked_from_one_that_uses_jax_is_refused(monkeypatch):
    """It would hang."""
    device.require()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(UserError, match="spawn"):
        device.require()


@pytest.mark.parametrize(("cores", "rows", "want"), [(2, 32, 2), (3, 32, 2), (3, 9, 3), (4, 7, 1)])
def test_as_many_cores_are_devices_as_divide_the_batch(monkeypatch, cores, rows, want):
    used = []
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(device.memory, "cores", lambda: cores)
    monkeypatch.setattr(device, "use", lambda number, exactly: used.append((number, exactly)))
    device.use_cores(rows)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    device.use_cores(rows)
    assert used == [(want, False)]


def test_precision_of_products_is_recorded():
    with jax.default_matmul_precision("float32"):
        assert provenance.of_process().versions["JAX_DEFAULT_MATMUL_PRECISION"] == "float32"
    assert "JAX_DEFAULT_MATMUL_PRECISION" not in provenance.of_process().versions
