"""A trained run -> a folder to give away: weights, what they are, and a page for people.

model.safetensors   parameters and constants by name: encoder/block_0/mlp/wide/kernel
config.json         what the model is, from which run, with the run's result
README.md           what it is, how good, on which data, how to use it
"""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy

from lra_fnet import intervals, tasks
from lra_fnet.errors import UserError
from lra_fnet.run.trained import CONFIG, EXPORT, WEIGHTS, Run, flat, load_run
from lra_fnet.train import checkpoint

CARD = "README.md"
_NAMES = ("task", "model", "preset", "overrides", "variant", "seed", "commit", "dirty", "versions")
_SIZES = ("dim", "num_heads", "qkv_dim", "mlp_dim", "num_layers", "mixer_length")


def main(folder: Path, out: Path, kind: str = "best", *, force: bool = False) -> None:
    """Writes the folder `out` at once: it holds all three files or is not there.

    Args:
      folder: of a complete run.
      out: not there, empty, or with `force` an earlier export, which is replaced.
      kind: the checkpoint, "best" or "last".
      force: whether an earlier export may be replaced.

    Raises:
      UserError: as `load_run`; `out` holds something else; the disk refuses.
    """
    _check(out, force)
    run = load_run(folder, kind)
    target = out.absolute()
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    old = partial.with_suffix(".old")
    try:
        partial.mkdir(parents=True)
        _write(run, partial)
        if target.exists():
            target.rename(old)
        partial.rename(target)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written ({error.strerror}): choose another --out"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _check(out: Path, force: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"--out expects a folder, {out} is a file: choose another name")
    held = {path.name for path in out.iterdir()}
    if held - {CONFIG, WEIGHTS, CARD}:
        raise UserError(f"{out} holds other files: choose a folder that is not there")
    if held and not force:
        raise UserError(f"{out} holds an export: --force replaces it, or choose another folder")


def _write(run: Run, folder: Path) -> None:
    arrays = {
        name: np.ascontiguousarray(jax.device_get(leaf))
        for name, leaf in flat(run.variables).items()
    }
    (folder / WEIGHTS).write_bytes(safetensors.numpy.save(arrays))
    text = json.dumps(describe(run), indent=1)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    (folder / CARD).write_text(card(run), encoding="utf-8")


def describe(run: Run) -> dict:
    """The object of config.json."""
    task, encoder, result = run.task, run.model.encoder, run.result
    return {
        "format": EXPORT,
        **{name: result[name] for name in _NAMES},
        "checkpoint": run.checkpoint,
        "step": run.step,
        "parameters": result["parameters"],
        "parameters_sha256": checkpoint.sha256(run.variables["params"]),
        "sizes": {
            **{name: getattr(encoder, name) for name in _SIZES},
            "num_classes": task.num_classes,
            "num_inputs": task.num_inputs,
        },
        "classes": list(task.class_names),
        "vocabulary": {
            "num_ids": task.num_ids,
            "padding": 0,
            "id": "the value" if task.zero_is_padding else "the value + 1",
            "value": task.value_is,
            "length": task.max_len,
            "longer_inputs": "cut at the end",
        },
        "imports": list(run.imports),
        "config": run.experiment.config,
        "result": result,
    }


def card(run: Run) -> str:
    """The page for people: Markdown."""
    result, task = run.result, run.task
    name = result["model"] + (f"+{result['variant']}" if result["variant"] else "")
    commit = (result["commit"] or "unknown")[:12] + (" (dirty)" if result["dirty"] else "")
    chosen = "best on validation" if run.checkpoint == "best" else "the last one"
    floor = result["floor"]
    lines = [
        f"# {name} on {tasks.title(task.name)}",
        "",
        f"{result['parameters']:,} parameters, preset `{result['preset']}`, seed {result['seed']}, "
        f"step {run.step:,} ({chosen}), trained by lra-fnet at commit {commit}.",
        "",
        "| rows | right | of | accuracy (%) | 95 % interval |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            _row(split, result[split][run.checkpoint])
            for split in ("validation", "test")
            if result[split] is not None
        ),
        "",
        f"Always answering the most frequent class is right on {floor['correct']:,} of "
        f"{floor['count']:,} test rows ({100 * floor['correct'] / floor['count']:.2f} %). The "
        "interval is Wilson's, of the rows alone: another seed may differ by more.",
        "",
        *([] if result["test"] is not None else ["The test split was not read.", ""]),
        *_marks(run),
        "## Data",
        "",
        f"Trained on `{task.name}/{task.config}` from {result['data_source']}, sha256 "
        f"{result['data_sha256'][:12]}. Licence of the data: {task.licence}.",
        "",
        f"Inputs are cut at {task.max_len:,} tokens. The id of a token is "
        f"{'' if task.zero_is_padding else '1 + '}{task.value_is}; 0 is padding. Classes: "
        f"{', '.join(task.class_names)}.",
        "",
        "## Use",
        "",
        "```python",
        "import lra_fnet",
        "",
        'run = lra_fnet.load_run("path/to/this/folder")',
        "run.predict([...])  # raw inputs -> probabilities [n, classes]",
        "```",
        "",
        "or `lra-fnet predict --run path/to/this/folder FILE`. `config.json` has every setting, "
        "the result and the versions.",
    ]
    return "\n".join(lines) + "\n"


def _row(split: str, sums: dict) -> str:
    correct, count = sums["correct"], sums["count"]
    low, high = intervals.wilson(correct, count)
    share = f"{100 * correct / count:.2f} | {100 * low:.2f} to {100 * high:.2f}"
    return f"| {split} | {correct:,} | {count:,} | {share} |"


def _marks(run: Run) -> list[str]:
    """What a reader must know, each a paragraph."""
    result, found = run.result, []
    if result["preset"] != "paper":
        found += [f"Preset `{result['preset']}` is not the papers' setting.", ""]
    if result["validation_is_test"]:
        found += ["The checkpoint was chosen on the test rows (validation is test).", ""]
    if not result["uses_mask"]:
        found += ["The model sees the padding: pad to the run's length, as `load_run` does.", ""]
    return found
