"""Waits for what other processes do."""

import time


def until(condition, alive=lambda: True, seconds=300):
    """Waits until the condition holds; fails if that takes too long or those who do it end."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        assert alive(), "a process has ended"
        time.sleep(0.01)
