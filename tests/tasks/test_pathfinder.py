"""Pathfinder: strokes and discs against Pillow, the rules and their quirks, LRA's release."""

import functools
import itertools
import math
import subprocess
import sys
import textwrap
import types

import gin
import numpy as np
import pytest
import serving
from paths import ROOT, SHARED, TESTS
from PIL import Image, ImageDraw
from scipy import ndimage

from lra_fnet import tasks
from lra_fnet.errors import UserError
from lra_fnet.tasks import pathfinder, pathfinder_images, pathfinder_paddles, sheet

WINDOWS = {32: "hard_32", 64: "hard_64", 128: "hard_128", 256: "hard_256"}
SHARED = SHARED
COUNTS = {"hard_32": 4000, "easy_32": 2000, "hard_64": 200, "hard_128": 300, "hard_256": 200}


@functools.cache
def drawn(config, number=None):
    """Images of a chunk of their own."""
    return pathfinder.draw(pathfinder.SETS[config], 5, 0, number or COUNTS[config])


def pillow_reduced(image, size):
    return np.array(Image.fromarray(image).resize((size, size), Image.Resampling.LANCZOS))


def both_tables():
    for window, config in WINDOWS.items():
        for table in pathfinder.tables(pathfinder.SETS[config]):
            yield window, table


# Drawing, against Pillow


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_stroke_is_pillows(width):
    for dy, dx in itertools.product(range(-11, 12), repeat=2):
        image = Image.new("F", (49, 49), "black")
        ImageDraw.Draw(image).line([(24, 24), (24 + dx, 24 + dy)], fill="white", width=width)
        ours = pathfinder_paddles.line(49, (24, 24), (dy, dx), width)
        np.testing.assert_array_equal(ours, np.array(image), err_msg=f"{dy}, {dx}")


