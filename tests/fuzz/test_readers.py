"""Readers end in a value or in one documented line, whatever they are given.

A slice, the same inputs each time. `python tests/fuzz/long.py` draws others for as long as wanted.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from targets import TARGETS

EXAMPLES = 60
KNOWN = {  # readers that do not refuse everything well yet, and what passes
    "files_of_a_report": "TypeError for names that are no text",
    "fingerprint_json": "KeyError and TypeError for missing facts",
    "metrics_of_a_resumed_run": "KeyError and TypeError for lines without a step",
    "test_log_jsonl": "TypeError for lines that are no objects",
}
NAMES = [
    pytest.param(name, marks=pytest.mark.xfail(reason=KNOWN[name], strict=False))
    if name in KNOWN
    else name
    for name in sorted(TARGETS)
]


@pytest.mark.parametrize("name", NAMES)
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
