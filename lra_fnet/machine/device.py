"""The devices that JAX finds for this process."""

import os

from lra_fnet.errors import UserError, one_line


def require() -> None:
    """Starts JAX's backend.

    Raises:
      UserError: JAX finds no device of the platforms that JAX_PLATFORMS names, or its settings
        change types or random numbers, or turn compilation off.
    """
    import jax  # late: the command line starts without it

    settings = jax.config.values
    if settings["jax_enable_x64"]:
        raise UserError("JAX_ENABLE_X64 makes models float64: leave it out")
    if not settings["jax_threefry_partitionable"]:
        raise UserError("JAX_THREEFRY_PARTITIONABLE=0 changes all random numbers: leave it out")
    if settings["jax_disable_jit"]:
        raise UserError("JAX_DISABLE_JIT turns compilation off, which training needs: leave it out")
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # an unknown name, a platform without devices
        named = os.environ.get("JAX_PLATFORMS")
        if not named:
            raise
        reason = f" ({one_line(error)})" if str(error) else ""
        raise UserError(
            f"JAX_PLATFORMS={named}: JAX finds no such device here{reason}: set it to cpu, or "
            "leave it out"
        ) from None
