"""Pathfinder and Path-X: do the two discs of an image mark the ends of one contour?

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) at commit cd31e5c, after Linsley et al. (arXiv
1805.08315) and Kim et al. (arXiv 1906.01558). Images are generated with the settings that LRA
documents, or read from its release. Every image holds two long contours and short distractors. One
disc is on the first end of a contour, the other on the last end of the same contour (label 1) or of
the other one (label 0).
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gin
import numpy as np

from lra_fnet.baselines import shallow
from lra_fnet.data import drawing, pixels, sources
from lra_fnet.data.arrays import Arrays, Batches
from lra_fnet.data.store import SEED, Raw
from lra_fnet.errors import UserError
from lra_fnet.tasks import pathfinder_paddles
from lra_fnet.tasks.pathfinder_paddles import Scene
from lra_fnet.tasks.task import PixelTask

GENERATOR = 2  # increase it, and the tasks' version, whenever the generated rows change
_CHUNK = 250  # images drawn from one random stream


# Settings from the docstrings of LRA's data builders, by window. `_setting` adds the contour
# lengths and the values that depend on them. At 32 pixels, distractors are brighter than the long
# contours.
_ROWS = (160_000, 20_000, 20_000)
_WINDOWS = {
    32: Scene(32, 1, 0, 0, 20, 2, 0.5, (1, 1), 7, 1.5, 1.0, 0.75, 2.0, _ROWS),
    64: Scene(64, 1, 0, 0, 22, 5, 1.0, (1, 1), 12, 2.5, 1.8, 1.0, 0.8, _ROWS),
    128: Scene(128, 1, 0, 0, 35, 5, 1.5, (2, 3), 20, 3.0, 1.8, 1.0, 0.9, _ROWS),
    256: Scene(256, 22, 0, 0, 30, 5, 2.0, (3, 3), 27, 5.0, 1.8, 1.0, 1.0, _ROWS),
}
MOST_EMPTY = 200  # images of LRA's release; it has one, an unpacking that failed has more
LEVELS = {  # length of the long contours, and the folder in LRA's release
    "hard": (14, "curv_contour_length_14"),
    "intermediate": (9, "curv_contour_length_9"),
    "easy": (6, "curv_baseline"),
}


def _setting(window: int, contour_length: int, **changes: Any) -> Scene:
    """Returns LRA's setting: distractors have a third of the length, and are fewer if longer."""
    short = contour_length // 3
    number = _WINDOWS[window].num_distractors // short
    base = _WINDOWS[window]._replace(contour_length=contour_length, distractor_length=short)
    return base._replace(**({"num_distractors": number} | changes))


SETS: Mapping[str, Scene] = MappingProxyType(
    {
        f"{level}_{window}": _setting(window, length)
        for window in _WINDOWS
        for level, (length, _) in LEVELS.items()
    }
    | {  # for small machines: contours of three paddles only, which a small model learns in minutes
        "short_16": _setting(32, 3, num_distractors=0, rows=(40_000, 2_000, 2_000), block=2),
        "short_32": _setting(32, 3, num_distractors=0, rows=(40_000, 2_000, 2_000)),
        "short_128": _setting(128, 3, num_distractors=0, rows=(2_000, 64, 256)),
    }
)


def _lengths(*sides: int) -> Mapping[str, int]:
    """Returns the data sets with images of these heights, and the pixels of their images."""
    return MappingProxyType({name: s.side**2 for name, s in SETS.items() if s.side in sides})


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Pathfinder(PixelTask):
    """LRA's Pathfinder: 32 by 32 (LRA's default) or 64 by 64 pixels; in `short_16` 16 by 16."""

    name = "pathfinder"
    title = "Pathfinder"
    num_classes = 2
    label_names = ("two contours", "one contour")
    version = "2.0.0"
    licence = "generated here: as this repository"
    configs = _lengths(16, 32, 64)
    pixel_mean = 20.194
    pixel_sd = 51.136

    @property
    def baselines(self) -> tuple[shallow.Method, ...]:
        """The baselines for pixels, and the distance of the two discs."""
        return *super().baselines, DISCS

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Returns generated rows, or those of LRA's release in the folder `source`."""
        if source is not None:
            return read_official(self.name, self.config, source)
        images, details = generate(self.config, SEED, jobs), {"generator": GENERATOR, "seed": SEED}
        return Raw.consecutive(images, SETS[self.config].rows, details=details)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class PathX(Pathfinder):
    """LRA's Path-X: Pathfinder with 128 by 128 (LRA's default) or 256 by 256 pixels."""

    name = "pathx"
    title = "Path-X"
    configs = _lengths(128, 256)
    pixel_mean = 7.900
    pixel_sd = 35.647


def draw(setting: Scene, state: np.ndarray, number: int) -> tuple[np.ndarray, ...]:
    """Draws images, see `pathfinder_images.draw_images`; `state`, uint64 [4], advances."""
    from lra_fnet.tasks import pathfinder_images  # late: numba compiles it for seconds

    reduction = drawing.lanczos(pathfinder_paddles.SCALE * setting.window, setting.window)
    return pathfinder_images.draw_images(state, number, setting, tables(setting), *reduction)


@functools.cache
def tables(setting: Scene) -> tuple[pathfinder_paddles.Paddles, ...]:
    """Returns the tables of paddles for each of the two margins."""
    return tuple(pathfinder_paddles.paddles(setting, margin) for margin in setting.margins)


