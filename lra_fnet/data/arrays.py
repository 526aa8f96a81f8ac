"""Rows in memory."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np


class Arrays(NamedTuple):
    """One split in memory. A value v stands for the token id v + 1; id 0 is padding.

    Positions from `lengths` on hold the value 0, which is also a token: only `lengths` says where
    padding begins.
    """

    values: np.ndarray  # uint8 [n, L]; [n, 2, L] for two texts per row
    lengths: np.ndarray  # int32 [n]; [n, 2] for two texts per row
    labels: np.ndarray  # int32 [n]

    def __repr__(self):
        columns = zip(self._fields, self, strict=True)
        return f"Arrays({', '.join(f'{n} {a.dtype} {[*a.shape]}' for n, a in columns)})"

    def take(self, rows: slice | np.ndarray) -> Self:
        """Returns these rows: a slice, or numbers or bool [n]."""
        return self._make(column[rows] for column in self)


@dataclasses.dataclass(frozen=True)
class Batches(Sequence[Arrays]):
    """The rows of a split in batches, in file order; each batch is a view of the rows."""

    rows: Arrays
    batch_size: int

    def __len__(self):
        return -(-len(self.rows.labels) // self.batch_size)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        start = range(len(self))[index] * self.batch_size
        return self.rows.take(slice(start, start + self.batch_size))
