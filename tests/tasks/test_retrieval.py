"""Retrieval: pairs of documents from LRA's release or from files of the same format."""

import io
import tarfile
from pathlib import PurePosixPath

import numpy as np
import pytest
import serving
from paths import SHARED

from lra_fnet import tasks
from lra_fnet.data import sources, store
from lra_fnet.errors import UserError
from lra_fnet.tasks import retrieval

FILES = {"train": "train", "eval": "validation", "test": "test"}
COUNTS = {"train": 7, "eval": 3, "test": 4}
AGAIN = f"get {retrieval.REMOTE}, or read other pairs in this format with --dataset pairs"
EXPECTED = "expected label, id1, id2, text1 and text2 with tabs between them"
REAL = SHARED / "data" / "acl_pairs.tar.xz"


def made():
    """File ("train" ...) -> its lines; some texts are longer than 4,000 bytes, some not UTF-8."""
    rng = np.random.default_rng(0)
    letters = np.setdiff1d(np.arange(256, dtype=np.uint8), [9, 10, 13])  # no tab, no end of line
    files = {}
    for file, count in COUNTS.items():
        lines = []
        for i in range(count):
            texts = (rng.choice(letters, rng.integers(1, 9000)).tobytes() for _ in range(2))
            lines.append(b"%d.0\tA%d\tB\t%s\t%s\n" % (i % 2, i, *texts))
        files[file] = lines
    return files


def write(files, folder, name="new_aan_pairs"):
    folder.mkdir(parents=True, exist_ok=True)
    for file, lines in files.items():
        (folder / f"{name}.{file}.tsv").write_bytes(b"".join(lines))
    return folder


