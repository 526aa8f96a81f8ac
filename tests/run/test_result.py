"""result.json is checked once, by every reader in the same way, and becomes a value."""

import json
import math

import made_results
import numpy as np
import pytest
from made_results import a_failure, a_result, part_of_a_run, put, with_test
from paths import ROOT

from lra_fnet import counts
from lra_fnet.errors import UserError
from lra_fnet.run import folder as folders
from lra_fnet.run import result as results


def without(key):
    return {name: value for name, value in a_result().items() if name != key}


def with_bits(checkpoint, right):
    result = a_result()
    result["test"][checkpoint]["correct_bits"] = counts.encode(right)
    return result


def with_confusion(*rows):
    result = a_result()
    result["test"]["best"]["confusion"] = rows
    return result


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "cannot be read"),
        (b'{"schema": 1,', "cannot be read"),
        ([], "got a list"),
        (a_result(schema=2), "schema"),
        (without("floor"), "floor"),
        (without("parameters"), "parameters"),
        (a_result(train=None), "train"),
        (a_result(validation=None), "validation"),
        (a_result(seed="0"), "seed"),
        (a_result(seed=False), "seed"),
        (a_result(state="done"), "state"),
        (with_test(2001), "2001 correct of 2000"),
        (with_test(600, last=-1), "-1 correct of 2000"),
        (a_result(floor={"correct": 0, "count": 0}), "floor"),
        (with_test(600, count=1999), "1999"),
        (with_bits("best", [True] * 600), "correct_bits"),
        (with_bits("last", [True] * 601 + [False] * 1399), "correct_bits"),
        (with_confusion([400, 1400], [0, 199]), "confusion"),  # 1,999 rows
        (with_confusion([400, 1399], [0, 201]), "confusion"),  # 601 correct
        (with_confusion([600, 1400], [0]), "inhomogeneous"),
        (a_result(device={"name": "x"}), "device.platform"),
        (a_result(overrides=["Run.num_steps=1"]), "variant"),
        (a_result(model="../x"), "'../x'"),
        (a_result(versions={"lra_fnet": "1"}), "sha256"),
        (a_result(seed=3), "seed3"),
    ],
)
def test_broken_result_is_left_out_with_one_line_that_names_the_file(tmp_path, content, words):
    put(tmp_path / "runs", a_result(seed=1))
    file = put(tmp_path / "runs", a_result())
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    records, (line,) = results.collect([tmp_path / "runs"])
    assert [run.seed for run in records] == [1]
    assert line.startswith(str(file))
    assert words in line
    assert "\n" not in line


def test_record_has_the_values_of_the_file(tmp_path):
    value = with_bits("best", np.arange(2000) < 600)
    file = put(tmp_path / "runs", value)
    result = results.read(file.parent)
    assert result.raw == value
    assert (result.floor.correct, result.train.accuracy) == (360, 35.0)
    assert result.accuracy("test") == 100 * 600 / 2000
    assert result.accuracy("validation", "last") == 100 * 590 / 2000
    assert result.score("test", "last").step == 1000
    np.testing.assert_array_equal(result.right("test"), np.arange(2000) < 600)
    assert result.right("test", "last") is None
    assert (result.name, result.label) == ("fnet", "cpu/listops/fnet")
    assert (result.folder, result.path) == ("runs/cpu/listops/fnet/seed0", file.parent)
    assert (result.complete, result.tested) == (True, True)
    later = results.parse(value | {"scored_by": part_of_a_run(commit="e" * 40, dirty=True)})
    assert str(later.scored_by).startswith(f"{'e' * 12} (dirty) on 1 x Some CPU")


