"""Reading result.json: damaged files fail with one line, roots have an order."""

import json
import re

import pytest
from made_results import a_result, put, with_test

from lra_fnet import intervals
from lra_fnet.errors import UserError
from lra_fnet.run import record


def test_run_in_two_roots_counts_once_and_the_first_root_wins(tmp_path):
    put(tmp_path / "runs", with_test(600))
    put(tmp_path / "results", with_test(640))
    put(tmp_path / "results", with_test(700, seed=1))
    runs = record.collect([tmp_path / "runs", tmp_path / "results"])
    assert [(run.folder, run.score("test").correct) for run in runs] == [
        ("runs/cpu/listops/fnet/seed0", 600),
        ("results/cpu/listops/fnet/seed1", 700),
    ]


def test_folders_moved_aside_and_missing_roots_hold_no_runs(tmp_path):
    file = put(tmp_path / "runs", a_result())
    file.parent.rename(file.parent.with_name(".seed0.moved-20250101-000000-000000"))
    put(tmp_path / "runs", a_result(seed=12)).parent.rename(file.parent.with_name("seed12.old"))
    assert record.collect([tmp_path / "runs", tmp_path / "absent"]) == []


def without(key):
    result = a_result()
    del result[key]
    return result


def with_bits(checkpoint, right):
    result = a_result()
    result["test"][checkpoint]["correct_bits"] = intervals.encode(right)
    return result


BROKEN = {
    "other schema": (a_result(schema=2), "expected schema 1, got 2"),
    "no key": (without("floor"), "'floor' is missing"),
    "no measurement": (without("parameters"), "'parameters' is missing"),
    "text for number": (a_result(seed="0"), "'seed' should be int, is \"0\""),
    "bool for number": (a_result(seed=False), "'seed' should be int, is false"),
    "state": (a_result(state="done"), 'expected a state of complete, OOM, diverged, got "done"'),
    "too many right": (with_test(2001), "test best: 2001 correct of 2000 rows is impossible"),
    "negative": (with_test(600, last=-1), "test last: -1 correct of 2000 rows is impossible"),
    "no rows": (
        a_result(floor={"correct": 0, "count": 0}),
        "floor: 0 correct of 0 rows is impossible",
    ),
    "rows left out": (with_test(600, count=1999), "test best: 1999 rows, the floor has 2000"),
    "too few bits": (
        with_bits("best", [True] * 600),
        "test best: 'correct_bits' does not fit: 75 bytes, but 2000 rows need 250",
    ),
    "other bits": (
        with_bits("last", [True] * 601 + [False] * 1399),
        "test last: 'correct_bits' does not fit: 601 correct rows, but 'correct' says 580",
    ),
    "no best": (
        a_result(validation={"last": {"step": 1, "correct": 1, "count": 2}}),
        "validation best should hold correct and count, is null",
    ),
    "device": (a_result(device={"name": "x"}), "device: 'platform' is missing"),
    "no variant": (a_result(overrides=["Run.num_steps=1"]), "a run with overrides needs a variant"),
    "overrides": (
        a_result(overrides=[1], variant="x"),
        r"'overrides' should be strings, are \[1\]",
    ),
    "other folder": (
        a_result(seed=3),
        "it says cpu/listops/fnet/seed3, its folder is cpu/listops/fnet/seed0",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_damaged_result_fails_with_one_line_that_names_the_file(tmp_path, case):
    content, problem = BROKEN[case]
    file = put(tmp_path / "runs", a_result())
    file.write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        record.collect([tmp_path / "runs"])
    remedy = "move its folder away, or run that run again with --force"
    assert re.fullmatch(f"{re.escape(str(file))}: {problem}; {remedy}", str(caught.value))


@pytest.mark.parametrize("content", [b'{"schema": 1,', b"\xff\xfe", b"[]"])
def test_file_that_is_not_a_json_object_fails_with_one_line(tmp_path, content):
    file = put(tmp_path / "runs", a_result())
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"result\.json.*: move it away$"):
        record.read(file.parent)
