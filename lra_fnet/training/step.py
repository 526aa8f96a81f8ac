"""The training step: the state, the gradient, the update, and the compiled program of them.

On several devices, in one process or many, each device runs the program of one device on its own
rows (`jax.shard_map`), and one all-reduce per step adds the gradients. XLA's automatic partitioning
is not used: it gathers the whole batch on every device before each Fourier transform.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lra_fnet.errors import UserError
from lra_fnet.experiment import Experiment, keys
from lra_fnet.models.kernels.pointwise import part_of_batch
from lra_fnet.objective import Objective, Sums
from lra_fnet.training import pipeline, slices
from lra_fnet.training.pipeline import ROWS, WHOLE

BATCHES = PartitionSpec(None, "data")  # [capacity, B, ...]


@flax.struct.dataclass
class TrainState:
    """Everything that a step changes, and the model's constants."""

    step: jax.Array  # int32 []: updates so far
    params: dict
    constants: dict  # fixed random matrices, and running averages, which a step changes
    opt_state: optax.OptState

    @property
    def variables(self) -> dict:
        """Parameters and constants, by collection."""
        return {"params": self.params, **self.constants}


class StepLogs(NamedTuple):
    """Numbers of each step of a dispatch, float32 [capacity]."""

    loss: jax.Array  # mean loss of the batch, see `objective.Sums`
    correct: jax.Array  # examples; the share of masked tokens times the batch size with `Denoise`
    grad_norm: jax.Array  # global norm before clipping
    learning_rate: jax.Array


def initial_state(experiment: Experiment, seed: int, start: dict | None = None) -> TrainState:
    """Returns step 0, computed by one program, which is compiled once for equal models.

    Args:
      experiment: the model and the optimizer.
      seed: the run's.
      start: the variables of the pre-trained model to begin from, if any (`begin_from`).
    """
    inputs = experiment.blank_inputs(1)
    state = _start(experiment.model, experiment.optimizer, keys(seed)[0], *inputs)
    return state if start is None else begin_from(state, start)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start(model, optimizer, key, ids, mask):
    variables = dict(model.init(key, ids, mask, train=False))
    params = variables.pop("params")
    opt_state = optimizer.transform().init(params)
    return TrainState(jnp.zeros((), jnp.int32), params, variables, opt_state)


def begin_from(state, variables: dict) -> TrainState:
    """Returns the state with the encoder of a pre-trained model.

    What only the state has stays, such as a pooler or learned positions beyond the model's. What
    only the model has is left out, such as the embedding of the mask.

    Args:
      state: step 0 of the run, a `TrainState`.
      variables: of `models.heads.Denoiser`, by collection.
    """

    def taken(new, old):
        if isinstance(new, dict):
            return {name: taken(x, old[name]) if name in old else x for name, x in new.items()}
        kept = jnp.array(old[: len(new)] if new.ndim else old)  # a copy: the state is donated
        return kept if kept.shape == new.shape else jnp.concatenate([kept, new[len(kept) :]])

    def of(collection, tree):
        old = variables.get(collection, {}).get("encoder", {})
        return {**tree, "encoder": taken(tree["encoder"], old)} if "encoder" in tree else tree

    constants = {name: of(name, tree) for name, tree in state.constants.items()}
    return state.replace(params=of("params", state.params), constants=constants)


