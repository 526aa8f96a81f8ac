"""Corpus: text files as rows of SentencePiece pieces, for the FNet paper's own pre-training.

Source: FNet (arXiv:2105.03824, App. A.1) and its authors' code (google-research/f_net): a row is
[CLS] A [SEP] B [SEP] with consecutive sentences of one document, and in half of the rows A and B
are swapped, which is the label. The objective hides pieces, see `objective.Denoise`.
"""

import collections
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import gin
import numpy as np

from lra_fnet.baselines import masked, shallow
from lra_fnet.data import division, pieces, sources
from lra_fnet.data.arrays import Arrays
from lra_fnet.data.pieces import CLS, LONGEST, MASK, SEP, VOCABULARY, sentences
from lra_fnet.data.store import SPLITS, Raw, Row
from lra_fnet.errors import UserError, one_line
from lra_fnet.machine.progress import Bar
from lra_fnet.tasks.task import Sets, Task

if TYPE_CHECKING:
    import jax

SAMPLE = 200_000  # the vocabulary is trained on fewer than twice this number of sentences
HELD_OUT = 2  # per cent of the documents in each of validation and test
MOST_ROWS = 20_000  # of validation and of test: 2 % of C4 would be about 7 million

_TEXTS, _TABLES = (".txt", ".text"), (".json", ".jsonl")
_AT_ONCE = 256  # documents


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Corpus(Task):
    """Whether two parts of a document are in their order (0) or swapped (1), by pieces.

    A value is a piece's id - 1, as the id of padding is 0. [CLS] and both [SEP] are among the
    `max_len` pieces of a row.
    """

    name = "corpus"
    title = "Corpus"
    num_classes = 2
    configs = Sets(
        pieces.NAME,
        lambda match: int(match[2]),
        *("v8000_128", "v32000_512"),
        rule="another vocabulary and length of at least 10, as v16000_256",
    )
    label_names = ("in order", "swapped")
    value_is = pieces.VALUE_IS
    licence = "that of your texts"
    reads = 'a folder, an archive or a file with .txt, .jsonl or .json (a field "text")'
    endings = (*(f"{kind}{gz}" for kind in _TEXTS + _TABLES for gz in ("", ".gz")), VOCABULARY)
    read_whole = True
    first_id = 1 + MASK  # special pieces are never hidden
    mask_id = MASK

    @property
    def vocab_size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Pieces of the vocabulary: the first number of the set's name."""
        return pieces.vocab_size(self.config)

    @property
    def value_dtype(self) -> np.dtype:
        """uint16 for any vocabulary."""
        return np.dtype("<u2")

    def types(self, ids, mask) -> "jax.Array":
        """Returns 1 for the second part and its [SEP], 0 for the rest, int32 [..., L]."""
        import jax.numpy as jnp

        ends = (ids == SEP).astype(jnp.int32)
        before = jnp.cumsum(ends, axis=-1) - ends
        return ((before > 0) & mask).astype(jnp.int32)

    @property
    def baselines(self) -> tuple[shallow.Method, ...]:
        """The baselines for masked pieces and for the label."""
        return masked.NEIGHBOURS, masked.COPY, ORDER

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns the rows of all texts in `source`, which are read twice.

        The first time trains the vocabulary on sentences of training documents. A folder that has a
        `vocabulary.model` brings its own: versions of SentencePiece train different ones.
        """
        assert source is not None
        version = pieces.library().__version__  # before the texts are read
        sampled, documents = sample(source)
        if (given := source / VOCABULARY).is_file():
            vocabulary = pieces.read_vocabulary(given, self.vocab_size)
        else:
            vocabulary = pieces.train_vocabulary(sampled, self.vocab_size, source)
        details = {"sentencepiece": version, "documents": documents}
        return Raw(
            stream=self._rows(source, pieces.encoder(vocabulary, jobs), details),
            source=source.name,
            details=details,
            files={VOCABULARY: vocabulary},
        )

    def _rows(self, source: Path, encode, details: dict) -> Iterator[tuple[str, Row]]:
        """Yields (split, row) of all documents, in the order of the files.

        Of validation and test, these are the first `MOST_ROWS` rows. Reports equal rows, and adds
        their numbers to `details`.
        """
        everything, counts = read_documents(source), collections.Counter()
        repeats = division.Repeats()
        while some := list(itertools.islice(everything, _AT_ONCE)):
            encoded = iter(encode([text for _, lines in some for text in lines]))
            for digest, lines in some:
                parts = list(itertools.islice(encoded, len(lines)))
                split = split_of(digest)
                for values, label in pack(parts, self.max_len):
                    counts[split] += 1
                    if split == SPLITS[0] or counts[split] <= MOST_ROWS:
                        repeats.add(division.content([values]), label, split)
                        yield split, (values, label)
        details |= repeats.finish(source)


def _longer(task: Corpus, rows: Arrays) -> list[list[bool]]:
    """Returns whether the first part of each row is longer than the second."""
    ends = (rows.values == SEP - 1) & (np.arange(task.max_len) < rows.lengths[:, None])
    first = ends.argmax(axis=1) - 1  # pieces after [CLS]
    return [(2 * first > rows.lengths - 3).tolist()]


ORDER = shallow.most_frequent_label("most frequent label given which part is longer", [{}], _longer)


def split_of(digest: bytes) -> str:
    """Returns the split of a document by the sha256 of its text: equal texts share one."""
    number = int.from_bytes(digest[:8]) % 100
    return SPLITS[2 if number < HELD_OUT else 1 if number < 2 * HELD_OUT else 0]


def pack(sentences: Iterable[list[int]], length: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yields rows of consecutive sentences of one document, as many in each as fit.

    A sentence that leaves no room for another one is cut into parts. The last sentence is left out
    if it is alone. Where a row is divided, and whether its parts are swapped, is drawn from its
    pieces, so it depends on nothing else.

    Args:
        sentences: ids of the pieces of each.
        length: most pieces in a row, with [CLS] and two [SEP].

    Yields:
        values uint16 (ids - 1) and the label, 1 if swapped.
    """
    room = length - 3
    half = room // 2
    parts = [ids[i : i + half] for ids in sentences for i in range(0, len(ids), half)]
    waiting: collections.deque[list[int]] = collections.deque(parts)
    while len(waiting) > 1:
        row = [waiting.popleft(), waiting.popleft()]
        size = len(row[0]) + len(row[1])
        while waiting and size + len(waiting[0]) <= room:
            size += len(waiting[0])
            row.append(waiting.popleft())
        digest = hashlib.sha256(np.array(list(itertools.chain(*row)), "<u4").tobytes()).digest()
        swapped = digest[0] & 1
        pivot = 1 + int.from_bytes(digest[1:9]) % (len(row) - 1)
        first, second = (list(itertools.chain(*part)) for part in (row[:pivot], row[pivot:]))
        if swapped:
            first, second = second, first
        ids = np.array([CLS, *first, SEP, *second, SEP])
        yield (ids - 1).astype("<u2"), swapped