def pack(files, path, order=("test", "train", "eval"), name="new_aan_pairs"):
    """An archive with other files before, between and after."""
    with tarfile.open(path, "w:gz") as archive:

        def add(name, content):
            member = tarfile.TarInfo(f"lra_release/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

        for file in order:
            add(f"listops-1000/{file}", b"[MAX 4 3 ]")
            add(f"tsv_data/{name}.{file}.tsv", b"".join(files[file]))
        add("listops-1000/last", np.random.default_rng(1).bytes(100_000))
    return path


def plain(lines):
    """[(text1, text2, label)] with the first 4,000 bytes of each text."""
    rows = []
    for line in lines:
        label, _, _, one, two = line.rstrip(b"\n").split(b"\t")
        rows.append((one[:4000], two[:4000], int(float(label))))
    return rows


def stored(prepared, split):
    rows = []
    for values, lengths, label in zip(*prepared.arrays(split), strict=True):
        one, two = (v[:n].tobytes() for v, n in zip(values, lengths, strict=True))
        rows.append((one, two, label))
    return rows


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(retrieval, "ROWS", tuple(COUNTS.values()))
    monkeypatch.setattr(store, "expected", dict)


# The sets


def test_rows_are_the_lines_in_their_order(tmp_path):
    files = made()
    prepared = tasks.prepare(
        tasks.make("retrieval"), tmp_path / "data", write(files, tmp_path / "raw")
    )
    assert prepared.rows == {"train": 7, "validation": 3, "test": 4}
    assert [facts["label_counts"] for facts in prepared.splits.values()] == [[4, 3], [2, 1], [2, 2]]
    for file, split in FILES.items():
        assert stored(prepared, split) == plain(files[file])
    assert prepared.splits["train"]["lengths"]["max"] == 4000
    assert prepared.source == "raw"


def test_archives_and_folders_give_the_same_set(tmp_path):
    files = made()
    given = {
        "folder": write(files, tmp_path / "raw" / "some" / "where").parents[1],
        "gz": pack(files, tmp_path / "lra_release.gz"),
        "again": pack(files, tmp_path / "again.tar.gz", order=("eval", "train", "test")),
    }
    for config in ("aan", "pairs"):
        task = tasks.make("retrieval", config)
        sets = {key: tasks.prepare(task, tmp_path / key, path) for key, path in given.items()}
        assert len({prepared.fingerprint for prepared in sets.values()}) == 1
        tasks.verify(task, tmp_path / "gz")


def test_pairs_may_have_any_name_and_number(tmp_path):
    files = {file: lines[:1] for file, lines in made().items()}
    source = write(files, tmp_path / "raw", name="my.pairs")
    (source / "._my.pairs.train.tsv").write_bytes(b"of another system")
    (source / "train.tsv").write_bytes(b"no name before the split")
    prepared = tasks.prepare(tasks.make("retrieval", "pairs"), tmp_path / "data", source)
    assert prepared.rows == {"train": 1, "validation": 1, "test": 1}
    with pytest.raises(UserError, match=r"raw: expected new_aan_pairs.train.tsv and new_aan_"):
        tasks.prepare(tasks.make("retrieval", "aan"), tmp_path / "data", source)


def test_pairs_in_several_splits_are_reported(tmp_path, capfd):
    lines = [line for part in made().values() for line in part[:3]]
    source = write(dict.fromkeys(made(), lines), tmp_path / "raw", name="same")
    tasks.prepare(tasks.make("retrieval", "pairs"), tmp_path / "data", source)
    want = "18 of 27 rows repeat another one; 0 of the repeated ones have several labels, 9 lie in"
    assert want in capfd.readouterr().err


def test_max_len_cuts_each_text_when_read(tmp_path):
    files = made()
    source = write(files, tmp_path / "raw")
    prepared = tasks.prepare(tasks.make("retrieval", max_len=10), tmp_path / "data", source)
    want = [(one[:10], two[:10], label) for one, two, label in plain(files["test"])]
    assert stored(prepared, "test") == want
    with pytest.raises(UserError) as info:
        tasks.make("retrieval", max_len=4001)
    assert str(info.value).startswith(  # gin adds another line
        "retrieval: max_len must be at most 4000, got 4001; no more bytes of a text are stored"
    )


# Streaming


def cut(path):
    """Removes the last 50,000 bytes of an archive, which belong to its last file."""
    path.write_bytes(path.read_bytes()[:-50_000])
    return path


def test_release_is_read_until_the_three_files_are_complete(tmp_path):
    source = cut(pack(made(), tmp_path / "lra_release.gz"))
    prepared = tasks.prepare(tasks.make("retrieval", "aan"), tmp_path / "data", source)
    assert sum(prepared.rows.values()) == 14
    with pytest.raises(UserError, match=r"lra_release.gz is damaged, unreadable"):
        tasks.prepare(tasks.make("retrieval", "pairs"), tmp_path / "data", source)


def test_lines_are_read_one_at_a_time(tmp_path):
    """The first rows of an archive are read before its damaged middle."""
    path = pack({**made(), "test": made()["test"] * 500}, tmp_path / "lra.gz")  # 20 MB
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    rows = retrieval.read_pairs(path, "pairs")
    split, ((one, two), label) = next(rows)
    assert (split, one.tobytes(), two.tobytes(), label) == ("test", *plain(made()["test"])[0])
    with pytest.raises(UserError, match=r"lra.gz is damaged, unreadable"):
        list(rows)


def test_line_without_end_is_an_error_before_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_LONGEST_LINE", 100)
    fits = b"1\tA\tB\t" + b"x" * 90 + b"\ty\n"
    assert len(fits) == 99
    files = {"train": [fits], "eval": [fits, b"1\tA\tB\t" + b"x" * 95], "test": [fits]}
    task = tasks.make("retrieval", "pairs")
    with pytest.raises(UserError, match=r"eval.tsv: expected lines of at most 100 bytes, got a"):
        tasks.prepare(task, tmp_path / "data", write(files, tmp_path / "raw"))
    files["eval"] = [fits[:-2] + b"xy\n"]
    assert (
        tasks.prepare(task, tmp_path / "data", write(files, tmp_path / "raw")).rows["validation"]
        == 1
    )

    requested = []

    class Long(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            if len(requested) == 1000:
                return 0
            requested.append(len(buffer))
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    file = sources.File(tmp_path, PurePosixPath("long"), io.BufferedReader(Long(), 64))
    with pytest.raises(UserError, match="long: expected lines of at most 100 bytes"):
        list(file.lines())
    assert sum(requested) < 300


# Errors


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\n", "got 1 columns"),
        (b"1.0\tA\tB\tone\n", "got 4 columns"),
        (b"1.0\tA\tB\tone\ttwo\tthree\n", "got 6 columns"),
        (b"label\tid1\tid2\ttext1\ttext2\n", "got the label b'label', which is not 0.0 or 1.0"),
        (b"2.0\tA\tB\tone\ttwo\n", "got the label b'2.0', which is not 0.0 or 1.0"),
        (b"\tA\tB\tone\ttwo\n", "got the label b'', which is not 0.0 or 1.0"),
        (b'"1.0"\tA\tB\tone\ttwo\n', "got the label b'\"1.0\"', which is not 0.0 or 1.0"),
        (b"1.0\tA\tB\t\ttwo\n", "got an empty text1"),
        (b"1.0\tA\tB\tone\t\r\n", "got an empty text2"),
    ],
)
def test_bad_line_fails_with_file_line_and_reason(bad, reason, tmp_path):
    files = made()
    files["eval"][1] = bad
    source = pack(files, tmp_path / "lra.gz")
    with pytest.raises(UserError) as info:
        tasks.prepare(tasks.make("retrieval"), tmp_path / "data", source)
    assert str(info.value) == (
        f"{source}/lra_release/tsv_data/new_aan_pairs.eval.tsv, line 2: {EXPECTED}, {reason}; "
        f"{AGAIN}"
    )
    left = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert {path.name for path in left} <= {".lock"}


