"""Retrieval: pairs of documents from LRA's release or from files of the same format."""

import numpy as np
import pytest
import raw_files

from lra_fnet import tasks
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.tasks import retrieval

FILES = {"train": "train", "eval": "validation", "test": "test"}
COUNTS = {"train": 7, "eval": 3, "test": 4}


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
    lines = {f"{name}.{file}.tsv": b"".join(lines) for file, lines in files.items()}
    return raw_files.write(lines, folder)


def pack(files, path):
    """An archive with other files before, between and after."""
    members = {}
    for file in ("test", "train", "eval"):
        members[f"lra_release/listops-1000/{file}"] = b"[MAX 4 3 ]"
        members[f"lra_release/tsv_data/new_aan_pairs.{file}.tsv"] = b"".join(files[file])
    members["lra_release/listops-1000/last"] = np.random.default_rng(1).bytes(100_000)
    return raw_files.pack(members, path)


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


def test_pairs_may_have_any_name_and_number(tmp_path):
    files = {file: lines[:1] for file, lines in made().items()}
    source = write(files, tmp_path / "raw", name="my.pairs")
    (source / "._my.pairs.train.tsv").write_bytes(b"of another system")
    (source / "train.tsv").write_bytes(b"no name before the split")
    prepared = tasks.prepare(tasks.make("retrieval", "pairs"), tmp_path / "data", source)
    assert prepared.rows == {"train": 1, "validation": 1, "test": 1}
    with pytest.raises(UserError, match=r"raw: expected new_aan_pairs.train.tsv and new_aan_"):
        tasks.prepare(tasks.make("retrieval", "aan"), tmp_path / "data", source)


def test_an_archive_gives_the_rows_of_a_folder_once_the_three_files_are_complete(tmp_path):
    """Other pairs may be anywhere in it, and it is read whole."""
    release, pairs = tasks.make("retrieval"), tasks.make("retrieval", "pairs")
    archive = pack(made(), tmp_path / "lra_release.gz")
    source = write(made(), tmp_path / "raw" / "some" / "where").parents[1]
    whole = tasks.prepare(pairs, tmp_path / "whole", archive)
    assert whole.fingerprint == tasks.prepare(pairs, tmp_path / "folder", source).fingerprint
    archive.write_bytes(archive.read_bytes()[:-50_000])  # of its last file
    cut = tasks.prepare(release, tmp_path / "cut", archive)
    assert cut.fingerprint == tasks.prepare(release, tmp_path / "folder", source).fingerprint
    with pytest.raises(UserError, match=r"lra_release.gz is damaged, unreadable"):
        tasks.prepare(pairs, tmp_path / "cut", archive)


# Errors


def lines(*given, file="eval"):
    """The files with other lines in one of them."""
    return made() | {file: list(given)}


GOOD = b"1.0\tA\tB\tone\ttwo\n"


@pytest.mark.parametrize(
    ("config", "files", "fragment"),
    [
        *(
            ("pairs", lines(GOOD, bad), "eval.tsv, line 2")
            for bad in (
                b"\n",
                b"1.0\tA\tB\tone\n",
                b"1.0\tA\tB\tone\ttwo\tthree\n",
                b"2.0\tA\tB\tone\ttwo\n",
                b'"1.0"\tA\tB\tone\ttwo\n',
                b"1.0\tA\tB\t\ttwo\n",
                b"1.0\tA\tB\tone\t\r\n",
            )
        ),
        ("aan", lines(GOOD), "eval.tsv: expected 3 rows, got 1"),
        ("aan", lines(*[GOOD] * 4), "eval.tsv: expected 3 rows, got 4"),
        ("pairs", lines(), "split validation has no rows"),
        ("pairs", {"train": [GOOD]}, "<name>.eval.tsv and <name>.test.tsv"),
        ("pairs", None, "<name>.eval.tsv"),
    ],
)
def test_a_mistake_in_pairs_fails_with_one_line(config, files, fragment, tmp_path):
    source = None if files is None else write(files, tmp_path / "raw")
    raw_files.assert_refused(tasks.make("retrieval", config), tmp_path, source, fragment)


# Whole preparations


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
