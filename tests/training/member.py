"""One process of a run on several hosts, forked from a server that has imported JAX."""

import multiprocessing
import os
import signal
import sys

from lra_fnet.training import hosts

# Its children begin with these modules; importing them takes longer than most of the tests.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["jax", "flax", "optax", "tensorboardX", "lra_fnet.run.execute"])


class Process:
    """A command of lra-fnet that runs in a folder, with its output in a file."""

    def __init__(self, words, folder, out, environment):
        self._out = out
        self._process = _server.Process(target=_begin, args=(words, folder, out, environment))
        self._process.start()

    def wait(self, seconds):
        """Returns the exit code, negative after a signal; fails if it has not ended by then."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"still running: {self.output}"
        return self._process.exitcode

    def kill(self, number=signal.SIGKILL):
        if self._process.is_alive():
            os.kill(self._process.pid, number)

    @property
    def output(self):
        return self._out.read_text() if self._out.exists() else ""


def _begin(words, folder, out, environment):
    os.chdir(folder)
    os.environ.update(environment)
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    hosts.SILENT_SECONDS = 10
    from lra_fnet import cli

    sys.exit(cli.main(words))
