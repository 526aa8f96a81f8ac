"""SentencePiece vocabularies: how they are trained, and how a text becomes pieces.

A set of the task `corpus` has a vocabulary of its own. A set of another task may be in the pieces
of that vocabulary, so that a model that was pre-trained on the corpus can be fine-tuned on it.
"""

import hashlib
import importlib
import io
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lra_fnet import tasks
from lra_fnet.data import sources, store
from lra_fnet.errors import UserError, one_line

if TYPE_CHECKING:
    import jax

UNKNOWN, CLS, SEP, MASK = 1, 2, 3, 4  # ids of the vocabulary; 0 is padding
SPECIAL = ("[CLS]", "[SEP]", "[MASK]")
VOCABULARY = "vocabulary.model"  # SentencePiece's file in the folder of a set
LARGEST = 65_535  # pieces, so that an id takes two bytes
VALUE_IS = f"the id of a piece in {VOCABULARY}, minus 1"
LONGEST = 1000  # characters of a sentence for the vocabulary; the rest of it is left out

_NAME = re.compile(r"v([1-9]\d{0,8})_([1-9]\d{0,8})")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_SENTENCES = re.compile(r"\n+|(?<=[.!?])\s+")

Encode = Callable[[list[str]], list[list[int]]]  # sentences -> ids of the pieces of each


def sizes(name: str) -> tuple[int, int]:
    """Returns pieces of the vocabulary and of a row; raises a KeyError for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise KeyError(name)
    return int(match[1]), int(match[2])


def library() -> Any:
    """Returns the module sentencepiece, which only tasks of pieces need."""
    try:
        return importlib.import_module("sentencepiece")
    except ImportError:
        raise UserError(
            "a task of pieces needs the library sentencepiece: pip install 'lra-fnet[corpus]'"
        ) from None


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text; line breaks end one, also those of HTML."""
    lines = (line.strip() for line in _SENTENCES.split(_BREAK.sub("\n", text)))
    return [line for line in lines if line]


def encoder(vocabulary: bytes, jobs: int) -> Encode:
    """Returns what encodes sentences by a vocabulary, in lower case, with that many threads.

    Raises:
        UserError: it is no vocabulary.
    """
    try:
        encode = library().SentencePieceProcessor(model_proto=vocabulary).encode
    except RuntimeError:
        raise UserError(
            f"{VOCABULARY} is damaged: prepare the set, or export the run, again"
        ) from None
    return lambda texts: encode(texts, num_threads=jobs)


def values(encode: Encode, text: bytes) -> np.ndarray:
    """Returns the stored values of one text, ids - 1: [CLS], its pieces, [SEP].

    Raises:
        ValueError: there is no text.
    """
    lines = sentences(text.decode(errors="replace"))
    if not lines:
        raise ValueError("expected a text, found none")
    ids = np.array([CLS, *itertools.chain(*encode(lines)), SEP])
    return (ids - 1).astype("<u2")


def end(ids, lengths) -> "jax.Array":
    """Returns ids [..., L] with [SEP] at the last real position, which a cut text has lost."""
    import jax
    import jax.numpy as jnp

    places = jax.lax.broadcasted_iota(jnp.int32, ids.shape, ids.ndim - 1)
    return jnp.where(places == lengths[..., None] - 1, SEP, ids)


def of_corpus(data_dir: Path, config: str) -> tuple[bytes, dict[str, str]]:
    """Returns the vocabulary of a prepared corpus, and what a set in its pieces records of it.

    Args:
        data_dir: folder of all prepared sets.
        config: the set of the task `corpus`.

    Raises:
        UserError: the corpus is not prepared, or damaged.
    """
    prepared = tasks.make("corpus", config).open(data_dir)
    vocabulary = store.read_file(prepared, VOCABULARY)
    return vocabulary, {
        "corpus": prepared.fingerprint,
        "vocabulary": hashlib.sha256(vocabulary).hexdigest(),
        "sentencepiece": library().__version__,
    }


def read_vocabulary(path: Path, size: int) -> bytes:
    """Returns a vocabulary that was trained before, with the special pieces in their places.

    Args:
        path: its file.
        size: pieces that it must have.

    Raises:
        UserError: it cannot be read, is another kind or size of vocabulary, or tells capital
            letters from small ones.
    """
    with sources.readable(path):
        content = path.read_bytes()
    try:
        model = library().SentencePieceProcessor(model_proto=content)
        ids = [model.piece_to_id(piece) for piece in SPECIAL]
        cases = [model.encode(text) for text in (_LETTERS, _LETTERS.upper())]
        kind = "control symbols" if all(map(model.is_control, ids)) else "parts of texts"
        found = f"{model.get_piece_size()} pieces, {', '.join(SPECIAL)} as {kind} at {ids}, "
        found += f"unknown ones at {model.unk_id()}, in "
        found += "lower case" if cases[0] == cases[1] else "both cases"
    except RuntimeError:
        found = "no vocabulary of SentencePiece"
    wanted = f"{size} pieces, {', '.join(SPECIAL)} as control symbols at {[CLS, SEP, MASK]}, "
    wanted += f"unknown ones at {UNKNOWN}, in lower case"
    if found != wanted:
        raise UserError(
            f"{path}: expected {wanted}, got {found}: take the vocabulary of a set of that size, "
            "or remove the file to train one"
        )
    return content


def train_vocabulary(sentences: list[str], size: int, source: Path) -> bytes:
    """Returns SentencePiece's unigram model (arXiv:1808.06226) of lower-case pieces.

    Args:
        sentences: the texts that it is trained on.
        size: pieces, the special ones included.
        source: named in errors.

    Raises:
        UserError: the sentences have more characters or fewer pieces than `size`.
    """
    model = io.BytesIO()
    try:
        library().SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            normalization_rule_name="nmt_nfkc_cf",  # lower case
            pad_id=0,
            unk_id=UNKNOWN,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(SPECIAL),
            max_sentence_length=4 * LONGEST,  # bytes
            num_threads=1,  # more would add counts in another order
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error)
        if small := re.search(r"required_chars\. \d+ vs (\d+)", reason):
            limit, what = f"at least {int(small[1]):,}", "characters of the text"
        elif large := re.search(r"set it to a value <= (\d+)", reason):
            limit, what = f"at most {int(large[1]):,}", "pieces that the text has"
        else:
            raise UserError(
                f"{source}: no vocabulary can be trained on its {len(sentences)} training "
                f"sentences ({one_line(reason, 100)}): give more text"
            ) from None
        raise UserError(
            f"{source}: expected a vocabulary of {limit} pieces, for the {what}, got {size:,}: "
            "choose a set v<pieces>_<length> with --dataset (make: DATASET=)"
        ) from None
    return model.getvalue()
