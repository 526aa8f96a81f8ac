"""SentencePiece vocabularies: how they are trained, and how a text becomes pieces.

A set of the task `corpus` has its own vocabulary. A set of another task may be in the pieces of
that vocabulary, so that a model that was pre-trained on the corpus can be fine-tuned on it.
"""

import importlib
import io
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lra_fnet.data import sources
from lra_fnet.errors import UserError, one_line

if TYPE_CHECKING:
    import jax

UNKNOWN, CLS, SEP, MASK = 1, 2, 3, 4  # ids of the vocabulary; 0 is padding
SPECIAL = ("[CLS]", "[SEP]", "[MASK]")
VOCABULARY = "vocabulary.model"  # SentencePiece's file in the folder of a set
VALUE_IS = f"the id of a piece in {VOCABULARY}, minus 1"
LONGEST = 1000  # characters of a sentence for the vocabulary; the rest of it is left out
NAME = r"v([1-9]\d{0,8})_([1-9]\d{1,8})"  # of a set: pieces of the vocabulary and of a row

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_SENTENCES = re.compile(r"\n+|(?<=[.!?])\s+")

Encode = Callable[[list[str]], list[list[int]]]  # sentences -> ids of the pieces of each


def vocab_size(config: str) -> int:
    """Returns the size of the vocabulary of a set of the task `corpus`."""
    return int(config[1:].partition("_")[0])


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
    """Returns a function that encodes sentences, in lower case, with that many threads."""
    encode = library().SentencePieceProcessor(model_proto=vocabulary).encode
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


def read_vocabulary(path: Path, size: int) -> bytes:
    """Returns a vocabulary that was trained before, with the special pieces in their places.

    Raises:
        UserError: it cannot be read, has another size than `size`, or tells capital letters from
            small ones.
    """
    with sources.readable(path, RuntimeError):
        content = path.read_bytes()
        model = library().SentencePieceProcessor(model_proto=content)
    ids = [model.unk_id(), *map(model.piece_to_id, SPECIAL)]
    lower = model.encode("A letter") == model.encode("a letter")
    control = all(map(model.is_control, ids[1:]))
    actual = model.get_piece_size()
    if (actual, ids, lower, control) != (size, [UNKNOWN, CLS, SEP, MASK], True, True):
        raise UserError(
            f"{path}: expected {size} pieces in lower case with the control symbols {SPECIAL}, "
            f"got {actual} pieces or other symbols: remove the file to train a vocabulary"
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
        raise UserError(
            f"{source}: no vocabulary of {size:,} pieces ({one_line(error, 200)}): give more text, "
            "or choose a set v<pieces>_<length> with --dataset"
        ) from None
    return model.getvalue()
