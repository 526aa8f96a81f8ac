"""Images: your own images in one folder for each class, in gray, read pixel by pixel."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
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
        r"\w[\w-]{0,99}_([1-9]\d{0,3})",
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
        every = [file.path for file in sources.files(source)]
        paths = [path for path in every if _is_image(path)]
        if left_out := len(every) - len(paths):
            say(f"{source}: {left_out:,} files are left out: not PNG or JPEG in a class folder")
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
            for file in sources.files(source):
                if _is_image(file.path):
                    split = division.named(file.path.parts[:-2])
                    read = functools.partial(self._pixels, file)
                    yield OwnRow(file.path.parent.name, split, read)

        raw = self.divided(source, rows)
        return dataclasses.replace(raw, stream=self._summed(raw.rows(), raw.details))

    def _pixels(self, file: sources.File) -> list[np.ndarray]:
        try:
            return [self.encode(file.read())]
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


def _is_image(path: PurePath) -> bool:
    """Returns whether a file is an image in a folder, which names its class."""
    return path.name.lower().endswith(ENDINGS) and len(path.parts) > 1
