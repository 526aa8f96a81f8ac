r"""Your own task: the class of a sequence of the letters A, C, G and T.

Texts that are read byte by byte, and images, need no code: tasks `csv` and `images`. Write a task
where tokens are something else. The source is a file with lines of `exon<TAB>ACGT...` or
`intron<TAB>ACGT...`:

    make lra TASK=my_task MODEL=fnet PRESET=cpu SOURCE=my.tsv \
        IMPORT=examples/my_task.py GIN_DIR=examples/gin

To check a task, prepare it from a few rows:

    from lra_fnet.testing import check_task
    check_task(MyTask(config="full", max_len=512), source="my.tsv")
"""

import dataclasses
import hashlib
from types import MappingProxyType

import gin
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.tasks import Raw, Task

LETTERS = "ACGT"


@gin.configurable
@dataclasses.dataclass(frozen=True)
class MyTask(Task):
    """A value is the index of a letter; its id is the value + 1, and 0 is padding."""

    name = "my_task"
    label_names = ("exon", "intron")  # yours: the labels before the tab
    num_classes = len(label_names)
    vocab_size = 1 + len(LETTERS)
    configs = MappingProxyType({"full": 512})  # letters that are kept of a sequence

    def raw(self, source, jobs):
        """Returns the rows of the file, one by one."""
        if source is None:
            raise UserError("--source must be a file with lines of label<TAB>ACGT..., got none")
        return Raw(stream=self.rows(source), source=source.name)

    def rows(self, source):
        """Yields (split, (values, label)); the split depends on the sequence alone, 8 : 1 : 1."""
        with source.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                name, _, letters = line.strip().partition(b"\t")
                label = name.decode(errors="replace")
                try:
                    if label not in self.label_names:
                        expected = " or ".join(self.label_names)
                        raise ValueError(f"expected {expected} before a tab, got {label[:20]!r}")
                    row = self.encode(letters), self.label_names.index(label)
                except ValueError as error:
                    raise UserError(f"{source}, line {number}: {error}: correct it") from None
                tenth = hashlib.sha256(letters).digest()[0] * 10 // 256
                yield {0: "test", 1: "validation"}.get(tenth, "train"), row

    def encode(self, content):
        """Returns the values of one raw input; `lra-fnet predict` uses this too."""
        letters = content.decode(errors="replace").strip()
        if not letters or {*letters} - {*LETTERS}:
            raise ValueError(f"expected letters {LETTERS}, got {letters[:20]!r}")
        return np.array([LETTERS.index(letter) for letter in letters], np.uint8)
