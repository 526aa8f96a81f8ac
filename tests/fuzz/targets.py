"""Readers of what a user or a stranger may give, each with inputs that are nearly right.

A target is a function of an empty folder and an input. It passes if it ends normally, in a
UserError of one line, or in an exception that the reader's docstring names; `guard` holds it to
that. Sizes of data sets are replaced by tiny ones, so that whole files are read.
"""

import contextlib
import dataclasses
import functools
import inspect
import io
import json
import os
import struct
import sys
import tarfile
import types
import zipfile
import zlib
from pathlib import Path
from unittest import mock

import guard
import made_results
import numpy as np
import PIL.Image
from hypothesis import strategies as st
from inputs import damaged, json_file, lines_file, name_on_disk, names

from lra_fnet import config, experiment, intervals, tasks
from lra_fnet.models import fastest
from lra_fnet.run import job as jobs
from lra_fnet.run import predict, record, run_files, trained
from lra_fnet.sweep import plan
from lra_fnet.tasks import image, listops, pathfinder, pixels, retrieval, sources, store, text
from lra_fnet.training import logs

# report has a function `sources`
from lra_fnet.report import sources as report_sources  # isort: skip


@dataclasses.dataclass(frozen=True)
class Target:
    """A reader, and the inputs to give it."""

    name: str
    inputs: st.SearchStrategy
    read: object  # (folder, input) -> None
    documented: tuple[type[Exception], ...] = ()

    def check(self, given) -> None:
        """Raises if the reader does anything with an input that is not documented."""
        silent = contextlib.redirect_stderr(io.StringIO())
        with guard.folder() as place, guard.watched(place, *self.documented), silent:
            self.read(place, given)


TARGETS: dict[str, Target] = {}


def target(inputs, *documented):
    """Registers a function (folder, input) as a target."""

    def register(read):
        TARGETS[read.__name__] = Target(read.__name__, inputs, read, documented)
        return read

    return register


def write(place: Path, files: dict[str, bytes]) -> Path:
    """Writes files, except where a file of the same path as a folder is in the way."""
    for name, content in files.items():
        path = place / name
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return place


def pack(path: Path, files: dict[str, bytes], mode: str) -> Path:
    """Writes the same files as an archive."""
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def packed_or_not(place: Path, files: dict[str, bytes], mode: str | None) -> Path:
    """Writes files to a folder, or to an archive if there is a mode."""
    source = place / "source"
    source.mkdir()
    return write(source, files) if mode is None else pack(source / "a.tar", files, mode)


MODES = st.sampled_from([None, "w", "w:gz"])


# Raw data


@functools.cache
def expressions():
    """Returns ListOps expressions, most of them whole."""
    digits = st.integers(0, 9).map(str)
    operators = st.sampled_from(["[MIN", "[MAX", "[MED", "[SM"])
    return st.recursive(
        digits,
        lambda inner: st.builds(
            lambda operator, arguments: " ".join([operator, *arguments, "]"]),
            operators,
            st.lists(inner, min_size=0, max_size=4),
        ),
        max_leaves=8,
    )


@st.composite
def listops_lines(draw):
    """The bytes of a file of ListOps: right rows with one that may be wrong, or damaged bytes."""
    rows = []
    for _ in range(2):
        expression = draw(expressions())
        label = draw(st.integers(0, 9))
        with contextlib.suppress(ValueError):
            label = listops.evaluate(listops.tokenize(expression))
        if draw(st.integers(0, 9)) == 0:
            label = draw(st.integers(-1, 10))
        rows.append(f"{draw(st.sampled_from(['', '( ']))}{expression}\t{label}")
    end = draw(st.sampled_from(["\n", "\r\n"]))
    content = end.join(["Source\tTarget", *rows, ""]).encode()
    return draw(st.just(content) | damaged(content))


