"""The jitted programs: the state, the multi-step update, the scorer of a split.

On several devices, of one process or many, each computes on the rows that lie on it, by the program
of one device (`jax.shard_map`), and one all-reduce a step adds the gradients up. XLA's own
partitioning is not used: it gathers the whole batch on every device before each Fourier transform.
"""

import bisect
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lra_fnet import intervals, objective
from lra_fnet.errors import RunFailed, UserError
from lra_fnet.experiment import Experiment
from lra_fnet.machine import progress
from lra_fnet.machine.memory import free_memory
from lra_fnet.models.heads import Classifier
from lra_fnet.tasks import Arrays
from lra_fnet.train import hosts, pipeline

SLICE_SIZE = 1 << 19  # numbers [examples, L, D] of a slice on a CPU, 2 MB in float32
WIDE = 256  # D; a gradient in slices of a narrower model takes longer


@flax.struct.dataclass
class TrainState:
    """Everything that a step changes, and the model's constants (random features, say)."""

    step: jax.Array  # int32 []: updates so far
    params: dict
    constants: dict  # the variables that are not trained
    opt_state: optax.OptState


class StepLogs(NamedTuple):
    """Numbers of each step of a dispatch, float32 [capacity]."""

    loss: jax.Array  # mean cross-entropy of the batch, nats
    correct: jax.Array  # examples
    grad_norm: jax.Array  # global norm before clipping
    learning_rate: jax.Array


def keys(seed: int) -> tuple[jax.Array, jax.Array]:
    """The keys of the initial parameters and of all dropout."""
    init_key, dropout_key = jax.random.split(jax.random.key(seed, impl="threefry2x32"))
    return init_key, dropout_key


def part_key(key: jax.Array, part) -> jax.Array:
    """The key of one part of a batch whose parts have equally many rows.

    An array [rows, ...] drawn with it has the bits that the part's rows have in the array of the
    whole batch, drawn with `key`: threefry makes each entry's bits from its index alone. So what is
    drawn for an example depends neither on the number of devices nor on the microbatch. What is
    drawn once for all examples has no rows: take `jax.random.key_data(key)[:2]` as its key.

    Args:
      key: a threefry2x32 key.
      part: integer [], which part.
    """
    part = jnp.asarray(part, jnp.uint32)[None]
    return jax.random.wrap_key_data(
        jnp.concatenate([jax.random.key_data(key), part]), impl=_PART_OF_A_BATCH
    )


def _part_bits(key, bit_width, shape):
    """As jax's threefry2x32 at [parts, *shape], of which this is number key[2]."""
    if not shape:
        return _THREEFRY.random_bits(key[:2], bit_width, shape)
    rows = key[2] * np.uint32(shape[0]) + jnp.arange(shape[0], dtype=jnp.uint32)
    size = math.prod(shape[1:])
    high, low = _multiply(rows[:, None], size)  # the index of each row's first entry, 64 bits
    column = jnp.arange(size, dtype=jnp.uint32)[None]
    index = low + column
    high = (high + (index < low)).reshape(shape)
    first, second = jax.extend.random.threefry2x32_p.bind(
        key[0], key[1], high, index.reshape(shape)
    )
    if bit_width == 64:
        return first.astype(jnp.uint64) << np.uint64(32) | second.astype(jnp.uint64)
    return (first ^ second).astype(f"uint{bit_width}")


def _multiply(a, b: int):
    """The upper and the lower 32 bits of a product of 32-bit numbers."""
    a1, a0, b1, b0 = a >> 16, a & 0xFFFF, np.uint32(b >> 16), np.uint32(b & 0xFFFF)
    low = a0 * b0
    middle = a1 * b0 + (low >> 16)
    other = a0 * b1 + (middle & 0xFFFF)
    return a1 * b1 + (middle >> 16) + (other >> 16), (other << 16) | (low & 0xFFFF)


