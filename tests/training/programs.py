"""Programs that the tests of the trainer run in separate processes: `python programs.py NAME JSON`.

Prints the value of the function NAME, called with the arguments of the JSON list, as JSON.
"""

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
from paths import ROOT
from tiny import rows, tiny

from lra_fnet.machine import progress
from lra_fnet.training import pipeline, score, step
from lra_fnet.training.checkpoint import sha256
from lra_fnet.training.loop import Loop

BATCH = 8
COLLECTIVES = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|infeed|outfeed"


def run(built, folder, seed=0):
    """Runs (or resumes) a loop on 30 rows and returns it."""
    folder.mkdir(exist_ok=True)
    loop = Loop(built, rows(30), rows(10, 1), folder, seed)
    loop()
    return loop


def states(folder, counts):
    """Hashes of the final states of runs with these numbers of steps a dispatch."""
    runs = (run(tiny(steps_per_dispatch=n), Path(folder) / str(n)) for n in counts)
    return [sha256(loop.state) for loop in runs]


@contextlib.contextmanager
def call_at(step, action):
    """Calls the action once, when a run in the block has finished that step."""
    update, calls = progress.Bar.update, [action]

    def report(bar, done, note=""):
        update(bar, done, note)
        if done >= step and calls:
            calls.pop()()

    progress.Bar.update = report
    try:
        yield
    finally:
        progress.Bar.update = update


def killed(folder, save_every):
    """Runs it with one step per dispatch and kills this process after step 9."""
    with call_at(9, lambda: os.kill(os.getpid(), 9)):
        run(tiny(steps_per_dispatch=1, save_every=save_every), Path(folder))


def mesh_of(devices):
    """The first devices on one axis."""
    axis = jax.sharding.AxisType.Auto
    return jax.make_mesh((devices,), ("data",), (axis,), devices=jax.devices()[:devices])


def steps(cases, denoise=False):
    """Losses, right answers and the program's collectives of three steps, for each case.

    A case is the number of devices, the microbatch, the model and its settings.
    """
    results = []
    for devices, microbatch, *model in cases:
        built = tiny(*model, denoise=denoise, batch_size=BATCH, microbatch=microbatch)
        batches = pipeline.train_batches(rows(30), 0, 0, 3, BATCH, 3)
        program = step.Program.compile(built, mesh_of(devices), batches)
        _, logs = program.steps(program.initial_state(0), program.place(batches), 3)
        collectives = re.findall(rf"\b({COLLECTIVES})(?:-start)?\(", program.update.as_text())
        results.append([logs.loss.tolist(), logs.correct.tolist(), collectives])
    return results


def scores():
    """Scores of 21 rows on one device (batches of 5) and on four (of 8); right rows, logits."""
    built, arrays = tiny(), rows(21)
    variables = built.init(0)
    scores = [
        score.make_scorer(built.objective, 5, mesh)(variables, arrays, bits=True)
        for mesh in (mesh_of(1), mesh_of(4))
    ]
    apply = jax.jit(functools.partial(built.model.apply, train=False))
    logits = apply(variables, *built.task.tokens(arrays.values, arrays.lengths))
    return [*scores, (logits.argmax(-1) == arrays.labels).tolist(), logits.tolist()]


def start(name, *given, devices=1):
    """Runs a function of this file in a process with that many CPU devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.run(
        [sys.executable, __file__, name, json.dumps(given)],
        capture_output=True,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )


def value_of(name, *given, devices=1):
    """Returns what a function of this file returns in such a process."""
    ended = start(name, *given, devices=devices)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*json.loads(sys.argv[2]))))
