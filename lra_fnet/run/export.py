"""Exports a trained run to a folder that can be given away.

model.safetensors   parameters and constants by name: encoder/block_0/mlp/wide/kernel
config.json         what the model is, from which run, with the run's result
README.md           what it is, how good, on which data, how to use it
vocabulary.model    of a run on pieces of a corpus
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jinja2
import numpy as np
import safetensors.numpy

from lra_fnet import intervals
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run.record import TEST_LOG, Checkpoint
from lra_fnet.run.trained import CONFIG, WEIGHTS, TrainedRun, flat, load_run, weights_sha256
from lra_fnet.tasks.pieces import VOCABULARY

CARD = "README.md"


def main(
    folder: Path,
    out: Path,
    kind: Checkpoint = "best",
    imports: Sequence[str] = (),
    *,
    force: bool = False,
) -> None:
    """Exports a run: `out` then holds all its files, or is as it was before.

    Args:
      folder: of a complete run.
      out: a new or empty folder or, with `force`, an earlier export, which is replaced.
      kind: the checkpoint, "best" or "last".
      imports: see `load_run`.
      force: whether an earlier export may be replaced.

    Raises:
      UserError: see `load_run`; `out` holds something else, or cannot be written.
    """
    _check(out, force)
    run = load_run(folder, kind, imports)
    leaves = jax.device_get(flat(run.variables))
    arrays = {name: np.ascontiguousarray(leaf) for name, leaf in leaves.items()}
    needed = {name: store.read_file(run.data(), name) for name in run.task.needed}
    files = {name: hashlib.sha256(content).hexdigest() for name, content in needed.items()}
    contents = {
        WEIGHTS: safetensors.numpy.save(arrays),
        CONFIG: (json.dumps(describe(run) | {"files": files}, indent=1) + "\n").encode(),
        CARD: card(run).encode(),
        **needed,
    }
    with disk.writable(out, "--out"):
        target = out.resolve()  # of a link: it stays, and the folder that it names is filled
        target.parent.mkdir(parents=True, exist_ok=True)
        with disk.partial(target) as partial:
            partial.mkdir()
            for name, content in contents.items():
                (partial / name).write_bytes(content)


def _check(out: Path, force: bool) -> None:
    if out.is_file():
        raise UserError(f"--out expects a folder, {out} is a file: choose another name")
    if out.resolve() == Path.cwd():
        raise UserError(
            f"--out expects another folder than the current one, got {out}: name a new one"
        )
    names = {path.name for path in out.glob("*")}
    if names - {CONFIG, WEIGHTS, CARD, VOCABULARY, TEST_LOG} or (names and CONFIG not in names):
        raise UserError(f"{out} holds other files: choose a folder that does not exist")
    if names and not force:
        raise UserError(f"{out} holds an export: --force replaces it, or choose another folder")


def describe(run: TrainedRun) -> dict[str, Any]:
    """Returns the object of config.json, without the hashes of other files ("files")."""
    task = run.task
    return {
        "format": "lra-fnet 1",
        "checkpoint": run.checkpoint,
        "step": run.step,
        "parameters_sha256": weights_sha256(run.variables),
        "num_inputs": task.num_inputs,
        "classes": task.class_names,
        "vocabulary": {
            "num_ids": task.num_ids,
            "id": "the value" if task.zero_is_padding else "the value + 1",
            "value": task.value_is,
            "length": task.max_len,
        },
        "imports": run.needs,
        "result": run.result.raw,
    }


def card(run: TrainedRun) -> str:
    """Returns the page for people, in Markdown."""
    template = Path(__file__).with_name("templates") / "card.md"
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    code = [Path(name).name if name.endswith(".py") else name for name in run.needs]
    return environment.from_string(template.read_text("utf-8")).render(
        run=run, result=run.result, task=run.task, wilson=intervals.wilson, code=code
    )
