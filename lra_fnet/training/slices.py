"""How many examples a program takes at a time, and whether a step fits the device's memory."""

import math

import jax
from jax.sharding import Mesh
from jax.stages import Compiled

from lra_fnet.errors import RunFailed
from lra_fnet.experiment import Experiment
from lra_fnet.machine.device import cores_of_device
from lra_fnet.machine.memory import free_memory
from lra_fnet.models.heads import Classifier, Denoiser, Pretrainer
from lra_fnet.models.kernels import fastest

SLICE_SIZE = 1 << 17  # numbers [examples, L, D] of a slice for each core, 0.5 MB in float32


def rows_at_once(
    model: Classifier | Denoiser | Pretrainer, rows: int, row: tuple[int, ...], *, train: bool
) -> int:
    """Returns how many examples a program takes at a time if Run.microbatch is 0.

    An accelerator takes all. On a CPU, a slice of SLICE_SIZE numbers per core and sublayer stays in
    the caches, which is faster and takes several times less memory. It has two examples at least:
    what is computed once per slice, such as a long convolution's spectrum, costs less, and XLA's
    reductions for the taps of a convolution are several times slower with one.

    Args:
      model: the model that is applied to them.
      rows: number of examples on a device.
      row: shape of one example's tokens, [L] or [2, L].
      train: whether a gradient is taken.

    Returns:
      A divisor of `rows`.
    """
    dim = model.encoder.dim
    divisors = [n for n in range(1, rows + 1) if rows % n == 0]

    def choose():
        if jax.default_backend() != "cpu":
            return rows
        least = max(2, SLICE_SIZE * cores_of_device() / (math.prod(row) * dim))
        return next((n for n in divisors if n >= least), rows)

    what = f"rows of {'gradient' if train else 'score'} slices of {rows}"
    return fastest.decide(what, choose)


def microbatch_of(experiment: Experiment, devices: int) -> int:
    """Returns how many examples a step differentiates at a time, over all devices.

    BatchNorm takes all of them: its statistics are those of the whole batch.
    """
    run = experiment.run
    if experiment.model.encoder.batch_norm is not None:
        return run.batch_size
    row = experiment.task.row_shape
    share = run.batch_size // devices
    return run.microbatch or devices * rows_at_once(experiment.model, share, row, train=True)


def check(update: Compiled, mesh: Mesh) -> None:
    """Refuses a step that needs more memory than is free, on a CPU.

    There the kernel would grant the memory and then kill the process; an accelerator's allocator
    refuses by itself. With several processes, each counts its own; none waits for the others.

    Raises:
      RunFailed: with state "OOM".
    """
    if jax.default_backend() != "cpu":
        return
    needed = planned_bytes(update) * len(mesh.local_devices)  # simulated devices share it
    free = free_memory()
    if needed > free:
        raise RunFailed(
            f"out of memory: a step needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: set "
            "a smaller Run.microbatch, Encoder.remat=True, a smaller batch or model",
            "OOM",
        )


def planned_bytes(compiled: Compiled) -> int:
    """Returns XLA's account of a program's arguments, outputs and temporaries; 0 without one."""
    plan = compiled.memory_analysis()
    if plan is None:
        return 0
    outputs = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.argument_size_in_bytes + outputs + plan.temp_size_in_bytes