@target(st.tuples(listops_lines(), MODES))
def listops_tsv(place, given):
    content, mode = given
    good = b"Source\tTarget\n1\t1\n"
    files = {f"basic_{name}.tsv": good for name in ("val", "test")} | {"basic_train.tsv": content}
    sets = {"full": listops.Set(1, 99, (2, 1, 1))}
    with mock.patch.object(listops, "SETS", sets):
        raw = tasks.make("listops", "full").raw(packed_or_not(place, files, mode), 1)
        rows = list(raw.rows())
    assert len(rows) == 4
    for _, (values, label) in rows:
        assert listops.evaluate(values) == label


@st.composite
def reviews(draw):
    """Files of Text: a review in each folder, with names and texts that may be wrong."""
    files = {}
    for folder, rating in (("pos", 7), ("neg", 4)):
        for split in ("train", "test"):
            for number in range(2):
                path = f"aclImdb/{split}/{folder}/{number}_{rating}.txt"
                if draw(st.integers(0, 7)) == 0:
                    path = draw(damaged(path.encode())).decode(errors="replace")
                content = draw(st.binary(max_size=9)) + bytes([48 + len(files)])
                files[path] = draw(st.just(content) | damaged(content))
    usable = (n for n in files if n.isprintable() and ".." not in n and len(n.encode()) < 200)
    return {name: files[name] for name in usable if name[:1] not in ("", "/")}


