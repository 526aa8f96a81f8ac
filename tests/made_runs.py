"""Run folders for the tests of what is done with trained runs."""

import json

import made_results
from paths import OUTSIDE

from lra_fnet import cli, config, experiment
from lra_fnet.machine import disk
from lra_fnet.train.checkpoint import Checkpoints
from lra_fnet.train.step import initial_state

TINY = (
    *("Encoder.dim=8", "Encoder.num_heads=2", "Encoder.qkv_dim=8", "Encoder.mlp_dim=8"),
    *("Encoder.num_layers=1", "Head.mlp_dim=8", "Run.eval_batch_size=4"),
)


def trained(runs, model, *settings):
    """The folder of a run of the task `parity`, trained by the command; its data is in `data`."""
    config.import_module(str(OUTSIDE / "parity.py"))
    which = ["--task", "parity", "--model", model, "--preset", "cpu", "--gin-dir", str(OUTSIDE)]
    where = ["--runs", str(runs), "--data", str(runs.parent / "data"), "--name", "tiny"]
    assert cli.main(["train", *which, *where, *(f"--set={text}" for text in settings)]) == 0
    return runs / f"cpu/parity/{model}+tiny/seed0"


def untrained(runs, task, model, *settings, imports=(), dirs=()):
    """A run folder as training leaves it, with the parameters that training begins with."""
    overrides = (*TINY, *settings)
    built = experiment.load(task, model, "cpu", overrides, imports, dirs)
    result = made_results.a_result(
        task=task, model=model, overrides=list(overrides), variant="tiny", config=built.config
    )
    folder = made_results.put(runs, result).parent
    begun = {"config": built.config, "imports": list(imports)}
    (folder / "run.json").write_text(json.dumps(begun))
    checkpoints = Checkpoints(folder)
    state = initial_state(built, 0)
    for kind in ("best", "last"):
        checkpoints.save(kind, result["validation"][kind]["step"], state, {}, wait=True)
    checkpoints.close()
    return folder


def change(file, **changes):
    """Changes some keys of a JSON file."""
    file.write_text(json.dumps(disk.read_json(file) | changes))