def make_gradient(
    objective: Objective, microbatch: int = 0, mesh: Mesh | None = None
) -> Callable[..., tuple[dict, Sums, dict]]:
    """Returns (params, constants, batch, key) -> gradient, sums, running averages.

    The gradient is that of the mean loss, the sums are those of the batch, and the averages are the
    collection of that name after the batch, by its name; {} if the model has none.

    With a microbatch, the gradients of slices of that many examples are summed. The sum over all
    slices and devices is divided once, so the result is the full batch's gradient, dropout
    included, up to rounding, with the memory of a slice. A slice takes rows from each device's
    share, so no row moves between devices. 0 takes the batch whole, which a model with running
    averages needs (`slices.microbatch_of`).

    Raises:
      UserError: if the number of devices does not divide the microbatch.
    """
    devices = mesh.size if mesh else 1
    if microbatch % devices:
        raise UserError(
            f"Run.microbatch ({microbatch}) must be divisible by the number of devices "
            f"({devices}): set it to 0 for the usual size"
        )

    def loss_fn(params, constants, batch, key):
        outputs, averages = objective.outputs({"params": params, **constants}, batch, key)
        sums, _ = objective.sums(outputs, batch)
        return objective.minimised(sums), (sums, averages)

    def slope(*given):
        grads, (sums, averages) = jax.grad(loss_fn, has_aux=True)(*given)
        return grads, sums, averages

    def share(params, constants, batch, key):
        """Gradient and sums over the rows of one device, and the averages over all."""
        rows = batch.labels.shape[0]
        slice_rows = microbatch // devices or rows
        parts = rows // slice_rows
        if devices * parts == 1:
            return slope(params, constants, batch, key)
        first = parts * jax.lax.axis_index("data") if devices > 1 else 0

        def slope_of(part, number):
            with part_of_batch(first + number, "data" if devices > 1 else None):
                return slope(params, constants, part, key)

        if parts == 1:
            return slope_of(batch, 0)

        def add(carry, numbered):
            return jax.tree.map(jnp.add, carry, slope_of(*numbered)), None

        sliced = jax.tree.map(lambda x: x.reshape(parts, slice_rows, *x.shape[1:]), batch)
        start = (jax.tree.map(jnp.zeros_like, params), objective.counts.zero(), {})
        return jax.lax.scan(add, start, (sliced, jnp.arange(parts)))[0]

    def reduced(params, constants, batch, key):
        """The sums over all devices, as one vector for one all-reduce; counts are exact to 2^24."""
        grads, sums, averages = share(params, constants, batch, key)
        vector, restore = ravel_pytree((grads, sums))
        return *restore(jax.lax.psum(vector, "data")), averages

    total = share
    if mesh and devices > 1:
        total = pipeline.per_device(reduced, mesh, WHOLE, WHOLE, ROWS, WHOLE)

    def gradient(params, constants, batch, key):
        grads, sums, averages = total(params, constants, batch, key)
        divisor = objective.divisor(sums, batch.labels.shape[0])
        return jax.tree.map(lambda g: g / divisor, grads), sums, averages

    return gradient


def make_update(experiment: Experiment, mesh: Mesh) -> Callable:
    """Returns the jitted (state, batches [capacity, B, ...], num_steps, key) -> (state, StepLogs).

    One dispatch trains on the first num_steps of the batches. num_steps is an argument of the
    program, so the loop's body is compiled once, and 1, 3, 20 or a ragged last number of steps per
    dispatch give the same numbers bit for bit. The state is donated. Randomness depends only on the
    key and the state's step.
    """
    optimizer = experiment.optimizer.transform()
    schedule = experiment.optimizer.schedule()
    microbatch = slices.microbatch_of(experiment, mesh.size)
    objective = experiment.objective
    gradient = make_gradient(objective, microbatch, mesh)

    def one_step(state, batch, key):
        key = jax.random.fold_in(key, state.step)
        grads, sums, averages = gradient(state.params, state.constants, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        rows = batch.labels.shape[0]
        logged = StepLogs(
            loss=sums.loss / jnp.maximum(sums.count, 1),  # 0 if there was nothing to hide
            correct=sums.correct.astype(jnp.float32) * (rows / objective.counted(sums, rows)),
            grad_norm=optax.tree.norm(grads),
            learning_rate=schedule(state.step),
        )
        params = optax.apply_updates(state.params, updates)
        after = {"params": params, "constants": state.constants | averages}
        return state.replace(step=state.step + 1, opt_state=opt_state, **after), logged

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

    whole, split = NamedSharding(mesh, WHOLE), NamedSharding(mesh, BATCHES)
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
    def compile(cls, experiment: Experiment, mesh: Mesh, batches, seed: int = 0) -> "Program":
        """Compiles the update for these batches, before the state takes any memory.

        Args:
          experiment: the model, the optimizer and the microbatch.
          mesh: the devices.
          batches: arrays or shapes, [capacity, B, ...].
          seed: the run's; the key of all dropout depends on it.

        Raises:
          RunFailed: if a step needs more memory than is free.
        """
        key = keys(seed)[1]
        state = jax.eval_shape(lambda: initial_state(experiment, seed))
        update = make_update(experiment, mesh).lower(state, batches, np.int32(1), key).compile()
        slices.check(update, mesh)
        return cls(experiment, mesh, update, key)

    def initial_state(self, seed: int, start: dict | None = None) -> TrainState:
        """Returns step 0 on all devices."""
        state = initial_state(self.experiment, seed, start)
        return jax.device_put(state, NamedSharding(self.mesh, WHOLE))

    def place(self, batches: pipeline.Batch) -> pipeline.Batch:
        """Puts batches [capacity, B, ...] on the devices."""
        return pipeline.spread(batches, self.mesh, BATCHES)

    def steps(self, state: TrainState, batches, count: int) -> tuple[TrainState, StepLogs]:
        """Trains on the first `count` of the placed batches in one dispatch; donates the state."""
        return self.update(state, batches, np.int32(count), self.key)


def wait_for(tree) -> None:
    """Blocks until computed, in naps short enough for Python to notice a signal."""
    for leaf in jax.tree.leaves(tree):
        while not leaf.is_ready():
            time.sleep(0.001)
