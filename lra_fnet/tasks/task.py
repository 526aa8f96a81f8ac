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
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from lra_fnet.baselines import shallow
from lra_fnet.data import sources, store
from lra_fnet.data.store import SPLITS, Prepared
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.settings import at_least

if TYPE_CHECKING:
    import jax

SHEET = "contact_sheet.png"  # examples of a set of images, in the folder above the set's
_LARGEST_VOCABULARY = 2**16 + 1  # the largest value of two bytes is vocab_size - 2
REGISTRY: dict[str, type["Task"]] = {}  # every task whose module has been imported, by name


@dataclasses.dataclass(frozen=True)
class Raw:
    """Rows on their way to the disk, and where they come from."""

    splits: Mapping[str, Iterable[store.Row]] | None = None  # each is read once, in order; or
    stream: Iterable[tuple[str, store.Row]] | None = None  # (split, row), splits in any order
    source: str = "generator"  # "generator", or the name of the source that the rows come from
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # seed, version ...
    total: int | None = None  # rows of all splits, for the progress bar
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)  # more files of the set

    def rows(self) -> Iterator[tuple[str, store.Row]]:
        """Yields (split, row) for all rows, once; an error of reading them is a UserError."""
        with sources.readable(self.source):
            if self.stream is not None:
                yield from self.stream
            for split, rows in (self.splits or {}).items():
                for row in rows:
                    yield split, row


