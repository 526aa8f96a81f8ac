"""Image: CIFAR-10 in gray, a picture read pixel by pixel, 10 classes.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) with the images of Krizhevsky, Learning
Multiple Layers of Features from Tiny Images, 2009. The source is the published binary batches, or
images in folders named after the classes.
"""

import dataclasses
import hashlib
import re
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import gin
import numpy as np

from lra_fnet.data import pixels, sources
from lra_fnet.data.store import SPLITS, Raw
from lra_fnet.errors import UserError
from lra_fnet.machine.progress import Bar, say
from lra_fnet.tasks.task import PixelTask

REMOTE = sources.Remote(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
# A label is the index of its class.
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
BATCH_ROWS = 10_000
GRAY_SUMS = (6_265_041_906, 1_260_928_426)  # of all training and of all test pixels
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = ("test_batch.bin",)

_SIDE = 32  # pixels
_PIXELS = _SIDE * _SIDE
_CHUNK = 500  # images whose colours are in float32 at once
_IMAGE_NAME = re.compile(r"(?:.*/)?(train|test)/[^/]+/[^/.][^/]*\.(?:png|jpe?g)", re.IGNORECASE)


class Rows(NamedTuple):
    """Some rows in memory."""

    values: np.ndarray  # uint8 [n, 1024]
    labels: np.ndarray  # uint8 [n]


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Image(PixelTask):
    """LRA's Image: ten classes, equally frequent; in `full_16` 16 by 16 pixels."""

    name = "image"
    title = "Image"
    num_classes = len(CLASSES)
    configs = MappingProxyType({"full": _PIXELS, "full_16": _PIXELS // 4})
    label_names = CLASSES
    licence = "not stated; the publisher asks to cite Krizhevsky 2009"
    remote = REMOTE
    pixel_mean = 122.37
    pixel_sd = 61.15

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns the first nine tenths of the training images as train, the rest as validation.

        Long-Range Arena's code splits in the same way, but in the order of TFDS's files, which is
        different: its validation split holds other images. A pixel of `full_16` is the rounded mean
        of two by two of the others.
        """
        assert source is not None  # there is a remote file
        rows, test, form = read(source)
        got = tuple(int(part.values.sum(dtype=np.int64)) for part in (rows, test))
        if not np.allclose(got, GRAY_SUMS, rtol=0.01):
            raise UserError(
                f"{source}: expected gray values that sum to about {GRAY_SUMS[0]} and "
                f"{GRAY_SUMS[1]} (training and test images), got {got[0]} and {got[1]}: these are "
                f"not the images of CIFAR-10; get {REMOTE} again"
            )
        if got != GRAY_SUMS:
            say(f"{source}: some pixels are not the publisher's, as in a copy with JPEG images")
        cut = len(rows.labels) * 9 // 10
        train = Rows(rows.values[:cut], rows.labels[:cut])
        validation = Rows(rows.values[cut:], rows.labels[cut:])
        return Raw(
            {
                split: zip(self._shrink(part.values), part.labels.tolist(), strict=True)
                for split, part in zip(SPLITS, (train, validation, test), strict=True)
            },
            source=source.name,
            details={"format": form},
            total=len(rows.labels) + len(test.labels),
        )

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the gray pixels of a PNG or JPEG image, resized to 32 x 32 if necessary."""
        return self._shrink(_gray(content, resize=True)[None])[0]

    def _shrink(self, images: np.ndarray) -> np.ndarray:
        """Returns images uint8 [n, 1024] in the size of this data set."""
        return images if self.side == _SIDE else pixels.block_means(images, self.side)


def luma(planes: np.ndarray) -> np.ndarray:
    """Returns the gray values of Long-Range Arena's code: [n, 3, pixels] -> [n, pixels], uint8.

    They are 255.5 / 255 (0.2989 R + 0.5870 G + 0.1140 B), truncated. The steps are those of
    TensorFlow's rgb_to_grayscale on uint8, in float32 and in the same order, so that all 2^24
    colours give the same value as there. A gray colour keeps its value.
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
    """Returns all training rows, all test rows, and their format: "binary" or "images".

    Batches keep their published order. Images in folders have no order: they are sorted by the
    sha256 of their gray values, so that names do not matter. If there are both, the batches are
    read.

    Raises:
        UserError: if `source` holds neither, not the whole of CIFAR-10, or a bad file.
    """
    batches = {*TRAIN, *TEST} & {file.path.name for file in sources.files(source)}
    # Rows with the key to sort them by: a batch's name, or the sha256 of an image and its label.
    parts: dict[str, list[tuple[tuple, Rows]]] = {"train": [], "test": []}
    with Bar(f"reading {source.name}", None, unit="files") as progress:
        for file in sources.files(source):
            progress.step()
            name = file.path.name
            if batches and name in batches:
                parts["test" if name in TEST else "train"].append(((name,), _read_batch(file)))
            elif not batches and (match := _IMAGE_NAME.fullmatch(str(file.path))):
                rows = _read_image(file)
                digest = hashlib.sha256(rows.values.tobytes()).digest()
                parts[match[1].lower()].append(((digest, rows.labels[0]), rows))
    train, test = (
        Rows(
            np.concatenate([np.empty((0, _PIXELS), np.uint8), *(rows.values for _, rows in part)]),
            np.concatenate([np.empty(0, np.uint8), *(rows.labels for _, rows in part)]),
        )
        for part in (sorted(part, key=lambda keyed: keyed[0]) for part in parts.values())
    )
    for rows, files in ((train, TRAIN), (test, TEST)):
        wanted = len(files) * BATCH_ROWS // len(CLASSES)
        counts = np.bincount(rows.labels, minlength=len(CLASSES)).tolist()
        if counts != [wanted] * len(CLASSES):
            raise UserError(
                f"{source}: expected {TRAIN[0]} to {TRAIN[-1]} and {TEST[0]} (not Python's pickled "
                f"batches), or train/<class>/*.png and test/<class>/*.png, once, with {wanted} "
                f"images of each class in {files[0]} or its folder, got {counts}; get {REMOTE}"
            )
    return train, test, "binary" if batches else "images"


def _read_batch(file: sources.File) -> Rows:
    """Returns a binary batch: each image is its label, then the red, green and blue planes."""
    width = 1 + 3 * _PIXELS
    content = file.read(BATCH_ROWS * width)
    if len(content) != BATCH_ROWS * width:
        raise UserError(
            f"{file}: expected {BATCH_ROWS * width} bytes ({BATCH_ROWS} images of {width}), got "
            f"{len(content)}; get {REMOTE} again"
        )
    rows = np.frombuffer(content, np.uint8).reshape(BATCH_ROWS, width)
    labels = rows[:, 0].copy()
    if labels.max() >= len(CLASSES):
        raise UserError(f"{file}: expected labels 0-9, got {labels.max()}; get {REMOTE} again")
    return Rows(luma(rows[:, 1:].reshape(BATCH_ROWS, 3, _PIXELS)), labels)


def _read_image(file: sources.File) -> Rows:
    """Returns one PNG or JPEG of 32 x 32 pixels, in a folder named after its class."""
    name = file.path.parent.name
    if name not in CLASSES:
        raise UserError(f"{file}: expected a class of {', '.join(CLASSES)}, got {name!r}")
    try:
        values = _gray(file.read(pixels.LARGEST))
    except ValueError as error:
        raise UserError(f"{file}: {error}; get the file again") from None
    return Rows(values[None], np.array([CLASSES.index(name)], np.uint8))


def _gray(content: bytes, *, resize: bool = False) -> np.ndarray:
    """Returns the gray values uint8 [1024] of an image file."""
    colours = pixels.read(content, _SIDE, "RGB", resize=resize)
    return luma(colours.reshape(1, _PIXELS, 3).transpose(0, 2, 1))[0]
