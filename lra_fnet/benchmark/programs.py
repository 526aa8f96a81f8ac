"""The programs that a child process measures: training step, forward pass, mixing sublayer."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from lra_fnet.benchmark import timing, work
from lra_fnet.benchmark.case import Case, sizes
from lra_fnet.benchmark.work import Product
from lra_fnet.errors import RunFailed, out_of_memory
from lra_fnet.experiment import Experiment
from lra_fnet.machine import device, memory
from lra_fnet.models.encoder import parameter_count
from lra_fnet.models.mixers import fourier
from lra_fnet.run import provenance
from lra_fnet.training import pipeline, score, slices, step


@dataclasses.dataclass(frozen=True)
class Timed:
    """A program to time."""

    call: Callable[[], Any]  # returns when its result is there
    operations: float
    products: Counter[Product]


def train(built: Experiment) -> tuple[Timed]:
    """Returns the update of a run, one step per call."""
    batches = random_batches(built)
    program = step.Program.compile(built, pipeline.make_mesh(built.run.batch_size), batches)
    state, batches = program.initial_state(0), program.place(batches)
    inputs = (state, batches, np.int32(1), program.key)
    counted = _counted(step.make_update(built, program.mesh), inputs)

    def call():
        nonlocal state
        state, logs = program.steps(state, batches, 1)
        return jax.block_until_ready(logs)

    return (Timed(call, *counted),)


def infer(built: Experiment) -> tuple[Timed]:
    """Returns the logits of a batch, without dropout."""
    mesh = pipeline.make_mesh(built.run.batch_size)
    batch = jax.tree.map(lambda x: x[0], random_batches(built))
    variables = jax.device_put(built.init(0), NamedSharding(mesh, pipeline.WHOLE))
    rows = jax.device_put(batch, NamedSharding(mesh, pipeline.ROWS))
    return (_timed(score.outputs_of(built.objective, mesh), (variables, rows)),)


def mixing(built: Experiment) -> tuple[Timed, Timed]:
    """Returns the first layer's mixing sublayer: forward and backward, and forward alone.

    Backward computes the gradient in the input and in the parameters.
    """
    mixer = built.model.encoder.mixers[0]
    x, cotangent, mask = _mixing_inputs(built)
    variables = dict(mixer.init(jax.random.key(0), x, mask, train=False))
    params, rngs = variables.pop("params", {}), {"dropout": jax.random.key(1)}

    def forward(params, x, train=False):
        return mixer.apply({"params": params, **variables}, x, mask, train=train, rngs=rngs)

    trained = functools.partial(forward, train=True)
    return _both(trained, (params, x), cotangent), _timed(forward, (params, x))


def definition(built: Experiment) -> tuple[Timed, Timed]:
    """Like `mixing`, for the paper's listing with the gradient of automatic differentiation."""
    x, cotangent, _ = _mixing_inputs(built)
    return _both(fourier.definition, (x,), cotangent), _timed(fourier.definition, (x,))


def random_batches(built: Experiment) -> pipeline.Batch:
    """Returns two batches of random rows of full length, [2, B, ...]."""
    shape = (2, built.run.batch_size, *built.task.row_shape)
    rng = np.random.default_rng(0)
    return pipeline.Batch(
        rng.integers(0, built.task.vocab_size - 1, shape).astype(built.task.value_dtype),
        np.full(shape[:-1], shape[-1], np.int32),
        rng.integers(0, built.task.num_classes, shape[:2]).astype(np.int32),
        np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape[:2]),
        np.ones(shape[:2], bool),
    )


def _mixing_inputs(built: Experiment):
    """Returns an input and a cotangent [B, L, D], and a mask [B, L] without padding."""
    encoder = built.model.encoder
    shape = (built.run.batch_size, encoder.mixer_length, encoder.dim)
    rng = np.random.default_rng(0)
    x, cotangent = (jnp.asarray(rng.normal(size=shape), encoder.dtype) for _ in range(2))
    return x, cotangent, jnp.ones(shape[:2], bool)


def _both(function, inputs, cotangent) -> Timed:
    """Times the value of a function and the gradient in its inputs."""

    def value_and_gradient(inputs, cotangent):
        value, back = jax.vjp(function, *inputs)
        return value, back(cotangent)

    return _timed(value_and_gradient, (inputs, cotangent))


def _timed(function, inputs) -> Timed:
    """Compiles a function for these inputs.

    Raises:
      RunFailed: on a CPU, if the program needs more memory than is free.
    """
    compiled = jax.jit(function).lower(*inputs).compile()
    if jax.default_backend() == "cpu" and slices.planned_bytes(compiled) > memory.free_memory():
        raise RunFailed("out of memory", "OOM")

    def call():
        jax.block_until_ready(compiled(*inputs))

    return Timed(call, *_counted(function, inputs))


def _counted(function, inputs) -> tuple[float, Counter[Product]]:
    """Returns the operations and products of the program that JAX traces for these inputs."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)
    return work.count(jax.make_jaxpr(function)(*shapes).jaxpr)


class Measured:
    """A cell that is ready to be timed.

    Attributes:
      facts: state, sizes, memory, operations, provenance.
    """

    def __init__(self, cell: Case):
        built = cell.load()
        if cell.devices:
            device.use(cell.devices)
        elif cell.what != "mixing":
            device.use_cores(built.run.microbatch or built.run.batch_size)
        device.require()
        accelerator = jax.default_backend() != "cpu"
        jax.jit(jnp.tanh)(jnp.ones(())).block_until_ready()  # loads the compiler
        before = memory.forget_peak()
        built = cell.load(accelerator) if accelerator else built
        makers = {"train": train, "pretrain": train, "infer": infer}
        makers |= {"mixing": mixing, "definition": definition}
        self.side = cell.side
        self.programs = makers[cell.what if cell.side == "ours" else cell.side](built)
        memory.forget_peak()  # the compiler's, which no program needs
        for program in self.programs:
            program.call()
        peak = memory.peak_bytes() - (0 if accelerator else before)
        for program in self.programs:
            program.call()
        self.facts: dict[str, Any] = {
            "state": "ok",
            "parameters": parameter_count(built.shapes()),
            **sizes(built),
            "peak_bytes": peak,
            "flops": self.programs[0].operations,
            **dataclasses.asdict(provenance.of_process()),
        }

    def round(self, seconds: float) -> dict[str, float]:
        """Returns the seconds of a call of each program and of its products, see `child`."""
        kinds = ("seconds", "forward_seconds")
        times = {
            kind: timing.mean_seconds(program.call, seconds)
            for kind, program in zip(kinds, self.programs, strict=False)
        }
        if self.side == "ours":
            try:
                times["floor_seconds"] = work.floor_seconds(self.programs[0].products, seconds)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
        return times
