"""Sets on disk: whole or absent, checked when opened and read; and how tasks are registered."""

import dataclasses
import hashlib
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from paths import TESTS
from toy import ROWS, TOY, Pairs, Toy, made
from waiting import until

import lra_fnet
from lra_fnet import tasks
from lra_fnet.counts import Counts
from lra_fnet.data import store
from lra_fnet.errors import UserError


def child(tmp_path):
    """Starts tests/prepare_slowly.py."""
    paths = (tmp_path / "started", tmp_path / "go", tmp_path / "data")
    command = [sys.executable, TESTS / "prepare_slowly.py", *paths]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def record_file(folder, split):
    (path,) = folder.glob(f"*-{split}.array_record-*")
    return path


# Rows are read as they were written


@pytest.mark.parametrize("kind", [Toy, Pairs])
def test_arrays_are_the_rows_in_order_padded_with_zeros(kind, tmp_path):
    """The second text of a pair is the first one reversed."""
    prepared = tasks.prepare(kind(config="small", max_len=12), tmp_path)
    for split, n in ROWS.items():
        arrays = prepared.arrays(split)
        assert [a.dtype for a in arrays] == [np.uint8, np.int32, np.int32]
        want = np.zeros((n, kind.num_inputs, 12))
        for i, (text, label) in enumerate(made(split, n)):
            for j in range(kind.num_inputs):
                want[i, j, : len(text)] = text[::-1] if j else text
            assert (arrays.lengths[i] == len(text)).all()
            assert arrays.labels[i] == label
        shape = (n, 12) if kind is Toy else (n, 2, 12)
        np.testing.assert_array_equal(arrays.values, want.reshape(shape))
    tasks.verify(prepared.task, tmp_path)


@pytest.mark.parametrize("kind", [Toy, Pairs])
def test_long_texts_are_cut_and_short_texts_padded(kind, tmp_path):
    whole = tasks.prepare(kind(config="small", max_len=12), tmp_path).arrays("test")
    cut = tasks.open(kind(config="small", max_len=5), tmp_path).arrays("test")
    wide = tasks.open(kind(config="small", max_len=20), tmp_path).arrays("test")
    np.testing.assert_array_equal(cut.values, whole.values[..., :5])
    np.testing.assert_array_equal(cut.lengths, np.minimum(whole.lengths, 5))
    np.testing.assert_array_equal(wide.values[..., :12], whole.values)
    assert wide.values.shape == (*whole.values.shape[:-1], 20)