@pytest.mark.parametrize("sizes", [(17, 9), (33, 17), (41, 21), (64, 32), (50, 13)])
def test_reduction_is_pillows(sizes):
    size, reduced = sizes
    rng = np.random.default_rng(0)
    for top in (1, 255):  # any values; and black or white, which overshoots at edges
        image = rng.integers(0, top, (size, size), np.uint8, endpoint=True) * np.uint8(255 // top)
        want = pillow_reduced(image, reduced)
        np.testing.assert_array_equal(pathfinder_paddles.reduce(image, reduced), want)


@pytest.mark.parametrize("radius", [2, 4, 6])
def test_dilation_is_scipys(radius):
    image = np.random.default_rng(1).integers(0, 256, (23, 23), np.uint8)
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    want = ndimage.grey_dilation(image, footprint=y**2 + x**2 <= radius**2, mode="constant")
    np.testing.assert_array_equal(pathfinder_paddles.dilate(image, radius), want)


def disc(window, y, x, radius):
    """A disc drawn on the whole image at twice the size, reduced by Pillow."""
    v, u = np.ogrid[-2 * y : 2 * (window - y), -2 * x : 2 * (window - x)]
    inside = v**2 + u**2 <= (2 * radius) ** 2
    return pillow_reduced(np.where(inside, 255, 0).astype(np.uint8), window)


@pytest.mark.parametrize("window", WINDOWS)
def test_every_disc_is_pillows_also_at_the_edge(window):
    radius = pathfinder.SETS[WINDOWS[window]].marker_radius
    starts, weights = pathfinder_paddles.lanczos(2 * window, window)
    rng = np.random.default_rng(2)
    edges = [(0, 0), (0, window - 1), (window - 1, 3), (2, window // 2)]
    for y, x in [*edges, *rng.integers(0, window, (20, 2)).tolist()]:
        canvas = np.zeros((window, window), np.uint8)
        pathfinder_images.draw_disc(canvas, y, x, radius, starts, weights)
        np.testing.assert_array_equal(canvas, disc(window, y, x, radius))


# Tables of steps


def test_places_of_the_next_head_are_hand_worked():
    """Radius 1: seven samples of the circle, each rounded down."""
    assert pathfinder_paddles._arc(1) == [(-1, -1), (-1, 0), (0, -1), (0, 0), (0, 1)]


def test_weights_fall_with_the_turn_and_end_at_its_bound():
    for window, table in both_tables():
        continuity = pathfinder.SETS[WINDOWS[window]].continuity
        angles = [math.radians(d - 180) for d in range(360)]
        angles += [math.atan2(y, x) for y, x in table.arc]
        for i, j in np.random.default_rng(3).integers(0, len(table.arc), (200, 2)):
            last, new = angles[i], angles[360 + j]
            turn = math.degrees(abs(math.remainder(new - last, 2 * math.pi)))
            want = math.cos(math.radians(turn * continuity)) ** 2 if turn < 90 / continuity else 0
            got = table.weights[i, j] / pathfinder_paddles.ONE
            assert got == pytest.approx(want, abs=1e-8)


@pytest.mark.parametrize(("window", "usable"), [(32, {31}), (64, {95}), (256, {360})])
def test_orientations_that_opencvs_border_rules_out(window, usable):
    """Dilation in a small image, with minus infinity where a pixel's seat lies outside."""
    table = pathfinder.tables(pathfinder.SETS[WINDOWS[window]])[0]
    counted, side = 0, 32
    for turn in range(360):
        found = np.full((side, side), -np.inf)
        for y, x in table.seat[turn, : table.num_seat[turn]]:
            rows, columns = np.arange(side) + y, np.arange(side) + x
            inside = np.ix_((rows >= 0) & (rows < side), (columns >= 0) & (columns < side))
            found[inside] = 0
        counted += found.min() == 0
    assert {counted} == usable == {table.usable.sum()}


# The images


@pytest.mark.parametrize("config", [*WINDOWS.values(), "easy_32", "short_32", "short_128"])
def test_every_paddle_keeps_the_rules(config):
    """The chains are followed again in plain Python, from where the paddles are."""
    setting = pathfinder.SETS[config]
    images = pathfinder.draw(setting, 6, 0, 4)
    for paddles, facts in zip(images.paddles, images.facts, strict=True):
        table = pathfinder.tables(setting)[facts[pathfinder_images.MARGIN]]
        margin = setting.margins[facts[pathfinder_images.MARGIN]]
        split = 2 * setting.contour_length
        contours = paddles[:split].reshape(2, -1, 3)
        rest = paddles[split:].reshape(-1, setting.distractor_length, 3)
        rest = rest[: facts[pathfinder_images.DISTRACTORS]]
        assert (contours >= 0).all()  # both are whole, whatever the label
        for chain in (*contours, *rest):
            assert follows(chain, setting, margin)
        gap = contours[0, 0, 1:] - contours[1, 0, 1:]
        assert abs(np.hypot(*gap) - setting.seed_distance) < 0.8
        tail = contours[0, 0, 1:]
        assert tail.min() > 2 * setting.seed_distance - setting.paddle_length - margin
        check_masks(setting, table, contours, rest)


def follows(chain, setting, margin):
    """Whether some first angle explains the heads of a chain, each within the turn's bound."""
    length, radius = setting.paddle_length, setting.paddle_length + margin

    def moved(point, angle, distance):
        y, x = distance * math.sin(angle), distance * math.cos(angle)
        return math.ceil(point[0] + y - 1e-9), math.ceil(point[1] + x - 1e-9)

    for degrees in range(-180, 180):
        angle = math.radians(degrees)
        pivot = moved(moved(chain[0, 1:], angle, length), angle + math.pi, radius)
        good = True
        for _, y, x in chain[1:].tolist():
            pivot = moved(pivot, angle, length + 2 * margin)
            new = math.atan2(y - pivot[0], x - pivot[1])
            turn = abs(math.remainder(new - angle, 2 * math.pi))
            distance = math.hypot(y - pivot[0], x - pivot[1])
            good &= turn * setting.continuity <= math.pi / 2 and abs(distance - radius) < 1.5
            good &= min(y, x) >= 0 and max(y, x) < setting.window
            angle = new
        if good:
            return True
    return False


def on_window(shape, paddle, window):
    """A footprint on an empty window, cut at its edge."""
    canvas, half = np.zeros((window + 60, window + 60), shape.dtype), len(shape[0]) // 2
    top, left = 30 + paddle[1] - half, 30 + paddle[2] - half
    canvas[top : top + 2 * half + 1, left : left + 2 * half + 1] = shape[paddle[0]]
    return canvas[30:-30, 30:-30]


def check_masks(setting, table, contours, rest):
    window = setting.window
    mask = np.full((window, window), 255, np.uint8)
    mask[setting.padding : -setting.padding, setting.padding : -setting.padding] = 0

    def accept(chain, i):
        nonlocal mask
        new = on_window(table.masks, chain[i], window)
        assert (mask / 255 + new / 255).max() < 1.8 - 1e-9
        mask = np.maximum(mask, on_window(table.masks, chain[i - 1], window))  # the previous one

    for i in range(1, setting.contour_length):
        accept(contours[0], i)
        accept(contours[1], i)
    mask = np.maximum(mask, on_window(table.masks, contours[1, -1], window))  # not contours[0]
    for chain in rest:
        for i in range(1, setting.distractor_length):
            accept(chain, i)
        mask = np.maximum(mask, on_window(table.masks, chain[-1], window))


@pytest.mark.parametrize("config", ["hard_32", "hard_64"])
def test_a_distractor_that_fails_leaves_no_trace(config):
    setting = pathfinder.SETS[config]
    table, window = pathfinder.tables(setting)[0], setting.window
    state = np.random.SeedSequence(8).generate_state(4, np.uint64)
    missing = 0
    for paddles in drawn(config).paddles[:30, : 2 * setting.contour_length]:
        start = np.zeros((window, window), np.uint8)
        for paddle in paddles:
            start = np.maximum(start, on_window(table.masks, paddle, window))
        mask = start.copy()
        found = np.zeros((setting.num_distractors, setting.distractor_length, 3), np.int64)
        count = pathfinder_images._distractors(state, mask, found, table)
        for paddle in found[:count].reshape(-1, 3):
            start = np.maximum(start, on_window(table.masks, paddle, window))
        np.testing.assert_array_equal(mask, start)
        assert (found[count:, :, 0] == pathfinder_images.NO_PADDLE).all()
        missing += setting.num_distractors - count
    assert missing


def composed(setting, paddles, facts, label):
    """An image from its paddles and tips, in floating point."""
    window, table = setting.window, pathfinder.tables(setting)[facts[pathfinder_images.MARGIN]]
    image = np.zeros((window, window))
    for i, paddle in enumerate(paddles):
        if paddle[0] != pathfinder_images.NO_PADDLE:
            target = i < 2 * setting.contour_length
            contrast = setting.snake_contrast * (setting.paddle_contrast if target else 1)
            drawn = on_window(table.images, paddle, window) / 255 * contrast
            image = np.maximum(image, drawn.astype(np.float32))
    marked = facts[pathfinder_images.MARKED]
    other = marked if label else 1 - marked
    for tip in (
        pathfinder_images.ORIGINS + 2 * marked,
        pathfinder_images.TERMINALS + 2 * other,
    ):
        image = np.maximum(image, disc(window, *facts[tip : tip + 2], setting.marker_radius) / 255)
    return ((image - image.min()) * (255 / (image.max() - image.min())) + 0.5).astype(np.uint8)


@pytest.mark.parametrize("config", WINDOWS.values())
def test_images_are_their_paddles_and_the_label_moves_one_disc_only(config):
    setting = pathfinder.SETS[config]
    images = pathfinder.draw(setting, 7, 0, 6)
    y, x = np.mgrid[: setting.window, : setting.window]
    for pixels, label, paddles, facts in zip(*images, strict=True):
        image = pixels.reshape(setting.window, -1)
        np.testing.assert_array_equal(image, composed(setting, paddles, facts, label))
        other = composed(setting, paddles, facts, 1 - label)
        changed = image != other
        near = np.zeros_like(changed)
        for tip in facts[pathfinder_images.TERMINALS :][:4].reshape(2, 2):
            near |= np.hypot(y - tip[0], x - tip[1]) <= setting.marker_radius + 5
        assert changed.any()
        assert not changed[~near].any()


def test_distractors_of_32_pixels_are_brighter_than_the_long_contours():
    s32, s128 = pathfinder.SETS["hard_32"], pathfinder.SETS["hard_128"]
    assert s32.paddle_contrast * s32.snake_contrast == 0.75 * s32.snake_contrast
    assert s128.paddle_contrast * s128.snake_contrast == s128.snake_contrast


def test_numbers_of_distractors_are_those_of_lras_docstrings():
    got = {
        name: (s.contour_length, s.distractor_length, s.num_distractors)
        for name, s in pathfinder.SETS.items()
        if name.startswith(("hard", "easy", "intermediate_32"))
    }
    assert got == {
        "hard_32": (14, 4, 5),
        "intermediate_32": (9, 3, 6),
        "easy_32": (6, 2, 10),
        "hard_64": (14, 4, 5),
        "easy_64": (6, 2, 11),
        "hard_128": (14, 4, 8),
        "easy_128": (6, 2, 17),
        "hard_256": (14, 4, 7),
        "easy_256": (6, 2, 15),
    }


# Statistics of the original generator run with LRA's settings: images, mean pixel, standard
# deviation of the images' means, shares above 0, 63, 127 and 199, components of pixels above 63 and
# their standard deviation.
REFERENCE = {
    "hard_32": (2400, 20.13, 2.02, (0.340, 0.125, 0.085, 0.0166), 13.7, 3.3),
    "easy_32": (300, 13.2, 1.84, (0.232, 0.078, 0.053, 0.0143), 7.5, 2.5),
    "hard_64": (25, 13.1, 1.12, (0.254, 0.088, 0.045, 0.0091), 17.3, 4.8),
    "hard_128": (150, 7.92, 0.29, (0.137, 0.041, 0.030, 0.0141), 57.5, 2.1),
    "hard_256": (30, 2.95, 0.06, (0.039, 0.0145, 0.0111, 0.0077), 55.7, 0.4),
}


@pytest.mark.parametrize("config", REFERENCE)
def test_statistics_are_those_of_the_original_generator(config):
    """Within 4 standard errors of the difference, and half a unit of the last printed digit."""
    n, mean, spread, shares, parts, parts_spread = REFERENCE[config]
    images = drawn(config).images
    side = math.isqrt(images.shape[1])

    def error(values, ours=None):
        deviation = values.std() if ours is None else ours
        return 4 * math.sqrt(deviation**2 / n + values.var() / len(values))

    means = images.mean(1)
    assert abs(means.mean() - mean) < error(means) + 0.05
    assert abs(means.std() / spread - 1) < 4 * math.sqrt(1 / (2 * n) + 1 / (2 * len(means))) + 0.1
    for least, share, digit in zip((1, 64, 128, 200), shares, (5e-4,) * 3 + (5e-5,), strict=True):
        each = (images >= least).mean(1)
        assert abs(each.mean() - share) < error(each) + digit
    some = images[:400].reshape(-1, side, side) >= 64
    counts = np.array([ndimage.label(image, np.ones((3, 3)))[1] for image in some])
    assert abs(counts.mean() - parts) < error(counts, parts_spread) + 0.05


def test_where_the_brightness_is_agrees_with_the_original_generator():
    """Centre crops, border rows and shares of the nonzero intensities, 2400 images there."""
    images = drawn("hard_32").images.reshape(-1, 32, 32).astype(float)
    for cut, mean in ((2, 25.8), (4, 24.6), (8, 29.1), (12, 39.6)):
        each = images[:, cut : 32 - cut, cut : 32 - cut].mean((1, 2))
        assert abs(each.mean() - mean) < 4 * each.std() * math.sqrt(1 / 2400 + 1 / 4000) + 0.05
    # "Border rows 0.63" of the statistics are the first row and the first column
    each = np.concatenate([images[:, 0], images[:, :, 0]], 1).mean(1)
    assert abs(each.mean() - 0.63) < 4 * each.std() * math.sqrt(1 / 2400 + 1 / 4000) + 0.005
    bins, _ = np.histogram(images[images > 0], np.arange(0, 257, 32))
    want = [0.575, 0.057, 0.057, 0.062, 0.115, 0.079, 0.036, 0.020]
    np.testing.assert_allclose(bins / bins.sum(), want, atol=0.004)


@pytest.mark.parametrize("window", [32, 128])
def test_images_agree_with_the_samples_of_the_original(window):
    """Two-sample tests of each image's mean, bright share and components: p > 0.0005 each."""
    from scipy import stats

    path = SHARED / "data" / f"pathfinder{window}_hard_sample.npz"
    if not path.exists():
        pytest.skip(f"no {path.name} beside the checkout")
    theirs = np.load(path)["x"]
    ours = drawn(f"hard_{window}").images.reshape(-1, window, window)

    def features(images):
        parts = [ndimage.label(image >= 64, np.ones((3, 3)))[1] for image in images]
        bright, centre = (images >= 128).mean((1, 2)), images[:, 12:-12, 12:-12].mean((1, 2))
        return images.mean((1, 2)), bright, (images > 0).mean((1, 2)), centre, np.array(parts)

    for a, b in zip(features(ours[:600]), features(theirs), strict=True):
        assert stats.ks_2samp(a, b).pvalue > 5e-4


def test_labels_are_balanced_and_no_pixel_count_gives_them_away():
    images, labels, *_ = drawn("hard_32")
    n = len(labels)
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / math.sqrt(n)
    for each in (images.mean(1), (images == 255).sum(1), (images >= 200).mean(1)):
        difference = each[labels == 1].mean() - each[labels == 0].mean()
        assert abs(difference) < 4 * each.std() * 2 / math.sqrt(n)


# The set


def rows(config, count, jobs=1):
    images = itertools.islice(pathfinder.generate(config, 0, jobs), count)
    return [(values.tobytes(), label) for values, label in images]


@pytest.mark.parametrize("config", ["short_32", "hard_32"])
def test_rows_are_the_same_at_any_number_of_jobs_and_any_global_seed(config, monkeypatch):
    monkeypatch.setattr(pathfinder, "_CHUNK", 7)
    want = rows(config, 40)
    np.random.seed(4)  # noqa: NPY002 (the global generator is meant)
    assert rows(config, 40, jobs=2) == want
    assert rows(config, 40, jobs=3) == want
    assert len(set(want)) == 40


def tiny_sets(monkeypatch, counts, *configs):
    sets = {name: s._replace(rows=counts) for name, s in pathfinder.SETS.items() if name in configs}
    monkeypatch.setattr(pathfinder, "SETS", types.MappingProxyType(dict(pathfinder.SETS) | sets))


def test_a_set_is_prepared_without_tensorflow(tmp_path):
    code = f"""
    {serving.WITHOUT_TENSORFLOW}
    from lra_fnet import tasks
    from lra_fnet.tasks import pathfinder, records
    records.expected = dict  # of the whole set
    small = pathfinder.SETS["short_32"]._replace(rows=(30, 5, 5))
    pathfinder.SETS = dict(pathfinder.SETS) | {{"short_32": small}}
    task = tasks.make("pathfinder", "short_32")
    prepared = task.prepare({str(tmp_path)!r}, jobs=2)
    values, lengths, labels = prepared.arrays("train")
    assert values.shape == (30, 1024) and (lengths == 1024).all() and set(labels) == {{0, 1}}
    assert task.illustrate(task.verify({str(tmp_path)!r})).stat().st_size > 1000
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=TESTS)


def test_gin_files_build_the_tasks():
    for name, config, task in (
        ("pathfinder", "hard_32", pathfinder.Pathfinder("hard_32", 1024)),
        ("pathx", "hard_128", pathfinder.PathX("hard_128", 16384)),
    ):
        gin.clear_config()
        path = ROOT / "gin" / "tasks" / f"{name}.gin"
        gin.parse_config(path.read_text() + f"\nDATASET = '{config}'\nMAX_LEN = {task.max_len}")
        assert gin.query_parameter("%TASK").scoped_configurable_fn() == task
        assert tasks.make(name) == task


# LRA's release


def release(folder, side=32, level="curv_contour_length_14", as_array=False):
    """Two metadata files of eight images each, as in the release; the names are not in order."""
    base = folder / "lra_release" / f"pathfinder{side}" / level
    (base / "metadata").mkdir(parents=True)
    for k in (2, 10):
        (base / "imgs" / str(k)).mkdir(parents=True)
        lines = []
        for i in range(8):
            image = Image.new("L", (side, side), k + i)
            image.save(base / "imgs" / str(k) / f"sample_{i}.png")
            lines.append(["imgs/" + str(k), f"sample_{i}.png", str(i), str(i % 2), "1.0", "14"])
        path = base / "metadata" / f"{k}.npy"
        if as_array:
            np.save(path, np.array(lines))
        else:
            path.write_text("\n".join(" ".join(line) for line in lines) + "\n")
    return base


@pytest.mark.parametrize("as_array", [False, True])
def test_the_release_is_read_in_numerical_order(as_array, tmp_path):
    base = release(tmp_path / "raw", as_array=as_array)
    (base / "imgs" / "2" / "sample_3.png").write_bytes(b"")  # as one file of the release is
    raw = pathfinder.Pathfinder("hard_32", 1024).raw(tmp_path / "raw", 1)
    assert raw.details == {"num_empty_images": 1}
    found = {split: [(int(v[0]), len(v), y) for v, y in rows] for split, rows in raw.splits.items()}
    kept = [(k + i, 1024, i % 2) for k in (2, 10) for i in range(8) if (k, i) != (2, 3)]
    assert found == {"train": kept[:12], "validation": kept[12:14], "test": kept[14:]}
    prepared = tasks.make("pathfinder").prepare(tmp_path / "data", base)
    assert dict(prepared.rows) == {"train": 12, "validation": 2, "test": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("imgs/2 sample_1.png 1 2 1.0", "row 2: expected a label 0 or 1 in column 4, got 'imgs/2"),
        ("imgs/2 sample_1.png 1", "row 2: expected 4 columns or more, got 'imgs/2 sample_1.png 1'"),
        ("../2 sample_1.png 1 1", "row 2: '../2/sample_1.png' leads out of "),
    ],
)
def test_bad_metadata_name_file_and_row(line, reason, tmp_path):
    path = release(tmp_path) / "metadata" / "2.npy"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(UserError) as info:
        pathfinder.Pathfinder("hard_32", 1024).raw(tmp_path, 1)
    assert str(info.value).startswith(f"{path}, {reason}")
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda p: Image.new("L", (32, 31)).save(p), "of 32 by 32 pixels, got mode L, 32 by 31"),
        (lambda p: Image.new("LA", (32, 32)).save(p), "pixels, got mode LA, 32 by 32; get"),
        (lambda p: p.write_bytes(b"GIF89a"), "is no PNG image, or is damaged"),
        (lambda p: p.write_bytes(p.read_bytes()[:60]), "is no PNG image, or is damaged"),
        (lambda p: p.unlink(), "cannot be read (No such file or directory), but the metadata list"),
    ],
)
def test_a_bad_image_is_named(spoil, reason, tmp_path):
    path = release(tmp_path / "raw") / "imgs" / "10" / "sample_2.png"
    spoil(path)
    with pytest.raises(UserError) as info:
        tasks.make("pathfinder").prepare(tmp_path / "data", tmp_path / "raw")
    assert str(info.value).startswith(str(path))
    assert reason in str(info.value)
    assert "\n" not in str(info.value)
    assert not list((tmp_path / "data").rglob("fingerprint.json"))


def test_a_folder_without_the_release_says_what_was_expected(tmp_path):
    release(tmp_path / "a", level="curv_baseline")
    release(tmp_path / "b" / "1")
    release(tmp_path / "b" / "2")
    task = pathfinder.Pathfinder("hard_32", 1024)
    for source, found in ((tmp_path / "a", "none"), (tmp_path / "b", str(tmp_path / "b" / "1"))):
        with pytest.raises(UserError) as info:
            task.raw(source, 1)
        assert str(info.value).startswith(
            f"SOURCE={source}: expected one folder pathfinder32/curv_contour_length_14 with "
            f"imgs/ and metadata/ (of lra_release.gz, unpacked), found {found}"
        )
    assert pathfinder.Pathfinder("easy_32", 1024).raw(tmp_path / "a", 1).total == 16
    with pytest.raises(
        UserError, match=r"^pathfinder/short_32 is generated only; leave SOURCE out"
    ):
        pathfinder.Pathfinder("short_32", 1024).raw(tmp_path, 1)


# The contact sheet


def test_a_sheet_shows_every_image_and_its_title(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (11, 32, 32), np.uint8)
    path = tmp_path / "sheet.png"
    sheet.write(path, images, ["a title that is far too long for it", *["x"] * 9, ""])
    with Image.open(path) as image:
        got = np.asarray(image)
    side, width, height = 128, 138, 160
    assert got.shape == (2 * height + 10, 8 * width + 10)
    for i, image in enumerate(images):
        top, left = 10 + i // 8 * height, 10 + i % 8 * width
        np.testing.assert_array_equal(got[top : top + side : 4, left : left + side : 4], image)
        text = got[top + side + 1 : top + side + 22, left : left + width - 10]
        assert (text.min() < 128) == (i < 10)
        assert (got[top + side + 1 : top + side + 22, left + side : left + width] == 255).all()
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.png"]


def test_a_sheet_needs_a_title_for_each_image(tmp_path):
    with pytest.raises(ValueError, match=r"^2 images and 1 titles, expected as many of both$"):
        sheet.write(tmp_path / "x.png", np.zeros((2, 8, 8), np.uint8), ["a"])
