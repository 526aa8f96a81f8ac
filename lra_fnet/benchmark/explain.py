"""Explains how "auto" computes the Fourier transform of FNet at each length."""

from collections.abc import Sequence

from lra_fnet.benchmark import cells
from lra_fnet.machine import device, disk, progress, terminal
from lra_fnet.machine.terminal import Fitted
from lra_fnet.models.kernels import fastest
from lra_fnet.models.mixers import fourier
from lra_fnet.training import slices

METHODS = tuple(name for name in fourier.TRANSFORMS if name != "definition")


def main(shared: cells.Cell, lengths: Sequence[int], *, cls: bool = False) -> None:
    """Prints the chosen method at each length, with the milliseconds measured for all methods.

    B is the number of examples that a step takes at a time, in training and, where they differ, in
    inference (see `slices`): the choice is made for these.

    Args:
      shared: task, preset and overrides, which determine batch and width.
      lengths: tokens.
      cls: also measures each length with CLS in front, L + 1.

    Raises:
      UserError: the preset cannot be built.
    """
    device.require()
    table = []
    for cell in cells.plan(shared, ["fnet"], ["infer"], lengths, cls=cls):
        built = cell.load()
        encoder = built.model.encoder
        batch_size, tokens = built.run.batch_size, built.task.row_shape
        scored = slices.rows_at_once(built.model, batch_size, tokens, train=False)
        for rows in dict.fromkeys((slices.microbatch_of(built, 1), scored)):
            shape = (rows, encoder.mixer_length, encoder.dim)
            table.append(row(shape, fourier.explain(shape)))
    head = ["B x L x D", *METHODS, "chosen", "why"]
    terminal.console().print(Fitted(head, table, title="ms a transform"))
    progress.say(
        f"kept in {disk.user_cache() / 'choices.json'}: delete it to measure again, or bind "
        "Fourier.method = 'rfft' (or another method) to choose yourself"
    )


def row(shape: tuple[int, int, int], choice: fastest.Choice) -> list[str]:
    """Returns a line of the table; the reason is the rule of `fastest.fastest` in words."""
    times = [f"{1e3 * choice.seconds[m]:.2f}" if m in choice.seconds else "-" for m in METHODS]
    if not choice.seconds:
        why = "small"
    elif choice.seconds[choice.name] <= min(choice.seconds.values()):
        why = "fastest"
    else:
        why = f"none is {fastest.MARGIN:g} x as fast"
    return [" x ".join(map(str, shape)), *times, choice.name, why]
