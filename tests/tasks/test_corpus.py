"""Corpus: documents of any file, SentencePiece's vocabulary, rows of two parts, bad input."""

import io
import itertools
import json
import sys
import tarfile

import numpy as np
import pytest
from made_texts import NAME, made, write
from paths import SHARED

from lra_fnet import tasks
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.tasks import corpus, pieces, prepare

spm = pytest.importorskip("sentencepiece")

LENGTH = 32
REAL = SHARED / "data" / "aclImdb_labelled.tar.xz"


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


def test_half_of_the_rows_are_swapped(prepared):
    labels = prepared.arrays("train").labels
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5


def test_special_pieces_have_their_ids(prepared):
    model = vocabulary(prepared)
    assert model.get_piece_size() == 44 == prepared.task.vocab_size
    pieces = [model.id_to_piece(number) for number in (0, corpus.CLS, corpus.SEP, corpus.MASK)]
    assert pieces == ["<pad>", *corpus.SPECIAL]
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


def test_validation_and_test_keep_their_first_rows(prepared, tmp_path, monkeypatch):
    source = write(made(), tmp_path / "raw")
    encode = pieces.encoder((prepared.folder / corpus.VOCABULARY).read_bytes(), 1)

    def rows():
        made_rows = {split: [] for split in store.SPLITS}
        for split, (values, label) in prepared.task._rows(source, encode, {"documents": 150}):
            made_rows[split].append((values.tobytes(), label))
        return made_rows

    everything = rows()
    assert {split: len(part) for split, part in everything.items()} == prepared.rows
    monkeypatch.setattr(corpus, "MOST_ROWS", 2)
    assert min(len(part) for part in everything.values()) > 2
    train = everything.pop("train")
    assert rows() == {"train": train} | {split: part[:2] for split, part in everything.items()}


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


def test_sample_is_evenly_spread_and_bounded(tmp_path, monkeypatch):
    source = write(made(), tmp_path / "raw")
    everything, counts = corpus.sample(source)
    assert counts == {"documents": 150, "repeated_documents": 0}
    monkeypatch.setattr(corpus, "SAMPLE", 40)
    some, _ = corpus.sample(source)
    assert 40 <= len(some) < 80
    stride = next(n for n in (2, 4, 8, 16, 32) if everything[::n] == some)
    assert stride == 16 or stride * 40 <= len(everything)


def test_sample_has_sentences_of_training_documents_only(tmp_path):
    source = write(made(), tmp_path / "raw")
    held_out, kept = set(), corpus.sample(source)[0]
    for digest, lines in corpus.read_documents(source):
        if corpus.split_of(digest) != "train":
            held_out |= {*lines}
    assert held_out
    assert not held_out & {*kept}


def test_repeated_documents_are_reported_and_stay(tmp_path, capfd):
    source = write(made(), tmp_path / "raw")
    corpus.sample(source)
    assert "repeat" not in capfd.readouterr().err
    (source / "copy.txt").write_bytes((source / "part.txt").read_bytes())
    _, counts = corpus.sample(source)
    assert counts == {"documents": 300, "repeated_documents": 150}
    line = f"{source}: 150 of 300 documents repeat another one, and stay"
    assert line in capfd.readouterr().err.splitlines()


def test_rows_in_several_splits_and_documents_without_rows_are_reported(tmp_path, capfd):
    """Documents that differ only in case or white space have equal rows, of any split."""
    documents = ["\n".join(sentences) for sentences in made()]
    documents += [document.upper() + " " for document in documents] + ["Alone."] * 3
    source = tmp_path / "twice.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    task = tasks.make("corpus", NAME)
    prepared = tasks.prepare(task, tmp_path / "data", source, jobs=1)
    rows = [
        {(*values[:length].tolist(),) for values, length, _ in zip(*arrays, strict=True)}
        for arrays in map(prepared.arrays, store.SPLITS)
    ]
    shared = len(set.union(*(a & b for a, b in itertools.combinations(rows, 2))))
    err = capfd.readouterr().err
    assert shared
    assert f"{source}: {shared:,} different rows lie in several splits: their" in err
    assert f": 3 of {len(documents)} documents have a single short sentence, which makes no" in err
    facts = store.read_fingerprint(prepared.folder)["details"]
    assert (facts["documents_without_rows"], facts["rows_in_several_splits"]) == (3, shared)
    encode = pieces.encoder(store.read_file(prepared, corpus.VOCABULARY), 1)
    read = sum(len(ids) for text in documents for ids in encode(pieces.sentences(text)))
    lengths = [prepared.arrays(split).lengths for split in store.SPLITS]
    left = read - sum(int((part - 3).sum()) for part in lengths)  # [CLS] and two [SEP]
    assert 0 < left < read / 2
    assert f"{source}: {left:,} of {read:,} pieces are in no row: the last sentence of a" in err


