"""Readers of what a user or a stranger may give end in a value or in one line, whatever it is."""

import io
import json

import numpy as np
import PIL.Image
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import ROOT

from lra_fnet import config, tasks
from lra_fnet.data import pixels
from lra_fnet.errors import UserError
from lra_fnet.run import folder as folders
from lra_fnet.run import job as jobs
from lra_fnet.run import result
from lra_fnet.tasks import csv_table, image, listops
from lra_fnet.training import checkpoint

RUN = ROOT / "results/cpu/listops/fnet/seed0"
RESULT = (RUN / "result.json").read_bytes()
CURVE = b"".join((RUN / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:9])
TABLE = b'label,text\nham,"a ""b"", c"\nspam,d\n'
PAIRS = b"0.0\t1\t2\tsome\ttext\n1.0\t3\t4\ta\tb\n"
BATCH = b"".join(bytes([label]) + bytes(3072) for label in range(3))
EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"
BINDINGS = "Run.num_steps=100 MIXERS=(@Fourier,@Attention) Encoder.dtype='bfloat16'"


def png():
    buffer = io.BytesIO()
    PIL.Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


def damaged(content, alphabet=None):
    """The content with a part replaced by others, or any content."""
    anything = st.binary(max_size=24) if alphabet is None else st.text(alphabet, max_size=24)
    places = st.tuples(st.integers(0, len(content)), st.integers(0, 12), anything)
    return anything | places.map(lambda p: content[: p[0]] + p[2] + content[p[0] + p[1] :])


@st.composite
def damaged_json(draw, content):
    """The bytes of a JSON object with one value replaced by another, or damaged bytes."""
    value = json.loads(content)
    name = draw(st.sampled_from(sorted(value)))
    others = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    value[name] = draw(others | st.lists(others, max_size=2) | st.dictionaries(st.text(), others))
    return draw(st.just(json.dumps(value).encode()) | damaged(content))


def in_file(name):
    """Turns a reader of a path into one of a folder and the content of its file."""

    def decorate(read):
        def reader(folder, content):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            return read(folder / name)

        return reader

    return decorate


@in_file("data_batch_1.bin")
def read_batches(path):
    return image.read(path.parent)


@in_file("x.train.tsv")
def read_pairs(path):
    for split in ("eval", "test"):
        path.with_name(f"x.{split}.tsv").write_bytes(PAIRS)
    return list(tasks.make("retrieval", "pairs").raw(path.parent, 1).stream)


@in_file("checkpoints/last.safetensors")
def read_checkpoint(path):
    return checkpoint.load(path.parents[1], "last")


READERS = {
    "own table": (in_file("a.csv")(lambda path: list(csv_table.read(path))), damaged(TABLE), ()),
    "pairs": (read_pairs, damaged(PAIRS), ()),
    "CIFAR-10": (read_batches, damaged(BATCH), ()),
    "picture": (lambda _, content: pixels.read(content, 8, "L"), damaged(png()), (ValueError,)),
    "expression": (
        lambda _, text: listops.evaluate(listops.tokenize(text)),
        damaged(EXPRESSION, "[]MAXINED0129 "),
        (ValueError,),
    ),
    "result": (
        in_file("result.json")(lambda path: result.read(path.parent)),
        damaged_json(RESULT),
        (),
    ),
    "curve": (
        in_file("metrics.jsonl")(lambda path: folders.curve(path.parent)),
        damaged(CURVE),
        (),
    ),
    "begun": (
        in_file("run.json")(lambda path: jobs.read(path.parent)),
        damaged_json(b'{"settings": {}, "resolved": {}, "sha256": ""}'),
        (),
    ),
    "checkpoint": (
        read_checkpoint,
        damaged(safetensors.numpy.save({"a": np.zeros(3)}, {"step": "1", "sha256": "0"})),
        (),
    ),
    "bindings": (
        lambda _, text: [config.one_form(part) for part in config.split_bindings(text)],
        damaged(BINDINGS, "Run.=()[]{}@%/'\"#\\ \n1e"),
        (),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_in_one_line(name, tmp_path_factory):
    read, inputs, documented = READERS[name]

    @settings(
        max_examples=30,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def refuses(content):
        message = ""
        try:
            read(tmp_path_factory.mktemp("given"), content)
        except (UserError, *documented) as error:
            message = str(error) if isinstance(error, UserError) else ""
        assert len(message.splitlines()) <= 1

    refuses()
