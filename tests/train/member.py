"""One process of a group: python member.py SCENARIO INDEX COUNT PORT [INDEX and COUNT it claims].

The scenarios "train" and "pretrain" take the command's words after the port. SILENT and JOIN in the
environment shorten the time limits.
"""

import os
import sys
import threading
import time
from pathlib import Path

from lra_fnet.errors import UserError
from lra_fnet.train import hosts

INDEX, COUNT, PORT = map(int, sys.argv[2:5])


def say(*words):
    print(*words, flush=True)


def agree():
    """Two threads agree, each on its own subject, while a stranger writes to the port."""
    import socket

    with socket.create_connection(("127.0.0.1", PORT)) as stranger:
        stranger.sendall(b"GET /\n")
        values = {}

        def count(subject):
            time.sleep(0.3 * (INDEX > 0))  # process 0 must not run away
            values[subject] = [hosts.agree([INDEX, k], subject) for k in range(250)]

        threads = [threading.Thread(target=count, args=(subject,)) for subject in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert values == {subject: [[0, k] for k in range(250)] for subject in "ab"}
    hosts.same("facts", {"seed": 0})
    mine = 15 if INDEX else None  # of processes 1 and 2
    while not (received := hosts.agree_on_signal(mine)):
        time.sleep(0.01)
    say("agreed on", received)


def nothing():
    """Joins and leaves."""


def differ():
    hosts.same("run", {"task": "text", "seed": INDEX // 2})


def separate():
    hosts.check_shared(Path("/proc" if INDEX == 1 else "."))


def wait():
    """Sleeps, counts in Python, or waits for process 0."""
    say("in")
    if INDEX == 2:
        hosts.agree(None)
    while INDEX == 1:
        pass
    time.sleep(99)


def err():
    say("in")
    if INDEX == 1:
        raise UserError("no space left")
    time.sleep(99)


def crash():
    if INDEX == 1:
        raise ZeroDivisionError("a bug")
    time.sleep(99)


def slow():
    """Process 1 counts for longer than the silence that is allowed."""
    end = time.monotonic() + 6
    while INDEX == 1 and time.monotonic() < end:
        pass
    hosts.same("counted", {})
    say("go")
    time.sleep(3)
    hosts.same("awake", {})


def save():
    """Saves both checkpoints of each step."""
    import jax
    import numpy as np

    from lra_fnet.train import pipeline
    from lra_fnet.train.checkpoint import Checkpoints

    kept = Checkpoints(Path("run"))
    everywhere = jax.NamedSharding(pipeline.make_mesh(2), jax.P())
    x = jax.make_array_from_callback((3,), everywhere, lambda _: np.ones(3))
    for k in range(1, 11):
        for kind in ("last", "best"):
            kept.save(kind, k, {"x": x}, {})
        kept.wait()


def main():
    hosts.SILENT_SECONDS = int(os.environ.get("SILENT", hosts.SILENT_SECONDS))
    hosts.JOIN_SECONDS = int(os.environ.get("JOIN", hosts.JOIN_SECONDS))
    hosts.GRACE_SECONDS = 1
    if sys.argv[1] in ("train", "pretrain"):
        from lra_fnet import cli

        words = [sys.argv[1], *sys.argv[5:]]
        if COUNT > 1:
            words += ["--coordinator", f"127.0.0.1:{PORT}"]
            words += ["--processes", str(COUNT), "--process", str(INDEX)]
        sys.exit(cli.main(words))
    index, count = map(int, sys.argv[5:] or sys.argv[2:4])
    with hosts.join(hosts.place(f"127.0.0.1:{PORT}", count, index, False)):
        globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