def test_a_vocabulary_in_an_archive_is_refused(tmp_path):
    folder = write(made(), tmp_path / "raw")
    (folder / corpus.VOCABULARY).write_bytes(b"")
    with tarfile.open(tmp_path / "raw.tar", "w") as archive:
        archive.add(folder, "raw")
    with pytest.raises(
        UserError, match=r"raw\.tar has a vocabulary\.model, which is read from a fo"
    ):
        list(corpus.read_documents(tmp_path / "raw.tar"))


def test_markup_and_lines_end_sentences(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One<br /><br />two. Three!\nfour\n\n\n second  one\n")
    documents = [sentences for _, sentences in corpus.read_documents(path)]
    assert documents == [["One", "two.", "Three!", "four"], ["second  one"]]


BAD = {
    "none": ({"a.feat": b"1:2"}, NAME, r"raw: expected text in .txt, .jsonl or .json files"),
    "empty": ({"a.txt": b" \n\n"}, NAME, r"raw: expected text in .txt"),
    "latin": ({"a.txt": b"good\ncaf\xe9\n"}, NAME, r"a\.txt, line 2: expected UTF-8, got .*0xe9"),
    "utf16": ({"a.txt": "text".encode("utf-16-le")}, NAME, r"line 1: expected UTF-8, got a zero"),
    "json": ({"a.jsonl": b'{"text": 5}'}, NAME, r'line 1: expected an object with the fi'),
    "zero": ({"a.jsonl": b'{"text": "a\\u0000"}'}, NAME, r'the field "text" without zero bytes'),
    "gzip": ({"a.txt": b"A. B.", "b.txt.gz": b"no gzip"}, NAME, r"raw/b\.txt\.gz is damaged, unr"),
    "nothing": ({"a.txt": b"A. B.", "b.txt.gz": b""}, NAME, r"raw/b\.txt\.gz is empty, which"),
    "small": ({}, "v20_32", r"expected a vocabulary of at least \d+ pieces, .*char.*, got 20:"),
    "large": ({}, "v9000_32", r"expected a vocabulary of at most \d+ pieces, .* has, got 9,000:"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_fails_with_one_line(case, tmp_path):
    files, name, message = BAD[case]
    source = tmp_path / "raw"
    if files:
        source.mkdir()
        for path, content in files.items():
            (source / path).write_bytes(content)
    else:
        write(made(), source)
    with pytest.raises(UserError, match=message) as error:
        tasks.prepare(tasks.make("corpus", name), tmp_path / "data", source, jobs=1)
    assert "\n" not in str(error.value)
    assert not tasks.make("corpus", name).folder(tmp_path / "data").exists()


def test_a_vocabulary_in_the_folder_is_used(prepared, tmp_path):
    mine = (prepared.folder / corpus.VOCABULARY).read_bytes()
    source = write(made(seed=1), tmp_path / "raw")
    task = tasks.make("corpus", NAME)
    trained = tasks.prepare(task, tmp_path / "trained", source, jobs=1)
    (source / corpus.VOCABULARY).write_bytes(mine)
    given = tasks.prepare(task, tmp_path / "given", source, jobs=1)
    assert (given.folder / corpus.VOCABULARY).read_bytes() == mine
    assert given.is_from(source)
    (source / corpus.VOCABULARY).write_bytes(mine + b" ")
    assert not given.is_from(source)
    assert (trained.folder / corpus.VOCABULARY).read_bytes() != mine
    encode = spm.SentencePieceProcessor(model_proto=mine).encode
    expected = {
        tuple(values)
        for _, lines in corpus.read_documents(source)
        for values, _ in corpus.pack(encode(lines), LENGTH)
    }
    rows = [given.arrays(split) for split in store.SPLITS]
    assert {
        tuple(v[:n]) for r in rows for v, n in zip(r.values, r.lengths, strict=True)
    } == expected

    raw = write(made(), tmp_path / "same")
    (raw / corpus.VOCABULARY).write_bytes(mine)
    assert (
        tasks.prepare(task, tmp_path / "same_data", raw, jobs=1).fingerprint == prepared.fingerprint
    )


def made_vocabulary(**options):
    """A vocabulary of another program's."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(list(itertools.chain(*made()))),
        **{"model_writer": model, "vocab_size": 44, "bos_id": -1, "eos_id": -1, **options},
    )
    return model.getvalue()


@pytest.mark.parametrize("case", ["size", "special", "text", "damaged", "unknown", "cased"])
def test_a_vocabulary_that_does_not_fit_fails_with_one_line(case, prepared, tmp_path):
    source = write(made(), tmp_path / "raw")
    name, content = NAME, (prepared.folder / corpus.VOCABULARY).read_bytes()
    if case == "size":
        name, found = "v40_32", r"expected 40 pieces, .* got 44 pieces"
    elif case == "special":
        content, found = content.replace(b"[SEP]", b"[sep]"), r"got 44 pieces, .* at \[2, 1, 4\]"
    elif case == "text":
        specials = "[CLS],[SEP],[MASK]"
        content = made_vocabulary(
            pad_id=0, unk_id=1, user_defined_symbols=specials, normalization_rule_name="nmt_nfkc_cf"
        )
        found = r"got 44 pieces, .* as parts of texts at \[2, 3, 4\], unknown ones at 1, in lower"
    elif case == "damaged":
        content, found = content[:-3], "got no vocabulary of SentencePiece"
    elif case == "unknown":
        specials = "[PAD],[CLS],[SEP],[MASK]"
        content = made_vocabulary(
            unk_id=0, control_symbols=specials, normalization_rule_name="nmt_nfkc_cf"
        )
        found = r"got 44 pieces, .* at \[2, 3, 4\], unknown ones at 0, in lower case:"
    else:
        specials = "[CLS],[SEP],[MASK]"
        content = made_vocabulary(vocab_size=60, pad_id=0, unk_id=1, control_symbols=specials)
        name = "v60_32"
        found = r"at \[2, 3, 4\], unknown ones at 1, in both cases:"
    (source / corpus.VOCABULARY).write_bytes(content)
    with pytest.raises(UserError, match=found) as error:
        tasks.prepare(tasks.make("corpus", name), tmp_path / "data", source, jobs=1)
    assert "\n" not in str(error.value)
    assert not tasks.make("corpus", name).folder(tmp_path / "data").exists()


def test_names_of_sets_are_two_numbers_in_their_limits(tmp_path):
    with pytest.raises(UserError, match=r"^unknown data set 'full' of corpus: expected one of v8"):
        tasks.make("corpus", "full")
    with pytest.raises(UserError, match=r"^unknown data set 'v8000_0128' of corpus"):
        tasks.make("corpus", "v8000_0128")
    with pytest.raises(UserError, match=r"expected a vocabulary of 6 to 65535 pieces, got 70000"):
        tasks.make("corpus", "v70000_128")
    with pytest.raises(UserError, match=r"expected max_len = 128, .*; got 64: set MAX_LEN"):
        tasks.make("corpus", "v8000_128", 64)
    with pytest.raises(UserError, match=r"expected rows of at least 8 pieces, got 7: choose"):
        tasks.make("corpus", "v8000_7")
    with pytest.raises(UserError, match=r"reads your own texts: give --source"):
        tasks.prepare(tasks.make("corpus", NAME), tmp_path)


def test_missing_library_fails_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"needs the library sentencepiece: pip install 'lra-fnet"):
        tasks.prepare(
            tasks.make("corpus", NAME), tmp_path / "data", write(made(2), tmp_path / "raw")
        )


def test_another_vocabulary_in_the_set_does_not_verify(prepared):
    path = prepared.folder / corpus.VOCABULARY
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        with pytest.raises(UserError, match=r"vocabulary\.model is not the file that was written"):
            store.verify(prepared)
    finally:
        path.write_bytes(content)


def test_all_leaves_out_the_users_own_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare.config, "known", lambda kind, dirs=(): ["corpus"])
    prepare.command("all", None, tmp_path, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="needs the reviews of shared/")
def test_reviews_are_a_corpus(tmp_path):
    """5,000 of them, from a folder."""
    with tarfile.open(REAL) as archive:
        for member in itertools.islice((m for m in archive if m.name.endswith(".txt")), 5000):
            archive.extract(member, tmp_path / "reviews", filter="data")
    prepared = tasks.prepare(tasks.make("corpus", "v8000_128"), tmp_path, tmp_path / "reviews")
    assert sum(prepared.rows.values()) > 10_000


def test_rows_are_divided_between_any_two_of_their_sentences():
    """At each of three places about as often: within 4 standard deviations."""
    documents = np.random.default_rng(0).integers(5, 1000, (300, 4)).tolist()
    rows = [row for ids in documents for row in corpus.pack([[number] for number in ids], 7)]
    sizes = [len(parts(row, len(row))[1 if swapped else 0]) for row, swapped in rows]
    assert len(sizes) == 300
    assert abs(np.bincount(sizes, minlength=5)[1:4] - 100).max() < 4 * (300 * 2 / 9) ** 0.5
