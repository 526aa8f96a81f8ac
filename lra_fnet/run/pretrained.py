"""Opens the pre-trained run that a run begins from, and checks that its encoder fits."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.experiment import Experiment
from lra_fnet.machine import terminal
from lra_fnet.run import model
from lra_fnet.run.job import Job
from lra_fnet.run.result import Init
from lra_fnet.training.checkpoint import sha256

# Bindings that do not change what an encoder computes in evaluation, but for the length.
_ELSEWHERE = ("Run.", "Optimizer.", "Head.", "Denoising.", "TASK", "build.", "DATASET")
_ELSEWHERE += ("Encoder.dropout", "Encoder.attention_dropout", "Encoder.remat", "Encoder.pooling")
_ELSEWHERE += ("MAX_LEN", "Encoder.max_len", "Encoder.dtype", *config.SPEED_ONLY)


class Start(NamedTuple):
    """What a run takes over from a pre-trained one."""

    facts: Init
    variables: dict  # of its best checkpoint, by collection


def auto(job: Job) -> Job:
    """Returns the job that begins from the run of `lra-fnet pretrain` with the same options.

    Raises:
      UserError: there is none.
    """
    before = dataclasses.replace(job, denoise=True)
    if not (before.folder / "run.json").exists():
        again = terminal.command(before.command())
        raise UserError(f"--init auto: there is no {before.folder} yet; first: {again}")
    names = {text: config.short(config.split(text)[0]) for text in job.overrides}
    own = [text for text, name in names.items() if not name.startswith("Denoising.")]
    return dataclasses.replace(job, init=before.folder, overrides=tuple(own))


def open_run(folder: Path, experiment: Experiment, imports: Sequence[str] = ()) -> Start:
    """Reads the best checkpoint of a pre-trained run for an experiment that begins from it.

    Clears gin's bindings.

    Args:
      folder: of a complete run of `lra-fnet pretrain`.
      experiment: the one that begins.
      imports: see `model.load_run`.

    Raises:
      UserError: see `model.load_run`; the encoders differ.
    """
    run = model.load_run(folder, "best", imports, denoise=True)
    how, result = run.experiment.denoising, run.result
    assert how is not None
    encoders = [one.model.encoder for one in (run.experiment, experiment)]
    old, new = (encoder.mixer_length for encoder in encoders)
    misfit = differing(run.experiment.config, experiment.config)
    if old != new and any(mixer.bound_to_max_len for mixer in encoders[1].mixers):
        misfit.append(f"made for {old:,} -> {new:,} tokens, see MAX_LEN")
    if misfit:
        raise UserError(
            f"--init {folder} has another encoder ({'; '.join(misfit)}): pre-train one with the "
            "settings of this run"
        )
    settings = dataclasses.asdict(how).items()
    return Start(
        Init(
            run=f"{result.label}/seed{result.seed}",
            objective=" ".join(f"Denoising.{name}={value!r}" for name, value in settings),
            rate=how.rate,
            step=run.step,
            steps=result.steps,
            wall_seconds=result.wall_seconds,
            sha256=sha256(run.variables["params"]["encoder"]),
        ),
        run.variables,
    )


def differing(held: str, wanted: str) -> list[str]:
    """Returns in which settings of the encoder two operative configs differ, in words."""
    return [
        str(difference)
        for difference in config.differing(held, wanted)
        if not difference.name.startswith(_ELSEWHERE)
    ]
