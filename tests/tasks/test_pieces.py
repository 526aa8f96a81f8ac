"""Text in pieces: its rows by the vocabulary of a corpus, what they record, and bad input."""

import hashlib

import jax
import numpy as np
import pytest
from made_texts import NAME, SET, prepare_both, reviews

from lra_fnet import tasks
from lra_fnet.data import pieces, store
from lra_fnet.errors import UserError

spm = pytest.importorskip("sentencepiece")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A folder with a prepared corpus and reviews in its pieces."""
    folder = tmp_path_factory.mktemp("pieces")
    prepare_both(folder, folder)
    return folder


def test_rows_are_the_reviews_in_lower_case_between_cls_and_sep(both):
    task = tasks.make("text", SET)
    prepared = tasks.verify(task, both)
    model = spm.SentencePieceProcessor(
        model_proto=(both / "lra_corpus" / NAME / "1.0.0" / pieces.VOCABULARY).read_bytes()
    )
    assert prepared.rows == {"train": 8, "validation": 4, "test": 12}
    test = prepared.arrays("test")
    got = set()
    for values, length, label in zip(*test, strict=True):
        ids = values[:length].astype(int) + 1
        assert (ids[0], ids[-1]) == (pieces.CLS, pieces.SEP)
        got.add((model.decode(ids[1:-1].tolist()), label))
    want = {
        (model.decode(model.encode(content.decode(errors="replace").replace("<br />", ""))), label)
        for name, content in reviews().items()
        for label in [int("/pos/" in name)]
        if name.startswith("test")
    }
    assert got == want
    assert all(text == text.lower() for text, _ in got)


def test_a_review_that_is_cut_ends_with_sep(both):
    whole, cut = (tasks.open(tasks.make("text", SET, length), both) for length in (4000, 9))
    short, long = (prepared.arrays("test") for prepared in (cut, whole))
    ids, mask = map(np.asarray, jax.jit(cut.task.tokens)(short.values, short.lengths))
    assert (long.lengths > 9).any()
    for row, (values, length) in enumerate(zip(long.values, long.lengths, strict=True)):
        want = values[: min(length, 9)].astype(int) + 1
        want[-1] = pieces.SEP
        assert ids[row][mask[row]].tolist() == want.tolist()


def test_the_set_records_its_vocabulary_and_corpus(both):
    task, corpus = tasks.make("text", SET), tasks.open(tasks.make("corpus", NAME), both)
    prepared = tasks.open(task, both)
    content = store.read_file(prepared, pieces.VOCABULARY)
    details = store.read_fingerprint(prepared.folder)["details"]
    assert details["vocabulary"] == hashlib.sha256(content).hexdigest()
    assert prepared.corpus == details["corpus"] == corpus.fingerprint
    assert tasks.make("text", "full").corpus is corpus.corpus is None
    assert (task.vocab_size, task.value_dtype, task.first_id) == (44, np.dtype("<u2"), 5)


def test_pieces_need_their_corpus(both, tmp_path):
    for name in ("pieces_x", "pieces_v44", "pieces"):
        with pytest.raises(UserError, match=rf"^unknown data set '{name}' of text: expected one"):
            tasks.make("text", name)
    with pytest.raises(UserError, match=rf"--dataset {NAME}`"):  # nothing is downloaded first
        tasks.prepare(tasks.make("text", SET), tmp_path)
    assert not tasks.make("text", SET).folder(tmp_path).exists()
    path = both / "lra_corpus" / NAME / "1.0.0" / pieces.VOCABULARY
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        with pytest.raises(UserError, match=r"vocabulary\.model is not the file that was written"):
            tasks.prepare(tasks.make("text", SET), both, both / "reviews", force=True)
    finally:
        path.write_bytes(content)
