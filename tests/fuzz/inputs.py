"""Inputs that are nearly right: files with a few bytes changed, JSON with a few values changed."""

import copy
import json

from hypothesis import strategies as st

INTERESTING = (  # bytes that a few random ones would hardly ever make
    *(b"\0", b"\r\n", b"\t", b"\xff\xfe", b"\xed\xa0\x80", b"NaN", b"null", b"[]", b"{}"),
    *(b"-1", b"1e999", b"9" * 5000, b"[" * 30_000, b'{"a":' * 20_000, b" " * 5000, b"\xe2\x80\xa8"),
)

names = st.text(min_size=1, max_size=12).filter(lambda s: "/" not in s and s not in (".", ".."))
name_on_disk = names.filter(lambda s: "\0" not in s and s.isprintable())


@st.composite
def damaged(draw, content: bytes, most: int = 4):
    """Bytes with up to `most` edits: replaced, inserted, repeated or cut out."""
    data = bytearray(content)
    for _ in range(draw(st.integers(0, most))):
        place = draw(st.integers(0, len(data)))
        end = place + draw(st.integers(0, 8))
        match draw(st.sampled_from(["replace", "insert", "insert", "repeat", "cut", "end"])):
            case "replace":
                data[place:end] = draw(st.binary(min_size=1, max_size=8))
            case "insert":
                data[place:place] = draw(st.sampled_from(INTERESTING) | st.binary(max_size=8))
            case "repeat":
                data[place:place] = data[place : place + draw(st.integers(1, 200))]
            case "cut":
                del data[place:end]
            case "end":
                del data[place:]
    return bytes(data)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**31, 2**63, 10**30, "", "0", "\ud800", "a\nb", "../../x", "\0"])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(value, so_far=()):
    """Yields the path of every value inside a JSON value, as keys and indices."""
    yield so_far
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from paths(inner, (*so_far, key))


@st.composite
def damaged_value(draw, value):
    """A JSON value with up to three of its parts replaced, left out or renamed."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths(value))))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                value = draw(values)
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        match draw(st.sampled_from(["replace", "replace", "drop", "rename", "twice"])):
            case "replace":
                parent[path[-1]] = draw(values)
            case "drop":
                del parent[path[-1]]
            case "rename" if isinstance(parent, dict):
                parent[draw(st.text(max_size=6))] = parent.pop(path[-1])
            case "twice" if isinstance(parent, list):
                parent.append(parent[path[-1]])
    return value


def json_file(value):
    """The bytes of a JSON file: damaged in its values, or in its bytes."""
    good = json.dumps(value).encode()
    return damaged_value(value).map(lambda v: json.dumps(v).encode()) | damaged(good)


def lines_file(lines):
    """The bytes of a JSON Lines file, damaged in the same ways."""
    good = "".join(json.dumps(line) + "\n" for line in lines).encode()
    changed = damaged_value(lines).filter(lambda v: isinstance(v, list))
    return changed.map(lambda v: "".join(json.dumps(x) + "\n" for x in v).encode()) | damaged(good)
