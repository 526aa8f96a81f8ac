"""Makes run folders for tests of what is done with trained runs."""

import json

import made_results
import pytest
from paths import OUTSIDE

from lra_fnet import cli, config
from lra_fnet.machine import disk
from lra_fnet.run import provenance
from lra_fnet.run import result as results
from lra_fnet.run.job import Job
from lra_fnet.training.checkpoint import Checkpoints
from lra_fnet.training.step import initial_state

TINY = (
    *("Encoder.dim=8", "Encoder.num_heads=2", "Encoder.qkv_dim=8", "Encoder.mlp_dim=8"),
    *("Encoder.num_layers=1", "Head.mlp_dim=8", "Run.eval_batch_size=4"),
)
STEPS = ("Run.num_steps=12", "Run.eval_every=2", "Optimizer.learning_rate=0.03")
STEPS += ("Optimizer.warmup=2", "Optimizer.steps_per_cycle=1000")


class Folders(dict):
    """Run folders by name, each made by a function when it is first asked for."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __missing__(self, name):
        self[name] = self.make(name)
        return self[name]


def trained(runs, model, *settings, options=()):
    """Trains a run of the task `parity` by the command, with data in `data`; returns its folder.

    No file differs from its commit: others need not be equal to the bit.
    """
    config.import_modules([str(OUTSIDE / "parity.py")])
    which = ["--task", "parity", "--model", model, "--preset", "cpu", "--gin-dir", str(OUTSIDE)]
    where = ["--runs", str(runs), "--data", str(runs.parent / "data"), "--name", "tiny"]
    bindings = [f"--set={text}" for text in settings]
    with pytest.MonkeyPatch.context() as patched:
        without_changes(patched)
        assert cli.main(["train", *which, *where, *bindings, *options]) == 0
    return runs / f"cpu/parity/{model}+tiny/seed0"


def without_changes(monkeypatch):
    """Lets the process record its commit as if no file differed from it."""
    made, _ = provenance.commit()
    monkeypatch.setattr(provenance, "commit", lambda: (made, False))


def untrained(runs, task, model, *settings, imports=(), dirs=()):
    """Returns a run folder as training leaves it, with the parameters that training begins with."""
    overrides = (*TINY, *settings)
    job = Job(task, model, "cpu", 0, overrides, "tiny", runs, imports=imports, gin_dirs=dirs)
    experiment = job.load()
    result = made_results.a_result(**job.identity(), config=experiment.config)
    folder = made_results.put(runs, result).parent
    disk.write_json(folder / "run.json", job.to_json() | {"config": experiment.config})
    checkpoints = Checkpoints(folder)
    state = initial_state(experiment, 0)
    for kind in ("best", "last"):
        checkpoints.save(kind, result["validation"][kind]["step"], state, {}, wait=True)
    return folder


def change(file, **changes):
    """Changes some keys of a JSON file; a sealed one is as if it had been written so."""
    value = disk.read_json(file) | changes
    sealed = file.name in ("result.json", "run.json")
    file.write_text(json.dumps(results.seal(value) if sealed else value))


def flip_bit(file, place=-1):
    """Changes one bit of a file."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