_THREEFRY: Any = jax.extend.random.threefry_prng_impl
_PART_OF_A_BATCH = jax.extend.random.define_prng_impl(
    key_shape=(3,),  # those of threefry2x32, and the part
    seed=lambda seed: jnp.pad(_THREEFRY.seed(seed), (0, 1)),
    split=lambda key, shape: jnp.concatenate(
        [_THREEFRY.split(key[:2], shape), jnp.broadcast_to(key[2:], (*shape, 1))], axis=-1
    ),
    random_bits=_part_bits,
    fold_in=lambda key, data: jnp.concatenate([_THREEFRY.fold_in(key[:2], data), key[2:]]),
    name="part_of_a_batch",
    tag="part",
)


def initial_state(experiment: Experiment, seed: int) -> TrainState:
    """Step 0, made in one compiled program."""
    ids, mask = experiment.abstract_inputs(1)

    @jax.jit
    def init(key):
        variables = dict(experiment.model.init(key, ids, mask, train=False))
        params = variables.pop("params")
        opt_state = experiment.optimizer.transform().init(params)
        return TrainState(jnp.zeros((), jnp.int32), params, variables, opt_state)

    return init(keys(seed)[0])


def rows_at_once(model: Classifier, rows: int, row: tuple[int, ...], train: bool) -> int:
    """How many examples a program takes at a time where nothing is set: all but on a CPU.

    There a slice of SLICE_SIZE numbers a sublayer stays in the caches: several times less memory,
    and faster (README, "Speed and memory"); of narrow models only without gradients.

    Args:
      model: what takes them.
      rows: examples of a device.
      row: shape of the tokens of one, [L] or [2, L].
      train: whether a gradient is taken.

    Returns:
      A divisor of `rows`.
    """
    dim = model.encoder.dim
    if jax.default_backend() != "cpu" or (train and dim < WIDE):
        return rows
    least = SLICE_SIZE / (math.prod(row) * dim)
    return next((n for n in range(1, rows) if rows % n == 0 and n >= least), rows)


def logits(model: Classifier, variables, values, lengths) -> jax.Array:
    """Logits [B, classes] of the rows of a `pipeline.Batch`, without dropout."""
    rows = values.shape[0]
    held = rows_at_once(model, rows, values.shape[1:], train=False)

    def apply(part) -> jax.Array:
        values, lengths = part
        ids, mask = pipeline.tokens(values, lengths, model.zero_is_padding)
        return jnp.asarray(model.apply(variables, ids, mask, train=False))

    if held == rows:
        return apply((values, lengths))
    slices = (x.reshape(-1, held, *x.shape[1:]) for x in (values, lengths))
    return jax.lax.map(apply, tuple(slices)).reshape(rows, -1)


def make_gradient(model: Classifier, microbatch: int = 0, mesh: Mesh | None = None) -> Callable:
    """(params, constants, batch, key) -> gradient of the mean loss, metrics.Sums of the batch.

    With a microbatch the batch is taken in slices of so many examples, whose gradients are summed:
    the full batch's gradient, dropout included, but for rounding, with the memory of a slice. 0 is
    as `rows_at_once` says. On several devices a slice has rows of each device's share, so no row
    moves.

    Raises:
      UserError: a microbatch that does not divide by the number of devices.
    """
    devices = mesh.size if mesh else 1
    if microbatch % devices:
        raise UserError(
            f"Run.microbatch ({microbatch}) must be divisible by the number of devices ({devices})"
        )

    def loss_fn(params, constants, batch, key):
        ids, mask = pipeline.tokens(batch.values, batch.lengths, model.zero_is_padding)
        logits = model.apply(
            {"params": params, **constants}, ids, mask, train=True, rngs={"dropout": key}
        )
        sums = objective.batch_sums(logits, batch.labels, batch.valid)
        return sums.loss, sums

    slope = jax.grad(loss_fn, has_aux=True)

    def share(params, constants, batch, key):
        """Gradient and sums over the rows of one device."""
        rows = batch.labels.shape[0]
        held = microbatch // devices or rows_at_once(model, rows, batch.values.shape[1:], True)
        parts = rows // held
        if devices * parts == 1:
            return slope(params, constants, batch, key)
        first = parts * jax.lax.axis_index("data") if devices > 1 else 0
        if parts == 1:
            return slope(params, constants, batch, part_key(key, first))
        slices = jax.tree.map(lambda x: x.reshape(parts, held, *x.shape[1:]), batch)

        def add(carry, numbered):
            number, part = numbered
            more = slope(params, constants, part, part_key(key, first + number))
            return jax.tree.map(jnp.add, carry, more), None

        start = (jax.tree.map(jnp.zeros_like, params), objective.Sums.zero())
        return jax.lax.scan(add, start, (jnp.arange(parts), slices))[0]

    def reduced(params, constants, batch, key):
        """The sums over all devices: one vector, so one all-reduce; counts are exact to 2^24."""
        vector, restore = ravel_pytree(share(params, constants, batch, key))
        return restore(jax.lax.psum(vector, "data"))

    whole, split = PartitionSpec(), PartitionSpec("data")
    if devices > 1:
        total = jax.shard_map(
            reduced,
            mesh=mesh,
            in_specs=(whole, whole, split, whole),
            out_specs=whole,
            check_vma=False,  # nothing is differentiated through it
        )
    else:
        total = share

    def gradient(params, constants, batch, key):
        grads, sums = total(params, constants, batch, key)
        return jax.tree.map(lambda g: g / batch.labels.shape[0], grads), sums

    return gradient


