"""Handlers of the signals that stop a process."""

import concurrent.futures
import os
import signal
import sys

import pytest

from lra_fnet.machine import signals


def test_block_in_another_thread_leaves_the_handlers_as_they_are():
    before = signal.getsignal(signal.SIGTERM)

    def enter():
        with signals.handled(signals.stop_at_once):
            return signal.getsignal(signal.SIGTERM)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() is before


@pytest.mark.parametrize("in_python", [True, False])
def test_second_sigint_ends_the_command_but_not_a_python_session(in_python, monkeypatch, capfd):
    monkeypatch.setattr(os, "_exit", sys.exit)
    before = signal.default_int_handler if in_python else signals.stop_at_once
    ended = KeyboardInterrupt if in_python else SystemExit
    with signals.handled(before), signals.Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(ended):
            os.kill(os.getpid(), signal.SIGINT)
    assert "stopping: saving after the step in progress" in capfd.readouterr().err
