"""`lra_fnet.testing.check_task`: our tasks pass, and each broken promise is named."""

import dataclasses
import hashlib
import types

import numpy as np
import pytest
from paths import OUTSIDE
from toy import ROWS, TOY, Pairs, Toy

from lra_fnet import config, tasks
from lra_fnet.data import store
from lra_fnet.tasks import Raw, listops, pathfinder
from lra_fnet.testing import check_task

COUNTS = {listops: (200, 20, 20), pathfinder: (8, 4, 4)}


def text_of(values):
    return " ".join(listops.TOKENS[value] for value in values).encode()


@pytest.mark.parametrize(
    ("task", "decode"),
    [
        (tasks.make("listops", "short_128"), text_of),
        (tasks.make("pathx", "short_128"), None),
        (pathfinder.Pathfinder("short_32", 1024, black_is_padding=True), None),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_generated_tasks_pass(task, decode, monkeypatch):
    monkeypatch.setattr(store, "expected", dict)
    monkeypatch.setattr(pathfinder, "_CHUNK", 8)
    for module, rows in COUNTS.items():
        sets = {name: value._replace(rows=rows) for name, value in module.SETS.items()}
        monkeypatch.setattr(module, "SETS", types.MappingProxyType(sets))
    check_task(task, decode=decode)


def test_tasks_from_outside_pass():
    config.import_modules([str(OUTSIDE / "parity.py")])
    check_task(tasks.make("parity"))
    check_task(TOY)
    check_task(Pairs("small", 9))


def broken(**methods):
    """The toy task with other methods or class variables."""
    return dataclasses.dataclass(frozen=True)(type("Broken", (Toy,), methods))("small", 12)


def rows(draw):
    """A `raw` whose row i of a split is draw(split, i)."""
    return lambda self, source, jobs: Raw(
        {split: (draw(split, i, jobs) for i in range(n)) for split, n in ROWS.items()}
    )


def text(split, i, *_):
    digest = hashlib.sha256(f"{split} {i}".encode()).digest()
    return np.frombuffer(digest[:8], np.uint8) % 6, i % 3


RNG = np.random.default_rng()
TEXT = types.SimpleNamespace(
    encode=lambda self, content: np.frombuffer(content, np.uint8) + np.uint8(1),
    tokens=lambda self, values, lengths: (values.astype(int), values > 0),
)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"raw": rows(lambda *_: (RNG.integers(0, 6, 9, np.uint8), 1))}, "same rows at every"),
        ({"raw": rows(lambda s, i, jobs: (text(s, i)[0][:jobs], i % 3))}, "same rows at every"),
        ({"raw": rows(lambda s, i, _: (text(s, i)[0], i % 2))}, "no training row has the label 2"),
        ({"raw": rows(text), "tokens": TEXT.tokens}, r"tokens of train must be value \+ 1 before"),
        ({"raw": rows(text), "num_ids": 3}, "token ids of train must be below 3"),
        (
            {"raw": rows(text), "vocab_size": 257, "encode": TEXT.encode},
            "encode must give the values of row 0 of train",
        ),
    ],
)
def test_broken_promise_is_named(methods, message):
    with pytest.raises(AssertionError, match=rf"^toy/small: .*{message}"):
        check_task(broken(**methods))
