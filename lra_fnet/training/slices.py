"""How many examples a program takes at a time, and whether a step fits the device's memory."""

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable

import jax
from jax.sharding import Mesh
from jax.stages import Compiled

from lra_fnet.errors import RunFailed, UserError, out_of_memory
from lra_fnet.experiment import Experiment
from lra_fnet.machine import progress
from lra_fnet.machine.device import cores_of_device
from lra_fnet.machine.memory import free_memory
from lra_fnet.models.heads import Classifier, Denoiser, Pretrainer
from lra_fnet.models.kernels import fastest
from lra_fnet.training import hosts

SLICE_SIZE = 1 << 17  # numbers [examples, L, D] of a slice for each core, 0.5 MB in float32
FITTED = "microbatch that fits"  # begins the name of a decision of `--fit`; see `fastest`


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
    return fastest.decide(what, choose, divisors)


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
    refuses by itself.

    Raises:
      RunFailed: with state "OOM".
    """
    needed, free = needed_bytes(update, mesh), free_memory()
    if jax.default_backend() == "cpu" and not hosts.every(needed <= free):
        where = "" if needed > free else " here, less in another process"
        raise RunFailed(
            f"out of memory: a step needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are "
            f"free{where}: set --fit (in a sweep, Run.microbatch), Encoder.remat=True, a smaller "
            "batch or model",
            "OOM",
        )


def fit(
    experiment: Experiment, mesh: Mesh, compiled: Callable[[int], Compiled], state_bytes: int
) -> int:
    """Returns the largest microbatch whose step fits the device.

    The candidates divide the batch, are multiples of the number of devices and at most
    Run.microbatch or, if that is 0, the slice of a run without --fit (`microbatch_of`), which on a
    CPU is the fastest one. The largest is compiled first, then the others are bisected. A
    step must fit together with the copy of the state that a checkpoint takes.

    Args:
      experiment: the experiment to fit.
      mesh: the devices.
      compiled: compiles the update for a microbatch.
      state_bytes: size of the state.

    Raises:
      RunFailed: if not even the smallest candidate fits.
      UserError: if there is no candidate.
    """
    run, free = experiment.run, free_bytes(mesh)
    most = microbatch_of(experiment, mesh.size)
    sizes = [n for n in range(most, 0, -1) if run.batch_size % n == 0 and n % mesh.size == 0]
    if experiment.model.encoder.batch_norm is not None:
        sizes = [most]
    if not sizes:
        raise UserError(
            f"--fit expects a Run.microbatch ({most}) of at least the number of devices "
            f"({mesh.size}), which must divide the batch of {run.batch_size}: leave it out"
        )

    @functools.cache
    def needed_with(size: int) -> int:
        try:
            return needed_bytes(compiled(size), mesh) + state_bytes
        except jax.errors.JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
            return free + 1

    def fits(size: int) -> bool:
        return hosts.every(needed_with(size) <= free)

    best = 0 if fits(sizes[0]) else bisect.bisect_left(sizes, True, 1, key=fits)
    size = sizes[min(best, len(sizes) - 1)]
    needed = needed_with(size)
    if best == len(sizes):
        raise RunFailed(
            f"out of memory: a step in slices of {size} needs {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free: set Encoder.remat=True or a smaller model",
            "OOM",
        )
    slices = f"in {run.batch_size // size} slices of {size}" if size < run.batch_size else "whole"
    progress.say(
        f"the batch of {run.batch_size} fits {slices}: {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB"
    )
    return size


def fitted(experiment: Experiment, mesh: Mesh, choose: Callable[[], int | None]) -> Experiment:
    """Returns the experiment with the microbatch that fits: the run's decision, or else `choose`'s.

    Raises:
      UserError: the decision is no size of a slice of this batch.
    """
    known = range(1, experiment.run.batch_size + 1)
    size = fastest.decide(f"{FITTED} {mesh.size} device(s)", choose, known)
    return sliced(experiment, size)


def fitted_before() -> int | None:
    """Returns the microbatch that `--fit` found for this run, on any number of devices, if any."""
    sizes = [size for what, size in fastest.made().items() if what.startswith(FITTED)]
    return sizes[-1] if sizes else None


def sliced(experiment: Experiment, microbatch: int) -> Experiment:
    """Returns the experiment with another microbatch."""
    run = dataclasses.replace(experiment.run, microbatch=microbatch)
    return dataclasses.replace(experiment, run=run)


def free_bytes(mesh: Mesh) -> int:
    """Returns how many bytes a device may still take."""
    stats = mesh.local_devices[0].memory_stats()
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else free_memory()


def needed_bytes(update: Compiled, mesh: Mesh) -> int:
    """Returns the bytes that a program takes of a device's memory; simulated devices share it."""
    simulated = len(mesh.local_devices) if jax.default_backend() == "cpu" else 1
    return planned_bytes(update) * simulated


def planned_bytes(compiled: Compiled) -> int:
    """Returns XLA's account of a program's arguments, outputs and temporaries; 0 without one."""
    plan = compiled.memory_analysis()
    if plan is None:
        return 0
    outputs = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.argument_size_in_bytes + outputs + plan.temp_size_in_bytes
