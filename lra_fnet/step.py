"""The jitted programs: the state, the multi-step update, the scorer of a split."""

import time
from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lra_fnet import metrics, pipeline
from lra_fnet.errors import RunFailed, UserError
from lra_fnet.experiment import Experiment
from lra_fnet.models.heads import Classifier
from lra_fnet.tasks import Arrays
from lra_fnet.tasks.task import free_memory


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
    init_key, dropout_key = jax.random.split(jax.random.key(seed))
    return init_key, dropout_key


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


def make_gradient(model: Classifier, microbatch: int = 0) -> Callable:
    """(params, constants, batch, key) -> gradient of the mean loss, metrics.Sums of the batch.

    With a microbatch the batch is taken in slices of so many examples, whose gradients are summed:
    the full batch's gradient but for rounding, with the memory of a slice.
    """

    def loss_fn(params, constants, batch, key):
        ids, mask = pipeline.tokens(batch.values, batch.lengths, model.zero_is_padding)
        logits = model.apply(
            {"params": params, **constants}, ids, mask, train=True, rngs={"dropout": key}
        )
        sums = metrics.batch_sums(logits, batch.labels, batch.valid)
        return sums.loss, sums

    slope = jax.grad(loss_fn, has_aux=True)

    def gradient(params, constants, batch, key):
        size = batch.labels.shape[0]
        if not microbatch or microbatch == size:
            grads, sums = slope(params, constants, batch, key)
        else:
            slices = jax.tree.map(
                lambda x: x.reshape(size // microbatch, microbatch, *x.shape[1:]), batch
            )

            def add(carry, part):
                index, total, sums = carry
                grads, more = slope(params, constants, part, jax.random.fold_in(key, index))
                return (index + 1, jax.tree.map(jnp.add, total, grads), sums + more), None

            start = (jnp.int32(0), jax.tree.map(jnp.zeros_like, params), metrics.Sums.zero())
            (_, grads, sums), _ = jax.lax.scan(add, start, slices)
        return jax.tree.map(lambda g: g / size, grads), sums

    return gradient


def make_update(experiment: Experiment, mesh: Mesh) -> Callable:
    """The jitted update (state, batches [capacity, B, ...], num_steps, key) -> (state, StepLogs).

    Runs the first num_steps of the batches in one dispatch. num_steps is an argument of the
    program, not a constant of it: the loop's body is compiled once and is the same for 1, 3 or 20
    steps a dispatch and for a ragged last one, so the numbers are the same bit for bit.
    The state is donated. Randomness depends on the key and the state's step alone.
    """
    optimizer = experiment.optimizer.transform()
    schedule = experiment.optimizer.schedule()
    gradient = make_gradient(experiment.model, experiment.run.microbatch)

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
    state = jax.eval_shape(lambda: initial_state(experiment, 0))
    update = make_update(experiment, mesh)
    compiled = update.lower(state, batches, np.int32(1), keys(0)[1]).compile()
    needed, free = planned_bytes(compiled), free_memory()
    if jax.default_backend() == "cpu" and needed > free:
        raise RunFailed(
            f"out of memory: a step needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: set "
            "Run.microbatch, Encoder.remat=True or a smaller model",
            "OOM",
        )
    return compiled


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
    """All devices on one axis, "data".

    Raises:
      UserError: the batch does not divide by the number of devices.
    """
    if batch_size % jax.device_count():
        raise UserError(
            f"Run.batch_size ({batch_size}) must be divisible by the number of devices "
            f"({jax.device_count()})"
        )
    axis = jax.sharding.AxisType.Auto  # XLA places the all-reduce of the gradient
    return jax.make_mesh((jax.device_count(),), ("data",), (axis,))


def make_scorer(model: Classifier, batch_size: int) -> Callable[[dict, Arrays], dict]:
    """(variables, arrays) -> {"correct", "count", "loss" (summed, nats)}, each row once."""

    @jax.jit
    def add(variables, batch, sums):
        ids, mask = pipeline.tokens(batch.values, batch.lengths, model.zero_is_padding)
        logits = model.apply(variables, ids, mask, train=False)
        return sums + metrics.batch_sums(logits, batch.labels, batch.valid)

    def score(variables, arrays):
        sums = metrics.Sums.zero()
        for batch in pipeline.eval_batches(arrays, batch_size):
            sums = add(variables, batch, sums)
        wait_for(sums)
        return {
            "correct": int(sums.correct),
            "count": int(sums.count),
            "loss": float(sums.loss),
        }

    return score


def wait_for(tree) -> None:
    """Blocks until computed, in slices short enough for Python to notice a signal."""
    for leaf in jax.tree.leaves(tree):
        while not leaf.is_ready():
            time.sleep(0.001)
