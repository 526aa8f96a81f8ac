"""Pathfinder and Path-X: do the two discs of an image mark the ends of one contour?

Source: Long-Range Arena (arXiv 2011.04006, Sec. 2.2) at commit cd31e5c, after Linsley et al. (arXiv
1805.08315) and Kim et al. (arXiv 1906.01558). Images are generated with the settings that LRA
documents, or read from its release. Every image holds two long contours and short distractors; one
disc lies on the first end of a contour, the other on the last end of the same one (label 1) or of
the other one (label 0).
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

import gin
import numpy as np

from lra_fnet.errors import UserError
from lra_fnet.tasks import pathfinder_paddles
from lra_fnet.tasks.task import SPLITS, PixelTask, Raw

GENERATOR = 1  # raise it, and the tasks' version, whenever the generated rows change
SEED = 0
_CHUNK = 250  # images drawn from one random stream


class Setting(NamedTuple):
    """One data set. Lengths in pixels; contours in paddles."""

    window: int  # height and width of an image
    padding: int  # frame that contours keep away from
    contour_length: int  # of the two long contours; at least 2
    distractor_length: int
    num_distractors: int  # at most; one that finds no place is left out
    paddle_length: int
    paddle_thickness: float  # twice of it is an integer
    margins: tuple[int, int]  # half of the gap between paddles: one of the two in each image
    seed_distance: int  # between the first ends of the two contours
    marker_radius: float  # of a disc; twice of it is an integer
    continuity: float  # turns of more than 90 degrees / continuity never happen
    paddle_contrast: float  # brightness of the long contours, times snake_contrast
    snake_contrast: float  # brightness of distractors
    rows: tuple[int, int, int]  # train, validation, test


# Settings of LRA's data builders (their docstrings), by window; contour lengths and what depends on
# them are set below. They make the distractors of 32 pixels brighter than the long contours.
_ROWS = (160_000, 20_000, 20_000)
_WINDOWS = {
    32: Setting(32, 1, 0, 0, 20, 2, 0.5, (1, 1), 7, 1.5, 1.0, 0.75, 2.0, _ROWS),
    64: Setting(64, 1, 0, 0, 22, 5, 1.0, (1, 1), 12, 2.5, 1.8, 1.0, 0.8, _ROWS),
    128: Setting(128, 1, 0, 0, 35, 5, 1.5, (2, 3), 20, 3.0, 1.8, 1.0, 0.9, _ROWS),
    256: Setting(256, 22, 0, 0, 30, 5, 2.0, (3, 3), 27, 5.0, 1.8, 1.0, 1.0, _ROWS),
}
LEVELS = {"hard": 14, "intermediate": 9, "easy": 6}  # length of the long contours
_FOLDERS = {  # of the release
    "hard": "curv_contour_length_14",
    "intermediate": "curv_contour_length_9",
    "easy": "curv_baseline",
}


def _setting(window: int, contour_length: int, **changes: Any) -> Setting:
    """LRA's setting: a distractor has a third of the length, and fewer of them are drawn."""
    base = _WINDOWS[window]
    short = contour_length // 3
    derived = {
        "contour_length": contour_length,
        "distractor_length": short,
        "num_distractors": base.num_distractors // short,
    }
    return base._replace(**(derived | changes))


SETS: Mapping[str, Setting] = MappingProxyType(
    {
        f"{level}_{window}": _setting(window, length)
        for window in _WINDOWS
        for level, length in LEVELS.items()
    }
    | {  # for small machines: three paddles and nothing else, which a small model learns in minutes
        "short_32": _setting(32, 3, num_distractors=0, rows=(40_000, 2_000, 2_000)),
        "short_128": _setting(128, 3, num_distractors=0, rows=(2_000, 64, 256)),
    }
)


@dataclasses.dataclass(frozen=True)
class _Contours(PixelTask):
    """What Pathfinder and Path-X share."""

    def raw(self, source: Path | None, jobs: int) -> Raw:
        """Generated rows, or those of LRA's release below the folder `source`."""
        if source is not None:
            return read_official(self.name, self.config, source)
        counts = SETS[self.config].rows
        images = generate(self.config, SEED, jobs)
        return Raw(
            {
                split: itertools.islice(images, count)
                for split, count in zip(SPLITS, counts, strict=True)
            },
            details={"generator": GENERATOR, "seed": SEED},
            total=sum(counts),
        )


