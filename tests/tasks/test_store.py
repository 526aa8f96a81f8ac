"""Sets on disk: whole or absent, checked when opened and read; and how tasks are registered."""

import dataclasses
import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
from paths import TESTS
from toy import ROWS, TOY, Pairs, Toy, made

import lra_fnet
from lra_fnet import tasks
from lra_fnet.counts import Counts
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress
from lra_fnet.tasks import Prepared


def child(tmp_path):
    """Starts tests/tasks/prepare_slowly.py."""
    paths = (tmp_path / "started", tmp_path / "go", tmp_path / "data")
    command = [sys.executable, TESTS / "tasks/prepare_slowly.py", *paths]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until(condition, *processes, seconds=60):
    """Waits for a condition while the processes run."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        assert all(process.poll() is None for process in processes), "a process has ended"
        time.sleep(0.01)


def leftovers(folder):
    """Unfinished sets next to a set's folder."""
    return list(folder.parent.glob(f".{folder.name}.*"))


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def record_file(folder, split):
    (path,) = folder.glob(f"*-{split}.array_record-*")
    return path


# Rows are read as they were written


def test_arrays_are_the_rows_in_order_padded_with_zeros(tmp_path):
    prepared = tasks.prepare(TOY, tmp_path)
    for split, n in ROWS.items():
        arrays = prepared.arrays(split)
        assert arrays.values.shape == (n, 12)
        assert [a.dtype for a in arrays] == [np.uint8, np.int32, np.int32]
        for i, (values, label) in enumerate(made(split, n)):
            assert arrays.lengths[i] == len(values)
            assert arrays.labels[i] == label
            np.testing.assert_array_equal(arrays.values[i, : len(values)], values)
            assert not arrays.values[i, len(values) :].any()


def test_several_files_per_split_hold_the_same_rows(tmp_path, monkeypatch):
    whole = tasks.prepare(TOY, tmp_path / "whole")
    monkeypatch.setattr(store, "_SHARD_BYTES", 12 * 100)
    monkeypatch.setattr(store, "_BATCH", 50)
    parts = tasks.prepare(TOY, tmp_path / "parts")
    assert len(list(parts.folder.glob("*-train.array_record-*"))) == 3
    assert parts.splits == whole.splits
    for got, want in zip(parts.arrays("train"), whole.arrays("train"), strict=True):
        np.testing.assert_array_equal(got, want)


def test_tfds_reads_the_folder_itself(tmp_path):
    import tensorflow_datasets as tfds  # late: takes seconds

    prepared = tasks.prepare(TOY, tmp_path)
    source = tfds.builder_from_directory(prepared.folder).as_data_source(split="validation")
    arrays = prepared.arrays("validation")
    assert len(source) == 40
    for example, values, length, label in zip(source, *arrays, strict=True):
        np.testing.assert_array_equal(example["inputs"], values[:length])
        assert example["label"] == label


def test_rows_may_come_in_any_order_of_splits(tmp_path):
    class Mixed(Toy):
        def raw(self, source, jobs):
            waiting = {split: made(split, n) for split, n in reversed(ROWS.items())}
            return tasks.Raw(stream=self.turns(waiting), total=390)

        def turns(self, waiting):
            while waiting:
                for split in list(waiting):
                    row = next(waiting[split], None)
                    if row is None:
                        del waiting[split]
                    else:
                        yield split, row

    mixed = tasks.prepare(Mixed(config="small", max_len=12), tmp_path / "mixed")
    assert mixed.fingerprint == tasks.prepare(TOY, tmp_path / "plain").fingerprint


def test_split_without_rows_is_an_error(tmp_path):
    class Half(Toy):
        def raw(self, source, jobs):
            return tasks.Raw({"train": made("train", 3), "test": made("test", 3)})

    with pytest.raises(UserError, match="split validation has no rows: add some"):
        tasks.prepare(Half(config="small", max_len=12), tmp_path)
    assert files(tmp_path) == ["lra_toy/small/.lock"]