def microbatch_of(experiment: Experiment, devices: int) -> int:
    """Examples whose gradient a step holds at a time, on all devices together."""
    run = experiment.run
    row = experiment.abstract_inputs(1)[0].shape[1:]
    share = run.batch_size // devices
    return run.microbatch or devices * rows_at_once(experiment.model, share, row, train=True)


def make_update(experiment: Experiment, mesh: Mesh) -> Callable:
    """The jitted update (state, batches [capacity, B, ...], num_steps, key) -> (state, StepLogs).

    Runs the first num_steps of the batches in one dispatch. num_steps is an argument of the
    program, not a constant of it: the loop's body is compiled once and is the same for 1, 3 or 20
    steps a dispatch and for a ragged last one, so the numbers are the same bit for bit.
    The state is donated. Randomness depends on the key and the state's step alone.
    """
    optimizer = experiment.optimizer.transform()
    schedule = experiment.optimizer.schedule()
    gradient = make_gradient(experiment.model, experiment.run.microbatch, mesh)

    def one_step(state, batch, key):
        key = jax.random.fold_in(key, state.step)
        grads, sums = gradient(state.params, state.constants, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        logged = StepLogs(
            loss=sums.loss / sums.count,
            correct=sums.correct.astype(jnp.float32),
            grad_norm=optax.tree.norm(grads),
            learning_rate=schedule(state.step),
        )
        params = optax.apply_updates(state.params, updates)
        return state.replace(step=state.step + 1, params=params, opt_state=opt_state), logged

    def update(state, batches, num_steps, key):
        capacity = batches.labels.shape[0]

        def body(index, carry):
            state, table = carry
            batch = jax.tree.map(
                lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), batches
            )
            state, logged = one_step(state, batch, key)
            return state, jax.tree.map(lambda column, x: column.at[index].set(x), table, logged)

        table = StepLogs(*(jnp.zeros(capacity, jnp.float32) for _ in StepLogs._fields))
        return jax.lax.fori_loop(0, num_steps, body, (state, table))

    whole = NamedSharding(mesh, PartitionSpec())
    split = batch_sharding(mesh)
    return jax.jit(
        update,
        donate_argnums=0,
        in_shardings=(whole, split, whole, whole),
        out_shardings=(whole, whole),
    )


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled update of an experiment, and the devices and the key that it runs with."""

    experiment: Experiment
    mesh: Mesh
    update: jax.stages.Compiled  # see `make_update`
    key: jax.Array  # of all dropout

    @classmethod
    def compile(
        cls, experiment: Experiment, mesh: Mesh, batches, seed: int = 0, *, fits: bool = False
    ) -> "Program":
        """Compiles the update for these batches, before the state takes any memory.

        Args:
          experiment: the model, the optimizer and the microbatch.
          mesh: the devices.
          batches: arrays or shapes, [capacity, B, ...].
          seed: the run's; the key of all dropout depends on it.
          fits: chooses the largest microbatch whose step fits the device (`fit`).

        Raises:
          RunFailed: if a step needs more memory than is free.
        """
        if fits:
            experiment, update = fit(experiment, mesh, batches)
        else:
            update = compile_update(experiment, mesh, batches)
        return cls(experiment, mesh, update, keys(seed)[1])

    def initial_state(self, seed: int) -> TrainState:
        """Returns step 0 on all devices."""
        return jax.device_put(
            initial_state(self.experiment, seed), NamedSharding(self.mesh, PartitionSpec())
        )

    def place(self, batches: pipeline.Batch) -> pipeline.Batch:
        """Moves batches [capacity, B, ...] to the devices, B being this process's rows of each."""
        return spread(batches, batch_sharding(self.mesh))

    def steps(self, state: TrainState, batches, count: int) -> tuple[TrainState, StepLogs]:
        """Trains on the first `count` of the placed batches in one dispatch; donates the state."""
        return self.update(state, batches, np.int32(count), self.key)