@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_number_of_pairs_is_an_error_for_the_release_only(change, tmp_path):
    files = made()
    files["eval"] = (files["eval"] * 2)[: 3 + change]
    source = write(files, tmp_path / "raw")
    with pytest.raises(UserError) as info:
        tasks.prepare(tasks.make("retrieval"), tmp_path / "data", source)
    assert str(info.value) == (
        f"{source}/new_aan_pairs.eval.tsv: expected 3 rows, got {3 + change}; {AGAIN}"
    )
    tasks.prepare(tasks.make("retrieval", "pairs"), tmp_path / "data", source)


def test_missing_empty_and_duplicate_files_are_errors(tmp_path):
    def error(source, config):
        with pytest.raises(UserError) as info:
            tasks.prepare(tasks.make("retrieval", config), tmp_path / "data", source)
        return str(info.value)

    source = write({"train": made()["train"]}, tmp_path / "raw")
    assert error(source, "pairs") == (
        f"{source}: expected <name>.eval.tsv and <name>.test.tsv, found none; correct the files"
    )
    assert error(source, "aan") == (
        f"{source}: expected new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv, found none; {AGAIN}"
    )
    empty = write({**made(), "test": []}, tmp_path / "empty")
    assert error(empty, "pairs") == (
        f"{empty}/new_aan_pairs.test.tsv: expected at least one row, got 0; correct the files"
    )
    twice = write(made(), tmp_path / "twice")
    write(made(), twice / "z", name="other")
    assert error(twice, "pairs") == (
        f"{twice}: expected one file for the split validation, got {twice}/new_aan_pairs.eval.tsv "
        f"and {twice}/z/other.eval.tsv; remove one of them"
    )
    write(made(), twice / "z")
    assert "expected one file for the split" in error(twice, "aan")


def test_pairs_without_a_source_fail_with_the_expected_files(tmp_path):
    assert tasks.make("retrieval", "aan").remote == retrieval.REMOTE
    with pytest.raises(UserError) as info:
        tasks.prepare(tasks.make("retrieval", "pairs"), tmp_path)
    assert str(info.value) == (
        "retrieval/pairs reads your own files: give --source a folder or archive with "
        "<name>.train.tsv, <name>.eval.tsv and <name>.test.tsv"
    )


# Whole preparations


def test_set_is_downloaded_and_prepared_without_tensorflow(tmp_path):
    path = pack(made(), tmp_path / "lra_release.gz")
    assert retrieval.REMOTE.name == path.name
    with serving.serve(tmp_path) as url:
        printed = serving.prepare_without_tensorflow(
            "retrieval",
            "retrieval/aan",
            tmp_path / "data",
            REMOTE=[f"{url}{path.name}"],
            ROWS=[*COUNTS.values()],
        )
    assert printed == tasks.prepare(tasks.make("retrieval"), tmp_path, path).fingerprint


