"""What `lra-fnet benchmark` does: measures, prints and writes the tables."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from lra_fnet.benchmark import turns
from lra_fnet.benchmark.case import Case
from lra_fnet.benchmark.files import Result
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import job as jobs


def main(
    cells: Sequence[Case],
    rounds: int,
    runs: Path,
    name: str | None,
    render: Callable[[Sequence[Result]], str],
) -> None:
    """Measures and prints; the tables are written into a folder below RUNS/benchmark.

    Args:
      cells: what is measured.
      rounds: number of measurements of each.
      runs: the folder of all runs.
      name: of the new folder; None takes task, preset and programs, with a free number.
      render: returns the tables as Markdown.

    Raises:
      UserError: there is a benchmark of this name, it cannot be the name of a folder, or the disk
        refuses, all before anything is measured.
    """
    words = dict.fromkeys(word for cell in cells for word in (cell.task, cell.preset, cell.what))
    start = runs / "benchmark" / str(jobs.variant((), name or "-".join(words)))
    numbered = (start.with_name(f"{start.name}-{number}") for number in itertools.count(2))
    folders = itertools.chain([start], numbered)
    folder = next(path for path in folders if not (path / "benchmark.json").exists())
    if name and folder != start:
        raise UserError(f"{start} holds a benchmark already: choose another --name")
    with disk.writable(folder):
        folder.mkdir(parents=True, exist_ok=True)

    def save(results: Sequence[Result]) -> None:
        with disk.writable(folder):
            disk.write_json(folder / "benchmark.json", [one.to_json() for one in results])
            disk.replace(folder / "benchmark.md", render(results))

    print(render(turns.run(cells, rounds, save)), end="")
    print(f"wrote {folder}")
