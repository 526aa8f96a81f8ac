"""Raw inputs become the values that their task makes of them, or fail with one line."""

import functools
import io
import json
import os
import subprocess
import sys

import jax
import numpy as np
import PIL.Image
import pytest
import scipy.special
from made_runs import Folders, untrained
from paths import EXAMPLES, ROOT

import lra_fnet
from lra_fnet.tasks import image

LISTOPS = (
    "[MAX 2 9 [MIN 4 7 ] 0 ]",
    "7",
    "( ( [SM 1 ) 2 3 4 ] )",
    "[MED 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 ]",  # 17 tokens
)
CLASSES = {  # of the user's own files, which are not there
    "csv": ("Csv.labels=('ham', 'spam')", "Csv.texts=1"),
    "images": ("Images.labels=('circle', 'square')",),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of runs with random parameters by task."""
    root = tmp_path_factory.mktemp("untrained")

    def make(task):
        settings = () if task in ("image", "images") else ("MAX_LEN=16",)
        model = "transformer" if task in ("text", "retrieval") else "fnet"
        return untrained(root, task, model, *settings, *CLASSES.get(task, ()))

    return Folders(make)


@pytest.fixture
def predict(folders, command, monkeypatch, tmp_path):
    """Calls the command on files or standard input; returns exit code, standard error, objects."""
    monkeypatch.chdir(tmp_path)

    def call(task, *files, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code, err, out = command("predict", "--run", folders[task], *files)
        return code, err, [json.loads(line) for line in out.splitlines()]

    return call


def assert_is(line, run, values):
    """Compares a line with the model's output for these values, whose ids are value + 1."""
    shape = (run.task.num_inputs, run.task.max_len)
    ids = np.zeros(shape, np.int32)
    for row, text in zip(ids, values, strict=True):
        kept = [value + 1 for value in text[: run.task.max_len]]
        row[: len(kept)] = kept
    ids = ids[None, 0] if run.task.num_inputs == 1 else ids[None]
    apply = jax.jit(functools.partial(run.model.apply, train=False))
    logits = apply(run.variables, ids, ids > 0)
    want = scipy.special.softmax(np.asarray(logits[0], np.float64))
    np.testing.assert_allclose(line["probabilities"], want, atol=2e-6)
    assert line["label"] == want.argmax()
    assert line["probability"] == max(line["probabilities"])
    assert line["truncated"] == any(len(text) > run.task.max_len for text in values)


def png(pixels, kind="PNG"):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


# Each task


def test_listops_takes_one_expression_per_line(predict, folders, tmp_path):
    names = [*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"]
    name = "a.txt"
    (tmp_path / name).write_bytes("\r\n".join(LISTOPS).encode())
    code, err, lines = predict("listops", name)
    assert (code, err) == (0, "")
    run = lra_fnet.load_run(folders["listops"])
    for number, (line, text) in enumerate(zip(lines, LISTOPS, strict=True), start=1):
        tokens = text.replace("(", "").replace(")", "").split()
        assert_is(line, run, [[names.index(token) for token in tokens]])
        assert line["input"] == f"{name}, line {number}"
        assert line["class"] == str(line["label"])
    assert [line["truncated"] for line in lines] == [False, False, False, True]


def test_text_takes_lines_and_json_objects(predict, folders, tmp_path):
    run = lra_fnet.load_run(folders["text"])
    content = b'"A film," they said\n\t{so} bad \xff\n{"text": "two\\nlines, and long \\u00e9"}\n'
    (tmp_path / "reviews.txt").write_bytes(b"\xef\xbb\xbf" + content)
    texts = [b'"A film," they said', b"{so} bad \xff", "two\nlines, and long é".encode()]
    for files in (["reviews.txt"], []):
        code, err, lines = predict("text", *files, stdin=content)
        assert (code, err, len(lines)) == (0, "", 3)
        for line, text in zip(lines, texts, strict=True):
            assert_is(line, run, [text])
    assert lines[0]["class"] == ("negative", "positive")[lines[0]["label"]]


def test_retrieval_takes_json_lines(predict, folders):
    run = lra_fnet.load_run(folders["retrieval"])
    content = b'{"text1": "one", "text2": "a second that is cut"}\n'
    code, err, lines = predict("retrieval", stdin=content)
    assert (code, err) == (0, "")
    assert_is(lines[0], run, [b"one", b"a second that is cut"])
    assert (lines[0]["truncated"], lines[0]["input"]) == (True, "standard input, line 1")


def test_image_becomes_the_gray_values_of_its_task(predict, folders, tmp_path):
    run = lra_fnet.load_run(folders["image"])
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (32, 32, 3), np.uint8)
    gray = rng.integers(0, 256, (32, 32), np.uint8)
    (tmp_path / "colour.png").write_bytes(png(colours))
    (tmp_path / "gray.PNG").write_bytes(png(gray))
    code, err, lines = predict("image", "colour.png", "gray.PNG")
    assert (code, err) == (0, "")
    luma = image.luma(colours.reshape(1, 1024, 3).transpose(0, 2, 1))[0]  # as rows are made
    for line, values in zip(lines, (luma.reshape(32, 32), gray), strict=True):
        blocks = (values[i : i + 2, j : j + 2] for i in range(0, 32, 2) for j in range(0, 32, 2))
        assert_is(line, run, [[round(block.sum() / 4) for block in blocks]])
    assert lines[0]["class"] == image.CLASSES[lines[0]["label"]]


def test_predict_reads_texts_tables_and_images_of_the_user(predict, folders, tmp_path):
    run = lra_fnet.load_run(folders["csv"])
    (tmp_path / "new.CSV").write_text('text,label\n"two\nlines, one",?\nsome words,?\n')
    (tmp_path / "note").write_text("some words\n", "utf-8-sig")
    code, err, lines = predict("csv", "new.CSV", "note")
    assert (code, err) == (0, "")
    places = ["new.CSV, line 2", "new.CSV, line 4", "note, line 1"]
    assert [line["input"] for line in lines] == places
    for line, text in zip(lines, [b"two\nlines, one", *[b"some words"] * 2], strict=True):
        assert_is(line, run, [text])
    assert lines[0]["class"] == ("ham", "spam")[lines[0]["label"]]
    (tmp_path / "a.png").write_bytes(png(np.full((40, 50), 7, np.uint8)))
    (line,) = predict("images", "a.png")[2]
    assert_is(line, lra_fnet.load_run(folders["images"]), [[7] * 1024])


# Mistakes


@pytest.mark.parametrize(
    ("task", "stdin"),
    [
        ("listops", "[MAX 1 2"),
        ("listops", '{"expression": "1"}'),
        ("text", "   "),
        ("text", '{"text":' * 50_000),
        ("retrieval", '{"text": "a"}'),
    ],
)
def test_bad_line_is_named_after_the_answers_to_the_lines_before_it(predict, task, stdin):
    good = '{"text1": "1", "text2": "1"}' if task == "retrieval" else "1"
    code, err, lines = predict(task, stdin=f"{good}\n{good}\n{stdin}\n{good}\n".encode())
    assert code == 2
    assert err.startswith("lra-fnet: standard input, line 3: ")
    assert err.count("\n") == 1
    assert [line["input"] for line in lines] == [f"standard input, line {i}" for i in (1, 2)]


@pytest.mark.parametrize(
    ("task", "file", "words"),
    [
        ("text", "none.txt", "none.txt cannot be read"),
        ("text", ".", ". cannot be read"),
        ("csv", "utf16.txt", "utf16.txt"),
        ("retrieval", "a.txt", "a.txt, line 1"),
        ("image", "a.txt", "a.txt: expected a PNG"),
    ],
)
def test_bad_file_is_named(predict, tmp_path, task, file, words):
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "utf16.txt").write_text("words", "utf-16")
    code, err, lines = predict(task, file)
    assert (code, lines) == (2, [])
    assert words in err
    assert err.count("\n") == 1


# As a program


def test_answers_come_batch_by_batch_and_a_closed_pipe_ends_quietly(folders):
    process = subprocess.Popen(
        [sys.executable, "-m", "lra_fnet", "predict", "--run", folders["listops"]],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(b"[MAX 1 2 ]\n" * 4)  # Run.eval_batch_size
    process.stdin.flush()  # and the stream stays open
    lines = [json.loads(process.stdout.readline()) for _ in range(4)]
    assert [line["input"][-1] for line in lines] == ["1", "2", "3", "4"]
    process.stdout.close()
    process.stdin.write(b"[MAX 1 2 ]\n" * 4)
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.slow
def test_example_uses_a_run(folders):
    command = [sys.executable, EXAMPLES / "use_trained.py", folders["listops"], *LISTOPS[:2]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = done.stdout.splitlines()
    assert lines[0] == "fnet on listops: step 900, best on validation"
    run = lra_fnet.load_run(folders["listops"])
    best = run.predict(LISTOPS[:2]).argmax(axis=1)
    for line, text, label in zip(lines[1:], LISTOPS[:2], best, strict=False):
        assert line.startswith(f"{text}: {label} 0.")
    assert lines[3].startswith("cosines of the vectors: [[1.0, ")
