"""Image: gray values as in LRA, every form of CIFAR-10, and errors."""

import hashlib
import io
import re
import shutil
import sys
import tarfile

import numpy as np
import PIL.Image
import pytest
import serving
from paths import SHARED

from lra_fnet import tasks
from lra_fnet.counts import Counts
from lra_fnet.data import store
from lra_fnet.errors import UserError
from lra_fnet.tasks import image, pixels

SHARED = SHARED / "data" / "cifar-10-binary.tar.xz"
ROWS = 20  # in a batch of these tests
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
PUBLISHED = image.GRAY_SUMS[0]  # a fixture replaces it by that of the made images


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(image, "BATCH_ROWS", ROWS)
    monkeypatch.setattr(image, "GRAY_SUMS", SUMS)
    monkeypatch.setattr(store, "expected", lambda: {})


def made():
    """Planes uint8 [120, 3, 1024] and labels of six batches, balanced as in CIFAR-10."""
    rng = np.random.default_rng(0)
    planes = rng.integers(0, 256, (6 * ROWS, 3, 1024), np.uint8)
    train, test = (rng.permutation(np.repeat(np.arange(10), n)) for n in (ROWS // 2, ROWS // 10))
    return planes, np.concatenate([train, test]).astype(np.uint8)


PLANES, LABELS = made()
SUMS = tuple(int(image.luma(part).sum()) for part in np.split(PLANES, [5 * ROWS]))


def batches():
    """(name, planes [20, 3, 1024], labels [20]) of each batch."""
    parts = zip(BATCHES, np.split(PLANES, 6), np.split(LABELS, 6), strict=True)
    return list(parts)


def write_binary(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, planes, labels in batches():
        rows = np.concatenate([labels[:, None], planes.reshape(ROWS, 3072)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("airplane\n")
    return folder


def write_images(folder, suffix="png", modes=("RGB",), number=lambda i: i):
    for i, (planes, label) in enumerate(zip(PLANES, LABELS, strict=True)):
        part = "train" if i < 5 * ROWS else "test"
        path = folder / part / image.CLASSES[label] / f"{number(i)}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = PIL.Image.fromarray(planes.reshape(3, 32, 32).transpose(1, 2, 0))
        for mode in modes:
            picture = picture.convert(mode)
        picture.save(path)
    return folder


def pack(folder, path, mode="w:gz", last=()):
    """A tar archive of a folder; the names in `last` come at its end."""
    with tarfile.open(path, mode) as archive:
        for file in sorted(folder.rglob("*"), key=lambda file: (file.name in last, file)):
            archive.add(file, f"{folder.name}/{file.relative_to(folder)}", recursive=False)
    return path


def same(got, want):
    for left, right in zip(got, want, strict=True):
        np.testing.assert_array_equal(left.values, right.values)
        np.testing.assert_array_equal(left.labels, right.labels)


def exact(planes):
    """The gray value before it is truncated, without rounding, times 5,100,000."""
    red, green, blue = (planes[:, i].astype(np.int64) for i in range(3))
    return (2989 * red + 5870 * green + 1140 * blue) * 511


def all_colours(red):
    """uint8 [65536, 3, 1]: every green and blue with this red."""
    green, blue = np.divmod(np.arange(2**16), 256)
    return np.stack([np.full(2**16, red), green, blue], axis=1).astype(np.uint8)[..., None]


# Gray values


def test_gray_values_are_the_truncated_formula_where_rounding_cannot_matter():
    planes = PLANES.transpose(0, 2, 1).reshape(-1, 3, 1)
    want, rest = np.divmod(exact(planes), 5_100_000)
    far = (rest > 1000) & (rest < 5_099_000)
    assert far.mean() > 0.99
    assert image.luma(planes).dtype == np.uint8
    np.testing.assert_array_equal(image.luma(planes)[far], want[far])


def test_gray_colours_keep_their_value():
    gray = np.tile(np.arange(256, dtype=np.uint8), (1, 3, 1))
    np.testing.assert_array_equal(image.luma(gray), gray[:, 0])


def test_images_in_chunks_give_the_same_gray_values(monkeypatch):
    whole = image.luma(PLANES)
    monkeypatch.setattr(image, "_CHUNK", 7)
    np.testing.assert_array_equal(image.luma(PLANES), whole)
    np.testing.assert_array_equal(image.luma(PLANES[3:4])[0], whole[3])


def tensorflow_gray(images):
    """Applies LRA's conversion to images uint8 [n, H, W, 3], in a tf.data map as in LRA."""
    tf = pytest.importorskip("tensorflow")

    def line(pixels):
        return tf.cast(tf.image.rgb_to_grayscale(pixels), tf.int32)

    rows = tf.data.Dataset.from_tensor_slices(images).map(line).batch(len(images))
    return next(iter(rows)).numpy().reshape(len(images), -1)


def test_gray_values_of_all_colours_equal_tensorflows():
    """2^24 colours, as images of 256 x 256."""
    colours = [all_colours(red) for red in range(256)]
    images = (colour.reshape(256, 256, 3) for colour in colours)
    for start in range(0, 256, 32):
        want = tensorflow_gray(np.stack([next(images) for _ in range(32)]))
        got = np.stack([image.luma(colour)[:, 0] for colour in colours[start : start + 32]])
        np.testing.assert_array_equal(got, want)


# The forms of CIFAR-10


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "tar.xz"])
def test_batches_give_rows_in_their_published_order(form, tmp_path):
    source = write_binary(tmp_path / "batches")
    if form != "folder":
        mode = f"w:{form[4:]}"
        source = pack(source, tmp_path / f"x.{form}", mode, ("data_batch_1.bin",))
    *parts, form = image.read(source)
    assert form == "binary"
    values = image.luma(PLANES)
    want = (values[: 5 * ROWS], LABELS[: 5 * ROWS]), (values[5 * ROWS :], LABELS[5 * ROWS :])
    same(parts, [image.Rows(*part) for part in want])


def test_the_mean_of_the_pixels_follows_from_the_published_sum():
    """Of all 50,000 training images; the task's are the first 45,000."""
    assert image.Image.pixel_mean == pytest.approx(PUBLISHED / (50_000 * 1024), abs=0.1)


def test_images_in_folders_are_the_same_rows_sorted_by_sha256(tmp_path):
    train, test, form = image.read(write_images(tmp_path / "images"))
    assert form == "images"
    values = image.luma(PLANES)
    for got, begin, end in ((train, 0, 5 * ROWS), (test, 5 * ROWS, 6 * ROWS)):
        want = sorted(
            (hashlib.sha256(v.tobytes()).hexdigest(), label, v.tobytes())
            for v, label in zip(values[begin:end], LABELS[begin:end].tolist(), strict=True)
        )
        rows = zip(got.values, got.labels.tolist(), strict=True)
        assert [(label, v.tobytes()) for v, label in rows] == [row[1:] for row in want]


def test_names_and_packing_of_images_do_not_matter(tmp_path):
    *want, _ = image.read(write_images(tmp_path / "a"))
    other = write_images(tmp_path / "deep" / "b", suffix="PNG", number=lambda i: f"x_{997 * i:06}")
    (other / "train" / ".DS_Store").write_bytes(b"")
    (other / "train" / "cat" / "._1.png").write_bytes(b"")
    (other / "labels.txt").write_text("cat\n")
    for source in (tmp_path / "deep", pack(other, tmp_path / "b.tar.gz")):
        *got, _ = image.read(source)
        same(got, want)


def test_equal_images_are_sorted_by_label(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PLANES", np.zeros_like(PLANES))
    airplanes = {f"{i}.png" for i in np.flatnonzero(LABELS == 0)}
    source = pack(write_images(tmp_path / "i"), tmp_path / "i.tar", "w", last=airplanes)
    train, test, _ = image.read(source)
    assert train.labels.tolist() == sorted(LABELS[: 5 * ROWS].tolist())
    assert len(test.labels) == ROWS


@pytest.mark.parametrize("modes", ["L", ("L", "P"), ["RGBA"]])
def test_gray_palette_and_transparent_images_are_read(modes, tmp_path, monkeypatch):
    gray = np.repeat(image.luma(PLANES)[:, None], 3, axis=1)
    monkeypatch.setattr(sys.modules[__name__], "PLANES", gray)
    train, test, _ = image.read(write_images(tmp_path, modes=modes))
    got = sorted(v.tobytes() for v in np.concatenate([train.values, test.values]))
    assert got == sorted(v.tobytes() for v in gray[:, 0])


def test_jpeg_images_are_read(tmp_path, monkeypatch):
    flat = np.broadcast_to(np.arange(120, dtype=np.uint8)[:, None, None], PLANES.shape)
    monkeypatch.setattr(sys.modules[__name__], "PLANES", flat)
    train, test, _ = image.read(write_images(tmp_path, suffix="jpg"))
    values = np.concatenate([train.values, test.values])
    assert sorted(values[:, 0].tolist()) == list(range(120))
    assert (values == values[:, :1]).all()


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_batches_are_read_before_images_in_either_order(names, tmp_path):
    binary, images = (tmp_path / name / "x" for name in names)
    write_images(images)
    (images / "train" / "house").mkdir()
    (images / "train" / "house" / "1.png").write_bytes(b"")
    *want, _ = image.read(write_binary(tmp_path / "alone" / "x"))
    shutil.rmtree(tmp_path / "alone")
    write_binary(binary)
    *got, form = image.read(tmp_path)
    assert form == "binary"
    same(got, want)


# Preparing


def test_prepared_set_has_the_splits_of_lra(tmp_path):
    source = write_binary(tmp_path / "cifar-10-batches-bin")
    task = tasks.make("image")
    raw = task.raw(source, 1)
    assert (raw.total, raw.details) == (120, {"format": "binary"})
    prepared = tasks.prepare(task, tmp_path / "data", source=source)
    tasks.verify(task, tmp_path / "data")
    assert prepared.rows == {"train": 90, "validation": 10, "test": 20}
    assert prepared.source == "cifar-10-batches-bin"
    values = image.luma(PLANES)
    for split, begin, end in (("train", 0, 90), ("validation", 90, 100), ("test", 100, 120)):
        arrays = prepared.arrays(split)
        np.testing.assert_array_equal(arrays.values, values[begin:end])
        np.testing.assert_array_equal(arrays.labels, LABELS[begin:end])
        assert (arrays.lengths == 1024).all()
    assert prepared.floor == Counts(2, 20)


def test_full_16_has_the_rows_of_full_with_means_of_four_pixels(tmp_path):
    task = tasks.make("image", "full_16")
    prepared = tasks.prepare(task, tmp_path / "data", source=write_binary(tmp_path / "binary"))
    arrays = prepared.arrays("test")
    assert arrays.values.shape == (20, 256)
    np.testing.assert_array_equal(arrays.labels, LABELS[100:])
    for got, values in zip(arrays.values, image.luma(PLANES[100:]), strict=True):
        whole = values.reshape(32, 32)
        blocks = (whole[i : i + 2, j : j + 2] for i in range(0, 32, 2) for j in range(0, 32, 2))
        assert got.tolist() == [round(block.sum() / 4) for block in blocks]
    large = np.repeat(np.repeat(arrays.values[0].reshape(16, 16), 2, 0), 2, 1)
    file = io.BytesIO()
    PIL.Image.fromarray(large).save(file, "PNG")
    np.testing.assert_array_equal(task.encode(file.getvalue()), arrays.values[0])


def test_set_is_downloaded_and_prepared_without_tensorflow(tmp_path):
    binary = write_binary(tmp_path / "cifar-10-batches-bin")
    path = pack(binary, tmp_path / "cifar-10-binary.tar.gz")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with serving.serve(tmp_path) as url:
        remote = [f"{url}{path.name}", path.stat().st_size, digest]
        printed = serving.prepare_without_tensorflow(
            "image", "image/full", tmp_path / "data", REMOTE=remote, BATCH_ROWS=ROWS, GRAY_SUMS=SUMS
        )
    assert (
        printed == tasks.prepare(tasks.make("image"), tmp_path / "other", source=binary).fingerprint
    )


def test_published_file_is_known_by_name_size_and_sha256(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(b"x")
    with pytest.raises(UserError, match=r"expected 170052171 bytes, got 1: the file is incomplete"):
        tasks.prepare(tasks.make("image"), tmp_path / "data", source=path)


# Errors


def refused(source, words):
    """Asserts that reading fails with one line that matches all of `words`."""
    with pytest.raises(UserError) as caught:
        image.read(source)
    text = str(caught.value)
    assert "\n" not in text
    assert re.fullmatch(words, text.replace(f"{source}", "SRC")), text


EXPECTED = (
    r"SRC: expected data_batch_1\.bin to data_batch_5\.bin and test_batch\.bin, or "
    r"train/<class>/\*\.png and test/<class>/\*\.png"
)
AGAIN = (
    r"get cifar-10-binary\.tar\.gz \(170\.1 MB\) from https://www\.cs\.toronto\.edu/~kriz/\S+ again"
)


def test_missing_and_duplicate_batches_are_errors(tmp_path):
    binary = write_binary(tmp_path / "b")
    (binary / "data_batch_3.bin").unlink()
    refused(binary, rf"SRC: expected one data_batch_3\.bin, got 0; {AGAIN}")
    twice = write_binary(tmp_path / "t" / "x")
    write_binary(twice.parent / "y")
    refused(twice.parent, rf"SRC: expected one data_batch_1\.bin, got 2; {AGAIN}")


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_pickled_batches_fail_with_the_name_of_the_binary_archive(form, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in BATCHES:
        (folder / name).write_bytes(b"\x80\x02}.")
    (folder / "batches.meta").write_bytes(b"\x80\x02}.")
    source = folder if form == "folder" else pack(folder, tmp_path / "cifar-10-python.tar.gz")
    refused(source, rf"{EXPECTED}, got Python's pickled batches; {AGAIN.removesuffix(' again')}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (-1, r"61460 bytes \(20 images of 3073\), got 61459; "),
        (-61460, r"61460 bytes \(20 images of 3073\), got 0; "),
        (1, "at most 61460 bytes, got more; get another copy"),
    ],
)
def test_batch_of_another_size_is_an_error(change, problem, tmp_path):
    source = write_binary(tmp_path)
    path = source / "data_batch_2.bin"
    path.write_bytes((path.read_bytes() + b"x")[: 61460 + change])
    ending = "" if change > 0 else AGAIN
    refused(source, rf"SRC/data_batch_2\.bin: expected {problem}{ending}")


def test_label_above_9_fails_with_its_row(tmp_path):
    binary = write_binary(tmp_path / "b")
    content = bytearray((binary / "test_batch.bin").read_bytes())
    content[7 * 3073] = 10
    (binary / "test_batch.bin").write_bytes(content)
    words = r"SRC/(b/)?test_batch\.bin: expected labels 0-9, got 10 in row 7; " + AGAIN
    refused(binary, words)
    refused(pack(binary, tmp_path / "b.tar"), words)


def test_classes_that_are_not_equally_frequent_are_an_error(tmp_path):
    source = write_binary(tmp_path / "b")
    path = source / "data_batch_4.bin"
    content = bytearray(path.read_bytes())
    content[0] = (content[0] + 1) % 10
    path.write_bytes(content)
    words = rf"SRC: expected 10 training images of the class [a-z]+, got (9|11); {AGAIN}"
    refused(source, words)
    source = write_images(tmp_path / "i")
    next((source / "test" / "frog").iterdir()).unlink()
    refused(source, rf"SRC: expected 2 test images of the class frog, got 1; {AGAIN}")
    source = write_images(tmp_path / "j")
    (source / "test").rename(source / "validation")
    refused(source, rf"SRC: expected 2 test images of the class airplane, got 0; {AGAIN}")


def test_source_without_images_fails_with_the_expected_files(tmp_path):
    words = f"{EXPECTED}, got {{}}; {AGAIN.removesuffix(' again')}"
    refused(tmp_path, words.format("no file"))
    for name in ("fine.bin", "train.bin", "test.bin", "z.txt"):
        (tmp_path / name).write_bytes(b"x")
    refused(tmp_path, words.format(r"fine\.bin, test\.bin, train\.bin"))
    refused(tmp_path / "nowhere", "--source SRC: no such file or folder")
    with pytest.raises(UserError, match=r"^image: --source must be cifar-10-binary.tar.gz \(170.1"):
        tasks.make("image").raw(None, 1)


def test_other_pixels_are_reported_and_black_images_refused(tmp_path, capsys):
    source = write_binary(tmp_path / "raw")
    tasks.make("image").raw(source, 1)
    assert not capsys.readouterr().err.count("not the publisher's")
    path = source / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[1 : 1 + 3 * 1024 : 8] = bytes(384)
    path.write_bytes(content)
    tasks.make("image").raw(source, 1)
    assert capsys.readouterr().err.count("some pixels are not the publisher's") == 1
    path.write_bytes(b"".join(bytes([label, *bytes(3072)]) for label in LABELS[5 * ROWS :]))
    with pytest.raises(
        UserError, match=r"^\S+raw: expected gray values .* got \d+ and 0: these are"
    ):
        tasks.make("image").raw(source, 1)


def png(size=(32, 32), mode="RGB", kind="PNG"):
    file = io.BytesIO()
    PIL.Image.new(mode, size).save(file, kind)
    return file.getvalue()


def test_black_and_white_and_printers_colours_are_read():
    bits = np.random.default_rng(0).random((32, 32)) < 0.5
    file = io.BytesIO()
    PIL.Image.fromarray(bits).save(file, "PNG")
    np.testing.assert_array_equal(pixels.read(file.getvalue(), 32, "L"), 255 * bits)
    for ink, gray in ((0, 255), (255, 0)):
        file = io.BytesIO()
        PIL.Image.new("CMYK", (32, 32), (0, 0, 0, ink)).save(file, "JPEG")
        assert (pixels.read(file.getvalue(), 32, "RGB") == gray).all()


@pytest.mark.parametrize(
    ("content", "actual"),
    [
        (png((32, 31)), "32 x 31 pixels of mode RGB"),
        (png((64, 64)), "64 x 64 pixels of mode RGB"),
        (png(mode="I;16"), "32 x 32 pixels of mode I;16"),
        (png(kind="BMP"), "another file of 3,126 bytes"),
        (png()[:-40], ".*(truncated|broken).*"),
        (b"", "another file of 0 bytes"),
    ],
    ids=range(6),
)
def test_other_file_than_an_image_fails_with_its_name(content, actual, tmp_path):
    source = write_images(tmp_path)
    (source / "test" / "dog" / "new.png").write_bytes(content)
    refused(
        source,
        r"SRC/test/dog/new\.png: expected a PNG or JPEG of 32 x 32 pixels of 8 bits, gray or "
        rf"colour, found {actual}; get the file again",
    )


def test_folder_of_an_unknown_class_is_an_error(tmp_path):
    source = write_images(tmp_path)
    (source / "train" / "cat").rename(source / "train" / "cats")
    refused(
        source,
        r"SRC/train/cats/\d+\.png: expected a class of airplane, automobile, .*, truck, got 'cats'",
    )


def test_bad_source_leaves_no_set_behind(tmp_path):
    source = write_binary(tmp_path / "raw")
    (source / "data_batch_5.bin").unlink()
    with pytest.raises(UserError):
        tasks.prepare(tasks.make("image"), tmp_path / "data", source=source)
    left = [path.name for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert set(left) <= {".lock"}


# The real images


@pytest.mark.slow
def test_real_images_have_the_labels_and_tensorflows_gray_values(monkeypatch, tmp_path):
    """The gray values of every tenth image; labels, their counts and the constants of all."""
    if not SHARED.exists():
        pytest.skip("no copy of CIFAR-10 next to the project")
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(image, "BATCH_ROWS", 10_000)
    with tarfile.open(SHARED) as archive:
        archive.extractall(tmp_path, filter="data")
    train, test, form = image.read(tmp_path)
    assert form == "binary"
    got = np.concatenate([train.values, test.values])
    labels = np.concatenate([train.labels, test.labels])
    assert labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert labels[50_000:50_010].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    counts = [4507, 4512, 4521, 4481, 4525, 4471, 4512, 4515, 4468, 4488]
    assert np.bincount(labels[:45_000]).tolist() == counts
    assert image.Image.pixel_mean == pytest.approx(got[:45_000].mean(), abs=0.005)
    squares = np.square(got[:45_000], dtype=np.uint16).mean()
    sd = np.sqrt(squares - got[:45_000].mean() ** 2)
    assert image.Image.pixel_sd == pytest.approx(sd, abs=0.005)
    different = 0
    for i, name in enumerate(BATCHES):
        path = tmp_path / "cifar-10-batches-bin" / f"{name}.bin"
        rows = np.fromfile(path, np.uint8).reshape(10_000, 3073)
        images = rows[::10, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        part = slice(10_000 * i, 10_000 * (i + 1))
        different += int((tensorflow_gray(images) != got[part][::10]).sum())
        np.testing.assert_array_equal(labels[part], rows[:, 0])
    assert different == 0
    for path in (tmp_path / "cifar-10-batches-bin").iterdir():
        path.unlink()  # 184 MB
