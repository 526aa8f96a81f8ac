"""What `lra-fnet benchmark` does: checks its options, measures, prints and writes the tables."""

import contextlib
import dataclasses
import functools
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lra_fnet.benchmark import WHATS, cells, overhead, scaling
from lra_fnet.benchmark.cells import Cell
from lra_fnet.benchmark.files import Result, Scaling
from lra_fnet.errors import Interrupted, UserError
from lra_fnet.machine import device, disk, signals
from lra_fnet.run.job import Job

DEVICES = (1, 2, 4, 8)  # numbers of devices that scaling measures


class Show(NamedTuple):
    """How the report shows results."""

    cells: Callable[[Sequence[Result]], str]  # tables of cells, as Markdown
    scaling: Callable[[Sequence[Scaling]], str]  # the table of a scaling, as Markdown
    draw: Callable[[Sequence[Result], Path], object]  # writes figures of cells into a folder


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of `lra-fnet benchmark` that are not settings of every cell.

    `what` has names of `WHATS`, "scaling" (over devices) and "pipeline" (the training loop).
    """

    models: Sequence[str]
    lengths: Sequence[int]  # in tokens
    what: Sequence[str]
    cls: bool
    peer: bool
    devices: Sequence[int]  # none: DEVICES
    rounds: int
    seconds: float | None  # a measurement of the loop; None: 30
    name: str | None

    def check(self, shared: Cell, source: str | Path | None) -> None:
        """Refuses options that would have no effect, and programs without lengths.

        Raises:
          UserError: there is one.
        """
        given = vars(self) | {"tokens": shared.tokens}
        idle = [name for name in ("lengths", "tokens", "cls", "name", "peer") if given[name]]
        if self.what == ["pipeline"] and idle:
            raise UserError(
                f"--what pipeline measures and prints the loop of the preset's own runs, so "
                f"--{idle[0]} has no effect: leave it out, or give --what train,infer"
            )
        if not self.lengths and (need := [w for w in self.what if w not in ("mixing", "pipeline")]):
            raise UserError(
                f"--what {','.join(need)} needs --lengths, for example --lengths 512,1024"
            )
        if self.devices and "scaling" not in self.what:
            raise UserError(
                "--devices is for --what scaling: leave it out, or add scaling to --what"
            )
        if source and "pipeline" not in self.what:
            raise UserError("--source is for --what pipeline, since other cells read no data")
        if self.what == ["scaling"] and self.cls:
            raise UserError("--what scaling measures no CLS: leave --cls out, or add --what train")
        if not self.lengths and self.cls:
            raise UserError("--cls adds a token to each of --lengths: leave it out, or give them")
        if shared.task == "corpus" and set(self.what) - {"pretrain"}:
            raise UserError(
                f"the task corpus is for pre-training, and --what is {','.join(self.what)}: "
                "give --what pretrain --lengths 128"
            )


def main(options: Options, shared: Cell, job: Job, show: Show) -> None:
    """Measures and prints; the tables of cells and of scaling are written under the job's runs.

    Args:
      options: what is measured.
      shared: the settings of all cells.
      job: those of the runs whose loops are measured, without a model.
      show: the forms of the results.

    Raises:
      UserError: an option has no effect, a setting cannot be built, or the folder cannot be
        written, all before anything is measured; scaling needs more memory than there is.
    """
    options.check(shared, job.source)
    measured = [what for what in WHATS if what in options.what]
    planned = functools.partial(cells.plan, shared, options.models)
    plan = planned(measured, options.lengths, cls=options.cls, peer=options.peer)
    scaled = planned(["train"], options.lengths) if "scaling" in options.what else []
    loops = "pipeline" in options.what
    jobs = [dataclasses.replace(job, model=model) for model in options.models if loops]
    if jobs:
        device.require()
    for each in jobs:
        each.load()  # reports a mistake before anything is measured

    folder = cells.folder(job.runs / "benchmark", [*plan, *scaled], options.name)
    with _scratch(folder) as scratch:
        if plan:
            save = functools.partial(_save, folder, "benchmark", show.cells)
            results = cells.run(plan, options.rounds, save)
            show.draw(results, folder)
            print(show.cells(results), end="")
        for cell in scaled:
            name = re.sub(r"[^\w.]+", "-", f"scaling.{cell.label}.{cell.length}")
            save = functools.partial(_save, folder, name, show.scaling)
            rows = scaling.run(cell, options.devices or DEVICES, options.rounds, save)
            print(show.scaling(rows), end="")
        if plan or scaled:
            print(f"wrote {folder}")
        for each in jobs:
            overhead.loop_overhead(each, options.rounds, options.seconds or 30.0, scratch)


def _save(folder: Path, name: str, render: Callable[[Any], str], results: Sequence[Any]) -> None:
    rows = [one.to_json() for one in results]
    with disk.writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        disk.write_json(folder / f"{name}.json", rows)
        disk.replace(folder / f"{name}.md", render(results))


@contextlib.contextmanager
def _scratch(folder: Path):
    """Gives a folder for runs whose loops are measured; a stopped benchmark leaves nothing of it.

    Args:
      folder: the results', which is deleted if nothing was written.
    """
    scratch = Path(tempfile.mkdtemp())

    def tidy() -> None:
        with contextlib.suppress(OSError):
            folder.rmdir()
        shutil.rmtree(scratch, ignore_errors=True)

    def stop(number, frame):
        tidy()
        written = f", and what it has written stays in {folder}" if folder.exists() else ""
        signals.stop_at_once(number, then=f"a benchmark begins anew{written}")

    with contextlib.ExitStack() as stack:
        stack.enter_context(signals.handled(stop))
        stack.callback(tidy)
        try:
            yield scratch
        except Interrupted as interrupted:  # a loop saves first
            stop(interrupted.signal, None)
