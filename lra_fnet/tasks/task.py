"""What a model must know of a task, as a frozen value.

To add a task, write a small subclass in a module of your own:

    @gin.configurable
    @dataclasses.dataclass(frozen=True)
    class Parity(Task):
        name = "parity"
        num_classes = 2
        vocab_size = 3                      # padding, "0", "1"
        configs = {"full": 64}              # data sets, and the length that texts are cut at

        def raw(self, source, jobs):
            return Raw(splits={"train": rows(0, 1000), "validation": ..., "test": ...})

A row is `(values, label)`: values uint8 [length], label int. With two texts per row
(`num_inputs = 2`), it is `((values_1, values_2), label)`. A task of images subclasses `PixelTask`.
`lra_fnet.testing.check_task` checks such a task.
"""

import abc
import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np

from lra_fnet import settings
from lra_fnet.baselines import shallow
from lra_fnet.data import pixels, sources
from lra_fnet.data.store import SPLITS, Prepared, Raw
from lra_fnet.errors import UserError, one_line
from lra_fnet.settings import Least, at_least, check_settings

if TYPE_CHECKING:
    import jax

REGISTRY: dict[str, type["Task"]] = {}  # every task whose module has been imported, by name


class Sets(Mapping[str, int]):
    """Data sets whose names follow a pattern, and the length that texts are cut at."""

    def __init__(self, pattern: str, length: Callable[[re.Match], int], *listed: str, rule: str):
        """`rule` is the pattern in words; `listed` are the sets that presets use."""
        self._pattern, self._length, self._listed, self.rule = pattern, length, listed, rule

    def __getitem__(self, name: str) -> int:
        if match := re.fullmatch(self._pattern, name):
            return self._length(match)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """What a model must know of a task. Token ids are written down, never built from data.

    A subclass is a frozen dataclass that sets the class variables and defines `raw`. Defining it
    registers it by its `name`.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # heading in tables; the name if empty
    num_classes: ClassVar[int]
    vocab_size: ClassVar[int]  # ids 1 .. vocab_size - 1 are tokens, 0 is padding
    num_inputs: ClassVar[int] = 1  # texts per row
    configs: ClassVar[Mapping[str, int]]  # data sets, and the length that texts are cut at
    version: ClassVar[str] = "1.0.0"  # increase it whenever the rows change
    label_names: ClassVar[tuple[str, ...]] = ()  # names of the classes, if they have any
    licence: ClassVar[str] = "not stated"  # of the rows
    # To train, to choose the model, to report: the last one is named "test".
    splits: ClassVar[tuple[str, str, str]] = SPLITS
    remote: ClassVar[sources.Remote | None] = None  # file to download if the user gives no source
    zero_is_padding: ClassVar[bool] = False  # whether a value is its own id; see `PixelTask`
    reads: ClassVar[str] = ""  # what --source must be, if there is nothing to download or generate
    beside: ClassVar[tuple[str, str] | None] = None  # task and set that `raw_beside` also reads
    first_id: ClassVar[int] = 1  # pre-training hides and draws ids from this one on
    needed: ClassVar[tuple[str, ...]] = ()  # files of the set that `encoder` reads
    mask_id: ClassVar[int | None] = None  # of a masked token, if the vocabulary has one
    value_is: ClassVar[str] = "as the class of the task says"  # meaning of a stored value
    endings: ClassVar[tuple[str, ...]] = ("",)  # of the files of a folder that `raw` reads
    tables: ClassVar[tuple[str, ...]] = ()  # endings of files that `inputs` reads
    read_whole: ClassVar[bool] = False  # whether `max_len` must be the length of the data set
    equal_lengths: ClassVar[bool] = False  # whether every text has the length of the data set

    config: str  # one of `configs`
    # Tokens per text, CLS not counted; longer texts are cut at the end.
    max_len: Annotated[int, Least(1, suggest=1024)]

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            return
        known = REGISTRY.setdefault(cls.name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"task name {cls.name!r} is taken by {known}; choose another")
        REGISTRY[cls.name] = cls  # a reloaded module replaces its own task

    def __post_init__(self):
        if not isinstance(self.config, str) or self.config not in self.configs:
            rule = f", or {self.configs.rule}" if isinstance(self.configs, Sets) else ""
            raise UserError(
                f"unknown data set {self.config!r} of {self.name}: expected one of "
                f"""{", ".join(self.configs)}{rule} (a number in quotation marks: '"1"')"""
            )
        check_settings(self)
        if len(self.class_names) != self.num_classes:
            raise ValueError(f"{self.name}: expected {self.num_classes} label_names")
        if self.settled:
            # The largest value, vocab_size - 2, has two bytes.
            at_least(f"{self.name}: vocab_size", self.vocab_size, 2, 257, below=2**16 + 2)

    @property
    def needs_source(self) -> bool:
        """Whether only the user has what the set is made from."""
        return bool(self.beside or (self.reads and self.remote is None))

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row's values at `max_len`: (L,), or (T, L) for T texts."""
        texts = (self.num_inputs,) if self.num_inputs > 1 else ()
        return *texts, self.max_len

    @property
    def validation_is_test(self) -> bool:
        """Whether the model is chosen on the test rows, as LRA's code does for Text."""
        return self.splits[1] == "validation_is_test"

    def tokens(self, values, lengths) -> "tuple[jax.Array, jax.Array]":
        """Returns token ids and the padding mask; call it inside a jitted function.

        The id is the value + 1 at real positions and 0 after them, so that a stored token costs one
        byte. With `zero_is_padding` the id is the value, and id 0 is padding at any position.

        Args:
            values: uint8 [..., L].
            lengths: int32 [...].

        Returns:
            ids int32 [..., L]; mask bool [..., L], True at real tokens.
        """
        import jax  # late: preparing and reading rows does not need it
        import jax.numpy as jnp

        positions = jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
        mask = positions < lengths[..., None]
        shift = 0 if self.zero_is_padding else 1
        ids = jnp.where(mask, values.astype(jnp.int32) + shift, 0)
        return ids, ids > 0

    def types(self, ids, mask) -> "jax.Array | None":
        """Returns the kind of each token, int32 [..., L], for pre-training; None: 0 everywhere."""
        return None

    @property
    def value_dtype(self) -> np.dtype:
        """The dtype of stored values: uint8, or uint16 if a byte cannot hold them all."""
        return np.dtype(np.uint8 if self.vocab_size <= 257 else np.dtype("<u2"))

    @property
    def num_ids(self) -> int:
        """Number of rows of an embedding table, for ids 0 .. num_ids - 1."""
        return self.vocab_size - self.zero_is_padding

    @abc.abstractmethod
    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns the rows of this data set, generated or read.

        Args:
            source: the raw files, a folder or a file; downloads are complete and checked. None if
                the rows are to be generated.
            jobs: processor cores to use. The rows must not depend on it.

        Raises:
            UserError: if `source` does not hold the expected files; also while rows are read.
        """

    def raw_beside(self, other: Prepared, source: Path | None, jobs: int) -> Raw:
        """Like `raw`, with the prepared set that `beside` names."""
        raise NotImplementedError

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the values uint8 [length] of one raw input, by default its bytes.

        They are the values that a row of this input holds. A task whose tokens are not bytes
        overrides this method, so that `lra-fnet predict` can read its inputs.

        Raises:
            ValueError: if it is not an input of this task; says what was expected.
            UserError: if the task does not define the method.
        """
        if self.vocab_size != 257:
            raise UserError(f"task {self.name} does not define encode for raw inputs")
        if not content:
            raise ValueError("expected a text, found none")
        return np.frombuffer(content, np.uint8)

    def inputs(self, path: Path) -> Iterator[tuple[str, tuple[bytes, ...]]]:
        """Yields the place and the raw texts of each input in a file with an ending of `tables`."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether the classes are known; those of the user's rows are once the set is prepared."""
        return True

    def settle(self, details: Mapping[str, Any]) -> Self:
        """Returns the task with what only its prepared set says, such as the user's classes.

        Args:
            details: those of `Raw`, which the set keeps.
        """
        return self

    def encoder(self, folder: Path) -> Callable[[bytes], np.ndarray]:
        """Returns `encode`, for a task that needs files of its set with those in `folder`."""
        return self.encode

    @property
    def class_names(self) -> tuple[str, ...]:
        """`label_names`, or the labels as text if there are none."""
        return self.label_names or tuple(map(str, range(self.num_classes)))

    @property
    def baselines(self) -> tuple[shallow.Method, ...]:
        """The shallow baselines that fit the task; see `lra_fnet.baselines.shallow`."""
        if self.num_inputs > 1:
            return (shallow.PAIRS,)
        return shallow.FIRST_TOKENS, shallow.HISTOGRAM, shallow.BIGRAMS

    def folder(self, data_dir: str | Path) -> Path:
        """Returns the folder of this data set in `data_dir`."""
        return settings.path(data_dir) / f"lra_{self.name}" / self.config / self.version