def _lengths(*windows: int) -> Mapping[str, int]:
    """Data sets of these windows, and the pixels of an image."""
    return MappingProxyType({name: s.window**2 for name, s in SETS.items() if s.window in windows})


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Pathfinder(_Contours):
    """LRA's Pathfinder: images of 32 by 32 (its default), or 64 by 64 pixels."""

    name = "pathfinder"
    title = "Pathfinder"
    num_classes = 2
    label_names = ("two contours", "one contour")
    licence = "generated here: as this repository"
    configs = _lengths(32, 64)
    pixel_mean = 20.194
    pixel_sd = 51.136


@gin.configurable
@dataclasses.dataclass(frozen=True)
class PathX(_Contours):
    """LRA's Path-X: the same with 128 by 128 pixels, or 256 by 256."""

    name = "pathx"
    title = "Path-X"
    num_classes = 2
    label_names = Pathfinder.label_names
    licence = Pathfinder.licence
    configs = _lengths(128, 256)
    pixel_mean = 7.900
    pixel_sd = 35.647


class Drawn(NamedTuple):
    """Images as they were drawn; see `pathfinder_images.draw_images`."""

    images: np.ndarray  # uint8 [n, window ** 2]
    labels: np.ndarray  # uint8 [n]
    paddles: np.ndarray  # int64 [n, P, 3]
    facts: np.ndarray  # int64 [n, NUM_FACTS]


def draw(setting: Setting, seed: int, chunk: int, number: int) -> Drawn:
    """Images of one chunk, from the stream that SeedSequence([seed, chunk]) starts."""
    from lra_fnet.tasks import pathfinder_images  # compiles on first use: only preparation pays

    state = np.random.SeedSequence([seed, chunk]).generate_state(4, np.uint64)
    values = np.arange(256) / 255
    snake = setting.snake_contrast
    contrasts = np.stack(
        [  # the original adds paddles up in single precision, discs in double
            (values * (setting.paddle_contrast * snake)).astype(np.float32).astype(np.float64),
            (values * snake).astype(np.float32).astype(np.float64),
            values,
        ]
    )
    starts, weights = pathfinder_paddles.lanczos(
        pathfinder_paddles.SCALE * setting.window, setting.window
    )
    return Drawn(
        *pathfinder_images.draw_images(
            state, number, setting, tables(setting), contrasts, starts, weights
        )
    )


def tables(
    setting: Setting,
) -> tuple[pathfinder_paddles.Paddles, pathfinder_paddles.Paddles]:
    """Tables of the paddles, for each of the two margins."""
    first, second = (
        pathfinder_paddles.paddles(
            setting.paddle_length,
            setting.paddle_thickness,
            margin,
            setting.continuity,
            setting.seed_distance,
        )
        for margin in setting.margins
    )
    return first, second


def generate(config: str, seed: int, jobs: int) -> Iterator[tuple[np.ndarray, int]]:
    """Images of the data set without end, the same at any number of `jobs` (threads).

    Chunk k of 250 images has a random stream of its own (`draw`); chunks are taken in order, and
    `jobs` + 1 of them are in memory at a time.

    Yields:
        values uint8 [window ** 2], row by row, and the label: 1 if both discs mark one contour.
    """
    setting = SETS[config]
    tables(setting)  # made once, before threads ask for them
    with ThreadPoolExecutor(jobs) as pool:
        ahead = collections.deque(
            pool.submit(draw, setting, seed, chunk, _CHUNK) for chunk in range(jobs + 1)
        )
        for chunk in itertools.count(jobs + 1):
            drawn = ahead.popleft().result()
            ahead.append(pool.submit(draw, setting, seed, chunk, _CHUNK))
            yield from zip(drawn.images, drawn.labels.tolist(), strict=True)


class _Listed(NamedTuple):
    path: Path
    label: int


