"""The devices that JAX finds for this process."""

import contextlib
import os

from lra_fnet.errors import UserError, one_line
from lra_fnet.machine import memory

_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # for FFTs; products keep their threads
_WIDE = "--xla_cpu_prefer_vector_width=512"  # bits; XLA's own is 256, where a core has more too
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
        np.asarray(jax.jit(jax.numpy.negative)(np.ones(2)) + 1)
    except Exception as error:  # an unknown platform, one without devices, a setting for debugging
        raise UserError(
            f"JAX runs no program here ({one_line(error, 200)}): change or leave out its settings, "
            "such as JAX_PLATFORMS, JAX_PLATFORM_NAME or JAX_TRANSFER_GUARD"
        ) from None


def use(number: int, *, exactly: bool = True) -> None:
    """Divides a CPU into devices that share its cores, before JAX starts.

    Several devices have FFTs of one thread each, whose bits do not depend on the number of cores,
    and vectors of 512 bits.

    Args:
      number: of devices.
      exactly: whether JAX may not have another number, such as that of its accelerators.

    Raises:
      UserError: it has another number; see `require`.
    """
    import jax

    flags = os.environ.get("XLA_FLAGS", "")
    with contextlib.suppress(RuntimeError):  # it has started
        jax.config.update("jax_num_cpu_devices", number)
        os.environ["XLA_FLAGS"] = f"{flags} {_ONE_THREAD} {_WIDE}".strip() if number > 1 else flags
    require()
    if jax.default_backend() != "cpu":
        os.environ["XLA_FLAGS"] = flags
    if exactly and jax.local_device_count() != number:
        raise UserError(
            f"expected {number} devices, JAX has {jax.local_device_count()}: on a CPU, choose "
            "before it starts; of accelerators, with CUDA_VISIBLE_DEVICES"
        )


def use_cores(rows: int) -> None:
    """Makes as many cores devices of a CPU as divide a batch of rows.

    An environment that gives the number of devices keeps it.
    """
    if "device_count" in os.environ.get("XLA_FLAGS", "") or "JAX_NUM_CPU_DEVICES" in os.environ:
        require()
    else:
        use(max(n for n in range(1, memory.cores() + 1) if rows % n == 0), exactly=False)


def threads() -> int:
    """Returns how many threads an FFT may use on a CPU, those of all devices together."""
    one = _ONE_THREAD in os.environ.get("XLA_FLAGS", "")
    return 1 if one else len(os.sched_getaffinity(0))


def cores_of_device() -> int:
    """Returns the cores of each device on a CPU; 1 with several processes, whose programs agree."""
    import jax

    several = jax.process_count() > 1
    return 1 if several else max(1, len(os.sched_getaffinity(0)) // jax.local_device_count())
