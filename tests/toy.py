"""Small tasks, written as a user would write them."""

import dataclasses

import numpy as np

from lra_fnet import tasks

ROWS = {"train": 300, "validation": 40, "test": 50}


def made(split, num_rows, width=12):
    """Yields random rows, different in every split: (values uint8 [1 .. width], label 0-2)."""
    rng = np.random.default_rng(len(split))
    for _ in range(num_rows):
        yield rng.integers(0, 6, rng.integers(1, width + 1), dtype=np.uint8), int(rng.integers(3))


@dataclasses.dataclass(frozen=True)
class Toy(tasks.Task):
    """One text per row."""

    name = "toy"
    num_classes = 3
    vocab_size = 7
    configs = {"small": 12}  # noqa: RUF012

    def raw(self, source, jobs):
        return tasks.Raw({split: made(split, n) for split, n in ROWS.items()}, total=390)


@dataclasses.dataclass(frozen=True)
class Pairs(Toy):
    """Two texts per row."""

    name = "pairs"
    num_inputs = 2

    def raw(self, source, jobs):
        return tasks.Raw(
            {
                split: (((a, a[::-1].copy()), label) for a, label in made(split, n))
                for split, n in ROWS.items()
            }
        )


TOY = Toy(config="small", max_len=12)
