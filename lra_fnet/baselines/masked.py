"""Shallow baselines of masked language modelling: predictions from counts of neighbouring pieces.

BERT's rules (arXiv:1810.04805, Sec. 3.1) leave 10 % of the masked pieces as they are and put a
random one into the place of another 10 %. Predicting the piece shown, and the most frequent piece
at [MASK], is therefore correct in about 13 % of cases.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lra_fnet.baselines import shallow
from lra_fnet.data.store import Arrays

if TYPE_CHECKING:
    from lra_fnet.tasks.corpus import Corpus

RATE = 15  # per cent of a row's pieces that are hidden
RULES = (RATE / 100, "bert")  # the same as values of Denoising.rate and Denoising.replacement

# Whether a place's neighbours before and after it are looked at.
_GIVEN = {
    "anywhere": (False, False),
    "after the same piece": (True, False),
    "before the same piece": (False, True),
    "between the same pieces": (True, True),
}
_TITLE = "the piece shown, or the most frequent one {given}"
_SEED = 0
_PLACES = 2**25  # pieces of training rows that are counted: a minute, and 3 GB


def method(given: Sequence[str]) -> shallow.Method:
    """Returns a method: the piece shown, or the most frequent one between the same neighbours.

    Frequencies are those of training rows. If none of them has these neighbours, the piece is what
    the setting before gives.

    Args:
        given: the first few of `_GIVEN`, a setting each.
    """
    settings = [{"given": words} for words in given]

    def fit(task: "Corpus", train: Arrays) -> shallow.Predict:
        rows = max(1, _PLACES // task.max_len)
        around = _around(task, _ids(task, train.take(slice(rows))))
        base = task.num_ids
        keys = [_keys(around, base, words) for words in given]
        tables = [_Table.of(key, around.piece, base) for key in keys]

        def predict(asked: Arrays) -> np.ndarray:
            seen = Around(*asked.values.T)
            guess, answers = np.zeros_like(seen.piece), []
            for words, table in zip(given, tables, strict=True):
                guess = table.look_up(_keys(seen, base, words), guess)
                answers.append(np.where(seen.piece == task.mask_id, guess, seen.piece))
            return np.array(answers)

        return predict

    return shallow.Method(_TITLE, settings, fit, ask, shallow.HIDDEN)


def ask(task: "Corpus", rows: Arrays) -> Arrays:
    """Hides pieces of rows by BERT's rules.

    `objective.Denoise` does the same with other draws, and rounds the number of masked pieces of a
    row to the even one where it ends in .5: of 30 pieces, it hides 4 and this function 5.

    Returns:
        For each of N masked pieces, in order: as values, int64 [N, 3], the ids before it, shown in
        its place (`mask_id`, a random one or its own) and after it, 0 for none; the length 3; as
        the label its id.
    """
    ids = _ids(task, rows)
    bits = np.random.PCG64(_SEED)  # its raw output is the same in all versions of NumPy

    def draw() -> np.ndarray:
        return bits.random_raw(ids.size).reshape(ids.shape) >> np.uint64(11)

    assert task.mask_id is not None
    free = ids >= task.first_id
    order = np.where(free, draw(), np.iinfo(np.uint64).max).argsort(axis=1).argsort(axis=1)
    wanted = np.maximum((RATE * free.sum(1) + 50) // 100, 1)
    hidden = free & (order < wanted[:, None])
    tenth, other = draw() % 10, draw() % (task.num_ids - task.first_id) + task.first_id
    shown = np.where(tenth < 8, task.mask_id, np.where(tenth < 9, other.astype(np.int64), ids))
    shown = np.where(hidden, shown, ids)
    before, after = _shifted(shown)
    values = np.stack([column[hidden] for column in (before, shown, after)], axis=1)
    return Arrays(values, np.full(len(values), 3, np.int32), ids[hidden].astype(np.int32))


class Around(NamedTuple):
    """Places of rows: ids int64 [N] before, at and after each."""

    before: np.ndarray
    piece: np.ndarray
    after: np.ndarray


def _around(task: "Corpus", ids: np.ndarray) -> Around:
    """Returns all places of rows, ids [n, L], that may be hidden."""
    free = ids >= task.first_id
    before, after = _shifted(ids)
    return Around(before[free], ids[free], after[free])


def _ids(task: "Corpus", rows: Arrays) -> np.ndarray:
    """Returns the ids of rows, int64 [n, L]; 0 is padding."""
    real = np.arange(task.max_len) < rows.lengths[:, None]
    return np.where(real, rows.values.astype(np.int64) + 1, 0)


def _shifted(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids before and after each place of rows, [n, L]; 0 for none."""
    none = np.zeros_like(ids[:, :1])
    return np.hstack([none, ids[:, :-1]]), np.hstack([ids[:, 1:], none])


def _keys(around: Around, base: int, given: str) -> np.ndarray:
    """Returns a number for each place, equal for those with the same neighbours."""
    before, after = _GIVEN[given]
    return around.before * before * base + around.after * after


class _Table(NamedTuple):
    """The most frequent piece of each key, the smallest of equally frequent ones."""

    keys: np.ndarray  # rising
    pieces: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray, pieces: np.ndarray, base: int) -> "_Table":
        """Counts pairs of a key and a piece below `base`."""
        pairs, counts = np.unique(keys * base + pieces, return_counts=True)
        keys, pieces = np.divmod(pairs, base)
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        most = np.repeat(np.maximum.reduceat(counts, starts), np.diff(starts, append=len(keys)))
        best = np.flatnonzero(counts == most)
        first = best[np.flatnonzero(np.diff(keys[best], prepend=-1))]
        return cls(keys[first], pieces[first])

    def look_up(self, keys: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        """Returns the pieces of keys, and of an unknown key what `otherwise` has."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.pieces[places], otherwise)


COPY = method(list(_GIVEN)[:1])
NEIGHBOURS = method(list(_GIVEN))