def test_split_that_the_task_does_not_have_is_an_error(tmp_path):
    class Misspelt(Toy):
        def raw(self, source, jobs):
            return tasks.Raw({"valid": made("validation", 3)})

    expected = "expected a row of split train, validation, test, got 'valid': correct the task's"
    with pytest.raises(UserError, match=f"^toy/small: {expected} raw$"):
        tasks.prepare(Misspelt(config="small", max_len=12), tmp_path)
    assert files(tmp_path) == ["lra_toy/small/.lock"]


def test_long_texts_are_cut_and_short_texts_padded(tmp_path):
    whole = tasks.prepare(TOY, tmp_path).arrays("test")
    cut = tasks.open(Toy(config="small", max_len=5), tmp_path).arrays("test")
    wide = tasks.open(Toy(config="small", max_len=20), tmp_path).arrays("test")
    np.testing.assert_array_equal(cut.values, whole.values[:, :5])
    np.testing.assert_array_equal(cut.lengths, np.minimum(whole.lengths, 5))
    np.testing.assert_array_equal(wide.values[:, :12], whole.values)
    assert wide.values.shape == (50, 20)


def test_two_texts_per_row(tmp_path):
    prepared = tasks.prepare(Pairs(config="small", max_len=12), tmp_path)
    arrays = prepared.arrays("validation")
    assert arrays.values.shape == (40, 2, 12)
    assert arrays.lengths.shape == (40, 2)
    for i, (values, _) in enumerate(made("validation", 40)):
        np.testing.assert_array_equal(arrays.values[i, 0, : len(values)], values)
        np.testing.assert_array_equal(arrays.values[i, 1, : len(values)], values[::-1])
    tasks.verify(prepared.task, tmp_path)


