"""The child process that measures one of our programs; see `child` for the protocol."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lra_fnet.benchmark import cells, child, roofline, timing
from lra_fnet.errors import RunFailed
from lra_fnet.experiment import Experiment
from lra_fnet.machine import allocator, memory
from lra_fnet.machine.memory import free_memory
from lra_fnet.models.encoder import parameter_count
from lra_fnet.models.mixers import fourier
from lra_fnet.run import folder as run_folder
from lra_fnet.train import pipeline, step


@dataclasses.dataclass(frozen=True)
class Timed:
    """What is timed: each call returns when its result is there."""

    compiled: jax.stages.Compiled
    compile_seconds: float
    call: Callable[[], None]
    trace: Callable[[], jax.extend.core.ClosedJaxpr]


def train(built: Experiment) -> Timed:
    """The update of a run, one step a call."""
    batches = random_batches(built)
    begun = time.perf_counter()
    program = step.Program.compile(built, step.make_mesh(built.run.batch_size), batches)
    compile_seconds = time.perf_counter() - begun
    state, batches = program.initial_state(0), program.place(batches)

    def call():
        nonlocal state
        state, logs = program.steps(state, batches, 1)
        jax.block_until_ready(logs)

    def trace():
        update = step.make_update(built, program.mesh)
        return jax.make_jaxpr(update)(*_shapes((state, batches, np.int32(1), program.key)))

    return Timed(program.update, compile_seconds, call, trace)


def infer(built: Experiment) -> Timed:
    """Logits of a batch, without dropout."""
    batch = jax.tree.map(lambda x: x[0], random_batches(built))
    mesh = step.make_mesh(built.run.batch_size)

    variables = jax.jit(lambda: built.init(0))()
    whole = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec("data"))
    inputs = (
        jax.device_put(variables, whole),
        *jax.device_put((batch.values, batch.lengths), split),
    )
    return _program(functools.partial(step.logits, built.model), inputs)


def mixing(built: Experiment) -> tuple[Timed, Timed]:
    """The first layer's mixing sublayer: forward and backward, forward alone.

    Backward gives the gradient in the input and in the parameters.
    """
    mixer = built.model.encoder.make_mixer(0)(parent=None)
    x, cotangent, mask = _mixing_inputs(built)
    dropout = jax.random.key(1)
    variables = dict(mixer.init(jax.random.key(0), x, mask, train=False))
    params = variables.pop("params", {})

    def forward(params, x):
        return mixer.apply({"params": params, **variables}, x, mask, train=False)

    def trained(params, x):
        rngs = {"dropout": dropout}
        return mixer.apply({"params": params, **variables}, x, mask, train=True, rngs=rngs)

    return _both(trained, (params, x), cotangent), _program(forward, (params, x))


def definition(built: Experiment) -> tuple[Timed, Timed]:
    """As `mixing`, of the paper's listing with the gradient that autodiff finds."""
    x, cotangent, _ = _mixing_inputs(built)
    return _both(fourier.definition, (x,), cotangent), _program(fourier.definition, (x,))


def random_batches(built: Experiment) -> pipeline.Batch:
    """Two batches of random rows of full length, [2, B, ...]."""
    shape = (2, built.run.batch_size, *built.abstract_inputs(1)[0].shape[1:])
    rng = np.random.default_rng(0)
    return pipeline.Batch(
        rng.integers(0, built.task.vocab_size - 1, shape).astype(np.uint8),
        np.full(shape[:-1], shape[-1], np.int32),
        rng.integers(0, built.task.num_classes, shape[:2]).astype(np.int32),
        np.ones(shape[:2], bool),
    )


def operations(jaxpr: jax.extend.core.ClosedJaxpr) -> float:
    """Floating-point operations of a program by XLA's cost analysis.

    XLA counts the body of a loop once: here a scan counts as often as it runs, but the steps of a
    dispatch, whose number is an argument, as one.
    """
    function = jax.extend.core.jaxpr_as_fun(jaxpr)
    found: Any = jax.jit(function).lower(*jaxpr.in_avals).cost_analysis()
    return found.get("flops", 0.0) + sum(
        (length - 1) * operations(body) for length, body in _scans(jaxpr.jaxpr)
    )


