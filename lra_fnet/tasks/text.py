"""Text: whether a film review is positive (1) or negative (0), in bytes or in pieces.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) with the Large Movie Review Dataset of Maas et
al. (ACL 2011, https://aclanthology.org/P11-1015).
"""

import collections
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import gin
import numpy as np

from lra_fnet.data import pieces, sources, store
from lra_fnet.data.store import SPLITS, Prepared, Raw
from lra_fnet.errors import UserError
from lra_fnet.machine.progress import Bar
from lra_fnet.tasks.task import Sets, Task

if TYPE_CHECKING:
    import jax

REMOTE = sources.Remote(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    84_125_825,
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
REVIEWS = 12_500  # in each of train/pos, train/neg, test/pos and test/neg
HELD_OUT = 1250  # of each class of the training reviews: the validation split of "full"

_PATH = re.compile(r"(?:.*/)?(train|test)/(pos|neg)/\d+_\d+\.txt")  # <id>_<rating>.txt
_PIECES = "pieces_"  # begins the name of a set in pieces; then comes that of the corpus


class Review(NamedTuple):
    """A review. Reviews are sorted by the sha256 of their text, which mixes the labels."""

    digest: bytes  # sha256 of the text
    label: int  # 1 positive, 0 negative
    text: bytes


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Text(Task):
    """LRA's Text: a token is a byte, whole reviews are stored, markup and case are kept.

    "full" holds out a tenth of the training reviews for validation. "lra_code" does as LRA's code:
    it trains on all of them and chooses the model on the test reviews.

    "pieces_v8000_128" has the rows of "full" in the pieces of the set v8000_128 of the task corpus:
    [CLS], the review in lower case, [SEP]. A review that is cut keeps its [SEP].
    """

    name = "text"
    title = "Text"
    num_classes = 2
    configs = Sets(
        f"full|lra_code|{_PIECES}{pieces.NAME}",
        lambda _: 4000,
        *("full", "lra_code", "pieces_v8000_128"),
        rule="pieces_ and the name of a corpus",
    )
    label_names = ("negative", "positive")
    remote = REMOTE
    licence = "not stated; the publishers ask to cite Maas et al. 2011"

    @property
    def corpus(self) -> str | None:
        """The set of the task corpus whose pieces the rows consist of; None for bytes."""
        return self.config.removeprefix(_PIECES) if self.config.startswith(_PIECES) else None

    @property
    def vocab_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """257 for bytes, or the pieces of the vocabulary."""
        return pieces.vocab_size(self.corpus) if self.corpus else 257

    @property
    def value_dtype(self) -> np.dtype:
        """uint16 for any vocabulary of pieces."""
        return np.dtype("<u2" if self.corpus else np.uint8)

    @property
    def first_id(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Pre-training never hides special pieces."""
        return 1 + pieces.MASK if self.corpus else 1

    @property
    def needed(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Pieces need their vocabulary."""
        return (pieces.VOCABULARY,) if self.corpus else ()

    @property
    def value_is(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Meaning of a stored value."""
        if self.corpus:
            return pieces.VALUE_IS
        return "a byte of the text, without the white space around it"

    @property
    def splits(self) -> tuple[str, str, str]:
        """In "lra_code", the middle split holds the test rows."""
        return ("train", "validation_is_test", "test") if self.config == "lra_code" else SPLITS

    def tokens(self, values, lengths) -> "tuple[jax.Array, jax.Array]":
        """Returns token ids and the padding mask; the last of the pieces that are left is [SEP]."""
        ids, mask = super().tokens(values, lengths)
        return (pieces.end(ids, lengths) if self.corpus else ids), mask

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns the bytes of all reviews in `source`, which take 70 MB of memory."""
        return self._raw(source, lambda text: np.frombuffer(text, np.uint8))

    @property
    def beside(self) -> tuple[str, str] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The corpus whose pieces the rows consist of."""
        return ("corpus", self.corpus) if self.corpus else None

    def raw_beside(self, other: Prepared, source: Path | None, jobs: int) -> Raw:
        """Returns all reviews in the pieces of the prepared corpus."""
        vocabulary = store.read_file(other, pieces.VOCABULARY)
        encode = pieces.encoder(vocabulary, jobs)
        details = {
            "corpus": other.fingerprint,
            "vocabulary": hashlib.sha256(vocabulary).hexdigest(),
            "sentencepiece": pieces.library().__version__,
        }
        raw = self._raw(source, lambda text: pieces.values(encode, text))
        return dataclasses.replace(raw, details=details, files={pieces.VOCABULARY: vocabulary})

    def _raw(self, source: Path | None, encode: Callable[[bytes], np.ndarray]) -> Raw:
        assert source is not None  # there is a remote file
        train, test = read_reviews(source)
        validation = test
        if self.config != "lra_code":
            train, validation = hold_out(train, HELD_OUT)
        reviews = dict(zip(self.splits, (train, validation, test), strict=True))
        rows = {
            split: ((encode(review.text), review.label) for review in part)
            for split, part in reviews.items()
        }
        return Raw(rows, source=source.name, total=sum(map(len, reviews.values())))

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the bytes of a text without the white space around it, as for a review."""
        return super().encode(content.strip())

    def encoder(self, folder: Path) -> Callable[[bytes], np.ndarray]:
        """Returns `encode`, or what encodes a text by the vocabulary in `folder`."""
        if self.corpus is None:
            return self.encode
        with sources.readable(folder / pieces.VOCABULARY):
            vocabulary = (folder / pieces.VOCABULARY).read_bytes()
        encode = pieces.encoder(vocabulary, 1)
        return lambda content: pieces.values(encode, content)


def read_reviews(source: Path) -> tuple[list[Review], list[Review]]:
    """Returns the training and the test reviews of an archive or folder, sorted.

    White space around a text is dropped, as in TFDS's imdb_reviews, which LRA reads.

    Raises:
        UserError: if a folder does not have the published number of reviews.
    """
    reviews: dict[tuple[str, str], list[Review]] = collections.defaultdict(list)
    with Bar(f"reading {source.name}", 4 * REVIEWS, unit="reviews") as progress:
        for file in sources.files(source):
            if (match := _PATH.fullmatch(str(file.path))) is None:
                continue
            split, folder = match.groups()
            text = file.read().strip()
            review = Review(hashlib.sha256(text).digest(), int(folder == "pos"), text)
            reviews[split, folder].append(review)
            progress.step()
    for split, folder in itertools.product(("train", "test"), ("pos", "neg")):
        if (count := len(reviews[split, folder])) != REVIEWS:
            raise UserError(f"{source}: {split}/{folder} has {count} reviews, expected {REVIEWS}")
    train, test = (sorted(reviews[s, "pos"] + reviews[s, "neg"]) for s in ("train", "test"))
    return train, test


def hold_out(reviews: Iterable[Review], count: int) -> tuple[list[Review], list[Review]]:
    """Splits sorted reviews by holding out the first `count` of each label.

    Equal texts stay on the same side: a group of them that does not fit is skipped.

    Returns:
        The reviews to train on and those held out, both sorted.
    """
    train, held, room = [], [], collections.Counter({0: count, 1: count})
    for _, group in itertools.groupby(reviews, key=lambda review: review.digest):
        equal = list(group)
        needed = collections.Counter(review.label for review in equal)
        if needed <= room:
            room -= needed
            held += equal
        else:
            train += equal
    return train, held
