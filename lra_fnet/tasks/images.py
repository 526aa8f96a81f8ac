"""Images: your own images in one folder for each class, in gray, read pixel by pixel."""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import gin
import numpy as np

from lra_fnet.data import sources
from lra_fnet.errors import UserError
from lra_fnet.machine.progress import say
from lra_fnet.tasks import own_rows, pixels
from lra_fnet.tasks.task import PixelTask, Raw, Sets

ENDINGS = (".png", ".jpg", ".jpeg")
_OTHER_ENDINGS = (  # of images, which are refused
    *(".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jxl", ".tif", ".tiff", ".webp"),
)

_NAME = re.compile(r"\w[\w-]*_(\d{1,4})")
_LARGEST = 2**27  # bytes of a file


def _length(name: str) -> int:
    """Returns the pixels of an image in the set <name>_<side>."""
    match = _NAME.fullmatch(name)
    if match is None or not int(match[1]):
        raise KeyError(name)
    return int(match[1]) ** 2


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Images(own_rows.OwnTask, PixelTask):
    """The class of an image, which is converted to gray and resized to a square.

    Classes and the mean and deviation of the pixels become known with the prepared set, see
    `Task.settle`.
    """

    name = "images"
    title = "Own images"
    configs = Sets(_length, "gray_32", rule="a name that ends in the side, as pets_64")
    licence = "that of your images"
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
        """Returns the images of a folder by path, or of an archive in its own order, one by one."""
        if source is None:
            raise UserError(
                f"images/{self.config} reads your own images: give --source a folder with a "
                "folder of PNG or JPEG files for each class"
            )
        left_out: collections.Counter[str] = collections.Counter()
        paths = [file.path for file in _files(source, left_out)]
        if left_out:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(left_out.items()))
            say(f"{source}: left out, because they are not images in a class folder: {kinds}")
        found = {path.parent.name for path in paths}
        if all(name.lower() in own_rows.NAMES for name in found):
            raise UserError(
                f"{source}: expected a folder for each class in {', '.join(sorted(found))}, got "
                "images directly there"
            )
        _check_depth(source, paths)
        if empty := _without_images(source, paths):
            say(f"{source}: no image in {', '.join(empty)}, so that is no class")
        names = own_rows.classes(source, found, self.labels)
        splits = {own_rows.named(path.parts[:-2]) for path in paths}
        parts = own_rows.Division(source, names, splits)
        details: dict[str, Any] = {"labels": list(names)}
        stream = self._rows(source, names, parts, details)
        return Raw(stream=stream, source=source.name, details=details, total=len(paths))

    def _rows(self, source: Path, names: Sequence[str], parts: own_rows.Division, details: dict):
        numbers = {name: number for number, name in enumerate(names)}
        sums = np.zeros(3, np.int64)  # of the training pixels: number, sum, sum of squares
        for file in _files(source):
            try:
                values = self.encode(file.read(_LARGEST))
            except ValueError as error:
                raise UserError(f"{file}: {error}: convert it, or remove it") from None
            label = numbers[file.path.parent.name]
            split = parts.split([values], label, own_rows.named(file.path.parts[:-2]))
            if split == self.splits[0]:
                wide = values.astype(np.int64)
                sums += len(wide), wide.sum(), (wide**2).sum()
            yield split, (values, label)
        details |= parts.finish()
        mean = sums[1] / sums[0]
        deviation = math.sqrt(max(sums[2] / sums[0] - mean**2, 1.0))  # not 0, for equal images
        details |= {"pixel_mean": round(float(mean), 2), "pixel_sd": round(deviation, 2)}


def _without_images(source: Path, paths: Sequence[PurePosixPath]) -> list[str]:
    """Returns the folders beside those of the classes that hold no image; none of an archive."""
    if not source.is_dir():
        return []
    holding = {path.parent for path in paths}
    beside = [(source / above).glob("[!.]*/") for above in {folder.parent for folder in holding}]
    found = {folder.relative_to(source) for folder in itertools.chain(*beside)}
    return sorted(map(str, found - holding))


def _check_depth(source: Path, paths: Iterable[PurePosixPath]) -> None:
    """Checks that the folders of all classes lie in one folder, or in one of each split.

    Raises:
        UserError: they do not, as where a class has folders of its own.
    """
    above: dict[tuple[str, ...], PurePosixPath] = {}  # without the folder that names a split
    for path in paths:
        parts = path.parts[:-2]
        split = next((k for k, part in enumerate(parts) if part.lower() in own_rows.NAMES), None)
        rest = parts if split is None else parts[:split] + parts[split + 1 :]
        above.setdefault(rest, path.parent)
        if len(above) > 1:
            one, other = above.values()
            raise UserError(
                f"{source}: expected images in a folder for each class, all of them in one folder "
                f"(or in train, validation and test), got images in {one} and in {other}: move them"
            )


def _files(
    source: Path, left_out: collections.Counter[str] | None = None
) -> Iterator[sources.File]:
    """Yields the images in folders of a folder or archive; counts other files by their ending.

    Raises:
        UserError: there are none, or images of another format.
    """
    empty = True
    if source.name.lower().endswith(ENDINGS + _OTHER_ENDINGS) and source.is_file():
        raise UserError(
            f"{source}: expected a folder with a folder for each class, or an archive of it, got "
            "an image"
        )
    for file in sources.files(source):
        name = file.path.name.lower()
        if name.endswith(_OTHER_ENDINGS):
            raise UserError(f"{file}: expected PNG or JPEG images only: convert it, or remove it")
        if name.endswith(ENDINGS) and len(file.path.parts) > 1:
            empty = False
            yield file
        elif left_out is not None:
            left_out[file.path.suffix or file.path.name] += 1
    if empty:
        raise UserError(
            f"{source}: expected a folder of PNG or JPEG files for each class, found none"
        )
