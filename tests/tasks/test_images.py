"""Your own images: gray pixels, classes and splits from folders, and mistakes in them."""

import io
import shutil
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from lra_fnet import experiment, tasks
from lra_fnet.errors import UserError
from lra_fnet.run import job
from lra_fnet.testing import check_task


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Circles and squares in one folder for each."""
    source = tmp_path_factory.mktemp("pictures") / "shapes"
    rng = np.random.default_rng(0)
    for label in ("circle", "square"):
        (source / label).mkdir(parents=True)
        for i in range(40):
            image = Image.new(("RGB", "L")[i % 2], (40, 36))
            x, y = rng.integers(0, 20, 2).tolist()
            draw = ImageDraw.Draw(image)
            shape = draw.ellipse if label == "circle" else draw.rectangle
            shape((x, y, x + 14, y + 14), fill="white")
            image.save(source / label / f"{i}.{('png', 'JPG')[i % 2]}")
    (source / "notes.txt").write_text("not an image")
    return source


def raw(source):
    made = tasks.make("images", "gray_8").raw(source, 1)
    return [(split, *row) for split, row in made.rows()], made.details


def test_images_are_gray_and_their_mean_is_that_of_the_training_pixels(pictures, tmp_path):
    task = tasks.make("images")
    prepared = tasks.prepare(task, tmp_path, pictures)
    arrays = prepared.arrays("train")
    assert prepared.task.pixel_mean == pytest.approx(arrays.values.mean(), abs=0.006)
    assert prepared.task.pixel_sd == pytest.approx(arrays.values.std(), abs=0.006)
    assert prepared.task.label_names == ("circle", "square")
    assert sum(prepared.rows.values()) == 80
    white = (arrays.values > 200).mean(axis=1)
    assert white[arrays.labels == 1].mean() > white[arrays.labels == 0].mean() > 0.05
    check_task(task, pictures)


@pytest.mark.parametrize(
    ("names", "fragment"),
    [
        (["top.png"], "a folder for each class"),
        (["circle/1.txt"], "a folder for each class"),
        (["circle/1.png"], r"2 to 1,000 labels, got 1"),
        (["train/1.png", "test/1.png"], "a folder for each class"),
        (["circle/1.png", "square/large/1.png"], "got 2 such folders"),
        (["circle/1.png", "square/1.png"], r"circle/1.png: expected a PNG or JPEG"),
    ],
)
def test_a_mistake_in_a_folder_of_images_fails_with_one_line(tmp_path, names, fragment):
    for name in names:
        (tmp_path / "shapes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shapes" / name).write_bytes(b"no image")
    with pytest.raises(UserError, match=fragment):
        raw(tmp_path / "shapes")


def test_splits_are_named_by_folders_and_other_files_are_counted(tmp_path, pictures, capfd):
    source = tmp_path / "shapes"
    for name in ("circle", "square"):
        shutil.copytree(pictures / name, source / "train" / name)
        shutil.copytree(pictures / name, source / "Test" / name)
    (source / "train/circle/1.gif").touch()
    shutil.copy(source / "train/circle/0.png", source / "top.png")
    made, details = raw(source)
    assert details["split_by"] == "name"
    assert sum(split == "test" for split, *_ in made) == 80
    assert "2 files are left out" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["gray", "gray_0", "../x_32"])
def test_the_name_of_a_set_of_images_has_its_side(name):
    assert tasks.make("images", "pets_64").max_len == 4096
    with pytest.raises(UserError, match="pets_64"):
        tasks.make("images", name)


UPRIGHT = np.repeat(np.uint8([255, 0]), [24, 40]).reshape(8, 8)
LYING = Image.Exif()
LYING[0x0112] = 6  # to be turned by 90 degrees, clockwise
INK = np.zeros((8, 8, 2), np.uint8)  # black everywhere
INK[2:6, 3, 1] = 255  # and opaque here
DEEP = np.random.default_rng(0).integers(0, 2**16, (8, 8), np.uint16)
LARGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24), np.uint8))


@pytest.mark.parametrize(
    ("image", "want", "options"),
    [
        (Image.fromarray(np.rot90(UPRIGHT)), UPRIGHT, {"exif": LYING}),  # as cameras write it
        (Image.fromarray(INK, "LA"), 255 - INK[..., 1], {}),  # transparent pixels are white
        (LARGE, np.asarray(LARGE.resize((8, 8), Image.Resampling.BICUBIC)), {}),
    ],
    ids=["lying", "transparent", "large"],
)
def test_an_image_is_turned_upright_flattened_and_resized(image, want, options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    got = tasks.make("images", "gray_8").encode(file.getvalue())
    assert (got.reshape(8, 8) == want).all()


@pytest.mark.parametrize(("kind", "planes"), [(0, 1), (4, 2), (2, 3)])
def test_the_upper_bits_of_16_are_read(kind, planes):
    """A PNG of gray, of gray with alpha (opaque), and of three equal colours."""
    colours = np.repeat(DEEP[..., None], planes, 2)
    colours[..., 1:] |= 0xFFFF * (kind == 4)
    lines = b"".join(b"\0" + row.tobytes() for row in colours.astype(">u2"))
    file = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0)
    for part in (b"IHDR" + header, b"IDAT" + zlib.compress(lines), b"IEND"):
        file += struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
    assert (tasks.make("images", "gray_8").encode(file) == (DEEP >> 8).ravel()).all()


def test_labels_in_an_order_keep_the_mean_of_the_pixels(tmp_path, pictures):
    """The two settings become known together, but a user gives only one of them."""
    for bindings in (["Images.labels=('circle', 'square')"], []):
        built = experiment.load("images", "fnet", "cpu", bindings, data=tmp_path, source=pictures)
        prepared = tasks.open(built.task, tmp_path)
        assert built.model.encoder.pixel_mean == prepared.task.pixel_mean != 127.5
    assert experiment.restore(built.config).task == built.task


def test_examples_are_drawn_once_for_each_set(pictures, tmp_path, capfd):
    asked = job.Job("images", "ff_only", "cpu", data=tmp_path, source=pictures)
    prepared = tasks.prepare(asked.load().task, tmp_path, pictures)
    sheet = tasks.illustrate(prepared)
    with Image.open(sheet) as image:
        assert image.size == (2400, 1400)
    before = sheet.stat().st_mtime_ns
    assert tasks.illustrate(prepared) == sheet
    assert sheet.stat().st_mtime_ns == before
    anew = tasks.prepare(prepared.task, tmp_path, pictures, force=True)
    tasks.illustrate(anew)
    assert sheet.stat().st_mtime_ns > before
