"""The examples for users, run as a user runs them, on files made here."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_runs import TINY
from paths import EXAMPLES, ROOT

from lra_fnet import config, experiment, tasks
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.testing import check_mixer, check_task

LETTERS = np.frombuffer(b"ACGT", np.uint8)


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


def sequences(count=120):
    """Lines of a generated set, in which introns have no A."""
    rng = np.random.default_rng(0)
    for i in range(count):
        letters = "".join(rng.choice([*"ACGT"], 8 + i % 30))
        yield f"intron\t{letters.replace('A', 'C')}" if i % 3 == 0 else f"exon\t{letters}"


# A mixer


@pytest.mark.parametrize("width", [1, 2, 5])
def test_my_mixer_is_a_convolution_that_ignores_padding(width):
    sizes = {"dim": 3, "num_heads": 1, "qkv_dim": 3, "max_len": 6, "layer": 0, "num_layers": 1}
    module = example("my_mixer").MyMixer(**sizes, dropout=0.0, width=width)
    rng = np.random.default_rng(0)
    taps, x = (rng.normal(size=shape).astype(np.float32) for shape in ((width, 3), (2, 6, 3)))
    mask = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0]], bool)
    want = np.zeros(x.shape)
    for b, n, d in np.ndindex(x.shape):
        for i in range(width):
            seen = n + i - (width - 1) // 2
            if 0 <= seen < 6 and mask[b, seen]:
                want[b, n, d] += taps[i, d] * x[b, seen, d]
    params = {"Conv_0": {"kernel": taps[:, None]}}
    mix = jax.jit(lambda x: module.apply({"params": params}, x, mask, train=False))
    np.testing.assert_allclose(mix(x), want, atol=1e-6)
    assert (mix(np.where(mask[..., None], x, 9)) == mix(x)).all()
    x = jnp.asarray(x, jnp.bfloat16)
    assert mix(x).dtype == jnp.bfloat16


def test_my_mixer_keeps_the_contract():
    check_mixer(example("my_mixer").MyMixer, width=3)


# A task


def test_my_task_is_prepared_and_trained(go, tmp_path):
    source = tmp_path / "genes.tsv"
    source.write_text("".join(f"{line}\n" for line in sequences()))
    which = ["--task", "my_task", "--model", "my_mixer", "--preset", "cpu", "--name", "tiny"]
    settings = " ".join([*TINY, "MAX_LEN=32", "Run.num_steps=4", "Run.batch_size=4"])
    code, err, _ = go("train", *which, "--source", source, "--gin", settings)
    assert code == 0, err
    result = disk.read_json(tmp_path / "runs/cpu/my_task/my_mixer+tiny/seed0/result.json")
    assert (result["state"], result["uses_mask"]) == ("complete", True)
    assert "MyMixer.width = 7" in result["config"]
    decode = LETTERS.__getitem__
    check_task(tasks.make("my_task"), source, lambda values: decode(values).tobytes())
    prepared = tasks.open(tasks.make("my_task"), "data")
    assert sum(prepared.rows.values()) == 120
    kept = set()
    for split in prepared.rows:
        rows = prepared.arrays(split)
        for values, length, label in zip(rows.values, rows.lengths, rows.labels, strict=True):
            kept.add(f"{('exon', 'intron')[label]}\t{LETTERS[values[:length]].tobytes().decode()}")
    assert kept == set(sequences())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"exon\tACGT\nintrn\tACGT\n",
            "my.tsv, line 2: expected exon or intron before a tab, got 'intrn': correct it",
        ),
        (b"exon\tAUG\n", "my.tsv, line 1: expected letters ACGT, got 'AUG': correct it"),
        (None, "--source must be a file with lines of label<TAB>ACGT..., got none"),
    ],
)
def test_a_mistake_in_the_source_fails_with_one_line(go, tmp_path, content, message):
    path = tmp_path / "my.tsv"
    path.write_bytes(content or b"")
    code, err, _ = go("data", "--task", "my_task", *(["--source", path] if content else []))
    assert code == 2
    assert message in err.splitlines()[-1]


# Python and the README


@pytest.mark.slow
def test_quick_start_reduces_the_loss(tmp_path):
    """Its 100 steps take longer than the compilation, so XLA optimises them."""
    command = [sys.executable, EXAMPLES / "quick_start.py"]
    given = os.environ | {"XLA_FLAGS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line]
    assert len(losses) == 10
    assert losses[-1] < losses[0] - 0.1
    assert "validation: " in done.stdout


def test_layers_of_your_own_are_built_with_the_model_that_the_page_names():
    text = (ROOT / "docs/using.md").read_text()
    given = re.search(r"MODEL=(\w+) PRESET=cpu GIN='(MIXERS=[^']+)'", text)
    built = experiment.load("listops", given[1], "cpu", config.split_bindings(given[2]))
    assert [type(m).__name__ for m in built.model.encoder.mixers] == ["Fourier", "Attention"]
    with pytest.raises(UserError, match=r"Fourier.*method"):
        experiment.load("listops", "linear", "cpu", config.split_bindings(given[2]))


@pytest.mark.parametrize("name", ["my_mixer.py", "gin/models/my_mixer.gin"])
def test_the_readme_shows_the_example_as_it_is(name):
    assert (EXAMPLES / name).read_text() in (ROOT / "README.md").read_text()


def test_a_users_task_needs_at_most_six_lines_of_gin():
    texts = [(EXAMPLES / f"gin/{d}/my_task.gin").read_text() for d in ("tasks", "presets/cpu")]
    lines = "".join(texts).splitlines()
    assert len([line for line in lines if line and not line.startswith("#")]) <= 6
