"""Prepares the toy task, but waits in the middle of the training rows.

Usage: prepare_slowly.py STARTED GO DATA. Appends a line to the file STARTED, then waits for the
file GO; prints the fingerprint.
"""

import dataclasses
import sys
import time
from pathlib import Path

import toy

started, go, data = map(Path, sys.argv[1:])


@dataclasses.dataclass(frozen=True)
class Slow(toy.Toy):
    def raw(self, source, jobs):
        raw = super().raw(source, jobs)
        return dataclasses.replace(raw, splits={**raw.splits, "train": waiting(raw)})


def waiting(raw):
    for i, row in enumerate(raw.splits["train"]):
        if i == 150:
            with started.open("a") as file:
                file.write("started\n")
            while not go.exists():
                time.sleep(0.01)
        yield row


print(toy.tasks.prepare(Slow(config="small", max_len=12), data).fingerprint)
