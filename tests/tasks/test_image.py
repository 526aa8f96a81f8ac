"""Image: gray values as in LRA, every form of CIFAR-10, and errors."""

import hashlib
import io
import tarfile

import numpy as np
import PIL.Image
import pytest
import serving
from raw_files import assert_refused

from lra_fnet import tasks
from lra_fnet.counts import Counts
from lra_fnet.data import store
from lra_fnet.data.sources import Remote
from lra_fnet.tasks import image

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


def pack(folder, path, mode="w:gz", last=()):
    """A tar archive of a folder; the names in `last` come at its end."""
    with tarfile.open(path, mode) as archive:
        for file in sorted(folder.rglob("*"), key=lambda file: (file.name in last, file)):
            archive.add(file, f"{folder.name}/{file.relative_to(folder)}", recursive=False)
    return path


def exact(planes):
    """The gray value before it is truncated, without rounding, times 5,100,000."""
    red, green, blue = (planes[:, i].astype(np.int64) for i in range(3))
    return (2989 * red + 5870 * green + 1140 * blue) * 511


# Gray values


def test_gray_values_are_the_truncated_formula_where_rounding_cannot_matter():
    grays = np.arange(256, dtype=np.uint8)[:, None, None].repeat(3, 1)
    planes = np.concatenate([PLANES.transpose(0, 2, 1).reshape(-1, 3, 1), grays])
    want, rest = np.divmod(exact(planes), 5_100_000)
    far = (rest > 1000) & (rest < 5_099_000)
    assert far.mean() > 0.99
    assert image.luma(planes).dtype == np.uint8
    np.testing.assert_array_equal(image.luma(planes)[far], want[far])


def test_gray_values_of_a_sample_of_the_colours_equal_tensorflows():
    """Every green and blue with eight reds, in a tf.data map as in LRA."""
    tf = pytest.importorskip("tensorflow")

    def line(pixels):
        return tf.cast(tf.image.rgb_to_grayscale(pixels), tf.int32)

    colours = np.stack(np.meshgrid(np.arange(7, 256, 35), *[np.arange(256)] * 2), -1)
    colours = colours.transpose(1, 0, 2, 3).astype(np.uint8)  # [8, 256, 256, 3]
    (want,) = tf.data.Dataset.from_tensor_slices(colours).map(line).batch(8)
    got = image.luma(colours.reshape(8, -1, 3).transpose(0, 2, 1))
    np.testing.assert_array_equal(got, want.numpy().reshape(8, -1))


# The forms of CIFAR-10


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "tar.xz"])
def test_batches_give_rows_in_their_published_order(form, tmp_path):
    source = write_binary(tmp_path / "batches")
    if form != "folder":
        mode = f"w:{form[4:]}"
        source = pack(source, tmp_path / f"x.{form}", mode, ("data_batch_1.bin",))
    values, labels = image.read(source)
    np.testing.assert_array_equal(values, image.luma(PLANES))
    np.testing.assert_array_equal(labels, LABELS)


def test_the_mean_of_the_pixels_follows_from_the_published_sum():
    """Of all 50,000 training images; the task's are the first 45,000."""
    assert image.Image.pixel_mean == pytest.approx(PUBLISHED / (50_000 * 1024), abs=0.1)


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


def test_set_is_downloaded(tmp_path, monkeypatch):
    binary = write_binary(tmp_path / "cifar-10-batches-bin")
    path = pack(binary, tmp_path / "cifar-10-binary.tar.gz")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    want = tasks.prepare(tasks.make("image"), tmp_path / "other", source=binary)
    with serving.serve(tmp_path) as url:
        remote = Remote(f"{url}{path.name}", path.stat().st_size, digest)
        monkeypatch.setattr(image.Image, "remote", remote)
        got = tasks.prepare(tasks.make("image"), tmp_path / "data")
    assert (got.fingerprint, got.source) == (want.fingerprint, path.name)


# Errors


def changed(at, to):
    """Changes a byte of a batch; `at` -1 cuts the last one off, and the size adds one."""

    def change(folder):
        path = write_binary(folder) / "test_batch.bin"
        content = bytearray(path.read_bytes())
        content[at : at + 1 or len(content)] = to
        path.write_bytes(content)

    return change


def without(name):
    return lambda folder: (write_binary(folder) / name).unlink()


@pytest.mark.parametrize(
    ("write", "fragment"),
    [
        (lambda folder: folder.mkdir(), r"expected data_batch_1.bin"),
        (without("data_batch_3.bin"), "found no data_batch_3.bin"),
        (changed(-1, b""), "test_batch.bin: expected 61460 bytes, got 61459"),
        (changed(61460, b"x"), "test_batch.bin: expected 61460 bytes, got 61461"),
        (changed(1, b"\x00"), "other pixels"),
        (changed(7 * 3073, b"\x0a"), "a label below 10"),
    ],
)
def test_a_source_that_is_not_all_of_cifar_10_is_refused(write, fragment, tmp_path):
    write(tmp_path / "raw")
    assert_refused(tasks.make("image"), tmp_path, tmp_path / "raw", fragment)
