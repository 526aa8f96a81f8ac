"""Documents and reviews of a few words, and the sets that are made of them."""

import gzip
import json

import numpy as np
import pytest
import raw_files

from lra_fnet import tasks
from lra_fnet.tasks import text

NAME = "v44_32"  # set of the task corpus
SET = f"pieces_{NAME}"  # and of Text in its pieces
WORDS = "the quick brown fox jumps over a lazy dog while nobody sees it".split()  # noqa: SIM905


def made(count=150, seed=0):
    """Documents: lists of sentences."""
    rng = np.random.default_rng(seed)
    return [
        [
            " ".join(rng.choice(WORDS, rng.integers(3, 9))).capitalize() + "."
            for _ in range(rng.integers(2, 9))
        ]
        for _ in range(count)
    ]


def write(documents, folder, kind="txt"):
    """One folder with the documents in files of one kind."""
    folder.mkdir(parents=True)
    texts = [" ".join(sentences) for sentences in documents]
    tables = "\n".join(json.dumps({"url": "u", "text": text}) for text in texts)
    content = ("\n\n".join(texts) if "txt" in kind else tables).encode()
    (folder / f"part.{kind}").write_bytes(gzip.compress(content) if ".gz" in kind else content)
    return folder


def reviews():
    """Path below aclImdb -> bytes: six reviews in each folder; one is no UTF-8."""
    return {
        f"{folder}/{i}_{(7 if folder.endswith('pos') else 1) + i % 4}.txt": (
            " <br />".join(document).encode() + (b" caf\xff" if i == 3 else b"")
        )
        for seed, folder in enumerate(("train/pos", "train/neg", "test/pos", "test/neg"))
        for i, document in enumerate(made(6, seed))
    }


def prepare_both(data, folder, seed=0):
    """Prepares a corpus and reviews in its pieces; the raw files go to an empty folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "REVIEWS", 6)
        patch.setattr(text, "HELD_OUT", 2)
        tasks.prepare(
            tasks.make("corpus", NAME), data, write(made(150, seed), folder / "raw"), jobs=1
        )
        raw_files.write(reviews(), folder / "reviews")
        tasks.prepare(tasks.make("text", SET), data, folder / "reviews", jobs=1)