def test_values_of_two_bytes_are_kept_where_one_does_not_hold_the_vocabulary(tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Wide(Toy):
        name = "wide"
        vocab_size = 300

        def raw(self, source, jobs):
            rows = {s: [(v.astype("<u2") + 290, y) for v, y in made(s, n)] for s, n in ROWS.items()}
            return tasks.Raw(
                {s: [(v.clip(max=298), y) for v, y in part] for s, part in rows.items()}
            )

    wide = Wide(config="small", max_len=12)
    prepared = wide.prepare(tmp_path)
    assert wide.verify(tmp_path) == prepared
    arrays = prepared.arrays("test")
    assert arrays.values.dtype == np.uint16
    monkeypatch.setattr(store, "free_memory", lambda: 0)
    np.testing.assert_array_equal(prepared.arrays("test").values, arrays.values)
    narrow = tasks.prepare(TOY, tmp_path).arrays("test")
    np.testing.assert_array_equal(arrays.lengths, narrow.lengths)
    real = np.arange(12) < arrays.lengths[:, None]
    assert (arrays.values[real] == narrow.values[real] + np.uint16(290)).all()
    ids, mask = wide.tokens(arrays.values, arrays.lengths)
    assert ids[mask].max() == 296
    import tensorflow_datasets as tfds  # late: takes seconds

    source = tfds.builder_from_directory(prepared.folder).as_data_source(split="test")
    np.testing.assert_array_equal(source[7]["inputs"], arrays.values[7, : arrays.lengths[7]])


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


def test_row_outside_the_tasks_limits_is_an_error(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Wrong(Toy):
        name = "wrong"

        def raw(self, source, jobs):
            return tasks.Raw({s: [(np.array([0, 6], np.uint8), 1)] for s in tasks.SPLITS})

    with pytest.raises(
        UserError,
        match=r"train row 0: expected 1 texts of values uint8 .* up to vocab_size - 2 = 5",
    ):
        tasks.prepare(Wrong(config="small", max_len=12), tmp_path)

    class Listed(Toy):
        name = "listed"

        def raw(self, source, jobs):
            return tasks.Raw({s: [([0, 1], 1)] for s in tasks.SPLITS})

    with pytest.raises(UserError, match="row 0: expected a NumPy array for each text, got list"):
        tasks.prepare(Listed(config="small", max_len=12), tmp_path)


@pytest.mark.parametrize(
    "label", [1.0, np.float32(1), "1", None, True, np.True_, np.array([1]), float("nan")]
)
def test_label_that_is_no_integer_is_an_error(label, tmp_path):
    class Labelled(Toy):
        def raw(self, source, jobs):
            return tasks.Raw({s: [(np.array([0], np.uint8), label)] for s in tasks.SPLITS})

    expected = f"expected an integer as the label, got {type(label).__name__}: correct the task's"
    with pytest.raises(UserError, match=f"^toy/small, train row 0: {expected} raw$"):
        tasks.prepare(Labelled(config="small", max_len=12), tmp_path)


@pytest.mark.parametrize("text", ["a", None, True, 1.5])
def test_values_of_another_dtype_are_described(text, tmp_path):
    values = np.array([text])

    class Typed(Toy):
        def raw(self, source, jobs):
            return tasks.Raw({s: [(values, 1)] for s in tasks.SPLITS})

    largest = " up to 1.5" if text == 1.5 else ""
    with pytest.raises(UserError) as caught:
        tasks.prepare(Typed(config="small", max_len=12), tmp_path)
    end = rf" got {values.dtype} [1]{largest} and 1: correct the task's raw"
    assert str(caught.value).endswith(end)


# A set is whole or absent


def test_open_names_the_command_when_nothing_is_prepared(tmp_path):
    with pytest.raises(
        UserError, match=r"^toy/small is not prepared in .*: run `lra-fnet data --task toy"
    ):
        tasks.open(TOY, tmp_path)


def test_set_that_a_killed_process_had_put_aside_gets_its_name_back(tmp_path):
    """As between the two renames of --force, where the source may be gone by now."""
    prepared = tasks.prepare(TOY, tmp_path)
    aside = prepared.folder.with_name(f".{prepared.folder.name}.host-999999.old")
    prepared.folder.rename(aside)
    store.write_once(prepared.folder, prepared.folder.exists, lambda part: pytest.fail("made anew"))
    assert not aside.exists()
    assert tasks.open(TOY, tmp_path).fingerprint == prepared.fingerprint


def test_killed_preparation_is_not_a_set_and_is_removed_by_the_next_one(tmp_path):
    process = child(tmp_path)
    until((tmp_path / "started").exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    folder = TOY.folder(tmp_path / "data")
    assert leftovers(folder)
    with pytest.raises(UserError, match="is not prepared"):
        tasks.open(TOY, tmp_path / "data")
    tasks.prepare(TOY, tmp_path / "data")
    assert not leftovers(folder)
    tasks.verify(TOY, tmp_path / "data")


def test_set_without_fingerprint_is_made_again(tmp_path):
    """As if killed between the last record file and the fingerprint."""
    first = tasks.prepare(TOY, tmp_path)
    (first.folder / "fingerprint.json").unlink()
    record_file(first.folder, "train").write_bytes(b"junk")
    with pytest.raises(UserError, match="is not prepared"):
        tasks.open(TOY, tmp_path)
    assert tasks.prepare(TOY, tmp_path) == first
    tasks.verify(TOY, tmp_path)


def test_two_processes_prepare_once(tmp_path):
    processes = [child(tmp_path), child(tmp_path)]
    until((tmp_path / "started").exists, *processes)
    time.sleep(0.5)
    (tmp_path / "go").touch()
    first, second = (process.communicate(timeout=60)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert (tmp_path / "started").read_text() == "started\n"  # one of them made the rows
    assert first == second == tasks.open(TOY, tmp_path / "data").fingerprint + "\n"


def test_second_preparation_waits_and_says_so(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(disk, "say", said.append)
    folder = TOY.folder(tmp_path)
    second = threading.Thread(target=TOY.prepare, args=(tmp_path,))
    with disk.lock(folder.parent / ".lock"):
        second.start()
        until(lambda: said)
        assert said == [f"waiting for another process that prepares {folder.parent}"]
        assert not folder.exists()
    second.join(timeout=60)
    tasks.open(TOY, tmp_path)


def test_full_disk_fails_with_one_line_and_leaves_nothing(tmp_path):
    """A limit on file sizes replaces the full disk: the write itself fails, inside Riegeli."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        with pytest.raises(UserError) as info:
            tasks.prepare(TOY, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    folder = TOY.folder(tmp_path)
    assert str(info.value).startswith(f"{folder} cannot be written (File too large): ")
    assert not folder.exists()
    assert not leftovers(folder)
    tasks.prepare(TOY, tmp_path)


@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EACCES"])
def test_disk_error_fails_with_one_line(code, tmp_path, monkeypatch):
    error = OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    def refuse(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(disk, "replace", refuse)
        with pytest.raises(UserError, match=rf"1.0.0 cannot be written \({error.strerror}\)"):
            tasks.prepare(TOY, tmp_path)
    with pytest.raises(UserError, match="is not prepared"):
        tasks.open(TOY, tmp_path)


def test_folder_below_a_file_fails_with_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as info:
        tasks.prepare(TOY, tmp_path / "file" / "data")
    assert "Not a directory" in str(info.value)
    assert "\n" not in str(info.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_fails_with_one_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        tasks.prepare(TOY, tmp_path / "data")


def test_prepared_set_in_a_read_only_folder_is_used(tmp_path, monkeypatch):
    prepared = tasks.prepare(TOY, tmp_path)

    def refuse(*_):
        raise AssertionError("a prepared set must not need the lock")

    monkeypatch.setattr(disk, "lock", refuse)
    assert tasks.prepare(TOY, tmp_path) == prepared


# A task that has changed since


@pytest.mark.parametrize(
    ("methods", "was", "now"),
    [
        ({"vocab_size": 300}, "vocab_size 7, dtype uint8", "vocab_size 300, dtype uint16"),
        ({"vocab_size": 9}, "vocab_size 7", "vocab_size 9"),
        ({"num_inputs": 2}, "num_inputs 1", "num_inputs 2"),
        ({"value_dtype": np.dtype("<u2")}, "dtype uint8", "dtype uint16"),
    ],
)
def test_set_of_a_task_with_other_values_is_refused(methods, was, now, tmp_path):
    folder = tasks.prepare(TOY, tmp_path).folder
    changed = type("Changed", (Toy,), methods)(config="small", max_len=12)
    with pytest.raises(UserError) as caught:
        changed.prepare(tmp_path)
    command = f"lra-fnet data --task toy --dataset small --data {tmp_path} --force"
    assert str(caught.value) == (
        f"{folder} was prepared for {was}, but the task toy has {now}: prepare the set again with "
        f"`{command}`"
    )
    path = folder / "fingerprint.json"
    record = json.loads(path.read_text())
    for name in ("vocab_size", "num_inputs", "dtype"):
        del record[name]
    path.write_text(json.dumps(record))
    assert tasks.open(TOY, tmp_path).rows == ROWS  # made by an older version


# Damage


def test_set_that_was_made_anew_is_not_read_as_the_old_one(tmp_path):
    """By a process that opened it before, at its first and at its last row."""

    class Turned(Toy):
        def raw(self, source, jobs):
            rows = [(split, *row) for split, n in ROWS.items() for row in made(split, n)]
            stream = ((split, (values, 2 - label)) for split, values, label in rows)
            return tasks.Raw(stream=stream, total=len(rows))

    old = tasks.prepare(TOY, tmp_path)
    begun = store.read(old, "train")
    next(begun)
    new = tasks.prepare(Turned("small", 12), tmp_path, force=True)
    held = rf"it held rows {old.fingerprint[:8]}, now rows {new.fingerprint[:8]}"
    words = rf"made anew while it was in use \({held}\)"
    with pytest.raises(UserError, match=words):
        list(begun)
    for read in (lambda: next(store.read(old, "test")), lambda: old.arrays("test")):
        with pytest.raises(UserError, match=words):
            read()
    shutil.rmtree(new.folder)
    with pytest.raises(UserError, match="now no set"):
        old.arrays("test")


def test_truncated_file_is_found_when_the_set_is_opened(tmp_path):
    path = record_file(tasks.prepare(TOY, tmp_path).folder, "validation")
    size = path.stat().st_size
    os.truncate(path, size - 100)
    with pytest.raises(UserError) as info:
        tasks.open(TOY, tmp_path)
    assert str(info.value) == (
        f"{path}: expected {size} bytes, got {size - 100} bytes: delete {path.parent} and prepare "
        f"the set again with `lra-fnet data --task toy`"
    )
    path.unlink()
    with pytest.raises(UserError, match="got no such file: delete"):
        tasks.prepare(TOY, tmp_path)


@pytest.mark.parametrize("read", ["arrays", "verify"])
def test_flipped_byte_fails_with_file_and_split(read, tmp_path):
    prepared = tasks.prepare(TOY, tmp_path)
    path = record_file(prepared.folder, "validation")
    content = bytearray(path.read_bytes())
    content[content.index(b"inputs")] ^= 1  # inside the first record
    path.write_bytes(content)
    with pytest.raises(UserError) as info:
        prepared.arrays("validation") if read == "arrays" else tasks.verify(TOY, tmp_path)
    line = str(info.value)
    assert line.startswith(f"{path}: split validation cannot be read after 0 of 40 rows (")
    assert line.endswith(f"): delete {path.parent} and run the same command again")
    assert "\n" not in line
    prepared.arrays("train")  # the other splits are intact


def test_broken_installation_is_not_taken_for_a_damaged_set(tmp_path, monkeypatch):
    """As TFDS is when a package that it needs is missing: it imports, but has no functions."""
    prepared = tasks.prepare(TOY, tmp_path)
    monkeypatch.delattr("tensorflow_datasets.builder_from_directory")
    with pytest.raises(ImportError, match="builder_from_directory"):
        prepared.arrays("train")


def test_verify_finds_rows_that_were_exchanged(tmp_path):
    """The files are readable but have the wrong rows: only the sha256 shows it."""
    folder = tasks.prepare(TOY, tmp_path / "a").folder

    @dataclasses.dataclass(frozen=True)
    class Other(Toy):
        def raw(self, source, jobs):
            raw = super().raw(source, jobs)
            splits = {s: (((v[::-1].copy()), y) for v, y in r) for s, r in raw.splits.items()}
            return dataclasses.replace(raw, splits=splits)

    other = tasks.prepare(Other(config="small", max_len=12), tmp_path / "b").folder
    swapped = record_file(folder, "test")
    swapped.write_bytes(record_file(other, "test").read_bytes())
    with pytest.raises(
        UserError, match=r": split test holds other rows than were written \(expected sha256"
    ):
        tasks.verify(TOY, tmp_path / "a")


def test_damaged_fingerprint_fails_with_one_line(tmp_path):
    path = tasks.prepare(TOY, tmp_path).folder / "fingerprint.json"
    whole = path.read_text()
    record = json.loads(whole)
    record["splits"]["test"]["sha256"] = "0" * 64
    texts = {json.dumps(record): "is damaged", "{": "cannot be read", "[]": "dict", "{}": "damaged"}
    for place, key in (("", "files"), ("", "source"), ("test", "rows"), ("test", "lengths")):
        record = json.loads(whole)
        del (record["splits"][place] if place else record)[key]
        texts[json.dumps(record)] = "is damaged"
    for key, value in (("files", []), ("details", [{}]), ("origin", "x")):
        texts[json.dumps(json.loads(whole) | {key: value})] = "is damaged"
    for text, words in texts.items():
        path.write_text(text)
        with pytest.raises(UserError, match=f"fingerprint.json.*{words}"):
            tasks.open(TOY, tmp_path)


def test_error_of_reading_the_source_is_not_taken_for_one_of_the_disk(tmp_path):
    class Missing(Toy):
        def raw(self, source, jobs):
            return tasks.Raw(stream=self.rows(), source="mail")

        def rows(self):
            yield from open(tmp_path / "nowhere")  # noqa: SIM115

    with pytest.raises(UserError, match=r"^mail is damaged, unreadable .*No such file"):
        tasks.prepare(Missing(config="small", max_len=12), tmp_path / "data")


# lra_fnet.load and imports


def test_load_returns_numpy_arrays(tmp_path):
    arrays = lra_fnet.load("toy", "test", data_dir=tmp_path)
    want = tasks.open(TOY, tmp_path).arrays("test")
    for got, expected in zip(arrays, want, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert lra_fnet.load("toy", "test", max_len=3, data_dir=tmp_path).values.shape == (50, 3)
    with pytest.raises(UserError, match=r"^as_ must be one of numpy, tf, torch, got .jax.$"):
        lra_fnet.load("toy", "test", data_dir=tmp_path, as_="jax")


def test_load_as_tf_returns_the_same_rows(tmp_path):
    pytest.importorskip("tensorflow")
    arrays = lra_fnet.load("toy", "test", data_dir=tmp_path)
    dataset = lra_fnet.load("toy", "test", data_dir=tmp_path, as_="tf")
    rows = list(dataset.as_numpy_iterator())
    assert len(rows) == 50
    for key in ("values", "lengths", "labels"):
        np.testing.assert_array_equal([row[key] for row in rows], getattr(arrays, key))


def test_load_as_torch_returns_the_same_rows(tmp_path):
    torch = pytest.importorskip("torch")
    arrays = lra_fnet.load("toy", "test", data_dir=tmp_path)
    dataset = lra_fnet.load("toy", "test", data_dir=tmp_path, as_="torch")
    assert isinstance(dataset, torch.utils.data.TensorDataset)
    for got, want in zip(dataset.tensors, arrays, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
        assert got.numpy().dtype == want.dtype


@pytest.mark.parametrize(
    ("as_", "library", "package"),
    [("tf", "tensorflow", r"'lra-fnet\[tf\]'"), ("torch", "torch", "torch")],
)
def test_load_without_the_library_names_the_package_to_install(
    as_, library, package, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, library, None)  # import raises ImportError
    with pytest.raises(UserError, match=f"pip install {package}"):
        lra_fnet.load("toy", "test", data_dir=tmp_path, as_=as_)


def test_preparing_and_reading_import_neither_tensorflow_nor_jax(tmp_path):
    command = [sys.executable, TESTS / "tasks/prepare_lightly.py", tmp_path]
    subprocess.run(command, check=True)


def test_progress_without_a_terminal_is_plain_lines_on_stderr(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress.Bar, "seconds_a_line", 0.0)
    tasks.prepare(TOY, tmp_path)
    out, err = capsys.readouterr()
    assert out == ""  # TFDS prints nothing either
    assert err == ("preparing toy/small: 256 of 390 rows\npreparing toy/small: 390 rows in 0 s\n")


def test_nothing_but_the_set_is_left_on_disk(tmp_path):
    tasks.prepare(TOY, tmp_path)
    names = [f"lra_toy-{split}.array_record-00000" for split in ROWS]
    names += ["dataset_info.json", "features.json", "fingerprint.json"]
    want = ["lra_toy/small/.lock"]
    want += [f"lra_toy/small/1.0.0/{name}" for name in names]
    assert files(tmp_path) == sorted(want)
    assert not [p for p in tmp_path.rglob("*") if p.is_dir() and not any(p.iterdir())]


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


def test_published_rows_may_differ_in_content_but_not_in_number_or_labels(
    tmp_path, monkeypatch, capsys
):
    read = Read(config="small", max_len=12)
    expecting(monkeypatch, TOY, tmp_path, sha256="other")
    (source := tmp_path / "source").touch()
    read.prepare(tmp_path / "data", source=source)
    assert "expected.json" not in capsys.readouterr().err
    read.verify(tmp_path / "data")
    assert "data/expected.json says other: rows and labels match" in capsys.readouterr().err
    expecting(monkeypatch, TOY, tmp_path, label_counts=[50, 0, 0])
    with pytest.raises(UserError, match=r"label_counts is .* not comparable"):
        read.prepare(tmp_path / "again", source=source)


# A split larger than memory


@pytest.mark.parametrize("kind", [Toy, Pairs])
def test_split_larger_than_memory_is_mapped_and_equal(kind, tmp_path, monkeypatch, capsys):
    prepared = kind(config="small", max_len=9).prepare(tmp_path)
    whole = prepared.arrays("train")
    monkeypatch.setattr(store, "free_memory", lambda: 2 * whole.values.nbytes - 1)
    for messages in (1, 0):  # written, then read
        mapped = prepared.arrays("train")
        assert isinstance(mapped.values, np.memmap)
        for got, want in zip(mapped, whole, strict=True):
            np.testing.assert_array_equal(got, want)
            assert got.dtype == want.dtype
        assert capsys.readouterr().err.count("does not fit into memory") == messages
    (path,) = prepared.folder.glob("mapped.train.*/values.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    np.testing.assert_array_equal(prepared.arrays("train").values, whole.values)  # made anew
    assert capsys.readouterr().err.count("does not fit into memory") == 1
    assert not isinstance(prepared.arrays("test").values, np.memmap)
    kind(config="small", max_len=9).verify(tmp_path)


def test_a_length_that_no_disk_holds_is_named(tmp_path, monkeypatch):
    prepared = tasks.prepare(TOY, tmp_path)
    monkeypatch.setattr(store, "free_memory", lambda: 0)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: Mock(free=1))
    with pytest.raises(UserError, match=r"^\d+ rows of MAX_LEN=\d+ tokens take .*smaller MAX_LEN"):
        prepared.arrays("train")


def test_no_room_for_a_mapped_split_fails_with_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    prepared = tasks.prepare(TOY, tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr(store, "free_memory", lambda: 0)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=full))
    with pytest.raises(UserError, match="No space left on device"):
        prepared.arrays("train")
    assert {*files(tmp_path)} - {*before} == {"lra_toy/small/1.0.0/.lock"}


def test_the_disk_holds_the_whole_mapping_before_rows_are_written(tmp_path, monkeypatch):
    """Else a disk that is full by then kills the process."""
    prepared = tasks.prepare(Toy(config="small", max_len=5000), tmp_path)
    read, free = Prepared._read, []

    def reading(self, split, values):
        status = os.stat(values.filename)
        free.append(status.st_size - 512 * status.st_blocks)
        return read(self, split, values)

    monkeypatch.setattr(Prepared, "_read", reading)
    monkeypatch.setattr(store, "free_memory", lambda: 0)
    assert prepared.arrays("train").values.nbytes == 300 * 5000
    assert free[0] <= 0


def test_what_a_killed_mapping_left_is_removed_when_a_split_is_read(tmp_path):
    prepared = tasks.prepare(TOY, tmp_path)
    left = prepared.folder / ".mapped.test.12.host-999999"
    left.mkdir()
    (left / "values.npy").write_bytes(b"half")
    with disk.lock(prepared.folder / ".lock"):  # a process maps a split
        prepared.arrays("train")
    assert left.exists()
    prepared.arrays("train")
    assert not left.exists()


def test_vocabulary_that_two_bytes_cannot_name_is_an_error():
    def task(size):
        return type("Large", (Toy,), {"vocab_size": size})(config="small", max_len=12)

    assert task(65_537).value_dtype == np.uint16
    with pytest.raises(UserError, match=r"^toy/small: expected a vocab_size of at most 65537, .*"):
        task(65_538)
