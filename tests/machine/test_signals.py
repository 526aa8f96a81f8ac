"""Handlers of the signals that stop a process."""

import concurrent.futures
import signal

from lra_fnet.machine import signals


def test_block_in_another_thread_leaves_the_handlers_as_they_are():
    before = signal.getsignal(signal.SIGTERM)

    def enter():
        with signals.handled(signals.stop_at_once):
            return signal.getsignal(signal.SIGTERM)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() is before
