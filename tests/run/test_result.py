"""result.json is checked once, by every reader in the same way, and becomes a value."""

import json
import math
import re

import made_results
import numpy as np
import pytest
from made_results import a_failure, a_result, part_of_a_run, put, with_test
from paths import ROOT

from lra_fnet import counts
from lra_fnet.errors import UserError
from lra_fnet.run import folder as run_files
from lra_fnet.run import result as record


def without(key):
    return {name: value for name, value in a_result().items() if name != key}


def with_bits(checkpoint, right):
    result = a_result()
    result["test"][checkpoint]["correct_bits"] = counts.encode(right)
    return result


BROKEN = {
    "not text": (b"\xff\xfe", r"cannot be read \('utf-8' codec"),
    "cut off": (b'{"schema": 1,', r"cannot be read \(Expecting property name"),
    "a list": ([], "expected a JSON dict, got a list"),
    "other schema": (a_result(schema=2), "schema should be Literal.1., is 2"),
    "no key": (without("floor"), "floor is missing"),
    "no measurement": (without("parameters"), "'parameters' is missing"),
    "no training rows": (a_result(train=None), "'train' is missing"),
    "no split": (without("test"), "test is missing"),
    "no validation": (a_result(validation=None), "'validation' is missing"),
    "text for number": (a_result(seed="0"), 'seed should be int, is "0"'),
    "bool for number": (a_result(seed=False), "seed should be int, is false"),
    "text for null": (
        a_result(peak_bytes="much"),
        'peak_bytes should be int . None, is "much"',
    ),
    "list for object": (a_result(versions=[]), r"versions should be dict.str, str., is \[\]"),
    "state": (
        a_result(state="done"),
        "state should be Literal.'complete', 'OOM', 'diverged'., is .done",
    ),
    "too many right": (with_test(2001), "test.best: 2001 correct of 2000 rows is impossible"),
    "negative": (with_test(600, last=-1), "test.last: -1 correct of 2000 rows is impossible"),
    "no rows": (
        a_result(floor={"correct": 0, "count": 0}),
        "floor: 0 correct of 0 rows is impossible",
    ),
    "rows left out": (with_test(600, count=1999), "test best: 1999 rows, the floor has 2000"),
    "too few bits": (
        with_bits("best", [True] * 600),
        "test.best: correct_bits: 75 bytes, but 2000 rows need 250",
    ),
    "other bits": (
        with_bits("last", [True] * 601 + [False] * 1399),
        "test.last: correct_bits: 601 correct rows, but 'correct' says 580",
    ),
    "no best": (
        a_result(validation={"last": {"step": 1, "correct": 1, "count": 2}}),
        "validation.best is missing",
    ),
    "no step": (
        a_result(validation={"best": {"correct": 1, "count": 2}}),
        "validation.best.step is missing",
    ),
    "speed": (a_result(steps_per_second=math.nan), "steps_per_second cannot be nan"),
    "time": (a_result(wall_seconds=math.inf), "wall_seconds cannot be inf"),
    "memory": (a_result(peak_bytes=-1), "peak_bytes cannot be -1"),
    "size": (a_result(parameters=2**63), "parameters cannot be 9223372036854775808"),
    "device": (a_result(device={"name": "x"}), "device.platform is missing"),
    "no variant": (a_result(overrides=["Run.num_steps=1"]), "a run with overrides needs a variant"),
    "overrides": (
        a_result(overrides=[1], variant="x"),
        "overrides should be str, is 1",
    ),
    "other folder": (
        a_result(seed=3),
        "it says cpu/listops/fnet/seed3, its folder is cpu/listops/fnet/seed0",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_result_is_left_out_with_one_line_that_names_the_file(tmp_path, case):
    content, problem = BROKEN[case]
    put(tmp_path / "runs", a_result(seed=1))
    file = put(tmp_path / "runs", a_result())
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    records, (line,) = record.collect([tmp_path / "runs"])
    assert [run.seed for run in records] == [1]
    assert re.search(problem, line)
    assert line.startswith(str(file))
    assert "\n" not in line


def test_record_has_the_values_of_the_file(tmp_path):
    value = with_bits("best", np.arange(2000) < 600)
    file = put(tmp_path / "runs", value)
    result = record.read(file.parent)
    assert result.raw == value
    assert (result.seed, result.overrides, result.step) == (0, (), None)
    assert (result.floor.correct, result.train.accuracy) == (360, 35.0)
    assert result.accuracy("test") == 100 * 600 / 2000
    assert result.accuracy("validation", "last") == 100 * 590 / 2000
    assert result.score("test", "last").step == 1000
    np.testing.assert_array_equal(result.right("test"), np.arange(2000) < 600)
    assert result.right("test", "last") is None
    assert result.name == "fnet"
    assert result.label == "cpu/listops/fnet"
    assert result.folder == "runs/cpu/listops/fnet/seed0"
    assert result.path == file.parent
    assert result.provenance == (
        "commit 0123456789ab; 1 x Some CPU (cpu, 2 cores); "
        "data short_128 from generator, dddddddddddd"
    )
    assert (result.complete, result.tested) == (True, True)
    later = record.parse(value | {"scored_by": part_of_a_run(commit="e" * 40, dirty=True)})
    assert "; test: eeeeeeeeeeee (dirty) on 1 x Some CPU (cpu, 2 cores); data" in later.provenance


def test_optional_fields_may_be_missing():
    """Older results lack them."""
    value = a_result(variant="x", commit=None, dirty=None)
    for name in ("dataset", "data_source", "wall_seconds"):
        del value[name]
    del value["validation"]["best"]["loss"]
    value["steps_per_second"] = 2  # JSON's form of 2.0
    result = record.parse(value)
    assert (result.name, result.dataset, result.steps_per_second) == ("fnet+x", None, 2)
    assert math.isnan(result.score("validation").loss)
    assert result.provenance == "commit unknown; 1 x Some CPU (cpu, 2 cores); data dddddddddddd"
    assert record.parse(a_result(dirty=True)).revision == "0123456789ab (dirty)"


def test_failed_and_untested_runs_have_no_test_accuracy():
    failed = record.parse(a_failure("OOM", step=7))
    assert (failed.state, failed.step, failed.tested) == ("OOM", 7, True)
    assert (failed.accuracy("validation"), failed.right("test")) == (None, None)
    untested = record.parse(a_result(test=None))
    assert (untested.complete, untested.tested, untested.score("test")) == (True, False, None)


def test_moved_folder_is_read_only_on_request(tmp_path):
    file = put(tmp_path / "runs", a_result())
    moved = file.parent.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="it says cpu/listops/fnet/seed0, its folder is "):
        record.read(moved)
    assert record.read(moved, moved=True).label == "cpu/listops/fnet"
    assert record.read(tmp_path) is None


def test_a_folder_may_be_behind_a_link(tmp_path):
    """Of runs on a larger disk, or a run that is also named elsewhere."""
    folder = put(tmp_path / "runs", a_result()).parent
    (tmp_path / "link").symlink_to(folder)
    assert record.read(tmp_path / "link").folder == "runs/cpu/listops/fnet/seed0"
    (tmp_path / "runs/cpu").rename(tmp_path / "lra-cpu")
    (tmp_path / "runs/cpu").symlink_to(tmp_path / "lra-cpu")
    (run,), problems = record.collect([tmp_path / "runs"])
    assert (run.folder, problems) == ("runs/cpu/listops/fnet/seed0", [])


def test_write_makes_the_check_of_the_readers(tmp_path):
    with pytest.raises(ValueError, match="floor is missing"):
        record.write(tmp_path, without("floor"))
    assert not list(tmp_path.iterdir())
    assert record.write(tmp_path, a_result()) == record.read(tmp_path, moved=True)


def test_collect_prefers_the_earlier_root_and_skips_other_folders(tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    put(runs, with_test(700))
    put(results, with_test(600))
    put(results, with_test(500, seed=1))
    put(results, with_test(400, model="linear"))
    folder = put(runs, a_result(model="linear", seed=2)).parent
    folder.rename(folder.with_name(".seed2.moved-20260101"))
    collected, _ = record.collect([runs, results, tmp_path / "absent"])
    rows = [(run.label, run.seed, run.score("test").correct) for run in collected]
    assert rows == [
        ("cpu/listops/fnet", 0, 700),
        ("cpu/listops/fnet", 1, 500),
        ("cpu/listops/linear", 0, 400),
    ]


def test_committed_results_are_read():
    files = list((ROOT / "results").glob("*/*/*/seed*/result.json"))
    records, problems = record.collect([ROOT / "results"])
    assert (len(records), problems) == (len(files), [])
    assert records


def test_curve_has_losses_and_accuracies_by_step(tmp_path):
    empty = run_files.curve(tmp_path)
    assert (empty.loss, empty.validation, empty.step) == ([], [], 0)
    file = made_results.put_curve(tmp_path / "result.json", steps=100)
    file.write_text(file.read_text() + '{"kind": "train", "st')  # is being written
    curve = run_files.curve(tmp_path)
    assert curve.loss == [(step, 2 * (1 + 1 / step)) for step in range(10, 101, 10)]
    assert curve.validation == [(50, 5.0), (100, 10.0)]
    assert curve.step == 100
    file.write_text('{"kind": "rms", "step": 0, "residual": [1, 2.5], "mixer": [3.5, 4]}\n')
    assert run_files.curve(tmp_path).loss == []  # a line of an earlier version
    for line, problem in (
        ("3", "expected a JSON object in line 1"),
        ('{"step": 3, "loss": 1.0}', "kind is missing in a line"),
        ('{"kind": "train", "loss": 1.0}', "step is missing in a line"),
        ('{"kind": "train", "step": 3}', "loss is missing in a line"),
        ('{"kind": "train", "step": "x", "loss": 1.0}', 'step should be int, is "x"'),
        ('{"kind": "train", "step": -1, "loss": 1}', r"step should be from 0 to 2\*\*53, is -1"),
        (f'{{"kind": "train", "step": {10**28}, "loss": 1}}', "step should be from 0"),
        (f'{{"kind": "validation", "step": {2**53}, "accuracy": 1}}', "step should be from 0"),
        (
            '{"kind": "train", "step": 3, "loss": NaN}',
            "loss should be .* that float32 holds, is nan",
        ),
        (
            '{"kind": "train", "step": 3, "loss": -Infinity}',
            "loss should be .* that float32 holds, is -inf",
        ),
        ('{"kind": "train", "step": 3, "loss": 1e300}', "loss should be .* that float32 holds"),
        (
            '{"kind": "validation", "step": 3, "accuracy": NaN}',
            "accuracy should be from 0 to 1, is nan",
        ),
        (
            '{"kind": "validation", "step": 3, "accuracy": 40}',
            "accuracy should be from 0 to 1, is 40",
        ),
    ):
        file.write_text(line + "\n")
        with pytest.raises(UserError, match=rf"metrics.jsonl.*{problem}"):
            run_files.curve(tmp_path)


def test_a_misspelt_split_or_checkpoint_is_named():
    result = record.parse(a_result())
    with pytest.raises(UserError, match="split must be one of validation, test, got 'valid'"):
        result.accuracy("valid")
    with pytest.raises(UserError, match="checkpoint must be one of best, last, got 'first'"):
        result.score("test", "first")


def test_curve_of_a_diverged_run_may_end_with_a_validation_loss_that_is_not_finite(tmp_path):
    """`Loop._evaluate` writes these lines before it ends the run, and none with such a "train"."""
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 2, "loss": 3e38}\n'
        '{"kind": "validation", "step": 2, "loss": NaN, "accuracy": 0.5}\n'
    )
    curve = run_files.curve(tmp_path)
    assert (curve.loss, curve.validation, curve.step) == ([(2, 3e38)], [(2, 50.0)], 2)