@target(st.tuples(reviews(), MODES))
def text_reviews(place, given):
    files, mode = given
    source = packed_or_not(place, files, mode)
    with (
        mock.patch.multiple(text, REVIEWS=2, HELD_OUT=1),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        rows = list(tasks.make("text", "full").raw(source, 1).rows())
    assert len(rows) == 8


@st.composite
def pairs(draw):
    """The bytes of a file of Retrieval."""
    row = draw(st.sampled_from([b"0.0\ta\tb\tsome\ttext", b"1\ta\tb\t\\n\r x\t\xff"]))
    content = row + draw(st.sampled_from([b"\n", b"\r\n", b""]))
    return draw(st.just(content) | damaged(content * draw(st.integers(1, 3))))


@target(st.tuples(pairs(), MODES, name_on_disk))
def retrieval_tsv(place, given):
    content, mode, name = given
    good = b"1.0\t1\t2\ta\tb\n"
    files = {f"{name[:6]}.{split}.tsv": good for split in ("eval", "test")}
    files["x.train.tsv"] = content
    source = packed_or_not(place, files, mode)
    for _, ((first, second), label) in retrieval.read_pairs(source, "pairs"):
        assert len(first), len(second)
        assert label in (0, 1)


@functools.cache
def batch():
    """Returns a batch of ten images of CIFAR-10, one of each class."""
    rng = np.random.default_rng(0)
    return b"".join(bytes([label]) + rng.bytes(3072) for label in range(10))


@st.composite
def batches(draw):
    """Files of CIFAR-10 in batches, one of which may be damaged, missing or doubled."""
    files = {f"cifar/{name}": batch() for name in image.TRAIN + image.TEST}
    match draw(st.integers(0, 5)):
        case 0:
            del files[draw(st.sampled_from(sorted(files)))]
        case 1:
            files[f"again/{draw(st.sampled_from(image.TRAIN))}"] = batch()
        case 2:
            names_of = {"data_batch_1": b"\x80\x02}q\x00."}
            files = names_of if draw(st.booleans()) else files | names_of
        case _:
            files[draw(st.sampled_from(sorted(files)))] = draw(damaged(batch()))
    return files


@target(st.tuples(batches(), MODES))
def cifar_batches(place, given):
    files, mode = given
    source = packed_or_not(place, files, mode)
    with mock.patch.object(image, "BATCH_ROWS", 10):
        rows, test, _ = image.read(source)
    assert len(rows.labels) == 50
    assert len(test.labels) == 10


def picture(side: int, mode: str = "L", form: str = "PNG") -> bytes:
    """Returns a small image file."""
    values = np.arange(side * side * 4, dtype=np.uint32).reshape(side, side, 4) % 251
    buffer = io.BytesIO()
    PIL.Image.fromarray(values.astype(np.uint8), "RGBA").convert(mode).save(buffer, form)
    return buffer.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    """Returns a chunk of a PNG file with a right checksum."""
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


@st.composite
def pictures(draw):
    """The bytes of an image: nearly a PNG or JPEG, or a PNG with chunks of any content."""
    mode, form = draw(st.sampled_from(["L", "RGB", "P", "1", "CMYK"])), "PNG"
    if mode == "CMYK" or (mode != "P" and draw(st.integers(0, 3)) == 0):
        form = "JPEG"
    content = picture(draw(st.sampled_from([32, 32, 8, 1])), mode, form)
    if form == "PNG" and draw(st.booleans()):
        sizes = st.sampled_from([1, 32, 64, 2**16, 2**31 - 1, 0])
        head = draw(st.tuples(sizes, sizes)) + draw(st.tuples(*[st.integers(0, 16)] * 5))
        head = struct.pack(">IIBBBBB", *head)
        extra = chunk(
            draw(st.sampled_from([b"iCCP", b"tRNS", b"PLTE", b"zTXt", b"iTXt", b"eXIf", b"acTL"])),
            draw(st.binary(max_size=40)) + draw(st.sampled_from([b"", b"\0\0" + bytes(9)])),
        )
        data = zlib.compress(draw(st.binary(max_size=64)) * 40)
        content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
        content += extra * draw(st.integers(0, 2)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return draw(st.just(content) | damaged(content))


@target(st.tuples(pictures(), st.sampled_from(["L", "RGB"]), st.booleans()), ValueError)
def picture_file(place, given):
    content, mode, resize = given
    values = pixels.read(content, 32, mode, resize=resize)
    assert values.shape[:2] == (32, 32)
    assert values.dtype == np.uint8


@st.composite
def releases(draw):
    """Files of LRA's Pathfinder: ten images and their metadata, which may be damaged."""
    root = "pathfinder32/curv_baseline"
    rows = [f"imgs/0 sample_{i}.png {i} {i % 2} 1 2" for i in range(12)]
    images = {f"{root}/imgs/0/sample_{i}.png": picture(32) for i in range(12)}
    listed = "\n".join(row.replace("/0 ", "/0 ") for row in rows).encode()
    if draw(st.booleans()):
        cells = [row.split() for row in rows]
        buffer = io.BytesIO()
        np.save(buffer, np.array(cells))
        listed = buffer.getvalue()
    suffix = draw(st.sampled_from(["npy", "txt"]))
    files = {f"{root}/metadata/0.{suffix}": draw(st.just(listed) | damaged(listed)), **images}
    if draw(st.booleans()):
        files[f"{root}/imgs/0/sample_{draw(st.integers(0, 11))}.png"] = draw(pictures())
    if draw(st.integers(0, 5)) == 0:
        files[f"{root}/metadata/{draw(name_on_disk)}.txt"] = draw(st.binary(max_size=20))
    if draw(st.integers(0, 9)) == 0:
        files[f"again/{root}/metadata/0.txt"] = b""
    return files


@target(releases())
def pathfinder_release(place, given):
    source = packed_or_not(place, given, None)
    raw = pathfinder.read_official("pathfinder", "easy_32", source)
    for _, (values, label) in raw.rows():
        assert values.shape == (1024,)
        assert label in (0, 1)


TYPES = (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"x", b"L", b"K", b"S", b"g", b"V")


@st.composite
def archives(draw):
    """The bytes of an archive: hostile members, damaged bytes, other formats."""
    buffer = io.BytesIO()
    if draw(st.integers(0, 9)) == 0:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a" + draw(names), draw(st.binary(max_size=40)))  # never empty
        return buffer.getvalue()
    mode = draw(st.sampled_from(["w", "w:gz", "w:bz2", "w:xz"]))
    form = draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]))
    hostile = ["../up", "/tmp/root", "a/../../b", "C:\\x", "\\\\x", "a\nb", "." * 300, "", "~/x"]
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as archive:
        for _ in range(draw(st.integers(0, 3))):
            name = draw(st.sampled_from(["a.txt", "b/c.txt", *hostile]) | names)
            member = tarfile.TarInfo(name.replace("\0", ""))
            content = draw(st.binary(max_size=600))
            member.type = draw(st.sampled_from((tarfile.REGTYPE,) * 9 + TYPES))
            member.linkname = draw(
                st.sampled_from(["", "a.txt", "../../etc/passwd", "/etc/passwd"])
            )
            member.size = len(content) if member.isreg() else draw(st.sampled_from([0, 0, 512]))
            if form == tarfile.PAX_FORMAT and draw(st.integers(0, 3)) == 0:
                keys = ["size", "path", "GNU.sparse.major", "GNU.sparse.map", "GNU.sparse.size"]
                texts = st.sampled_from(["1", "-1", "99999999999", "0,x", "../up", "1e3", ""])
                member.pax_headers = {draw(st.sampled_from(keys)): draw(texts)}
            with contextlib.suppress(ValueError, OSError):  # it cannot be written either
                archive.addfile(member, io.BytesIO(content))
    content = buffer.getvalue()
    return draw(st.just(content) | damaged(content))


