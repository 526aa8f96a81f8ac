"""Bindings as text: what separates two of them."""

import pytest

from lra_fnet import config
from lra_fnet.errors import UserError


def test_split_bindings_keeps_lists_strings_and_tuples_whole():
    text = """A.x=[1, 2,3]  B.y="two words" C.z=(0.9, 0.98) D.w='it is' E.v=None"""
    assert config.split_bindings(text) == [
        "A.x=[1, 2,3]",
        'B.y="two words"',
        "C.z=(0.9, 0.98)",
        "D.w='it is'",
        "E.v=None",
    ]
    assert config.split_bindings("A.x = 1 B.y= 2 C.z =3") == ["A.x = 1", "B.y= 2", "C.z =3"]
    # A comma, a semicolon or a = inside quotation marks is part of a value.
    assert config.normalise("A.x='b, c=d;'") == "A.x = 'b, c=d;'"
    assert config.split_bindings("") == []
    with pytest.raises(UserError, match="closed quotes and brackets"):
        config.split_bindings("A.x=[1, 2")
