"""The devices that JAX finds for this process."""

import os

from lra_fnet.errors import UserError

_REQUIRED = {  # settings of JAX that would change results without a trace
    "jax_enable_x64": (False, "makes models float64"),
    "jax_disable_jit": (False, "turns off compilation, which training needs"),
    "jax_threefry_partitionable": (True, "changes all random numbers"),
    "jax_random_seed_offset": (0, "changes all random numbers"),
    "jax_high_dynamic_range_gumbel": (False, "changes random numbers"),
    "jax_numpy_dtype_promotion": ("standard", "refuses types that the models mix"),
}


def require() -> None:
    """Starts JAX's backend.

    Raises:
      UserError: JAX finds no device (of those that JAX_PLATFORMS names), or its settings change
        types or random numbers, or turn compilation off.
    """
    import jax  # late: the command line starts without it

    for name, (value, effect) in _REQUIRED.items():
        if jax.config.values[name] != value:
            raise UserError(f"{name.upper()} must be {value}, since it {effect}: leave it out")
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # an unknown name, a platform without devices
        raise UserError(f"JAX finds no device; JAX_PLATFORMS may name others: {error}") from None


def cores_of_device() -> int:
    """Returns the cores of each device on a CPU; 1 with several processes, whose programs agree."""
    import jax

    several = jax.process_count() > 1
    return 1 if several else max(1, len(os.sched_getaffinity(0)) // jax.local_device_count())