@target(archives() | st.binary(max_size=1500))
def archive(place, given):
    path = place / "raw.tar"
    path.write_bytes(given)
    for file in sources.files(path):
        assert not file.path.is_absolute()
        assert ".." not in file.path.parts
        file.read(2**20)


# Files of runs


RESULT = made_results.scored("fnet", 0)
RUN = {
    **{"task": "listops", "model": "fnet", "preset": "cpu", "variant": None, "seed": 0},
    **{"overrides": [], "imports": [], "gin_dirs": [], "data": "data", "source": None},
    **{"test": True, "fit": False},
}
CURVE = [
    {"kind": "train", "step": 10, "loss": 2.0, "accuracy": 0.1},
    {"kind": "validation", "step": 10, "loss": 2.0, "accuracy": 0.2},
]
READINGS = [
    {"run": "cpu/listops/fnet/seed0", "time": "2026-01-01", "kind": kind, "state": "scored"}
    for kind in ("best", "last")
]
PLACE = "runs/cpu/listops/fnet/seed0"


@target(json_file(RESULT))
def result_json(place, given):
    write(place, {f"{PLACE}/result.json": given})
    found = record.read(place / PLACE)
    assert found is not None
    for split in ("validation", "test"):
        for checkpoint in ("best", "last"):
            found.accuracy(split, checkpoint)
            found.right(split, checkpoint)
    assert found.provenance


@target(json_file(RUN))
def run_json(place, given):
    write(place, {f"{PLACE}/run.json": given})
    job, begun = jobs.read_job(place / PLACE), run_files.read_begun(place / PLACE)
    assert job is not None
    assert job.command()
    assert job.folder
    assert begun is not None
    assert record.folder_parts(begun)


@target(lines_file(CURVE))
def metrics_jsonl(place, given):
    write(place, {f"{PLACE}/metrics.jsonl": given})
    curve = run_files.curve(place / PLACE)
    assert curve.step >= 0 or curve.loss or curve.validation


@target(st.tuples(lines_file(CURVE), st.integers(0, 20)))
def metrics_of_a_resumed_run(place, given):
    content, step = given
    write(place, {f"{PLACE}/metrics.jsonl": content})
    more = len(inspect.signature(logs.metrics).parameters) - 2  # a hash of the lines
    with logs.metrics(place / PLACE, step, *[""] * more) as log:
        log("train", step + 1, {"loss": 1.0})
    assert run_files.curve(place / PLACE).step >= step + 1


