"""Mistakes of a user: errors of one line that name what is wrong."""

import contextlib

import pytest

from lra_fnet.errors import UserError


@contextlib.contextmanager
def one_line(*words):
    """Expects a UserError of one line that has these words."""
    with pytest.raises(UserError) as caught:
        yield
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text
