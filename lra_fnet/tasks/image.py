"""Image: CIFAR-10 in gray, a picture read pixel by pixel, 10 classes.

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) with the images of Krizhevsky, Learning
Multiple Layers of Features from Tiny Images, 2009. The source is the published binary batches.
"""

import dataclasses
from pathlib import Path
from types import MappingProxyType

import gin
import numpy as np

from lra_fnet.data import pixels, sources
from lra_fnet.data.store import Raw
from lra_fnet.errors import UserError
from lra_fnet.machine.progress import Bar
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
        values, labels = read(source)
        train = len(TRAIN) * BATCH_ROWS
        if [int(x.sum(dtype=np.int64)) for x in np.split(values, [train])] != [*GRAY_SUMS]:
            raise UserError(f"{source}: other pixels than those of CIFAR-10; get {REMOTE} again")
        rows = zip(self._shrink(values), labels.tolist(), strict=True)
        held_out = train // 10
        counts = train - held_out, held_out, len(labels) - train
        return Raw.consecutive(rows, counts, source=source.name, details={"format": "binary"})

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the gray pixels of a PNG or JPEG image, resized to 32 x 32 if necessary."""
        colours = pixels.read(content, _SIDE, "RGB", resize=True).reshape(1, _PIXELS, 3)
        return self._shrink(luma(colours.transpose(0, 2, 1)))[0]

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


def read(source: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns gray values uint8 [n, 1024] and labels uint8 [n], training rows before test rows.

    They are in the order of the published batches.

    Raises:
        UserError: if `source` does not hold all batches of CIFAR-10, or one of another size.
    """
    width = 1 + 3 * _PIXELS  # a row is its label, then the red, green and blue planes
    batches: dict[str, np.ndarray] = {}
    with Bar(f"reading {source.name}", len(TRAIN + TEST), unit="files") as progress:
        for file in sources.files(source):
            if (name := file.path.name) not in TRAIN + TEST:
                continue
            content = file.read()
            if len(content) != BATCH_ROWS * width:
                raise UserError(f"{file}: expected {BATCH_ROWS * width} bytes, got {len(content)}")
            batches[name] = np.frombuffer(content, np.uint8).reshape(BATCH_ROWS, width)
            progress.step()
    if missing := [name for name in TRAIN + TEST if name not in batches]:
        raise UserError(
            f"{source}: expected {TRAIN[0]} to {TRAIN[-1]} and {TEST[0]} (not Python's pickled "
            f"batches), found no {', '.join(missing)}; get {REMOTE}"
        )
    rows = np.concatenate([batches[name] for name in TRAIN + TEST])
    return luma(rows[:, 1:].reshape(-1, 3, _PIXELS)), rows[:, 0]