@target(lines_file(READINGS))
def test_log_jsonl(place, given):
    made_results.put(place / "runs", RESULT)
    write(place, {"runs/test_log.jsonl": given})
    assert len(report_sources.Sources([place / "runs"]).runs) == 1


SWEEP = {
    **{"schema": 1, "task": "listops", "models": ["fnet"], "preset": "cpu", "seeds": 1},
    **{"axes": {"Encoder.num_layers": [1, 2]}, "axes_python": "{'Encoder.num_layers': [1, 2]}"},
    **{"overrides": [], "sampler": "grid", "trials": 0, "prune": False, "name": "s"},
    **{"imports": [], "gin_dirs": [], "data": "data", "source": None, "created": "2026-01-01"},
    "commit": None,
}
SELECTED = [
    {
        **{"task": "listops", "model": "fnet", "preset": "cpu", "overrides": [], "seeds": [0]},
        **{"validation": 0.5, "folders": ["cpu/listops/fnet/seed0"]},
    }
]
FILES = {
    "runs/sweeps/s/sweep.json": SWEEP,
    "runs/sweeps/s/trials.json": [made_results.a_trial(0)],
    "runs/sweeps/s/selected.json": SELECTED,
    "runs/benchmark/b/benchmark.json": [made_results.a_measured_cell("fnet", 64, [1.0])],
    f"{PLACE}/attention_span.json": made_results.a_span(1.0, 2.0),
    f"{PLACE}/result.json": RESULT,
}


@target(
    st.sampled_from(sorted(FILES)).flatmap(lambda n: st.tuples(st.just(n), json_file(FILES[n])))
)
def files_of_a_report(place, given):
    name, content = given
    good = {path: json.dumps(value).encode() for path, value in FILES.items()}
    write(place, good | {name: content})
    report_sources.Sources([place / "runs"])


@target(json_file(SWEEP))
def sweep_json(place, given):
    write(place, {"runs/sweeps/s/sweep.json": given})
    plan.load(place / "runs", "s").again()


@target(json_file({"group 8 on x": {"a": 1.0, "b": 2.0}}))
def choices_json(place, given):
    write(place, {"lra-fnet/choices.json": given})
    candidates, times = (("a", abs), ("b", abs)), {"a": 1.0, "b": 2.0}
    fastest._kept.cache_clear()
    with (
        mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(place)}),
        mock.patch.object(fastest, "_measure", return_value=times),
    ):
        for key in ("group 8 on x", "another"):
            assert fastest._kept(key, candidates, (8,), "a").name in ("a", "b")


LENGTHS = {"min": 1, "p10": 1, "p50": 1, "p90": 1, "max": 1, "mean": 1.0}
FACTS = {"rows": 1, "label_counts": [1, 0], "lengths": LENGTHS, "sha256": "0" * 64}
FINGERPRINT = {
    **{"schema": 1, "task": "listops", "config": "short_128", "version": "1.0.0"},
    **{"source": "generator", "details": {}, "files": {"a": 1}},
    "splits": dict.fromkeys(store.SPLITS, FACTS),
}
FINGERPRINT["fingerprint"] = store.combine(FINGERPRINT["splits"])


@target(json_file(FINGERPRINT))
def fingerprint_json(place, given):
    task = tasks.make("listops", "short_128")
    place = task.folder(place)
    write(place, {"fingerprint.json": given, "a": b"1"})
    prepared = task.open(place.parents[2])
    assert prepared.rows
    assert prepared.floor


EXPORT = {
    **{"format": "lra-fnet 1", "checkpoint": "best", "step": 900, "imports": []},
    **{"result": RESULT, "parameters_sha256": "0" * 64, "class_names": ["0"]},
}


