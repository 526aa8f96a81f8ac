"""The only module that opens the test split; makes result.json.

The model is chosen on validation. Test is read once for the chosen step and once for the last one,
and every reading is a line of `test_log.jsonl` beside the presets' folders.
"""

import datetime
import json
from pathlib import Path

import jax

from lra_fnet.machine import disk
from lra_fnet.machine.memory import device_bytes
from lra_fnet.run import folder as run_folder
from lra_fnet.tasks import Arrays, Prepared
from lra_fnet.train import hosts
from lra_fnet.train.checkpoint import sha256
from lra_fnet.train.loop import Loop
from lra_fnet.train.slices import microbatch_of


def finish(loop: Loop, data: Prepared, identity: dict, *, test: bool = True) -> dict:
    """Scores the last and the best state of a finished loop and returns the result.

    Args:
      loop: trained to its last step.
      data: the prepared task.
      identity: what names the run: task, model, preset, overrides, variant, seed.
      test: False leaves the test split closed (the trials of a sweep).

    Returns:
      The object of result.json; sums and counts over examples, never percentages.
    """
    history = loop.history
    assert history.last is not None
    assert history.best is not None
    share = len(loop.validation.labels)  # as many training rows as validation has
    head = Arrays(*(column[:share] for column in loop.arrays))
    train = loop.score(loop.variables(), head)
    result = {
        "schema": run_folder.SCHEMA,
        "state": "complete",
        **identity,
        **facts(loop.experiment, data),
        "validation": {"last": history.last, "best": history.best},
        "test": None,
        "train": {"correct": train["correct"], "count": train["count"]},
        "parameters": loop.parameters,
        "parameters_sha256": sha256(loop.state.params),
        "microbatch": microbatch_of(loop.experiment, jax.device_count()),
        "steps_per_second": history.timed_steps / max(history.timed_seconds, 1e-9),
        "wall_seconds": history.wall_seconds,
        **run_folder.provenance(),
    }
    if test:
        result["test"] = score_test(loop, data)
    result["peak_bytes"] = device_bytes()[1]
    return result


def facts(experiment, data: Prepared) -> dict:
    """What a result says of its task, model and data whatever the outcome."""
    correct, count = data.floor
    return {
        "floor": {"correct": correct, "count": count},
        "mixer_length": experiment.model.encoder.mixer_length,
        "uses_mask": experiment.uses_mask(),
        "validation_is_test": experiment.task.validation_is_test,
        "dataset": experiment.task.config,
        "data_source": data.source,
        "data_sha256": data.fingerprint,
        "config": experiment.config,
    }


def score_test(loop: Loop, data: Prepared) -> dict:
    """Test sums at the last step and at the best step on validation, and which rows are right.

    Logs each reading.
    """
    best, last = loop.history.best, loop.history.last
    assert best is not None
    assert last is not None
    arrays = data.arrays("test")
    scores = {"last": {"step": last["step"], **loop.score(loop.variables(), arrays, bits=True)}}
    if best["step"] == last["step"]:
        scores["best"] = dict(scores["last"])
    else:
        state = loop.checkpoints.restore("best", loop.state)
        variables = {"params": state.params, **state.constants}
        scores["best"] = {"step": int(state.step), **loop.score(variables, arrays, bits=True)}
    for kind, sums in scores.items() if hosts.first() else ():
        _log_reading(loop.folder, kind, sums)
    return scores


def _log_reading(folder: Path, kind: str, sums: dict) -> None:
    root = folder.parents[3]  # folder is root/preset/task/model/seed
    line = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": str(folder.relative_to(root)),
        "kind": kind,
        **{name: sums[name] for name in ("step", "correct", "count", "loss")},
        "platform": jax.default_backend(),
    }
    with disk.writable(root), open(root / "test_log.jsonl", "a") as log:
        log.write(json.dumps(line) + "\n")