def test_fingerprint_holds_the_documented_facts(tmp_path):
    """Recomputes sha256, counts and quantiles from the description in data/README.md."""
    prepared = tasks.prepare(TOY, tmp_path)
    lines = ""
    for split, n in ROWS.items():
        content, labels, lengths = b"", [0, 0, 0], []
        for values, label in made(split, n):
            content += np.int32(label).astype("<i4").tobytes()
            content += np.uint32(len(values)).astype("<u4").tobytes() + values.tobytes()
            labels[label] += 1
            lengths.append(len(values))
        assert prepared.splits[split]["sha256"] == hashlib.sha256(content).hexdigest()
        assert prepared.rows[split] == n
        assert prepared.splits[split]["label_counts"] == labels
        quantiles = prepared.splits[split]["lengths"]
        assert (quantiles["min"], quantiles["max"]) == (min(lengths), max(lengths))
        assert quantiles["p50"] == sorted(lengths)[n // 2 - 1]
        assert quantiles["mean"] == pytest.approx(sum(lengths) / n, abs=0.005)
        lines += f"{split} {prepared.splits[split]['sha256']}\n"
    assert prepared.fingerprint == hashlib.sha256(lines.encode()).hexdigest()
    assert prepared.floor == Counts(max(prepared.splits["test"]["label_counts"]), 50)
    assert (
        tasks.verify(TOY, tmp_path)
        == tasks.open(TOY, tmp_path)
        == tasks.prepare(TOY, tmp_path)
        == prepared
    )


# A set is whole or absent


def test_killed_preparation_is_not_a_set_and_is_removed_by_the_next_one(tmp_path):
    process = child(tmp_path)
    until((tmp_path / "started").exists, lambda: process.poll() is None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    folder = TOY.folder(tmp_path / "data")
    assert list(folder.parent.glob(f".{folder.name}.*"))
    with pytest.raises(UserError, match="is not prepared"):
        tasks.open(TOY, tmp_path / "data")
    tasks.prepare(TOY, tmp_path / "data")
    assert not list(folder.parent.glob(f".{folder.name}.*"))
    tasks.verify(TOY, tmp_path / "data")


def test_two_processes_prepare_once(tmp_path):
    processes = [child(tmp_path), child(tmp_path)]
    until((tmp_path / "started").exists, lambda: all(p.poll() is None for p in processes))
    time.sleep(0.5)
    (tmp_path / "go").touch()
    first, second = (process.communicate(timeout=60)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert (tmp_path / "started").read_text() == "started\n"  # one of them made the rows
    assert first == second == tasks.open(TOY, tmp_path / "data").fingerprint + "\n"


# lra_fnet.load and imports


def test_preparing_and_reading_import_neither_tensorflow_nor_jax(tmp_path):
    code = "import sys, toy; print({'jax', 'numba'} & {*sys.modules}); "
    code += "toy.tasks.prepare(toy.TOY, sys.argv[1]).arrays('train'); "
    code += "print({'jax', 'tensorflow'} & {*sys.modules})"
    command = [sys.executable, "-c", code, tmp_path]
    assert subprocess.check_output(command, text=True, cwd=TESTS) == "set()\nset()\n"


# Compared with data/expected.json


class Read(Toy):
    """The rows of Toy, as if they were published."""

    def raw(self, source, jobs):
        return dataclasses.replace(super().raw(source, jobs), source=source.name)


def expecting(monkeypatch, task, tmp_path, **changes):
    """Sets data/expected.json to the facts of a preparation, with `changes` of its test split."""
    record = json.loads(
        (tasks.prepare(task, tmp_path / "once").folder / "fingerprint.json").read_text()
    )
    splits = {**record["splits"], "test": {**record["splits"]["test"], **changes}}
    monkeypatch.setattr(store, "expected", lambda: {"toy": {"small": {"splits": splits}}})


@pytest.mark.parametrize("key", ["rows", "label_counts", "sha256"])
def test_generated_rows_must_be_the_expected_ones(key, tmp_path, monkeypatch):
    expecting(monkeypatch, TOY, tmp_path, **{key: "other"})
    with pytest.raises(UserError, match=f"split test: {key} is .*, data/expected.json says other"):
        tasks.prepare(TOY, tmp_path / "data")
    assert files(tmp_path / "data") == ["lra_toy/small/.lock"]


# A split larger than memory


def task(**methods):
    """The toy task with other methods or class variables."""
    return dataclasses.dataclass(frozen=True)(type("Changed", (Toy,), methods))("small", 12)


def rows(values, label=1, splits=tasks.SPLITS):
    """A `raw` with one row in each split."""
    return lambda self, source, jobs: tasks.Raw({split: [(values, label)] for split in splits})


GOOD = np.array([0, 1], np.uint8)


@pytest.mark.parametrize(
    ("methods", "fragment"),
    [
        ({"raw": rows(GOOD, splits=("train", "test"))}, "split validation has no rows"),
        ({"raw": rows(GOOD, splits=("valid",))}, "got valid"),
        ({"raw": rows(np.array([0, 6], np.uint8))}, "vocab_size - 2 = 5"),
        ({"raw": rows([0, 1])}, "got train, list"),
        ({"raw": rows(np.array([1]))}, "got train, int64"),
        ({"raw": rows(np.array([], np.uint8))}, "length > 0"),
        ({"raw": rows(GOOD, 3)}, "a label below 3"),
        ({"raw": rows(GOOD, 1.0)}, "1.0"),
        ({"raw": rows(GOOD, None)}, "None"),
        ({"raw": rows((GOOD, GOOD))}, "expected rows of train, validation, test with 1 texts"),
    ],
)
def test_a_mistake_in_rows_is_refused_and_leaves_nothing(methods, fragment, tmp_path):
    with pytest.raises(UserError, match=fragment):
        tasks.prepare(task(**methods), tmp_path)
    assert files(tmp_path) == ["lra_toy/small/.lock"]


def test_rows_in_any_order_of_splits_and_in_several_files_are_the_same(tmp_path):
    def turns(self, source, jobs):
        waiting = {split: list(made(split, 1100)) for split in reversed(tasks.SPLITS)}
        stream = ((split, waiting[split][i]) for i in range(1100) for split in waiting)
        return tasks.Raw(stream=stream)

    def raw(self, source, jobs):
        return tasks.Raw({split: made(split, 1100) for split in tasks.SPLITS})

    whole = tasks.prepare(task(raw=raw), tmp_path / "whole")
    parts = tasks.prepare(task(raw=turns, configs={"small": 2**30}), tmp_path / "parts")
    assert len(list(parts.folder.glob("*-train.array_record-*"))) == 2
    assert parts.fingerprint == whole.fingerprint
    for got, want in zip(parts.arrays("train"), whole.arrays("train"), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "methods",
    [{"vocab_size": 300}, {"vocab_size": 9}, {"num_inputs": 2}, {"value_dtype": np.dtype("<u2")}],
)
def test_a_set_of_a_task_with_other_values_is_refused(methods, tmp_path):
    folder = tasks.prepare(TOY, tmp_path).folder
    with pytest.raises(UserError, match=rf"{next(iter(methods.values()))}.* --force"):
        tasks.prepare(task(**methods), tmp_path)
    path = folder / "fingerprint.json"
    record = json.loads(path.read_text())
    for name in ("vocab_size", "num_inputs", "dtype"):
        del record[name]
    path.write_text(json.dumps(record))
    assert tasks.open(TOY, tmp_path).rows == ROWS  # made by an older version


def test_values_of_two_bytes_are_kept_where_one_does_not_hold_the_vocabulary(tmp_path):
    def raw(self, source, jobs):
        wide = {s: [(v.astype("<u2") + 290, y) for v, y in made(s, n)] for s, n in ROWS.items()}
        return tasks.Raw(wide)

    wide = task(vocab_size=300, raw=raw)
    arrays = tasks.prepare(wide, tmp_path / "wide").arrays("test")
    narrow = tasks.prepare(TOY, tmp_path).arrays("test")
    assert arrays.values.dtype == np.uint16
    real = np.arange(12) < arrays.lengths[:, None]
    assert (arrays.values[real] == narrow.values[real] + np.uint16(290)).all()
    assert wide.tokens(arrays.values, arrays.lengths)[0].max() == 296
    with pytest.raises(UserError, match="below 65538, got 65538"):
        task(vocab_size=65_538)


def test_damage_is_found_when_a_set_is_opened_or_read(tmp_path):
    prepared = tasks.prepare(TOY, tmp_path)
    path, record = record_file(prepared.folder, "validation"), prepared.folder / "fingerprint.json"
    whole, text = path.read_bytes(), record.read_text()
    flipped = bytearray(whole)
    flipped[flipped.index(b"inputs")] ^= 1  # inside the first record
    path.write_bytes(flipped)
    for read in (lambda: prepared.arrays("validation"), lambda: tasks.verify(TOY, tmp_path)):
        with pytest.raises(UserError, match=f"^{path}: split validation .* 0 of 40 rows"):
            read()
    prepared.arrays("train")  # the other splits are intact
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=f"{path}: expected {len(whole)} bytes"):
        tasks.open(TOY, tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="got no such file"):
        tasks.prepare(TOY, tmp_path)
    path.write_bytes(whole)
    for damaged in ("{", "[]", "{}", text.replace('"sha256": "', '"sha256": "0')):
        record.write_text(damaged)
        with pytest.raises(UserError, match=r"fingerprint\.json"):
            tasks.open(TOY, tmp_path)


def turned(self, source, jobs):
    """A `raw` with other labels."""
    return tasks.Raw({s: [(v, 2 - y) for v, y in made(s, n)] for s, n in ROWS.items()})


def test_verify_finds_rows_that_were_exchanged(tmp_path):
    """The files are readable but have the wrong rows: only the sha256 shows it."""
    folder = tasks.prepare(TOY, tmp_path / "a").folder
    other = tasks.prepare(task(raw=turned), tmp_path / "b").folder
    record_file(folder, "test").write_bytes(record_file(other, "test").read_bytes())
    with pytest.raises(UserError, match="split test"):
        tasks.verify(TOY, tmp_path / "a")


def test_a_set_that_was_made_anew_is_not_read_as_the_old_one(tmp_path):
    """By a process that opened it before."""
    old = tasks.prepare(TOY, tmp_path)
    tasks.prepare(task(raw=turned), tmp_path, force=True)
    for read in (lambda: next(store.read(old, "test")), lambda: old.arrays("test")):
        with pytest.raises(UserError, match=f"made anew .*{old.fingerprint[:8]}"):
            read()


@pytest.mark.parametrize("kind", [Toy, Pairs])
def test_a_split_larger_than_memory_is_mapped_and_equal(kind, tmp_path, monkeypatch):
    prepared = tasks.prepare(kind(config="small", max_len=9), tmp_path)
    whole = prepared.arrays("train")
    monkeypatch.setattr(store, "free_memory", lambda: 2 * whole.values.nbytes - 1)
    for _ in range(2):  # written, then read
        mapped = prepared.arrays("train")
        assert isinstance(mapped.values, np.memmap)
        for got, want in zip(mapped, whole, strict=True):
            np.testing.assert_array_equal(got, want)
            assert got.dtype == want.dtype
    assert not isinstance(prepared.arrays("test").values, np.memmap)
    tasks.verify(prepared.task, tmp_path)


def test_published_rows_may_differ_in_content_but_not_in_number(tmp_path, monkeypatch, capsys):
    read = Read(config="small", max_len=12)
    expecting(monkeypatch, TOY, tmp_path, sha256="other")
    (source := tmp_path / "source").touch()
    tasks.prepare(read, tmp_path / "data", source=source)
    assert "expected.json" not in capsys.readouterr().err
    tasks.verify(read, tmp_path / "data")
    assert "expected.json" in capsys.readouterr().err
    expecting(monkeypatch, TOY, tmp_path, label_counts=[50, 0, 0])
    with pytest.raises(UserError, match="label_counts"):
        tasks.prepare(read, tmp_path / "again", source=source)


@pytest.mark.parametrize(("as_", "library"), [("tf", "tensorflow"), ("torch", "torch")])
def test_load_as_a_data_set_of_another_library(as_, library, tmp_path, monkeypatch):
    arrays = lra_fnet.load("toy", "test", data_dir=tmp_path)
    short = lra_fnet.load("toy", "test", max_len=3, data_dir=tmp_path)
    np.testing.assert_array_equal(short.values, arrays.values[:, :3])
    with pytest.raises(UserError, match=r"^as_ must be one of numpy, tf, torch, got 'jax'"):
        lra_fnet.load("toy", "test", data_dir=tmp_path, as_="jax")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, library, None)  # import raises ImportError
        with pytest.raises(UserError, match="pip install"):
            lra_fnet.load("toy", "test", data_dir=tmp_path, as_=as_)
    pytest.importorskip(library)
    rows = list(lra_fnet.load("toy", "test", data_dir=tmp_path, as_=as_))
    assert len(rows) == 50
    for i, row in enumerate(rows):
        row = list(row.values()) if isinstance(row, dict) else row
        for got, want in zip(row, arrays, strict=True):
            np.testing.assert_array_equal(got.numpy(), want[i])