def sample(source: Path) -> tuple[list[str], int]:
    """Returns sentences of training documents, evenly spread, and the number of all documents.

    Every sentence is kept until there are 2 `SAMPLE`, then every second one, and so on.

    Raises:
        UserError: see `read_documents`.
    """
    kept, stride, seen, documents = [], 1, 0, 0
    with Bar(f"sampling {source.name}", None, unit="documents") as progress:
        for digest, lines in read_documents(source):
            documents += 1
            progress.step()
            if split_of(digest) != SPLITS[0]:
                continue
            for text in lines:
                if seen % stride == 0:
                    kept.append(text[:LONGEST])
                seen += 1
                if len(kept) == 2 * SAMPLE:
                    kept, stride = kept[::2], 2 * stride
    return kept, documents


def read_documents(source: Path) -> Iterator[tuple[bytes, list[str]]]:
    """Yields the documents of a folder, an archive or a file, in order, one in memory at a time.

    A document is the sha256 of its text, and its sentences.

    In .txt and .text an empty line ends a document. In .jsonl and .json each line is an object
    whose field "text" is a document, as in C4. Both may be gzip files (.gz). Other files of a
    folder or an archive are skipped.

    Raises:
        UserError: there is no text; a text is not UTF-8, or a line no such object.
    """
    count = 0
    for file in sources.files_or_single(source, _TEXTS + _TABLES):
        for text in _texts(file.unpacked(), table=sources.ending(file.path) in _TABLES):
            if lines := sentences(text):
                count += 1
                yield hashlib.sha256(text.encode()).digest(), lines
    if not count:
        raise UserError(f"{source}: expected text in .txt, .jsonl or .json files, found none")


def _texts(file: sources.File, *, table: bool) -> Iterator[str]:
    """Yields the text of each document of a file."""
    waiting: list[str] = []
    for number, content in enumerate(file.lines(), start=1):
        try:
            line = content.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            text = json.loads(line)["text"] if table and line else line
            text.encode()  # a lone surrogate is no character
            if "\0" in text:
                raise ValueError("a zero byte")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            form = 'one object with the field "text" on each line' if table else "text in UTF-8"
            raise UserError(
                f"{file}, line {number}: expected {form}, got {content[:40]!r} "
                f"({one_line(error, 100)}): correct the file"
            ) from None
        if table and line:
            yield text
        elif line:
            waiting.append(line)
        elif waiting:
            yield "\n".join(waiting)
            waiting = []
    if waiting:
        yield "\n".join(waiting)