def compile_update(experiment: Experiment, mesh: Mesh, batches) -> jax.stages.Compiled:
    """The update compiled for these batches, before the state takes any memory.

    Args:
      experiment: what `make_update` takes.
      mesh: the same.
      batches: arrays or shapes, [capacity, B, ...].

    Raises:
      RunFailed: on a CPU, when a step needs more memory than is free. There the kernel would grant
        it and then kill the process; an accelerator's allocator refuses by itself.
    """
    compiled = _compile(experiment, mesh, batches)
    needed, free = _needed_bytes(compiled, mesh), free_memory()
    if jax.default_backend() == "cpu" and hosts.agree(needed > free):
        raise RunFailed(
            f"out of memory: a step needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: set "
            "FIT=1 (--fit), Encoder.remat=True or a smaller model",
            "OOM",
        )
    return compiled


def fit(experiment: Experiment, mesh: Mesh, batches) -> tuple[Experiment, jax.stages.Compiled]:
    """The experiment with the largest microbatch whose step fits the device, and its update.

    Nothing else of the experiment changes. The candidates divide the batch, are multiples of the
    number of devices, and are at most Run.microbatch if that is set. The largest is compiled first,
    then the rest is bisected. A step must fit beside the copy of the state that a checkpoint takes.

    Args:
      experiment: what `make_update` takes.
      mesh: the same.
      batches: arrays or shapes, [capacity, B, ...].

    Raises:
      RunFailed: not even the smallest candidate fits.
    """
    run = experiment.run
    most = microbatch_of(experiment, mesh.size)
    sizes = [n for n in range(most, 0, -1) if run.batch_size % n == 0 and n % mesh.size == 0]
    free = _free_bytes(mesh)
    state = jax.eval_shape(lambda: initial_state(experiment, 0))
    copy = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    found: dict[int, tuple[Experiment, jax.stages.Compiled]] = {}
    needed = 0

    def fits(size: int) -> bool:
        nonlocal needed
        candidate = dataclasses.replace(experiment, run=dataclasses.replace(run, microbatch=size))
        try:
            found[size] = candidate, _compile(candidate, mesh, batches)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            needed = free + 1
        else:
            needed = _needed_bytes(found[size][1], mesh) + copy
        return hosts.agree(needed <= free)

    best = 0 if fits(sizes[0]) else bisect.bisect_left(sizes, True, 1, key=fits)
    if best == len(sizes):
        raise RunFailed(
            f"out of memory: a step in slices of {sizes[-1]} needs {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free: set Encoder.remat=True or a smaller model",
            "OOM",
        )
    size = sizes[best]
    needed = _needed_bytes(found[size][1], mesh) + copy
    slices = f"in {run.batch_size // size} slices of {size}" if size < run.batch_size else "whole"
    progress.say(
        f"the batch of {run.batch_size} fits {slices}: {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB"
    )
    return found[size]


def _compile(experiment: Experiment, mesh: Mesh, batches) -> jax.stages.Compiled:
    state, key = jax.eval_shape(lambda: (initial_state(experiment, 0), keys(0)[1]))
    return make_update(experiment, mesh).lower(state, batches, np.int32(1), key).compile()


def _needed_bytes(compiled: jax.stages.Compiled, mesh: Mesh) -> int:
    """Of one device's memory; simulated CPU devices share one."""
    simulated = len(mesh.local_devices) if jax.default_backend() == "cpu" else 1
    return planned_bytes(compiled) * simulated


