"""Image: gray values as LRA has them, every form of CIFAR-10, and what is refused."""

import hashlib
import io
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import gin
import numpy as np
import PIL.Image
import pytest
import serving
from paths import ROOT, SHARED

from lra_fnet import tasks
from lra_fnet.errors import UserError
from lra_fnet.tasks import image, store
from lra_fnet.tasks.sources import Remote

SHARED = SHARED / "data" / "cifar-10-binary.tar.xz"
ROWS = 20  # of a batch here
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(image, "BATCH_ROWS", ROWS)
    monkeypatch.setattr(store, "expected", lambda: {})


def made():
    """Planes uint8 [120, 3, 1024] and labels of six batches, as balanced as CIFAR-10."""
    rng = np.random.default_rng(0)
    planes = rng.integers(0, 256, (6 * ROWS, 3, 1024), np.uint8)
    train, test = (rng.permutation(np.repeat(np.arange(10), n)) for n in (ROWS // 2, ROWS // 10))
    return planes, np.concatenate([train, test]).astype(np.uint8)


PLANES, LABELS = made()


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


def python2(planes, labels):
    """The pickle that Python 2 writes in protocol 2, as the published ones are."""

    def short(text):
        return b"U" + bytes([len(text)]) + text

    raw = planes.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + (b"K\x00\x85" + short(b"b") + b"\x87R(K\x01")
        + (b"K" + bytes([len(planes)]) + b"M\x00\x0c\x86")  # shape (n, 3072)
        + (b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R(K\x03" + short(b"|"))
        + (b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
        + (b"T" + struct.pack("<I", len(raw)) + raw + b"tb")
    )
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(" + short(b"data") + array + short(b"labels") + b"](" + numbers + b"eu."


def python3(planes, labels, protocol=4, keys=(b"data", b"labels")):
    batch = {keys[0]: planes.reshape(-1, 3072), keys[1]: labels.tolist(), b"filenames": [b"a.png"]}
    return pickle.dumps(batch, protocol)


def write_python(folder, dump=python2):
    folder.mkdir(parents=True, exist_ok=True)
    for name, planes, labels in batches():
        (folder / name).write_bytes(dump(planes, labels))
    (folder / "batches.meta").write_bytes(b"not a pickle, not read")
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
    for some, others in zip(got, want, strict=True):
        np.testing.assert_array_equal(some.values, others.values)
        np.testing.assert_array_equal(some.labels, others.labels)


def exact(planes):
    """The gray value before it is cut off, without rounding, times 5,100,000."""
    red, green, blue = (planes[:, i].astype(np.int64) for i in range(3))
    return (2989 * red + 5870 * green + 1140 * blue) * 511


def all_colours(red):
    """uint8 [65536, 3, 1]: every green and blue with this red."""
    green, blue = np.divmod(np.arange(2**16), 256)
    return np.stack([np.full(2**16, red), green, blue], axis=1).astype(np.uint8)[..., None]


# Gray values


def test_gray_values_are_the_formula_cut_off_wherever_rounding_cannot_matter():
    planes = PLANES.transpose(0, 2, 1).reshape(-1, 3, 1)
    want, rest = np.divmod(exact(planes), 5_100_000)
    far = (rest > 1000) & (rest < 5_099_000)
    assert far.mean() > 0.99
    assert image.luma(planes).dtype == np.uint8
    np.testing.assert_array_equal(image.luma(planes)[far], want[far])


def test_gray_colours_keep_their_value():
    gray = np.tile(np.arange(256, dtype=np.uint8), (1, 3, 1))
    np.testing.assert_array_equal(image.luma(gray), gray[:, 0])


def test_many_images_at_once_give_the_same_as_one_by_one(monkeypatch):
    whole = image.luma(PLANES)
    monkeypatch.setattr(image, "_CHUNK", 7)
    np.testing.assert_array_equal(image.luma(PLANES), whole)
    np.testing.assert_array_equal(image.luma(PLANES[3:4])[0], whole[3])


def tensorflow_gray(images):
    """LRA's own line on each image of uint8 [n, H, W, 3], in a tf.data map as there."""
    tf = pytest.importorskip("tensorflow")

    def line(pixels):
        return tf.cast(tf.image.rgb_to_grayscale(pixels), tf.int32)

    rows = tf.data.Dataset.from_tensor_slices(images).map(line).batch(len(images))
    return next(iter(rows)).numpy().reshape(len(images), -1)


def test_tensorflow_gives_the_same_for_all_colours():
    """2^24 colours, as images of 256 x 256."""
    colours = [all_colours(red) for red in range(256)]
    images = (colour.reshape(256, 256, 3) for colour in colours)
    for start in range(0, 256, 32):
        want = tensorflow_gray(np.stack([next(images) for _ in range(32)]))
        got = np.stack([image.luma(colour)[:, 0] for colour in colours[start : start + 32]])
        np.testing.assert_array_equal(got, want)


# The forms of CIFAR-10


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "tar.xz"])
@pytest.mark.parametrize("write", [write_binary, write_python])
def test_batches_give_rows_in_their_published_order(write, form, tmp_path):
    source = write(tmp_path / "batches")
    if form != "folder":
        mode = f"w:{form[4:]}"
        source = pack(source, tmp_path / f"x.{form}", mode, ("data_batch_1", "data_batch_1.bin"))
    *parts, kind = image.read(source)
    assert kind == {write_binary: "binary", write_python: "python"}[write]
    values = image.luma(PLANES)
    want = (values[: 5 * ROWS], LABELS[: 5 * ROWS]), (values[5 * ROWS :], LABELS[5 * ROWS :])
    same(parts, [image.Rows(*part) for part in want])


def test_the_fixture_is_what_python_2_writes():
    planes, labels = PLANES[:3], LABELS[:3]
    with warnings.catch_warnings(action="ignore"):  # NumPy 2 warns of NumPy 1's names
        batch = pickle.loads(python2(planes, labels), encoding="bytes")
    np.testing.assert_array_equal(batch[b"data"], planes.reshape(3, 3072))
    assert batch[b"labels"] == labels.tolist()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("keys", [("data", "labels"), (b"data", b"labels")])
def test_batches_pickled_again_are_read(protocol, keys, tmp_path):
    *want, _ = image.read(write_binary(tmp_path / "a"))
    *got, _ = image.read(write_python(tmp_path / "b", lambda *b: python3(*b, protocol, keys)))
    same(got, want)


@pytest.mark.parametrize("protocol", [2, 3])
def test_names_of_numpy_1_and_2_are_the_same(protocol, tmp_path):
    def numpy_1(planes, labels):
        content = python3(planes, labels, protocol)
        assert b"numpy._core.multiarray" in content
        return content.replace(b"numpy._core.", b"numpy.core.")

    *want, _ = image.read(write_binary(tmp_path / "a"))
    *got, _ = image.read(write_python(tmp_path / "b", numpy_1))
    same(got, want)
    find = image._Unpickler(io.BytesIO()).find_class
    for name in ("numpy.core.numeric", "numpy._core.numeric"):
        assert find(name, "_frombuffer").__name__ == "_frombuffer"


def test_arrays_in_fortran_order_are_read(tmp_path):
    def turned(planes, labels):
        data = np.asfortranarray(planes.reshape(-1, 3072))
        return pickle.dumps({"data": data, "labels": labels.tolist()}, protocol=2)

    *want, _ = image.read(write_binary(tmp_path / "a"))
    *got, _ = image.read(write_python(tmp_path / "b", turned))
    same(got, want)


def test_images_in_folders_are_the_same_rows_in_the_order_of_their_sha256(tmp_path):
    train, test, kind = image.read(write_images(tmp_path / "images"))
    assert kind == "images"
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


def test_equal_images_are_ordered_by_label(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PLANES", np.zeros_like(PLANES))
    airplanes = {f"{i}.png" for i in np.flatnonzero(LABELS == 0)}
    source = pack(write_images(tmp_path / "i"), tmp_path / "i.tar", "w", last=airplanes)
    train, test, _ = image.read(source)
    assert train.labels.tolist() == sorted(LABELS[: 5 * ROWS].tolist())
    assert len(test.labels) == ROWS


@pytest.mark.parametrize("modes", ["L", ("L", "P"), ["RGBA"]])
def test_gray_palette_and_opacity_are_read_as_colours(modes, tmp_path, monkeypatch):
    gray = np.repeat(image.luma(PLANES)[:, None], 3, axis=1)
    monkeypatch.setattr(sys.modules[__name__], "PLANES", gray)
    train, test, _ = image.read(write_images(tmp_path, modes=modes))
    got = sorted(v.tobytes() for v in np.concatenate([train.values, test.values]))
    assert got == sorted(v.tobytes() for v in gray[:, 0])


def test_jpeg_is_read(tmp_path, monkeypatch):
    flat = np.broadcast_to(np.arange(120, dtype=np.uint8)[:, None, None], PLANES.shape)
    monkeypatch.setattr(sys.modules[__name__], "PLANES", flat)
    train, test, _ = image.read(write_images(tmp_path, suffix="jpg"))
    values = np.concatenate([train.values, test.values])
    assert sorted(values[:, 0].tolist()) == list(range(120))
    assert (values == values[:, :1]).all()


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "b", "a")])
def test_of_several_formats_binary_is_read_then_python(names, tmp_path):
    """In either order, and whatever the state of the others."""
    binary, python, images = (tmp_path / name / "x" for name in names)
    write_images(images)
    (images / "train" / "house").mkdir()
    (images / "train" / "house" / "1.png").write_bytes(b"")
    write_python(python)
    *want, kind = image.read(tmp_path)
    assert kind == "python"
    (python / "data_batch_1").write_bytes(b"")
    write_binary(binary)
    *got, kind = image.read(tmp_path)
    assert kind == "binary"
    same(got, want)


# Preparing


def test_a_prepared_set_has_the_splits_of_lra(tmp_path):
    source = write_binary(tmp_path / "cifar-10-batches-bin")
    task = tasks.make("image")
    raw = task.raw(source, 1)
    assert (raw.total, raw.details) == (120, {"format": "binary"})
    prepared = task.prepare(tmp_path / "data", source=source)
    task.verify(tmp_path / "data")
    assert prepared.rows == {"train": 90, "validation": 10, "test": 20}
    assert prepared.source == "cifar-10-batches-bin"
    values = image.luma(PLANES)
    for split, begin, end in (("train", 0, 90), ("validation", 90, 100), ("test", 100, 120)):
        arrays = prepared.arrays(split)
        np.testing.assert_array_equal(arrays.values, values[begin:end])
        np.testing.assert_array_equal(arrays.labels, LABELS[begin:end])
        assert (arrays.lengths == 1024).all()
    assert prepared.floor == (2, 20)


def test_every_form_of_the_batches_has_one_fingerprint(tmp_path):
    binary, python = write_binary(tmp_path / "bin"), write_python(tmp_path / "py")
    forms = [binary, python, pack(binary, tmp_path / "b.tar.gz"), pack(python, tmp_path / "p.gz")]
    prepared = [
        tasks.make("image").prepare(tmp_path / f"data{i}", source=source)
        for i, source in enumerate(forms)
    ]
    assert len({one.fingerprint for one in prepared}) == 1


CHILD = f"""
{serving.WITHOUT_TENSORFLOW}
import sys
from pathlib import Path
from lra_fnet import tasks
from lra_fnet.tasks import image, records
from lra_fnet.tasks.sources import Remote
_, data, url, size, sha256 = sys.argv
image.BATCH_ROWS = {ROWS}
image.REMOTE = Remote(url, int(size), sha256)
records.expected = lambda: {{}}
tasks.make("image").prepare(data)
prepared = tasks.make("image").verify(data)
print(prepared.source, prepared.fingerprint)
assert not {{"jax", "tensorflow", "numba"}} & set(sys.modules)
"""


def test_the_whole_preparation_downloads_and_needs_no_tensorflow(tmp_path):
    binary = write_binary(tmp_path / "cifar-10-batches-bin")
    served = tmp_path / "served"
    served.mkdir()
    content = pack(binary, served / "cifar-10-binary.tar.gz").read_bytes()
    with serving.serve(served) as url:
        wanted = (f"{url}cifar-10-binary.tar.gz", len(content), hashlib.sha256(content).hexdigest())
        args = [sys.executable, "-W", "error", "-c", CHILD, tmp_path / "data", *map(str, wanted)]
        root = ROOT
        done = subprocess.run(args, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    want = tasks.make("image").prepare(tmp_path / "other", source=binary)
    assert done.stdout.split() == ["cifar-10-binary.tar.gz", want.fingerprint]


@pytest.mark.parametrize("name", ["cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"])
def test_both_published_files_are_known_by_name_size_and_sha256(name, tmp_path):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match=r"expected 170\d{6} bytes, found 1: it is cut or not the"):
        tasks.make("image").prepare(tmp_path / "data", source=tmp_path / name)
    task = tasks.make("image")
    known = [task.remote, *task.also]
    assert [len(remote.sha256) for remote in known] == [64, 64]
    assert isinstance(known[0], Remote)


def test_gin_file_builds_the_task():
    gin.parse_config(["DATASET = 'full'", "MAX_LEN = 1024"])
    gin.parse_config_file("gin/tasks/image.gin")
    task = gin.query_parameter("TASK/gin.macro.value").scoped_configurable_fn()
    assert task == image.Image(config="full", max_len=1024)
    assert (task.num_classes, task.vocab_size, task.num_inputs) == (10, 257, 1)
    assert list(task.label_names).index("cat") == 3


# Errors


def refused(source, words):
    """The one line that reading ends with; it matches `words` whole."""
    with pytest.raises(UserError) as caught:
        image.read(source)
    text = str(caught.value)
    assert "\n" not in text
    assert re.fullmatch(words, text.replace(f"{source}", "SRC")), text


AGAIN = (
    r"get cifar-10-binary\.tar\.gz \(170\.1 MB\) from https://www\.cs\.toronto\.edu/~kriz/\S+ again"
)


def test_a_missing_or_doubled_batch_is_named(tmp_path):
    binary, python = write_binary(tmp_path / "b"), write_python(tmp_path / "p")
    (binary / "data_batch_3.bin").unlink()
    refused(binary, rf"SRC: expected one data_batch_3\.bin, found none; {AGAIN}")
    (python / "test_batch").unlink()
    refused(python, rf"SRC: expected one test_batch, found none; {AGAIN}")
    twice = write_binary(tmp_path / "t" / "x")
    write_binary(twice.parent / "y")
    words = rf"SRC: expected one data_batch_1\.bin, found x/\S+1\.bin, y/\S+1\.bin; {AGAIN}"
    refused(twice.parent, words)


@pytest.mark.parametrize(("change", "found"), [(-1, "61459"), (-61460, "0"), (1, "more")])
def test_a_binary_batch_of_another_size_is_named(change, found, tmp_path):
    source = write_binary(tmp_path)
    path = source / "data_batch_2.bin"
    path.write_bytes((path.read_bytes() + b"x")[: 61460 + change])
    words = r"SRC, data_batch_2\.bin: expected 61460 bytes \(20 images of 3073\), found "
    refused(source, rf"{words}{found}; {AGAIN}")


def test_a_label_above_9_is_named_with_its_row(tmp_path):
    binary = write_binary(tmp_path / "b")
    content = bytearray((binary / "test_batch.bin").read_bytes())
    content[7 * 3073] = 10
    (binary / "test_batch.bin").write_bytes(content)
    words = r"SRC, (\S+/)?test_batch(\.bin)?: row 7 has the label {}, expected 0-9; " + AGAIN
    refused(binary, words.format(10))
    refused(pack(binary, tmp_path / "b.tar"), words.format(10))
    python = write_python(tmp_path / "p")
    for label in (-1, 266, 2**40):  # 266 is 10 in uint8
        labels = LABELS[-ROWS:].astype(np.int64)
        labels[7] = label
        (python / "test_batch").write_bytes(python3(PLANES[-ROWS:], labels))
        refused(python, words.format(label))


def test_classes_that_are_not_equally_frequent_are_refused(tmp_path):
    source = write_binary(tmp_path / "b")
    path = source / "data_batch_4.bin"
    content = bytearray(path.read_bytes())
    content[0] = (content[0] + 1) % 10
    path.write_bytes(content)
    words = rf"SRC: (9|11) training images of the class [a-z]+, CIFAR-10 has 10; {AGAIN}"
    refused(source, words)
    source = write_images(tmp_path / "i")
    next((source / "test" / "frog").iterdir()).unlink()
    refused(source, rf"SRC: 1 test images of the class frog, CIFAR-10 has 2; {AGAIN}")
    source = write_images(tmp_path / "j")
    (source / "test").rename(source / "validation")
    refused(source, rf"SRC: 0 test images of the class airplane, CIFAR-10 has 2; {AGAIN}")


def test_a_source_with_nothing_to_read_says_what_was_expected(tmp_path):
    words = (
        r"SOURCE=SRC: expected data_batch_1\.bin to data_batch_5\.bin and test_batch\.bin, the "
        r"same without \.bin, or train/<class>/\*\.png and test/<class>/\*\.png; found {}"
    )
    refused(tmp_path, words.format("no file"))
    for name in ("fine.bin", "train.bin", "test.bin", "z.txt"):
        (tmp_path / name).write_bytes(b"x")
    refused(tmp_path, words.format(r"fine\.bin, test\.bin, train\.bin"))
    refused(tmp_path / "nowhere", "SOURCE=SRC: no such file or folder")
    with pytest.raises(UserError, match=r"^image: SOURCE must be cifar-10-binary.tar.gz \(170.1"):
        tasks.make("image").raw(None, 1)


def png(size=(32, 32), mode="RGB", kind="PNG"):
    file = io.BytesIO()
    PIL.Image.new(mode, size).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (png((32, 31)), "32 x 31 pixels of mode RGB"),
        (png((64, 64)), "64 x 64 pixels of mode RGB"),
        (png(mode="I;16"), "32 x 32 pixels of mode I;16"),
        (png(mode="CMYK", kind="JPEG"), "32 x 32 pixels of mode CMYK"),
        (png(kind="BMP"), "cannot identify image file <.*>"),
        (png()[:-40], ".*(truncated|broken).*"),
        (b"", "cannot identify image file <.*>"),
        (b"x" * (2**20 + 1), "more than 1048576 bytes"),
    ],
    ids=range(8),
)
def test_a_file_that_is_no_such_image_is_named(content, found, tmp_path):
    source = write_images(tmp_path)
    (source / "test" / "dog" / "new.png").write_bytes(content)
    refused(
        source,
        r"SRC, test/dog/new\.png: expected a PNG or JPEG of 32 x 32 pixels of 8 bits, gray or "
        rf"colour, found {found}; get the file again",
    )


