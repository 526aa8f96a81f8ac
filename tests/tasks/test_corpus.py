"""Corpus: documents of any file, SentencePiece's vocabulary, rows of two parts, bad input."""

import io
import itertools
import sys
import tarfile

import numpy as np
import pytest
from made_texts import NAME, made, write
from raw_files import assert_refused

from lra_fnet import tasks
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.tasks import corpus

spm = pytest.importorskip("sentencepiece")

LENGTH = 32


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    task = tasks.make("corpus", NAME)
    made_set = tasks.prepare(task, folder / "data", write(made(), folder / "raw"), jobs=1)
    tasks.verify(task, folder / "data")
    return made_set


def vocabulary(prepared):
    path = prepared.folder / corpus.VOCABULARY
    return spm.SentencePieceProcessor(model_proto=path.read_bytes())


def parts(values, length):
    """The pieces of both parts of a stored row, as ids."""
    ids = values[:length].astype(int) + 1
    assert ids[0] == corpus.CLS
    assert ids[-1] == corpus.SEP
    (middle,) = np.flatnonzero(ids[:-1] == corpus.SEP)
    return ids[1:middle].tolist(), ids[middle + 1 : -1].tolist()


def test_rows_restore_the_documents_in_lower_case(prepared):
    decode = vocabulary(prepared).decode
    documents = [" ".join(sentences).lower() for sentences in made()]
    pieces = 0
    for split in store.SPLITS:
        arrays = prepared.arrays(split)
        assert arrays.values.dtype == np.uint16
        for values, length, label in zip(*arrays, strict=True):
            first, second = parts(values, length)
            text = decode(second + first if label else first + second)
            assert any(text in document for document in documents), text
            assert not any((text in d) for d in [decode(first + second)] if label)
            pieces += len(first) + len(second)
            assert length <= LENGTH
    encoded = vocabulary(prepared).encode(list(itertools.chain(*made())))
    assert pieces > 0.9 * sum(map(len, encoded))  # all but lonely last sentences


def test_special_pieces_have_their_ids(prepared):
    model = vocabulary(prepared)
    assert model.get_piece_size() == 44 == prepared.task.vocab_size
    pieces = [model.id_to_piece(number) for number in (0, corpus.CLS, corpus.SEP, corpus.MASK)]
    assert pieces == ["<pad>", "[CLS]", "[SEP]", "[MASK]"]
    assert corpus.CLS not in model.encode("[CLS]")  # a text cannot write them


