"""Readers end in a value or in one documented line, whatever they are given.

A slice, the same inputs each time. `python tests/fuzz/long.py` draws others for as long as wanted.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from targets import TARGETS

EXAMPLES = 40


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_reader_refuses_in_one_line(name):
    target = TARGETS[name]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def refuses(value):
        target.check(value)

    refuses()