def test_a_folder_of_an_unknown_class_is_named(tmp_path):
    source = write_images(tmp_path)
    (source / "train" / "cat").rename(source / "train" / "cats")
    refused(
        source,
        r"SRC, train/cats/\d+\.png: unknown class 'cats': one of airplane, automobile, .*, truck",
    )


def test_a_refused_source_leaves_no_set_behind(tmp_path):
    source = write_binary(tmp_path / "raw")
    (source / "data_batch_5.bin").unlink()
    with pytest.raises(UserError):
        tasks.make("image").prepare(tmp_path / "data", source=source)
    left = [path.name for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert set(left) <= {".lock"}


# Pickles


def broken(reason):
    return (
        r"SRC, data_batch_2: expected a pickled dict with data, uint8 \[20, 3072\], and labels, "
        rf"found {reason}; get cifar-10-python\.tar\.gz \(170\.5 MB\) from \S+ again"
    )


DATA = PLANES[:ROWS].reshape(ROWS, 3072)
TWENTY = [3] * ROWS


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Ran out of input"),
        (
            python2(PLANES[:ROWS], TWENTY)[:-100],
            r"unexpected end of data|pickle data was truncated",
        ),
        (b"\x80\x02garbage", ".+"),
        (b"x" * (2 * ROWS * 3072 + 2**20 + 1), "more than 1171456 bytes"),
        (pickle.dumps([1, 2]), "no dict"),
        (pickle.dumps({b"data": DATA}), "no array 'data' and list 'labels'"),
        (pickle.dumps({b"data": TWENTY, b"labels": TWENTY}), "no array 'data' and list 'labels'"),
        (pickle.dumps({b"data": DATA[1:], b"labels": TWENTY}), r"data \[19, 3072\] and 20 labels"),
        (pickle.dumps({b"data": DATA, b"labels": TWENTY[1:]}), r"data \[20, 3072\] and 19 labels"),
        (pickle.dumps({b"data": DATA, b"labels": [0.5] * 20}), "labels that are no integers"),
        (pickle.dumps({b"data": DATA, b"labels": [10**5000] * 20}), "Python int too large .*"),
        (pickle.dumps({b"data": DATA.astype("f4"), b"labels": TWENTY}, 2), "an array of 'f4'"),
        (pickle.dumps({b"data": DATA.astype("f4"), b"labels": TWENTY}, 5), "an array of 'f4'"),
        (pickle.dumps({b"data": DATA.astype(object), b"labels": TWENTY}), "an array of 'O8'"),
    ],
    ids=range(14),
)
def test_a_damaged_or_other_pickle_is_one_line(content, reason, tmp_path):
    source = write_python(tmp_path)
    (source / "data_batch_2").write_bytes(content)
    refused(source, broken(f"(?:{reason})"))


