"""The child that measures one of our programs: a Cell comes in, facts and rounds go out.

Lines of JSON on standard input and output:

    the Cell                  {"state": "ok", facts} after two calls, or {"state": "OOM"}
    {"seconds": s}            {"calls": n, "seconds": t}: calls one after another until t >= s
    {"roofline": s}           `Side.limits`, measured for s

Anything that is wrong is {"mistake": one line}. Of a mixing sublayer a call is forward and
backward; "forward_calls" and "forward_seconds" stand beside.
"""

import dataclasses
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lra_fnet.benchmark import roofline
from lra_fnet.benchmark.cells import Cell
from lra_fnet.errors import RunFailed, UserError
from lra_fnet.experiment import Experiment
from lra_fnet.machine import allocator, memory
from lra_fnet.machine.memory import free_memory
from lra_fnet.models.encoder import parameter_count
from lra_fnet.models.mixers import fourier
from lra_fnet.run import folder as run_folder
from lra_fnet.train import pipeline, step


@dataclasses.dataclass(frozen=True)
class Program:
    """What is timed: each call returns when its result is there."""

    compiled: jax.stages.Compiled
    compile_seconds: float
    call: Callable[[], None]
    trace: Callable[[], jax.extend.core.ClosedJaxpr]


def train(built: Experiment) -> Program:
    """The update of a run, one step a call."""
    batches = random_batches(built)
    mesh = step.make_mesh(built.run.batch_size)
    key = step.keys(0)[1]
    begun = time.perf_counter()
    compiled = step.compile_update(built, mesh, batches)
    compile_seconds = time.perf_counter() - begun
    whole = NamedSharding(mesh, PartitionSpec())
    state = jax.device_put(step.initial_state(built, 0), whole)
    batches = jax.device_put(batches, step.batch_sharding(mesh))

    def call():
        nonlocal state
        state, logs = compiled(state, batches, np.int32(1), key)
        jax.block_until_ready(logs)

    def trace():
        update = step.make_update(built, mesh)
        return jax.make_jaxpr(update)(*_shapes((state, batches, np.int32(1), key)))

    return Program(compiled, compile_seconds, call, trace)


def infer(built: Experiment) -> Program:
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


def mixing(built: Experiment) -> tuple[Program, Program]:
    """The first layer's mixing sublayer: forward and backward, forward alone.

    Backward gives the gradient in the input and in the parameters.
    """
    mixer = built.model.encoder.mixers[0]
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


def definition(built: Experiment) -> tuple[Program, Program]:
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


def _both(function, inputs, cotangent) -> Program:
    """The value of the function and the gradient in its inputs."""

    def value_and_gradient(inputs, cotangent):
        value, back = jax.vjp(function, *inputs)
        return value, back(cotangent)

    return _program(value_and_gradient, (inputs, cotangent))


def _program(function, inputs) -> Program:
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

    return Program(
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

    def __init__(self, cell: Cell):
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
        encoder = self.built.model.encoder
        self.facts = {
            "parameters": parameter_count(jax.eval_shape(lambda: self.built.init(0))),
            "batch_size": self.built.run.batch_size,
            "dim": encoder.dim,
            "num_layers": encoder.num_layers,
            "dtype": encoder.dtype,
            "peak_bytes": peak,
            "planned_bytes": max(step.planned_bytes(p.compiled) for p in self.programs),
            "flops": operations(self.programs[0].trace()),
            "compile_seconds": sum(p.compile_seconds for p in self.programs),
            "threads": len(os.sched_getaffinity(0)),
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
        """Calls of each program until so many seconds have passed."""
        found = {}
        for kind, program in zip(("", "forward_"), self.programs, strict=False):
            calls, taken, begun = 0, 0.0, time.perf_counter()
            while not calls or taken < seconds:
                program.call()
                calls, taken = calls + 1, time.perf_counter() - begun
            found |= {f"{kind}calls": calls, f"{kind}seconds": taken}
        return found


def serve(lines: Iterator[str], answer: Callable[[dict], None]) -> None:
    """Answers the parent's lines until there is none left or one cannot be met."""
    try:
        side = Side(Cell.from_json(next(lines)))
        answer({"state": "ok", **side.facts})
        for line in lines:
            request = json.loads(line)
            if "roofline" in request:
                answer(side.limits(request["roofline"]))
            else:
                answer(side.round(request["seconds"]))
    except UserError as error:
        answer({"mistake": str(error)})
    except RunFailed:
        answer({"state": "OOM"})
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        answer({"state": "OOM"})


def main() -> int:
    """Serves one cell; what libraries print goes to standard error."""
    allocator.keep_freed_memory()  # as a run does: before any thread allocates
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(iter(sys.stdin), lambda reply: print(json.dumps(reply), file=replies, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
