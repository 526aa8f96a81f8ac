"""What `lra-fnet benchmark` does: measures, prints and writes the tables."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from lra_fnet.benchmark import WHATS, case, turns
from lra_fnet.benchmark.case import Case
from lra_fnet.benchmark.files import Result
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import job as jobs


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of `lra-fnet benchmark` that are not settings of every cell."""

    models: Sequence[str]
    lengths: Sequence[int]  # in tokens
    what: Sequence[str]  # names of `WHATS`
    cls: bool
    devices: Sequence[int]
    rounds: int
    name: str | None


def main(
    options: Request, shared: Case, runs: Path, render: Callable[[Sequence[Result]], str]
) -> None:
    """Measures and prints; the tables are written into a new folder below RUNS/benchmark.

    Args:
      options: what is measured.
      shared: the settings of all cells.
      runs: the folder of all runs.
      render: returns the tables as Markdown.

    Raises:
      UserError: a length is missing, the task has no such program, a setting cannot be built, or
        the folder cannot be written, all before anything is measured.
    """
    if not options.lengths and (needy := [what for what in options.what if what != "mixing"]):
        raise UserError(f"--what {','.join(needy)} needs --lengths, for example --lengths 512,1024")
    if shared.task == "corpus" and options.what != ["pretrain"]:
        raise UserError(
            f"the task corpus is for pre-training, got --what {','.join(options.what)}: give "
            "--what pretrain"
        )
    measured = [what for what in WHATS if what in options.what]
    plan = case.plan(
        shared, options.models, measured, options.lengths, cls=options.cls, devices=options.devices
    )
    folder = _folder(runs / "benchmark", plan, options.name)

    def save(results: Sequence[Result]) -> None:
        with disk.writable(folder):
            disk.write_json(folder / "benchmark.json", [one.to_json() for one in results])
            disk.replace(folder / "benchmark.md", render(results))

    try:
        print(render(turns.run(plan, options.rounds, save)), end="")
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # nothing was measured
    print(f"wrote {folder}")


def _folder(root: Path, plan: Sequence[Case], name: str | None) -> Path:
    """Makes a new folder: of this name, or of task, preset and programs with a free number.

    Raises:
      UserError: there is a benchmark of this name, or it cannot be the name of a folder; the disk
        refuses.
    """
    words = dict.fromkeys(word for cell in plan for word in (cell.task, cell.preset, cell.what))
    start = str(jobs.variant((), name or "-".join(words)))
    for number in itertools.count(1):
        folder = root / (start if number == 1 else f"{start}-{number}")
        with disk.writable(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                if name:
                    raise UserError(
                        f"{folder} holds a benchmark already: choose another --name"
                    ) from None
            else:
                return folder
    raise AssertionError
