"""Reads everything that a report shows: runs, curves, sweeps, benchmarks, attention spans.

A damaged file is left out, with one line in `Sources.problems`.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from lra_fnet.benchmark import files
from lra_fnet.benchmark.files import Result
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, typed_json
from lra_fnet.run.folder import curve, read_span
from lra_fnet.run.result import TEST_LOG, Record, collect
from lra_fnet.sweep.files import About, Choice, Entry

T = TypeVar("T")


class SweepFiles:
    """The files of a sweep: sweep.json, trials.json, selected.json."""

    def __init__(self, file: Path):
        about = typed_json.load(file, About)
        assert about is not None
        self.about = about
        self.name = about.name or file.parent.name
        self.trials = typed_json.entries(file.with_name("trials.json"), Entry)
        self.selected = typed_json.entries(file.with_name("selected.json"), Choice)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark.json: its folder as <name of root>/..., and what came of its cells."""

    name: str
    cells: list[Result]


class Sources:
    """Everything that a report is made from. Runs are named by `Record.folder`.

    Attributes:
      problems: a line about each file that is left out because it is damaged.
      runs: their records.
      curves: their courses, where metrics.jsonl is there.
      spans: their attention_span.json.
      readings: how often the test split was read, of runs whose root has a readable log.
      sweeps, benchmarks: one for each folder; a copy under another root counts once.
      submitted: runs by others, by the name of their folder: <root>/submitted/<name>/<preset>/...
    """

    def __init__(self, roots: Sequence[str | Path]):
        """Reads everything under the roots."""
        self.runs, self.problems = collect(roots)
        folders = {run.folder: run.path for run in self.runs}

        def each(read: Callable[[Path], T | None]) -> dict[str, T]:
            values = {folder: self._try(read, path) for folder, path in folders.items()}
            return {folder: value for folder, value in values.items() if value is not None}

        self.curves, self.spans = each(curve), each(read_span)
        self.readings = self._readings(roots)
        theirs: dict[str, list[Path]] = {}
        for folder in (f for root in roots for f in sorted(Path(root).glob("submitted/*/"))):
            theirs.setdefault(folder.name, []).append(folder)
        self.submitted: dict[str, list[Record]] = {}
        for who, copies in theirs.items():
            self.submitted[who], problems = collect(copies)
            self.problems += problems
        self.sweeps: list[SweepFiles] = []
        self.benchmarks: list[Benchmark] = []
        for root in map(Path, roots):
            for file in sorted(root.glob("sweeps/*/sweep.json")):
                sweep = self._try(SweepFiles, file)
                known = [(other.name, other.about.created) for other in self.sweeps]
                if sweep and (sweep.name, sweep.about.created) not in known:  # the first root's
                    self.sweeps.append(sweep)
            for file in sorted((root / "benchmark").rglob("benchmark.json")):
                cells = self._try(files.read, file)
                folder = file.parent.relative_to(root)
                if cells and cells not in [benchmark.cells for benchmark in self.benchmarks]:
                    name = (Path(root.resolve().name) / folder).as_posix()
                    self.benchmarks.append(Benchmark(name, cells))

    def _try(self, read: Callable[[Path], T], path: Path) -> T | None:
        """Returns what `read` makes of a path, or None with a line in `problems`."""
        try:
            return read(path)
        except UserError as error:
            self.problems.append(str(error))
            return None

    def _readings(self, roots: Sequence[str | Path]) -> dict[str, int]:
        """Counts each run's evaluations on test, from its root's log.

        An evaluation logs a line for each checkpoint that it scores, the best one last.
        """
        readings = {}
        for root in (root for root in map(Path, roots) if (root / TEST_LOG).exists()):
            if (lines := self._try(disk.read_lines, root / TEST_LOG)) is not None:
                read = Counter(line.get("run") for line in lines if line.get("kind") == "best")
                for run in (run for run in self.runs if run.path.parents[3] == root):
                    count = read[run.path.relative_to(root).as_posix()]
                    readings[run.folder] = max(count, int(run.score("test") is not None))
        return readings
