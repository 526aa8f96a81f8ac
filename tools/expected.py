"""Writes the shallow baselines of a prepared set to data/expected.json.

    python -m tools.expected --task listops --dataset short_128 --length 128

Those of the set's earlier rows, which have another fingerprint, stay: old results need them.
"""

import argparse
import dataclasses
import json
import re
from pathlib import Path

from lra_fnet import tasks
from lra_fnet.baselines import shallow
from lra_fnet.machine import disk

PATH = Path(__file__).parents[1] / "data/expected.json"
_SHORT = r'\[[\d,\s]+\]|(?<="settings": )\{[^{}]*\}|\{\s*"correct"[^{}]*\}'  # one line each


def update(prepared: tasks.Prepared, path: Path = PATH) -> None:
    """Adds the baselines of a set at its task's length to the file."""
    task, facts = prepared.task, json.loads(path.read_text())
    entries = facts
    for name in (task.name, task.config, "shallow", prepared.fingerprint):
        entries = entries.setdefault(name, {})
    results = [dataclasses.asdict(result) for result in shallow.ensure(prepared)]
    for result in results:
        del result["correct_bits"]
    entries[str(task.max_len)] = results

    def on_a_line(match: re.Match) -> str:
        return re.sub(r"(?<=[\[{]) | (?=[\]}])", "", " ".join(match[0].split()))

    disk.replace(path, re.sub(_SHORT, on_a_line, json.dumps(facts, indent=1)) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--data", default="data")
    args = parser.parse_args()
    update(tasks.open(tasks.make(args.task, args.dataset, args.length), args.data))