def generate(config: str, seed: int, jobs: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yields images of the data set without end, the same with any number of `jobs` (threads).

    Yields:
        values uint8 [side ** 2], row by row, and the label: 1 if both discs mark one contour.
    """
    from lra_fnet.data import streams  # late: numba compiles it for seconds

    setting = SETS[config]
    tables(setting)  # made once, before threads need them
    chunks = streams.chunks(lambda state: draw(setting, state, _CHUNK), seed, jobs)
    for images, labels, _, _ in chunks:
        yield from zip(pixels.block_means(images, setting.side), labels.tolist(), strict=True)


_WIDTHS = (4, 2, 1, 0.5)  # pixels


def _distances(task: Pathfinder, rows: Arrays) -> Iterator[list[int]]:
    """Yields the distance of the two discs of each image, in multiples of each width."""
    radius = SETS[task.config].marker_radius / SETS[task.config].block
    chunks = (shallow.images(task, part) for part in Batches(rows, _CHUNK))
    distances = np.concatenate([disc_distances(chunk, radius) for chunk in chunks])
    for width in _WIDTHS:
        yield (distances / width).astype(int).tolist()


DISCS = shallow.most_frequent_label(
    "most frequent label given the distance of the discs in steps of {width} pixels",
    [{"width": width} for width in _WIDTHS],
    _distances,
)


def disc_distances(images: np.ndarray, radius: float) -> np.ndarray:
    """Returns the distance in pixels of the two discs of each image, uint8 [n, side, side].

    A disc is where the darkest pixel of a square is brightest: paddles are too thin for that. The
    second disc is the brightest place that is more than two radii away from the first.
    """
    reach = 2 * int(radius / 2**0.5) + 1  # side of a square that fits into a disc
    for _ in range(2):  # rows, then columns
        size = images.shape[1] - reach + 1
        shifted = (images[:, start : start + size] for start in range(reach))
        images = functools.reduce(np.minimum, shifted).swapaxes(1, 2)
    side = images.shape[1]
    darkest = images.reshape(-1, side**2).astype(np.int16)
    rows, columns = np.divmod(np.arange(side**2), side)
    first = darkest.argmax(1)[:, None]
    near = np.maximum(abs(rows - rows[first]), abs(columns - columns[first])) <= 2 * radius
    second = np.where(near, -1, darkest).argmax(1)[:, None]
    return np.hypot(rows[first] - rows[second], columns[first] - columns[second])[:, 0]


def read_official(task: str, config: str, source: Path) -> Raw:
    """Returns the rows of LRA's release: the folder pathfinder<window>/<level> in `source`.

    The release must be unpacked: the metadata say in which order the images come, and an archive
    can only be read in its own order. Metadata files are read in numerical order. Their rows are in
    the order of generation, so labels are mixed. The first 80 % are train, the next 10 % validation
    and the last 10 % test. LRA takes the same shares in the order of TFDS's files, which depends on
    a hash of each key: the sizes are the same, but the rows of a split are not.

    Raises:
        UserError: for an archive; if there is no such folder, or two; if metadata are bad or an
            image is missing; while rows are read, for a bad image.
    """
    level, setting = config.rpartition("_")[0], SETS[config]
    if level not in LEVELS or not source.is_dir():
        raise UserError(
            f"{task}/{config} is generated; LRA's release has only {', '.join(LEVELS)}: leave "
            f"--source out, or unpack {source} and name its folder"
        )
    name = (f"pathfinder{setting.window}", LEVELS[level][1])
    found = (path.parent for path in source.resolve().rglob("metadata"))
    places = [path for path in found if path.parts[-2:] == name]
    if len(places) != 1:
        raise UserError(
            f"--source {source}: expected one folder {'/'.join(name)} with imgs/ and metadata/ (of "
            f"lra_release.gz, unpacked), got {len(places)}"
        )
    images, listed = [], 0
    for path, label in _metadata(places[0]):
        listed += 1
        with sources.readable(path):
            if path.stat().st_size:  # LRA skips empty files; its release has one
                images.append((path, label))
    wanted, different = sum(setting.rows), len(dict(images))
    if listed != wanted or different != len(images) or different < wanted - MOST_EMPTY:
        raise UserError(
            f"{places[0]}: expected {wanted} different images, at most {MOST_EMPTY} of them empty, "
            f"got {listed} with {different} different ones that are not empty"
        )
    ends = [round(share * different) for share in (0.0, 0.8, 0.9, 1.0)]
    return Raw.consecutive(
        _rows(images, setting.window),
        np.diff(ends).tolist(),
        source=source.name,
        details={"num_empty_images": listed - different},
    )


def _metadata(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yields path and label of all images, in numerical order of metadata/<number>.npy or .txt.

    Such a file is an array of NumPy's, or text with a line per image.
    """
    paths = [path for path in (folder / "metadata").iterdir() if path.stem.isdecimal()]
    for path in sorted(paths, key=lambda path: (int(path.stem), path.name)):
        with sources.readable(path, ValueError, IndexError):
            content = path.read_bytes()
            if content.startswith(b"\x93NUMPY"):
                lines = np.load(path, allow_pickle=False).astype(str).tolist()
            else:
                lines = [line.split() for line in content.decode().splitlines() if line.strip()]
            for columns in lines:
                yield folder / columns[0] / columns[1], ("0", "1").index(columns[3])


def _rows(images: Iterable[tuple[Path, int]], window: int) -> Iterator[tuple[np.ndarray, int]]:
    """Decodes images one by one."""
    for path, label in images:
        try:
            with sources.readable(path):
                yield pixels.read(path.read_bytes(), window, "L").reshape(-1), label
        except ValueError as error:
            raise UserError(f"{path}: {error}; get the release again") from None
