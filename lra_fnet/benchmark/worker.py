"""The child process that measures one of our programs (the protocol is in `child`)."""

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from lra_fnet.benchmark import roofline, timing
from lra_fnet.benchmark.cells import Cell, sizes
from lra_fnet.errors import RunFailed
from lra_fnet.experiment import Experiment
from lra_fnet.machine import device, memory
from lra_fnet.models.encoder import parameter_count
from lra_fnet.models.mixers import fourier
from lra_fnet.run import provenance
from lra_fnet.training import pipeline, score, slices, step


@dataclasses.dataclass(frozen=True)
class Timed:
    """A program to time."""

    compiled: jax.stages.Compiled
    compile_seconds: float
    call: Callable[[], Any]  # returns when its result is there
    jaxpr: jax.extend.core.ClosedJaxpr


def train(built: Experiment) -> Timed:
    """Returns the update of a run, one step per call."""
    batches = random_batches(built)
    begun = time.perf_counter()
    program = step.Program.compile(built, pipeline.make_mesh(built.run.batch_size), batches)
    compile_seconds = time.perf_counter() - begun
    state, batches = program.initial_state(0), program.place(batches)
    inputs = (state, batches, np.int32(1), program.key)
    counted = pipeline.make_mesh(built.run.batch_size, _counting_device())
    jaxpr = _traced(step.make_update(built, counted), inputs)

    def call():
        nonlocal state
        state, logs = program.steps(state, batches, 1)
        return jax.block_until_ready(logs)

    return Timed(program.update, compile_seconds, call, jaxpr)


def infer(built: Experiment) -> Timed:
    """Returns the logits of a batch, without dropout."""
    mesh = pipeline.make_mesh(built.run.batch_size)
    batch = jax.tree.map(lambda x: x[0], random_batches(built))
    variables = jax.device_put(built.init(0), NamedSharding(mesh, pipeline.WHOLE))
    rows = jax.device_put(batch, NamedSharding(mesh, pipeline.ROWS))
    return _timed(functools.partial(score.outputs, built.objective), (variables, rows))


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


def operations(jaxpr: jax.extend.core.ClosedJaxpr) -> float | None:
    """Returns the floating-point operations of a program by XLA's cost analysis.

    That is the one of its CPU compiler, since it has none for a GPU before the compilation. None:
    the program has a part that no CPU computes, such as cuDNN's attention.

    XLA counts the body of a loop once. Here a scan counts as often as it runs, but the steps of a
    dispatch, whose number is an argument, count as one. XLA multiplies the logarithms of the sides
    of a transform over two axes; here one of N complex numbers takes 5 N log2 N operations, and of
    real numbers half of them, as is usual.
    """
    scans, transforms = [], []
    for equation in _equations(jaxpr.jaxpr):
        if equation.primitive.name == "scan":
            scans.append((equation.params["length"], equation.params["jaxpr"]))
        elif equation.primitive.name == "fft":
            transforms.append(equation)
    try:
        once = _counted(jaxpr)
    except NotImplementedError:
        return None
    again = [length * (operations(body) or 0.0) - _counted(body) for length, body in scans]
    return once + sum(again) + sum(map(_correction, transforms))


def _counted(jaxpr: jax.extend.core.ClosedJaxpr) -> float:
    """Returns XLA's own count."""
    function = jax.extend.core.jaxpr_as_fun(jaxpr)
    (device,) = _counting_device()
    with jax.default_device(device):
        costs: Any = jax.jit(function).lower(*jaxpr.in_avals).cost_analysis()
    if costs is None:
        raise NotImplementedError(f"XLA counts nothing for {device.platform}")
    return costs.get("flops", 0.0)


def _counting_device() -> list[Any]:
    """Returns a device of the CPU, or another one if JAX_PLATFORMS leaves the CPU out."""
    try:
        return jax.local_devices(backend="cpu")[:1]
    except RuntimeError:
        return jax.local_devices()[:1]


