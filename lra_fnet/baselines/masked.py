"""Shallow baselines of masked language modelling: predictions from counts of neighbouring pieces.

BERT's rules (arXiv:1810.04805, Sec. 3.1) leave 10 % of the masked pieces as they are and put a
random one into the place of another 10 %. Predicting the piece shown, and the most frequent piece
at [MASK], is therefore correct in about 13 % of cases.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lra_fnet.baselines import shallow
from lra_fnet.data.arrays import Arrays

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
PLACES = 2**25  # pieces of training rows that are counted: a minute, and 3 GB


def method(given: Sequence[str]) -> shallow.Method:
    """Returns a method: the piece shown, or the most frequent one between the same neighbours.

    Frequencies are those of training rows. If none of them has these neighbours, the piece is what
    the setting before gives.

    Args:
        given: the first few of `_GIVEN`, a setting each.
    """

    def fit(task: Any, train: Arrays) -> shallow.Predict:
        ids = _ids(task, train.take(slice(max(1, PLACES // task.max_len))))
        places = _around(ids)[ids >= task.first_id]
        keys = [_keys(places, task.num_ids, words) for words in given]
        tables = [_most_frequent(key, places[:, 1], task.num_ids) for key in keys]

        def predict(asked: Arrays) -> np.ndarray:
            shown = asked.values[:, 1]
            guess, answers = np.zeros_like(shown), []
            for words, (known, pieces) in zip(given, tables, strict=True):
                wanted = _keys(asked.values, task.num_ids, words)
                places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
                guess = np.where(known[places] == wanted, pieces[places], guess)
                answers.append(np.where(shown == task.mask_id, guess, shown))
            return np.array(answers)

        return predict

    return shallow.Method(_TITLE, [{"given": x} for x in given], fit, ask, shallow.HIDDEN)


def ask(task: Any, rows: Arrays) -> Arrays:
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

    free = ids >= task.first_id
    order = np.where(free, draw(), np.iinfo(np.uint64).max).argsort(axis=1).argsort(axis=1)
    wanted = np.maximum((RATE * free.sum(1) + 50) // 100, 1)
    hidden = free & (order < wanted[:, None])
    tenth, other = draw() % 10, draw() % (task.num_ids - task.first_id) + task.first_id
    shown = np.where(tenth < 8, task.mask_id, np.where(tenth < 9, other.astype(np.int64), ids))
    values = _around(np.where(hidden, shown, ids))[hidden]
    return Arrays(values, np.full(len(values), 3, np.int32), ids[hidden].astype(np.int32))


def _ids(task: Any, rows: Arrays) -> np.ndarray:
    """Returns the ids of rows, int64 [n, L]; 0 is padding."""
    real = np.arange(task.max_len) < rows.lengths[:, None]
    return np.where(real, rows.values.astype(np.int64) + 1, 0)


def _around(ids: np.ndarray) -> np.ndarray:
    """Returns the ids before, at and after each place of rows [n, L]: [n, L, 3]; 0 for none."""
    none = np.zeros_like(ids[:, :1])
    before, after = np.hstack([none, ids[:, :-1]]), np.hstack([ids[:, 1:], none])
    return np.stack([before, ids, after], axis=2)


def _keys(places: np.ndarray, base: int, given: str) -> np.ndarray:
    """Returns a number for each place [N, 3], equal for those with the same neighbours."""
    before, after = _GIVEN[given]
    return places[:, 0] * before * base + places[:, 2] * after


def _most_frequent(keys: np.ndarray, pieces: np.ndarray, base: int) -> tuple[np.ndarray, ...]:
    """Returns the keys, rising, and the most frequent piece of each, the smallest of equal ones."""
    pairs, counts = np.unique(keys * base + pieces, return_counts=True)
    keys, pieces = np.divmod(pairs, base)
    first = np.lexsort((pieces, -counts, keys))
    first = first[np.flatnonzero(np.diff(keys[first], prepend=-1))]
    return keys[first], pieces[first]


COPY = method(list(_GIVEN)[:1])
NEIGHBOURS = method(list(_GIVEN))