def _scans(jaxpr) -> Iterator[tuple[int, jax.extend.core.ClosedJaxpr]]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation.params["length"], equation.params["jaxpr"]
        else:
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from _scans(inner)


def _mixing_inputs(built: Experiment):
    """Input and cotangent [B, L, D], and a mask [B, L] without padding."""
    encoder = built.model.encoder
    shape = (built.run.batch_size, encoder.mixer_length, encoder.dim)
    rng = np.random.default_rng(0)
    x, cotangent = (jnp.asarray(rng.normal(size=shape), encoder.dtype) for _ in range(2))
    return x, cotangent, jnp.ones(shape[:2], bool)


def _both(function, inputs, cotangent) -> Timed:
    """The value of the function and the gradient in its inputs."""

    def value_and_gradient(inputs, cotangent):
        value, back = jax.vjp(function, *inputs)
        return value, back(cotangent)

    return _program(value_and_gradient, (inputs, cotangent))


def _program(function, inputs) -> Timed:
    """Compiled for these inputs.

    Raises:
      RunFailed: on a CPU, where the program needs more memory than is free.
    """
    begun = time.perf_counter()
    compiled = jax.jit(function).lower(*inputs).compile()
    compile_seconds = time.perf_counter() - begun
    if jax.default_backend() == "cpu" and step.planned_bytes(compiled) > free_memory():
        raise RunFailed("out of memory", "OOM")

    def call():
        jax.block_until_ready(compiled(*inputs))

    return Timed(
        compiled, compile_seconds, call, lambda: jax.make_jaxpr(function)(*_shapes(inputs))
    )


def _shapes(inputs):
    """Without values and places."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)


class Side:
    """A cell that is ready to be timed.

    Attributes:
      facts: sizes, memory, operations, provenance.
    """

    def __init__(self, cell: cells.Cell):
        accelerator = jax.default_backend() != "cpu"
        jax.jit(jnp.tanh)(jnp.ones(())).block_until_ready()  # loads the compiler
        held = memory.forget_peak()
        self.cell, self.built = cell, cell.load(accelerator)
        make = {"train": train, "infer": infer, "mixing": mixing}[cell.what]
        if cell.side == "definition":
            make = definition
        programs = make(self.built)
        self.programs = programs if isinstance(programs, tuple) else (programs,)
        memory.forget_peak()  # the compiler's, which no program needs
        for program in self.programs:
            program.call()
        stats = jax.local_devices()[0].memory_stats()
        peak = stats["peak_bytes_in_use"] if stats else memory.peak() - held
        for program in self.programs:
            program.call()
        self.facts = {
            "parameters": parameter_count(jax.eval_shape(lambda: self.built.init(0))),
            **cells.sizes(self.built),
            "peak_bytes": peak,
            "planned_bytes": max(step.planned_bytes(p.compiled) for p in self.programs),
            "flops": operations(self.programs[0].trace()),
            "compile_seconds": sum(p.compile_seconds for p in self.programs),
            **run_folder.provenance(),
        }

    @functools.cached_property
    def products(self) -> list[roofline.Product]:
        """The dense products that a call must do."""
        return roofline.needs(self.built, self.cell.what)

    def limits(self, seconds: float) -> dict[str, float]:
        """What bounds a call: its products alone, measured for so long, and its bytes."""
        return {
            "floor_seconds": roofline.measure(self.products, seconds),
            "copy_bytes_per_second": roofline.copy_rate(),
            "bytes": roofline.bytes_moved(self.built, self.cell.what),
            "flops": roofline.flops(self.products),
        }

    def round(self, seconds: float) -> dict[str, float]:
        """Times each program for `seconds`."""
        return timing.measure_round([program.call for program in self.programs], seconds)


def outcome(error: Exception) -> dict[str, str] | None:
    """Returns the reply for a program that does not fit the memory; None for other errors."""
    is_oom = isinstance(error, RunFailed) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    )
    return {"state": "OOM"} if is_oom else None


if __name__ == "__main__":
    allocator.keep_freed_memory()  # as in a run: before any thread allocates
    child.serve(lambda **fields: Side(cells.Cell(**fields)), outcome)
