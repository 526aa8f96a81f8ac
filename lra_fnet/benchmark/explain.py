"""How "auto" computes the Fourier transform of FNet at each length, and why: `lra-fnet explain`."""

import dataclasses
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from lra_fnet.benchmark.cells import Cell
from lra_fnet.machine import disk, progress
from lra_fnet.models import fastest
from lra_fnet.models.mixers import fourier

METHODS = tuple(name for name in fourier.TRANSFORMS if name != "definition")


def main(shared: Cell, lengths: Sequence[int], *, cls: bool = False) -> None:
    """Prints the method of each length with the milliseconds that were measured for all.

    Args:
      shared: task, preset and overrides, which give batch and width.
      lengths: tokens.
      cls: also each length with CLS in front, L + 1.

    Raises:
      UserError: the preset cannot be built.
    """
    table = Table("B x L x D", *METHODS, "taken", "why", title="ms a transform", box=SIMPLE)
    for length in lengths:
        for more in (0, 1) if cls else (0,):
            cell = dataclasses.replace(shared, model="fnet", length=length + more, cls=bool(more))
            built = cell.load()
            encoder = built.model.encoder
            shape = (built.run.batch_size, encoder.mixer_length, encoder.dim)
            table.add_row(*row(shape, fourier.explain(shape)))
    progress.console.print(table)
    progress.say(
        f"kept in {disk.user_cache() / 'choices.json'}; without it they are measured anew; "
        "Fourier.method = 'rfft' (or another) overrides"
    )


def row(shape: tuple[int, int, int], found: fastest.Choice) -> list[str]:
    """A line of the table; the reason is the rule of `fastest.fastest` in words."""
    times = [f"{1e3 * found.seconds[m]:.2f}" if m in found.seconds else "-" for m in METHODS]
    if not found.seconds:
        why = "small"
    elif found.seconds[found.name] <= min(found.seconds.values()):
        why = "fastest"
    else:
        why = f"none is {fastest.MARGIN:g} x as fast"
    return [" x ".join(map(str, shape)), *times, found.name, why]
