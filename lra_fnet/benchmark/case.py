"""The configurations that a benchmark measures, and the list of them for a table."""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra_fnet import experiment
from lra_fnet.benchmark.files import Subject
from lra_fnet.errors import UserError

SIZES = {"base": (768, 12), "large": (1024, 16)}  # width and heads: arXiv:2105.03824, Table 6
_SHARED = re.compile(r"(.*[./])?Run\.batch_size|MAX_LEN")  # settings that rows may not differ in
MIXING_LENGTH = 512  # tokens: arXiv:2105.03824, Table 8
ACCELERATOR_BATCH = 64  # examples, for the mixing sublayer on a GPU: arXiv:2105.03824, Table 8


@dataclasses.dataclass(frozen=True)
class Case(Subject):
    """One configuration, measured by one process."""

    size: str = ""
    cls: bool = False
    label: str = ""
    seconds: float = 2.0  # per round

    def load(self, accelerator: bool = False) -> experiment.Experiment:
        """Returns the experiment at exactly this length and number of tokens.

        Args:
          accelerator: whether the device is not a CPU; `size` then implies the paper's batch,
            unless `tokens` gives another.

        Raises:
          UserError: see experiment.load; or an override changes the length or the tokens.
        """
        bindings = [f"MAX_LEN={self.length - self.cls}", "Run.steps_per_dispatch=2"]
        bindings += ["Encoder.pooling=cls"] if self.cls else []
        rows = 0
        if self.tokens:
            rows = max(1, self.tokens // (self.length - self.cls))
            bindings += [f"Run.batch_size={rows}"]
        if self.size:
            dim, num_heads = SIZES[self.size]
            bindings += [f"Encoder.{field}={dim}" for field in ("dim", "qkv_dim")]
            bindings += [f"Encoder.num_heads={num_heads}"]
            paper = accelerator and not self.tokens
            bindings += [f"Run.batch_size={ACCELERATOR_BATCH}"] if paper else []
        load = functools.partial(
            experiment.load,
            self.task,
            self.model,
            self.preset,
            imports=self.imports,
            gin_dirs=[Path(folder) for folder in self.gin_dirs],
            denoise=self.what == "pretrain",
        )
        built = load((*bindings, *self.overrides))
        if built.model.encoder.mixer_length > self.length:  # the preset puts CLS in front
            bindings += ["Encoder.pooling=mean"]
            built = load((*bindings, *self.overrides))
        got = built.run.batch_size if rows else 0, built.model.encoder.mixer_length
        if got != (rows, self.length):
            raise UserError(
                "expected the batch and the length of --tokens, --lengths and --cls, "
                f"{rows} x {self.length}, got {got[0]} x {got[1]}: leave MAX_LEN, Run.batch_size "
                "and Encoder.pooling out of --set"
            )
        return built


def sizes(built: experiment.Experiment) -> dict[str, Any]:
    """Returns the facts of a side that depend on the experiment and the process only."""
    encoder = built.model.encoder
    return {
        "batch_size": built.run.batch_size,
        **{name: getattr(encoder, name) for name in ("dim", "num_layers", "dtype")},
        "threads": len(os.sched_getaffinity(0)),
    }


def plan(
    shared: Case,
    models: Sequence[str],
    whats: Sequence[str],
    lengths: Sequence[int],
    *,
    cls: bool = False,
    devices: Sequence[int] = (),
) -> list[Case]:
    """Returns the cells of the tables; each of them can be built.

    Args:
      shared: the settings that all cells share.
      models: names; NAME:BINDING is a separate row for the model with one more binding. A word that
        comes twice counts once.
      whats: some of `benchmark.WHATS`.
      lengths: tokens, each once; mixing has the paper's length if there are none, and the others
        need one.
      cls: also measures each length with CLS in front, L + 1.
      devices: numbers of devices, each a separate row; none uses the machine's.

    Raises:
      UserError: a model or binding is unknown, the binding of a row is one of the batch or the
        length, or a length is missing or does not divide the tokens.
    """
    if not lengths and (needy := [what for what in whats if what != "mixing"]):
        raise UserError(f"--what {','.join(needy)} needs --lengths, for example --lengths 512,1024")
    if min(lengths, default=1) < 1:
        raise UserError(f"--lengths expects positive numbers, got {min(lengths)}")
    if unequal := [length for length in lengths or [MIXING_LENGTH] if shared.tokens % length]:
        raise UserError(
            f"--tokens expects a multiple of every length, so that all batches have as many, got "
            f"{shared.tokens} and the length {unequal[0]}"
        )
    places = {length + 1: True for length in lengths if cls} | dict.fromkeys(lengths, False)
    cells = []
    rows = itertools.product(whats, _labels(models).items(), devices or [shared.devices])
    for what, ((model, binding), label), number in rows:
        row = dataclasses.replace(
            shared,
            what=what,
            model=model,
            overrides=(*shared.overrides, *filter(None, [binding])),
            label=f"{label}, {number} device{'s' * (number > 1)}" if number else label,
            devices=number,
        )
        sides = ["ours", *["definition"] * (what == "mixing" and model == "fnet" and not binding)]
        for (length, has_cls), size in itertools.product(
            sorted(places.items()) or [(MIXING_LENGTH, False)],
            SIZES if what == "mixing" else [""],
        ):
            cell = dataclasses.replace(row, length=length, cls=has_cls, size=size)
            cell.load()  # reports a mistake now, not after an hour
            cells += [dataclasses.replace(cell, side=side) for side in sides]
    return cells


def _labels(models: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns the label of each row, by model and binding: NAME, or NAME (binding).

    Raises:
      UserError: a binding is of the batch or the length.
    """
    labels = {}
    for model, _, binding in (word.partition(":") for word in models):
        if _SHARED.fullmatch(binding.partition("=")[0].strip()):
            raise UserError(
                f"--models {model}:{binding}: expected a binding of the model, as all rows share "
                "the batch and the length: give --set, --tokens or --lengths"
            )
        labels[model, binding] = f"{model} ({binding})" if binding else model
    return labels