class Evil:
    """Calls a function when it is unpickled."""

    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


def evil(marker):
    """Pickles that make the file `marker` when pickle.loads reads them."""
    line = f"open({str(marker)!r}, 'w').close()"
    yield pickle.dumps(Evil(os.system, f"touch {marker}"), 2)
    yield pickle.dumps(Evil(os.system, f"touch {marker}"), 0)
    yield pickle.dumps(Evil(exec, line), 4)
    yield pickle.dumps({b"data": DATA, b"labels": [Evil(exec, line)]}, 5)
    yield pickle.dumps(Evil(subprocess.call, ["touch", str(marker)]))
    yield pickle.dumps(Evil(np.save, f"{marker}", np.zeros(1)))
    yield pickle.dumps(Evil(Path.touch, marker))


def test_a_pickle_runs_no_code(tmp_path):
    marker = tmp_path / "evil.npy"
    source = write_python(tmp_path / "python")
    for content in evil(marker):
        assert not marker.exists()
        pickle.loads(content)
        assert marker.exists()  # it does harm where it can
        marker.unlink()
        (source / "data_batch_2").write_bytes(content)
        refused(source, broken(r"the name '[\w.]+', which is not allowed"))
        assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"cos\nsystem\n.", "os.system"),
        (b"cnumpy\nload\n.", "numpy.load"),
        (b"cnumpy.core.multiarray\nscalar\n.", "numpy.core.multiarray.scalar"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "numpy.ndarray.tofile"),
        (b"ccopyreg\n_reconstructor\n.", "copyreg._reconstructor"),
        (b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.", "an array of b'O8'"),
        (b"c_codecs\nencode\n(S'x'\nS'zlib'\ntR.", "a string in b'zlib'"),
        (b"cnumpy\nndarray\n(tR.", "'NoneType' object is not callable"),
        (b"Pperson\n.", "persistent"),
    ],
    ids=range(9),
)
def test_no_other_name_can_be_called(content, reason, tmp_path):
    source = write_python(tmp_path)
    (source / "data_batch_2").write_bytes(content)
    refused(source, broken(f".*{re.escape(reason)}.*"))


