"""Image: CIFAR-10 in gray, a picture read pixel by pixel, 10 classes.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) with the images of Krizhevsky, Learning
Multiple Layers of Features from Tiny Images, 2009. Read are the published batches, binary or
Python's, or images in folders named after the classes.
"""

import dataclasses
import hashlib
import io
import pickle
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import gin
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.machine.progress import Bar
from lra_fnet.tasks import pixels, sources
from lra_fnet.tasks.task import SPLITS, PixelTask, Raw

_SERVER = "https://www.cs.toronto.edu/~kriz/"
REMOTE = sources.Remote(
    f"{_SERVER}cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
REMOTE_PYTHON = sources.Remote(
    f"{_SERVER}cifar-10-python.tar.gz",
    170_498_071,
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
# A label is its class's place here.
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
BATCH_ROWS = 10_000
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = ("test_batch",)

_SIDE = 32  # pixels
_PIXELS = _SIDE * _SIDE
_CHUNK = 500  # images whose colours are in float32 at once
_BATCH_NAME = re.compile(r"(data_batch_[1-5]|test_batch)(\.bin)?")
_IMAGE_NAME = re.compile(r"(?:.*/)?(?:train|test)/[^/]+/[^/.][^/]*\.(?:png|jpe?g)", re.IGNORECASE)


class Rows(NamedTuple):
    """Some rows in memory."""

    values: np.ndarray  # uint8 [n, 1024]
    labels: np.ndarray  # uint8 [n]


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Image(PixelTask):
    """LRA's Image: ten classes, equally frequent."""

    name = "image"
    title = "Image"
    num_classes = len(CLASSES)
    configs = MappingProxyType({"full": _PIXELS})
    label_names = CLASSES
    also = (REMOTE_PYTHON,)
    licence = "not stated; the publisher asks to cite Krizhevsky 2009"
    pixel_mean = 122.37
    pixel_sd = 61.15

    @property
    def remote(self) -> sources.Remote | None:
        """The binary batches."""
        return REMOTE

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Train: the first nine tenths of the training images; validation: the last tenth.

        Long-Range Arena's code splits the same way, but in the order of TFDS's files, which is
        another one: the images of its validation split are others.
        """
        if source is None:
            raise UserError(f"image: SOURCE must be {REMOTE}, packed or unpacked")
        rows, test, kind = read(source)
        cut = len(rows.labels) * 9 // 10
        train = Rows(rows.values[:cut], rows.labels[:cut])
        validation = Rows(rows.values[cut:], rows.labels[cut:])
        return Raw(
            {
                split: _pairs(part)
                for split, part in zip(SPLITS, (train, validation, test), strict=True)
            },
            source=source.absolute().name,
            details={"format": kind},
            total=len(rows.labels) + len(test.labels),
        )

    def encode(self, content: bytes) -> np.ndarray:
        """Gray pixels of a PNG or JPEG image; one of another size is made 32 x 32."""
        return _gray(content, resize=True)


def _pairs(rows: Rows) -> Iterator[tuple[np.ndarray, int]]:
    return zip(rows.values, rows.labels.tolist(), strict=True)


def luma(planes: np.ndarray) -> np.ndarray:
    """Gray values as Long-Range Arena's code has them, uint8 [n, 3, pixels] -> uint8 [n, pixels].

    0.2989 R + 0.5870 G + 0.1140 B, cut off. The steps are those of TensorFlow's rgb_to_grayscale on
    uint8, in float32 and in its order: all 2^24 colours give the same value. A gray colour gives
    its own.
    """
    unit, back = np.float32(1 / 255), np.float32(255.5)
    red, green, blue = np.array([0.2989, 0.5870, 0.1140], np.float32)
    values = np.empty((planes.shape[0], planes.shape[2]), np.uint8)
    for start in range(0, len(planes), _CHUNK):
        x = planes[start : start + _CHUNK] * unit
        gray = x[:, 0] * red + x[:, 1] * green + x[:, 2] * blue
        values[start : start + _CHUNK] = (gray * back).astype(np.uint8)
    return values


def read(source: Path) -> tuple[Rows, Rows, str]:
    """All training rows, all test rows, and the format they were read from.

    Where there are several formats, binary batches go before Python's, and those before images.
    Batches keep their published order. Images in folders have none: they are put in the order of
    the sha256 of their gray values, so that names and folders do not matter.

    Raises:
        UserError: if `source` holds no known format, not the whole of CIFAR-10, or a bad file.
    """
    best, found, error, others = len(_FORMATS), [], None, []
    count = 0
    with Bar(f"reading {source.absolute().name}", 6 * BATCH_ROWS, unit="images") as progress:
        for path, file in sources.files(source):
            this = _format(path)
            if this is None:
                others.append(str(path))
                continue
            if this < best:
                best, found, error, count = this, [], None, 0
            if this > best or error is not None:
                continue
            try:
                rows = _READERS[this](f"{source}, {path}", path, file)
            except UserError as bad:  # is told unless a better format comes
                error = bad
                continue
            found.append((path, rows))
            count += len(rows.labels)
            progress.update(count)
        if error is not None:
            raise error
        if not found:
            raise UserError(
                f"SOURCE={source}: expected data_batch_1.bin to data_batch_5.bin and "
                f"test_batch.bin, the same without .bin, or train/<class>/*.png and "
                f"test/<class>/*.png; found {', '.join(others[:3]) or 'no file'}"
            )
    kind = _FORMATS[best]
    if kind == "images":
        train, test = (_mixed(found, name) for name in ("train", "test"))
    else:
        suffix = ".bin" if kind == "binary" else ""
        train, test = (_joined(found, names, suffix, source) for names in (TRAIN, TEST))
    _check_counts(source, "training", train, len(TRAIN))
    _check_counts(source, "test", test, len(TEST))
    return train, test, kind


def _format(path: PurePosixPath) -> int | None:
    """The place in _FORMATS of what a file belongs to; None if it is nothing to read."""
    if match := _BATCH_NAME.fullmatch(path.name):
        return 0 if match[2] else 1
    return 2 if _IMAGE_NAME.fullmatch(str(path)) else None


def _joined(
    found: list[tuple[PurePosixPath, Rows]], stems: tuple[str, ...], suffix: str, source: Path
) -> Rows:
    """The batches of these names in this order, whatever the order of an archive."""
    parts = []
    for stem in stems:
        same = [(path, rows) for path, rows in found if path.name == stem + suffix]
        if len(same) != 1:
            paths = ", ".join(str(path) for path, _ in same) or "none"
            raise UserError(
                f"{source}: expected one {stem}{suffix}, found {paths}; get {REMOTE} again"
            )
        parts.append(same[0][1])
    return _concatenate(parts)


def _mixed(found: list[tuple[PurePosixPath, Rows]], name: str) -> Rows:
    """The images of train/ or test/, by the sha256 of their gray values, then by label."""
    parts = [rows for path, rows in found if path.parts[-3].lower() == name]
    parts.sort(
        key=lambda rows: (hashlib.sha256(rows.values.tobytes()).digest(), int(rows.labels[0]))
    )
    return _concatenate(parts)


def _concatenate(parts: list[Rows]) -> Rows:
    empty = Rows(np.empty((0, _PIXELS), np.uint8), np.empty(0, np.uint8))
    return Rows(*(np.concatenate(columns) for columns in zip(empty, *parts, strict=True)))


def _check_counts(source: Path, what: str, rows: Rows, batches: int) -> None:
    """Every class must have a tenth of the training images, and of the test images."""
    want = batches * BATCH_ROWS // len(CLASSES)
    for name, got in zip(CLASSES, np.bincount(rows.labels, minlength=len(CLASSES)), strict=True):
        if got != want:
            raise UserError(
                f"{source}: {got} {what} images of the class {name}, CIFAR-10 has {want}; "
                f"get {REMOTE} again"
            )


def _check_labels(where: str, labels: np.ndarray) -> None:
    if (bad := np.flatnonzero((labels < 0) | (labels >= len(CLASSES)))).size:
        raise UserError(
            f"{where}: row {bad[0]} has the label {labels[bad[0]]}, expected 0-9; "
            f"get {REMOTE} again"
        )


# The formats: each reader takes what errors call the file, its path in the source, and the file.


def _read_binary(where: str, path: PurePosixPath, file: BinaryIO) -> Rows:
    """A binary batch: of each image the label, then the red, the green and the blue plane."""
    row = 1 + 3 * _PIXELS
    content = file.read(BATCH_ROWS * row + 1)
    if len(content) != BATCH_ROWS * row:
        got = "more" if len(content) > BATCH_ROWS * row else f"{len(content)}"
        raise UserError(
            f"{where}: expected {BATCH_ROWS * row} bytes ({BATCH_ROWS} images of {row}), found "
            f"{got}; get {REMOTE} again"
        )
    rows = np.frombuffer(content, np.uint8).reshape(BATCH_ROWS, row)
    labels = rows[:, 0].copy()
    _check_labels(where, labels)
    return Rows(luma(rows[:, 1:].reshape(BATCH_ROWS, 3, _PIXELS)), labels)


def _read_python(where: str, path: PurePosixPath, file: BinaryIO) -> Rows:
    """A pickled batch: a dict with b"data", uint8 [n, 3072], and b"labels", a list of int."""
    limit = 2 * BATCH_ROWS * 3 * _PIXELS + 2**20  # bytes; the published ones are half as long
    content = file.read(limit + 1)
    try:
        if len(content) > limit:
            raise ValueError(f"more than {limit} bytes")
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        data, labels = (_entry(batch, key) for key in ("data", "labels"))
        if not isinstance(data, _Array) or not isinstance(labels, list):
            raise ValueError("no array 'data' and list 'labels'")
        if not all(isinstance(label, int) for label in labels):
            raise ValueError("labels that are no integers")
        values, labels = data.values, np.array(labels, np.int64)
        if values.shape != (BATCH_ROWS, 3 * _PIXELS) or labels.shape != (BATCH_ROWS,):
            raise ValueError(f"data {[*values.shape]} and {len(labels)} labels")
    except Exception as error:  # a bad pickle can raise anything
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(
            f"{where}: expected a pickled dict with data, uint8 [{BATCH_ROWS}, {3 * _PIXELS}], and "
            f"labels, found {reason}; get {REMOTE_PYTHON} again"
        ) from None
    _check_labels(where, labels)
    return Rows(luma(values.reshape(BATCH_ROWS, 3, _PIXELS)), labels.astype(np.uint8))


def _read_image(where: str, path: PurePosixPath, file: BinaryIO) -> Rows:
    """One PNG or JPEG of 32 x 32 pixels, in a folder named after its class."""
    name = path.parent.name
    if name not in CLASSES:
        raise UserError(f"{where}: unknown class {name!r}: one of {', '.join(CLASSES)}")
    content = file.read(pixels.LARGEST + 1)
    try:
        values = _gray(content)
    except ValueError as error:
        raise UserError(f"{where}: {error}; get the file again") from None
    return Rows(values[None], np.array([CLASSES.index(name)], np.uint8))


def _gray(content: bytes, *, resize: bool = False) -> np.ndarray:
    """Values uint8 [1024] of an image file."""
    colours = np.asarray(pixels.decode(content, _SIDE, resize=resize))
    planes = colours.reshape(1, _PIXELS, 3).transpose(0, 2, 1)
    return luma(planes)[0]


_FORMATS = ("binary", "python", "images")
_READERS = (_read_binary, _read_python, _read_image)


def _entry(batch: Any, key: str) -> Any:
    """Python 2 wrote byte strings as keys; a batch written again by Python 3 may have others."""
    if not isinstance(batch, dict):
        raise ValueError("no dict")
    return batch.get(key.encode(), batch.get(key))


class _Dtype:
    """Stands for a numpy.dtype in a pickle: uint8 or an error."""

    __slots__ = ()

    def __setstate__(self, state: Any):
        """Byte order, fields and the like: uint8 has none."""


class _Array:
    """Stands for a numpy.ndarray in a pickle."""

    __slots__ = ("values",)

    def __init__(self):
        self.values = np.empty(0, np.uint8)

    def __setstate__(self, state: Any):
        _, shape, _, fortran, content = state
        self.fill(content, shape, "F" if fortran else "C")

    def fill(self, content: Any, shape: Any, order: Any) -> None:
        """Takes the bytes of an array, of which `_Unpickler` knows that it is uint8."""
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order=order)


class _Unpickler(pickle.Unpickler):
    """Builds dicts, lists, strings, numbers and uint8 arrays; any other name is an error.

    Nothing of NumPy's is called by the pickle, and no attribute of what stands for it can be set,
    so that a pickle made to do harm does none. NumPy 1 and 2 write different module names.
    """

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle may name."""
        known = {
            "numpy.ndarray": None,  # only an argument of _reconstruct
            "numpy.dtype": self._dtype,
            "numpy.core.multiarray._reconstruct": self._reconstruct,  # up to protocol 4
            "numpy.core.numeric._frombuffer": self._frombuffer,  # protocol 5
            "_codecs.encode": self._encode,  # bytes as Python 3 writes them in protocol 2
        }
        full = f"{module}.{name}"
        if (key := full.replace("numpy._core.", "numpy.core.")) not in known:
            raise pickle.UnpicklingError(f"the name {full!r}, which is not allowed")
        return known[key]

    def _dtype(self, name: Any, *_: Any) -> _Dtype:
        if name not in ("u1", b"u1"):
            raise ValueError(f"an array of {name!r}")
        return _Dtype()

    def _reconstruct(self, *_: Any) -> _Array:
        return _Array()

    def _frombuffer(self, content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        array = _Array()
        array.fill(content, shape, order)
        return array

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", b"latin1"):
            raise ValueError(f"a string in {encoding!r}")
        return text.encode("latin1")
