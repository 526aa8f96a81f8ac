"""The command that the tests of sweeps share."""

import functools

import pytest


@pytest.fixture
def go(command):
    """Returns a function that calls `lra-fnet sweep`; it returns exit code, stderr and stdout."""
    return functools.partial(command, "sweep")
