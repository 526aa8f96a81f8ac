"""Folders, archives and pickles from a stranger: none may run code or write outside of its place.

Each carries code that leaves a file `marker`, or names that lead out of a folder.
"""

import functools
import io
import itertools
import json
import os
import pickle
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lra_fnet.run import result as results
from tools.drill.stage import Stage, Verdict

_EVIL = "import pathlib\npathlib.Path('marker').touch()\n"
_OUTSIDE = "/tmp/marker-of-the-drill"
_DYNAMIC = "from __gin__ import dynamic_registration\n"
_CONFIGS = {
    "import": "import evil\n",
    "from import": "from os import evil\nimport evil\n",
    "import as": "import evil as lra_fnet9\n",
    "include": "include 'evil.gin'\n",
    "dynamic registration": f"{_DYNAMIC}import os\nos.system.command = 'touch marker'\n"
    "MAX_LEN = @os.system()\n",
    "a library of our own module": f"{_DYNAMIC}import lra_fnet.run.provenance\n"
    "lra_fnet.run.provenance.subprocess.getoutput.cmd = 'touch marker'\n"
    "MAX_LEN = @lra_fnet.run.provenance.subprocess.getoutput()\n",
}


class _Pickled:
    def __reduce__(self):
        return os.system, ("touch marker",)


PICKLE = pickle.dumps(_Pickled())
_MEMBERS = {  # of an archive: name, content, and what it links to
    "a name that leads out": [("../marker", b"x", None)],
    "an absolute name": [(_OUTSIDE, b"x", None)],
    "a link": [("data", b"", "/tmp"), (f"data/{Path(_OUTSIDE).name}", b"x", None)],
    "a hard link": [("train/a", b"", "!/etc/passwd")],
    "pickled batches": [("cifar-10-batches-py/data_batch_1", PICKLE, None)],
    "a pickle as a batch": [
        (f"{name}.bin", PICKLE, None)
        for name in (*map("data_batch_{}".format, range(1, 6)), "test_batch")
    ],
}
Change = Callable[[Stage], Any]


def cases() -> Iterator[tuple[str, str, Callable]]:
    """Yields title, state and play of each case."""
    for title, state, change, words in _payloads():
        yield title, state, functools.partial(_play, change=change, words=words)


def _play(stage: Stage, facts, change: Change, words) -> Verdict:
    (stage.folder / "evil.py").write_text(_EVIL)
    (stage.folder / "evil.gin").write_text("import evil\n")
    change(stage)
    outcome = stage.run(words, before=lambda: sys.path.insert(0, str(stage.folder)))
    inside, beside = stage.folder.rglob("marker*"), stage.folder.parent.glob("marker*")
    if left := [*inside, *beside, *filter(Path.exists, [Path(_OUTSIDE)])]:
        stage.log.append(f"  the payload has left {left}")
        return Verdict.WRONG
    return outcome.verdict()


def _payloads() -> Iterator[tuple[str, str, Change, str | list[str]]]:
    run, result, export = (
        functools.partial(_edit, name)
        for name in ("{run}/run.json", "{run}/result.json", "export/config.json")
    )
    states = {"predict": "whole", "export": "whole", "report": "whole", "evaluate": "untested"}
    for module, (command, state) in itertools.product(("evil", "./evil.py"), states.items()):
        yield f"run.json imports {module}: {command}", state, run(imports=[module]), command
        if command == "predict":
            yield f"export imports {module}", "exported", export(imports=[module]), "exported"
    for name, text in _CONFIGS.items():
        yield f"result.json, {name}", "whole", result(config=text), "predict"
        yield f"export, {name}", "exported", export(config=text), "exported"
    newline = ["Run.num_steps=8\nimport evil"]
    names = {"model": "../../../../marker", "task": _OUTSIDE}
    yield "run.json imports a module: train", "half", run(imports=["evil"]), "train"
    yield "run.json names a gin folder", "half", run(gin_dirs=["."]), "train"
    yield "run.json: a newline in overrides", "whole", run(overrides=newline), "predict"
    yield "a pickle as weights", "exported", _write("export/model.safetensors"), "exported"
    yield "pickles as checkpoints", "half", _write("{run}/checkpoints/*/*"), "train"
    yield "pickles as checkpoints: predict", "whole", _write("{run}/checkpoints/*/*"), "predict"
    yield "pickles as compiled programs", "half", _write("cache/lra-fnet/jax/*-cache"), "train"
    yield "a pickle as inputs", "whole", _write("inputs.txt"), "predict"
    yield "names of files in result.json", "whole", result(**names), "report"
    yield "a loop of links among the runs", "whole", _loop, "report"
    train = Stage(Path(), 0).words("train")
    yield "a newline in --set", "bare", _nothing, [*train, "--set", *newline]
    yield "a name that leads out", "bare", _nothing, [*train, "--name", "../../../marker"]
    yield "a sweep that leads out", "bare", _nothing, ["finish", "--name", "../../evil"]
    for verb in ("finish", "sweep"):
        yield f"sweep.json imports a module: {verb}", "bare", _sweep, [verb, "--name", "s"]
    for task, (name, members) in itertools.product(
        ("text", "retrieval", "image"), _MEMBERS.items()
    ):
        words = ["data", "--task", task, "--source", "a.tar"]
        yield f"{task}: {name} in an archive", "empty", functools.partial(_archive, members), words
    words = ["data", "--task", "pathfinder", "--source", "source"]
    yield "pathfinder: a pickle in .npy", "empty", _arrays, words


def _nothing(stage: Stage) -> None:
    """Leaves the stage as it is: the command itself is hostile."""


def _loop(stage: Stage) -> None:
    (stage.folder / "runs/loop").symlink_to(".")


def _edit(name: str, **fields) -> Change:
    """Returns a change of a JSON file, sealed again; a config is put before the one there."""

    def change(stage):
        file = stage.folder / name.format(run=stage.run_folder)
        content = json.loads(file.read_text())
        inner = content["result"] if "result" in content and "config" in fields else content
        added = dict(fields)
        if "config" in added:
            added["config"] = added["config"] + inner["config"]
        inner.update(added)
        if "sha256" in inner:
            inner.update(results.seal(inner))
        file.write_text(json.dumps(content))

    return change


def _write(pattern: str) -> Change:
    """Returns a change that puts the pickle in the place of files."""

    def change(stage):
        files = stage.folder.glob(pattern.format(run=stage.run_folder.relative_to(stage.folder)))
        for file in list(files):
            file.write_bytes(PICKLE)

    return change


def _sweep(stage: Stage) -> None:
    """Runs a sweep, and puts a stranger's import into its sweep.json."""
    changes = {"train": "sweep", "--model": "--models"}
    words = [changes.get(word, word) for word in stage.words("train")[:-2]]  # without --seed
    stage.run([*words, "--name", "s"])
    file = stage.folder / "runs/sweeps/s/sweep.json"
    fields = {"imports": ["evil"], "gin_dirs": ["."]}
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def _archive(members, stage: Stage) -> None:
    with tarfile.open(stage.folder / "a.tar", "w") as archive:
        for name, data, link in members:
            member = tarfile.TarInfo(name)
            if link:
                member.type = tarfile.LNKTYPE if link[0] == "!" else tarfile.SYMTYPE
                member.linkname = link.lstrip("!")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _arrays(stage: Stage) -> None:
    """Writes Pathfinder's metadata as an array of objects, which NumPy would unpickle."""
    folder = stage.folder / "source/pathfinder32/curv_contour_length_14/metadata"
    folder.mkdir(parents=True)
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    (folder / "0.npy").write_bytes(magic + header + PICKLE)
