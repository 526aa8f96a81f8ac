"""Copies what a sweep tried to results/sweeps: python -m tools.keep_sweep runs/sweeps/NAME ...

Adds the seconds of each trial from its result.json, and leaves out the paths of this machine.
"""

import json
import sys
from pathlib import Path

from lra_fnet.machine import disk
from lra_fnet.run import result as results
from lra_fnet.sweep.plan import SHARED

TARGET = Path(__file__).parents[1] / "results/sweeps"


def keep(folder: Path, target: Path = TARGET) -> None:
    """Copies sweep.json and trials.json of runs/sweeps/<name> to <target>/<name>."""
    about, trials = (json.loads((folder / f"{name}.json").read_text()) for name in FILES)
    for trial in trials:
        result = results.read(folder.parents[1] / trial["folder"])
        trial["wall_seconds"] = result and result.wall_seconds
    about = {name: value for name, value in about.items() if name not in SHARED}
    for name, value in zip(FILES, (about, trials), strict=True):
        (target / folder.name).mkdir(parents=True, exist_ok=True)
        disk.write_json(target / folder.name / f"{name}.json", value)


FILES = ("sweep", "trials")

if __name__ == "__main__":
    for name in sys.argv[1:]:
        keep(Path(name))
