"""The devices that JAX finds for this process."""

import os

from lra_fnet.errors import UserError, one_line

_process: int | None = None  # that started JAX's backend
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
        types or random numbers, turn compilation off, or do not let a program run; this process was
        forked from one that had started it, and would hang.
    """
    global _process
    import jax  # late: the command line starts without it
    import numpy as np

    if _process not in (None, os.getpid()):
        raise UserError(
            "this process was forked from one that has used JAX, and would hang: start it with "
            'multiprocessing.get_context("spawn")'
        )

    for name, (value, effect) in _REQUIRED.items():
        if jax.config.values[name] != value:
            raise UserError(f"{name.upper()} must be {value}, since it {effect}: leave it out")
    try:
        jax.devices()
        _process = os.getpid()
    except (RuntimeError, AssertionError) as error:  # an unknown name, a platform without devices
        names = "JAX_PLATFORMS or JAX_PLATFORM_NAME"
        raise UserError(f"JAX finds no device; {names} may name others: {error}") from None
    try:
        np.asarray(jax.jit(jax.numpy.negative)(np.ones(2)) + 1)
    except Exception as error:  # of any setting for debugging
        raise UserError(
            f"JAX is set up so that it runs no program here ({one_line(error, 100)}): leave out "
            "its settings, such as JAX_TRANSFER_GUARD"
        ) from None


def cores_of_device() -> int:
    """Returns the cores of each device on a CPU; 1 with several processes, whose programs agree."""
    import jax

    several = jax.process_count() > 1
    return 1 if several else max(1, len(os.sched_getaffinity(0)) // jax.local_device_count())
