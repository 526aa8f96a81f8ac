"""Text: the reviews of an archive or a folder, the hold-out rule, and LRA's token ids."""

import hashlib
import io

import numpy as np
import pytest
from raw_files import assert_refused, pack, write

from lra_fnet import tasks
from lra_fnet.data import store
from lra_fnet.tasks import text

FOLDERS = ["train/pos", "train/neg", "test/pos", "test/neg"]


def made():
    """Path below aclImdb -> bytes: six reviews in each folder, and files that are not used."""
    rng = np.random.default_rng(0)
    files = {"README": b"Large Movie Review Dataset", "train/unsup/0_0.txt": b"no label"}
    for folder in FOLDERS:
        for i in range(6):
            words = rng.integers(1, 256, rng.integers(5, 40), np.uint8).tobytes()
            rating = (7 if folder.endswith("pos") else 1) + i % 4
            name = f"{folder}/{i}_{rating}.txt"
            files[name] = b"A Film<br />\xc3\xa9 \xff" + words + b"."
            files[f"{folder}/._{i}_{rating}.txt"] = b"of another system"
    return files


def labelled(files, split):
    """{(text, label)} of a split, from the paths alone."""
    rows = set()
    for name, content in files.items():
        parts = name.split("/")
        if parts[0] == split and parts[1] != "unsup" and "._" not in name:
            rows.add((content, int(parts[1] == "pos")))
    return rows


def stored(prepared, split):
    """[(text, label)] of a split, whole, in the order on disk."""
    return [
        (values[:length].tobytes(), label)
        for values, length, label in zip(*prepared.arrays(split), strict=True)
    ]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Six reviews in a folder, two held out of each class."""
    monkeypatch.setattr(text, "REVIEWS", 6)
    monkeypatch.setattr(text, "HELD_OUT", 2)
    monkeypatch.setattr(store, "expected", dict)


# The sets


@pytest.mark.parametrize("config", ["full", "lra_code"])
def test_archives_and_folders_give_the_same_set(config, tmp_path):
    files, task = made(), tasks.make("text", config)
    below = {f"./aclImdb/{name}": content for name, content in reversed(files.items())}
    archive = pack(below, tmp_path / "acl.tar.gz")
    packed = tasks.prepare(task, tmp_path / "packed", archive)
    whole = tasks.prepare(task, tmp_path / "whole", write(below, tmp_path / "raw"))
    assert packed.fingerprint == whole.fingerprint
    assert packed.source == "acl.tar.gz"
    tasks.verify(task, tmp_path / "packed")


def test_rows_are_the_files_of_their_folders_with_the_smallest_sha256_held_out(tmp_path):
    files, held = made(), set()
    for wanted in (0, 1):
        texts = [content for content, label in labelled(files, "train") if label == wanted]
        texts.sort(key=lambda content: int(hashlib.sha256(content).hexdigest(), 16))
        held |= {(content, wanted) for content in texts[:2]}
    prepared = tasks.prepare(tasks.make("text"), tmp_path / "data", write(files, tmp_path / "raw"))
    assert prepared.rows == {"train": 8, "validation": 4, "test": 12}
    assert [facts["label_counts"] for facts in prepared.splits.values()] == [[4, 4], [2, 2], [6, 6]]
    splits = {"train": labelled(files, "train") - held, "validation": held}
    for split, want in (splits | {"test": labelled(files, "test")}).items():
        assert sorted(stored(prepared, split)) == sorted(want)


def test_lra_code_trains_on_all_reviews_and_validates_on_the_test_rows(tmp_path):
    files = made()
    task = tasks.make("text", "lra_code")
    prepared = tasks.prepare(task, tmp_path / "data", write(files, tmp_path / "raw"))
    assert task.splits == ("train", "validation_is_test", "test")
    assert task.validation_is_test
    assert not tasks.make("text").validation_is_test
    assert prepared.rows == {"train": 12, "validation_is_test": 12, "test": 12}
    assert sorted(stored(prepared, "train")) == sorted(labelled(files, "train"))
    assert stored(prepared, "validation_is_test") == stored(prepared, "test")


# Equal texts


def reviews(*rows):
    """Sorted reviews of (place in the order, label); equal places are equal texts."""
    return [text.Review(bytes([place]), label, b"") for place, label in sorted(rows)]


def test_held_out_texts_are_not_trained_on_and_counts_are_exact():
    rng = np.random.default_rng(1)
    for _ in range(200):
        rows = reviews(*zip(rng.integers(0, 100, 40).tolist(), [0, 1] * 20, strict=True))
        train, held = text.hold_out(rows, 6)
        assert sorted(train + held) == rows
        assert [sum(r.label == label for r in held) for label in (0, 1)] == [6, 6]
        assert not {r.digest for r in train} & {r.digest for r in held}


# Errors


ONE = next(name for name in made() if name.startswith("test/neg/0_"))


@pytest.mark.parametrize(
    ("files", "fragment"),
    [
        ({ONE: b" \r\n\t"}, "length > 0"),
        ({"test/neg/9_1.txt": b"x"}, "test/neg has 7 reviews, expected 6"),
        ({ONE: None}, "test/neg has 5 reviews, expected 6"),
    ],
)
def test_a_mistake_in_reviews_fails_with_one_line(files, fragment, tmp_path):
    changed = {name: content for name, content in (made() | files).items() if content is not None}
    changed = {f"aclImdb/{name}": content for name, content in changed.items()}
    source = pack(changed, tmp_path / "a.tar.gz")
    assert_refused(tasks.make("text"), tmp_path, source, fragment)


# Whole preparations


def test_token_ids_equal_lras_preprocessing(tmp_path):
    """The same as TFDS's reader of the archive, its byte encoder and the cut, as in LRA."""
    pytest.importorskip("tensorflow")
    import tensorflow_datasets as tfds
    from tensorflow_datasets.datasets.imdb_reviews import imdb_reviews_dataset_builder

    files = made()
    files["test/pos/0_7.txt"] = b"\n  white space around\x0b \r\n and inside \n"
    files["test/neg/0_1.txt"] = bytes(range(33, 256)) + bytes(range(33)) + b"."
    archive = [(f"aclImdb/{name}", io.BytesIO(b)) for name, b in files.items() if "._" not in name]
    read = imdb_reviews_dataset_builder.Builder._generate_examples
    encoder = tfds.deprecated.text.ByteTextEncoder()
    want = [
        (encoder.encode(example["text"])[:25], int(example["label"] == "pos"))
        for _, example in read(None, archive, "aclImdb/test")
    ]
    task = tasks.make("text", max_len=25)
    arrays = tasks.prepare(task, tmp_path / "data", write(files, tmp_path / "raw")).arrays("test")
    got = [
        ((values[:length].astype(int) + 1).tolist(), label)
        for values, length, label in zip(*arrays, strict=True)
    ]
    assert len(got) == 12
    assert sorted(got) == sorted(want)
    assert encoder.vocab_size == task.vocab_size