@dataclasses.dataclass(frozen=True)
class PixelTask(Task):
    """A task of square gray images: a pixel is a token, row by row, 0 black to 255 white.

    The token id is the value + 1, so that black is not padding. Long-Range Arena's code uses the
    value itself as the id and 0 as padding, so that its models do not see black pixels; set
    `black_is_padding` for that.
    """

    vocab_size = 257
    value_is = "the gray value of a pixel, row by row, 0 black to 255 white"
    read_whole = True
    equal_lengths = True
    pixel_mean: ClassVar[float]  # of the training values of the default set, for real-valued input
    pixel_sd: ClassVar[float]

    black_is_padding: bool = False

    @property
    def zero_is_padding(self) -> bool:
        """Whether black is padding; see `black_is_padding`."""
        return self.black_is_padding

    @property
    def side(self) -> int:
        """Height and width of the data set's images in pixels."""
        return math.isqrt(self.configs[self.config])

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the gray pixels of a PNG or JPEG image that has the data set's size.

        Raises:
            ValueError: if it is not such an image.
        """
        return pixels.read(content, self.side, "L").reshape(-1)

    @property
    def baselines(self) -> tuple[shallow.Method, ...]:
        """The baselines for gray values and pixels, or for two inputs."""
        if self.num_inputs > 1:
            return super().baselines
        return shallow.GRAY_HISTOGRAM, shallow.PIXELS


# Tasks of this package and their modules, in the order of LRA's table.
BUILT_IN = {
    "listops": "listops",
    "text": "text",
    "retrieval": "retrieval",
    "image": "image",
    "pathfinder": "pathfinder",
    "pathx": "pathfinder",
}
# All tasks of the package: those that are not LRA's too.
_MODULES = BUILT_IN | {"corpus": "corpus", "csv": "csv_table", "images": "images"}


def _find(name: str) -> type[Task] | None:
    if name in _MODULES:
        importlib.import_module(f"lra_fnet.tasks.{_MODULES[name]}")
    return REGISTRY.get(name)


def title(name: str) -> str:
    """Returns the task's title in tables, or the name itself if no such task is registered."""
    task = _find(name)
    return (task.title if task else "") or name


def make(name: str, config: str | None = None, max_len: int | None = None) -> Task:
    """Returns the task of that name, by default with its first data set and full length.

    Ignores gin bindings.

    Raises:
        UserError: if no task of that name is registered, or it has no such data set.
    """
    task = _find(name)
    if task is None:
        known = ", ".join(sorted({*REGISTRY, *_MODULES}))
        raise UserError(f"unknown task {name!r}: expected one of {known}")
    config = next(iter(task.configs)) if config is None else config
    max_len = task.configs.get(config, 1) if max_len is None else max_len
    missing = dataclasses.MISSING
    defaults = {f.name: f.default for f in dataclasses.fields(task) if f.default is not missing}
    try:
        return task(**defaults | {"config": config, "max_len": max_len})
    except UserError as error:
        raise UserError(one_line(error)) from None