@pytest.mark.parametrize("kind", ["jsonl", "json.gz", "txt.gz", "tar", "file"])
def test_any_form_of_the_same_documents_gives_the_same_set(prepared, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(corpus, "_AT_ONCE", 7)
    if kind in ("tar", "file"):
        source = write(made(), tmp_path / "raw") / "part.txt"
        if kind == "tar":
            with tarfile.open(tmp_path / "raw.tar.xz", "w:xz") as archive:
                archive.add(source, "some/where/part.txt")
            source = tmp_path / "raw.tar.xz"
    else:
        source = write(made(), tmp_path / "raw", kind)
    again = tasks.prepare(tasks.make("corpus", NAME), tmp_path / "data", source, jobs=2)
    assert again.fingerprint == prepared.fingerprint


def test_equal_documents_share_a_split_and_all_splits_have_rows(prepared):
    rows = prepared.rows
    assert min(rows.values()) > 0
    assert rows["train"] > 10 * rows["test"]
    assert corpus.split_of(b"\0" * 32) == "test"
    assert [corpus.split_of(n.to_bytes(8)) for n in (1, 2, 3, 4, 99)] == [
        "test", "validation", "validation", "train", "train",
    ]  # fmt: skip


def test_packing_cuts_long_sentences_and_leaves_out_a_lonely_one():
    long = list(range(5, 105))
    rows = list(corpus.pack([long], 23))
    assert max(len(values) for values, _ in rows) == 23
    assert [ids for row, swapped in rows for ids in ordered(row, swapped)] == long
    assert list(corpus.pack([[5, 6]], 23)) == []
    assert list(corpus.pack([], 23)) == []


def ordered(row, swapped):
    first, second = parts(row, len(row))
    return second + first if swapped else first + second


def test_sample_has_sentences_of_training_documents_only(tmp_path):
    source = write(made(), tmp_path / "raw")
    held_out, kept = set(), corpus.sample(source)[0]
    for digest, lines in corpus.read_documents(source):
        if corpus.split_of(digest) != "train":
            held_out |= {*lines}
    assert held_out
    assert not held_out & {*kept}


def test_markup_and_lines_end_sentences(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One<br /><br />two. Three!\nfour\n\n\n second  one\n")
    documents = [sentences for _, sentences in corpus.read_documents(path)]
    assert documents == [["One", "two.", "Three!", "four"], ["second  one"]]


def test_a_vocabulary_in_the_folder_is_used(prepared, tmp_path):
    mine = (prepared.folder / corpus.VOCABULARY).read_bytes()
    source = write(made(seed=1), tmp_path / "raw")
    (source / corpus.VOCABULARY).write_bytes(mine)
    given = tasks.prepare(tasks.make("corpus", NAME), tmp_path / "given", source, jobs=1)
    assert (given.folder / corpus.VOCABULARY).read_bytes() == mine
    encode = spm.SentencePieceProcessor(model_proto=mine).encode
    packed = (
        row for _, lines in corpus.read_documents(source) for row in corpus.pack(encode(lines), 32)
    )
    rows = [given.arrays(split) for split in store.SPLITS]
    got = {tuple(v[:n]) for r in rows for v, n in zip(r.values, r.lengths, strict=True)}
    assert got == {tuple(values) for values, _ in packed}
    (source / corpus.VOCABULARY).write_bytes(mine + b" ")
    assert not given.is_from(source)


def vocabulary_of_another_program(**options):
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(list(itertools.chain(*made()))),
        **{"model_writer": model, "vocab_size": 44, "pad_id": 0, "unk_id": 1, "bos_id": -1}
        | {"eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]", **options},
    )
    return model.getvalue()


DOCUMENTS = {"part.txt": "\n\n".join("\n".join(lines) for lines in made()).encode()}
LOWER = {"normalization_rule_name": "nmt_nfkc_cf"}


def with_vocabulary(**options):
    return lambda: DOCUMENTS | {corpus.VOCABULARY: vocabulary_of_another_program(**options)}


@pytest.mark.parametrize(
    ("files", "name", "fragment"),
    [
        ({"a.feat": b"1:2"}, NAME, "raw: expected text"),
        ({"a.txt": b" \n\n"}, NAME, "raw: expected text"),
        ({"a.txt": b"good\ncaf\xe9\n"}, NAME, r"a\.txt, line 2: .*0xe9"),
        ({"a.txt": "text".encode("utf-16-le")}, NAME, "line 1: .*zero byte"),
        ({"a.jsonl": b'{"text": 5}'}, NAME, 'line 1: expected one object with the field "text"'),
        ({"a.json": b'[{"text": "A. B."},\n{"text": "C. D."}]'}, NAME, "line 1: .* one object"),
        ({"a.json": b'{\n"text": "A. B."\n}'}, NAME, "line 1: .* one object"),
        ({"a.jsonl": b'{"text": "a\\u0000"}'}, NAME, "line 1: .*zero byte"),
        ({"a.txt": b"A. B.", "b.txt.gz": b"no gzip"}, NAME, r"raw/b\.txt\.gz is damaged"),
        ({"a.txt": b"A. B."}, NAME, "v<pieces>_<length>"),
        (DOCUMENTS, "v5_32", "no vocabulary of 5 pieces"),
        (DOCUMENTS, "v20_32", "no vocabulary of 20 pieces"),
        (DOCUMENTS, "v9000_32", "no vocabulary of 9,000 pieces"),
        (DOCUMENTS | {corpus.VOCABULARY: b"x"}, NAME, "vocabulary.model is damaged"),
        (with_vocabulary(**LOWER), "v40_32", "expected 40 pieces .* got 44 pieces"),
        (with_vocabulary(vocab_size=60), "v60_32", "in lower case"),
        (with_vocabulary(control_symbols="[CLS],[sep],[MASK]", **LOWER), NAME, "other symbols"),
    ],
)
def test_a_mistake_in_texts_fails_with_one_line(files, name, fragment, tmp_path):
    (tmp_path / "raw").mkdir()
    for path, content in (files() if callable(files) else files).items():
        (tmp_path / "raw" / path).write_bytes(content)
    assert_refused(tasks.make("corpus", name), tmp_path, tmp_path / "raw", fragment)


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("full", "v8000_128"),
        ("v8000_0128", "unknown data set"),
        ("v70000_128", "below 65538, got 70000"),
        ("v8000_7", "at least 10"),
    ],
)
def test_names_of_sets_are_two_numbers_in_their_limits(name, fragment):
    with pytest.raises(UserError, match=fragment):
        tasks.make("corpus", name)


def test_missing_library_fails_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"pip install 'lra-fnet\[corpus\]'"):
        tasks.prepare(tasks.make("corpus", NAME), tmp_path / "data", tmp_path)


@pytest.mark.parametrize("sentences", [3, 4])
def test_rows_are_divided_between_any_two_of_their_sentences_whatever_the_label(sentences):
    """At each place and with each label about as often: within 4 standard deviations."""
    documents = np.random.default_rng(0).integers(5, 1000, (600, sentences)).tolist()
    rows = [row for ids in documents for row in corpus.pack([[number] for number in ids], 7)]
    found = np.zeros((sentences + 1, 2), int)
    for row, swapped in rows:
        found[len(parts(row, len(row))[1 if swapped else 0]), swapped] += 1
    share = 1 / (2 * (sentences - 1))
    assert found.sum() == found[1:sentences].sum() == 600
    assert abs(found[1:sentences] - 600 * share).max() < 4 * (600 * share * (1 - share)) ** 0.5
