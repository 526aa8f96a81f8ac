"""Opens the pre-trained run that a run begins from, and checks that its encoder fits."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lra_fnet import config
from lra_fnet.errors import UserError
from lra_fnet.experiment import Experiment
from lra_fnet.machine import terminal
from lra_fnet.run import folder as run_files
from lra_fnet.run import model as trained
from lra_fnet.run.job import Job
from lra_fnet.run.result import Init
from lra_fnet.training.checkpoint import sha256

_TABLE = "encoder/embedding"  # has one more row in pre-training, of the mask
_POSITIONS = "encoder/positions_learned"  # is taken over as far as both are long
_POOLER = "encoder/pooler/"  # begins the names that one of the two may lack
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
      UserError: there is none, or it has other settings.
    """
    before = dataclasses.replace(job, denoise=True)
    again = terminal.command(before.command())
    begun = run_files.read_begun(before.folder)
    if begun is None:
        raise UserError(f"--init auto: there is no {before.folder} yet; first: {again}")
    differences = config.differing(begun.config or "", before.load().config)
    if differences:
        raise UserError(
            f"--init auto: {before.folder} has other settings "
            f"({'; '.join(map(str, differences))}): take it all the same with --init "
            f"{before.folder}, or pre-train again: {again} --force"
        )
    names = {text: config.short(config.split(text)[0]) for text in job.overrides}
    own = [text for text, name in names.items() if not name.startswith("Denoising.")]
    return dataclasses.replace(job, init=before.folder, overrides=tuple(own))


def open_run(folder: Path, experiment: Experiment, imports: Sequence[str] = ()) -> Start:
    """Reads the best checkpoint of a pre-trained run for an experiment that begins from it.

    Clears gin's bindings.

    Args:
      folder: of a complete run of `lra-fnet pretrain`.
      experiment: the one that begins.
      imports: see `trained.load_run`.

    Raises:
      UserError: see `trained.load_run`; the encoders differ.
    """
    run = trained.load_run(folder, "best", imports, denoise=True)
    how, result = run.experiment.denoising, run.result
    assert how is not None
    wanted = experiment.shapes()
    further = run.task.mask_id is None  # else the table has the mask's row in both stages
    misfit = _misfit(_encoder(run.variables, further=further), _encoder(wanted, further=further))
    encoders = [one.model.encoder for one in (run.experiment, experiment)]
    lengths = [encoder.mixer_length for encoder in encoders]
    if lengths[0] != lengths[1] and any(mixer.bound_to_max_len for mixer in encoders[1].mixers):
        misfit = misfit or f"made for {lengths[0]:,} -> {lengths[1]:,} tokens, see MAX_LEN"
    settings = differing(run.experiment.config, experiment.config)
    if misfit or settings:
        raise UserError(
            f"--init {folder} has another encoder ({'; '.join(settings) or misfit}): pre-train one "
            "with the settings of this run"
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


def _encoder(variables: Mapping[str, Any], *, further: bool) -> dict[str, str]:
    """Returns types and shapes of the encoder's arrays by name.

    The embedding of a mask that is a further id of pre-training does not count, nor does the number
    of learned positions.
    """
    shapes = {}
    for name, leaf in trained.flat(variables).items():
        shape = [*leaf.shape]
        if name == _TABLE and further and "output" in variables["params"]:
            shape[0] -= 1
        if name == _POSITIONS:
            shape = shape[1:]
        if name.removeprefix("constants/").startswith("encoder/"):
            shapes[name] = f"{leaf.dtype} {shape}"
    return shapes


def _misfit(held: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Returns the first array in which two encoders differ, in words; "" if they fit."""
    for name in sorted(held.keys() | wanted.keys()):
        optional = name.startswith(_POOLER) and not (name in held and name in wanted)
        if not optional and held.get(name) != wanted.get(name):
            return f"{name}: {held.get(name, 'absent')} -> {wanted.get(name, 'absent')}"
    return ""