def _correction(equation) -> float:
    """Returns the usual count of a transform less XLA's."""
    (operand,) = (variable.aval for variable in equation.invars)
    (result,) = (variable.aval for variable in equation.outvars)
    lengths = equation.params["fft_lengths"]
    size = max(math.prod(operand.shape), math.prod(result.shape))
    real = jnp.isrealobj(np.empty(0, operand.dtype)) or jnp.isrealobj(np.empty(0, result.dtype))
    usual = (2.5 if real else 5.0) * size * math.log2(max(2, math.prod(lengths)))
    transform = functools.partial(
        lax.fft, fft_type=equation.params["fft_type"], fft_lengths=lengths
    )
    alone = jax.ShapeDtypeStruct(operand.shape, operand.dtype)  # on one device
    return usual - _counted(jax.make_jaxpr(transform)(alone))


def _equations(jaxpr) -> Iterator[Any]:
    """Yields the equations of a program and of those that it calls, but not of a scan's body."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name != "scan":
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from _equations(inner)


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
    begun = time.perf_counter()
    compiled = jax.jit(function).lower(*inputs).compile()
    compile_seconds = time.perf_counter() - begun
    if jax.default_backend() == "cpu" and slices.planned_bytes(compiled) > memory.free_memory():
        raise RunFailed("out of memory", "OOM")

    def call():
        jax.block_until_ready(compiled(*inputs))

    return Timed(compiled, compile_seconds, call, _traced(function, inputs))


def _traced(function, inputs) -> jax.extend.core.ClosedJaxpr:
    """Returns the program that JAX traces for inputs of these shapes, at any place."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)
    return jax.make_jaxpr(function)(*shapes)


class Side:
    """A cell that is ready to be timed.

    Attributes:
      facts: state, sizes, memory, operations, provenance.
    """

    def __init__(self, cell: Cell):
        device.require()
        if cell.devices > jax.device_count():
            self.facts: dict[str, Any] = {"state": "ABSENT"}
            return
        accelerator = jax.default_backend() != "cpu"
        jax.jit(jnp.tanh)(jnp.ones(())).block_until_ready()  # loads the compiler
        before = memory.forget_peak()
        self.cell, self.built = cell, cell.load(accelerator)
        makers = {"train": train, "pretrain": train, "infer": infer}
        makers |= {"mixing": mixing, "definition": definition}
        programs = makers[cell.what if cell.side == "ours" else cell.side](self.built)
        self.programs = programs if isinstance(programs, tuple) else (programs,)
        memory.forget_peak()  # the compiler's, which no program needs
        for program in self.programs:
            program.call()
        stats = jax.local_devices()[0].memory_stats()
        peak = stats["peak_bytes_in_use"] if stats else memory.peak() - before
        for program in self.programs:
            program.call()
        self.facts = {
            "state": "ok",
            "parameters": parameter_count(self.built.shapes()),
            **sizes(self.built),
            "peak_bytes": peak,
            "planned_bytes": max(slices.planned_bytes(p.compiled) for p in self.programs),
            "flops": operations(self.programs[0].jaxpr),
            "compile_seconds": sum(p.compile_seconds for p in self.programs),
            **dataclasses.asdict(provenance.of_process()),
        }

    @functools.cached_property
    def products(self) -> list[roofline.Product]:
        """The dense products that a call must compute."""
        return roofline.needs(self.built, self.cell.what)

    def limits(self, seconds: float) -> dict[str, float]:
        """Returns the bounds of a call: the time of its products alone, and its bytes.

        Args:
          seconds: how long to measure the products.
        """
        return {
            "floor_seconds": roofline.measure(self.products, seconds),
            "copy_bytes_per_second": roofline.copy_rate(),
            "bytes": roofline.bytes_moved(self.built, self.cell.what),
            "flops": roofline.flops(self.products),
        }

    def round(self, seconds: float) -> dict[str, float]:
        """Calls each program until that many seconds have passed."""
        return timing.time_calls([program.call for program in self.programs], seconds)

    def steps(self, number: int) -> dict[str, float]:
        """Trains that many more steps; returns the last loss and the program's all-reduces.

        An all-reduce of several arrays counts once.
        """
        program = self.programs[0]
        logs = [program.call() for _ in range(number)][-1]
        text = program.compiled.as_text() or ""
        return {
            "loss": float(logs.loss[0]),
            "all_reduces": len(re.findall(r"\ball-reduce(?:-start)?\(", text)),
        }