def _free_bytes(mesh: Mesh) -> int:
    """Bytes that a device may still take."""
    stats = mesh.local_devices[0].memory_stats()
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else free_memory()


def planned_bytes(compiled: jax.stages.Compiled) -> int:
    """Memory of a compiled program by XLA's own account: arguments, outputs, temporaries.

    0 where the backend keeps none.
    """
    plan = compiled.memory_analysis()
    if plan is None:
        return 0
    outputs = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.argument_size_in_bytes + outputs + plan.temp_size_in_bytes


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Batches [capacity, B, ...]: examples over the devices."""
    return NamedSharding(mesh, PartitionSpec(None, "data"))


def make_mesh(batch_size: int) -> Mesh:
    """All devices on one axis, "data", those of a process side by side.

    Raises:
      UserError: the batch does not divide by the number of devices.
    """
    if batch_size % jax.device_count():
        raise UserError(
            f"Run.batch_size ({batch_size}) must be divisible by the number of devices "
            f"({jax.device_count()})"
        )
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(devices), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def share_of(mesh: Mesh, batch_size: int) -> slice:
    """The rows of a batch that lie on this process's devices."""
    places = np.flatnonzero([d.process_index == jax.process_index() for d in mesh.devices.flat])
    a_device = batch_size // mesh.size
    return slice(places[0] * a_device, (places[-1] + 1) * a_device)


def spread(share: pipeline.Batch, sharding: NamedSharding) -> pipeline.Batch:
    """The whole batch on all devices, of which each process gives the rows of its own."""
    if jax.process_count() == 1:
        return jax.device_put(share, sharding)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), share)


def make_scorer(
    model: Classifier, batch_size: int, mesh: Mesh | None = None
) -> Callable[..., dict]:
    """(variables, arrays) -> {"correct", "count", "loss" (summed, nats)}, each row once.

    The rows of a batch are spread over the devices of the mesh; without one, on one device. With
    `bits=True` the result has "correct_bits" too: which rows are right (`statistics.encode`).
    A third argument is called between batches: what it raises ends the scoring.
    """

    def sums_of(variables, batch):
        found = logits(model, variables, batch.values, batch.lengths)
        answers = found, batch.labels, batch.valid
        return objective.batch_sums(*answers), objective.right(*answers)

    def reduced(variables, batch):
        sums, right = sums_of(variables, batch)
        return jax.lax.psum(sums, "data"), jax.lax.all_gather(right, "data", tiled=True)

    devices = mesh.size if mesh else 1
    if devices > 1:
        whole, split = PartitionSpec(), PartitionSpec("data")
        total = jax.shard_map(
            reduced,
            mesh=mesh,
            in_specs=(whole, split),
            out_specs=whole,
            check_vma=False,
        )
    else:
        total = sums_of

    @jax.jit
    def add(variables, batch, sums):
        more, right = total(variables, batch)
        return sums + more, right

    rounded = -(-batch_size // devices) * devices

    def batches(arrays):
        if mesh is None or jax.process_count() == 1:
            return pipeline.eval_batches(arrays, rounded)
        rows = NamedSharding(mesh, PartitionSpec("data"))
        shares = pipeline.eval_batches(arrays, rounded, share_of(mesh, rounded))
        return (spread(share, rows) for share in shares)

    def score(variables, arrays: Arrays, between=lambda: None, *, bits=False):
        sums, rights = objective.Sums.zero(), []
        for batch in batches(arrays):
            before = sums
            sums, right = add(variables, batch, sums)
            if bits:
                rights.append(right)
            wait_for(before)  # one batch in flight: what is queued on a device cannot be stopped
            between()
        wait_for(sums)
        found = {
            "correct": int(sums.correct),
            "count": int(sums.count),
            "loss": float(sums.loss),
        }
        if bits:  # the filler rows come last
            rows = np.concatenate([np.asarray(right) for right in rights])[: found["count"]]
            found["correct_bits"] = intervals.encode(rows)
        return found

    return score


def wait_for(tree) -> None:
    """Blocks until computed, in slices short enough for Python to notice a signal."""
    for leaf in jax.tree.leaves(tree):
        while not leaf.is_ready():
            time.sleep(0.001)