def lra_reads(path, max_len):
    """Yields rows as in LRA's matching/input_pipeline.py: ids of both texts, and the label."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    dataset = tf.data.experimental.make_csv_dataset(
        [str(path)],
        batch_size=1,
        column_names=["label", "id1", "id2", "text1", "text2"],
        column_defaults=[tf.float32] + [tf.string] * 4,
        field_delim="\t",
        use_quote_delim=False,
        header=False,
        shuffle=False,
        num_epochs=1,
    )
    encoder = tfds.deprecated.text.ByteTextEncoder()
    for row in dataset.unbatch():
        one, two = (
            encoder.encode(row[key].numpy()[:10_000])[:max_len] for key in ("text1", "text2")
        )
        yield one, two, int(row["label"].numpy())


def test_token_ids_equal_lras_preprocessing(tmp_path):
    pytest.importorskip("tensorflow")
    files = made()
    all_bytes = bytes(set(range(256)) - set(b"\t\n\r"))
    files["eval"] = [
        b'1\tA\tB\t"quoted ""twice"" \t"\n',
        b"0\tA\tB\ta\\nliteral\\tstays\t'x' \\\n",
        b'1.0\t"A\tB\t white  space \t\x00 nul \x0b\r\n',  # the \r is part of the line end
        b"0.0\tA\tB\t" + all_bytes * 50 + b"\t\xff\xfe",  # no line end
    ]
    source = write(files, tmp_path / "raw")
    prepared = tasks.prepare(tasks.make("retrieval", "pairs"), tmp_path / "data", source)
    for file, split in FILES.items():
        got = []
        for values, lengths, label in zip(*prepared.arrays(split), strict=True):
            one, two = (
                (v[:n].astype(int) + 1).tolist() for v, n in zip(values, lengths, strict=True)
            )
            got.append((one, two, label))
        assert got == list(lra_reads(source / f"new_aan_pairs.{file}.tsv", 4000))
    assert prepared.rows["validation"] == 4


@pytest.mark.parametrize(
    "bad",
    [b"\n", b"1.0\tA\tB\t\ttwo\n", b"1.0\tA\tB\tone\t\n", b"1.0\tA\tB\tone\n", b"x\tA\tB\t1\t2\n"],
)
def test_bad_lines_are_errors_for_lras_reader_too(bad, tmp_path):
    tf = pytest.importorskip("tensorflow")
    (tmp_path / "x.tsv").write_bytes(bad)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(lra_reads(tmp_path / "x.tsv", 10))
    with pytest.raises(ValueError, match=r"columns|empty|label"):
        retrieval._parse(bad)


def test_carriage_return_inside_a_line_is_text_but_an_error_for_lras_reader(tmp_path):
    tf = pytest.importorskip("tensorflow")
    line = b"1.0\tA\tB\tone\rmore\ttwo\n"
    (tmp_path / "x.tsv").write_bytes(line)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expect 5 fields but have 4"):
        list(lra_reads(tmp_path / "x.tsv", 10))
    (one, two), _ = retrieval._parse(line)
    assert (one.tobytes(), two.tobytes()) == (b"one\rmore", b"two")


@pytest.mark.skipif(not REAL.exists(), reason="the ACL pairs are not on this machine")
def test_acl_pairs_are_those_of_the_archive(tmp_path):
    prepared = tasks.prepare(tasks.make("retrieval", "pairs"), tmp_path, REAL)
    assert prepared.rows == {"train": 4417, "validation": 552, "test": 553}
    assert {split: facts["label_counts"][1] for split, facts in prepared.splits.items()} == {
        "train": 2225,
        "validation": 265,
        "test": 271,
    }
    with tarfile.open(REAL) as archive:
        file = archive.extractfile("acl_pairs/new_aan_pairs.test.tsv")
        assert stored(prepared, "test") == plain(file.read().splitlines(keepends=True))
