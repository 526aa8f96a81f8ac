"""The examples for users, run as a user runs them, on files made here."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import EXAMPLES, OUTSIDE, ROOT
from PIL import Image, ImageDraw

from lra_fnet import config, tasks
from lra_fnet.testing import check_mixer, check_task

TINY = [
    *("Encoder.dim=8", "Encoder.qkv_dim=8", "Encoder.mlp_dim=8", "Head.mlp_dim=8"),
    *("Encoder.num_layers=1", "Run.num_steps=4", "Run.eval_every=4", "Run.batch_size=4"),
]


@pytest.fixture
def go(command):
    """Calls `lra-fnet` with the examples imported."""

    def call(verb, *words, imports=("my_mixer", "my_task")):
        modules = [f"--import={EXAMPLES / name}.py" for name in imports]
        return command(verb, *modules, f"--gin-dir={EXAMPLES / 'gin'}", *words)

    return call


def example(name):
    """Imports an example as `--import` does."""
    config.import_modules([str(EXAMPLES / f"{name}.py")])
    return sys.modules[name]


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def texts(count=120):
    """Lines of a generated set, in which spam is in capital letters."""
    rng = np.random.default_rng(0)
    for i in range(count):
        text = f"{i} " + "".join(rng.choice([*"abc "], rng.integers(3, 30)))
        yield f"spam\t{text.upper()}!" if i % 3 == 0 else f"ham\t{text}"


# A mixer


def test_my_mixer_is_short():
    assert len((EXAMPLES / "my_mixer.py").read_text().splitlines()) < 40


def test_my_mixer_trains_with_the_command_of_the_readme(go, tmp_path):
    which = ["--task", "parity", "--model", "my_mixer", "--preset", "cpu"]
    code, err, out = go("train", *which, f"--gin-dir={OUTSIDE}", imports=["my_mixer"])
    assert code == 0, err
    assert "run folder: runs/cpu/parity/my_mixer/seed0" in out
    result = result_of(tmp_path / "runs/cpu/parity/my_mixer/seed0")
    assert result["state"] == "complete"
    assert result["uses_mask"]
    assert "MyMixer.width = 7" in result["config"]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_my_mixer_is_a_convolution_that_ignores_padding(width):
    module = example("my_mixer").MyMixer(
        dim=3,
        num_heads=1,
        qkv_dim=3,
        max_len=6,
        layer=0,
        num_layers=1,
        dropout=0.0,
        width=width,
    )
    rng = np.random.default_rng(0)
    taps, x = (rng.normal(size=shape).astype(np.float32) for shape in ((width, 3), (2, 6, 3)))
    mask = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0]], bool)
    want = np.zeros(x.shape)
    for b, n, d in np.ndindex(x.shape):
        for i in range(width):
            seen = n + i - width // 2
            if 0 <= seen < 6 and mask[b, seen]:
                want[b, n, d] += taps[i, d] * x[b, seen, d]
    mix = jax.jit(lambda x: module.apply({"params": {"taps": taps}}, x, mask, train=False))
    np.testing.assert_allclose(mix(x), want, atol=1e-6)
    assert (mix(np.where(mask[..., None], x, 9)) == mix(x)).all()
    x = jnp.asarray(x, jnp.bfloat16)
    assert mix(x).dtype == jnp.bfloat16


def test_my_mixer_keeps_the_contract():
    check_mixer(example("my_mixer").MyMixer, width=3)


# Tasks


def test_my_texts_are_prepared_from_any_tsv_and_trained(go, tmp_path):
    source = tmp_path / "mail"
    source.mkdir()
    (source / "all.tsv").write_text("".join(f"{line}\n" for line in texts()))
    code, err, out = go("data", "--task", "my_texts", "--source", source)
    assert code == 0, err
    assert "my_texts/full from mail, every record verified" in out
    which = ["--task", "my_texts", "--model", "my_mixer", "--preset", "cpu", "--name", "tiny"]
    code, err, _ = go("train", *which, "--set=MAX_LEN=32", *(f"--set={text}" for text in TINY))
    assert code == 0, err
    result = result_of(tmp_path / "runs/cpu/my_texts/my_mixer+tiny/seed0")
    assert result["state"] == "complete"
    assert result["uses_mask"]
    check_task(tasks.make("my_texts"), source)
    prepared = tasks.make("my_texts").open("data")
    assert sum(prepared.rows.values()) == 120
    assert result["test"]["best"]["count"] == prepared.rows["test"]
    kept = set()
    for split in prepared.rows:
        rows = prepared.arrays(split)
        for values, length, label in zip(rows.values, rows.lengths, rows.labels, strict=True):
            kept.add(f"{('ham', 'spam')[label]}\t{bytes(values[:length]).decode()}")
    assert kept == set(texts())


def test_named_splits_are_kept_and_equal_texts_share_a_split(tmp_path):
    task = example("my_task").MyTexts(config="full", max_len=8)
    lines = list(texts(60))
    named, unnamed = tmp_path / "named", tmp_path / "unnamed"
    for split, part in zip(tasks.SPLITS, (lines[:20], lines[20:40], lines[40:]), strict=True):
        (named / split).mkdir(parents=True)
        (named / split / "part.tsv").write_text("\n".join(part))
        (named / f"{split}.tsv").write_bytes("\r\n".join(part).encode())
    rows = list(task.raw(named, 1).rows())
    assert [split for split, _ in rows] == [s for s in sorted(tasks.SPLITS) for _ in range(40)]
    assert len({values.tobytes() for _, (values, _) in rows}) == 60  # without ends of lines
    unnamed.mkdir()
    (unnamed / "a.tsv").write_text("\n".join(lines))
    (unnamed / "b.tsv").write_text("\n".join(lines[::-1]))
    rows = list(task.raw(unnamed, 1).rows())
    sides = {(split, values.tobytes()) for split, (values, _) in rows}
    assert len(rows) == 2 * len(sides) == 120
    counts = {split: sum(side == split for side, _ in sides) for split in tasks.SPLITS}
    assert counts["train"] > 40
    assert min(counts.values()) > 0


def test_my_images_are_prepared_from_folders_of_classes_and_trained(go, tmp_path):
    source = tmp_path / "shapes"
    rng = np.random.default_rng(0)
    for label in ("circle", "square"):
        (source / label).mkdir(parents=True)
        for i in range(30):
            image = Image.new(("RGB", "L")[i % 2], (40, 36))
            x, y = rng.integers(0, 20, 2).tolist()
            draw = ImageDraw.Draw(image)
            shape = draw.ellipse if label == "circle" else draw.rectangle
            shape((x, y, x + 14, y + 14), fill="white")
            image.save(source / label / f"{i}.{('png', 'JPG')[i % 2]}")
    which = ["--task", "my_images", "--model", "my_mixer", "--preset", "cpu", "--name", "tiny"]
    code, err, _ = go("train", *which, "--source", source, *(f"--set={text}" for text in TINY))
    assert code == 0, err
    assert result_of(tmp_path / "runs/cpu/my_images/my_mixer+tiny/seed0")["state"] == "complete"
    check_task(tasks.make("my_images"), source)
    prepared = tasks.make("my_images").open("data")
    assert sum(prepared.rows.values()) == 60
    assert sum(np.array(facts["label_counts"]) for facts in prepared.splits.values()).tolist() == [
        30,
        30,
    ]
    arrays = prepared.arrays("train")
    assert (arrays.lengths == 32 * 32).all()
    white = (arrays.values > 200).mean(axis=1)
    assert white[arrays.labels == 1].mean() > white[arrays.labels == 0].mean() > 0.05
    code, err, _ = go("data", "--task", "my_images")
    assert "examples: data/lra_my_images/full/contact_sheet.png" in err


@pytest.mark.parametrize(
    ("task", "name", "content", "message"),
    [
        ("my_texts", "a.tsv", b"ham\thello\nspan\thi\n", "a.tsv, line 2: expected ham or spam, a"),
        ("my_texts", "a.tsv", b"ham\n", "a.tsv, line 1: expected ham or spam, a tab and a text"),
        ("my_texts", "train.tsv", b"ham\thi\n", "for some splits but none for test, validation"),
        ("my_texts", "a.csv", b"ham,hi\n", "has no .tsv file: name their folder with --source"),
        ("my_images", "star/1.png", b"", "1.png: expected a folder named circle or square, got"),
        ("my_images", "circle/1.png", b"no", "1.png: expected an image, got"),
    ],
)
def test_a_mistake_in_the_source_fails_with_one_line(go, tmp_path, task, name, content, message):
    path = tmp_path / "source" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    code, err, _ = go("data", "--task", task, "--source", tmp_path / "source")
    assert code == 2
    assert message in err.splitlines()[-1]


def test_a_task_without_a_source_says_what_it_needs(go):
    code, err, _ = go("data", "--task", "my_texts")
    assert code == 2
    assert "--source must be a folder with .tsv files, got None" in err


# Python and the README


@pytest.mark.slow
def test_quick_start_reduces_the_loss(tmp_path):
    command = [sys.executable, EXAMPLES / "quick_start.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line]
    assert len(losses) == 10
    assert losses[-1] < losses[0] - 0.1
    assert "validation: " in done.stdout


@pytest.mark.parametrize("name", ["my_mixer.py", "gin/models/my_mixer.gin"])
def test_the_readme_shows_the_example_as_it_is(name):
    assert (EXAMPLES / name).read_text() in (ROOT / "README.md").read_text()


def test_a_users_task_needs_at_most_ten_lines_of_gin():
    for task in ("my_texts", "my_images"):
        texts = [(EXAMPLES / f"gin/{d}/{task}.gin").read_text() for d in ("tasks", "presets/cpu")]
        lines = "".join(texts).splitlines()
        assert len([line for line in lines if line and not line.startswith("#")]) <= 10
