"""Your own tasks from raw files: texts in TSV files, and images in one folder per class.

The source is a folder (`lra-fnet data --task my_texts --source FOLDER`). Rows in its train/,
validation/ and test/, or in files of these names, keep their split. All others are divided by the
sha256 of their content, 8 : 1 : 1, so that equal rows stay on one side and the split is the same on
every machine.

To check a task, prepare it from a few rows:

    from lra_fnet.testing import check_task
    check_task(MyTexts(config="full", max_len=1024), source="my_folder")
"""

import dataclasses
import hashlib
import io
from types import MappingProxyType

import gin
import numpy as np
from PIL import Image

from lra_fnet.errors import UserError
from lra_fnet.tasks import SPLITS, PixelTask, Raw, Task


@gin.configurable
@dataclasses.dataclass(frozen=True)
class MyTexts(Task):
    """Lines of `label<TAB>text` in all .tsv files of the source; a token is a byte."""

    name = "my_texts"
    label_names = ("ham", "spam")  # yours: the labels before the tab
    num_classes = len(label_names)
    vocab_size = 257  # 256 bytes, and padding
    configs = MappingProxyType({"full": 1024})  # bytes that are kept of a text

    def raw(self, source, jobs):
        """Returns the rows of all files, one by one."""
        paths = files(source, ".tsv")
        return Raw(stream=self.rows(source, paths), source=source.absolute().name)

    def rows(self, source, paths):
        """Yields (split, (values, label))."""
        for path in paths:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    label, _, text = line.rstrip(b"\r\n").partition(b"\t")
                    label = label.decode(errors="replace")
                    if label not in self.label_names or not text:
                        known = " or ".join(self.label_names)
                        raise UserError(
                            f"{path}, line {number}: expected {known}, a tab and a text, got "
                            f"{line[:40]!r}: change the line, or MyTexts.label_names"
                        )
                    values = np.frombuffer(text, np.uint8)
                    yield split_of(path, source, values), (values, self.label_names.index(label))


@gin.configurable
@dataclasses.dataclass(frozen=True)
class MyImages(PixelTask):
    """PNG or JPEG images in folders named after the classes; converted to gray, 32 x 32."""

    name = "my_images"
    label_names = ("circle", "square")  # yours: the names of the folders
    num_classes = len(label_names)
    configs = MappingProxyType({"full": 32 * 32})  # pixels of a square image
    pixel_mean, pixel_sd = 127.5, 64.0  # of your images, roughly; for Encoder.inputs = "pixels"

    def encode(self, content):
        """Returns the gray pixels of an image file; `lra-fnet predict` uses this too."""
        side = int(self.configs[self.config] ** 0.5)
        try:
            with Image.open(io.BytesIO(content)) as image:
                return np.asarray(image.convert("L").resize((side, side))).reshape(-1)
        except OSError as error:
            raise ValueError(f"expected an image, got {error}") from None

    def raw(self, source, jobs):
        """Returns the images, one by one."""
        paths = files(source, ".png", ".jpg", ".jpeg")
        stream = self.rows(source, paths)
        return Raw(stream=stream, source=source.absolute().name, total=len(paths))

    def rows(self, source, paths):
        """Yields (split, (values, label))."""
        for path in paths:
            if path.parent.name not in self.label_names:
                known = " or ".join(self.label_names)
                raise UserError(
                    f"{path}: expected a folder named {known}, got {path.parent.name!r}: "
                    "rename the folder, or change MyImages.label_names"
                )
            try:
                values = self.encode(path.read_bytes())
            except ValueError as error:
                raise UserError(f"{path}: {error}: remove it") from None
            label = self.label_names.index(path.parent.name)
            yield split_of(path, source, values), (values, label)


def files(source, *endings):
    """Returns the paths of the files in `source` with one of these endings, sorted."""
    kind = " or ".join(endings)
    if source is None or not source.is_dir():
        raise UserError(f"--source must be a folder with {kind} files, got {source}: name one")
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in endings)
    if not paths:
        raise UserError(f"{source} has no {kind} file: name their folder with --source")
    missing = {*SPLITS} - {named_split(path, source) for path in paths}
    if 0 < len(missing) < len(SPLITS):
        raise UserError(
            f"{source} has files for some splits but none for {', '.join(sorted(missing))}: name "
            f"files or folders after all of {', '.join(SPLITS)}, or after none of them"
        )
    return paths


def named_split(path, source):
    """Returns the split that a file's name or folder names, or None."""
    parts = path.relative_to(source).with_suffix("").parts
    return next((split for split in SPLITS if split in parts), None)


def split_of(path, source, values):
    """Returns the split that the path names, or else one that depends on the content."""
    tenth = hashlib.sha256(values.tobytes()).digest()[0] * 10 // 256
    by_content = {0: "test", 1: "validation"}.get(tenth, "train")
    return named_split(path, source) or by_content