def test_optional_fields_may_be_missing():
    """Older results lack them, and have others."""
    value = a_result(variant="x", commit=None, dirty=None, rms=[{"step": 0}])
    for name in ("dataset", "data_source", "wall_seconds"):
        del value[name]
    del value["validation"]["best"]["loss"]
    value["steps_per_second"] = 2  # JSON's form of 2.0
    result = results.parse(value)
    assert (result.name, result.dataset, result.steps_per_second) == ("fnet+x", None, 2)
    assert math.isnan(result.score("validation").loss)
    assert result.revision == "unknown"


def test_failed_and_untested_runs_have_no_test_accuracy():
    failed = results.parse(a_failure("OOM", step=7))
    assert (failed.state, failed.step, failed.tested) == ("OOM", 7, True)
    assert (failed.accuracy("validation"), failed.right("test")) == (None, None)
    untested = results.parse(a_result(test=None))
    assert (untested.complete, untested.tested, untested.score("test")) == (True, False, None)


def test_moved_folder_is_read_only_on_request(tmp_path):
    file = put(tmp_path / "runs", a_result())
    moved = file.parent.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cpu/listops/fnet/seed0"):
        results.read(moved)
    assert results.read(moved, moved=True).label == "cpu/listops/fnet"
    assert results.read(tmp_path) is None


def test_a_folder_may_be_behind_a_link(tmp_path):
    """Of runs on a larger disk, or a run that is also named elsewhere."""
    folder = put(tmp_path / "runs", a_result()).parent
    (tmp_path / "link").symlink_to(folder)
    assert results.read(tmp_path / "link").folder == "runs/cpu/listops/fnet/seed0"
    (tmp_path / "runs/cpu").rename(tmp_path / "lra-cpu")
    (tmp_path / "runs/cpu").symlink_to(tmp_path / "lra-cpu")
    (run,), problems = results.collect([tmp_path / "runs"])
    assert (run.folder, problems) == ("runs/cpu/listops/fnet/seed0", [])


def test_write_makes_the_check_of_the_readers(tmp_path):
    with pytest.raises(ValueError, match="floor"):
        results.write(tmp_path, without("floor"))
    assert not list(tmp_path.iterdir())
    assert results.write(tmp_path, a_result()) == results.read(tmp_path, moved=True)


def test_collect_prefers_the_earlier_root_and_skips_other_folders(tmp_path):
    runs, kept = tmp_path / "runs", tmp_path / "results"
    put(runs, with_test(700))
    put(kept, with_test(600))
    put(kept, with_test(500, seed=1))
    folder = put(runs, a_result(model="linear", seed=2)).parent
    folder.rename(folder.with_name(".seed2.moved-20260101"))
    collected, _ = results.collect([runs, kept, tmp_path / "absent"])
    assert [(run.seed, run.score("test").correct) for run in collected] == [(0, 700), (1, 500)]


def test_committed_results_are_read_and_small():
    files = list((ROOT / "results").glob("*/*/*/seed*/result.json"))
    records, problems = results.collect([ROOT / "results"])
    assert (len(records), problems) == (len(files), [])
    for file in files:
        assert sum(other.stat().st_size for other in file.parent.iterdir()) <= 30 * 1024


def test_curve_has_losses_and_accuracies_by_step(tmp_path):
    assert folders.curve(tmp_path).step == 0
    file = made_results.put_curve(tmp_path / "result.json", steps=100)
    file.write_text(file.read_text() + '{"kind": "train", "st')  # is being written
    curve = folders.curve(tmp_path)
    assert curve.loss == [(step, 2 * (1 + 1 / step)) for step in range(10, 101, 10)]
    assert curve.validation == [(50, 5.0), (100, 10.0)]
    assert curve.step == 100
    file.write_text(
        '{"kind": "rms", "step": 0, "residual": [1, 2.5]}\n'  # of an earlier version
        '{"kind": "validation", "step": 2, "loss": NaN, "accuracy": 0.5}\n'  # diverged
    )
    curve = folders.curve(tmp_path)
    assert (curve.loss, curve.validation, curve.validation_loss) == ([], [(2, 50.0)], [])