def read_official(task: str, config: str, source: Path) -> Raw:
    """Rows of LRA's release: the folder pathfinder<window>/<level> at any depth below `source`.

    Metadata files come in numerical order, their rows in the order in which they were written,
    which is that of generation: labels are mixed. The first 80 % are train, the next 10 %
    validation, the last 10 % test. LRA takes the same shares of the files of TFDS, whose order
    depends on a hash of each key: the sizes are the same, the rows of a split are not.

    Raises:
        UserError: if there is no such folder, or two; if metadata are bad or an image is missing;
            while rows are read, for a bad image.
    """
    if config not in {f"{level}_{window}" for level in LEVELS for window in _WINDOWS}:
        raise UserError(
            f"{task}/{config} is generated only; leave SOURCE out, or use a preset of another set"
        )
    window = SETS[config].window
    folder = _find(source, f"pathfinder{window}", _FOLDERS[config.removesuffix(f"_{window}")])
    listed, num_empty = [], 0
    for row in _metadata(folder):
        try:
            empty = row.path.stat().st_size == 0  # LRA skips them; its release has one
        except OSError as error:
            raise UserError(
                f"{row.path} cannot be read ({error.strerror}), but the metadata list it; "
                f"get the release again"
            ) from None
        num_empty += empty
        if not empty:
            listed.append(row)
    ends = [round(share * len(listed)) for share in (0.0, 0.8, 0.9, 1.0)]
    if len(set(ends)) < 4:
        raise UserError(f"{folder}: {len(listed)} images, expected at least 10 for three splits")
    return Raw(
        {
            split: _images(listed[start:end], window)
            for split, (start, end) in zip(SPLITS, itertools.pairwise(ends), strict=True)
        },
        source=source.name or folder.name,
        details={"num_empty_images": num_empty},
        total=len(listed),
    )


def _find(source: Path, window: str, level: str) -> Path:
    """The one folder of that window and level that is `source` or lies below it."""
    found = []
    if source.is_dir():
        for path, folders, _ in os.walk(source.resolve()):
            here = Path(path)
            if here.name == level and window in here.parts and "metadata" in folders:
                found.append(here)
                folders.clear()
            folders[:] = sorted(set(folders) - {"imgs", "metadata"})  # hold files only
    if len(found) != 1:
        names = ", ".join(str(path) for path in found) or "none"
        raise UserError(
            f"SOURCE={source}: expected one folder {window}/{level} with imgs/ and metadata/ (of "
            f"lra_release.gz, unpacked), found {names}"
        )
    return found[0]


def _metadata(folder: Path) -> Iterator[_Listed]:
    """Paths and labels of all images, in numerical order of the files metadata/<k>.npy or .txt."""
    paths = [
        path
        for path in (folder / "metadata").iterdir()
        if path.stem.isdecimal() and path.suffix in (".npy", ".txt")
    ]
    if not paths:
        raise UserError(f"{folder / 'metadata'}: expected files <number>.npy, found none")
    for path in sorted(paths, key=lambda path: (int(path.stem), path.name)):
        for number, columns in enumerate(_rows(path), start=1):
            if len(columns) < 4 or columns[3] not in ("0", "1"):
                found = "4 columns or more" if len(columns) < 4 else "a label 0 or 1 in column 4"
                raise UserError(
                    f"{path}, row {number}: expected {found}, got {' '.join(columns)[:60]!r}; "
                    f"get the release again"
                )
            name = PurePosixPath(columns[0], columns[1])
            if name.is_absolute() or ".." in name.parts:
                raise UserError(f"{path}, row {number}: {str(name)[:60]!r} leads out of {folder}")
            yield _Listed(folder / name, int(columns[3]))


def _rows(path: Path) -> list[list[str]]:
    """Columns of each row: of text, one line an image, or of an array that NumPy saved."""
    try:
        with path.open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                lines = path.read_text("utf-8").splitlines()
                return [line.split() for line in lines if line.strip()]
        array = np.load(path, allow_pickle=False)
        if array.ndim != 2:
            raise ValueError(f"shape {array.shape}, expected two dimensions")
        return array.astype(str).tolist()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({_short(error)}); get the release again") from None


def _images(listed: list[_Listed], window: int) -> Iterator[tuple[np.ndarray, int]]:
    """Decodes images one by one."""
    from PIL import Image

    for path, label in listed:
        try:
            with Image.open(path, formats=("PNG",)) as image:
                if (image.size, image.mode) != ((window, window), "L"):
                    width, height = image.size
                    raise UserError(
                        f"{path}: expected a gray image (mode L) of {window} by {window} pixels, "
                        f"got mode {image.mode}, {width} by {height}; get the release again"
                    )
                values = np.asarray(image).reshape(-1)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(
                f"{path} is no PNG image, or is damaged ({_short(error)}); get the release again"
            ) from None
        yield values, label


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 100 else text[:97] + "..."