class Sets(Mapping[str, int]):
    """Data sets whose names follow a rule, and the length that texts are cut at."""

    def __init__(self, length: Callable[[str], int], *listed: str, rule: str):
        """`length` raises a KeyError for a name against the rule; `listed` are the presets' own."""
        self._length, self._listed, self.rule = length, listed, rule

    def __getitem__(self, name: str) -> int:
        return self._length(name)

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
    one_line: ClassVar[bool] = False  # whether a file of inputs for `encode` has one per line
    # To train, to choose the model, to report: the last one is named "test".
    splits: ClassVar[tuple[str, str, str]] = SPLITS
    remote: ClassVar[sources.Remote | None] = None  # file to download if the user gives no source
    zero_is_padding: ClassVar[bool] = False  # whether a value is its own id; see `PixelTask`
    needs_source: ClassVar[bool] = False  # whether only the user has what it is made from
    first_id: ClassVar[int] = 1  # pre-training hides and draws ids from this one on
    needed: ClassVar[tuple[str, ...]] = ()  # files of the set that `encoder` reads
    mask_id: ClassVar[int | None] = None  # of a masked token, if the vocabulary has one
    value_is: ClassVar[str] = "as the class of the task says"  # meaning of a stored value
    finds_classes: ClassVar[bool] = False  # whether the classes are those of the user's rows
    endings: ClassVar[tuple[str, ...]] = ("",)  # of the files of a folder that `raw` reads
    tables: ClassVar[tuple[str, ...]] = ()  # endings of files that `inputs` reads
    read_whole: ClassVar[bool] = False  # whether `max_len` must be the length of the data set
    equal_lengths: ClassVar[bool] = False  # whether every text has the length of the data set

    config: str  # one of `configs`
    max_len: int  # tokens per text, CLS not counted; longer texts are cut at the end

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            return
        known = REGISTRY.setdefault(cls.name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"task name {cls.name!r} is taken by {known.__module__}.{known.__qualname__}; "
                f"give {cls.__module__}.{cls.__qualname__} another name"
            )
        REGISTRY[cls.name] = cls  # a reloaded module replaces its own task

    def __post_init__(self):
        if not isinstance(self.config, str):
            raise UserError(
                f"{self.name}: the name of a data set must be a text, got {self.config!r}: put "
                f"""quotation marks around it, DATASET='"{self.config}"'"""
            )
        size, most = len(os.fsencode(self.config)), sources.LONGEST_FILE_NAME
        if size > most:
            raise UserError(
                f"{self.name}: the name of a data set must have at most {most} bytes, got {size} "
                f"({self.config[:20]}...): shorten it"
            )
        if self.config not in self.configs:
            known = ", ".join(self.configs)
            rule = f", or {self.configs.rule}" if isinstance(self.configs, Sets) else ""
            raise UserError(
                f"unknown data set {self.config!r} of {self.name}: expected one of {known}{rule}"
            )
        at_least(f"{self.name}: max_len", self.max_len, 1, 1024)
        if not self.finds_classes and len(self.class_names) != self.num_classes:
            raise UserError(
                f"{self.name}: expected a label_names for each of {self.num_classes} classes, got "
                f"{len(self.class_names)}: correct the task's class"
            )
        if self.settled:
            self._check_vocabulary()

    def _check_vocabulary(self) -> None:
        """Raises a UserError if there are more tokens than the values of rows can name."""
        if self.vocab_size > _LARGEST_VOCABULARY:
            raise UserError(
                f"{self.name}/{self.config}: expected a vocab_size of at most "
                f"{_LARGEST_VOCABULARY}, as a value takes two bytes, got {self.vocab_size}: choose "
                "a smaller vocabulary"
            )

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

    def raw_beside(self, data_dir: Path, source: Path | None, jobs: int) -> Raw:
        """Like `raw`, for a set that also takes something from another one in `data_dir`."""
        return self.raw(source, jobs)

    def check_beside(self, data_dir: Path) -> None:  # noqa: B027
        """Raises a UserError, before any download, if `raw_beside` misses the other set."""

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the values uint8 [length] of one raw input, by default its bytes.

        They are the values that a row of this input holds. A task whose tokens are not bytes
        overrides this method, so that `lra-fnet predict` can read its inputs.

        Raises:
            ValueError: if it is not an input of this task; says what was expected.
            UserError: if the task does not define the method.
        """
        if self.vocab_size != 257:
            raise UserError(
                f"task {self.name} does not say how a raw input becomes tokens: define "
                f"{type(self).__name__}.encode"
            )
        if not content:
            raise ValueError("expected a text, found none")
        return np.frombuffer(content, np.uint8)

    def inputs(self, path: Path) -> Iterator[tuple[str, tuple[bytes, ...]]]:
        """Yields the place and the raw texts of each input in a file with an ending of `tables`."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether the classes are known; those of the user's rows are once the set is prepared."""
        return not self.finds_classes

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

    def illustrate(self, prepared: Prepared) -> Path | None:
        """Draws some rows next to the set and returns the file's path; None if it draws nothing."""
        return None

    def folder(self, data_dir: str | Path) -> Path:
        """Returns the folder of this data set in `data_dir`."""
        return Path(data_dir) / f"lra_{self.name}" / self.config / self.version

    def prepare(
        self,
        data_dir: str | Path,
        source: str | Path | None = None,
        jobs: int | None = None,
        *,
        force: bool = False,
    ) -> Prepared:
        """Makes the set if it is not there, with progress on stderr, and opens it.

        A set appears whole or not at all, even if the process is killed or the disk is full. A
        second process waits for the first.

        Args:
            data_dir: folder of all prepared sets; downloads go to its `downloads`.
            source: raw files: a folder, a file or a URL. None uses the set that is there, from any
                source, or else generates or downloads it.
            jobs: processor cores to use, all by default; the rows do not depend on it.
            force: makes the set again, which replaces the old one when it is complete. A URL is
                downloaded again, unless its file is the publisher's.

        Raises:
            UserError: if the folder cannot be written, the disk is full, a download fails, a raw
                file is bad, the existing set is damaged or was not made from `source` as it is
                now, or the rows are not those of data/expected.json.
        """
        if jobs is not None and jobs < 1:
            raise UserError(f"jobs must be at least 1, got {jobs}")
        folder = self.folder(data_dir)

        def write(part: Path) -> None:
            self.check_beside(Path(data_dir))
            try:
                path = sources.locate(
                    source, self.remote, Path(data_dir) / "downloads", force=force
                )
            except UserError as error:
                if source is not None or folder.exists():
                    raise
                raise UserError(f"{self.name}/{self.config} is not prepared, and {error}") from None
            url, cores = sources.own_url(source, self.remote), jobs or len(os.sched_getaffinity(0))
            with store.unchanged(self, path):
                with sources.readable(path or self.name):
                    raw = self.raw_beside(Path(data_dir), path, cores)
                store.make(part, self.settle(raw.details), raw, path, url)

        def exists() -> bool:
            return not force and store.read_fingerprint(folder) is not None

        store.write_once(folder, exists, write)
        prepared = self.open(data_dir)
        if source is not None and not prepared.is_from(source):
            sources.check_exists(source)
            rule = self.configs.rule if isinstance(self.configs, Sets) else ""
            both = (
                "to keep both, name another set with --set DATASET=NAME (lra-fnet data: --dataset "
                f"NAME; make: DATASET=NAME), where NAME is {rule}"
            )
            raise UserError(
                f"{folder} does not hold the rows of {source} as it is now (made from: "
                f"{prepared.url or prepared.source}): "
                f"`{store.again(self, data_dir, source)}` (make data ... FORCE=1) prepares the set "
                "anew; without a source, the set is used as it is"
                f"{'; ' + both if self.finds_classes else ''}"
            )
        return prepared

    def open(self, data_dir: str | Path) -> Prepared:
        """Returns the prepared set after comparing file sizes and fingerprint; reads no record.

        Raises:
            UserError: if the set is not prepared, or its files are not those that were written.
        """
        return store.open_set(self, self.folder(data_dir))

    def verify(self, data_dir: str | Path) -> Prepared:
        """Reads every record of the prepared set and recomputes counts and sha256 of each split.

        Raises:
            UserError: as for `open`; also if a record cannot be read, or the rows are not those of
                fingerprint.json or data/expected.json.
        """
        prepared = self.open(data_dir)
        store.verify(prepared)
        return prepared


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

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.black_is_padding, bool):
            raise UserError(
                f"{self.name}: black_is_padding must be True or False, got "
                f"{self.black_is_padding!r}"
            )
        if self.side**2 != (size := self.configs[self.config]):
            raise UserError(
                f"{self.name}/{self.config}: expected a square number of pixels in configs, got "
                f"{size}: correct the task's class"
            )
        missing = [name for name in ("pixel_mean", "pixel_sd") if not hasattr(self, name)]
        if missing:
            raise UserError(
                f"{self.name}: expected pixel_mean and pixel_sd of the training values, got no "
                f"{' and no '.join(missing)}: add them to the task's class"
            )

    def prepare(
        self,
        data_dir: str | Path,
        source: str | Path | None = None,
        jobs: int | None = None,
        *,
        force: bool = False,
    ) -> Prepared:
        """Like `Task.prepare`, but an image that `max_len` would cut or pad is a UserError."""
        if self.max_len != (whole := self.configs[self.config]):
            raise UserError(
                f"{self.name}/{self.config}: expected max_len = {whole}, the pixels of an image, "
                f"got {self.max_len}: set MAX_LEN={whole}"
            )
        return super().prepare(data_dir, source, jobs, force=force)

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
        from lra_fnet.tasks import pixels

        return pixels.read(content, self.side, "L").reshape(-1)

    @property
    def baselines(self) -> tuple[shallow.Method, ...]:
        """The baselines for gray values and pixels, or for two inputs."""
        if self.num_inputs > 1:
            return super().baselines
        return shallow.GRAY_HISTOGRAM, shallow.PIXELS

    def illustrate(self, prepared: Prepared) -> Path | None:
        """Writes contact_sheet.png, unless it is there: the first 32 training images, labelled."""
        path = prepared.folder.parent / SHEET
        if path.exists() and path.stat().st_mtime >= store.written_at(prepared):
            return path
        from matplotlib.figure import Figure  # late: takes a second

        split = self.splits[0]
        rows = store.read(prepared, split)
        figure = Figure(figsize=(12, 7), dpi=200, layout="constrained")
        axes = figure.subplots(4, 8).ravel()
        for axis in axes:
            axis.set_axis_off()
        for axis, ((values,), label) in zip(axes, rows, strict=False):
            axis.imshow(values.reshape(self.side, self.side), "gray", vmin=0, vmax=255)
            axis.set_title(self.class_names[label], parse_math=False)
        with disk.writable(path, "--data"), disk.partial(path) as part:
            figure.savefig(part, format="png")
        return path
