"""Images: your own images in one folder for each class, in gray, read pixel by pixel."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gin
import numpy as np

from lra_fnet.data import division, pixels, sources
from lra_fnet.data.store import Raw, Row
from lra_fnet.errors import UserError
from lra_fnet.machine.progress import say
from lra_fnet.tasks.own import OwnRow, OwnTask
from lra_fnet.tasks.task import PixelTask, Sets

ENDINGS = (".png", ".jpg", ".jpeg")


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Images(OwnTask, PixelTask):
    """The class of an image, which is converted to gray and resized to a square.

    Classes and the mean and deviation of the pixels become known with the prepared set, see
    `Task.settle`.
    """

    name = "images"
    title = "Own images"
    configs = Sets(
        r"\w[\w-]*_([1-9]\d{0,3})",
        lambda match: int(match[1]) ** 2,
        "gray_32",
        rule="a name that ends in the side, as pets_64",
    )
    licence = "that of your images"
    reads = "a folder with a folder of PNG or JPEG files for each class"
    endings = ENDINGS

    pixel_mean: float = 127.5  # pyright: ignore[reportIncompatibleVariableOverride]
    pixel_sd: float = 64.0  # pyright: ignore[reportIncompatibleVariableOverride]

    def settle(self, details: Mapping[str, Any]) -> "Images":
        """Returns the task with the labels and the pixels' mean of its prepared set.

        Raises:
            UserError: it has other labels.
        """
        mean = {name: details[name] for name in ("pixel_mean", "pixel_sd") if name in details}
        return dataclasses.replace(super().settle(details), **mean)

    def encode(self, content: bytes) -> np.ndarray:
        """Returns the gray pixels of a PNG or JPEG image, resized if necessary.

        Raises:
            ValueError: if it is not such an image.
        """
        return pixels.read(content, self.side, "L", resize=True).reshape(-1)

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns the images of a folder by path, or of an archive in its own order, one by one.

        The folders of the classes are in one folder, or in one for each split.
        """
        assert source is not None
        left_out: collections.Counter[str] = collections.Counter()
        paths = [file.path for file in _files(source, left_out)]
        if left_out:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(left_out.items()))
            say(f"{source}: left out, because they are not PNG or JPEG in a class folder: {kinds}")
        above = {
            tuple(part for part in path.parts[:-2] if part.lower() not in division.NAMES)
            for path in paths
        }
        if len(above) != 1 or all(path.parent.name.lower() in division.NAMES for path in paths):
            raise UserError(
                f"{source}: expected PNG or JPEG images in a folder for each class, all of them in "
                f"one folder (or in train, validation and test), got {len(above)} such folders"
            )

        def rows() -> Iterator[OwnRow]:
            for file in _files(source, collections.Counter()):
                split = division.named(file.path.parts[:-2])
                yield OwnRow(file.path.parent.name, split, lambda file=file: [self._pixels(file)])

        details: dict[str, Any] = {}
        raw = self.divided(source, rows, details)
        assert raw.stream is not None
        return dataclasses.replace(raw, stream=self._summed(raw.stream, details))

    def _pixels(self, file: sources.File) -> np.ndarray:
        try:
            return self.encode(file.read(pixels.LARGEST))
        except ValueError as error:
            raise UserError(f"{file}: {error}: convert it, or remove it") from None

    def _summed(self, rows: Iterable[tuple[str, Row]], details: dict[str, Any]):
        """Yields the rows, and adds the mean and deviation of the training pixels to `details`."""
        sums = np.zeros(3, np.int64)  # number, sum, sum of squares
        for split, (values, label) in rows:
            if split == self.splits[0]:
                wide = np.asarray(values).astype(np.int64)
                sums += wide.size, wide.sum(), (wide**2).sum()
            yield split, (values, label)
        mean = sums[1] / sums[0]
        deviation = math.sqrt(max(sums[2] / sums[0] - mean**2, 1.0))  # not 0, for equal images
        details |= {"pixel_mean": round(float(mean), 2), "pixel_sd": round(deviation, 2)}


def _files(source: Path, left_out: collections.Counter[str]) -> Iterator[sources.File]:
    """Yields the images in folders of a folder or archive; counts other files by their ending."""
    for file in sources.files(source):
        if file.path.name.lower().endswith(ENDINGS) and len(file.path.parts) > 1:
            yield file
        else:
            left_out[file.path.suffix or file.path.name] += 1