@pytest.mark.parametrize(
    "name", [b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct", b"_codecs\nencode"]
)
def test_what_a_pickle_may_name_cannot_be_changed_by_it(name, tmp_path):
    source = write_python(tmp_path)
    content = b"c" + name + b"\n(N(dS'__defaults__'\n(I1\ntstb."  # BUILD with a state of slots
    (source / "data_batch_2").write_bytes(content)
    refused(source, broken(".*(attribute|slots).*"))


# The real images


@pytest.mark.slow
def test_tensorflow_gives_the_same_for_every_real_image(monkeypatch, tmp_path):
    """And the labels, their counts, and the constants of the task are those of the images."""
    if not SHARED.exists():
        pytest.skip("no copy of CIFAR-10 beside the project")
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(image, "BATCH_ROWS", 10_000)
    with tarfile.open(SHARED) as archive:
        archive.extractall(tmp_path, filter="data")
    train, test, kind = image.read(tmp_path)
    assert kind == "binary"
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
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        part = slice(10_000 * i, 10_000 * (i + 1))
        different += int((tensorflow_gray(images) != got[part]).sum())
        np.testing.assert_array_equal(labels[part], rows[:, 0])
    assert different == 0
    for path in (tmp_path / "cifar-10-batches-bin").iterdir():
        path.unlink()  # 184 MB
