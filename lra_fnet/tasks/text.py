"""Text: whether the review of a film is positive (1) or negative (0), read byte by byte.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) with the Large Movie Review Dataset of Maas et
al. (ACL 2011, https://aclanthology.org/P11-1015).
"""

import collections
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import gin
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine.progress import Bar
from lra_fnet.tasks import sources
from lra_fnet.tasks.task import SPLITS, Raw, Task

REMOTE = sources.Remote(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    84_125_825,
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
REVIEWS = 12_500  # in each of train/pos, train/neg, test/pos and test/neg
HELD_OUT = 1250  # of each class of the training reviews: the validation split of "full"

_PATH = re.compile(r"(?:.*/)?(train|test)/(pos|neg)/\d+_(\d+)\.txt")  # <id>_<rating>.txt
_LONGEST = 2**20  # bytes; the longest review has 13,704


class Review(NamedTuple):
    """Reviews sort by the sha256 of their text, so that labels are mixed."""

    digest: bytes  # sha256 of the text
    label: int  # 1 positive, 0 negative
    text: bytes


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Text(Task):
    """LRA's Text: a token is a byte, whole reviews are stored, markup and case are kept.

    "full" holds out a tenth of the training reviews for validation. "lra_code" is what LRA's code
    does: it trains on all of them and chooses the model on the test reviews.
    """

    name = "text"
    title = "Text"
    num_classes = 2
    vocab_size = 257
    configs = MappingProxyType({"full": 4000, "lra_code": 4000})
    label_names = ("negative", "positive")
    value_is = "a byte of the text, white space around it dropped"
    licence = "not stated; the publishers ask to cite Maas et al. 2011"

    @property
    def splits(self) -> tuple[str, str, str]:
        """The middle one has the test rows in "lra_code"."""
        return SPLITS if self.config == "full" else ("train", "validation_is_test", "test")

    @property
    def remote(self) -> sources.Remote | None:
        """The publishers' archive."""
        return REMOTE

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """All reviews below `source`, in memory (70 MB)."""
        if source is None:
            raise UserError(f"text: SOURCE must be {REMOTE}, packed or unpacked")
        train, test = read_reviews(source)
        if self.config == "full":
            train, validation = hold_out(train, HELD_OUT, source)
        else:
            validation = test
        reviews = dict(zip(self.splits, (train, validation, test), strict=True))
        return Raw(
            {split: _rows(some) for split, some in reviews.items()},
            source=source.name,
            total=sum(map(len, reviews.values())),
        )

    def encode(self, content: bytes) -> np.ndarray:
        """Bytes of a text without the white space around it, as of a review."""
        return super().encode(content.strip())


def read_reviews(source: Path) -> tuple[list[Review], list[Review]]:
    """Training and test reviews of the archive or folder `source`, sorted.

    White space around a text is dropped, as TFDS does (imdb_reviews, which LRA reads).

    Raises:
        UserError: if a folder of reviews has not the published number of them; for an empty or far
            too long review, and a rating that contradicts its folder.
    """
    reviews: dict[str, list[Review]] = {"train": [], "test": []}
    counts = collections.Counter()
    with Bar(f"reading {source.name}", 4 * REVIEWS, unit="reviews") as progress:
        for path, file in sources.files(source):
            if (match := _PATH.fullmatch(str(path))) is None:
                continue
            split, folder, rating = match.groups()
            text = file.read(_LONGEST + 1)
            try:
                reviews[split].append(_review(text, folder, int(rating)))
            except ValueError as error:
                raise UserError(f"{source}, {path}: {error}; get {REMOTE} again") from None
            counts[split, folder] += 1
            progress.step()
    for split, folder in itertools.product(reviews, ("pos", "neg")):
        if (count := counts[split, folder]) != REVIEWS:
            raise UserError(
                f"{source}: expected {REVIEWS} reviews in {split}/{folder}, found {count}; SOURCE "
                f"must be the whole of {REMOTE}, packed or unpacked, once"
            )
    return sorted(reviews["train"]), sorted(reviews["test"])


def _review(text: bytes, folder: str, rating: int) -> Review:
    """One file, checked."""
    if len(text) > _LONGEST:
        raise ValueError(f"expected a review, got more than {_LONGEST} bytes")
    text = text.strip()
    if not text:
        raise ValueError("empty review")
    if not (7 <= rating <= 10 if folder == "pos" else 1 <= rating <= 4):
        wanted = "7-10" if folder == "pos" else "1-4"
        raise ValueError(f"expected a rating of {wanted} in {folder}, got {rating}")
    return Review(hashlib.sha256(text).digest(), int(folder == "pos"), text)


def hold_out(
    reviews: Iterable[Review], count: int, source: Path
) -> tuple[list[Review], list[Review]]:
    """Splits sorted reviews: of each label, the first `count` are held out.

    Equal texts stay on one side: those that do not all fit are passed over.

    Returns:
        The reviews to train on, and those held out; both sorted.

    Raises:
        UserError: if too many texts are equal to hold out so many.
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
    if room:
        raise UserError(
            f"{source}: too many equal reviews to hold out {count} of each class; get {REMOTE}"
        )
    return train, held


def _rows(reviews: Iterable[Review]) -> Iterator[tuple[np.ndarray, int]]:
    for review in reviews:
        yield np.frombuffer(review.text, np.uint8), review.label