@target(json_file(EXPORT))
def export_json(place, given):
    write(place, {"config.json": given, "model.safetensors": b"\0" * 9})
    trained.load_run(place)


@target(st.tuples(st.text(max_size=40) | st.binary(max_size=40).map(str), st.integers(-1, 2**40)))
def correct_bits(place, given):
    encoded, count = given
    with contextlib.suppress(ValueError):
        intervals.bits({"correct": 1, "count": count, "correct_bits": encoded})


# What a user types


def typed():
    """Returns texts that look like values of gin."""
    alphabet = "019.-+e_xabN()[]{}'\",:%@/\\ \n\t=#\0é\u2028"
    words = ["None", "True", "1e999", "-0", "@Encoder", "%MAX_LEN", "(1,)", "{}", "'a'", "1j"]
    deep = ["1" * 5000, "(" * 300, "-" * 3000, "[" * 200 + "]" * 200, "''' ", "1if 1else 2"]
    return st.text(alphabet, max_size=14) | st.sampled_from(words + deep)


@functools.cache
def bound():
    """Returns the names that gin can bind for a model."""
    known = experiment.load("listops", "transformer", "cpu").config
    found = {line.partition(" = ")[0] for line in known.splitlines() if " = " in line}
    return sorted({name.rpartition("/")[2] for name in found if not name.startswith("#")})


@target(typed() | st.builds("{}={}".format, st.sampled_from(["a.b", "Run.num_steps"]), typed()))
def set_binding(place, given):
    binding = config.normalise(given)
    assert binding.partition(" = ")[0]


@target(st.lists(typed(), max_size=3).map(" ".join))
def gin_bindings(place, given):
    for word in config.split_bindings(given):
        assert word.strip()


@target(st.tuples(st.sampled_from(["grid", "range"]), typed()))
def axes(place, given):
    option, values = given
    name, found = plan.axis(option, f"Run.batch_size={values}")
    plan.Sweep(tasks=["listops"], axes={name: found}, sampler="random", trials=1).checked()


@target(st.deferred(lambda: st.tuples(st.sampled_from(bound()), typed())))
def experiment_with_a_binding(place, given):
    name, value = given
    experiment.load("listops", "transformer", "cpu", (f"{name}={value}",))


GIN = b'# Mine: a model\nMIXERS = @SelfAttention\nSelfAttention.implementation = "naive"\n'


@target(damaged(GIN))
def gin_file(place, given):
    write(place, {"models/mine.gin": given})
    experiment.load("listops", "mine", "cpu", gin_dirs=[place])
    config.title("mine", [place])


TASKS = ("listops", "text", "retrieval", "image", "pathfinder")


@st.composite
def questions(draw):
    """A task and the files that `lra-fnet predict` reads."""
    expression = draw(expressions()).encode() + b"\n"
    line = json.dumps({"text": "[MAX 1 2 ]", "text1": "a", "text2": "b"}).encode() + b"\n"
    contents = [expression, line, line * 2, b"some text", picture(32)]
    content = draw(st.sampled_from(contents))
    content = draw(st.just(content) | damaged(content) | st.just(b""))
    suffix = draw(st.sampled_from([".txt", ".jsonl", ".png"]))
    return draw(st.sampled_from(TASKS)), suffix, content, draw(st.integers(0, 2))


@target(questions())
def predicted(place, given):
    name, suffix, content, count = given
    task = tasks.make(name, max_len=16) if name in ("listops", "text") else tasks.make(name)
    run = trained.TrainedRun(place, types.SimpleNamespace(task=task), {}, "best", 0, None)
    files = [place / f"{number}{suffix}" for number in range(count)]
    for file in files:
        file.write_bytes(content)
    stdin = io.TextIOWrapper(io.BytesIO(content))
    with mock.patch.object(sys, "stdin", stdin):
        for _, texts in predict.read(run, files):
            assert len(texts) == task.num_inputs
            run._padded([texts])
