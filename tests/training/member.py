"""One process of a group, with SCENARIO INDEX COUNT PORT [INDEX and COUNT that it claims].

The scenarios "train" and "pretrain" take the command's words after the port. SILENT and JOIN in the
environment shorten the time limits.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

from lra_fnet.errors import UserError
from lra_fnet.training import hosts

INDEX = COUNT = PORT = 0

# Its children begin with these modules; importing them takes longer than most scenarios.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["jax", "flax", "optax", "tensorboardX", "lra_fnet.run.execute"])


class Process:
    """A member that runs in a folder, with its output in a file; as `subprocess.Popen`."""

    def __init__(self, words, folder, environment, out):
        out.touch()
        self._process = _server.Process(target=_begin, args=(words, folder, environment, out))
        self._process.start()
        self.pid: int = self._process.pid  # pyright: ignore[reportAttributeAccessIssue]

    def wait(self, seconds=None):
        """Returns the exit code, negative after a signal; fails if it has not ended by then."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, "still running"
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)


def _begin(words, folder, environment, out):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    file = os.open(out, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(file, stream)
    main(words)


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
    assert [hosts.every(true) for true in (True, INDEX != 2, INDEX != 0, True)] == [1, 0, 0, 1]
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

    from lra_fnet.training import pipeline
    from lra_fnet.training.checkpoint import Checkpoints

    kept = Checkpoints(Path("run"))
    everywhere = jax.NamedSharding(pipeline.make_mesh(2), jax.P())
    x = jax.make_array_from_callback((3,), everywhere, lambda _: np.ones(3))
    for k in range(1, 11):
        for kind in ("last", "best"):
            kept.save(kind, k, {"x": x}, {})
        kept.wait()


def main(words):
    global INDEX, COUNT, PORT
    scenario, INDEX, COUNT, PORT = words[0], *map(int, words[1:4])
    hosts.SILENT_SECONDS = int(os.environ.get("SILENT", hosts.SILENT_SECONDS))
    hosts.JOIN_SECONDS = int(os.environ.get("JOIN", hosts.JOIN_SECONDS))
    hosts.GRACE_SECONDS = 1
    if scenario in ("train", "pretrain"):
        from lra_fnet import cli

        command = [scenario, *words[4:]]
        if COUNT > 1:
            command += ["--coordinator", f"127.0.0.1:{PORT}"]
            command += ["--processes", str(COUNT), "--process", str(INDEX)]
        sys.exit(cli.main(command))
    index, count = map(int, words[4:] or words[1:3])
    with hosts.join(hosts.place(f"127.0.0.1:{PORT}", count, index, False)):
        globals()[scenario]()


if __name__ == "__main__":
    main(sys.argv[1:])
